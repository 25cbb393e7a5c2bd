//! The seam between the binary and what it runs.
//!
//! The binary knows processes, signals and configuration files; an engine (http, stream) knows a
//! protocol. They meet here, and neither sees more of the other. The order of events:
//!
//! ```text
//! configuration is built    (master: to check it; worker: to run it)   no side effects
//! Configuration::trials     in a process that is thrown away            nothing is left
//! Configuration::commit     once in the worker                          zones are found or made
//! Configuration::start_loop on each loop: the first configuration       accepting begins
//! LoopEngine::reload        on each loop: every later configuration     connections stay
//! LoopEngine::adopt         on a loop: a connection of another loop or process
//! LoopEngine::hand_over     graceful end of a loop whose idle connections go elsewhere
//! LoopEngine::stop          graceful end: no accepts, idle ones closed
//! LoopEngine::cut           worker_shutdown_timeout has passed
//! LoopEngine::abort         a moment later
//! ```

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::error_log::Logger;
use crate::listen::{ListenAddress, ListenOptions};
use crate::process::User;
use crate::seats::{Arriving, Parcel, Seat, Seats};
use base::sync::Mutex;

/// Something that shows whether a configuration works; the error says why not.
pub type Trial = Box<dyn FnOnce() -> Result<(), String>>;

/// One engine's part of one configuration. Immutable; shared by all loops until nobody uses it.
pub trait Configuration: Send + Sync {
    /// Such as `http`. A configuration of the same kind replaces this one at a reload.
    fn kind(&self) -> &'static str;

    /// The sockets it wants, one entry for each address.
    fn listeners(&self) -> Vec<ListenerSpec>;

    /// Directories that must exist before the worker starts, owned by its user: temporary files, caches.
    fn directories(&self) -> Vec<PathBuf> {
        Vec::new()
    }

    /// Called once in the worker, before any loop sees this configuration. Not on a loop: may be slow.
    fn commit(&self, zones: &Zones) -> Result<(), String> {
        let _ = zones;
        Ok(())
    }

    /// What has to be tried before this configuration is taken on, because only running it tells. Each is run in a process
    /// of its own that ends afterwards, as the worker's user.
    fn trials(&self) -> Vec<Trial> {
        Vec::new()
    }

    /// Called once when the process is about to end, off the loops, some of which may still run: what a next start would
    /// be glad of. What is not done by `deadline` is left.
    fn end(&self, deadline: Instant) {
        let _ = deadline;
    }

    /// Begins to serve on the calling loop.
    fn start_loop(self: Arc<Self>, context: LoopContext) -> Box<dyn LoopEngine>;

    /// For [`LoopEngine::reload`], to get the engine's own type back.
    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
}

/// Takes connections that leave their loop.
#[derive(Clone)]
pub struct ParcelSink {
    /// How far they go.
    pub reach: Reach,
    /// What takes them.
    pub take: Rc<dyn Fn(Parcel)>,
}

/// How far a connection goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// To another loop of the process.
    Process,
    /// To another process.
    Beyond,
}

/// An engine at work on one loop. Lives as long as the loop, across reloads.
pub trait LoopEngine {
    /// Serves by `configuration` from now on.
    ///
    /// `context.listeners` is the complete set. One whose id is known goes on as it is (the new handle is
    /// dropped); one that is missing takes what its queue still holds, then closes. A connection asks
    /// for the current configuration at each request; while idle it holds none, or the old generation
    /// would never end.
    fn reload(&self, configuration: Arc<dyn Configuration>, context: LoopContext);

    /// Takes in a connection that another loop has accepted, or that has come from another loop or
    /// process between two requests.
    fn adopt(&self, arriving: Arriving);

    /// Accepts for the loop of number `index`, which is late, for as long as `still` says so. Its own
    /// sockets (`reuseport`) have a queue that nobody else empties.
    fn rescue(&self, index: usize, still: Rc<dyn Fn() -> bool>) {
        let _ = (index, still);
    }

