//! What a module is: a row in a list, made of plain data and plain functions.
//!
//! The engine knows modules only by this shape and names none of them. The order of the list that the binary hands to
//! the engine is the order in which handlers of a phase run, and in which filters see a response.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bstr::BString;
use conf::{Confs, Diagnostic, Expression, Line, Rows, Table, VarId, Variable};
use net::upstream::Secure;

use crate::http_loop::HttpLoop;
use crate::request::Request;
use crate::site::{ConfSet, Frozen, Location};

pub use crate::handler::{Outcome, Phase, Step, Verdict};
pub use crate::site::{Filter, Handler, HandshakeHandler, Keeps};
pub use net::tls::Objection;

/// One module. Absent parts come from [`Module::EMPTY`].
pub struct Module {
    /// The name that documentation and diagnostics use, for example `limit_req`.
    pub name: &'static str,
    /// One sentence for the reference.
    pub doc: &'static str,
    /// Directives that stand in `http` only.
    pub main: &'static dyn Rows,
    /// Directives whose value belongs to a server.
    pub server: &'static dyn Rows,
    /// Directives whose value belongs to a location, and which servers and `http` hand down.
    pub location: &'static dyn Rows,
    /// Directives that stand in `upstream { … }`, whoever reads that block.
    pub upstream: &'static dyn Rows,
    /// The tables of blocks that its directives open and dispatch themselves (`upstream`), for help and the reference.
    pub blocks: &'static [&'static dyn Rows],
    /// For modules that give a location all of its content (`proxy_pass`): no other content handler runs there.
    pub answer: Option<Answer>,
    /// The group of servers that a location passes its requests to, for modules that do that; `None` for a location that
    /// does not, or whose group is only known for a request.
    pub group: fn(&Location) -> Option<Arc<net::upstream::Group>>,
    /// What a server does about TLS, from the module that has the directives about it.
    pub tls: fn(&ConfSet) -> Option<Arc<net::tls::Service>>,
    /// What is shown to a client that wants a proof, by TLS-ALPN-01, that a name is ours.
    pub tls_challenge: fn(&Frozen, &str) -> Option<Arc<net::tls::Identity>>,
    /// For modules that have a say in handshakes with clients.
    pub handshake: Option<Handshake>,
    /// How a location of such a module speaks TLS to the servers of its group, and the host that it takes them for; `None`:
    /// it does not.
    pub secure: fn(&Location) -> Option<(Secure, BString)>,
    /// Handlers and the phases they run in.
    pub phases: &'static [(Phase, Handler)],
    /// What it does to a response between the handler and the wire. Called once per response, when the head is
    /// complete; a filter that works on the content wraps the body.
    pub filter: Option<Filter>,
    /// Whether this location uses the module at all. Where it says no, neither its handlers nor its filter are on the
    /// path of a request.
    pub enabled: fn(&Location) -> bool,
    /// Variables of fixed names. A directive may define more while the configuration is read.
    pub variables: &'static [Variable<Request>],
    /// Called when a location is entered that stands inside another one or a server, with structs that are still
    /// copies of the outer ones: forgets what nested locations do not inherit. Not called for `if` and `limit_except`.
    pub nested: fn(&mut Confs),
    /// Called when all of `http {}` was read, with its line: reports names that lines refer to and none declares.
    pub complete: fn(&mut Line),
    /// What has to be tried before a configuration is taken on: [`host::engine::Configuration::trials`].
    pub trial: fn(&Frozen) -> Option<host::engine::Trial>,
    /// Called once for each generation in the worker, before it serves: finds or makes zones.
    pub commit: fn(&Frozen, &host::engine::Zones) -> Result<(), String>,
    /// Called on each loop when it begins to serve a generation: for tasks of the loop's own. What belongs to the former
    /// generation is to be ended here.
    pub start: fn(&HttpLoop),
    /// Called on each loop that is to end, when it accepts no more.
    pub stop: fn(&HttpLoop),
    /// Called when the process is about to end, off the loops: [`host::engine::Configuration::end`].
    pub end: fn(&Frozen, Instant),
}

