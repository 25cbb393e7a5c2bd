//! The members of a cluster, which of them answer, and in which order they are asked for a key.
//!
//! Every process has a view of its own. Views differ for a while whenever a member comes or goes; nothing here prevents
//! that, and everything that asks must work with it: the epoch in each request tells whether two views are the same.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use base::sync::{Mutex, RwLock};
use bstr::{BStr, BString};

use super::peer_token::hash_of_key;
use super::purge_journal::PurgeJournal;
use super::refusal_log::RefusalLog;
use super::rendezvous;
use crate::upstream::{
    GroupOrigin, GroupSettings, KeepaliveSettings, UpstreamGroup, UpstreamServer,
};

/// How many members are asked for a key before the origin is. A second one is asked if the first is gone: it is the one
/// that all others ask then.
const ASKED_MAX: usize = 2;

/// For how long after this server and a member have come together this one, as an owner, first asks the other for what is
/// stored: until then the keys may have been that one's.
const SETTLE: Duration = Duration::from_secs(60);

/// Members that were started at about the same time know nothing that the others have missed. What one of them has fetched
/// within this time before the others were there is fetched again.
const SAME_START: Duration = Duration::from_secs(2);

/// Idle connections to a member that each loop keeps.
const IDLE: usize = 64;

/// A member.
pub struct ClusterMember {
    /// Where it listens for the others.
    pub address: SocketAddr,
    /// The address as a text, by which members call each other.
    pub name: String,
    hash: u64,
    /// Connections to it: a group of this one server.
    pub group: Arc<UpstreamGroup>,
    answers: AtomicBool,
    times: Mutex<MemberTimes>,
    in_progress: AtomicU32,
    /// Who waits for its end, by number.
    waiting: Mutex<BTreeMap<u64, Waker>>,
    next_ticket: AtomicU64,
    /// When something of an answer last came from it, in milliseconds since the epoch.
    heard_ms: AtomicU64,
    /// Fetches that it was asked for.
    pub asked: AtomicU64,
    /// Those that had to go on elsewhere: it did not answer, refused, or broke off.
    pub failed: AtomicU64,
    /// How often it stopped answering.
    pub losses: AtomicU64,
}

/// When a member began, and since when it and this server know of each other.
#[derive(Clone, Copy)]
struct MemberTimes {
    /// Since when it answers without a pause; at first, since this server knows of it.
    came: Instant,
    /// When its process was started, by what it says itself; `None`: not known.
    started: Option<Instant>,
}

impl ClusterMember {
    fn new(address: SocketAddr, now: Instant) -> Arc<ClusterMember> {
        let name = address.to_string();
        let mut settings = GroupSettings::new(name.as_str(), GroupOrigin::Url { port: None });
        let mut server = UpstreamServer::new(name.as_str(), vec![address.into()]);
        // Whether it can be asked is decided here, by whether it answers.
        server.max_fails = 0;
        settings.servers = Arc::new(vec![server]);
        settings.keepalive = Some(KeepaliveSettings {
            connections: IDLE,
            local: false,
            requests: 100_000,
            time: Duration::from_secs(3600),
            timeout: Duration::from_secs(60),
        });
        let hash = hash_of_key(name.as_bytes());
        Arc::new(ClusterMember {
            address,
            hash: u64::from_be_bytes(hash[..8].try_into().unwrap_or_default()),
            name,
            group: Arc::new(UpstreamGroup::new(settings)),
            // Until the opposite is known: a refused connection tells it at once.
            answers: AtomicBool::new(true),
            times: Mutex::new(MemberTimes {
                came: now,
                started: None,
            }),
            in_progress: AtomicU32::new(0),
            waiting: Mutex::default(),
            next_ticket: AtomicU64::new(0),
            heard_ms: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            losses: AtomicU64::new(0),
        })
    }

    /// Whether it answers, as far as is known.
    pub fn answers(&self) -> bool {
        self.answers.load(Acquire)
    }

    /// Notes that something of an answer has come from it: as good a sign as the answer to a question.
    pub fn note_heard(&self) {
        self.heard_ms.store(rt::wall_millis(), Relaxed);
    }

