//! The state of a group: shared by all loops, and kept over reloads.
//!
//! One lock guards it. It is held for the length of one choice and never across a wait, so loops contend for
//! microseconds at most.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base::sync::{Mutex, MutexGuard};
use bstr::BString;
use host::worker_group::WorkerGroup;

use super::balance::{
    AfterHead, BalanceMethod, GroupBalancer, PickState, RequestObserver, RoundRobin,
};
use super::idle::IdlePool;
use super::lease::{LeaseObservation, PeerLease};
use super::outcome::{NoPeer, PeerOutcome, PeerTraffic, ReleasedPeer, UpstreamTimes};
use super::peer::{PeerHealth, PeerStatus, UpstreamPeer, milliseconds, now_ms};
use super::peer_list::{PeerList, PeerRound, next_id};
use super::peer_load::{PeerLoad, moving_average};
use super::queue::WaitQueue;
use super::server::{NameToResolve, ResolvedAddress, UpstreamServer};
use super::settings::{GroupSettings, QueueSettings};
use super::sticky::{CreateSession, SessionSum, StickyMethod, StickySessions};

/// The most addresses of one name in a group.
const MAX_RESOLVED: usize = 1024;

/// The most servers that a group can be given while the server runs, those of the configuration included.
const MAX_SERVERS: usize = 16_384;

/// Up to this many servers the peers are built again for each name that has changed. With more the changes of a while are
/// gathered: a thousand names that are found one after the other would keep the loop busy for a second.
const FEW_SERVERS: usize = 32;

/// That while.
const GATHERED: Duration = Duration::from_millis(10);

/// The group has as many servers as it can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyServers;

/// The state of a group.
pub struct GroupState {
    locked: Mutex<LockedState>,
    /// The number of tries of a request. A copy outside the lock: every request reads it.
    tries: AtomicU32,
    /// Empty until a configuration has `keepalive`.
    idle: OnceLock<Arc<IdlePool>>,
    /// The sessions of `sticky learn`. A lock of its own: they are found before a choice and learned after it.
    sessions: Mutex<Option<StickySessions>>,
}

/// The part under the lock.
pub(super) struct LockedState {
    servers: Arc<Vec<UpstreamServer>>,
    /// The number of each server, for those who change them. None is given twice while the configuration stays.
    ids: Vec<u32>,
    next_id: u32,
    /// This process among those that the server consists of: each has its part of `max_conns`.
    place: WorkerGroup,
    /// Peers that are gone, and have requests under way.
    gone: Vec<Arc<PeerLoad>>,
    /// The addresses of names that are resolved at run time, by [`NameToResolve::key`].
    resolved: HashMap<(BString, BString), Vec<ResolvedAddress>>,
    /// Addresses have changed, and a task is about to build the peers again.
    is_behind_names: bool,
    method: Option<Arc<dyn BalanceMethod>>,
    observer: Option<&'static dyn RequestObserver>,
    balancer: GroupBalancer,
    pub(super) queue: Option<QueueSettings>,
    pub(super) waiting: WaitQueue,
}

impl GroupState {
    /// The state of a group that has no servers yet.
    pub fn new() -> GroupState {
        GroupState {
            locked: Mutex::new(LockedState {
                servers: Arc::default(),
                ids: Vec::new(),
                next_id: 0,
                place: WorkerGroup::ALONE,
                gone: Vec::new(),
                resolved: HashMap::new(),
                is_behind_names: false,
                method: None,
                observer: None,
                balancer: GroupBalancer::new(&RoundRobin, Vec::new(), Vec::new(), 1),
                queue: None,
                waiting: WaitQueue::default(),
            }),
            tries: AtomicU32::new(0),
            idle: OnceLock::new(),
            sessions: Mutex::new(None),
        }
    }

