//! What a module is: a row in a list, made of plain data and plain functions.
//!
//! The engine knows modules only by this shape and names none of them. The order of the list that the binary passes to
//! the engine is the order in which the handlers of a phase run, and in which filters see a response.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bstr::BString;
use conf::{
    BlockConfs, Diagnostic, DirectiveLine, DirectiveRows, DirectiveTable, Expression, VarId,
    Variable,
};
use net::upstream::UpstreamTls;

use crate::http_loop::HttpLoop;
use crate::http_site::{ConfSet, FrozenHttp, Location};
use crate::request::Request;

pub use crate::explain::notes::{ExplainNotes, ModuleExplain};
pub use crate::handler::{FilterVerdict, HandlerOutcome, HandlerStep, HttpPhase};
pub use crate::http_site::{HttpHandshakeHandler, PhaseHandler, ResponseFilter, SessionStorage};
pub use net::tls::HandshakeRefused;

/// One module. Parts that it does not have come from [`HttpModule::EMPTY`].
pub struct HttpModule {
    /// The name that documentation and diagnostics use, for example `limit_req`.
    pub name: &'static str,
    /// One sentence for the reference.
    pub doc: &'static str,
    /// Directives that are allowed in `http` only.
    pub main: &'static dyn DirectiveRows,
    /// Directives whose value belongs to a server.
    pub server: &'static dyn DirectiveRows,
    /// Directives whose value belongs to a location, and which `http` and `server` pass on to their locations.
    pub location: &'static dyn DirectiveRows,
    /// Directives of `upstream { … }`, whichever module reads that block.
    pub upstream: &'static dyn DirectiveRows,
    /// The tables of blocks that its directives open and dispatch themselves (`upstream`), for help and the reference.
    pub blocks: &'static [&'static dyn DirectiveRows],
    /// For modules that give a location all of its content (`proxy_pass`): no other content handler runs there.
    pub content_handler: Option<ContentHandler>,
    /// The group of servers that a location passes its requests to, for modules that do that; `None` for a location
    /// that does not, or whose group is only known for a request.
    pub group: fn(&Location) -> Option<Arc<net::upstream::UpstreamGroup>>,
    /// The TLS settings of a server, from the module that has the directives for them.
    pub tls: fn(&ConfSet) -> Option<Arc<net::tls::ServerTls>>,
    /// The certificate for a client that validates a name by TLS-ALPN-01.
    pub tls_challenge: fn(&FrozenHttp, &str) -> Option<Arc<net::tls::TlsIdentity>>,
    /// For modules that hook into handshakes with clients.
    pub handshake: Option<HttpHandshake>,
    /// How a location of such a module speaks TLS to its upstream servers, and the host name that it expects of them;
    /// `None` without TLS.
    pub secure: fn(&Location) -> Option<(UpstreamTls, BString)>,
    /// Handlers and the phases they run in.
    pub phases: &'static [(HttpPhase, PhaseHandler)],
    /// What `weir explain` does in the place of its handlers and its filter.
    pub explain: ModuleExplain,
    /// What it does to a response between the handler and the wire. Called once per response, when the head is
    /// complete; a filter that works on the content wraps the body.
    pub filter: Option<ResponseFilter>,
    /// Whether its filter asks what the content is a copy of: [`Response::identity`](crate::response::Response::identity).
    pub identifies_content: bool,
    /// Whether its filter works on answers to members of a cluster too, which are what is stored: conditions and ranges.
    pub filters_for_members: bool,
    /// Whether this location uses the module at all. If not, neither its handlers nor its filter are on the path of a
    /// request: a module that is compiled in but not configured costs nothing.
    pub enabled: fn(&Location) -> bool,
    /// Variables of fixed names. A directive may define more while the configuration is read.
    pub variables: &'static [Variable<Request>],
    /// Called for a location inside another one or a server, before its own lines are applied, with settings that are
    /// still copies of the outer ones: removes what nested locations do not inherit. Not called for `if` and
    /// `limit_except`.
    pub nested: fn(&mut BlockConfs),
    /// Called when all of `http {}` has been read, with its line: reports references to names that nothing declares.
    pub complete: fn(&mut DirectiveLine),
    /// What has to be tried before a configuration is accepted:
    /// [`host::engine::EngineConfiguration::configuration_tests`].
    pub trial: fn(&FrozenHttp) -> Option<host::engine::ConfigurationTest>,
    /// Called once per generation in the worker, before it serves: what can still refuse it, such as a zone whose key has
    /// changed. [`EngineConfiguration::accept`](host::engine::EngineConfiguration::accept) says what it must leave alone.
    pub accept: fn(&FrozenHttp, &host::engine::ZoneRegistry) -> Result<(), String>,
    /// Called once per generation, after all have accepted it: finds or creates the state that generations share.
    pub commit: fn(&FrozenHttp, &host::engine::ZoneRegistry),
    /// Tells the module's metrics, off the loops: [`net::metrics`].
    pub metrics: fn(&FrozenHttp, &mut dyn net::metrics::MetricSink),
    /// Called on each loop when it begins to serve a generation: starts the loop's own tasks. Whatever belongs to the
    /// previous generation has to be ended here.
    pub start: fn(&HttpLoop),
    /// Called on each loop that ends, once it has stopped accepting.
    pub stop: fn(&HttpLoop),
    /// Called when the process ends, off the loops: [`host::engine::EngineConfiguration::before_exit`].
    pub end: fn(&FrozenHttp, Instant),
}

