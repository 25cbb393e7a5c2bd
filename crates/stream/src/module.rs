//! What a module is: a row in a list, made of plain data and plain functions.
//!
//! The order of the list that the binary hands to the engine is the order in which the handlers of a phase run.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use conf::{Line, Rows, Table, Variable};
use net::tls::{Moment, Offer};

use crate::engine::StreamLoop;
use crate::session::Session;
use crate::site::{ConfSet, Frozen, Server};

/// One module. Absent parts come from [`Module::EMPTY`].
pub struct Module {
    /// The name that documentation and diagnostics use, for example `limit_conn`.
    pub name: &'static str,
    /// One sentence for the reference.
    pub doc: &'static str,
    /// Directives that stand in `stream` only.
    pub main: &'static dyn Rows,
    /// Directives whose value belongs to a server.
    pub server: &'static dyn Rows,
    /// Directives that stand in `upstream { … }`. Another module reads that block.
    pub upstream: &'static dyn Rows,
    /// The tables of blocks that its directives open and dispatch themselves (`upstream`), for help and the reference.
    pub blocks: &'static [&'static dyn Rows],
    /// For modules that decide what becomes of a session (`proxy_pass`, `return`, `pass`).
    pub answer: Option<Answer>,
    /// The TLS settings of a server, from the module that has the directives for them.
    pub tls: fn(&ConfSet) -> Option<Arc<net::tls::Service>>,
    /// For modules that take part in handshakes with clients.
    pub handshake: Option<Handshake>,
    /// Handlers, each with the phase in which it runs.
    pub phases: &'static [(Phase, Handler)],
    /// Whether this server uses the module at all. If not, its handlers are left out when the configuration is built.
    pub enabled: fn(&Server) -> bool,
    /// Variables of fixed names. A directive may define more while the configuration is read.
    pub variables: &'static [Variable<Session>],
    /// Called when all of `stream {}` was read, with its line: reports names that are used and not declared.
    pub complete: fn(&mut Line),
    /// What has to be tried before a configuration takes effect: [`host::engine::Configuration::trials`].
    pub trial: fn(&Frozen) -> Option<host::engine::Trial>,
    /// Called once for each generation in the worker, before it serves: finds or makes shared zones.
    pub commit: fn(&Frozen, &host::engine::Zones) -> Result<(), String>,
    /// Called on each loop when it begins to serve a generation: starts tasks of the loop, and ends those of the
    /// generation before.
    pub start: fn(&StreamLoop),
    /// Called on each loop that is about to end, when it accepts no more.
    pub stop: fn(&StreamLoop),
}

impl Module {
    /// A module that does nothing, for `..Module::EMPTY`.
    pub const EMPTY: Module = Module {
        name: "",
        doc: "",
        main: &NO_ROWS,
        server: &NO_ROWS,
        upstream: &NO_ROWS,
        blocks: &[],
        answer: None,
        tls: |_| None,
        handshake: None,
        phases: &[],
        enabled: |_| true,
        variables: &[],
        complete: |_| {},
        trial: |_| None,
        commit: |_, _| Ok(()),
        start: |_| {},
        stop: |_| {},
    };
}

/// How a module takes part in the handshakes of a server.
#[derive(Clone, Copy)]
pub struct Handshake {
    /// Whether the server uses it.
    pub when: fn(&ConfSet) -> bool,
    /// Changes what the client will be shown. If it objects the handshake ends; it has logged why.
    pub handler: HandshakeHandler,
}

/// Called during a handshake.
pub type HandshakeHandler = for<'a> fn(
    &'a mut Session,
    Moment,
    Rc<RefCell<Offer>>,
)
    -> Pin<Box<dyn Future<Output = Result<(), Objection>> + 'a>>;

/// The handshake must not be completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Objection;

/// What a server does with a session once it was let in.
pub struct Answer {
    /// Whether the server has the directive of this module.
    pub when: fn(&Server) -> bool,
    /// The handler. The session ends with it.
    pub handler: Handler,
}

static NO_ROWS: Table<()> = Table::new(&[]);

/// The phases of a session, in the order in which they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// The connection is accepted, and its PROXY protocol header was read. Handlers may change the address of the
    /// client (`realip`), which all later phases judge.
    PostAccept,
    /// Limits. They come before access, as in nginx.
    Preaccess,
    /// Whether the client may come in.
    Access,
    /// Handlers look at the first bytes, before it is decided what becomes of the session.
    Preread,
    /// The one handler that serves the session.
    Content,
    /// The session is over. Handlers cannot change anything any more.
    Log,
}

/// How many phases there are.
pub(crate) const PHASES: usize = 6;

/// A handler of a phase. It must not block.
///
/// It answers at once with [`Step::Now`], which costs no allocation, or returns a future.
pub type Handler = for<'a> fn(&'a mut Session) -> Step<'a>;

/// What a handler answers.
pub enum Step<'a> {
    /// The handler is done.
    Now(Outcome),
    /// The handler will be done when this future is.
    Later(Pin<Box<dyn Future<Output = Outcome> + 'a>>),
}

/// How a handler ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It leaves the decision to the next handler of the phase.
    Declined,
    /// It has decided: the rest of the phase is skipped.
    Ok,
    /// The session is over, with this status.
    Status(u16),
}

/// The statuses of a session. They are those of HTTP that mean the same.
pub mod status {
    /// Both ends have had what they wanted, or the client left.
    pub const OK: u16 = 200;
    /// What the client sent cannot be understood: its PROXY protocol header, or its first bytes.
    pub const BAD_REQUEST: u16 = 400;
    /// Access is denied.
    pub const FORBIDDEN: u16 = 403;
    /// The session cannot be served as it is configured.
    pub const INTERNAL_SERVER_ERROR: u16 = 500;
    /// No upstream server could be reached.
    pub const BAD_GATEWAY: u16 = 502;
    /// A limit is reached.
    pub const SERVICE_UNAVAILABLE: u16 = 503;
}

impl From<Outcome> for Step<'_> {
    fn from(outcome: Outcome) -> Self {
        Step::Now(outcome)
    }
}

impl<'a> Step<'a> {
    /// A step that ends with `future`.
    pub fn later(future: impl Future<Output = Outcome> + 'a) -> Step<'a> {
        Step::Later(Box::pin(future))
    }

    /// Waits for the end of the step.
    pub async fn outcome(self) -> Outcome {
        match self {
            Step::Now(outcome) => outcome,
            Step::Later(future) => future.await,
        }
    }
}