    /// Applies a configuration: servers that stay keep their counters, and the round robin starts again.
    pub fn configure(self: &Arc<Self>, settings: &GroupSettings, loops: usize) {
        let idle = match settings.keepalive {
            Some(_) => Some(self.idle.get_or_init(Arc::default)),
            None => self.idle.get(),
        };
        if let Some(idle) = idle {
            idle.configure(settings.keepalive, loops);
        }
        self.configure_sessions(settings);
        let mut locked = self.lock();
        let named = settings.servers.iter();
        let named = named.filter_map(|server| server.resolve.as_deref());
        let named: HashSet<_> = named.map(NameToResolve::key).collect();
        // Addresses of names that are still configured stay usable until the new configuration's first lookup.
        locked.resolved.retain(|key, _| named.contains(key));
        locked.servers.clone_from(&settings.servers);
        locked.next_id = u32::try_from(locked.servers.len()).unwrap_or(u32::MAX);
        locked.ids = (0..locked.next_id).collect();
        locked.queue = settings.queue;
        locked.method.clone_from(&settings.balance);
        locked.observer = settings.method().observer();
        locked.rebuild(PeerRound::Anew);
        self.publish_tries(&locked);
        // The new servers may be free for requests that wait.
        self.grant_waiting(&mut locked);
    }

    /// Says which part of the server this process is. Before [`GroupState::configure`].
    pub(super) fn set_place(&self, place: WorkerGroup) {
        self.lock().place = place;
    }

    /// The servers as they are now, each with its number.
    pub fn servers(&self) -> Vec<(u32, UpstreamServer)> {
        let locked = self.lock();
        let ids = locked.ids.iter().copied();
        ids.zip(locked.servers.iter().cloned()).collect()
    }

    /// Adds a server, and returns its number. Requests that wait may get it at once.
    pub fn add_server(self: &Arc<Self>, server: UpstreamServer) -> Result<u32, TooManyServers> {
        let mut locked = self.lock();
        if locked.servers.len() >= MAX_SERVERS || locked.next_id == u32::MAX {
            return Err(TooManyServers);
        }
        let id = locked.next_id;
        locked.next_id += 1;
        Arc::make_mut(&mut locked.servers).push(server);
        locked.ids.push(id);
        self.servers_changed(locked);
        Ok(id)
    }

    /// Puts a server in the place of the one with this number, which keeps its counters if its address stays. `false`:
    /// there is none.
    pub fn replace_server(self: &Arc<Self>, id: u32, server: UpstreamServer) -> bool {
        let mut locked = self.lock();
        let Some(at) = locked.ids.iter().position(|known| *known == id) else {
            return false;
        };
        Arc::make_mut(&mut locked.servers)[at] = server;
        self.servers_changed(locked);
        true
    }

    /// Removes a server. What is under way there goes on. `false`: there is none.
    pub fn remove_server(self: &Arc<Self>, id: u32) -> bool {
        let mut locked = self.lock();
        let Some(at) = locked.ids.iter().position(|known| *known == id) else {
            return false;
        };
        Arc::make_mut(&mut locked.servers).remove(at);
        locked.ids.remove(at);
        self.servers_changed(locked);
        true
    }

    fn servers_changed(self: &Arc<Self>, mut locked: MutexGuard<'_, LockedState>) {
        locked.rebuild(PeerRound::GoesOn);
        self.publish_tries(&locked);
        self.grant_waiting(&mut locked);
    }

    /// The number of the server that a peer belongs to, by [`PeerStatus::line`].
    pub fn server_ids(&self) -> Vec<u32> {
        self.lock().ids.clone()
    }

    /// How many peers are gone and still have requests under way.
    pub fn zombies(&self) -> usize {
        let mut locked = self.lock();
        locked.gone.retain(|load| load.connections.get() > 0);
        locked.gone.len()
    }

    /// The requests that wait, the most that may, and how many found the queue full; `None` without a queue.
    pub fn queue(&self) -> Option<[u64; 3]> {
        let locked = self.lock();
        let queue = locked.queue?;
        let waiting = &locked.waiting;
        Some([waiting.len() as u64, queue.length as u64, waiting.overflows])
    }

    /// Counts an active check.
    pub fn count_check(&self, peer: &UpstreamPeer, passed: bool) {
        let _locked = self.lock();
        let troubles = peer.load.troubles();
        troubles.checks.add(1);
        troubles.checks_failed.add(i64::from(!passed));
        troubles.last_check_passed.set(i64::from(passed));
    }

