//! `ngx.ssl` and `ngx.ssl.clienthello`: a script's say in a handshake. `prelude.lua` makes the modules of these.
//!
//! A certificate and its key come one after the other, in either order; when both are there they are shown together, in
//! place of those of the configuration that have a key of the same kind.

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;

use net::tls::{Chain, Identity, KeptSession, Key, Offer};
use rt::net::Address;

use super::arguments::{bytes, optional_text};
use super::output::answer;
use super::{Called, Functions};
use crate::luajit::object::{self, Class, Shape};
use crate::luajit::{Answer, Failure, Stack, Value, fail};
use crate::scope;

pub(super) const FUNCTIONS: Functions = &[
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
    ("extension", extension),
    ("extensions", extensions),
    ("session_id", session_id),
    ("session", session),
    ("set_session", set_session),
];

static CHAIN: Class = Class {
    name: "weir.ssl.chain",
    shape: Shape::Userdata,
    methods: &[],
};

static KEY: Class = Class {
    name: "weir.ssl.key",
    shape: Shape::Userdata,
    methods: &[],
};

/// What a script has set of a pair so far.
#[derive(Default)]
pub(crate) struct Half {
    chain: Option<Rc<Chain>>,
    key: Option<Rc<Key>>,
}

fn offer() -> Result<Rc<RefCell<Offer>>, Failure> {
    match scope::with(|scope| scope.offer.borrow().clone())? {
        Some(offer) => Ok(offer),
        None => scope::with(|scope| {
            let name = scope.kind.name();
            fail(format!("API disabled in the context of {name}*"))
        })?,
    }
}

fn yes(stack: &Stack) -> Called {
    stack.push_boolean(true);
    super::ONE
}

fn bad(stack: &Stack, message: impl Into<Vec<u8>>) -> Called {
    answer(stack, Value::failure(message))
}

fn clear(stack: &Stack) -> Called {
    offer()?.borrow_mut().chosen = Some(Vec::new());
    yes(stack)
}

// -- reading what is in PEM or DER --

/// What OpenSSL says of a text that holds no certificate.
const NO_CERTIFICATE: &str = "PEM_read_bio_X509_AUX() failed";

fn certificate_to_der(stack: &Stack) -> Called {
    match Chain::from_pem(bytes(stack, 1)?) {
        Some(chain) => stack.push_bytes(chain.to_der()),
        None => return bad(stack, NO_CERTIFICATE),
    }
    super::ONE
}

fn passwords(stack: &Stack) -> Result<Vec<Vec<u8>>, Failure> {
    Ok(optional_text(stack, 2)?.into_iter().collect())
}

fn key_to_der(stack: &Stack) -> Called {
    match Key::pem_to_der(bytes(stack, 1)?, &passwords(stack)?) {
        Ok(der) => stack.push_bytes(der),
        Err(message) => {
            return bad(
                stack,
                format!("PEM_read_bio_PrivateKey() failed: {message}"),
            );
        }
    }
    super::ONE
}

fn push_chain(stack: &Stack, chain: Option<Chain>, why: &str) -> Called {
    match chain {
        Some(chain) => object::push(stack, &CHAIN, Rc::new(chain)),
        None => return bad(stack, why),
    }
    super::ONE
}

fn parse_pem_certificate(stack: &Stack) -> Called {
    push_chain(stack, Chain::from_pem(bytes(stack, 1)?), NO_CERTIFICATE)
}

fn parse_der_certificate(stack: &Stack) -> Called {
    push_chain(
        stack,
        Chain::from_der(bytes(stack, 1)?),
        "d2i_X509_bio() failed",
    )
}

fn push_key(stack: &Stack, key: Result<Key, String>) -> Called {
    match key {
        Ok(key) => object::push(stack, &KEY, Rc::new(key)),
        Err(message) => return bad(stack, message),
    }
    super::ONE
}

fn parse_pem_key(stack: &Stack) -> Called {
    push_key(stack, Key::from_pem(bytes(stack, 1)?, &passwords(stack)?))
}

fn parse_der_key(stack: &Stack) -> Called {
    push_key(stack, Key::from_der(bytes(stack, 1)?))
}

// -- choosing --

fn set_der_certificate(stack: &Stack) -> Called {
    match Chain::from_der(bytes(stack, 1)?) {
        Some(chain) => choose(stack, Some(Rc::new(chain)), None),
        None => bad(stack, "d2i_X509_bio() failed"),
    }
}

fn set_der_key(stack: &Stack) -> Called {
    match Key::from_der(bytes(stack, 1)?) {
        Ok(key) => choose(stack, None, Some(Rc::new(key))),
        Err(message) => bad(stack, format!("d2i_PrivateKey_bio() failed: {message}")),
    }
}

fn set_certificate(stack: &Stack) -> Called {
    let chain = object::get::<Chain>(stack, 1, "certificate chain")?;
    choose(stack, Some(chain), None)
}

