//! What is going on in a group: shared by all loops, kept over reloads.
//!
//! One lock guards it; it is held for the length of a choice, and never while anything waits.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bstr::BString;
use rt::net::Address;
use rt::sync::remote_oneshot;

use super::balance::{Balancer, Memory, Method, inflight_begins, inflight_ends};
use super::group::{Metric, Queue, ResolvedAt, Server, Settings};
use super::idle::Idle;
use super::peer::{Health, Load, Peer, PeerStatus, average, milliseconds};
use super::selection::{Lease, NoPeer, Outcome, Released, Times};
use super::sticky::{Create, Sessions, StickyMethod};

/// How often waiters are looked at though nobody released anything: a server may have come back by itself.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Addresses that one name may have in a group.
const MAX_RESOLVED: usize = 1024;

/// See the module's page.
pub struct GroupState {
    busy: Mutex<Busy>,
    /// How many tries a request has, read without the lock.
    tries: AtomicU32,
    idle: Idle,
    sessions: Mutex<Option<Sessions>>,
}

/// What the lock guards.
struct Busy {
    servers: Vec<Server>,
    /// What is known of the names that are looked up while running: by host and service, so that it still holds when a
    /// reload changes the port.
    resolved: HashMap<(BString, BString), Vec<Resolved>>,
    balancer: Balancer,
    queue: Option<Queue>,
    /// Who waits, in the order of their tickets.
    waiters: VecDeque<Waiter>,
    next_ticket: u64,
}

/// An address that a name was found to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// The address, with its port.
    pub address: Address,
    /// The weight of an SRV record; 1 otherwise.
    pub weight: u32,
    /// An SRV record of a priority that is not the best: used as `backup` servers are.
    pub backup: bool,
    /// The name in the SRV record; empty otherwise.
    pub name: BString,
}

/// A request in the queue.
struct Waiter {
    ticket: u64,
    memory: Memory,
    sender: remote_oneshot::Sender<Grant>,
}

/// What a waiter gets: its memory back, and what came of it.
type Grant = (Memory, Result<Lease, NoPeer>);

impl GroupState {
    /// The state of a group that has no servers yet.
    pub fn new() -> GroupState {
        GroupState {
            busy: Mutex::new(Busy {
                servers: Vec::new(),
                resolved: HashMap::new(),
                balancer: Balancer::new(Method::RoundRobin, Vec::new(), Vec::new(), 1),
                queue: None,
                waiters: VecDeque::new(),
                next_ticket: 0,
            }),
            tries: AtomicU32::new(0),
            idle: Idle::default(),
            sessions: Mutex::new(None),
        }
    }

    /// Follows a configuration, of so many loops: servers that stay keep their numbers, the round begins anew.
    pub fn configure(self: &Arc<Self>, settings: &Settings, loops: usize) {
        self.idle.configure(settings.keepalive, loops);
        self.configure_sessions(settings);
        let mut busy = self.busy();
        let wanted = settings
            .servers
            .iter()
            .filter_map(|server| server.resolve.as_ref())
            .map(key);
        let wanted: HashSet<_> = wanted.collect();
        busy.resolved.retain(|key, _| wanted.contains(key));
        busy.servers.clone_from(&settings.servers);
        busy.queue = settings.queue;
        busy.rebuild(Method::of(&settings.balance), Round::Anew);
        self.tries.store(busy.balancer.tries(), Ordering::Relaxed);
        self.serve(&mut busy);
    }

    fn configure_sessions(&self, settings: &Settings) {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        match settings.sticky.as_ref().map(|sticky| &sticky.method) {
            Some(StickyMethod::Learn(learn)) => {
                let timeout = milliseconds(learn.timeout);
                match &mut *sessions {
                    Some(sessions) => sessions.set_timeout(timeout),
                    none => *none = Some(Sessions::new(learn.size, timeout)),
                }
            }
            Some(StickyMethod::Cookie(_) | StickyMethod::Route) | None => *sessions = None,
        }
    }

    /// Says which addresses a name has now. Those that stay keep their connections, numbers and place in the round.
    pub fn set_resolved(self: &Arc<Self>, at: &ResolvedAt, mut addresses: Vec<Resolved>) {
        addresses.truncate(MAX_RESOLVED);
        let mut busy = self.busy();
        if busy.resolved.get(&key(at)) == Some(&addresses) {
            return;
        }
        busy.resolved.insert(key(at), addresses);
        let method = busy.balancer.method;
        busy.rebuild(method, Round::GoesOn);
        self.tries.store(busy.balancer.tries(), Ordering::Relaxed);
        self.serve(&mut busy);
    }

    /// The addresses that a name had when it was last looked up.
    pub fn resolved(&self, at: &ResolvedAt) -> Option<Vec<Resolved>> {
        self.busy().resolved.get(&key(at)).cloned()
    }

