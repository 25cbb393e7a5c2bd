//! The frozen configuration of `http {}`: servers, locations and the handlers that run in each.
//!
//! One [`Frozen`] exists per generation of the configuration and is shared by all loops. Each loop wraps it in an
//! `Rc<Site>`, so that the count that every request moves is not one that all processors fight over.

use std::any::Any;
use std::marker::PhantomData;
use std::ops::Deref;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use base::phases::PhaseHandlers;
use bstr::{BStr, BString};
use conf::Variables;

use crate::core::{Identity, LocationConf, ServerConf};
use crate::handler::{PHASES, Phase, Step, Verdict};
use crate::listen::Endpoint;
use crate::location_tree::LocationTree;
use crate::request::Request;

pub use crate::block_ids::{LocationId, ServerId};
pub use crate::core::Satisfy;
pub use crate::location_tree::LocationKind;
pub use conf::ConfSet;

/// The configuration as one loop holds it.
pub type Site = host::generation::LoopGeneration<Frozen>;

/// One generation of `http {}`.
pub struct Frozen {
    /// The confs of the modules' main tables.
    pub main_confs: ConfSet,
    /// The confs of the modules' location tables as `http {}` itself has them, for what belongs to no location.
    pub outer_confs: ConfSet,
    /// All servers, in the order of the configuration.
    pub servers: Vec<Server>,
    /// All locations of all servers, `if` blocks and `limit_except` blocks too.
    pub locations: Vec<Location>,
    /// What is listened on, and which servers answer there.
    pub endpoints: Vec<Arc<Endpoint>>,
    /// Every variable that the configuration knows.
    pub variables: Variables<Request>,
    /// The names that the server goes by.
    pub identity: Identity,
    /// The directory that relative paths count from when they are made of variables.
    pub prefix: PathBuf,
    /// The directory of the configuration, which the paths of certificates count from.
    pub conf_prefix: PathBuf,
    /// Tells generations apart.
    pub generation: u64,
}

impl Frozen {
    /// The server with this number.
    ///
    /// A connection that a reload has overtaken may hold the number of a server of the former configuration until its next
    /// request. Its times are those of the first server then, where there are fewer now.
    pub fn server(&self, id: ServerId) -> &Server {
        self.servers.get(id.0 as usize).unwrap_or(&self.servers[0])
    }

    /// The location with this number.
    pub fn location(&self, id: LocationId) -> &Location {
        &self.locations[id.0 as usize]
    }
}

/// A `server {}` block.
pub struct Server {
    /// Its first name; what `$server_name` and the error log show.
    pub name: BString,
    /// The engine's own settings of it.
    pub core: Arc<ServerConf>,
    /// The confs of the modules' server tables.
    pub confs: ConfSet,
    /// What it does about TLS; `None`: nothing of its own.
    pub tls: Option<Arc<net::tls::Service>>,
    /// Who has a say in its handshakes.
    pub handshake: Option<(HandshakeHandler, Keeps)>,
    /// The pseudo location that a request is in before one is chosen: what the server itself says of locations.
    pub root: LocationId,
    /// Its locations.
    pub tree: LocationTree,
    /// Its named locations, sorted by name.
    pub named: Vec<(BString, LocationId)>,
    /// The handlers that run before a location is chosen.
    pub phases: Phases,
    /// Whether a location of it may have an answer to CONNECT; elsewhere the method is refused.
    pub takes_connect: bool,
}

impl Server {
    /// The named location `@name`; `name` begins with the `@`.
    pub fn named_location(&self, name: &BStr) -> Option<LocationId> {
        let index = self
            .named
            .binary_search_by(|(known, _)| known.as_slice().cmp(name))
            .ok()?;
        Some(self.named[index].1)
    }
}

/// A `location {}` block, an `if {}` or `limit_except {}` block in one, or the outermost level of a server.
pub struct Location {
    /// What it matches, as written; empty for blocks without a name.
    pub name: BString,
    /// How it was written.
    pub kind: LocationKind,
    /// The engine's own settings of it.
    pub core: Arc<LocationConf>,
    /// The confs of the modules' location tables.
    pub confs: ConfSet,
    /// Locations inside it.
    pub tree: LocationTree,
    /// The location that counts for methods which `limit_except` does not name, and the bits of those it does.
    pub limit_except: Option<(u32, LocationId)>,
    /// A path without the slash at this location's end is redirected to the one with it.
    pub adds_slash: bool,
    /// What runs in it.
    pub pipeline: Arc<Pipeline>,
}

/// What runs in a location. Locations in which the same runs share it.
#[derive(Default)]
pub struct Pipeline {
    /// The handlers by phase.
    pub phases: Phases,
    /// The filters that responses pass, with the names of their modules.
    pub filters: Box<[(&'static str, Filter)]>,
}

/// The handlers of a location or server by phase.
pub type Phases = PhaseHandlers<Phase, Handler, PHASES>;

/// Handles a request in a phase.
///
/// It answers at once with [`Step::Now`], which costs no allocation, or returns a future. It must not block: whatever
/// may wait for a device goes through `rt::file` or a pool.
pub type Handler = for<'a> fn(&'a mut Request) -> Step<'a>;

/// Changes a response whose head is complete and not yet sent.
///
/// It reads and changes `request.out`. A filter that works on the content wraps `request.out.body` in a
/// [`Source`](crate::body::Source) of its own and calls `request.out.content_changes()`.
pub type Filter = fn(&mut Request) -> Verdict;

/// Handles one moment of a handshake. The request has no head; it exists to evaluate variables about the client, and is
/// gone before the handshake continues.
pub type HandshakeHandler = net::tls::HandshakeHandler<Request>;

/// Whether client sessions (TLS 1.2) are kept outside of the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keeps {
    /// The external store is asked for the session that a client wants to resume.
    pub fetches: bool,
    /// The external store is given new sessions.
    pub stores: bool,
}

/// A module's struct in a location. It keeps the generation alive, so it may be held while the request changes.
pub struct ConfRef<C> {
    site: Rc<Site>,
    location: LocationId,
    position: usize,
    kind: PhantomData<C>,
}

impl<C: Any + Send + Sync> ConfRef<C> {
    pub(crate) fn new(site: Rc<Site>, location: LocationId) -> Self {
        let position = site.location(location).confs.position_of::<C>();
        ConfRef {
            site,
            location,
            position,
            kind: PhantomData,
        }
    }
}

impl<C: Any + Send + Sync> Deref for ConfRef<C> {
    type Target = C;

    fn deref(&self) -> &C {
        self.site.location(self.location).confs.at(self.position)
    }
}

/// A module's struct in a server.
pub struct ServerConfRef<C> {
    site: Rc<Site>,
    server: ServerId,
    kind: PhantomData<C>,
}

impl<C: Any + Send + Sync> ServerConfRef<C> {
    pub(crate) fn new(site: Rc<Site>, server: ServerId) -> Self {
        ServerConfRef {
            site,
            server,
            kind: PhantomData,
        }
    }
}

impl<C: Any + Send + Sync> Deref for ServerConfRef<C> {
    type Target = C;

    fn deref(&self) -> &C {
        self.site.server(self.server).confs.get()
    }
}
