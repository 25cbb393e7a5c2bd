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
use crate::luajit::{Stack, Value, fail};
use crate::scope::{self, Scope};

pub(super) fn socket(stack: &Stack) -> Called {
    let raw = stack.boolean(1);
    let kind = scope::with(|scope| scope.kind)?;
    if !matches!(
        kind,
        Kind::Rewrite | Kind::Access | Kind::Precontent | Kind::Content | Kind::Preread
    ) {
        return fail(format!("API disabled in the context of {}*", kind.name()));
    }
    if let Some(known) = scope::with(|scope| scope.client_socket.borrow().clone())? {
        object::push(stack, &SOCKET, known);
        return super::ONE;
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
        Err(_) => match scope::with_request(|request| of_request(request, raw))? {
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

fn of_request(request: &mut Request, raw: bool) -> Result<(Wire, Vec<u8>), &'static str> {
    if request.is_subrequest() {
        return Err("subrequests have no socket of the client");
    }
    if !raw {
        let Some(input) = request.body.take_input() else {
            return Err(match request.body.exists() {
                true => "request body already exists",
                false => "no body",
            });
        };
        let content = Content {
            input: RefCell::new(input),
            ended: Cell::new(false),
        };
        return Ok((Wire::Content(Rc::new(content)), Vec::new()));
    }
    if request.lane.is_some() {
        return Err("http v2 not supported yet");
    }
    if !request.body.is_complete() {
        return Err("pending request body");
    }
    let client = Rc::clone(&request.client);
    let input = client.input.take();
    Ok((Wire::Request(client), input))
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
        request.body = match content.ended.get() {
            true => RequestBody::from_bytes(Vec::new()),
            false => RequestBody::from_input(content.input.into_inner()),
        };
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
