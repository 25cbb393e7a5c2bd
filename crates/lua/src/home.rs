//! The configuration that a machine belongs to, of http or of stream: what scripts that run for nobody take from it.

use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use ::stream::core::ServerConf;
use http::core::ResolverConf;
use net::resolver::Resolver;

use crate::settings::Main;
use crate::sockets::Sockets;
use crate::tls::Tls;

/// Where a machine is at home.
#[derive(Clone)]
pub(crate) enum Home {
    /// Nowhere: a thread of a pool, or a trial.
    Nowhere(Engine),
    Http(Weak<http::site::Site>),
    Stream(Weak<::stream::site::Site>),
}

/// Which engine's scripts a machine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Http,
    Stream,
}

impl Engine {
    /// What `ngx.config.subsystem` says.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Engine::Http => "http",
            Engine::Stream => "stream",
        }
    }

    /// The name of a dictionary's zone: dictionaries of http and of stream have nothing in common, as in nginx.
    pub(crate) fn zone(self, dictionary: &str) -> String {
        match self {
            Engine::Http => dictionary.to_owned(),
            Engine::Stream => format!("stream {dictionary}"),
        }
    }
}

impl Home {
    /// Whose scripts the machine runs.
    pub(crate) fn engine(&self) -> Engine {
        match self {
            Home::Nowhere(engine) => *engine,
            Home::Http(_) => Engine::Http,
            Home::Stream(_) => Engine::Stream,
        }
    }

    /// Which configuration it is, of which engine.
    pub(crate) fn key(&self) -> (Engine, u64) {
        let generation = match self {
            Home::Nowhere(_) => None,
            Home::Http(site) => site.upgrade().map(|site| site.generation),
            Home::Stream(site) => site.upgrade().map(|site| site.generation),
        };
        (self.engine(), generation.unwrap_or(0))
    }

    /// The configuration was replaced, and the last request of it has ended.
    pub(crate) fn is_gone(&self) -> bool {
        match self {
            Home::Nowhere(_) => false,
            Home::Http(site) => site.strong_count() == 0,
            Home::Stream(site) => site.strong_count() == 0,
        }
    }

    /// The settings of sockets outside of every server.
    pub(crate) fn sockets(&self) -> Sockets {
        match self {
            Home::Nowhere(_) => None,
            Home::Http(site) => site
                .upgrade()
                .map(|site| site.outer_confs.get::<Sockets>().clone()),
            Home::Stream(site) => site
                .upgrade()
                .map(|site| site.outer_confs.get::<Sockets>().clone()),
        }
        .unwrap_or_default()
    }

    /// The TLS of sockets outside of every server.
    pub(crate) fn tls(&self) -> Tls {
        match self {
            Home::Nowhere(_) => None,
            Home::Http(site) => site
                .upgrade()
                .map(|site| site.outer_confs.get::<Tls>().clone()),
            Home::Stream(site) => site
                .upgrade()
                .map(|site| site.outer_confs.get::<Tls>().clone()),
        }
        .unwrap_or_default()
    }

    /// Who resolves names outside of every server, and how long that may take.
    pub(crate) fn resolver(&self) -> Option<(Arc<Resolver>, Duration)> {
        match self {
            Home::Nowhere(_) => None,
            Home::Http(site) => {
                let site = site.upgrade()?;
                let conf = site.outer_confs.get::<ResolverConf>();
                Some((Arc::clone(&conf.resolver), conf.timeout))
            }
            Home::Stream(site) => {
                let site = site.upgrade()?;
                let conf = site.outer_confs.get::<ServerConf>();
                Some((Arc::clone(&conf.resolver), conf.resolver_timeout))
            }
        }
    }
}

/// The Lua settings of a configuration of http.
pub(crate) fn of_http(site: &Rc<http::site::Site>) -> (&Main, Home, u64) {
    let home = Home::Http(Rc::downgrade(site));
    (site.main_confs.get(), home, site.generation)
}

/// The Lua settings of a configuration of stream.
pub(crate) fn of_stream(site: &Rc<::stream::site::Site>) -> (&Main, Home, u64) {
    let home = Home::Stream(Rc::downgrade(site));
    (site.main_confs.get(), home, site.generation)
}