    /// Gives about so many of the connections that wait for their next request to `sink`.
    fn shed(&self, count: usize, sink: ParcelSink) {
        let _ = (count, sink);
    }

    /// From now on, until [`LoopEngine::shed_work`], what each connection makes the loop do is counted.
    fn note_work(&self) {}

    /// Gives connections that did about this part of the loop's work since [`LoopEngine::note_work`] to `sink`, each at
    /// the end of its present request.
    fn shed_work(&self, part: f64, sink: ParcelSink) {
        let _ = (part, sink);
    }

    /// Ends gracefully, like [`LoopEngine::stop`], but gives each connection that waits for its next
    /// request to `sink`; those that serve one follow when it has ended. What can not move is closed.
    fn hand_over(&self, sink: ParcelSink) {
        let _ = sink;
        self.stop();
    }

    /// Ends gracefully: accepts no more, closes idle connections, lets the others finish.
    fn stop(&self);

    /// Ends all connections in a way that whoever serves them notices, so that requests come to their end and are logged.
    /// [`LoopEngine::abort`] follows for what has not ended after a moment.
    fn cut(&self) {}

    /// Closes everything now.
    fn abort(&self);

    /// Connections that are open. The loop ends after [`LoopEngine::stop`] when none is left.
    fn active(&self) -> usize;
}

/// What a loop gives an engine.
#[derive(Clone)]
pub struct LoopContext {
    /// This loop's number, from 0.
    pub index: usize,
    /// How many loops there are.
    pub loops: usize,
    /// All loops.
    pub seats: Seats,
    /// This one.
    pub seat: Arc<Seat>,
    /// The settings of the main context.
    pub main: Main,
    /// Main's error log.
    pub log: Logger,
    /// What survives reloads.
    pub zones: Zones,
    /// The sockets to accept from.
    pub listeners: Vec<LoopListener>,
}

/// How long requests whose connections were cut ([`LoopEngine::cut`]) may take to end and be logged.
pub const CUT_GRACE: Duration = Duration::from_millis(300);

/// A socket that a configuration wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerSpec {
    /// Where.
    pub address: ListenAddress,
    /// How.
    pub options: ListenOptions,
}

/// Names an open listening socket on one loop; the same socket keeps its id over reloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerId(pub u64);

/// A listening socket as one loop sees it.
#[derive(Clone)]
pub struct LoopListener {
    /// Which socket.
    pub id: ListenerId,
    /// What the configuration said.
    pub spec: Arc<ListenerSpec>,
    /// Which of several sockets with `reuseport`; 0 for one that the loops share.
    pub member: usize,
    /// The descriptor: of a socket of its own with `reuseport`, else of the shared one.
    pub descriptor: Arc<OwnedFd>,
    /// All sockets of this address, for a loop that must help out another.
    pub members: Arc<[Arc<OwnedFd>]>,
}

/// What the main and `events` contexts say, for engines.
#[derive(Clone, Debug)]
pub struct Main {
    /// `weir`, or `nginx` when started under that name.
    pub program: &'static str,
    /// The version shown to clients: `nginx/1.31.5` or `weir/0.1.0`.
    pub version: &'static str,
    /// Where relative paths start.
    pub prefix: PathBuf,
    /// How many loops there will be.
    pub worker_processes: usize,
    /// How many connections each loop may have.
    pub worker_connections: usize,
    /// Accept all that is queued at once, instead of a few.
    pub multi_accept: bool,
    /// The user of the worker; `None` when it stays who it is.
    pub user: Option<User>,
    /// The pools that `thread_pool` names, `default` always among them.
    pub thread_pools: Vec<ThreadPool>,
    /// Clients whose connections log at debug level: network and prefix length.
    pub debug_connections: Vec<(IpAddr, u8)>,
    /// The same for all clients by unix sockets.
    pub debug_unix_connections: bool,
    /// How long a graceful stop may take; zero is without end.
    pub shutdown_timeout: Duration,
    /// The configuration is only tested: nothing will be served.
    pub testing: bool,
}

