//! The frozen configuration of `stream {}`: its servers and the handlers that run in each.
//!
//! One [`Frozen`] exists per generation of the configuration and is shared by all loops. A session keeps the one that
//! it began under until it ends.

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
    /// The confs of the server tables as `stream {}` itself has them, for what belongs to no server.
    pub outer_confs: ConfSet,
    /// All servers, in the order of the configuration.
    pub servers: Vec<Server>,
    /// What is listened on, and which server is behind it.
    pub endpoints: Vec<Arc<Endpoint>>,
    /// Every variable that the configuration knows.
    pub variables: Variables<Session>,
    /// The version that `$nginx_version` shows.
    pub version: String,
    /// The directory of the configuration, which the paths of certificates count from.
    pub conf_prefix: PathBuf,
    /// Tells generations apart.
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
    /// The engine's own settings of it.
    pub core: ServerConf,
    /// The confs of the modules' server tables.
    pub confs: ConfSet,
    /// What it does about TLS; `None`: nothing of its own.
    pub tls: Option<Arc<net::tls::Service>>,
    /// Who has a say in its handshakes.
    pub handshake: Option<HandshakeHandler>,
    /// The handlers that run in it.
    pub phases: Phases,
}

/// The handlers of a server by phase.
pub type Phases = PhaseHandlers<Phase, Handler, PHASES>;

/// Looks at a handshake that has begun.
pub type HandshakeHandler = net::tls::HandshakeHandler<Session>;

/// A module's struct in a server. It keeps the generation alive, so it may be held while the session changes.
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
