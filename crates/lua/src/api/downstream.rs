//! `ngx.req.socket`: the client's side as a cosocket.
//!
//! In http it reads the request body; with `raw` it is the whole connection, and the script writes
//! the response itself. In stream it is the connection, or the client's datagrams. When the script
//! ends the socket is detached, even if a timer still holds the object: the connection goes on to
//! whatever comes next.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use http::Request;
use http::body_reader::RequestBody;

use super::CallResult;
use super::called::answer;
use super::cosocket_transport::{CosocketBody, CosocketTransport};
use super::tcp::{self, SOCKET, TcpCosocket};
use crate::chunk::ScriptKind;
use crate::luajit::object;
use crate::luajit::{LuaError, LuaStack, LuaValue, fail};
use crate::scope::{self, RunScope};

/// `ngx.req.socket(raw)`.
pub(super) fn socket(stack: &LuaStack) -> CallResult {
    let raw = stack.boolean(1);
    let kind = scope::with(|scope| scope.kind)?;
    if !matches!(
        kind,
        ScriptKind::ServerRewrite
            | ScriptKind::Rewrite
            | ScriptKind::Access
            | ScriptKind::Precontent
            | ScriptKind::Content
            | ScriptKind::Preread
    ) {
        return fail(kind.refusal());
    }
    if let Some(known) = scope::with(|scope| scope.client_socket.borrow().clone())? {
        if scope::serves_session() {
            object::push(stack, &SOCKET, known);
            return super::ONE;
        }
        let why = match scope::with(|scope| scope.raw_socket.get())? {
            true => "duplicate call",
            false => "request body already exists",
        };
        return answer(stack, LuaValue::failure(why));
    }
    let of_session = scope::with_session(|session| {
        let client = Rc::clone(&session.client);
        let input = client.input.take();
        (CosocketTransport::Session(client), input)
    });
    // A session has no response that the script would take over from the server.
    let is_raw = raw && of_session.is_err();
    let found = match of_session {
        Ok((CosocketTransport::Session(client), _)) if client.is_udp() => {
            super::udp::push_client(stack, client)?;
            return super::ONE;
        }
        Ok(found) => found,
        Err(_) => match scope::with_request(|request| {
            super::request::note_read(request);
            of_request(request, raw)
        })?? {
            Ok(found) => found,
            Err(message) => return answer(stack, LuaValue::failure(message)),
        },
    };
    let socket = Rc::new(TcpCosocket::of_client(&tcp::settings()?, found.0, found.1));
    scope::with(|scope| {
        if is_raw {
            scope.head_sent.set(true);
            scope.raw_socket.set(true);
        }
        *scope.client_socket.borrow_mut() = Some(Rc::clone(&socket));
    })?;
    object::push(stack, &SOCKET, socket);
    super::ONE
}

/// The request body or the whole connection; or the error that is returned. The outer error is a
/// misuse, which is raised.
fn of_request(
    request: &mut Request,
    raw: bool,
) -> Result<Result<(CosocketTransport, Vec<u8>), &'static str>, LuaError> {
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
        // The engine sees an empty body from now on, until a script sets one (`ngx.req.init_body`).
        request.body = RequestBody::from_bytes(Vec::new());
        let content = CosocketBody {
            input: RefCell::new(input),
            ended: Cell::new(false),
        };
        return Ok(Ok((
            CosocketTransport::Content(Rc::new(content)),
            Vec::new(),
        )));
    }
    let stream = Rc::clone(&request.stream);
    let Some(bytes) = stream.exclusive_bytes() else {
        return fail("http v2 not supported yet");
    };
    if !request.body.is_complete() {
        if request.body.length() > 0 {
            return Ok(Err("pending request body reading in some other thread"));
        }
        // Nothing was read of the body yet. The script gets it as it arrives, including chunk
        // headers.
        drop(request.body.take_input());
        request.body = RequestBody::from_bytes(Vec::new());
    }
    // The server no longer knows where the next request begins, so there is none.
    request.delivery.close();
    let client = Rc::clone(&request.client);
    let input = bytes.input.take();
    Ok(Ok((CosocketTransport::Request(client), input)))
}

/// Returns what a script has left of its request's body.
pub(crate) fn give_back(scope: &RunScope, request: &mut Request) {
    let Some(socket) = scope.client_socket.take() else {
        return;
    };
    let (wire, _, _) = socket.detach();
    // Data that the socket has buffered and the script has not read is lost. What is still on the
    // wire must be read to its end before the next request.
    if let Some(CosocketTransport::Content(content)) = wire
        && let Ok(content) = Rc::try_unwrap(content)
    {
        match content.ended.get() {
            // The script may have replaced the body (`ngx.req.finish_body`).
            true if request.body.is_complete() => {}
            true => request.body = RequestBody::from_bytes(Vec::new()),
            false => request.body = RequestBody::from_input(content.input.into_inner()),
        }
    }
}

/// Returns what a preread script has left of its client's data, for the handler.
pub(crate) fn give_back_to_session(scope: &RunScope, session: &mut ::stream::StreamSession) {
    if let Some(socket) = scope.client_socket.take() {
        let (_, rest, received) = socket.detach();
        session.received += received;
        session.client.input.borrow_mut().splice(..0, rest);
    }
}