    /// For how long nothing of an answer has come from it.
    pub fn silence(&self) -> Duration {
        Duration::from_millis(rt::wall_millis().saturating_sub(self.heard_ms.load(Relaxed)))
    }

    /// Notes for how long its process runs.
    pub fn note_age(&self, age: Duration, now: Instant) {
        self.times.lock().started = now.checked_sub(age);
    }

    /// Whether it may have what this server has missed: they have been together for a short time only, and it was there
    /// before. A member that has just been started has nothing of this server's.
    fn may_know_more(&self, now: Instant) -> bool {
        let times = *self.times.lock();
        let is_new = now.saturating_duration_since(times.came) < SETTLE;
        is_new
            && times
                .started
                .is_none_or(|started| started + SAME_START < times.came)
    }

    fn note_came(&self, now: Instant) {
        self.times.lock().came = now;
    }

    /// Waits until it does not answer any more.
    pub fn until_lost(self: &Arc<Self>) -> MemberLoss {
        MemberLoss {
            member: Arc::clone(self),
            ticket: None,
        }
    }

    /// Counts a fetch in progress, until the result is dropped.
    pub fn begin_use(self: &Arc<Self>) -> MemberUse {
        self.in_progress.fetch_add(1, Relaxed);
        MemberUse(Arc::clone(self))
    }

    /// Fetches in progress.
    pub fn in_progress(&self) -> u32 {
        self.in_progress.load(Relaxed)
    }

    /// Notes that it answers, or that it does not. Whether that is new.
    fn note(&self, answers: bool) -> bool {
        if self.answers.swap(answers, Release) == answers {
            return false;
        }
        if !answers {
            self.losses.fetch_add(1, Relaxed);
            // Outside the lock: a waker may run its task at once.
            let waiting = std::mem::take(&mut *self.waiting.lock());
            waiting.into_values().for_each(Waker::wake);
        }
        true
    }
}

/// A fetch in progress at a member.
pub struct MemberUse(Arc<ClusterMember>);

impl MemberUse {
    /// The member.
    pub fn member(&self) -> &Arc<ClusterMember> {
        &self.0
    }
}

impl Drop for MemberUse {
    fn drop(&mut self) {
        self.0.in_progress.fetch_sub(1, Relaxed);
    }
}

/// Resolves when a member does not answer any more.
pub struct MemberLoss {
    member: Arc<ClusterMember>,
    ticket: Option<u64>,
}

impl Future for MemberLoss {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if !self.member.answers() {
            return Poll::Ready(());
        }
        let member = Arc::clone(&self.member);
        let next = || member.next_ticket.fetch_add(1, Relaxed);
        let ticket = *self.ticket.get_or_insert_with(next);
        let mut waiting = member.waiting.lock();
        waiting.insert(ticket, context.waker().clone());
        drop(waiting);
        // It may have been lost between the question and the entry.
        match member.answers() {
            true => Poll::Pending,
            false => Poll::Ready(()),
        }
    }
}

impl Drop for MemberLoss {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.member.waiting.lock().remove(&ticket);
        }
    }
}

/// The members as one process sees them. It does not change; a new one takes its place.
#[derive(Default)]
pub struct ClusterView {
    /// All members, by address.
    pub members: Vec<Arc<ClusterMember>>,
    /// This server among them, if it is one.
    pub own: Option<Arc<ClusterMember>>,
    /// Those that answer, this server included.
    live: Vec<Arc<ClusterMember>>,
    /// The number of the set of those that answer.
    pub epoch: u64,
}

/// Whom to ask for a key.
#[derive(Clone)]
pub struct ClusterRoute {
    /// In this order, then the origin.
    pub steps: Vec<RouteStep>,
    /// The epoch of the view that it comes from.
    pub epoch: u64,
    /// The owner of the key; `None` if it is this server, or if there is no other.
    pub owner: Option<Arc<ClusterMember>>,
}

/// One member to ask.
#[derive(Clone)]
pub struct RouteStep {
    /// The member.
    pub member: Arc<ClusterMember>,
    /// Only for what it has, or is getting from the origin.
    pub only_stored: bool,
}

