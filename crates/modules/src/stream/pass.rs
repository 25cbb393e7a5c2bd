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

use ::stream::module::{Answer, Outcome, Step, status};
use ::stream::{Module, Session};
use conf::{
    Arity, Diagnostic, Directive, Expression, Host, Line, Repeat, STREAM_SERVER, Setter, Table,
};
use net::passing::{MAX_PASSES, is_served};
use rt::net::{Address, UnixPath};

pub(crate) static MODULE: Module = Module {
    name: "pass",
    doc: "Hands a connection over to another listening address of the server.",
    server: &DIRECTIVES,
    answer: Some(Answer {
        when: |server| server.confs.get::<Conf>().target.is_some(),
        handler: |session| Step::Now(Outcome::Status(pass(session))),
    }),
    ..Module::EMPTY
};

static DIRECTIVES: Table<Conf> = Table::new(&[Directive {
    name: "pass",
    syntax: "address",
    default: None,
    contexts: STREAM_SERVER,
    since: "0.1",
    doc: "The listening address, of http or stream in the same configuration, that gets the connection: `host:port` or \
          `unix:path`. May contain variables. Nothing may have been read from a TLS connection before.",
    set: Setter::Custom(Arity::ONE, Repeat::Once, set),
}]);

#[derive(Clone, Default)]
struct Conf {
    target: Option<PassTarget>,
}

/// The address of a `pass` directive.
#[derive(Clone)]
enum PassTarget {
    Address(Address),
    Text(Expression),
}

/// Reads `pass`.
fn set(conf: &mut Conf, line: &mut Line) -> Result<(), Diagnostic> {
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
fn address(text: &[u8]) -> Result<Address, InvalidPassAddress> {
    let address = conf::Address::peer(text).map_err(InvalidPassAddress::Syntax)?;
    if let Host::Unix(path) = &address.host {
        return Ok(Address::Unix(UnixPath::new(path)));
    }
    let ip = address.ip().ok_or(InvalidPassAddress::NoAddress)?;
    let port = address.port.ok_or(InvalidPassAddress::NoPort)?;
    Ok(SocketAddr::new(ip, port).into())
}

/// The handler: sets where the connection goes. The status is that of the session if it ends here.
fn pass(session: &mut Session) -> u16 {
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
    if !is_served(&address) {
        session.error(format_args!("port not found for \"{address}\""));
        // As in nginx, logged but not an error of the session.
        return status::OK;
    }
    session.pass_to = Some(address);
    status::OK
}

/// The address to pass to. The reason why there is none is logged.
fn target(session: &mut Session) -> Option<Address> {
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
