//! The frozen configuration of `http {}`: servers, locations and the handlers that run in each.
//!
//! One [`FrozenHttp`] exists per generation of the configuration and is shared by all loops. Each loop wraps it in an
//! `Rc<HttpSite>`: every request changes a reference count, and a shared atomic one would move its cache line between
//! all processors.

use std::any::Any;
use std::marker::PhantomData;
use std::ops::Deref;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use base::phases::PhaseHandlers;
use bstr::{BStr, BString};
use conf::VariableTable;

use crate::core::{LocationConf, ServerConf, ServerIdentity};
use crate::handler::{FilterVerdict, HandlerStep, HttpPhase, PHASES};
use crate::listen::ListenEndpoint;
use crate::location_tree::LocationTree;
use crate::request::Request;

pub use crate::block_ids::{LocationId, ServerId};
pub use crate::core::Satisfy;
pub use crate::location_tree::LocationKind;
pub use conf::ConfSet;

/// The configuration as one loop holds it.
pub type HttpSite = host::generation::LoopGeneration<FrozenHttp>;

/// One generation of `http {}`. Nothing in it changes after it was built, so that all loops read it without locks.
pub struct FrozenHttp {
    /// The settings of the modules' main tables.
    pub main_confs: ConfSet,
    /// The settings of the modules' location tables at the level of `http {}`, for what belongs to no location.
    pub outer_confs: ConfSet,
    /// All servers, in the order of the configuration.
    pub servers: Vec<Arc<HttpServer>>,
    /// The locations of each server, `if` blocks and `limit_except` blocks too.
    pub(crate) locations: Vec<Arc<[Location]>>,
    /// The listening addresses, each with the servers behind it.
    pub endpoints: Vec<Arc<ListenEndpoint>>,
    /// Every variable that the configuration knows.
    pub variables: VariableTable<Request>,
    /// The names under which the server identifies itself (`server_tokens`).
    pub identity: ServerIdentity,
    /// The directory to which relative paths with variables are relative.
    pub prefix: PathBuf,
    /// The directory of the configuration file, to which paths of certificates are relative.
    pub conf_prefix: PathBuf,
    /// The number of this generation.
    pub generation: u64,
}

impl FrozenHttp {
    /// The server with this number.
    ///
    /// A connection that has not noticed a reload yet may hold the number of a server of the previous configuration
    /// until its next request. If there are fewer servers now, it gets the timeouts of the first one, rather than a
    /// panic.
    pub fn server(&self, id: ServerId) -> &HttpServer {
        self.servers.get(id.0 as usize).unwrap_or(&self.servers[0])
    }

    /// The location with this number.
    pub fn location(&self, id: LocationId) -> &Location {
        &self.locations[id.block as usize][id.index as usize]
    }

    /// All locations.
    pub fn all_locations(&self) -> impl Iterator<Item = &Location> {
        self.locations.iter().flat_map(|list| list.iter())
    }
}

/// A `server {}` block.
pub struct HttpServer {
    /// Its first name, which `$server_name` and the error log show.
    pub name: BString,
    /// The engine's own settings of it.
    pub core: Arc<ServerConf>,
    /// The settings of the modules' server tables.
    pub confs: ConfSet,
    /// Its TLS settings; `None` if it has none of its own.
    pub tls: Option<Arc<net::tls::ServerTls>>,
    /// The hook of a module in its handshakes.
    pub handshake: Option<(HttpHandshakeHandler, SessionStorage)>,
    /// The pseudo location that a request is in before one is chosen: the server's own level.
    pub root: LocationId,
    /// Its locations.
    pub tree: LocationTree,
    /// Its named locations, sorted by name.
    pub named: Vec<(BString, LocationId)>,
    /// The handlers that run before a location is chosen.
    pub phases: HttpPhaseHandlers,
    /// Whether one of its locations may accept CONNECT; otherwise the method is refused when the head is checked.
    pub takes_connect: bool,
    /// Whether it has a certificate, or rejects handshakes: known even if the rest is not needed.
    pub(crate) handshakes: HandshakeAbility,
}

/// What a server can do with a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandshakeAbility {
    /// It has a certificate.
    Accepts,
    /// `ssl_reject_handshake`, without a certificate.
    Rejects,
    /// Neither.
    None,
}