impl ClusterView {
    fn new(members: Vec<Arc<ClusterMember>>, own: Option<Arc<ClusterMember>>) -> ClusterView {
        let is_own =
            |member: &Arc<ClusterMember>| own.as_ref().is_some_and(|own| Arc::ptr_eq(own, member));
        let live = members
            .iter()
            .filter(|member| member.answers() || is_own(member));
        let live: Vec<Arc<ClusterMember>> = live.cloned().collect();
        ClusterView {
            epoch: rendezvous::epoch_of(live.iter().map(|member| member.hash)),
            members,
            own,
            live,
        }
    }

    /// The number of members that answer, this server included.
    pub fn live_count(&self) -> usize {
        self.live.len()
    }

    /// The member at an address, if it answers.
    pub fn live_member(&self, address: SocketAddr) -> Option<&Arc<ClusterMember>> {
        self.live.iter().find(|member| member.address == address)
    }

    /// Whether this is the server's own entry.
    pub fn is_own(&self, member: &ClusterMember) -> bool {
        let own = self.own.as_deref();
        own.is_some_and(|own| std::ptr::eq(own, member))
    }

    /// The members that answer, the owner of the key first.
    fn in_order(&self, key: u64) -> Vec<Arc<ClusterMember>> {
        let mut sorted = self.live.clone();
        rendezvous::sort_for_key(&mut sorted, key, |member| member.hash);
        let others = sorted.iter().filter(|member| !self.is_own(member));
        let all = others.map(|member| member.in_progress()).sum();
        if let [first, _, ..] = &sorted[..]
            && !self.is_own(first)
            && rendezvous::is_overloaded(first.in_progress(), all, sorted.len())
        {
            sorted.swap(0, 1);
        }
        sorted
    }

    /// Whom to ask for a key with this hash.
    pub fn route_of(&self, key: &[u8; 16], now: Instant) -> ClusterRoute {
        let key = u64::from_be_bytes(key[..8].try_into().unwrap_or_default());
        let sorted = self.in_order(key);
        let own = sorted.iter().position(|member| self.is_own(member));
        let step = |member: &Arc<ClusterMember>, only_stored| RouteStep {
            member: Arc::clone(member),
            only_stored,
        };
        let steps = match own {
            // What is this server's own since a moment ago was another's before.
            Some(0) => {
                let second = sorted.get(1).filter(|second| second.may_know_more(now));
                second.map(|one| step(one, true)).into_iter().collect()
            }
            other => {
                let before = &sorted[..other.unwrap_or(sorted.len()).min(ASKED_MAX)];
                before.iter().map(|one| step(one, false)).collect()
            }
        };
        let owner = sorted.into_iter().next();
        ClusterRoute {
            steps,
            epoch: self.epoch,
            owner: owner.filter(|owner| !self.is_own(owner)),
        }
    }
}

/// What is known of a cluster while the server runs, shared by all loops and kept across reloads. At first it has no members.
#[derive(Default)]
pub struct ClusterState {
    view: RwLock<Arc<ClusterView>>,
    /// Requests on the peer port that were not a member's.
    pub refused: AtomicU64,
    /// What of that was logged.
    pub refusals: Mutex<RefusalLog>,
    /// Requests of members.
    pub served: AtomicU64,
    /// Those of them that were answered from what was stored.
    pub served_stored: AtomicU64,
    /// Those that followed a fill.
    pub served_joined: AtomicU64,
    /// Those for which the origin was asked.
    pub served_fetched: AtomicU64,
    /// Questions of this server's own that were the second hop.
    pub second_hops: AtomicU64,
    /// Those that were sent to another member, because the views differ.
    pub redirected: AtomicU64,
    /// Fetches that a member answered, so that the origin was not asked.
    pub avoided: AtomicU64,
    /// When this process was first and last alive, and when it was so again after it was not: in milliseconds of the
    /// monotonic clock; 0: never.
    began_ms: AtomicU64,
    beat_ms: AtomicU64,
    resumed_ms: AtomicU64,
    /// The journals of purges, by zone. They are kept across reloads, as the stores are.
    journals: Mutex<BTreeMap<BString, Arc<PurgeJournal>>>,
}

