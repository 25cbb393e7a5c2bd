//! The seam between the binary and what it runs.
//!
//! The binary knows processes, signals and configuration files; an engine (http, stream) knows a
//! protocol. They meet here, and neither sees more of the other. The order of events:
//!
//! ```text
//! configuration is built     (master: to check it; worker: to run it)   no side effects
//!
//! EngineConfiguration
//!   configuration_tests      in a process that is thrown away            nothing is left
//!   commit                   once in the worker                          zones are found or made
//!   start_loop               on each loop: the first configuration       accepting begins
//! LoopEngine
//!   reload                   on each loop: every later configuration     connections stay
//!   adopt_connection         on a loop: a connection of another loop or process
//!   hand_over                graceful end of a loop whose idle connections go elsewhere
//!   stop                     graceful end: no accepts, idle ones closed
//!   shut_down_connections    worker_shutdown_timeout has passed
//!   abort                    a moment later
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
use crate::loop_slots::{ArrivingConnection, LoopSlot, LoopSlots, MovingConnection};
use crate::process::SystemUser;
use crate::worker_group::GroupMember;
use base::sync::Mutex;

/// A trial run of a part of the configuration; the error says why it does not work.
pub type ConfigurationTest = Box<dyn FnOnce() -> Result<(), String>>;

/// One engine's part of one configuration. Immutable, and shared by all loops until the last of them has dropped
/// it.
pub trait EngineConfiguration: Send + Sync {
    /// Such as `http`. A configuration of the same kind replaces this one at a reload.
    fn kind(&self) -> &'static str;

    /// The sockets it wants, one entry for each address.
    fn listeners(&self) -> Vec<ListenerSpec>;

    /// Directories that must exist before the worker starts, owned by its user: temporary files, caches.
    fn directories(&self) -> Vec<PathBuf> {
        Vec::new()
    }

    /// Called once in the worker, before any loop sees this configuration, for what can still make the worker refuse it.
    /// Must change nothing that the configuration in use works with: that one stays if this or another engine refuses.
    /// Not on a loop: may be slow.
    fn accept(&self, zones: &ZoneRegistry) -> Result<(), String> {
        let _ = zones;
        Ok(())
    }

    /// Called once, after all engines have accepted: takes over what the configuration in use shares, such as the state
    /// of upstream groups. Not on a loop: may be slow.
    fn commit(&self, zones: &ZoneRegistry) {
        let _ = zones;
    }

    /// What has to be tried before this configuration is accepted, because only running it shows errors. Each trial
    /// runs in a process of its own, as the worker's user, which exits afterwards.
    fn configuration_tests(&self) -> Vec<ConfigurationTest> {
        Vec::new()
    }

    /// How many servers it has.
    fn server_count(&self) -> usize;

    /// Whether a loop or a request still holds a part of it. The caller holds the configuration, so that its memory is
    /// not freed on a loop.
    fn is_in_use(&self) -> bool;

    /// Called once when the process is about to exit, on no loop, while some loops may still run: saves what the
    /// next start can use. What is not done by `deadline` is skipped.
    fn before_exit(&self, deadline: Instant) {
        let _ = deadline;
    }

    /// Starts to serve on the calling loop.
    fn start_loop(self: Arc<Self>, context: LoopContext) -> Box<dyn LoopEngine>;

    /// For [`LoopEngine::reload`], to get the engine's own type back.
    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
}

/// Takes connections that leave their loop.
#[derive(Clone)]
pub struct ConnectionSink {
    /// How far the connections go.
    pub scope: MoveScope,
    /// The function that takes them.
    pub take: Rc<dyn Fn(MovingConnection)>,
}

/// How far a connection goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveScope {
    /// To another loop of the process.
    Process,
    /// To another process.
    Beyond,
}

/// An engine at work on one loop. Lives as long as the loop, across reloads.
pub trait LoopEngine {
    /// Serves with `configuration` from now on.
    ///
    /// `context.listeners` is the complete set. A socket whose id is known stays as it is, and the new handle is
    /// dropped. One that is missing accepts what its queue still holds, and then closes. A connection asks for the
    /// current configuration at each request. While it is idle it must hold none: otherwise the old configuration
    /// would never end.
    fn reload(&self, configuration: Arc<dyn EngineConfiguration>, context: LoopContext);

