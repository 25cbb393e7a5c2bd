//! The configuration of `stream {}` once it is built: its servers, and the handlers that run in each.
//!
//! There is one [`Frozen`] for each generation, shared by all loops and never changed. A session keeps the one under
//! which it began until it ends, so that a reload cannot change the rules in the middle of it.

use std::any::Any;
use std::ops::{Deref, Index};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use bstr::BString;
use conf::{AnyConf, Variables};

use crate::core::ServerConf;
use crate::listen::Endpoint;
use crate::module::{Handler, HandshakeHandler, PHASES, Phase};
use crate::session::Session;

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

/// The number of a server in its [`Frozen`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ServerId(pub u32);

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

/// The structs of the tables of a block, found by their type. A linear search: there are few, and a session asks
/// rarely.
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
