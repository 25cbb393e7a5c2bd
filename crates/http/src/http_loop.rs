//! HTTP on one loop, as protocols, modules and variables see it: the current configuration, and where to count and log.
//!
//! It knows no connection: [`crate::engine`], a layer above the protocols, accepts, counts and moves those.

use std::cell::{Cell, OnceCell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bstr::BString;
use host::engine::{MainSettings, ZoneRegistry};
use host::error_log::{ContextWriter, LogLevel, Logger};
use net::client::RemoteClient;
use net::counters::ConnectionCounters;

use crate::client::{ConnectionOrigin, HttpClient};
use crate::client_stream::ClientConnection;
use crate::http_site::{HttpSite, Location};
use crate::listen::ListenEndpoint;
use crate::module::HttpModule;

/// How many connections of a loop may keep the memory for a request while they are idle for a moment: some 8 MB. To
/// give it back and take it again costs as much as a fifth of a small request, so it is not done without need.
const CROWD: usize = 1024;

/// The HTTP state of one loop that requests may use.
pub struct HttpLoop {
    /// The loop's number in its process, from 0. Work that must run once per process runs on loop 0.
    pub index: usize,
    pub(crate) modules: &'static [&'static HttpModule],
    pub(crate) site: RefCell<Rc<HttpSite>>,
    /// The buffer that every connection of the loop reads into, so that an idle connection needs none. It is borrowed
    /// for one call only: a task that kept it across a wait would take it from all others.
    pub(crate) scratch: RefCell<Vec<u8>>,
    pub(crate) stopping: Cell<bool>,
    /// Until when a connection that waits may wait for one more request, though the loop has stopped.
    pub(crate) lingers_until: Cell<Option<std::time::Instant>>,
    /// How many connections are served by tasks that have the memory for a request.
    pub(crate) served: Cell<usize>,
    /// The error log and the settings of the main context, as the current configuration has them.
    pub(crate) log: RefCell<Logger>,
    pub(crate) main: RefCell<MainSettings>,
    /// Shared memory zones, which outlive a reload.
    pub zones: ZoneRegistry,
    /// This loop's counters.
    pub counters: Arc<ConnectionCounters>,
}

impl HttpLoop {
    /// Lends the current configuration, without touching its reference count.
    pub(crate) fn with_site<R>(&self, f: impl FnOnce(&Rc<HttpSite>) -> R) -> R {
        f(&self.site.borrow())
    }

    /// The error log of the main context, for lines that belong to no location.
    pub fn log(&self) -> Logger {
        self.log.borrow().clone()
    }

    /// The number of the current configuration: a connection compares it to find out that there was a reload.
    pub fn generation(&self) -> u64 {
        self.site.borrow().generation
    }

    /// The current configuration. A request that holds it keeps it alive over a reload.
    pub fn site(&self) -> Rc<HttpSite> {
        Rc::clone(&self.site.borrow())
    }

    /// Whether the loop has stopped accepting, and ends when its connections do.
    pub fn is_stopping(&self) -> bool {
        self.stopping.get()
    }

    /// When a connection that is to close, and has waited since then, closes: `least` is its `keepalive_min_timeout`.
    pub(crate) fn end_of_wait(
        &self,
        since: std::time::Instant,
        least: Duration,
    ) -> std::time::Instant {
        let end = since + least;
        self.lingers_until.get().map_or(end, |until| end.max(until))
    }

    /// Whether enough connections hold the memory for a request that those between two requests give it back at once.
    pub(crate) fn is_crowded(&self) -> bool {
        self.served.get() > CROWD
    }

    /// The group of servers that a location passes its requests to.
    pub fn group_of(&self, location: &Location) -> Option<Arc<net::upstream::UpstreamGroup>> {
        self.modules
            .iter()
            .find_map(|module| (module.group)(location))
    }

    /// How a location speaks TLS to those servers, and the host name that it expects of them; `None` without TLS.
    pub fn secure_of(&self, location: &Location) -> Option<(net::upstream::UpstreamTls, BString)> {
        self.modules
            .iter()
            .find_map(|module| (module.secure)(location))
    }

    /// The certificate that a module presents to an ACME server that validates this name (`tls-alpn-01`).
    pub(crate) fn tls_challenge(&self, name: &str) -> Option<Arc<net::tls::TlsIdentity>> {
        let site = self.site();
        self.modules
            .iter()
            .find_map(|module| (module.tls_challenge)(&site, name))
    }