    /// Serves a connection that another loop has accepted, or that comes from another loop or process between two
    /// requests.
    fn adopt_connection(&self, arriving: ArrivingConnection);

    /// Accepts in place of loop `index`, which is late, for as long as `still` returns true. With `reuseport`, no
    /// other loop would empty the queues of its sockets.
    fn accept_for_late_loop(&self, index: usize, still: Rc<dyn Fn() -> bool>) {
        let _ = (index, still);
    }

    /// Gives about `count` connections that wait for their next request to `sink`.
    fn move_idle_connections(&self, count: usize, sink: ConnectionSink) {
        let _ = (count, sink);
    }

    /// Closes the connections that have waited longest for their next request: one in `part`, but `least` if there are
    /// as many.
    fn close_idle_connections(&self, part: usize, least: usize) {
        let _ = (part, least);
    }

    /// From now on, until [`LoopEngine::move_busy_connections`], counts the work that each connection causes.
    fn start_counting_work(&self) {}

    /// Gives connections that caused about this part of the loop's work since [`LoopEngine::start_counting_work`] to
    /// `sink`, each at the end of its present request.
    fn move_busy_connections(&self, part: f64, sink: ConnectionSink) {
        let _ = (part, sink);
    }

    /// Ends gracefully, like [`LoopEngine::stop`], but gives each connection that waits for its next request to
    /// `sink`; busy ones follow when their request has ended. What cannot move is closed.
    fn hand_over(&self, sink: ConnectionSink) {
        let _ = sink;
        self.stop();
    }

    /// Before [`LoopEngine::stop`]: a connection that waits for its next request may wait for so much longer, and is closed
    /// after that request. Nothing can take it over, and the request may be on its way.
    fn linger(&self, time: Duration) {
        let _ = time;
    }

    /// Ends gracefully: accepts no more, closes idle connections, lets the others finish.
    fn stop(&self);

    /// Ends all connections in a way that their tasks notice, so that requests end properly and are logged. A
    /// moment later, [`LoopEngine::abort`] ends what is left.
    fn shut_down_connections(&self) {}

    /// Closes everything now.
    fn abort(&self);

    /// The number of open connections. After [`LoopEngine::stop`] the loop ends when there are none.
    fn active(&self) -> usize;
}

/// What an engine gets to know about its loop.
#[derive(Clone)]
pub struct LoopContext {
    /// This loop's number in its process, from 0.
    pub index: usize,
    /// How many loops the process has.
    pub loops: usize,
    /// All loops of the process.
    pub loop_slots: LoopSlots,
    /// This one.
    pub loop_slot: Arc<LoopSlot>,
    /// The settings of the main context.
    pub main: MainSettings,
    /// Main's error log.
    pub log: Logger,
    /// State that survives reloads.
    pub zones: ZoneRegistry,
    /// The sockets to accept from.
    pub listeners: Vec<LoopListener>,
}

/// How long requests whose connections were cut ([`LoopEngine::shut_down_connections`]) may take to end and be logged.
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
pub struct MainSettings {
    /// `weir`, or `nginx` when started under that name.
    pub program: &'static str,
    /// The version shown to clients: `nginx/1.31.5` or `weir/0.1.0`.
    pub version: &'static str,
    /// Where relative paths start.
    pub prefix: PathBuf,
    /// How many loops there will be, in all groups.
    pub worker_processes: usize,
    /// How many worker processes they are divided among.
    pub worker_groups: usize,
    /// How many connections each loop may have.
    pub worker_connections: usize,
    /// Accept all that is queued at once, instead of a few.
    pub multi_accept: bool,
    /// The user of the worker; `None` if the user does not change.
    pub user: Option<SystemUser>,
    /// The pools that `thread_pool` names, `default` always among them.
    pub thread_pools: Vec<ThreadPool>,
    /// Clients whose connections log at debug level: network and prefix length.
    pub debug_connections: Vec<(IpAddr, u8)>,
    /// Whether all clients of unix sockets log at debug level.
    pub debug_unix_connections: bool,
    /// The time limit of a graceful stop; zero means none.
    pub shutdown_timeout: Duration,
    /// The kernel chooses among the UDP sockets of an address by what is in datagrams (`quic_bpf`).
    pub steers_datagrams: bool,
    /// The configuration is only tested: nothing will be served.
    pub testing: bool,
}

