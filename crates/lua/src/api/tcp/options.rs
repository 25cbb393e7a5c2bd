//! `settimeout`, `settimeouts`, `setoption`, `getoption`, `getfd`. Timeouts are kept in the object
//! and apply from the next operation on, also before it is connected.

use std::os::fd::{AsFd as _, AsRawFd as _};
use std::time::Duration;

use bstr::ByteSlice as _;
use net::Transport;
use rt::net::SocketOption;

use super::super::cosocket_transport::CosocketTransport;
use super::{CallResult, TcpCosocket, error_text, failed, refuse, this_socket};
use crate::luajit::{LuaError, LuaStack, fail};
use crate::scope;

/// A timeout in milliseconds. 0, and what is not a number, restores the configured one.
fn millis(stack: &LuaStack, at: i32, usual: Duration) -> Result<Duration, LuaError> {
    let millis = stack.number(at).unwrap_or(0.0);
    if !(0.0..=f64::from(i32::MAX)).contains(&millis.trunc()) {
        return fail("bad timeout value");
    }
    Ok(match millis as u64 {
        0 => usual,
        millis => Duration::from_millis(millis),
    })
}

/// `sock:settimeout(milliseconds)`, for connecting, sending and reading.
pub(super) fn set_timeout(stack: &LuaStack) -> CallResult {
    if stack.top() != 2 {
        return fail(format!(
            "ngx.socket settimeout: expecting 2 arguments (including the object) but seen {}",
            stack.top()
        ));
    }
    let socket = this_socket(stack)?;
    let settings = &socket.settings;
    let connect = millis(stack, 2, settings.connect_timeout)?;
    socket.connect_timeout.set(connect);
    socket
        .send_timeout
        .set(millis(stack, 2, settings.send_timeout)?);
    socket
        .read_timeout
        .set(millis(stack, 2, settings.read_timeout)?);
    super::super::NONE
}

/// `sock:settimeouts(connect, send, read)`.
pub(super) fn set_timeouts(stack: &LuaStack) -> CallResult {
    if stack.top() != 4 {
        return fail(format!(
            "ngx.socket settimeouts: expecting 4 arguments (including the object) but seen {}",
            stack.top()
        ));
    }
    let socket = this_socket(stack)?;
    let settings = &socket.settings;
    let connect = millis(stack, 2, settings.connect_timeout)?;
    // All three are read before one is set: a call that fails changes nothing.
    let send = millis(stack, 3, settings.send_timeout)?;
    let read = millis(stack, 4, settings.read_timeout)?;
    socket.connect_timeout.set(connect);
    socket.send_timeout.set(send);
    socket.read_timeout.set(read);
    super::super::NONE
}

/// The options that lua-nginx-module has.
fn option_by_name(name: &[u8]) -> Option<SocketOption> {
    Some(match name {
        b"keepalive" => SocketOption::Keepalive,
        b"reuseaddr" => SocketOption::ReuseAddress,
        b"tcp-nodelay" => SocketOption::NoDelay,
        b"sndbuf" => SocketOption::SendBuffer,
        b"rcvbuf" => SocketOption::ReceiveBuffer,
        b"keepintvl" => SocketOption::KeepInterval,
        b"keepcnt" => SocketOption::KeepCount,
        _ => return None,
    })
}

/// The option in argument 2, and the connection; the inner error is returned to the script.
fn option_and_transport(
    stack: &LuaStack,
    socket: &TcpCosocket,
) -> Result<Result<(SocketOption, CosocketTransport), String>, LuaError> {
    if !socket.was_used.get() {
        return fail("socket is never created nor connected");
    }
    let name = stack.text(2).unwrap_or_default();
    let Some(option) = option_by_name(&name) else {
        return Ok(Err(format!("unsupported option {}", name.as_bstr())));
    };
    Ok(match socket.open() {
        Ok(wire) => Ok((option, wire)),
        Err(why) => Err(why.to_owned()),
    })
}

/// `sock:getoption(name)`.
pub(super) fn get_option(stack: &LuaStack) -> CallResult {
    let socket = this_socket(stack)?;
    if stack.is_nil(2) {
        return refuse(stack, "missing the \"option\" argument");
    }
    let (option, wire) = match option_and_transport(stack, &socket)? {
        Ok(found) => found,
        Err(why) => return failed(stack, why),
    };
    let Some(transport) = wire.transport() else {
        return refuse(stack, "closed");
    };
    match transport.socket().option(option) {
        Ok(value) => stack.push_number(f64::from(value)),
        Err(error) => return failed(stack, error_text(&error)),
    }
    super::super::ONE
}

/// `sock:setoption(name, value)`.
pub(super) fn set_option(stack: &LuaStack) -> CallResult {
    let socket = this_socket(stack)?;
    if stack.is_nil(2) {
        return refuse(stack, "missing the \"option\" argument");
    }
    if stack.is_nil(3) {
        return refuse(stack, "missing the \"value\" argument");
    }
    let (option, wire) = match option_and_transport(stack, &socket)? {
        Ok(found) => found,
        Err(why) => return failed(stack, why),
    };
    let Some(transport) = wire.transport() else {
        return refuse(stack, "closed");
    };
    let value = match stack.number(3) {
        Some(value) => value as i32,
        // A flag may be given as a boolean.
        None => i32::from(stack.boolean(3)),
    };
    match transport.socket().set_option(option, value) {
        Ok(()) => stack.push_boolean(true),
        Err(error) => return failed(stack, error_text(&error)),
    }
    super::super::ONE
}

/// `sock:getfd()`.
pub(super) fn descriptor(stack: &LuaStack) -> CallResult {
    let socket = this_socket(stack)?;
    if !socket.was_used.get() {
        return fail("socket is never created nor connected");
    }
    let wire = match socket.open() {
        Ok(wire) => wire,
        Err(why) => return refuse(stack, why),
    };
    let number = |transport: &Transport| transport.socket().as_fd().as_raw_fd();
    let number = match wire.transport() {
        Some(transport) => number(transport),
        // A request body comes over the client's connection.
        None => scope::with_request(|request| {
            let bytes = request.client.bytes();
            bytes.map(|bytes| number(&bytes.transport))
        })?
        .unwrap_or(-1),
    };
    stack.push_number(f64::from(number));
    super::super::ONE
}