    fn configure_sessions(&self, settings: &GroupSettings) {
        let mut sessions = self.sessions.lock();
        match settings.sticky.as_ref().map(|sticky| &sticky.method) {
            Some(StickyMethod::Learn(learn)) => {
                let timeout = milliseconds(learn.timeout);
                let make = || StickySessions::new(learn.size, timeout);
                let sessions = sessions.get_or_insert_with(make);
                sessions.configure(timeout, learn.shared.is_some());
            }
            Some(StickyMethod::Cookie(_) | StickyMethod::Route) | None => *sessions = None,
        }
    }

    /// Sets the addresses of a name. Those that stay keep their connections, counters and position in the round
    /// robin.
    pub fn set_resolved(self: &Arc<Self>, at: &NameToResolve, mut addresses: Vec<ResolvedAddress>) {
        addresses.truncate(MAX_RESOLVED);
        let mut locked = self.lock();
        // Unchanged, as after most lookups: the peers and the hash ring need not be built again.
        if locked.resolved.get(&at.key()) == Some(&addresses) {
            return;
        }
        locked.resolved.insert(at.key(), addresses);
        if locked.servers.len() <= FEW_SERVERS {
            return self.follow_names(&mut locked);
        }
        if !std::mem::replace(&mut locked.is_behind_names, true) {
            let state = Arc::downgrade(self);
            rt::spawn_named("upstream names", async move {
                rt::sleep(GATHERED).await;
                if let Some(state) = state.upgrade() {
                    state.follow_names(&mut state.lock());
                }
            });
        }
    }

    /// Builds the peers of the addresses that names have now.
    fn follow_names(self: &Arc<Self>, locked: &mut LockedState) {
        locked.is_behind_names = false;
        locked.rebuild(PeerRound::GoesOn);
        self.publish_tries(locked);
        self.grant_waiting(locked);
    }

    fn publish_tries(&self, locked: &LockedState) {
        self.tries.store(locked.balancer.tries(), Ordering::Relaxed);
    }

    /// The addresses of a name at its last lookup.
    pub fn resolved(&self, at: &NameToResolve) -> Option<Vec<ResolvedAddress>> {
        self.lock().resolved.get(&at.key()).cloned()
    }

    /// All peers.
    pub fn peers(&self) -> Vec<Arc<UpstreamPeer>> {
        self.lock()
            .balancer
            .peers()
            .map(|(peer, _)| peer.clone())
            .collect()
    }

    /// A snapshot of all peers.
    pub fn status(&self) -> Vec<PeerStatus> {
        // Their counters can be read without the lock, which every request that chooses one of a thousand would wait for.
        let peers: Vec<(Arc<UpstreamPeer>, bool)> = (self.lock().balancer.peers())
            .map(|(peer, backup)| (Arc::clone(peer), backup))
            .collect();
        let now = now_ms();
        peers
            .iter()
            .map(|(peer, backup)| peer.status(*backup, now))
            .collect()
    }

    /// Sets the result of active checks. A peer that recovers starts slowly if `slow_start` is set.
    pub fn set_health(self: &Arc<Self>, peer: &UpstreamPeer, health: PeerHealth) {
        // Under the lock, although the health itself is atomic: waiting requests may be granted this peer at once.
        let mut locked = self.lock();
        if peer.health() == PeerHealth::Unhealthy && health == PeerHealth::Healthy {
            peer.load.troubles().started.set(now_ms());
        }
        peer.set_health(health, now_ms());
        self.grant_waiting(&mut locked);
    }

    /// How many requests wait.
    pub fn waiting(&self) -> usize {
        self.lock().waiting.len()
    }

    /// How many connections are idle.
    pub fn idle_connections(&self) -> usize {
        self.idle.get().map_or(0, |idle| idle.len())
    }