impl MainSettings {
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

impl Default for MainSettings {
    fn default() -> Self {
        MainSettings {
            program: "weir",
            version: "weir",
            prefix: PathBuf::new(),
            worker_processes: 1,
            worker_groups: 1,
            worker_connections: 512,
            multi_accept: false,
            user: None,
            thread_pools: vec![ThreadPool::default()],
            debug_connections: Vec::new(),
            debug_unix_connections: false,
            shutdown_timeout: Duration::ZERO,
            steers_datagrams: true,
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

/// State that outlives a configuration: counters, caches, upstream groups, by type and name.
#[derive(Clone)]
pub struct ZoneRegistry {
    by_name: Arc<Mutex<HashMap<ZoneKey, Arc<dyn Any + Send + Sync>>>>,
    loops: Arc<AtomicUsize>,
    all_loops: Arc<AtomicUsize>,
    group: Arc<GroupMember>,
}

impl Default for ZoneRegistry {
    fn default() -> Self {
        ZoneRegistry::of_group(Arc::new(GroupMember::alone()))
    }
}

/// The type of a zone and its name.
type ZoneKey = (TypeId, String);

impl ZoneRegistry {
    /// The zones of this worker process: other groups have their own.
    pub fn of_group(group: Arc<GroupMember>) -> ZoneRegistry {
        ZoneRegistry {
            by_name: Arc::default(),
            loops: Arc::new(AtomicUsize::new(1)),
            all_loops: Arc::new(AtomicUsize::new(1)),
            group,
        }
    }

    /// This process as one of the server's worker processes.
    pub fn group(&self) -> &Arc<GroupMember> {
        &self.group
    }

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

    /// The zone of this type and name, if there is one: for a configuration that may still be refused.
    pub fn get<T: Any + Send + Sync>(&self, name: &str) -> Option<Arc<T>> {
        let zones = self.by_name.lock();
        let zone = zones.get(&(TypeId::of::<T>(), name.to_owned()))?;
        zone.clone().downcast().ok()
    }

    /// Replaces the zone of this type and name, as when a reload changes its size.
    pub fn replace<T: Any + Send + Sync>(&self, name: &str, zone: Arc<T>) {
        let mut zones = self.by_name.lock();
        zones.insert((TypeId::of::<T>(), name.to_owned()), zone);
    }

    /// How many loops of this process share the zones, for limits that are configured per loop.
    pub fn loops(&self) -> usize {
        self.loops.load(Relaxed)
    }

    /// How many loops there are in all groups.
    pub fn all_loops(&self) -> usize {
        self.all_loops.load(Relaxed)
    }

    /// The number of this process's first loop among them.
    pub fn first_loop(&self) -> usize {
        self.group.place().loops(self.all_loops()).start
    }

    /// Sets the number of loops, in all groups, of the configuration that is committed next.
    pub fn set_loops(&self, all: usize) {
        let own = self.group.place().loops(all).len();
        self.loops.store(own.max(1), Relaxed);
        self.all_loops.store(all.max(1), Relaxed);
    }

    /// Drops zones that no configuration names any more: only this map refers to them.
    pub fn prune_unused(&self) {
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
        let zones = ZoneRegistry::default();
        let one = zones.get_or_create("a", || 1_u32);
        assert!(Arc::ptr_eq(
            &one,
            &zones.clone().get_or_create("a", || 2_u32)
        ));
        assert_eq!(*zones.get_or_create("a", || 3_u64), 3);
        drop(one);
        zones.prune_unused();
        assert_eq!(*zones.get_or_create("a", || 4_u32), 4);
    }
}
