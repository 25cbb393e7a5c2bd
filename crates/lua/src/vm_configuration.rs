//! The configuration that a VM belongs to, of http or of stream: where scripts without a request,
//! such as timers, get their settings from.
//!
//! lua-nginx-module gives such scripts a fake request with the settings of the `http` block. Here
//! they ask the block itself, as it was outside of every server.

use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use net::resolver::{Resolver, ResolverConf};

use crate::cosocket_settings::CosocketSettings;
use crate::cosocket_tls::CosocketTls;
use crate::settings::LuaMainConf;

/// The configuration of a VM. Weak: a VM lives as long as something runs in it, which must not keep
/// a replaced configuration in memory.
#[derive(Clone)]
pub(crate) enum VmConfiguration {
    /// None: a VM of a pool's thread, or of a trial.
    Detached(LuaSubsystem),
    Http(Weak<http::http_site::HttpSite>),
    Stream(Weak<::stream::stream_site::StreamSite>),
}

/// Which engine's scripts a VM runs: the two have separate VMs, as lua-nginx-module and
/// stream-lua-nginx-module have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LuaSubsystem {
    Http,
    Stream,
}

impl LuaSubsystem {
    /// The value of `ngx.config.subsystem`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            LuaSubsystem::Http => "http",
            LuaSubsystem::Stream => "stream",
        }
    }

    /// The name of a dictionary's zone. A dictionary of stream has nothing in common with one of
    /// http of the same name, as in nginx, so its zone needs another name.
    pub(crate) fn zone(self, dictionary: &str) -> String {
        match self {
            LuaSubsystem::Http => dictionary.to_owned(),
            LuaSubsystem::Stream => format!("stream {dictionary}"),
        }
    }
}

impl VmConfiguration {
    /// Which engine's scripts the VM runs.
    pub(crate) fn subsystem(&self) -> LuaSubsystem {
        match self {
            VmConfiguration::Detached(engine) => *engine,
            VmConfiguration::Http(_) => LuaSubsystem::Http,
            VmConfiguration::Stream(_) => LuaSubsystem::Stream,
        }
    }

    /// The engine, and the generation of its configuration.
    pub(crate) fn key(&self) -> (LuaSubsystem, u64) {
        let generation = match self {
            VmConfiguration::Detached(_) => None,
            VmConfiguration::Http(site) => site.upgrade().map(|site| site.generation),
            VmConfiguration::Stream(site) => site.upgrade().map(|site| site.generation),
        };
        (self.subsystem(), generation.unwrap_or(0))
    }

    /// Whether the configuration was replaced and its last request has ended.
    pub(crate) fn is_retired(&self) -> bool {
        match self {
            VmConfiguration::Detached(_) => false,
            VmConfiguration::Http(site) => site.strong_count() == 0,
            VmConfiguration::Stream(site) => site.strong_count() == 0,
        }
    }

    /// The cosocket settings outside of every server.
    pub(crate) fn socket_settings(&self) -> CosocketSettings {
        match self {
            VmConfiguration::Detached(_) => None,
            VmConfiguration::Http(site) => site
                .upgrade()
                .map(|site| site.outer_confs.get::<CosocketSettings>().clone()),
            VmConfiguration::Stream(site) => site
                .upgrade()
                .map(|site| site.outer_confs.get::<CosocketSettings>().clone()),
        }
        .unwrap_or_default()
    }

    /// The TLS settings of cosockets outside of every server.
    pub(crate) fn tls_settings(&self) -> CosocketTls {
        match self {
            VmConfiguration::Detached(_) => None,
            VmConfiguration::Http(site) => site
                .upgrade()
                .map(|site| site.outer_confs.get::<CosocketTls>().clone()),
            VmConfiguration::Stream(site) => site
                .upgrade()
                .map(|site| site.outer_confs.get::<CosocketTls>().clone()),
        }
        .unwrap_or_default()
    }

    /// The resolver outside of every server, and its timeout.
    pub(crate) fn resolver(&self) -> Option<(Arc<Resolver>, Duration)> {
        match self {
            VmConfiguration::Detached(_) => None,
            VmConfiguration::Http(site) => {
                let site = site.upgrade()?;
                let conf = site.outer_confs.get::<ResolverConf>();
                Some((Arc::clone(&conf.resolver), conf.timeout))
            }
            VmConfiguration::Stream(site) => {
                let site = site.upgrade()?;
                let conf = site.outer_confs.get::<ResolverConf>();
                Some((Arc::clone(&conf.resolver), conf.timeout))
            }
        }
    }
}

/// What a VM for this configuration of http is made from.
pub(crate) fn for_http_site(
    site: &Rc<http::http_site::HttpSite>,
) -> (&LuaMainConf, VmConfiguration, u64) {
    let home = VmConfiguration::Http(Rc::downgrade(site));
    (site.main_confs.get(), home, site.generation)
}

/// What a VM for this configuration of stream is made from.
pub(crate) fn for_stream_site(
    site: &Rc<::stream::stream_site::StreamSite>,
) -> (&LuaMainConf, VmConfiguration, u64) {
    let home = VmConfiguration::Stream(Rc::downgrade(site));
    (site.main_confs.get(), home, site.generation)
}
