//! What a module is: a row in a list, made of plain data and plain functions.
//!
//! The order of the list that the binary hands to the engine is the order in which the handlers of a phase run.

use std::sync::Arc;

use conf::{Line, Rows, Table, Variable};

use crate::session::Session;
use crate::site::{ConfSet, Frozen, HandshakeHandler, Server};
use crate::stream_loop::StreamLoop;

pub use crate::phase::{Handler, Outcome, Phase, Step, status};
pub use net::tls::Objection;

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
    /// Directives that stand in `upstream { … }`, whoever reads that block.
    pub upstream: &'static dyn Rows,
    /// The tables of blocks that its directives open and dispatch themselves (`upstream`), for help and the reference.
    pub blocks: &'static [&'static dyn Rows],
    /// For modules that can be all that a server does with its sessions (`proxy_pass`).
    pub answer: Option<Answer>,
    /// What a server does about TLS, from the module that has the directives about it.
    pub tls: fn(&ConfSet) -> Option<Arc<net::tls::Service>>,
    /// For modules that have a say in handshakes with clients.
    pub handshake: Option<Handshake>,
    /// Handlers and the phases they run in.
    pub phases: &'static [(Phase, Handler)],
    /// Whether this server uses the module at all. Where it says no, its handlers are not on the path of a session.
    pub enabled: fn(&Server) -> bool,
    /// Variables of fixed names. A directive may define more while the configuration is read.
    pub variables: &'static [Variable<Session>],
    /// Called when all of `stream {}` was read, with its line: reports names that lines refer to and none declares.
    pub complete: fn(&mut Line),
    /// What has to be tried before a configuration is taken on: [`host::engine::Configuration::trials`].
    pub trial: fn(&Frozen) -> Option<host::engine::Trial>,
    /// Called once for each generation in the worker, before it serves: finds or makes zones.
    pub commit: fn(&Frozen, &host::engine::Zones) -> Result<(), String>,
    /// Called on each loop when it begins to serve a generation: for tasks of the loop's own. What belongs to the former
    /// generation is to be ended here.
    pub start: fn(&StreamLoop),
    /// Called on each loop that is to end, when it accepts no more.
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

/// A say in the handshakes of a server.
#[derive(Clone, Copy)]
pub struct Handshake {
    /// Whether a server makes use of it.
    pub when: fn(&ConfSet) -> bool,
    /// Changes what the client will be shown. The handshake ends when it objects; why was logged then.
    pub handler: HandshakeHandler,
}

/// What a server does with a session once it was let in.
pub struct Answer {
    /// Whether a server is this module's.
    pub when: fn(&Server) -> bool,
    /// The handler. The session ends with it.
    pub handler: Handler,
}

static NO_ROWS: Table<()> = Table::new(&[]);