    /// All peers.
    pub fn peers(&self) -> Vec<Arc<Peer>> {
        self.busy()
            .balancer
            .peers()
            .map(|(peer, _)| peer.clone())
            .collect()
    }

    /// The numbers of all peers.
    pub fn status(&self) -> Vec<PeerStatus> {
        let now = now();
        self.busy()
            .balancer
            .peers()
            .map(|(peer, backup)| peer.status(backup, now))
            .collect()
    }

    /// Says what active checks found. A peer that comes back starts slowly if it is told to.
    pub fn set_health(self: &Arc<Self>, peer: &Peer, health: Health) {
        let mut busy = self.busy();
        if peer.health() == Health::Unhealthy && health == Health::Healthy {
            peer.load.started.set(now());
        }
        peer.set_health(health);
        self.serve(&mut busy);
    }

    /// How many requests wait.
    pub fn waiting(&self) -> usize {
        self.busy().waiters.len()
    }

    /// How many connections are idle.
    pub fn idle_connections(&self) -> usize {
        self.idle.len()
    }

    /// Remembers the server of a session for `sticky learn`: of the one that the response created, else of the one that
    /// the request named.
    pub fn learn(&self, created: &[u8], requested: &[u8], peer: &Peer) {
        let (session, create) = match (created, requested) {
            (b"", b"") => return,
            (b"", requested) => (requested, Create::No),
            (created, _) => (created, Create::Yes),
        };
        if let Some(sessions) = &mut *self.sessions.lock().unwrap_or_else(PoisonError::into_inner) {
            sessions.learn(session, create, peer.sid(), now());
        }
    }

    /// The identifier of the server that a request is bound to.
    pub(crate) fn server_of(&self, sticky: &[u8]) -> Option<BString> {
        if sticky.is_empty() {
            return None;
        }
        match &mut *self.sessions.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(sessions) => sessions.find(sticky, now()),
            None => Some(sticky.into()),
        }
    }

    pub(crate) fn tries(&self) -> u32 {
        self.tries.load(Ordering::Relaxed)
    }

    pub(crate) fn idle(&self) -> &Idle {
        &self.idle
    }

    pub(crate) fn pick(self: &Arc<Self>, memory: &mut Memory) -> Result<Lease, NoPeer> {
        let mut busy = self.busy();
        if !busy.waiters.is_empty() {
            // Nobody overtakes those who wait, if a server came back while nobody looked.
            self.serve(&mut busy);
        }
        self.choose(&mut busy, memory, now())
    }

    fn choose(
        self: &Arc<Self>,
        busy: &mut Busy,
        memory: &mut Memory,
        now: i64,
    ) -> Result<Lease, NoPeer> {
        let Some(peer) = busy.balancer.choose(memory, now) else {
            let wait = busy.balancer.is_worth_waiting(memory, now);
            return Err(if wait {
                NoPeer::Busy
            } else {
                NoPeer::NoneAlive
            });
        };
        peer.load.connections.add(1);
        peer.load.requests.add(1);
        let inflight = matches!(
            busy.balancer.method,
            Method::LeastTime { inflight: true, .. }
        );
        if inflight {
            inflight_begins(&peer, now);
        }
        Ok(Lease::new(self.clone(), peer, inflight))
    }

    /// Waits in the queue, if there is one.
    pub(crate) async fn wait(self: Arc<Self>, memory: &mut Memory) -> Result<Lease, NoPeer> {
        let (mut place, mut receiver, timeout) = self.enqueue(memory)?;
        let deadline = rt::now() + timeout;
        loop {
            let left = deadline.saturating_duration_since(rt::now());
            match rt::timeout(left.min(LOOK_AGAIN), &mut receiver).await {
                Ok(Ok((back, result))) => {
                    *memory = back;
                    place.left = true;
                    return result;
                }
                Ok(Err(rt::sync::Closed)) => return Err(NoPeer::NoneAlive),
                Err(_) if left <= LOOK_AGAIN => return Err(NoPeer::QueueTimeout),
                Err(_) => self.serve(&mut self.busy()),
            }
        }
    }

    fn enqueue(
        self: &Arc<Self>,
        memory: &mut Memory,
    ) -> Result<(Place, remote_oneshot::Receiver<Grant>, Duration), NoPeer> {
        let mut busy = self.busy();
        let queue = busy.queue.ok_or(NoPeer::Busy)?;
        if busy.waiters.len() >= queue.length {
            return Err(NoPeer::QueueFull);
        }
        let ticket = busy.next_ticket;
        busy.next_ticket += 1;
        let (sender, receiver) = remote_oneshot::channel();
        busy.waiters.push_back(Waiter {
            ticket,
            memory: std::mem::take(memory),
            sender,
        });
        // What was released between the choice and now.
        self.serve(&mut busy);
        Ok((
            Place {
                state: self.clone(),
                ticket,
                left: false,
            },
            receiver,
            queue.timeout,
        ))
    }

    /// Gives peers that have become free to those who wait, in their order.
    fn serve(self: &Arc<Self>, busy: &mut Busy) {
        let now = now();
        while let Some(mut waiter) = busy.waiters.pop_front() {
            let result = self.choose(busy, &mut waiter.memory, now);
            if let Err(NoPeer::Busy) = result {
                busy.waiters.push_front(waiter);
                return;
            }
            if let Err((_, Ok(lease))) = waiter.sender.send((waiter.memory, result)) {
                // Its client has left meanwhile.
                let peer = lease.into_peer();
                busy.free(
                    &peer,
                    None,
                    matches!(
                        busy.balancer.method,
                        Method::LeastTime { inflight: true, .. }
                    ),
                    now,
                );
            }
        }
    }

    /// The end of a lease. The flag says that the group has only this peer.
    pub(crate) fn release(
        self: &Arc<Self>,
        peer: &Peer,
        outcome: Option<Outcome>,
        inflight: bool,
    ) -> (Released, bool) {
        let mut busy = self.busy();
        let released = busy.free(peer, outcome, inflight, now());
        let single = busy.balancer.is_single();
        if !busy.waiters.is_empty() {
            self.serve(&mut busy);
        }
        (released, single)
    }

    pub(crate) fn head_arrived(
        &self,
        peer: &Peer,
        took: Duration,
        inflight: bool,
        still: &mut bool,
    ) {
        let busy = self.busy();
        *still = inflight;
        if let Method::LeastTime {
            metric: Metric::Header,
            inflight: true,
        } = busy.balancer.method
        {
            let took = milliseconds(took);
            average(&peer.load.header_time, took);
            if inflight {
                inflight_ends(peer, took, now());
                *still = false;
            }
        }
    }

    /// See [`Lease::connected`].
    pub(crate) fn connected(&self, peer: &Peer, took: Duration) {
        let _busy = self.busy();
        let load = &peer.load;
        average(&load.connect_time, milliseconds(took));
        if load.accessed.get() < load.checked.get() && load.fails.get() > 0 {
            if peer.max_fails > 0 && load.fails.get() >= peer.max_fails {
                load.started.set(now());
            }
            load.fails.set(0);
        }
    }

    fn busy(&self) -> MutexGuard<'_, Busy> {
        // Nothing panics while it holds the lock; and if something did, the numbers would still be numbers.
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for GroupState {
    fn default() -> Self {
        GroupState::new()
    }
}

