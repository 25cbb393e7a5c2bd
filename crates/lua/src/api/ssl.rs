//! `ngx.ssl`, `ngx.ssl.clienthello` and `ngx.ssl.session`: a script's part in a TLS handshake.
//! `prelude.lua` builds the modules from these functions.
//!
//! Certificate and key are set by separate calls, in either order. When both are there the pair is
//! offered to the handshake in the place of a configured one with the same kind of key.
//! Certificates and keys in PEM or DER are parsed at once, so that an error is the script's and not
//! the client's.

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;

use net::tls::{
    CertificateChain, CertificateKey, ClientCertificates, HandshakeOffer, KeptSession, TlsIdentity,
    TlsProtocols,
};
use rt::net::SocketAddress;

use super::arguments::{bytes, optional_text};
use super::called::answer;
use super::{CallResult, NativeTable};
use crate::luajit::object::{self, ObjectClass, ObjectShape};
use crate::luajit::{LuaError, LuaStack, LuaValue, NativeReturn, fail};
use crate::scope::{self, PendingIdentity};

pub(super) const FUNCTIONS: NativeTable = &[
    ("clear_certs", clear),
    ("cert_pem_to_der", certificate_to_der),
    ("priv_key_pem_to_der", key_to_der),
    ("set_der_cert", set_der_certificate),
    ("set_der_priv_key", set_der_key),
    ("parse_pem_cert", parse_pem_certificate),
    ("parse_der_cert", parse_der_certificate),
    ("parse_pem_priv_key", parse_pem_key),
    ("parse_der_priv_key", parse_der_key),
    ("set_cert", set_certificate),
    ("set_priv_key", set_key),
    ("server_name", server_name),
    ("server_port", server_port),
    ("raw_server_addr", raw_server_address),
    ("raw_client_addr", raw_client_address),
    ("version", version),
    ("ciphers", ciphers),
    ("shared_ciphers", shared_ciphers),
    ("client_random", client_random),
    ("verify", verify_client),
    ("protocols", set_protocols),
    ("extension", extension),
    ("extensions", extensions),
    ("session_id", session_id),
    ("session", session),
    ("set_session", set_session),
];

static CHAIN: ObjectClass = ObjectClass {
    name: "weir.ssl.chain",
    shape: ObjectShape::Userdata,
    methods: &[],
};

static KEY: ObjectClass = ObjectClass {
    name: "weir.ssl.key",
    shape: ObjectShape::Userdata,
    methods: &[],
};

/// The handshake that the script takes part in; elsewhere the API is disabled.
pub(super) fn current_offer() -> Result<Rc<RefCell<HandshakeOffer>>, LuaError> {
    match scope::with(|scope| scope.offer.borrow().clone())? {
        Some(offer) => Ok(offer),
        None => scope::with(|scope| {
            let name = scope.kind.name();
            fail(format!("API disabled in the context of {name}*"))
        })?,
    }
}

/// The result of functions that only succeed or fail.
fn push_true(stack: &LuaStack) -> CallResult {
    stack.push_boolean(true);
    super::ONE
}

/// Returns nil and a message.
fn nil_and(stack: &LuaStack, message: impl Into<Vec<u8>>) -> CallResult {
    answer(stack, LuaValue::failure(message))
}

/// `clear_certs()`: forgets the configured certificates.
fn clear(stack: &LuaStack) -> CallResult {
    // An empty list and not none: the configured certificates must not be shown instead.
    current_offer()?.borrow_mut().chosen = Some(Vec::new());
    push_true(stack)
}

// -- reading what is in PEM or DER --

/// The error that OpenSSL has for text without a certificate.
const NO_CERTIFICATE: &str = "PEM_read_bio_X509_AUX() failed";

/// `cert_pem_to_der(pem)`.
fn certificate_to_der(stack: &LuaStack) -> CallResult {
    match CertificateChain::from_pem(bytes(stack, 1)?) {
        Some(chain) => stack.push_bytes(chain.to_der()),
        None => return nil_and(stack, NO_CERTIFICATE),
    }
    super::ONE
}