    /// All modules, in the order in which they run.
    pub fn modules(&self) -> &'static [&'static HttpModule] {
        self.modules
    }

    /// Starts the modules with the current configuration: on a new loop, and after a reload.
    pub(crate) fn start_modules(&self) {
        for module in self.modules {
            (module.start)(self);
        }
    }

    /// Stops the modules, when the loop ends.
    pub(crate) fn stop_modules(&self) {
        for module in self.modules {
            (module.stop)(self);
        }
    }

    /// The client of a connection that has just come to this loop, whatever carries its requests.
    pub(crate) fn new_client(
        &self,
        site: &HttpSite,
        endpoint: &Arc<ListenEndpoint>,
        connection: Rc<dyn ClientConnection>,
        origin: ConnectionOrigin,
    ) -> Rc<HttpClient> {
        let debug = self.main.borrow().is_debugged(origin.peer.ip());
        if debug {
            host::error_log::turn_on_debug();
        }
        // In its place at once: each function that returned it would copy it.
        Rc::new(HttpClient {
            debug,
            number: origin.number,
            connection,
            remote: Rc::new(RemoteClient::from_address(origin.peer)),
            proxy: OnceCell::new(),
            tls_port: endpoint.tls,
            asked_name: RefCell::default(),
            accepted: origin.accepted,
            handshake_time: Cell::new(Duration::ZERO),
            requests: Cell::new(0),
            control: origin.control,
            keepalive_timeout: Cell::new(Duration::ZERO),
            keepalive_min_timeout: Cell::new(Duration::ZERO),
            generation: Cell::new(site.generation),
            socket: origin.socket,
            passed_at: origin.passed_at,
            endpoint: RefCell::new(Arc::clone(endpoint)),
        })
    }

    /// Writes a line about a connection that has no request yet, to the log of its default server.
    pub fn log_client(&self, level: LogLevel, client: &HttpClient, message: fmt::Arguments<'_>) {
        let endpoint = client.endpoint.borrow();
        let site = self.site();
        // The client's own endpoint has server numbers of the configuration under which it was last refreshed. After a
        // reload the address is looked up anew, because those numbers may mean other servers.
        let server = match client.generation.get() == site.generation {
            true => Some(client.first_server()),
            false => present_endpoint(client, &site).map(|endpoint| endpoint.default_server),
        };
        let log = match server {
            Some(server) => &site.location(site.server(server).root).core.log,
            None => &self.log(),
        };
        let context = ClientContext {
            client,
            endpoint: &endpoint,
        };
        log.of_client(client.debug).log(level, &context, message);
    }

    /// Writes a line at level `debug` about a connection that has no request.
    #[inline]
    pub fn debug_client(&self, client: &HttpClient, message: fmt::Arguments<'_>) {
        if host::error_log::debug_is_on() {
            self.log_client(LogLevel::Debug, client, message);
        }
    }

    /// Points the client at its listening address in the current configuration, after a reload. `false`: the current
    /// configuration does not listen there any more, so that none of its servers may answer.
    #[inline]
    pub(crate) fn refresh_endpoint(&self, client: &HttpClient) -> bool {
        client.generation.get() == self.generation() || refresh_endpoint(client, &self.site())
    }
}

/// Points the client at its listening address in a configuration; see [`HttpLoop::refresh_endpoint`].
pub(crate) fn refresh_endpoint(client: &HttpClient, site: &HttpSite) -> bool {
    if client.generation.get() == site.generation {
        return true;
    }
    let Some(endpoint) = present_endpoint(client, site) else {
        return false;
    };
    client.generation.set(site.generation);
    *client.endpoint.borrow_mut() = Arc::clone(endpoint);
    // The name from the TLS handshake has to be looked up again, among the servers of the new address.
    client.refresh_asked_name();
    true
}

/// The listening address that the client connected to, if a configuration still has it.
pub(crate) fn present_endpoint<'a>(
    client: &HttpClient,
    site: &'a HttpSite,
) -> Option<&'a Arc<ListenEndpoint>> {
    // Only called where several addresses share a listening socket: it may cost a system call.
    let local = || client.known_local()?.ip();
    net::endpoint::endpoint_of(&site.endpoints, &client.socket, local)
}

struct ClientContext<'a> {
    client: &'a HttpClient,
    endpoint: &'a ListenEndpoint,
}

impl host::error_log::LogContext for ClientContext<'_> {
    fn connection(&self) -> Option<u64> {
        Some(self.client.number)
    }

    fn describe(&self, out: &mut ContextWriter<'_>) {
        out.word("client", &self.client.remote.text);
        out.word("server", self.endpoint.address.to_string().as_bytes());
    }
}
