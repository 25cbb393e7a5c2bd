//! TLS on cosockets: `sslhandshake`, `setclientcert`, `getsslsession`. Whether the server's
//! certificate is verified is an argument of the handshake; what it is verified against is
//! configured.

use std::rc::Rc;
use std::sync::Arc;

use net::Transport;
use net::tls::{
    self, CertificateChain, CertificateKey, ClientName, ClientSessions, ClientSettings,
    TlsIdentity, TrustStore, VerifyResult,
};

use super::super::arguments::optional_text;
use super::super::cosocket_transport::CosocketTransport;
use super::super::{ONE, wait};
use super::socket::SocketBusyGuard;
use super::{CallResult, TcpCosocket, failed, own_transport, refuse, this_socket};
use crate::cosocket_tls::CosocketTls;
use crate::luajit::object::{self, ObjectClass, ObjectShape};
use crate::luajit::stack::LuaType;
use crate::luajit::{LuaError, LuaStack, LuaValue, RegistryRef, fail};
use crate::operation::YieldOperation;
use crate::scope;

/// A TLS session that a script keeps, to resume it with another connection.
static SESSION: ObjectClass = ObjectClass {
    name: "weir.ssl.session",
    shape: ObjectShape::Userdata,
    methods: &[],
};

/// The TLS settings that apply to the running script.
fn settings() -> Result<ClientSettings, LuaError> {
    // A timer belongs to neither a request nor a session: for it the outermost settings apply.
    let of_request = scope::with_request(|request| request.conf::<CosocketTls>().client_settings());
    let found = match of_request {
        Ok(found) => found,
        Err(_) => match scope::with_session(|session| {
            session.conf::<CosocketTls>().client_settings()
        }) {
            Ok(found) => found,
            Err(_) => scope::with(|scope| scope.vm.configuration.tls_settings())?.client_settings(),
        },
    };
    found.or_else(|problem| fail(problem.to_string()))
}

/// What a handshake is to do.
struct HandshakeWish {
    /// The location's `lua_ssl_*` settings.
    settings: ClientSettings,
    /// The server name to send and to verify.
    name: Option<String>,
    /// Whether to verify the certificate.
    verify: bool,
}