/// The password argument, as a list.
fn passwords(stack: &LuaStack) -> Result<Vec<Vec<u8>>, LuaError> {
    Ok(optional_text(stack, 2)?.into_iter().collect())
}

/// `priv_key_pem_to_der(pem, password)`.
fn key_to_der(stack: &LuaStack) -> CallResult {
    match CertificateKey::pem_to_der(bytes(stack, 1)?, &passwords(stack)?) {
        Ok(der) => stack.push_bytes(der),
        Err(message) => {
            return nil_and(
                stack,
                format!("PEM_read_bio_PrivateKey() failed: {message}"),
            );
        }
    }
    super::ONE
}

/// Returns a certificate chain as an object.
fn push_chain(stack: &LuaStack, chain: Option<CertificateChain>, why: &str) -> CallResult {
    match chain {
        Some(chain) => object::push(stack, &CHAIN, Rc::new(chain)),
        None => return nil_and(stack, why),
    }
    super::ONE
}

/// `parse_pem_cert(pem)`: a chain that can be set in many handshakes and is parsed once.
fn parse_pem_certificate(stack: &LuaStack) -> CallResult {
    push_chain(
        stack,
        CertificateChain::from_pem(bytes(stack, 1)?),
        NO_CERTIFICATE,
    )
}

/// `parse_der_cert(der)`.
fn parse_der_certificate(stack: &LuaStack) -> CallResult {
    push_chain(
        stack,
        CertificateChain::from_der(bytes(stack, 1)?),
        "d2i_X509_bio() failed",
    )
}

/// Returns a private key as an object.
fn push_key(stack: &LuaStack, key: Result<CertificateKey, String>) -> CallResult {
    match key {
        Ok(key) => object::push(stack, &KEY, Rc::new(key)),
        Err(message) => return nil_and(stack, message),
    }
    super::ONE
}

/// `parse_pem_priv_key(pem, password)`.
fn parse_pem_key(stack: &LuaStack) -> CallResult {
    push_key(
        stack,
        CertificateKey::from_pem(bytes(stack, 1)?, &passwords(stack)?),
    )
}

/// `parse_der_priv_key(der)`.
fn parse_der_key(stack: &LuaStack) -> CallResult {
    push_key(stack, CertificateKey::from_der(bytes(stack, 1)?))
}

// -- choosing --

/// `set_der_cert(der)`: parses and sets in one call.
fn set_der_certificate(stack: &LuaStack) -> CallResult {
    match CertificateChain::from_der(bytes(stack, 1)?) {
        Some(chain) => complete_identity(stack, Some(Rc::new(chain)), None),
        None => nil_and(stack, "d2i_X509_bio() failed"),
    }
}

/// `set_der_priv_key(der)`.
fn set_der_key(stack: &LuaStack) -> CallResult {
    match CertificateKey::from_der(bytes(stack, 1)?) {
        Ok(key) => complete_identity(stack, None, Some(Rc::new(key))),
        Err(message) => nil_and(stack, format!("d2i_PrivateKey_bio() failed: {message}")),
    }
}

/// `ssl.set_cert(chain)`: takes the place of the configuration's certificate for this handshake.
fn set_certificate(stack: &LuaStack) -> CallResult {
    let chain = object::get::<CertificateChain>(stack, 1, "certificate chain")?;
    complete_identity(stack, Some(chain), None)
}

/// `ssl.set_priv_key(key)`.
fn set_key(stack: &LuaStack) -> CallResult {
    let key = object::get::<CertificateKey>(stack, 1, "private key")?;
    complete_identity(stack, None, Some(key))
}

/// Sets one half; when the pair is complete, offers it.
fn complete_identity(
    stack: &LuaStack,
    chain: Option<Rc<CertificateChain>>,
    key: Option<Rc<CertificateKey>>,
) -> CallResult {
    let offer = current_offer()?;
    let pair = scope::with(|scope| {
        let mut half = scope.pending_identity.borrow_mut();
        half.chain = chain.or(half.chain.take());
        half.key = key.or(half.key.take());
        match (half.chain.clone(), half.key.clone()) {
            (Some(chain), Some(key)) => {
                // Both halves are used up: the next call begins another pair, of another kind of
                // key.
                *half = PendingIdentity::default();
                Some((chain, key))
            }
            _ => None,
        }
    })?;
    if let Some((chain, key)) = pair {
        match TlsIdentity::new(&chain, &key) {
            Ok(identity) => offer.borrow_mut().add_identity(identity),
            Err(problem) => {
                return nil_and(stack, format!("SSL_use_PrivateKey() failed: {problem}"));
            }
        }
    }
    push_true(stack)
}