impl Module {
    /// A module that does nothing, for `..Module::EMPTY`.
    pub const EMPTY: Module = Module {
        name: "",
        doc: "",
        main: &NO_ROWS,
        server: &NO_ROWS,
        location: &NO_ROWS,
        upstream: &NO_ROWS,
        blocks: &[],
        answer: None,
        group: |_| None,
        secure: |_| None,
        tls: |_| None,
        tls_challenge: |_, _| None,
        handshake: None,
        phases: &[],
        filter: None,
        enabled: |_| true,
        variables: &[],
        nested: |_| {},
        complete: |_| {},
        trial: |_| None,
        commit: |_, _| Ok(()),
        start: |_| {},
        stop: |_| {},
        end: |_, _| {},
    };
}

/// A say in the handshakes of a server.
#[derive(Clone, Copy)]
pub struct Handshake {
    /// Whether a server makes use of it, by what the server itself says of locations.
    pub when: fn(&Location) -> bool,
    /// Which sessions of clients it keeps.
    pub keeps: fn(&Location) -> Keeps,
    /// Changes what the client will be shown. The handshake ends when it objects; why was logged then.
    pub handler: HandshakeHandler,
}

/// The one content handler of a location.
pub struct Answer {
    /// The directives that make a location this module's. Of several modules' in one block the last one counts.
    pub directives: &'static [&'static str],
    /// Whether a location is this module's.
    pub when: fn(&Location) -> bool,
    /// The handler.
    pub handler: Handler,
    /// Whether `/path` is redirected to `/path/` when the location is `/path/`.
    pub adds_slash: bool,
}

static NO_ROWS: Table<()> = Table::new(&[]);

/// A step that a module adds to the script of a block: what `set`, `rewrite` and `if` do in the order of the file,
/// somebody else does between them.
pub trait ScriptStep: Send + Sync {
    /// The texts that it works on. The script evaluates them as it does those of `set`, which is its own affair.
    fn inputs(&self) -> &[Expression];

    /// Does it, with the values of its inputs. [`Outcome::Declined`] says that the script goes on.
    fn run(&self, request: &mut Request, inputs: Vec<BString>) -> ScriptProgress;
}

/// How far a step of a script came.
pub enum ScriptProgress {
    /// It is done.
    Done(Outcome),
    /// It is not done yet, and is to be polled.
    Later(Box<dyn ScriptTask>),
}

/// A step of a script that takes time. It is lent the request for each poll.
pub trait ScriptTask {
    /// Goes on.
    fn poll(&mut self, request: &mut Request, context: &mut Context<'_>) -> Poll<Outcome>;
}

/// The steps of the block that is being read, each with its position in the block: [`Line::index`]. Rows leave them
/// here with [`ScriptSteps::add`], and the module that runs scripts takes them when the block's rows are read.
#[derive(Default)]
pub struct ScriptSteps(pub Vec<(usize, Arc<dyn ScriptStep>)>);

impl ScriptSteps {
    /// Leaves the step of a line, at the line's position.
    pub fn add(line: &mut Line, step: impl ScriptStep + 'static) {
        let index = line.index;
        line.shared::<ScriptSteps>().0.push((index, Arc::new(step)));
    }
}

/// The variable that a line assigns, which is its first word. One that exists already keeps its definition wherever it is
/// not assigned, as with `set`.
pub fn assigned_variable(line: &mut Line) -> Result<VarId, Diagnostic> {
    let name = line.variable_name(0)?;
    let registry = line
        .level
        .registry::<Request>()
        .expect("http's rows stand in http");
    let variable = registry.slot(name);
    variable.map_err(|message| line.error_at(0, message))
}

/// Status codes that have a meaning inside the server only. They are nginx's numbers, since `error_page` and logs show
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
