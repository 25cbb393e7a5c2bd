//! Sending, and the end of a connection.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use net::Transport;
use rt::error_log::Level;

use super::super::output::{answer, append};
use super::super::wire::Wire;
use super::super::{ONE, wait};
use super::{Busy, Called, Tcp, failed, own, refuse, this, words};
use crate::luajit::stack::Kind;
use crate::luajit::{Failure, Stack, Value, fail};
use crate::operation::Operation;
use crate::scope;

/// What is to be sent: a text, or what an array holds.
fn data_of(stack: &Stack) -> Result<Vec<u8>, Failure> {
    let kind = stack.kind(2);
    if !matches!(
        kind,
        Kind::String | Kind::Number | Kind::Boolean | Kind::Nil | Kind::Table
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

pub(super) fn send(stack: &Stack) -> Called {
    if stack.top() != 2 {
        return fail(format!(
            "expecting 2 arguments (including the object), but got {}",
            stack.top()
        ));
    }
    let socket = this(stack)?;
    socket.check_left()?;
    let wire = match socket.to_write() {
        Ok(wire) => wire,
        Err(message) => {
            closed(&socket, "send")?;
            return refuse(stack, message);
        }
    };
    socket.check_owner()?;
    if let Err(message) = socket.busy(false, true) {
        return refuse(stack, message);
    }
    if wire.transport().is_none() {
        return fail("attempt to write to request sockets");
    }
    let mut data = data_of(stack)?;
    let length = data.len();
    if let Wire::Session(_) = wire {
        // What was said before goes first.
        let mut said = scope::with(|scope| scope.output.take())?;
        said.append(&mut data);
        data = said;
    }
    // Mostly the kernel takes it at once.
    let sent = wire.try_send(&data);
    if sent == data.len() {
        stack.push_number(length as f64);
        return ONE;
    }
    data.drain(..sent);
    let busy = Busy::new(&socket, |socket| &socket.writing);
    wait(Operation::task(async move {
        let sent = send_all(&wire, &data, socket.send_timeout.get()).await;
        busy.over();
        match sent {
            Ok(()) => vec![Value::Number(length as f64)],
            Err(error) => {
                // What was sent of it cannot be known: nothing is to follow. What comes may still be read.
                socket.write_closed.set(true);
                Value::failure(words(&error))
            }
        }
    }))
}

/// Sends all; each time that the kernel takes something, the time begins anew.
async fn send_all(wire: &Wire, mut data: &[u8], time: Duration) -> io::Result<()> {
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
    rt::timeout(time, transport.flush())
        .await
        .map_err(io::Error::from)?
}

/// Notes that a script uses a connection that is not there any more.
pub(super) fn closed(socket: &Tcp, what: &str) -> Result<(), Failure> {
    if !socket.settings.log_errors {
        return Ok(());
    }
    let message = format!("attempt to {what} data on a closed socket");
    super::super::misc::write(Level::Error, message.as_bytes())
}

pub(super) fn close(stack: &Stack) -> Called {
    if stack.top() != 1 {
        return fail(format!(
            "expecting 1 argument (including the object) but seen {}",
            stack.top()
        ));
    }
    let socket = this(stack)?;
    socket.check_left()?;
    let wire = match socket.open() {
        Ok(wire) => wire,
        Err(message) => return refuse(stack, message),
    };
    socket.check_owner()?;
    if let Err(message) = socket.busy(true, true) {
        return refuse(stack, message);
    }
    let Some(transport) = own(&wire) else {
        return refuse(stack, "attempt to close a request socket");
    };
    transport.say_goodbye();
    drop(wire);
    socket.drop_connection();
    stack.push_number(1.0);
    ONE
}

pub(super) fn shutdown(stack: &Stack) -> Called {
    let socket = this(stack)?;
    let wire = match socket.open() {
        Ok(wire) => wire,
        Err(message) => return refuse(stack, message),
    };
    match wire.transport().map(Transport::shutdown_write) {
        Some(Ok(())) => stack.push_number(1.0),
        Some(Err(error)) => return failed(stack, words(&error)),
        None => return refuse(stack, "closed"),
    }
    ONE
}

/// The peer has finished, or the connection is broken.
fn is_finished(transport: &Transport) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    matches!(transport.poll_closed(&mut context), Poll::Ready(()))
}

/// A whole number, as the library's own checks see one.
fn whole(stack: &Stack, at: i32) -> Result<Option<f64>, Failure> {
    if stack.is_nil(at) {
        return Ok(None);
    }
    match stack.number(at) {
        Some(number) => Ok(Some(number.trunc())),
        None => {
            let message = format!("number expected, got {}", stack.kind(at).name());
            Err(stack.bad_argument(at, &message))
        }
    }
}

pub(super) fn set_keepalive(stack: &Stack) -> Called {
    if !(1..=3).contains(&stack.top()) {
        return fail(format!(
            "expecting 1 to 3 arguments (including the object), but got {}",
            stack.top()
        ));
    }
    let socket = this(stack)?;
    let timeout = whole(stack, 2)?;
    let size = whole(stack, 3)?.unwrap_or(socket.settings.pool_size as f64);
    socket.check_left()?;
    if socket.read_closed.get() || socket.write_closed.get() {
        return refuse(stack, "closed");
    }
    let wire = match socket.open() {
        Ok(wire) => wire,
        Err(message) => return refuse(stack, message),
    };
    let Some(transport) = own(&wire).cloned() else {
        return refuse(stack, "not supported on the client's connection");
    };
    drop(wire);
    if let Err(message) = unfit(&socket, &transport)? {
        return refuse(stack, message);
    }
    let key = socket.pool.borrow().clone().unwrap_or_default();
    let pools = scope::with(|scope| Rc::clone(&scope.vm.pools))?;
    if size < 1.0 && !pools.has(&key) {
        let message = format!("bad \"pool_size\" option value: {size}");
        return Err(stack.bad_argument(stack.top(), &message));
    }
    let timeout = match timeout {
        None if socket.settings.keepalive_timeout.is_zero() => Duration::MAX,
        None => socket.settings.keepalive_timeout,
        Some(millis) if millis <= 0.0 => Duration::MAX,
        Some(millis) => Duration::from_millis(millis as u64),
    };
    let slot = socket.slot.take();
    socket.drop_connection();
    if scope::with(|scope| scope.vm.ended.get())? {
        drop(slot);
    } else {
        let reused = socket.reused.get() + 1;
        pools.keep(&key, transport, reused, slot, (timeout, size as usize));
    }
    stack.push_number(1.0);
    ONE
}

/// Why a connection cannot be used by another request.
fn unfit(socket: &Rc<Tcp>, transport: &Rc<Transport>) -> Result<Result<(), &'static str>, Failure> {
    if !transport.is_quiet() && is_finished(transport) {
        return Ok(Err("closed"));
    }
    socket.check_owner()?;
    if let Err(message) = socket.busy(true, true) {
        return Ok(Err(message));
    }
    if !socket.input.borrow().is_empty() {
        return Ok(Err("unread data in buffer"));
    }
    if !transport.is_quiet() {
        socket.drop_connection();
        return Ok(Err("connection in dubious state"));
    }
    Ok(Ok(()))
}

pub(super) fn reused_times(stack: &Stack) -> Called {
    if stack.top() != 1 {
        return fail(format!(
            "expecting 1 argument (including the object), but got {}",
            stack.top()
        ));
    }
    let socket = this(stack)?;
    match socket.open() {
        _ if socket.connecting.get() => stack.push_number(0.0),
        Ok(_) => stack.push_number(f64::from(socket.reused.get())),
        Err(message) => return answer(stack, Value::failure(message)),
    }
    ONE
}