impl HttpModule {
    /// A module that does nothing, for `..Module::EMPTY`.
    pub const EMPTY: HttpModule = HttpModule {
        name: "",
        doc: "",
        main: &NO_ROWS,
        server: &NO_ROWS,
        location: &NO_ROWS,
        upstream: &NO_ROWS,
        blocks: &[],
        content_handler: None,
        group: |_| None,
        secure: |_| None,
        tls: |_| None,
        tls_challenge: |_, _| None,
        handshake: None,
        phases: &[],
        explain: ModuleExplain::Depends(&[]),
        filter: None,
        identifies_content: false,
        filters_for_members: false,
        enabled: |_| true,
        variables: &[],
        nested: |_| {},
        complete: |_| {},
        trial: |_| None,
        accept: |_, _| Ok(()),
        commit: |_, _| {},
        metrics: |_, _| {},
        start: |_| {},
        stop: |_| {},
        end: |_, _| {},
    };
}

/// A hook in the handshakes of a server.
#[derive(Clone, Copy)]
pub struct HttpHandshake {
    /// Whether a server uses it, by the settings of the server's own level.
    pub when: fn(&Location) -> bool,
    /// Whether it stores client sessions.
    pub session_storage: fn(&Location) -> SessionStorage,
    /// Changes what the client is offered. If it objects the handshake ends; it has then logged why.
    pub handler: HttpHandshakeHandler,
}

/// A content handler that has a location to itself.
pub struct ContentHandler {
    /// The directives that make a location this module's. If one block has several such directives the last one counts.
    pub directives: &'static [&'static str],
    /// Whether a location's settings make it this module's.
    pub when: fn(&Location) -> bool,
    /// The handler.
    pub handler: PhaseHandler,
    /// Whether `/path` is redirected to `/path/` when the location is `/path/`.
    pub adds_slash: bool,
    /// Whether it declines some requests, which the handlers of the phase then answer.
    pub declines: bool,
}

static NO_ROWS: DirectiveTable<()> = DirectiveTable::new(&[]);

/// A step that a module adds to the script of a block: it runs among those of `set`, `rewrite` and `if`, in the order
/// of the configuration.
pub trait ScriptStep: Send + Sync {
    /// The texts that it works on. The script evaluates them before the step, as it does those of `set`.
    fn inputs(&self) -> &[Expression];

    /// Whether it does nothing but compute a value. `weir explain` runs no other step.
    fn only_computes(&self) -> bool {
        false
    }

    /// Runs the step with the values of its inputs. [`HandlerOutcome::Declined`] means that the script continues.
    fn run(&self, request: &mut Request, inputs: Vec<BString>) -> ScriptProgress;
}

/// How far a step of a script came.
pub enum ScriptProgress {
    /// It is done.
    Done(HandlerOutcome),
    /// It has to wait, and is polled until it is done.
    Later(Box<dyn ScriptTask>),
}

/// A step of a script that takes time. It is lent the request for each poll.
pub trait ScriptTask {
    /// Continues the step.
    fn poll(&mut self, request: &mut Request, context: &mut Context<'_>) -> Poll<HandlerOutcome>;
}

/// The steps of the block that is being read, each with its position in the block: [`DirectiveLine::index`]. Directive
/// rows add theirs with [`ScriptSteps::add`]; the module that runs scripts takes them once all rows of the block have
/// been read.
#[derive(Default)]
pub struct ScriptSteps(pub Vec<(usize, Arc<dyn ScriptStep>)>);

impl ScriptSteps {
    /// Adds the step of a line, at the line's position.
    pub fn add(line: &mut DirectiveLine, step: impl ScriptStep + 'static) {
        let index = line.index;
        line.lasting::<ScriptSteps>()
            .0
            .push((index, Arc::new(step)));
    }
}

/// The variable that a line assigns, which is its first word. A variable that exists already keeps its definition
/// wherever it is not assigned, as with `set`.
pub fn assigned_variable(line: &mut DirectiveLine) -> Result<VarId, Diagnostic> {
    let name = line.variable_name(0)?;
    let registry = line
        .level
        .registry::<Request>()
        .expect("http's rows stand in http");
    let variable = registry.settable_id(name);
    variable.map_err(|message| line.error_at(0, message))
}

/// Status codes that have a meaning inside the server only. They are nginx's numbers, because `error_page` and logs use
/// them.
pub mod internal_status {
    /// The connection is closed without a response (`return 444`).
    pub const CLOSE: u16 = 444;
    /// A request head that is larger than the buffers; answered as 400.
    pub const HEADER_TOO_LARGE: u16 = 494;
    /// The client's certificate failed verification; answered as 400.
    pub const CERTIFICATE_ERROR: u16 = 495;
    /// The client sent no certificate; answered as 400.
    pub const NO_CERTIFICATE: u16 = 496;
    /// Plain HTTP on a TLS port; answered as 400.
    pub const HTTP_TO_HTTPS: u16 = 497;
    /// The client left before the response; it only shows in logs.
    pub const CLIENT_CLOSED: u16 = 499;
}