    /// Remembers the server of a session (`sticky learn`): the session that the response created, or else the one
    /// in the request.
    pub fn learn_session(&self, created: &[u8], requested: &[u8], peer: &UpstreamPeer) {
        let (session, create) = match (created, requested) {
            (b"", b"") => return,
            (b"", requested) => (requested, CreateSession::No),
            (created, _) => (created, CreateSession::Yes),
        };
        if let Some(sessions) = &mut *self.sessions.lock() {
            sessions.learn(session, create, &peer.sid(), now_ms());
        }
    }

    /// Takes out some sessions of which the other members of a cluster are to be told.
    pub fn take_session_news(&self, most: usize) -> Vec<(SessionSum, BString)> {
        let mut sessions = self.sessions.lock();
        sessions
            .as_mut()
            .map_or(Vec::new(), |sessions| sessions.take_news(most))
    }

    /// They could not be told.
    pub fn put_session_news_back(&self, news: Vec<(SessionSum, BString)>) {
        if let Some(sessions) = &mut *self.sessions.lock() {
            sessions.put_news_back(news);
        }
    }

    /// Remembers the server of a session of which a member of the cluster has told, and which is valid for this time.
    pub fn learn_shared_session(&self, session: SessionSum, sid: BString, left: Duration) {
        if let Some(sessions) = &mut *self.sessions.lock() {
            sessions.learn_shared(session, sid, milliseconds(left), now_ms());
        }
    }

    /// The identifier of the server that a request is bound to. With `learn` the value is a session; otherwise it
    /// is the identifier itself.
    pub(crate) fn server_of(&self, sticky: &[u8]) -> Option<BString> {
        if sticky.is_empty() {
            return None;
        }
        match &mut *self.sessions.lock() {
            Some(sessions) => sessions.find(sticky, now_ms()),
            None => Some(sticky.into()),
        }
    }

    pub(crate) fn tries(&self) -> u32 {
        self.tries.load(Ordering::Relaxed)
    }

    pub(super) fn idle(&self) -> Option<&Arc<IdlePool>> {
        self.idle.get()
    }

    pub(super) fn pick(self: &Arc<Self>, pick: &mut PickState) -> Result<PeerLease, NoPeer> {
        let mut locked = self.lock();
        if !locked.waiting.is_empty() {
            // A server may have become available by the passing of time. Requests that wait come before this one.
            self.grant_waiting(&mut locked);
        }
        self.choose(&mut locked, pick, now_ms())
    }

    /// Chooses a peer and counts the request there.
    pub(super) fn choose(
        self: &Arc<Self>,
        locked: &mut LockedState,
        pick: &mut PickState,
        now: i64,
    ) -> Result<PeerLease, NoPeer> {
        let Some(peer) = locked.balancer.choose(pick, now) else {
            let wait = locked.balancer.is_worth_waiting(pick, now);
            return Err(match wait {
                true => NoPeer::Occupied,
                false => NoPeer::NoneAlive,
            });
        };
        peer.load.connections.add(1);
        peer.load.requests.add(1);
        peer.load.selected.set(now);
        let observation = match locked.observer {
            None => LeaseObservation::TimesAtEnd,
            Some(observer) => {
                observer.request_began(&peer, now);
                LeaseObservation::UnderWay(observer, now)
            }
        };
        Ok(PeerLease::new(self.clone(), peer, observation))
    }

    /// Ends a lease. Without an outcome, the exchange says nothing about the peer.
    pub(super) fn release(
        self: &Arc<Self>,
        peer: &UpstreamPeer,
        outcome: Option<PeerOutcome>,
        observation: LeaseObservation,
        traffic: PeerTraffic,
    ) -> ReleasedPeer {
        let mut locked = self.lock();
        if traffic != PeerTraffic::default() && crate::metrics::are_wanted() {
            let traced = peer.load.latencies.get_or_init(Box::default);
            traced.count_traffic(traffic);
        }
        let released = locked.count_end(peer, outcome, observation, now_ms());
        if !locked.waiting.is_empty() {
            self.grant_waiting(&mut locked);
        }
        released
    }

