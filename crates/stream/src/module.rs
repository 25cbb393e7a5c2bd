//! What a module is: a row in a list, made of plain data and plain functions.
//!
//! The order of the list that the binary hands to the engine is the order in which the handlers of a phase run.

use std::sync::Arc;

use conf::{DirectiveLine, DirectiveRows, DirectiveTable, Variable};

use crate::session::StreamSession;
use crate::stream_loop::StreamLoop;
use crate::stream_site::{ConfSet, FrozenStream, StreamHandshakeHandler, StreamServer};

pub use crate::phase::{SessionOutcome, SessionStep, StreamHandler, StreamPhase, status};
pub use net::tls::HandshakeRefused;

/// One module. Absent parts come from [`StreamModule::EMPTY`].
pub struct StreamModule {
    /// The name that documentation and diagnostics use, for example `limit_conn`.
    pub name: &'static str,
    /// One sentence for the reference.
    pub doc: &'static str,
    /// Directives that stand in `stream` only.
    pub main: &'static dyn DirectiveRows,
    /// Directives whose value belongs to a server.
    pub server: &'static dyn DirectiveRows,
    /// Directives that stand in `upstream { … }`. Another module reads that block.
    pub upstream: &'static dyn DirectiveRows,
    /// The tables of blocks that its directives open and dispatch themselves (`upstream`), for help and the reference.
    pub blocks: &'static [&'static dyn DirectiveRows],
    /// For modules that decide what becomes of a session (`proxy_pass`, `return`, `pass`).
    pub content_handler: Option<StreamContentHandler>,
    /// The TLS settings of a server, from the module that has the directives for them.
    pub tls: fn(&ConfSet) -> Option<Arc<net::tls::ServerTls>>,
    /// For modules that take part in handshakes with clients.
    pub handshake: Option<StreamHandshake>,
    /// Handlers, each with the phase in which it runs.
    pub phases: &'static [(StreamPhase, StreamHandler)],
    /// Whether this server uses the module at all. If not, its handlers are left out when the configuration is built.
    pub enabled: fn(&StreamServer) -> bool,
    /// Variables of fixed names. A directive may define more while the configuration is read.
    pub variables: &'static [Variable<StreamSession>],
    /// Called when all of `stream {}` was read, with its line: reports names that are used and not declared.
    pub complete: fn(&mut DirectiveLine),
    /// What has to be tried before a configuration takes effect:
    /// [`host::engine::EngineConfiguration::configuration_tests`].
    pub trial: fn(&FrozenStream) -> Option<host::engine::ConfigurationTest>,
    /// Called once for each generation in the worker, before it serves: what can still refuse it, such as a zone whose
    /// key has changed.
    pub accept: fn(&FrozenStream, &host::engine::ZoneRegistry) -> Result<(), String>,
    /// Called once for each generation, after all have accepted it: finds or creates the state that generations share.
    pub commit: fn(&FrozenStream, &host::engine::ZoneRegistry),
    /// Called on each loop when it begins to serve a generation: starts tasks of the loop, and ends those of the
    /// generation before.
    pub start: fn(&StreamLoop),
    /// Called on each loop that is about to end, when it accepts no more.
    pub stop: fn(&StreamLoop),
}

impl StreamModule {
    /// A module that does nothing, for `..Module::EMPTY`.
    pub const EMPTY: StreamModule = StreamModule {
        name: "",
        doc: "",
        main: &NO_ROWS,
        server: &NO_ROWS,
        upstream: &NO_ROWS,
        blocks: &[],
        content_handler: None,
        tls: |_| None,
        handshake: None,
        phases: &[],
        enabled: |_| true,
        variables: &[],
        complete: |_| {},
        trial: |_| None,
        accept: |_, _| Ok(()),
        commit: |_, _| {},
        start: |_| {},
        stop: |_| {},
    };
}

/// How a module takes part in the handshakes of a server.
#[derive(Clone, Copy)]
pub struct StreamHandshake {
    /// Whether the server uses it.
    pub when: fn(&ConfSet) -> bool,
    /// Changes what the client will be shown. If it objects the handshake ends; it has logged why.
    pub handler: StreamHandshakeHandler,
}

/// What a server does with a session once it was let in.
pub struct StreamContentHandler {
    /// Whether the server has the directive of this module.
    pub when: fn(&StreamServer) -> bool,
    /// The handler. The session ends with it.
    pub handler: StreamHandler,
}

static NO_ROWS: DirectiveTable<()> = DirectiveTable::new(&[]);
