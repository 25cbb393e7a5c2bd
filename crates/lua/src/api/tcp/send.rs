//! `send`, and the end of a connection: `close`, `shutdown`, `setkeepalive`. What was sent is never
//! buffered here: `send` waits until the kernel has taken everything.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use host::error_log::LogLevel;
use net::Transport;

use super::super::called::answer;
use super::super::cosocket_transport::CosocketTransport;
use super::super::output::append;
use super::super::{ONE, wait};
use super::socket::SocketBusyGuard;
use super::{CallResult, TcpCosocket, error_text, failed, own_transport, refuse, this_socket};
use crate::luajit::stack::LuaType;
use crate::luajit::{LuaError, LuaStack, LuaValue, fail};
use crate::operation::YieldOperation;
use crate::scope;

/// The data to send: text, or the elements of an array.
fn data_of(stack: &LuaStack) -> Result<Vec<u8>, LuaError> {
    let kind = stack.type_at(2);
    if !matches!(
        kind,
        LuaType::String | LuaType::Number | LuaType::Boolean | LuaType::Nil | LuaType::Table
    ) {
        let message = format!(
            "string, number, boolean, nil, or array table expected, got {}",
            kind.name()
        );
        return Err(stack.bad_argument(2, &message));
    }
    let mut data = Vec::new();
    append(stack, 2, &mut data)?;
    Ok(data)
}

/// `sock:send(data)`: how many bytes were sent.
pub(super) fn send(stack: &LuaStack) -> CallResult {
    if stack.top() != 2 {
        return fail(format!(
            "expecting 2 arguments (including the object), but got {}",
            stack.top()
        ));
    }
    let socket = this_socket(stack)?;
    socket.check_closed_with_owner()?;
    let wire = match socket.writable() {
        Ok(wire) => wire,
        Err(message) => {
            closed(&socket, "send")?;
            return refuse(stack, message);
        }
    };
    socket.check_owner()?;
    if let Err(message) = socket.check_not_busy(false, true) {
        return refuse(stack, message);
    }
    if wire.transport().is_none() {
        return fail("attempt to write to request sockets");
    }
    let mut data = data_of(stack)?;
    let length = data.len();
    if let CosocketTransport::Session(_) = wire {
        // Output of `ngx.print` before this call is sent first.
        let mut said = scope::with(|scope| scope.output.take())?;
        said.append(&mut data);
        data = said;
    }
    // Usually the kernel takes all of it, and no future is needed.
    let sent = wire.try_send(&data);
    if sent == data.len() {
        stack.push_number(length as f64);
        return ONE;
    }
    data.drain(..sent);
    // Another light thread that sends while this one waits would mix its bytes into these.
    let busy = SocketBusyGuard::new(&socket, |socket| &socket.writing);
    wait(YieldOperation::task(async move {
        let sent = send_all(&wire, &data, socket.send_timeout.get()).await;
        busy.over();
        match sent {
            Ok(()) => vec![LuaValue::Number(length as f64)],
            Err(error) => {
                // Part of the data may have been sent, so nothing can follow. Reading is still
                // possible.
                socket.write_closed.set(true);
                LuaValue::failure(error_text(&error))
            }
        }
    }))
}

/// Sends all of it. The timeout starts again whenever the kernel takes some.
async fn send_all(wire: &CosocketTransport, mut data: &[u8], time: Duration) -> io::Result<()> {
    let Some(transport) = wire.transport() else {
        return Err(io::ErrorKind::Unsupported.into());
    };
    while !data.is_empty() {
        let step = poll_fn(|context| transport.poll_write(context, data));
        match rt::timeout(time, step).await.map_err(io::Error::from)?? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            n => {
                wire.count(n);
                data = &data[n..];
            }
        }
    }
    // With TLS, encrypted bytes may still be held back when the last plain one was taken.
    rt::timeout(time, transport.flush())
        .await
        .map_err(io::Error::from)?
}

/// Logs that a script uses a closed connection (`lua_socket_log_errors`).
pub(super) fn closed(socket: &TcpCosocket, what: &str) -> Result<(), LuaError> {
    if !socket.settings.log_errors {
        return Ok(());
    }
    let message = format!("attempt to {what} data on a closed socket");
    super::super::misc::write(LogLevel::Error, message.as_bytes())
}

/// `sock:close()`.
pub(super) fn close(stack: &LuaStack) -> CallResult {
    if stack.top() != 1 {
        return fail(format!(
            "expecting 1 argument (including the object) but seen {}",
            stack.top()
        ));
    }
    let socket = this_socket(stack)?;
    socket.check_closed_with_owner()?;
    let wire = match socket.open() {
        Ok(wire) => wire,
        Err(message) => return refuse(stack, message),
    };
    socket.check_owner()?;
    if let Err(message) = socket.check_not_busy(true, true) {
        return refuse(stack, message);
    }
    let Some(transport) = own_transport(&wire) else {
        return refuse(stack, "attempt to close a request socket");
    };
    // TLS has a message for it, without which the peer may suspect truncation.
    transport.say_goodbye();
    drop(wire);
    socket.drop_connection();
    stack.push_number(1.0);
    ONE
}

