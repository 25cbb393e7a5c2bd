//! The configuration of `stream {}` once it is built: its servers, and the handlers that run in each.
//!
//! There is one [`Frozen`] for each generation, shared by all loops and never changed. A session keeps the one under
//! which it began until it ends, so that a reload cannot change the rules in the middle of it.

use std::any::Any;
use std::ops::Deref;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use base::phases::PhaseHandlers;
use bstr::BString;
use conf::Variables;
use net::endpoint::Endpoint;

use crate::core::ServerConf;
use crate::phase::{Handler, PHASES, Phase};
use crate::session::Session;

pub use conf::ConfSet;
pub use net::server_name::ServerId;

/// The configuration as one loop holds it.
pub type Site = host::generation::LoopGeneration<Frozen>;

/// One generation of `stream {}`.
pub struct Frozen {
    /// The confs of the modules' main tables.
    pub main_confs: ConfSet,
    /// The confs of the server tables as `stream {}` itself sets them, for what belongs to no server.
    pub outer_confs: ConfSet,
    /// All servers, in the order of the configuration.
    pub servers: Vec<Server>,
    /// The addresses that are listened on, and the servers behind each.
    pub endpoints: Vec<Arc<Endpoint>>,
    /// All variables that the configuration knows.
    pub variables: Variables<Session>,
    /// The version that `$nginx_version` shows.
    pub version: String,
    /// The directory of the configuration: paths of certificates are relative to it.
    pub conf_prefix: PathBuf,
    /// The number of the generation.
    pub generation: u64,
}

impl Frozen {
    /// The server with this number.
    pub fn server(&self, id: ServerId) -> &Server {
        &self.servers[id.0 as usize]
    }
}

/// A `server {}` block.
pub struct Server {
    /// Its first name.
    pub name: BString,
    /// Its settings for the directives of the engine.
    pub core: ServerConf,
    /// The confs of the modules' server tables.
    pub confs: ConfSet,
    /// Its TLS settings; `None`: it has no directive about TLS.
    pub tls: Option<Arc<net::tls::Service>>,
    /// The handler that takes part in its handshakes.
    pub handshake: Option<HandshakeHandler>,
    /// The handlers that run in its sessions.
    pub phases: Phases,
}

/// The handlers of a server by phase.
pub type Phases = PhaseHandlers<Phase, Handler, PHASES>;

/// Called during a handshake.
pub type HandshakeHandler = net::tls::HandshakeHandler<Session>;

/// The settings of a module in a server. It keeps the generation alive without borrowing the session, so that it may be
/// held while the session changes.
pub struct ConfRef<C> {
    site: Rc<Site>,
    server: ServerId,
    kind: std::marker::PhantomData<C>,
}

impl<C: Any> ConfRef<C> {
    pub(crate) fn new(site: Rc<Site>, server: ServerId) -> Self {
        ConfRef {
            site,
            server,
            kind: std::marker::PhantomData,
        }
    }
}

impl<C: Any> Deref for ConfRef<C> {
    type Target = C;

    fn deref(&self) -> &C {
        self.site.server(self.server).confs.get()
    }
}