/// `sock:sslhandshake(session, name, verify)`: the session, or true if the first argument is false.
pub(super) fn handshake(stack: &LuaStack) -> CallResult {
    if stack.top() > 5 {
        return fail(format!(
            "ngx.socket sslhandshake: expecting 1 ~ 5 arguments (including the object), but seen {}",
            stack.top()
        ));
    }
    let socket = this_socket(stack)?;
    if !socket.was_used.get() {
        return fail("socket is never created nor connected");
    }
    let name = optional_text(stack, 3)?.map(|name| String::from_utf8_lossy(&name).into_owned());
    let verify = stack.boolean(4);
    let wants_session = stack.type_at(2) != LuaType::Boolean || stack.boolean(2);
    let given = match stack.type_at(2) {
        LuaType::Userdata => Some(object::get::<ClientSessions>(stack, 2, "session")?),
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
    if let Err(message) = socket.check_not_busy(true, true) {
        return refuse(stack, message);
    }
    let Some(transport) = own_transport(&wire) else {
        return refuse(stack, "not supported for downstream sockets");
    };
    // A connection from the pool has done its handshake, and libraries call this all the same.
    if transport.is_tls() {
        match (wants_session, &given) {
            (false, _) => stack.push_boolean(true),
            (true, Some(_)) => stack.push_copy(2),
            (true, None) => push_session(stack, &socket),
        }
        return ONE;
    }
    drop(wire);
    let sessions = given.map_or_else(ClientSessions::new, |given| ClientSessions::clone(&given));
    let wish = HandshakeWish {
        settings: handshake_settings(verify)?.with_sessions(&sessions),
        name,
        verify,
    };
    *socket.sessions.borrow_mut() = Some(sessions);
    begin(stack, socket, wish, wants_session)
}

/// Begins a handshake; the script waits for its end.
fn begin(
    stack: &LuaStack,
    socket: Rc<TcpCosocket>,
    wish: HandshakeWish,
    wants_session: bool,
) -> CallResult {
    // Created before the wait: afterwards there is no Lua stack at hand. Sessions arrive later
    // anyway.
    let reply = match wants_session {
        false => LuaValue::Boolean(true),
        true => {
            push_session(stack, &socket);
            let state = scope::with(|scope| Rc::clone(&scope.vm.state))?;
            LuaValue::Ref(Rc::new(RegistryRef::take(&state, stack)))
        }
    };
    let busy = SocketBusyGuard::new(&socket, |socket| &socket.connecting);
    wait(YieldOperation::task(async move {
        let secured = run_handshake(&socket, &wish).await;
        busy.over();
        match secured {
            Ok(()) => vec![reply],
            Err(message) => {
                // Both sides disagree about where in the stream they are: the connection is of no
                // use for anything else.
                socket.drop_connection();
                LuaValue::failure(message)
            }
        }
    }))
}

/// The settings, with or without verification of the server.
fn handshake_settings(verify: bool) -> Result<ClientSettings, LuaError> {
    let settings = settings()?;
    // Without `lua_ssl_trusted_certificate` no certificate is trusted.
    let known = || {
        settings
            .trust()
            .map_or_else(|| Arc::new(TrustStore::without_anchors(1)), Arc::clone)
    };
    let trust = verify.then(known);
    Ok(settings.with_trust(trust))
}

/// Returns the socket's session as an object.
fn push_session(stack: &LuaStack, socket: &TcpCosocket) {
    match socket.sessions.borrow().clone() {
        Some(sessions) => object::push(stack, &SESSION, Rc::new(sessions)),
        None => stack.push_nil(),
    }
}

/// Runs the handshake, and verifies the server's certificate and name if that is wanted.
async fn run_handshake(socket: &TcpCosocket, wish: &HandshakeWish) -> Result<(), String> {
    // Taken out: if the handshake fails or is dropped, the connection is closed with it.
    let Some(CosocketTransport::Own(transport)) = socket.transport.take() else {
        return Err("closed".to_owned());
    };
    let transport: Transport = Rc::try_unwrap(transport).map_err(|_| "socket busy".to_owned())?;
    // The extension has no form for an empty name (RFC 6066, section 3): none is sent.
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
    // The handshake accepts any certificate: `ssl_verify` is an argument of the call, and off by
    // default.
    if wish.verify {
        match session.verify_result() {
            Some(VerifyResult::Bad(fault)) => {
                return Err(format!("{}: {}", fault.number, fault.text));
            }
            Some(VerifyResult::Absent) => return Err("no certificate".to_owned()),
            Some(VerifyResult::Good) | None => {}
        }
        if name.is_some_and(|name| !session.is_for(name)) {
            return Err("certificate host mismatch".to_owned());
        }
    }
    transport.set_tls(session);
    *socket.transport.borrow_mut() = Some(CosocketTransport::Own(Rc::new(transport)));
    Ok(())
}

/// `sock:getsslsession()`.
pub(super) fn session(stack: &LuaStack) -> CallResult {
    let socket = this_socket(stack)?;
    if !socket.was_used.get() {
        return fail("socket is never created nor connected");
    }
    match socket.open() {
        Err(message) => refuse(stack, message),
        Ok(wire) if !own_transport(&wire).is_some_and(|transport| transport.is_tls()) => {
            refuse(stack, "no session")
        }
        Ok(_) => {
            push_session(stack, &socket);
            ONE
        }
    }
}

/// `sock:setclientcert(chain, key)`: objects of `ngx.ssl`; nil removes it.
pub(super) fn set_client_certificate(stack: &LuaStack) -> CallResult {
    let socket = this_socket(stack)?;
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
        if !matches!(stack.type_at(at), LuaType::Userdata | LuaType::Cdata) {
            let kind = stack.type_at(at).name();
            return failed(stack, format!("bad {what} arg: cdata expected, got {kind}"));
        }
    }
    let chain = object::get::<CertificateChain>(stack, 2, "certificate chain")?;
    let key = object::get::<CertificateKey>(stack, 3, "private key")?;
    match TlsIdentity::new(&chain, &key) {
        Ok(identity) => {
            *socket.identity.borrow_mut() = Some(identity);
            stack.push_boolean(true);
            ONE
        }
        Err(_) => refuse(stack, "ssl set client private key failed"),
    }
}
