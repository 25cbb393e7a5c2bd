//! The frozen configuration of `stream {}`: its servers and the handlers that run in each.
//!
//! One [`Frozen`] exists per generation of the configuration and is shared by all loops. A session keeps the one that
//! it began under until it ends.

use std::any::Any;
use std::ops::{Deref, Index};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use bstr::BString;
use conf::{AnyConf, Variables};
pub use net::server_name::ServerId;

use crate::core::ServerConf;
use crate::module::{Handler, HandshakeHandler, PHASES, Phase};
use crate::session::Session;
use net::endpoint::Endpoint;

/// The configuration as one loop holds it.
pub struct Site {
    frozen: Arc<Frozen>,
}

impl Site {
    /// Wraps a generation for a loop.
    pub fn new(frozen: Arc<Frozen>) -> Rc<Site> {
        Rc::new(Site { frozen })
    }
}

impl Deref for Site {
    type Target = Frozen;

    fn deref(&self) -> &Frozen {
        &self.frozen
    }
}

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
#[derive(Default)]
pub struct Phases([Box<[Handler]>; PHASES]);

impl Phases {
    /// Collects handlers, each with its phase, in the order of the modules.
    pub fn collect(handlers: impl Iterator<Item = (Phase, Handler)>) -> Phases {
        let mut lists: [Vec<Handler>; PHASES] = Default::default();
        for (phase, handler) in handlers {
            lists[phase as usize].push(handler);
        }
        Phases(lists.map(Vec::into_boxed_slice))
    }
}

impl Index<Phase> for Phases {
    type Output = [Handler];

    fn index(&self, phase: Phase) -> &[Handler] {
        &self.0[phase as usize]
    }
}

/// The structs of a block's tables, found by their type. There are few, and a session asks few times: they are searched
/// in a row.
pub struct ConfSet(Box<[Arc<dyn AnyConf>]>);

impl ConfSet {
    /// Structs of one group, in the order of its tables.
    pub(crate) fn new(confs: Vec<Arc<dyn AnyConf>>) -> ConfSet {
        ConfSet(confs.into())
    }

    /// The struct of type `C`. Panics when no module of the program has it: then the caller's module is not in the
    /// list of modules.
    pub fn get<C: Any>(&self) -> &C {
        let found = self.0.iter().find_map(|conf| {
            let conf: &dyn Any = &**conf;
            conf.downcast_ref()
        });
        found.expect("the module that asks for its struct is in the list of modules")
    }
}

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
