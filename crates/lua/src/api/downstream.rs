//! `ngx.req.socket`: the client's side as a socket of the script.
//!
//! In http it is the request's content, or, `raw`, the whole connection, whose response is then the script's business. In
//! stream it is the connection, or the datagrams of the client. When the script ends it lets go of it, also where a timer
//! keeps the object.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use http::Request;
use http::body_reader::RequestBody;

use super::Called;
use super::output::answer;
use super::tcp::{self, SOCKET, Tcp};
use super::wire::{Content, Wire};
use crate::chunk::Kind;
use crate::luajit::object;
use crate::luajit::{Failure, Stack, Value, fail};
use crate::scope::{self, Scope};

pub(super) fn socket(stack: &Stack) -> Called {
    let raw = stack.boolean(1);
    let kind = scope::with(|scope| scope.kind)?;
    if !matches!(
        kind,
        Kind::ServerRewrite
            | Kind::Rewrite
            | Kind::Access
            | Kind::Precontent
            | Kind::Content
            | Kind::Preread
    ) {
        return fail(kind.refusal());
    }
    if let Some(known) = scope::with(|scope| scope.client_socket.borrow().clone())? {
        if scope::serves_session() {
            object::push(stack, &SOCKET, known);
            return super::ONE;
        }
        let why = match scope::with(|scope| scope.raw.get())? {
            true => "duplicate call",
            false => "request body already exists",
        };
        return answer(stack, Value::failure(why));
    }
    let of_session = scope::with_session(|session| {
        let client = Rc::clone(&session.client);
        let input = client.input.take();
        (Wire::Session(client), input)
    });
    // A session has no head and no end that a script could take into its own hands.
    let is_raw = raw && of_session.is_err();
    let found = match of_session {
        Ok((Wire::Session(client), _)) if client.is_udp() => {
            super::udp::push_client(stack, client)?;
            return super::ONE;
        }
        Ok(found) => found,
        Err(_) => match scope::with_request(|request| {
            super::request::note_read(request);
            of_request(request, raw)
        })?? {
            Ok(found) => found,
            Err(message) => return answer(stack, Value::failure(message)),
        },
    };
    let socket = Rc::new(Tcp::of_client(&tcp::settings()?, found.0, found.1));
    scope::with(|scope| {
        if is_raw {
            scope.head_sent.set(true);
            scope.raw.set(true);
        }
        *scope.client_socket.borrow_mut() = Some(Rc::clone(&socket));
    })?;
    object::push(stack, &SOCKET, socket);
    super::ONE
}

/// The content, or the whole connection; or what is answered instead. A failure is the script's own fault.
fn of_request(
    request: &mut Request,
    raw: bool,
) -> Result<Result<(Wire, Vec<u8>), &'static str>, Failure> {
    if request.is_subrequest() {
        return fail("attempt to read the request body in a subrequest");
    }
    if !raw {
        let Some(input) = request.body.take_input() else {
            return Ok(Err(match request.body.exists() {
                true => "request body already exists",
                false => "no body",
            }));
        };
        // For everybody else there is none now, until a script makes one (`ngx.req.init_body`).
        request.body = RequestBody::from_bytes(Vec::new());
        let content = Content {
            input: RefCell::new(input),
            ended: Cell::new(false),
        };
        return Ok(Ok((Wire::Content(Rc::new(content)), Vec::new())));
    }
    if request.lane.is_some() {
        return fail("http v2 not supported yet");
    }
    if !request.body.is_complete() {
        if request.body.length() > 0 {
            return Ok(Err("pending request body reading in some other thread"));
        }
        // Nobody has read of it: the script gets it as it comes, chunks and all.
        drop(request.body.take_input());
        request.body = RequestBody::from_bytes(Vec::new());
    }
    // Where another request would begin is the script's secret.
    request.flow.close = true;
    let client = Rc::clone(&request.client);
    let input = client.input.take();
    Ok(Ok((Wire::Request(client), input)))
}

/// Gives back what a script has left of the content of its request.
pub(crate) fn give_back(scope: &Scope, request: &mut Request) {
    let Some(socket) = scope.client_socket.take() else {
        return;
    };
    let (wire, _, _) = socket.detach();
    // What the socket has taken in and the script has not wanted is lost. The connection's part in it is to be read to
    // its end, before the next request.
    if let Some(Wire::Content(content)) = wire
        && let Ok(content) = Rc::try_unwrap(content)
    {
        match content.ended.get() {
            // The script may have made content of its own of it.
            true if request.body.is_complete() => {}
            true => request.body = RequestBody::from_bytes(Vec::new()),
            false => request.body = RequestBody::from_input(content.input.into_inner()),
        }
    }
}

/// Gives back what a script has left of what came from its client.
pub(crate) fn give_back_to_session(scope: &Scope, session: &mut ::stream::Session) {
    if let Some(socket) = scope.client_socket.take() {
        let (_, rest, received) = socket.detach();
        session.received += received;
        session.client.input.borrow_mut().splice(..0, rest);
    }
}
