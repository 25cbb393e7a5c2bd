//! The configuration of `stream {}` once it is built: its servers, and the handlers that run in each.
//!
//! There is one [`FrozenStream`] for each generation, shared by all loops and never changed. A session keeps the one
//! under which it began until it ends, so that a reload cannot change the rules in the middle of it.

use std::any::Any;
use std::ops::Deref;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use base::phases::PhaseHandlers;
use bstr::BString;
use conf::VariableTable;
use net::endpoint::ListenEndpoint;

use crate::core::StreamServerConf;
use crate::phase::{PHASES, StreamHandler, StreamPhase};
use crate::session::StreamSession;

pub use conf::ConfSet;
pub use net::server_name::ServerId;

/// The configuration as one loop holds it.
pub type StreamSite = host::generation::LoopGeneration<FrozenStream>;

/// One generation of `stream {}`.
pub struct FrozenStream {
    /// The confs of the modules' main tables.
    pub main_confs: ConfSet,
    /// The confs of the server tables as `stream {}` itself sets them, for what belongs to no server.
    pub outer_confs: ConfSet,
    /// All servers, in the order of the configuration.
    pub servers: Vec<StreamServer>,
    /// The addresses that are listened on, and the servers behind each.
    pub endpoints: Vec<Arc<ListenEndpoint>>,
    /// All variables that the configuration knows.
    pub variables: VariableTable<StreamSession>,
    /// The version that `$nginx_version` shows.
    pub version: String,
    /// The directory of the configuration: paths of certificates are relative to it.
    pub conf_prefix: PathBuf,
    /// The number of the generation.
    pub generation: u64,
}

impl FrozenStream {
    /// The server with this number.
    pub fn server(&self, id: ServerId) -> &StreamServer {
        &self.servers[id.0 as usize]
    }
}

/// A `server {}` block.
pub struct StreamServer {
    /// Its first name.
    pub name: BString,
    /// Its settings for the directives of the engine.
    pub core: StreamServerConf,
    /// The confs of the modules' server tables.
    pub confs: ConfSet,
    /// Its TLS settings; `None`: it has no directive about TLS.
    pub tls: Option<Arc<net::tls::ServerTls>>,
    /// The handler that takes part in its handshakes.
    pub handshake: Option<StreamHandshakeHandler>,
    /// The handlers that run in its sessions.
    pub phases: StreamPhaseHandlers,
}

/// The handlers of a server by phase.
pub type StreamPhaseHandlers = PhaseHandlers<StreamPhase, StreamHandler, PHASES>;

/// Called during a handshake.
pub type StreamHandshakeHandler = net::tls::HandshakeHandler<StreamSession>;

/// The settings of a module in a server. It keeps the generation alive without borrowing the session, so that it may be
/// held while the session changes.
pub struct StreamConfRef<C> {
    site: Rc<StreamSite>,
    server: ServerId,
    kind: std::marker::PhantomData<C>,
}

impl<C: Any> StreamConfRef<C> {
    pub(crate) fn new(site: Rc<StreamSite>, server: ServerId) -> Self {
        StreamConfRef {
            site,
            server,
            kind: std::marker::PhantomData,
        }
    }
}

impl<C: Any> Deref for StreamConfRef<C> {
    type Target = C;

    fn deref(&self) -> &C {
        self.site.server(self.server).confs.get()
    }
}