impl fmt::Debug for GroupState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupState")
            .field("peers", &self.status())
            .field("waiting", &self.waiting())
            .finish_non_exhaustive()
    }
}

/// A place in the queue, left when this is dropped.
struct Place {
    state: Arc<GroupState>,
    ticket: u64,
    left: bool,
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.left {
            return;
        }
        let mut busy = self.state.busy();
        if let Ok(at) = busy
            .waiters
            .binary_search_by_key(&self.ticket, |waiter| waiter.ticket)
        {
            busy.waiters.remove(at);
        }
    }
}

/// Whether peers that stay keep their place in the round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Round {
    /// No: as after a start.
    Anew,
    /// Yes.
    GoesOn,
}

impl Busy {
    /// Makes the peers of the servers and of what is resolved.
    fn rebuild(&mut self, method: Method, round: Round) {
        let old: Vec<Arc<Peer>> = self
            .balancer
            .peers()
            .map(|(peer, _)| peer.clone())
            .collect();
        let (mut primary, mut backup) = (Vec::new(), Vec::new());
        let mut add = |line: usize, server: &Server, address: &Address, resolved: Resolve| {
            let peer = successor(&old, line, server, address, round, resolved);
            if server.backup {
                backup.push(peer)
            } else {
                primary.push(peer)
            }
        };
        for (line, server) in self.servers.iter().enumerate() {
            for address in &server.addresses {
                add(line, server, address, Resolve::AtStart);
            }
        }
        // After the others, as in nginx: their order is the order of the round.
        for (line, server) in self.servers.iter().enumerate() {
            let Some(at) = &server.resolve else { continue };
            for found in self.resolved.get(&key(at)).into_iter().flatten() {
                if let Some(server) = server_of_record(server, found) {
                    add(
                        line,
                        &server,
                        &address_of_record(at, found),
                        Resolve::WhileRunning,
                    );
                }
            }
        }
        self.balancer = Balancer::new(method, primary, backup, next_id());
    }

