//! What can be set of a socket, and asked.

use std::os::fd::{AsFd as _, AsRawFd as _};
use std::time::Duration;

use bstr::ByteSlice as _;
use net::Transport;
use rt::net::SocketOption;

use super::super::wire::Wire;
use super::{Called, Tcp, failed, refuse, this, words};
use crate::luajit::{Failure, Stack, fail};
use crate::scope;

/// A time that a script gives in milliseconds; 0 and what is no number: what is configured.
fn millis(stack: &Stack, at: i32, usual: Duration) -> Result<Duration, Failure> {
    let millis = stack.number(at).unwrap_or(0.0);
    if !(0.0..=f64::from(i32::MAX)).contains(&millis.trunc()) {
        return fail("bad timeout value");
    }
    Ok(match millis as u64 {
        0 => usual,
        millis => Duration::from_millis(millis),
    })
}

pub(super) fn set_timeout(stack: &Stack) -> Called {
    if stack.top() != 2 {
        return fail(format!(
            "ngx.socket settimeout: expecting 2 arguments (including the object) but seen {}",
            stack.top()
        ));
    }
    let socket = this(stack)?;
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

pub(super) fn set_timeouts(stack: &Stack) -> Called {
    if stack.top() != 4 {
        return fail(format!(
            "ngx.socket settimeouts: expecting 4 arguments (including the object) but seen {}",
            stack.top()
        ));
    }
    let socket = this(stack)?;
    let settings = &socket.settings;
    let connect = millis(stack, 2, settings.connect_timeout)?;
    let send = millis(stack, 3, settings.send_timeout)?;
    let read = millis(stack, 4, settings.read_timeout)?;
    socket.connect_timeout.set(connect);
    socket.send_timeout.set(send);
    socket.read_timeout.set(read);
    super::super::NONE
}

fn named(name: &[u8]) -> Option<SocketOption> {
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

/// The option that the second argument names, and the connection; or what is answered instead.
fn find(stack: &Stack, socket: &Tcp) -> Result<Result<(SocketOption, Wire), String>, Failure> {
    if !socket.was_used.get() {
        return fail("socket is never created nor connected");
    }
    let name = stack.text(2).unwrap_or_default();
    let Some(option) = named(&name) else {
        return Ok(Err(format!("unsupported option {}", name.as_bstr())));
    };
    Ok(match socket.open() {
        Ok(wire) => Ok((option, wire)),
        Err(why) => Err(why.to_owned()),
    })
}

pub(super) fn option(stack: &Stack) -> Called {
    let socket = this(stack)?;
    if stack.is_nil(2) {
        return refuse(stack, "missing the \"option\" argument");
    }
    let (option, wire) = match find(stack, &socket)? {
        Ok(found) => found,
        Err(why) => return failed(stack, why),
    };
    let Some(transport) = wire.transport() else {
        return refuse(stack, "closed");
    };
    match transport.socket().option(option) {
        Ok(value) => stack.push_number(f64::from(value)),
        Err(error) => return failed(stack, words(&error)),
    }
    super::super::ONE
}

pub(super) fn set_option(stack: &Stack) -> Called {
    let socket = this(stack)?;
    if stack.is_nil(2) {
        return refuse(stack, "missing the \"option\" argument");
    }
    if stack.is_nil(3) {
        return refuse(stack, "missing the \"value\" argument");
    }
    let (option, wire) = match find(stack, &socket)? {
        Ok(found) => found,
        Err(why) => return failed(stack, why),
    };
    let Some(transport) = wire.transport() else {
        return refuse(stack, "closed");
    };
    let value = match stack.number(3) {
        Some(value) => value as i32,
        None => i32::from(stack.boolean(3)),
    };
    match transport.socket().set_option(option, value) {
        Ok(()) => stack.push_boolean(true),
        Err(error) => return failed(stack, words(&error)),
    }
    super::super::ONE
}

pub(super) fn descriptor(stack: &Stack) -> Called {
    let socket = this(stack)?;
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
        // The content of a request comes from its client.
        None => scope::with_request(|request| number(&request.client.stream))?,
    };
    stack.push_number(f64::from(number));
    super::super::ONE
}