// -- looking --

/// `ssl.server_name()`: the name in the ClientHello, or nil.
fn server_name(stack: &LuaStack) -> CallResult {
    // `server_name()` also works in requests: the name of their connection's handshake.
    let name = match scope::with(|scope| scope.offer.borrow().clone())? {
        Some(offer) => offer.borrow().server_name.clone(),
        None => match scope::with_request(|request| {
            let asked = request.client.asked_name.borrow();
            asked.as_ref().map(|asked| asked.name.clone())
        }) {
            Ok(name) => name,
            Err(_) => scope::with_session(|session| session.client.asked_name.borrow().clone())?,
        },
    };
    match name {
        Some(name) => stack.push_bytes(name.as_bytes()),
        None => stack.push_nil(),
    }
    super::ONE
}

/// The addresses of the client and of the server.
fn addresses() -> Result<(SocketAddress, SocketAddress), LuaError> {
    let of_request = scope::with_request(|request| {
        let client = &request.client;
        (client.remote.address.clone(), client.local())
    });
    match of_request {
        Ok(known) => Ok(known),
        Err(_) => scope::with_session(|session| {
            let client = &session.client;
            (client.remote.address.clone(), client.local())
        }),
    }
}

/// `server_port()`.
fn server_port(stack: &LuaStack) -> CallResult {
    match addresses()?.1 {
        SocketAddress::Inet(address) => stack.push_number(f64::from(address.port())),
        SocketAddress::Unix(_) => return nil_and(stack, "unix socket"),
    }
    super::ONE
}

/// `raw_server_addr()`: bytes and kind.
fn raw_server_address(stack: &LuaStack) -> CallResult {
    push_address(stack, &addresses()?.1)
}

/// `raw_client_addr()`: bytes and kind.
fn raw_client_address(stack: &LuaStack) -> CallResult {
    push_address(stack, &addresses()?.0)
}

/// Returns the bytes of an address and its kind.
fn push_address(stack: &LuaStack, address: &SocketAddress) -> CallResult {
    let kind = match address {
        SocketAddress::Inet(address) => match address.ip() {
            IpAddr::V4(ip) => {
                stack.push_bytes(ip.octets());
                "inet"
            }
            IpAddr::V6(ip) => {
                stack.push_bytes(ip.octets());
                "inet6"
            }
        },
        SocketAddress::Unix(_) => {
            stack.push_bytes(address.to_string());
            "unix"
        }
    };
    stack.push_bytes(kind);
    Ok(NativeReturn::Values(2))
}

/// `get_tls1_version()`: the number on the wire.
fn version(stack: &LuaStack) -> CallResult {
    stack.push_number(f64::from(current_offer()?.borrow().version));
    super::ONE
}

/// `get_client_hello_ciphers()`: the numbers of the suites that the client offers.
fn ciphers(stack: &LuaStack) -> CallResult {
    let offer = current_offer()?;
    push_numbers(stack, offer.borrow().ciphers.iter());
    super::ONE
}

/// `get_req_shared_ssl_ciphers()`: those of them that the server allows.
fn shared_ciphers(stack: &LuaStack) -> CallResult {
    let offer = current_offer()?;
    let offer = offer.borrow();
    let shared: Vec<u16> = offer
        .ciphers
        .iter()
        .copied()
        .filter(|number| offer.own_ciphers.contains(number))
        .collect();
    push_numbers(stack, shared.iter());
    super::ONE
}

fn push_numbers<'a>(stack: &LuaStack, numbers: impl ExactSizeIterator<Item = &'a u16>) {
    stack.push_table(numbers.len(), 0);
    for (n, number) in numbers.enumerate() {
        stack.push_number(f64::from(*number));
        stack.set_element(-2, n + 1);
    }
}