fn set_key(stack: &Stack) -> Called {
    let key = object::get::<Key>(stack, 1, "private key")?;
    choose(stack, None, Some(key))
}

fn choose(stack: &Stack, chain: Option<Rc<Chain>>, key: Option<Rc<Key>>) -> Called {
    let offer = offer()?;
    let pair = scope::with(|scope| {
        let mut half = scope.half.borrow_mut();
        half.chain = chain.or(half.chain.take());
        half.key = key.or(half.key.take());
        match (half.chain.clone(), half.key.clone()) {
            (Some(chain), Some(key)) => {
                *half = Half::default();
                Some((chain, key))
            }
            _ => None,
        }
    })?;
    if let Some((chain, key)) = pair {
        match Identity::new(&chain, &key) {
            Ok(identity) => offer.borrow_mut().add(identity),
            Err(problem) => return bad(stack, format!("SSL_use_PrivateKey() failed: {problem}")),
        }
    }
    yes(stack)
}

// -- looking --

fn server_name(stack: &Stack) -> Called {
    // Requests may ask too: what their connection was asked for.
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

/// The addresses of the client and of our side.
fn addresses() -> Result<(Address, Address), Failure> {
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

fn server_port(stack: &Stack) -> Called {
    match addresses()?.1 {
        Address::Inet(address) => stack.push_number(f64::from(address.port())),
        Address::Unix(_) => return bad(stack, "unix socket"),
    }
    super::ONE
}

fn raw_server_address(stack: &Stack) -> Called {
    push_address(stack, &addresses()?.1)
}

fn raw_client_address(stack: &Stack) -> Called {
    push_address(stack, &addresses()?.0)
}

/// The bytes of an address, and which kind it is.
fn push_address(stack: &Stack, address: &Address) -> Called {
    let kind = match address {
        Address::Inet(address) => match address.ip() {
            IpAddr::V4(ip) => {
                stack.push_bytes(ip.octets());
                "inet"
            }
            IpAddr::V6(ip) => {
                stack.push_bytes(ip.octets());
                "inet6"
            }
        },
        Address::Unix(_) => {
            stack.push_bytes(address.to_string());
            "unix"
        }
    };
    stack.push_bytes(kind);
    Ok(Answer::Values(2))
}

fn version(stack: &Stack) -> Called {
    stack.push_number(f64::from(offer()?.borrow().version));
    super::ONE
}

/// The suites that the client offers, by their numbers.
fn ciphers(stack: &Stack) -> Called {
    let offer = offer()?;
    let offered = &offer.borrow().ciphers;
    stack.push_table(offered.len(), 0);
    for (n, number) in offered.iter().enumerate() {
        stack.push_number(f64::from(*number));
        stack.set_element(-2, n + 1);
    }
    super::ONE
}

/// The content of an extension of the hello, or nothing.
fn extension(stack: &Stack) -> Called {
    let wanted = super::arguments::number(stack, 1)?;
    let offer = offer()?;
    let offer = offer.borrow();
    let mut known = offer.extensions.iter();
    match known.find(|(kind, _)| f64::from(*kind) == wanted) {
        Some((_, content)) => stack.push_bytes(content),
        None => stack.push_nil(),
    }
    super::ONE
}

/// The numbers of the extensions, in their order.
fn extensions(stack: &Stack) -> Called {
    let offer = offer()?;
    let known = &offer.borrow().extensions;
    stack.push_table(known.len(), 0);
    for (n, (kind, _)) in known.iter().enumerate() {
        stack.push_number(f64::from(*kind));
        stack.set_element(-2, n + 1);
    }
    super::ONE
}

// -- sessions --

/// The name of the session in question, in hexadecimal digits.
fn session_id(stack: &Stack) -> Called {
    let offer = offer()?;
    match &offer.borrow().session {
        Some(session) => {
            let digits = session.id.iter().map(|byte| format!("{byte:02x}"));
            stack.push_bytes(digits.collect::<String>());
        }
        None => return bad(stack, "uninitialized session id in lua context"),
    }
    super::ONE
}

fn session(stack: &Stack) -> Called {
    let offer = offer()?;
    match &offer.borrow().session {
        Some(session) if !session.value.is_empty() => stack.push_bytes(&session.value),
        _ => return bad(stack, "bad session in lua context"),
    }
    super::ONE
}

fn set_session(stack: &Stack) -> Called {
    let value = bytes(stack, 1)?;
    let offer = offer()?;
    let mut offer = offer.borrow_mut();
    match &mut offer.session {
        Some(_) if value.is_empty() => return bad(stack, "invalid session length"),
        Some(_) if !KeptSession::is_one(value) => {
            return bad(stack, "failed to de-serialize session");
        }
        Some(session) => session.value = value.to_vec(),
        None => return bad(stack, "bad lua context"),
    }
    yes(stack)
}
