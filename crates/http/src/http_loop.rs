//! HTTP on one loop, as protocols, modules and variables know it: the present configuration, and where to count and log.
//!
//! It knows no connection: accepting, counting and moving those is [`crate::engine`]'s, which is above the protocols.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bstr::BString;
use host::engine::{Main, Zones};
use host::error_log::{Level, Logger};
use net::client::Remote;
use net::counters::Counters;

use crate::client::{Client, ConnectionOrigin};
use crate::client_stream::ClientConnection;
use crate::listen::Endpoint;
use crate::module::Module;
use crate::site::{Location, Site};

/// HTTP on one loop.
pub struct HttpLoop {
    /// The loop's number, from 0: what is to run once in the process runs on loop 0.
    pub index: usize,
    pub(crate) modules: &'static [&'static Module],
    pub(crate) site: RefCell<Rc<Site>>,
    /// What connections read into, one at a time.
    pub(crate) scratch: RefCell<Vec<u8>>,
    pub(crate) stopping: Cell<bool>,
    /// Main's error log, for what belongs to no location.
    pub log: Logger,
    /// The settings of the main context.
    pub main: Main,
    /// What survives reloads.
    pub zones: Zones,
    /// This loop's counters.
    pub counters: Arc<Counters>,
}

impl HttpLoop {
    /// Lends the present configuration.
    pub(crate) fn with_site<R>(&self, f: impl FnOnce(&Rc<Site>) -> R) -> R {
        f(&self.site.borrow())
    }

    /// Which configuration is the present one.
    pub fn generation(&self) -> u64 {
        self.site.borrow().generation
    }

    /// The present configuration.
    pub fn site(&self) -> Rc<Site> {
        Rc::clone(&self.site.borrow())
    }

    /// Whether the loop ends when its connections do.
    pub fn is_stopping(&self) -> bool {
        self.stopping.get()
    }

    /// The group of servers that a location passes its requests to.
    pub fn group_of(&self, location: &Location) -> Option<Arc<net::upstream::Group>> {
        self.modules
            .iter()
            .find_map(|module| (module.group)(location))
    }

    /// How a location speaks TLS to those servers, and the host that it takes them for; `None`: it does not.
    pub fn secure_of(&self, location: &Location) -> Option<(net::upstream::Secure, BString)> {
        self.modules
            .iter()
            .find_map(|module| (module.secure)(location))
    }

    /// What a module shows to a client that wants a proof of a name.
    pub(crate) fn tls_challenge(&self, name: &str) -> Option<Arc<net::tls::Identity>> {
        let site = self.site();
        self.modules
            .iter()
            .find_map(|module| (module.tls_challenge)(&site, name))
    }

    /// Has the modules begin to serve the present configuration.
    pub(crate) fn start_modules(&self) {
        for module in self.modules {
            (module.start)(self);
        }
    }

    /// Tells the modules that the loop ends.
    pub(crate) fn stop_modules(&self) {
        for module in self.modules {
            (module.stop)(self);
        }
    }

    /// The client of a connection that has just come to this loop, whatever carries its requests.
    pub(crate) fn new_client(
        &self,
        site: &Site,
        endpoint: &Arc<Endpoint>,
        connection: Rc<dyn ClientConnection>,
        origin: ConnectionOrigin,
    ) -> Client {
        let debug = self.main.is_debugged(origin.peer.ip());
        if debug {
            host::error_log::turn_on_debug();
        }
        Client {
            debug,
            number: crate::client::next_connection(),
            connection,
            remote: Rc::new(Remote::at(origin.peer)),
            proxy: None,
            tls_port: endpoint.tls,
            asked_name: RefCell::default(),
            accepted: rt::now(),
            requests: Cell::new(0),
            control: origin.control,
            keepalive_timeout: Cell::new(Duration::ZERO),
            keepalive_min_timeout: Cell::new(Duration::ZERO),
            generation: Cell::new(site.generation),
            socket: origin.socket,
            passed_at: origin.passed_at,
            endpoint: RefCell::new(Arc::clone(endpoint)),
        }
    }

    /// Writes a line about a connection that has no request.
    pub fn log_client(&self, level: Level, client: &Client, message: fmt::Arguments<'_>) {
        let endpoint = client.endpoint.borrow();
        let site = self.site();
        let server = match client.generation.get() == site.generation {
            true => Some(client.first_server()),
            false => present_endpoint(client, &site).map(|endpoint| endpoint.default_server),
        };
        let log = match server {
            Some(server) => &site.location(site.server(server).root).core.log,
            None => &self.log,
        };
        let context = ClientContext {
            client,
            endpoint: &endpoint,
        };
        match client.debug {
            true => log.debug_connection().log(level, &context, message),
            false => log.log(level, &context, message),
        }
    }

    /// Writes a line at level `debug` about a connection that has no request.
    #[inline]
    pub fn debug_client(&self, client: &Client, message: fmt::Arguments<'_>) {
        if host::error_log::debug_is_on() {
            self.log_client(Level::Debug, client, message);
        }
    }

    /// Points the client at its listening address in the present configuration, after a reload. `false`: that does not listen
    /// there, so that none of its servers may answer.
    #[inline]
    pub(crate) fn refresh_endpoint(&self, client: &Client) -> bool {
        client.generation.get() == self.generation() || refresh_endpoint(client, &self.site())
    }
}

/// Points the client at its listening address in a configuration; see [`HttpLoop::refresh_endpoint`].
pub(crate) fn refresh_endpoint(client: &Client, site: &Site) -> bool {
    if client.generation.get() == site.generation {
        return true;
    }
    let Some(endpoint) = present_endpoint(client, site) else {
        return false;
    };
    client.generation.set(site.generation);
    *client.endpoint.borrow_mut() = Arc::clone(endpoint);
    client.refresh_asked_name();
    true
}

/// The address that the client came to, if a configuration listens there.
pub(crate) fn present_endpoint<'a>(client: &Client, site: &'a Site) -> Option<&'a Arc<Endpoint>> {
    let local = || client.known_local()?.ip();
    net::endpoint::endpoint_of(&site.endpoints, &client.socket, local)
}

struct ClientContext<'a> {
    client: &'a Client,
    endpoint: &'a Endpoint,
}

impl host::error_log::Context for ClientContext<'_> {
    fn connection(&self) -> Option<u64> {
        Some(self.client.number)
    }

    fn describe(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b", client: ");
        out.extend_from_slice(&self.client.remote.text);
        out.extend_from_slice(b", server: ");
        out.extend_from_slice(self.endpoint.address.to_string().as_bytes());
    }
}