/// `get_client_random()`: all of it.
fn client_random(stack: &LuaStack) -> CallResult {
    let offer = current_offer()?;
    stack.push_bytes(&offer.borrow().client_random);
    super::ONE
}

/// `set_protocols`: whether TLS 1.2 is allowed, and TLS 1.3.
fn set_protocols(stack: &LuaStack) -> CallResult {
    let protocols = TlsProtocols {
        tls12: stack.boolean(1),
        tls13: stack.boolean(2),
    };
    current_offer()?.borrow_mut().protocols = Some(protocols);
    push_true(stack)
}

/// The depth of `ssl_verify_depth`, where the script names none.
const VERIFY_DEPTH: usize = 1;

/// `verify_client(authorities, depth, trusted)`: the client is asked for a certificate. Whether it has one, and a good
/// one, is in `$ssl_client_verify`, as with `ssl_verify_client optional_no_ca`.
fn verify_client(stack: &LuaStack) -> CallResult {
    let offer = current_offer()?;
    let chain = |at: i32| match stack.is_nil(at) {
        true => Ok(None),
        false => object::get::<CertificateChain>(stack, at, "certificate chain").map(Some),
    };
    let (named, trusted) = (chain(1)?, chain(3)?);
    let depth = stack.number(2).filter(|depth| *depth >= 0.0);
    let depth = depth.map_or(VERIFY_DEPTH, |depth| depth as usize);
    match ClientCertificates::of_chains(named.as_deref(), trusted.as_deref(), depth) {
        Some(wanted) => offer.borrow_mut().client_certificates = Some(wanted),
        None => return nil_and(stack, "SSL_load_client_CA_file() failed"),
    }
    push_true(stack)
}

/// `get_client_hello_ext(type)`: the content of an extension, or nil.
fn extension(stack: &LuaStack) -> CallResult {
    let wanted = super::arguments::number(stack, 1)?;
    let offer = current_offer()?;
    let offer = offer.borrow();
    let mut known = offer.extensions.iter();
    match known.find(|(kind, _)| f64::from(*kind) == wanted) {
        Some((_, content)) => stack.push_bytes(content),
        None => stack.push_nil(),
    }
    super::ONE
}

/// `get_client_hello_ext_present()`: the types of the extensions, in order.
fn extensions(stack: &LuaStack) -> CallResult {
    let offer = current_offer()?;
    let known = &offer.borrow().extensions;
    stack.push_table(known.len(), 0);
    for (n, (kind, _)) in known.iter().enumerate() {
        stack.push_number(f64::from(*kind));
        stack.set_element(-2, n + 1);
    }
    super::ONE
}

// -- sessions --

/// `get_session_id()`, in hexadecimal.
fn session_id(stack: &LuaStack) -> CallResult {
    let offer = current_offer()?;
    match &offer.borrow().session {
        Some(session) => {
            let digits = session.id.iter().map(|byte| format!("{byte:02x}"));
            stack.push_bytes(digits.collect::<String>());
        }
        None => return nil_and(stack, "uninitialized session id in lua context"),
    }
    super::ONE
}

/// `get_serialized_session()`.
fn session(stack: &LuaStack) -> CallResult {
    let offer = current_offer()?;
    match &offer.borrow().session {
        Some(session) if !session.value.is_empty() => stack.push_bytes(&session.value),
        _ => return nil_and(stack, "bad session in lua context"),
    }
    super::ONE
}

/// `set_serialized_session(session)`. It must be one of ours: another server's cannot be resumed.
fn set_session(stack: &LuaStack) -> CallResult {
    let value = bytes(stack, 1)?;
    let offer = current_offer()?;
    let mut offer = offer.borrow_mut();
    match &mut offer.session {
        Some(_) if value.is_empty() => return nil_and(stack, "invalid session length"),
        Some(_) if !KeptSession::is_one(value) => {
            return nil_and(stack, "failed to de-serialize session");
        }
        Some(session) => session.value = value.to_vec(),
        None => return nil_and(stack, "bad lua context"),
    }
    push_true(stack)
}