impl HttpServer {
    /// Only what the check of a configuration asks of servers.
    pub(crate) fn without_locations(&self) -> HttpServer {
        HttpServer {
            name: self.name.clone(),
            core: Arc::clone(&self.core),
            confs: ConfSet::default(),
            tls: None,
            handshake: None,
            root: self.root,
            tree: LocationTree::default(),
            named: Vec::new(),
            phases: HttpPhaseHandlers::default(),
            takes_connect: self.takes_connect,
            handshakes: self.handshakes,
        }
    }

    /// A copy of one without locations, which shares nothing with it.
    pub(crate) fn copied(&self) -> HttpServer {
        HttpServer {
            core: Arc::new(ServerConf::clone(&self.core)),
            ..self.without_locations()
        }
    }

    /// The named location `@name`; `name` begins with the `@`.
    pub fn named_location(&self, name: &BStr) -> Option<LocationId> {
        let index = self
            .named
            .binary_search_by(|(known, _)| known.as_slice().cmp(name))
            .ok()?;
        Some(self.named[index].1)
    }
}

/// A `location {}` block, an `if {}` or `limit_except {}` block, or the outermost level of a server.
pub struct Location {
    /// What it matches, as written; empty for blocks without a name.
    pub name: BString,
    /// How it was written.
    pub kind: LocationKind,
    /// The engine's own settings of it.
    pub core: Arc<LocationConf>,
    /// The settings of the modules' location tables.
    pub confs: ConfSet,
    /// Locations inside it. Most have none.
    pub tree: Option<Box<LocationTree>>,
    /// The location for methods that `limit_except` does not name, and the bits of those that it does.
    pub limit_except: Option<(u32, LocationId)>,
    /// Whether a path that lacks only the slash at the end of this location's name is redirected to the one with it.
    pub adds_slash: bool,
    /// The handlers and filters that run in it.
    pub pipeline: Arc<HandlerPipeline>,
}

/// The handlers and filters of a location. Locations with equal ones share one.
#[derive(Default)]
pub struct HandlerPipeline {
    /// The handlers by phase.
    pub phases: HttpPhaseHandlers,
    /// The filters that responses pass, with the names of their modules.
    pub filters: Box<[(&'static str, ResponseFilter)]>,
    /// Those of them that answers to members of a cluster pass.
    pub member_filters: Box<[ResponseFilter]>,
    /// Whether one of the filters asks what the content is a copy of.
    pub identifies_content: bool,
}

/// The handlers of a location or server by phase.
pub type HttpPhaseHandlers = PhaseHandlers<HttpPhase, PhaseHandler, PHASES>;

/// Handles a request in a phase.
///
/// It answers at once with [`HandlerStep::Now`], which costs no allocation, or returns a future. It must not block:
/// whatever may wait for a device goes through `rt::file` or a pool.
pub type PhaseHandler = for<'a> fn(&'a mut Request) -> HandlerStep<'a>;

/// Changes a response whose head is complete and not yet sent.
///
/// It reads and changes `request.out`. A filter that works on the content wraps `request.out.body` in a
/// [`BodySource`](crate::response_body::BodySource) of its own and calls `request.out.content_changes()`.
pub type ResponseFilter = fn(&mut Request) -> FilterVerdict;

/// Handles one moment of a handshake. The request has no head; it exists to evaluate variables about the client, and is
/// gone before the handshake continues.
pub type HttpHandshakeHandler = net::tls::HandshakeHandler<Request>;

/// Whether client sessions (TLS 1.2) are kept outside of the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionStorage {
    /// The external store is asked for the session that a client wants to resume.
    pub fetches: bool,
    /// The external store is given new sessions.
    pub stores: bool,
}

/// A module's settings in a location. They keep the generation alive, so that they may be held while the request
/// changes.
pub struct ConfRef<C> {
    site: Rc<HttpSite>,
    location: LocationId,
    position: usize,
    kind: PhantomData<C>,
}

impl<C: Any + Send + Sync> ConfRef<C> {
    pub(crate) fn new(site: Rc<HttpSite>, location: LocationId) -> Self {
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

/// A module's settings in a server.
pub struct ServerConfRef<C> {
    site: Rc<HttpSite>,
    server: ServerId,
    kind: PhantomData<C>,
}

impl<C: Any + Send + Sync> ServerConfRef<C> {
    pub(crate) fn new(site: Rc<HttpSite>, server: ServerId) -> Self {
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