impl ClusterState {
    /// Notes that this process is alive. If it was not for longer than the budget, the others have gone on without it.
    pub fn beat(&self, budget: Duration, now_ms: u64, now: Instant) {
        let before = self.beat_ms.swap(now_ms, Relaxed);
        if before == 0 {
            self.began_ms.store(now_ms, Relaxed);
        }
        let missing = Duration::from_millis(now_ms.saturating_sub(before));
        if before != 0 && missing > budget + budget / 2 {
            self.resumed_ms.store(now_ms, Relaxed);
            for member in &self.view().members {
                member.note_came(now);
            }
        }
    }

    /// For how long this process runs, in milliseconds.
    pub fn age_ms(&self, now_ms: u64) -> u64 {
        match self.began_ms.load(Relaxed) {
            0 => 0,
            began => now_ms.saturating_sub(began),
        }
    }

    /// Whether this process was stopped until a moment ago: what it is asked at the moment has waited meanwhile, and who asked
    /// it has gone on. On the path of requests that have missed, so that it does not depend on which task runs first.
    pub fn is_just_back(&self, budget: Duration, now_ms: u64, now: Instant) -> bool {
        let before = self.beat_ms.load(Relaxed);
        let missing = Duration::from_millis(now_ms.saturating_sub(before));
        if before != 0 && missing > budget + budget / 2 {
            self.beat(budget, now_ms, now);
        }
        let resumed = self.resumed_ms.load(Relaxed);
        resumed != 0 && Duration::from_millis(now_ms.saturating_sub(resumed)) < budget / 4
    }

    /// The number of members that answer, this server included; at least one.
    pub fn live_members(&self) -> usize {
        self.view.read().live_count().max(1)
    }

    /// The journal of a zone.
    pub fn journal_of(&self, zone: &BStr) -> Arc<PurgeJournal> {
        let mut journals = self.journals.lock();
        let make = || Arc::new(PurgeJournal::new(zone));
        Arc::clone(journals.entry(zone.to_owned()).or_insert_with(make))
    }

    /// All journals, by zone.
    pub fn journals(&self) -> Vec<(BString, Arc<PurgeJournal>)> {
        let journals = self.journals.lock();
        journals
            .iter()
            .map(|(zone, journal)| (zone.clone(), Arc::clone(journal)))
            .collect()
    }

    /// The present view.
    pub fn view(&self) -> Arc<ClusterView> {
        Arc::clone(&self.view.read())
    }

    /// The members are these from now on, and `own` is this server. Those that were there before keep what is known of
    /// them. Whether anything has changed.
    pub fn set_members(
        &self,
        addresses: &[SocketAddr],
        own: Option<SocketAddr>,
        now: Instant,
    ) -> bool {
        let mut view = self.view.write();
        let mut addresses = addresses.to_vec();
        addresses.sort_unstable();
        addresses.dedup();
        let known = view.members.iter().map(|member| member.address);
        if known.eq(addresses.iter().copied()) && view.own.as_ref().map(|own| own.address) == own {
            return false;
        }
        let members: Vec<Arc<ClusterMember>> = addresses
            .iter()
            .map(|address| {
                let mut known = view.members.iter();
                let known = known.find(|member| member.address == *address).cloned();
                known.unwrap_or_else(|| ClusterMember::new(*address, now))
            })
            .collect();
        let own = members
            .iter()
            .find(|member| Some(member.address) == own)
            .cloned();
        *view = Arc::new(ClusterView::new(members, own));
        true
    }