    /// See [`PeerLease::head_arrived`].
    pub(super) fn head_arrived(
        &self,
        peer: &UpstreamPeer,
        took: Duration,
        (observer, began_ms): (&'static dyn RequestObserver, i64),
    ) -> LeaseObservation {
        // The peer's numbers may only change under this lock.
        let _locked = self.lock();
        match observer.head_arrived(peer, milliseconds(took), now_ms()) {
            AfterHead::UnderWay => LeaseObservation::UnderWay(observer, began_ms),
            AfterHead::Ended => LeaseObservation::TimesExceptHeader,
        }
    }

    /// See [`PeerLease::connected`].
    pub(super) fn connected(&self, peer: &UpstreamPeer, took: Duration) {
        let _locked = self.lock();
        moving_average(&peer.load.connect_time, milliseconds(took));
        peer.note_success(now_ms());
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, LockedState> {
        // The lock is not poisoned by a panic: each value under it is valid by itself at any moment.
        self.locked.lock()
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

impl LockedState {
    /// Builds the peers from the servers and the resolved addresses.
    fn rebuild(&mut self, round: PeerRound) {
        let old: Vec<Arc<UpstreamPeer>> = self
            .balancer
            .peers()
            .map(|(peer, _)| peer.clone())
            .collect();
        let resolved = |server: &UpstreamServer| {
            let known = server.resolve.as_deref().map(NameToResolve::key);
            let known = known.and_then(|key| self.resolved.get(&key));
            known.map(Vec::as_slice).unwrap_or_default()
        };
        let mut own = Cow::Borrowed(&*self.servers);
        if self.place.count > 1 {
            // Each worker group counts for itself, and the server must not get more than it can take.
            for server in own.to_mut() {
                let part = self.place.part_of(u64::from(server.max_conns));
                server.max_conns = u32::try_from(part).unwrap_or(u32::MAX);
            }
        }
        let PeerList { primary, backup } = PeerList::of(&own, resolved, &old, round);
        let present = primary.iter().chain(&backup);
        let present: HashSet<_> = present.map(|peer| Arc::as_ptr(&peer.load)).collect();
        for peer in &old {
            let is_gone = !present.contains(&Arc::as_ptr(&peer.load));
            if is_gone && peer.load.connections.get() > 0 && self.gone.len() < MAX_SERVERS {
                self.gone.push(peer.load.clone());
            }
        }
        let method = self.method.as_deref().unwrap_or(&RoundRobin);
        self.balancer = GroupBalancer::new(method, primary, backup, next_id());
    }

    /// Counts the end of an exchange, under the lock. A failure may disable the peer, which is the caller's to log.
    pub(super) fn count_end(
        &mut self,
        peer: &UpstreamPeer,
        outcome: Option<PeerOutcome>,
        observation: LeaseObservation,
        now: i64,
    ) -> ReleasedPeer {
        let load = &peer.load;
        load.connections.add(-1);
        let mut released = ReleasedPeer {
            disabled: false,
            // Of the group as it is now, even if a reload has removed this peer: what matters to the caller is whether
            // there is another one to try.
            is_only_peer: self.balancer.is_single(),
        };
        if let LeaseObservation::UnderWay(observer, began_ms) = observation {
            // The observer subtracts what this request has added to the time of all that are under way, so it needs the
            // time even of one that says nothing about the server.
            let response = outcome.and_then(|outcome| outcome.times().response);
            let took = response.map_or_else(|| (now - began_ms).max(0), milliseconds);
            observer.request_ended(peer, took, now);
        }
        // The client left, or the lease was dropped: no verdict on the server.
        let Some(outcome) = outcome else {
            return released;
        };
        if let PeerOutcome::Ok(times) = outcome {
            count_times(peer, times, observation);
        }
        match outcome {
            // The only peer is never disabled. Failures from a time when the group had others are forgotten, or they would
            // count again when it gets others.
            _ if released.is_only_peer => load.fails.set(0),
            PeerOutcome::Failed(_) => released.disabled = peer.count_failure(now),
            PeerOutcome::Ok(_) | PeerOutcome::Next(_) => peer.note_success(now),
        }
        released
    }
}

/// Updates the moving averages of a peer with the times of a response.
fn count_times(peer: &UpstreamPeer, times: UpstreamTimes, observation: LeaseObservation) {
    let load = &peer.load;
    if crate::metrics::are_wanted() {
        load.latencies.get_or_init(Box::default).observe(times);
    }
    if let Some(connect) = times.connect {
        moving_average(&load.connect_time, milliseconds(connect));
    }
    // Without a header there was no response: its times would make a failing peer look fast.
    let Some(header) = times.header else { return };
    if let Some(response) = times.response {
        moving_average(&load.response_time, milliseconds(response));
    }
    if !matches!(observation, LeaseObservation::TimesExceptHeader) {
        moving_average(&load.header_time, milliseconds(header));
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::super::balance::{LeastTime, TimeMetric};
    use super::super::settings::GroupOrigin;
    use super::*;

    fn settings(method: Option<LeastTime>) -> GroupSettings {
        let mut settings = GroupSettings::new("u", GroupOrigin::Block);
        settings.balance = method.map(|method| Arc::new(method) as _);
        for port in [1, 2] {
            let address = (Ipv4Addr::LOCALHOST, port).into();
            let name = format!("127.0.0.1:{port}");
            settings.add_server(UpstreamServer::new(
                name,
                vec![std::net::SocketAddr::into(address)],
            ));
        }
        settings
    }

    #[test]
    fn a_request_under_way_does_not_count_for_ever_when_a_reload_changes_the_method() {
        let inflight = |metric| LeastTime {
            metric,
            inflight: true,
        };
        for metric in [TimeMetric::Header, TimeMetric::LastByte] {
            let state = Arc::new(GroupState::new());
            state.configure(&settings(Some(inflight(metric))), 1);
            let lease = state.pick(&mut PickState::default()).expect("alive");
            let load = lease.peer().load.clone();
            assert_eq!(load.inflight().count.get(), 1);
            state.configure(&settings(None), 1);
            let mut before = lease;
            before.head_arrived(Duration::from_millis(5));
            drop(before);
            assert_eq!(load.inflight().count.get(), 0, "{metric:?}");
            assert_eq!(load.connections.get(), 0);
        }
    }

    #[test]
    fn a_request_that_says_nothing_of_its_peer_takes_its_time_along() {
        let method = LeastTime {
            metric: TimeMetric::LastByte,
            inflight: true,
        };
        let state = Arc::new(GroupState::new());
        state.configure(&settings(Some(method)), 1);
        let (mut pick, began) = (PickState::default(), 10_000);
        let lease = state.choose(&mut state.lock(), &mut pick, began);
        let (peer, observation) = lease.expect("alive").into_parts();
        let LeaseObservation::UnderWay(observer, _) = observation else {
            panic!("it is observed");
        };
        observer.request_began(&peer, began);
        let mut locked = state.lock();
        locked.count_end(&peer, None, observation, began + 1000);
        // A second has passed for the one that is left, and nothing of the other one.
        assert_eq!(peer.load.inflight().count.get(), 1);
        assert_eq!(peer.load.inflight().spent.get(), 1000);
    }

    #[test]
    fn the_time_of_a_head_counts_once() {
        for (metric, inflight) in [
            (TimeMetric::Header, true),
            (TimeMetric::Header, false),
            (TimeMetric::LastByte, true),
        ] {
            let state = Arc::new(GroupState::new());
            state.configure(&settings(Some(LeastTime { metric, inflight })), 1);
            for took in [100, 300] {
                let took = Duration::from_millis(took);
                let mut lease = state.pick(&mut PickState::default()).expect("alive");
                lease.head_arrived(took);
                let times = UpstreamTimes {
                    header: Some(took),
                    response: Some(took),
                    ..UpstreamTimes::default()
                };
                lease.end_exchange(PeerOutcome::Ok(times));
            }
            let means = state.status();
            let means = means.iter().map(|peer| peer.header_time.as_millis());
            assert_eq!(means.sum::<u128>(), 400, "one value for each of two peers");
        }
    }
}