impl Main {
    /// Whether `debug_connection` names this client; `None` is one by a unix socket.
    pub fn is_debugged(&self, client: Option<IpAddr>) -> bool {
        if client.is_none() {
            return self.debug_unix_connections;
        }
        self.debug_connections
            .iter()
            .any(|&(network, bits)| match (network, client) {
                (IpAddr::V4(network), Some(IpAddr::V4(client))) => {
                    let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
                    u32::from(network) & mask == u32::from(client) & mask
                }
                (IpAddr::V6(network), Some(IpAddr::V6(client))) => {
                    let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
                    u128::from(network) & mask == u128::from(client) & mask
                }
                _ => false,
            })
    }
}

impl Default for Main {
    fn default() -> Self {
        Main {
            program: "weir",
            version: "weir",
            prefix: PathBuf::new(),
            worker_processes: 1,
            worker_connections: 512,
            multi_accept: false,
            user: None,
            thread_pools: vec![ThreadPool::default()],
            debug_connections: Vec::new(),
            debug_unix_connections: false,
            shutdown_timeout: Duration::ZERO,
            testing: false,
        }
    }
}

/// One `thread_pool` line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadPool {
    /// The name that `aio threads=` gives.
    pub name: String,
    /// How many threads.
    pub threads: usize,
    /// How many operations may wait.
    pub max_queue: usize,
}

impl Default for ThreadPool {
    fn default() -> Self {
        ThreadPool {
            name: "default".to_owned(),
            threads: 32,
            max_queue: 65536,
        }
    }
}

/// What lives longer than a configuration: counters, caches, states of upstream servers, by type and name.
#[derive(Clone)]
pub struct Zones {
    by_name: Arc<Mutex<HashMap<ZoneKey, Arc<dyn Any + Send + Sync>>>>,
    loops: Arc<AtomicUsize>,
}

impl Default for Zones {
    fn default() -> Self {
        Zones {
            by_name: Arc::default(),
            loops: Arc::new(AtomicUsize::new(1)),
        }
    }
}

/// The type of a zone and its name.
type ZoneKey = (TypeId, String);

impl Zones {
    /// The zone of this type and name, made by `create` the first time.
    pub fn get_or_create<T: Any + Send + Sync>(
        &self,
        name: &str,
        create: impl FnOnce() -> T,
    ) -> Arc<T> {
        let mut zones = self.by_name.lock();
        let zone = zones
            .entry((TypeId::of::<T>(), name.to_owned()))
            .or_insert_with(|| Arc::new(create()));
        zone.clone()
            .downcast()
            .unwrap_or_else(|_| unreachable!("the key holds the type"))
    }

    /// Puts `zone` in the place of the one of its type and name, as when a reload changes its size.
    pub fn replace<T: Any + Send + Sync>(&self, name: &str, zone: Arc<T>) {
        let mut zones = self.by_name.lock();
        zones.insert((TypeId::of::<T>(), name.to_owned()), zone);
    }

    /// How many loops share the zones: for a bound that users give for each.
    pub fn loops(&self) -> usize {
        self.loops.load(Relaxed)
    }

    /// Says how many loops the configuration has that is committed next.
    pub fn set_loops(&self, loops: usize) {
        self.loops.store(loops.max(1), Relaxed);
    }

    /// Forgets zones that nobody else holds: those that no configuration names any more.
    pub fn prune(&self) {
        let mut zones = self.by_name.lock();
        // One reference is the map's own.
        zones.retain(|_, zone| Arc::strong_count(zone) > 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zone_is_found_again_by_type_and_name() {
        let zones = Zones::default();
        let one = zones.get_or_create("a", || 1_u32);
        assert!(Arc::ptr_eq(
            &one,
            &zones.clone().get_or_create("a", || 2_u32)
        ));
        assert_eq!(*zones.get_or_create("a", || 3_u64), 3);
        drop(one);
        zones.prune();
        assert_eq!(*zones.get_or_create("a", || 4_u32), 4);
    }
}
