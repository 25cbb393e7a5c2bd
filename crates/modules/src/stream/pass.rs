//! `pass`: hands a connection to another listening address of the same server, of stream or of http, as if it had been
//! accepted there.
//!
//! ```nginx
//! server {
//!     listen      443;
//!     ssl_preread on;
//!     pass        $by_name;   # 127.0.0.1:8443 of http, or of another server of stream
//! }
//! ```
//!
//! No bytes are copied and nothing is connected to: the connection itself changes hands.

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
    target: Option<Target>,
}

#[derive(Clone)]
enum Target {
    Address(Address),
    Text(Expression),
}

fn set(conf: &mut Conf, line: &mut Line) -> Result<(), Diagnostic> {
    conf.target = Some(if Expression::has_variables(line.text(0)) {
        Target::Text(line.expression(0)?)
    } else {
        let text = line.text(0);
        Target::Address(address(text).map_err(|bad| match bad {
            Bad::Syntax(why) => {
                line.error_at(0, format!("{why} in \"{text}\" of the \"pass\" directive"))
            }
            Bad::NoAddress => line.directive_error("has no addresses"),
            Bad::NoPort => line.directive_error("has no port"),
        })?)
    });
    Ok(())
}

/// What is wrong with an address.
enum Bad {
    Syntax(&'static str),
    NoAddress,
    NoPort,
}

fn address(text: &[u8]) -> Result<Address, Bad> {
    let address = conf::Address::peer(text).map_err(Bad::Syntax)?;
    if let Host::Unix(path) = &address.host {
        return Ok(Address::Unix(UnixPath::new(path)));
    }
    let ip = address.ip().ok_or(Bad::NoAddress)?;
    let port = address.port.ok_or(Bad::NoPort)?;
    Ok(SocketAddr::new(ip, port).into())
}

/// Says where the connection goes; gives the status of a session that ends here.
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
    if session.client.passes >= MAX_PASSES {
        session.error(format_args!("stream pass cycle"));
        return status::INTERNAL_SERVER_ERROR;
    }
    if !is_served(&address) {
        session.error(format_args!("port not found for \"{address}\""));
        return status::OK;
    }
    session.pass_to = Some(address);
    status::OK
}

/// The address; why there is none is logged.
fn target(session: &mut Session) -> Option<Address> {
    let conf = session.conf::<Conf>();
    let text = match conf.target.as_ref()? {
        Target::Address(address) => return Some(address.clone()),
        Target::Text(text) => session.value(text),
    };
    match address(&text) {
        Ok(address) => return Some(address),
        Err(Bad::Syntax(why)) => session.error(format_args!("{why} in pass \"{text}\"")),
        Err(Bad::NoAddress) => session.error(format_args!("no addresses in pass \"{text}\"")),
        Err(Bad::NoPort) => session.error(format_args!("no port in pass \"{text}\"")),
    }
    None
}