/// `sock:shutdown("send")`.
pub(super) fn shutdown(stack: &LuaStack) -> CallResult {
    let socket = this_socket(stack)?;
    let wire = match socket.open() {
        Ok(wire) => wire,
        Err(message) => return refuse(stack, message),
    };
    match wire.transport().map(Transport::shutdown_write) {
        Some(Ok(())) => stack.push_number(1.0),
        Some(Err(error)) => return failed(stack, error_text(&error)),
        None => return refuse(stack, "closed"),
    }
    ONE
}

/// Whether the peer has closed its side, or the connection is broken.
fn is_finished(transport: &Transport) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    matches!(transport.poll_closed(&mut context), Poll::Ready(()))
}

/// An integer argument, rounded as lua-nginx-module does; `None` for nil.
fn whole(stack: &LuaStack, at: i32) -> Result<Option<f64>, LuaError> {
    if stack.is_nil(at) {
        return Ok(None);
    }
    match stack.number(at) {
        Some(number) => Ok(Some(number.trunc())),
        None => {
            let message = format!("number expected, got {}", stack.type_at(at).name());
            Err(stack.bad_argument(at, &message))
        }
    }
}

/// `sock:setkeepalive(timeout, size)`: returns the connection to its pool.
pub(super) fn set_keepalive(stack: &LuaStack) -> CallResult {
    if !(1..=3).contains(&stack.top()) {
        return fail(format!(
            "expecting 1 to 3 arguments (including the object), but got {}",
            stack.top()
        ));
    }
    let socket = this_socket(stack)?;
    let timeout = whole(stack, 2)?;
    let size = whole(stack, 3)?.unwrap_or(socket.settings.pool_size as f64);
    socket.check_closed_with_owner()?;
    // Half a connection is of no use to the next request.
    if socket.read_closed.get() || socket.write_closed.get() {
        return refuse(stack, "closed");
    }
    let wire = match socket.open() {
        Ok(wire) => wire,
        Err(message) => return refuse(stack, message),
    };
    let Some(transport) = own_transport(&wire).cloned() else {
        return refuse(stack, "not supported on the client's connection");
    };
    drop(wire);
    if let Err(message) = unfit(&socket, &transport)? {
        return refuse(stack, message);
    }
    let key = socket.pool.borrow().clone().unwrap_or_default();
    let pools = scope::with(|scope| Rc::clone(&scope.vm.pools))?;
    // The size counts only in the call that creates the pool; later ones are ignored.
    if size < 1.0 && !pools.has(&key) {
        let message = format!("bad \"pool_size\" option value: {size}");
        return Err(stack.bad_argument(stack.top(), &message));
    }
    // 0 means that idle connections never time out, in the call as in
    // `lua_socket_keepalive_timeout`.
    let timeout = match timeout {
        None if socket.settings.keepalive_timeout.is_zero() => Duration::MAX,
        None => socket.settings.keepalive_timeout,
        Some(millis) if millis <= 0.0 => Duration::MAX,
        Some(millis) => Duration::from_millis(millis as u64),
    };
    // Taken before the connection is dropped: a slot that is freed here would let a waiting connect
    // open one connection more than the pool may have.
    let slot = socket.slot.take();
    socket.drop_connection();
    // The configuration is going away, and its pools with it.
    if scope::with(|scope| scope.vm.is_shut_down.get())? {
        drop(slot);
    } else {
        let reused = socket.reused.get() + 1;
        pools.put_idle(&key, transport, reused, slot, (timeout, size as usize));
    }
    stack.push_number(1.0);
    ONE
}

/// Why a connection must not be given to another request: unread data would be taken for the answer
/// to the next question.
fn unfit(
    socket: &Rc<TcpCosocket>,
    transport: &Rc<Transport>,
) -> Result<Result<(), &'static str>, LuaError> {
    if !transport.is_quiet() && is_finished(transport) {
        return Ok(Err("closed"));
    }
    socket.check_owner()?;
    if let Err(message) = socket.check_not_busy(true, true) {
        return Ok(Err(message));
    }
    // Read from the connection, but not by the script: the rest of an answer.
    if !socket.input.borrow().is_empty() {
        return Ok(Err("unread data in buffer"));
    }
    if !transport.is_quiet() {
        socket.drop_connection();
        return Ok(Err("connection in dubious state"));
    }
    Ok(Ok(()))
}

/// `sock:getreusedtimes()`.
pub(super) fn reused_times(stack: &LuaStack) -> CallResult {
    if stack.top() != 1 {
        return fail(format!(
            "expecting 1 argument (including the object), but got {}",
            stack.top()
        ));
    }
    let socket = this_socket(stack)?;
    match socket.open() {
        _ if socket.connecting.get() && !socket.resolving.get() => stack.push_number(0.0),
        Ok(_) => stack.push_number(f64::from(socket.reused.get())),
        Err(message) => return answer(stack, LuaValue::failure(message)),
    }
    ONE
}