    /// Notes whether a member answers. Whether that is new.
    pub fn note(&self, member: &ClusterMember, answers: bool, now: Instant) -> bool {
        let mut view = self.view.write();
        if !member.note(answers) {
            return false;
        }
        if answers {
            member.note_came(now);
        }
        *view = Arc::new(ClusterView::new(view.members.clone(), view.own.clone()));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], number))
    }

    fn state(members: &[u16], own: u16, now: Instant) -> ClusterState {
        let state = ClusterState::default();
        let addresses: Vec<SocketAddr> = members.iter().map(|one| address(*one)).collect();
        state.set_members(&addresses, Some(address(own)), now);
        state
    }

    fn key(number: u16) -> [u8; 16] {
        hash_of_key(&number.to_be_bytes())
    }

    #[test]
    fn all_members_name_the_same_owner() {
        let now = Instant::now();
        let states: Vec<ClusterState> = (1..=3).map(|own| state(&[1, 2, 3], own, now)).collect();
        let later = now + SETTLE;
        for number in 0..500 {
            let owners: Vec<SocketAddr> = states
                .iter()
                .map(|state| {
                    let view = state.view();
                    let route = view.route_of(&key(number), later);
                    let own = view.own.as_ref().expect("it is a member").address;
                    assert_eq!(route.owner.is_none(), route.steps.is_empty());
                    route.owner.map_or(own, |owner| owner.address)
                })
                .collect();
            assert!(owners.iter().all(|owner| *owner == owners[0]), "{owners:?}");
        }
    }

    #[test]
    fn a_lost_member_wakes_who_waits_and_its_keys_go_to_the_next() {
        let now = Instant::now();
        let state = state(&[1, 2, 3], 1, now);
        let later = now + SETTLE;
        let number = (0..500)
            .find(|number| {
                let route = state.view().route_of(&key(*number), later);
                route.steps.len() == 2
            })
            .expect("some key has this server in the third place");
        let route = state.view().route_of(&key(number), later);
        let owner = route.owner.expect("another one owns it");
        let mut loss = owner.until_lost();
        let mut context = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut loss).poll(&mut context).is_pending());
        assert!(state.note(&owner, false, later));
        assert!(!state.note(&owner, false, later), "it is known");
        assert!(Pin::new(&mut loss).poll(&mut context).is_ready());
        let next = state.view().route_of(&key(number), later);
        assert_eq!(
            next.owner.map(|owner| owner.address),
            Some(route.steps[1].member.address)
        );
        assert_ne!(next.epoch, route.epoch);
        assert!(state.note(&owner, true, later));
        assert_eq!(
            state.view().epoch,
            route.epoch,
            "the same members are the same epoch"
        );
    }

    #[test]
    fn who_has_just_come_asks_the_owner_before_it() {
        let now = Instant::now();
        let state = state(&[1, 2], 1, now);
        let number = (0..500)
            .find(|number| {
                state
                    .view()
                    .route_of(&key(*number), now + SETTLE)
                    .owner
                    .is_none()
            })
            .expect("this server owns some keys");
        let route = state.view().route_of(&key(number), now);
        let [step] = &route.steps[..] else {
            panic!("one member is asked");
        };
        assert!(step.only_stored && step.member.address == address(2));
        // It was started together with this one, or later: it has nothing that this one has missed.
        let steps = |at| state.view().route_of(&key(number), at).steps.len();
        step.member.note_age(Duration::from_secs(1), now);
        assert_eq!(steps(now), 0);
        step.member.note_age(Duration::from_secs(100), now);
        assert_eq!((steps(now), steps(now + SETTLE)), (1, 0));
        // They were parted: each had the other's keys.
        assert!(state.note(&step.member, false, now + SETTLE));
        assert!(state.note(&step.member, true, now + SETTLE));
        assert_eq!(steps(now + SETTLE), 1);
    }

    #[test]
    fn a_process_that_was_stopped_knows_it() {
        let now = Instant::now();
        let state = state(&[1, 2], 1, now);
        let budget = Duration::from_millis(200);
        assert!(
            !state.is_just_back(budget, 1_000, now),
            "there was no beat yet"
        );
        state.beat(budget, 1_000, now);
        assert!(!state.is_just_back(budget, 1_250, now));
        assert!(state.is_just_back(budget, 1_400, now), "no beat is needed");
        state.beat(budget, 1_401, now);
        assert!(state.is_just_back(budget, 1_440, now));
        assert!(!state.is_just_back(budget, 1_460, now), "it is over");
        state.beat(budget, 1_460, now);
        assert!(!state.is_just_back(budget, 1_461, now));
    }

    #[test]
    fn a_server_that_is_no_member_asks_two_of_them() {
        let now = Instant::now();
        let state = ClusterState::default();
        state.set_members(&[address(1), address(2), address(3)], None, now);
        let route = state.view().route_of(&key(1), now);
        assert_eq!(route.steps.len(), ASKED_MAX);
        assert!(route.owner.is_some());
        let empty = ClusterState::default().view().route_of(&key(1), now);
        assert!(empty.steps.is_empty() && empty.owner.is_none());
    }
}
