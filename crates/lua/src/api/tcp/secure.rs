//! TLS on scripts' sockets.

use std::rc::Rc;
use std::sync::Arc;

use net::Transport;
use net::tls::{
    self, Assessment, Chain, ClientName, ClientSettings, Identity, Key, Sessions, Trust,
};

use super::super::arguments::optional_text;
use super::super::wire::Wire;
use super::super::{ONE, wait};
use super::{Busy, Called, Tcp, failed, own, refuse, this};
use crate::luajit::object::{self, Class, Shape};
use crate::luajit::stack::Kind;
use crate::luajit::{Failure, Ref, Stack, Value, fail};
use crate::operation::Operation;
use crate::scope;
use crate::tls::Tls;

/// A session that a script keeps.
static SESSION: Class = Class {
    name: "weir.ssl.session",
    shape: Shape::Userdata,
    methods: &[],
};

/// The settings of TLS for the script that runs.
fn settings() -> Result<ClientSettings, Failure> {
    let of_request = scope::with_request(|request| request.conf::<Tls>().client());
    let found = match of_request {
        Ok(found) => found,
        Err(_) => match scope::with_session(|session| session.conf::<Tls>().client()) {
            Ok(found) => found,
            Err(_) => scope::with(|scope| scope.vm.home.tls())?.client(),
        },
    };
    found.or_else(|problem| fail(problem.to_string()))
}

/// What a handshake is asked for.
struct Wish {
    settings: ClientSettings,
    name: Option<String>,
    verify: bool,
}

pub(super) fn handshake(stack: &Stack) -> Called {
    if stack.top() > 5 {
        return fail(format!(
            "ngx.socket sslhandshake: expecting 1 ~ 5 arguments (including the object), but seen {}",
            stack.top()
        ));
    }
    let socket = this(stack)?;
    if !socket.was_used.get() {
        return fail("socket is never created nor connected");
    }
    let name = optional_text(stack, 3)?.map(|name| String::from_utf8_lossy(&name).into_owned());
    let verify = stack.boolean(4);
    let wants_session = stack.kind(2) != Kind::Boolean || stack.boolean(2);
    let given = match stack.kind(2) {
        Kind::Userdata => Some(object::get::<Sessions>(stack, 2, "session")?),
        _ => None,
    };
    if socket.read_closed.get() || socket.write_closed.get() {
        return refuse(stack, "closed");
    }
    let wire = match socket.open() {
        Ok(wire) => wire,
        Err(message) => return refuse(stack, message),
    };
    socket.check_owner()?;
    if let Err(message) = socket.busy(true, true) {
        return refuse(stack, message);
    }
    let Some(transport) = own(&wire) else {
        return refuse(stack, "not supported for downstream sockets");
    };
    if transport.is_tls() {
        if !wants_session {
            stack.push_boolean(true);
        } else if given.is_some() {
            stack.push_copy(2);
        } else {
            push_session(stack, &socket);
        }
        return ONE;
    }
    drop(wire);
    let sessions = given.map_or_else(Sessions::new, |given| Sessions::clone(&given));
    let wish = Wish {
        settings: wished(verify)?.with_sessions(&sessions),
        name,
        verify,
    };
    *socket.sessions.borrow_mut() = Some(sessions.clone());
    // Made now: nothing of Lua is at hand when the handshake is over.
    let reply = match wants_session {
        false => Value::Boolean(true),
        true => {
            push_session(stack, &socket);
            let state = scope::with(|scope| Rc::clone(&scope.vm.state))?;
            Value::Ref(Rc::new(Ref::take(&state, stack)))
        }
    };
    let busy = Busy::new(&socket, |socket| &socket.connecting);
    wait(Operation::task(async move {
        let secured = secure(&socket, &wish).await;
        busy.over();
        match secured {
            Ok(()) => vec![reply],
            Err(message) => {
                socket.drop_connection();
                Value::failure(message)
            }
        }
    }))
}

/// The settings, judging the peer or not.
fn wished(verify: bool) -> Result<ClientSettings, Failure> {
    let settings = settings()?;
    // Where nobody is named nobody is trusted.
    let known = || {
        settings
            .trust()
            .map_or_else(|| Arc::new(Trust::nobody(1)), Arc::clone)
    };
    let trust = verify.then(known);
    Ok(settings.with_trust(trust))
}

fn push_session(stack: &Stack, socket: &Tcp) {
    match socket.sessions.borrow().clone() {
        Some(sessions) => object::push(stack, &SESSION, Rc::new(sessions)),
        None => stack.push_nil(),
    }
}

async fn secure(socket: &Tcp, wish: &Wish) -> Result<(), String> {
    let Some(Wire::Own(transport)) = socket.wire.take() else {
        return Err("closed".to_owned());
    };
    let mut transport: Transport =
        Rc::try_unwrap(transport).map_err(|_| "socket busy".to_owned())?;
    let name = wish.name.as_deref().filter(|name| !name.is_empty());
    let client = ClientName {
        name: name.unwrap_or_default(),
        identity: socket.identity.borrow().clone(),
    };
    let handshake = tls::connect(transport.socket(), &wish.settings, client);
    let session = rt::timeout(socket.connect_timeout.get(), handshake)
        .await
        .map_err(|_| "timeout".to_owned())?
        .map_err(|_| "handshake failed".to_owned())?;
    if wish.verify {
        match session.assessment() {
            Some(Assessment::Bad(fault)) => {
                return Err(format!("{}: {}", fault.number, fault.text));
            }
            Some(Assessment::Absent) => return Err("no certificate".to_owned()),
            Some(Assessment::Good) | None => {}
        }
        if name.is_some_and(|name| !session.is_for(name)) {
            return Err("certificate host mismatch".to_owned());
        }
    }
    transport.secure(session);
    *socket.wire.borrow_mut() = Some(Wire::Own(Rc::new(transport)));
    Ok(())
}

/// The session of a connection, to be resumed by another one.
pub(super) fn session(stack: &Stack) -> Called {
    let socket = this(stack)?;
    if !socket.was_used.get() {
        return fail("socket is never created nor connected");
    }
    match socket.open() {
        Err(message) => refuse(stack, message),
        Ok(wire) if !own(&wire).is_some_and(|transport| transport.is_tls()) => {
            refuse(stack, "no session")
        }
        Ok(_) => {
            push_session(stack, &socket);
            ONE
        }
    }
}

/// The certificate that is shown to servers: a chain and a key of `ngx.ssl`.
pub(super) fn set_client_certificate(stack: &Stack) -> Called {
    let socket = this(stack)?;
    let (no_chain, no_key) = (!stack.boolean(2), !stack.boolean(3));
    if no_chain && no_key {
        socket.identity.take();
        stack.push_boolean(true);
        return ONE;
    }
    if no_chain || no_key {
        return refuse(
            stack,
            "client certificate must be supplied with corresponding private key",
        );
    }
    for (at, what) in [(2, "cert"), (3, "pkey")] {
        if !matches!(stack.kind(at), Kind::Userdata | Kind::Cdata) {
            let kind = stack.kind(at).name();
            return failed(stack, format!("bad {what} arg: cdata expected, got {kind}"));
        }
    }
    let chain = object::get::<Chain>(stack, 2, "certificate chain")?;
    let key = object::get::<Key>(stack, 3, "private key")?;
    match Identity::new(&chain, &key) {
        Ok(identity) => {
            *socket.identity.borrow_mut() = Some(identity);
            stack.push_boolean(true);
            ONE
        }
        Err(_) => refuse(stack, "ssl set client private key failed"),
    }
}
