//! `pass`: hands a connection over to another listening address of the same configuration, of
//! stream or http, as if it had been accepted there.
//!
//! ```nginx
//! server {
//!     listen      443;
//!     ssl_preread on;
//!     pass        $by_name;   # 127.0.0.1:8443 of http, or of another server of stream
//! }
//! ```
//!
//! No bytes are copied and no connection is made: the connection itself changes hands.

use std::net::SocketAddr;

use ::stream::module::{SessionOutcome, SessionStep, StreamContentHandler, status};
use ::stream::{StreamModule, StreamSession};
use conf::{
    AddressHost, Arity, Diagnostic, Directive, DirectiveLine, DirectiveTable, Expression,
    RepeatRule, STREAM_SERVER, Setter,
};
use net::passing::{MAX_PASSES, has_listener};
use rt::net::{SocketAddress, UnixPath};

pub(crate) static MODULE: StreamModule = StreamModule {
    name: "pass",
    doc: "Hands a connection over to another listening address of the server.",
    server: &DIRECTIVES,
    content_handler: Some(StreamContentHandler {
        when: |server| server.confs.get::<Conf>().target.is_some(),
        handler: |session| SessionStep::Now(SessionOutcome::Status(pass(session))),
    }),
    ..StreamModule::EMPTY
};

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::new(&[Directive {
    name: "pass",
    syntax: "address",
    default: None,
    contexts: STREAM_SERVER,
    since: "0.1",
    doc: "The listening address, of http or stream in the same configuration, that gets the connection: `host:port` or \
          `unix:path`. May contain variables. Nothing may have been read from a TLS connection before.",
    set: Setter::Custom(Arity::ONE, RepeatRule::Once, set),
}]);

#[derive(Clone, Default)]
struct Conf {
    target: Option<PassTarget>,
}

/// The address of a `pass` directive.
#[derive(Clone)]
enum PassTarget {
    Address(SocketAddress),
    Text(Expression),
}

/// Reads `pass`.
fn set(conf: &mut Conf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    conf.target = Some(if Expression::has_variables(line.text(0)) {
        PassTarget::Text(line.expression(0)?)
    } else {
        let text = line.text(0);
        PassTarget::Address(address(text).map_err(|bad| match bad {
            InvalidPassAddress::Syntax(why) => {
                line.error_at(0, format!("{why} in \"{text}\" of the \"pass\" directive"))
            }
            // A name would have to be resolved, and no name is listened on.
            InvalidPassAddress::NoAddress => line.directive_error("has no addresses"),
            InvalidPassAddress::NoPort => line.directive_error("has no port"),
        })?)
    });
    Ok(())
}

/// What is wrong with an address.
enum InvalidPassAddress {
    Syntax(&'static str),
    NoAddress,
    /// A port is mandatory: there is no default in stream.
    NoPort,
}

/// Parses an address. Unlike in `proxy_pass`, a host name is not resolved: the address has to be
/// one that is listened on.
fn address(text: &[u8]) -> Result<SocketAddress, InvalidPassAddress> {
    let address = conf::HostPort::parse_peer(text).map_err(InvalidPassAddress::Syntax)?;
    if let AddressHost::Unix(path) = &address.host {
        return Ok(SocketAddress::Unix(UnixPath::new(path)));
    }
    let ip = address.ip().ok_or(InvalidPassAddress::NoAddress)?;
    let port = address.port.ok_or(InvalidPassAddress::NoPort)?;
    Ok(SocketAddr::new(ip, port).into())
}

/// The handler: sets where the connection goes. The status is that of the session if it ends here.
fn pass(session: &mut StreamSession) -> u16 {
    session.action = "passing connection to port";
    let Some(stream) = session.client.stream() else {
        session.error(format_args!("cannot pass udp connection"));
        return status::INTERNAL_SERVER_ERROR;
    };
    if stream.is_tls() && !session.client.input.borrow().is_empty() {
        session.error(format_args!("cannot pass connection with preread data"));
        return status::INTERNAL_SERVER_ERROR;
    }
    let Some(address) = target(session) else {
        return status::INTERNAL_SERVER_ERROR;
    };
    // Two servers that pass to each other would do so forever.
    if session.client.passes >= MAX_PASSES {
        session.error(format_args!("stream pass cycle"));
        return status::INTERNAL_SERVER_ERROR;
    }
    if !has_listener(&address) {
        session.error(format_args!("port not found for \"{address}\""));
        // As in nginx, logged but not an error of the session.
        return status::OK;
    }
    session.pass_to = Some(address);
    status::OK
}

/// The address to pass to. The reason why there is none is logged.
fn target(session: &mut StreamSession) -> Option<SocketAddress> {
    let conf = session.conf::<Conf>();
    let text = match conf.target.as_ref()? {
        PassTarget::Address(address) => return Some(address.clone()),
        PassTarget::Text(text) => session.value(text),
    };
    match address(&text) {
        Ok(address) => return Some(address),
        Err(InvalidPassAddress::Syntax(why)) => {
            session.error(format_args!("{why} in pass \"{text}\""))
        }
        Err(InvalidPassAddress::NoAddress) => {
            session.error(format_args!("no addresses in pass \"{text}\""))
        }
        Err(InvalidPassAddress::NoPort) => {
            session.error(format_args!("no port in pass \"{text}\""))
        }
    }
    None
}