    /// Counts the end of an exchange.
    fn free(
        &mut self,
        peer: &Peer,
        outcome: Option<Outcome>,
        inflight: bool,
        now: i64,
    ) -> Released {
        let load = &peer.load;
        load.connections.add(-1);
        let mut released = Released { disabled: false };
        let Some(Outcome::Ok(times) | Outcome::Failed(times) | Outcome::Next(times)) = outcome
        else {
            if inflight {
                inflight_ends(peer, 0, now);
            }
            return released;
        };
        if inflight {
            inflight_ends(peer, times.response.map_or(0, milliseconds), now);
        }
        if let Some(Outcome::Ok(times)) = outcome {
            self.count_times(peer, times);
        }
        match outcome {
            _ if self.balancer.is_single() => load.fails.set(0),
            Some(Outcome::Failed(_)) => released.disabled = fail(peer, now),
            _ => {
                // It failed before it was checked last: this was the check, and it passed.
                if load.accessed.get() < load.checked.get() && load.fails.get() > 0 {
                    if peer.max_fails > 0 && load.fails.get() >= peer.max_fails {
                        load.started.set(now);
                    }
                    load.fails.set(0);
                }
            }
        }
        released
    }

    fn count_times(&self, peer: &Peer, times: Times) {
        let load = &peer.load;
        if let Some(connect) = times.connect {
            average(&load.connect_time, milliseconds(connect));
        }
        // A response without a head is none.
        let Some(header) = times.header else { return };
        if let Some(response) = times.response {
            average(&load.response_time, milliseconds(response));
        }
        // Counted when the head arrived.
        if !matches!(
            self.balancer.method,
            Method::LeastTime {
                metric: Metric::Header,
                inflight: true
            }
        ) {
            average(&load.header_time, milliseconds(header));
        }
    }
}

/// Counts a failure; whether it makes the peer unavailable.
fn fail(peer: &Peer, now: i64) -> bool {
    let load = &peer.load;
    let fails = load.fails.add(1);
    load.accessed.set(now);
    load.checked.set(now);
    if peer.max_fails == 0 {
        return false;
    }
    let lost = peer.weight / peer.max_fails * super::peer::UNIT;
    peer.effective_weight
        .set((peer.effective_weight.get() - lost).max(0));
    fails >= peer.max_fails
}

/// When an address became known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resolve {
    AtStart,
    WhileRunning,
}

/// The peer for an address: the one that there is, one with its numbers, or a new one.
fn successor(
    old: &[Arc<Peer>],
    line: usize,
    server: &Server,
    address: &Address,
    round: Round,
    resolve: Resolve,
) -> Arc<Peer> {
    let same = |peer: &&Arc<Peer>| peer.address() == address && *peer.server() == server.name;
    let known = old
        .iter()
        .filter(same)
        .find(|peer| peer.line == line)
        .or_else(|| old.iter().find(same));
    match known {
        Some(peer)
            if round == Round::GoesOn
                && peer.line == line
                && peer.weight == i64::from(server.weight) =>
        {
            peer.clone()
        }
        Some(peer) => Arc::new(Peer::new(
            next_id(),
            line,
            server,
            address.clone(),
            peer.load.clone(),
        )),
        None => {
            let load = Load::default();
            if resolve == Resolve::WhileRunning && !old.is_empty() {
                load.started.set(now());
            }
            Arc::new(Peer::new(
                next_id(),
                line,
                server,
                address.clone(),
                Arc::new(load),
            ))
        }
    }
}

/// What a name's addresses are kept under.
fn key(at: &ResolvedAt) -> (BString, BString) {
    (at.host.clone(), at.service.clone())
}

/// The address of a record: the port is the line's, but for SRV records, which bring theirs.
fn address_of_record(at: &ResolvedAt, found: &Resolved) -> Address {
    match &found.address {
        Address::Inet(inet) if at.service.is_empty() => SocketAddr::new(inet.ip(), at.port).into(),
        address => address.clone(),
    }
}

/// The server as one of its SRV records changes it; `None` for a record of lower priority of a server that is backup
/// already.
fn server_of_record(server: &Server, found: &Resolved) -> Option<Server> {
    let mut server = server.clone();
    if server
        .resolve
        .as_ref()
        .is_none_or(|at| at.service.is_empty())
    {
        return Some(server);
    }
    if found.backup && server.backup {
        return None;
    }
    server.backup |= found.backup;
    server.name.clone_from(&found.name);
    if server.weight == 1 {
        server.weight = found.weight.max(1);
    }
    Some(server)
}

fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Milliseconds since an epoch that lies long before the start: a time of 0 is long ago.
fn now() -> i64 {
    const EPOCH: i64 = 1 << 40;
    EPOCH.saturating_add_unsigned(rt::monotonic_millis())
}
