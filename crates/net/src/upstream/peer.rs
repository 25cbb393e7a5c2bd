//! A peer: one address of a server, with its counters.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bstr::BString;
use rt::net::SocketAddress;

use super::outcome::{PeerTraffic, UpstreamTimes};
use super::server::{ServerState, UpstreamServer};
use super::sticky;
use crate::counters::SingleWriterCounter;
use crate::metrics::{LatencyHistogram, LatencySums, StatusCounters};

/// A number that changes only under the group's lock. It is atomic so that peers can be shared between threads, not
/// to allow races: relaxed loads and stores cost no more than plain ones.
#[derive(Debug, Default)]
pub(crate) struct LockedNumber(AtomicI64);

impl LockedNumber {
    pub(crate) fn new(value: i64) -> LockedNumber {
        LockedNumber(AtomicI64::new(value))
    }

    pub(crate) fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, value: i64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub(crate) fn add(&self, by: i64) -> i64 {
        let sum = self.get() + by;
        self.set(sum);
        sum
    }
}

/// What active health checks say of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerHealth {
    /// No check is configured: it counts as healthy.
    Unchecked,
    /// The first check has not ended, and requests must wait for it (`mandatory`).
    Checking,
    /// The last checks passed.
    Healthy,
    /// The last checks failed: it gets no requests.
    Unhealthy,
}

/// An address that requests are sent to.
#[derive(Debug)]
pub struct UpstreamPeer {
    /// Tells it from every other peer of the process.
    pub(crate) id: u64,
    address: SocketAddress,
    name: BString,
    server: BString,
    sid: BString,
    /// The position of its `server` line.
    pub(crate) line: usize,
    pub(crate) weight: i64,
    pub(crate) max_conns: i64,
    pub(crate) max_fails: i64,
    /// Milliseconds.
    pub(crate) fail_timeout: i64,
    /// Milliseconds.
    pub(crate) slow_start: i64,
    pub(crate) state: ServerState,
    /// Its current weight in the round robin, in units of [`UNIT`]; those of a group add up to zero.
    pub(crate) current_weight: LockedNumber,
    /// Its weight in the same units, lowered by failures.
    pub(crate) effective_weight: LockedNumber,
    /// Its counters, which outlive a reload.
    pub(crate) load: Arc<PeerLoad>,
    /// Which list of the idle pool has the connections to its address.
    pub(crate) idle_chain: ChainHint,
}

/// The number of an address's list in the idle pool, as its peer remembers it. A stale number only costs a lookup
/// in the map.
#[derive(Debug, Default)]
pub(crate) struct ChainHint(pub(super) AtomicU32);

/// The counters of a peer that survive a reload. Times are in milliseconds.
#[derive(Debug)]
pub(crate) struct PeerLoad {
    pub(crate) connections: LockedNumber,
    pub(crate) fails: LockedNumber,
    /// When it last failed.
    pub(crate) accessed: LockedNumber,
    /// When it was last given a request as a probe after `fail_timeout`, or failed.
    pub(crate) checked: LockedNumber,
    /// When it recovered after being unavailable, for `slow_start`; 0: never.
    pub(crate) started: LockedNumber,
    /// Moving averages, for `least_time`.
    pub(crate) connect_time: LockedNumber,
    pub(crate) header_time: LockedNumber,
    pub(crate) response_time: LockedNumber,
    pub(crate) inflight_time: LockedNumber,
    /// Requests under way, and the total time they had taken at `inflight_changed`.
    pub(crate) inflight: LockedNumber,
    pub(crate) inflight_spent: LockedNumber,
    pub(crate) inflight_changed: LockedNumber,
    /// How many requests it was given.
    pub(crate) requests: LockedNumber,
    /// How many of them failed, and how often that made it unavailable.
    pub(crate) failures: LockedNumber,
    pub(crate) disabled: LockedNumber,
    /// When it was last given a request; 0: never.
    pub(crate) selected: LockedNumber,
    /// Since when failures or checks keep it from getting requests; 0: they do not. And how long they have done so before.
    pub(crate) down_since: LockedNumber,
    pub(crate) downtime: LockedNumber,
    /// Active checks: how many there were, how many failed, how often they made it unhealthy, and whether the last one
    /// passed.
    pub(crate) checks: LockedNumber,
    pub(crate) checks_failed: LockedNumber,
    pub(crate) unhealthy: LockedNumber,
    pub(crate) last_check_passed: LockedNumber,
    /// The times of its responses, once metrics are wanted. Written under the group's lock: one thread at a time.
    pub(crate) latencies: OnceLock<Box<PeerLatencies>>,
    health: AtomicU8,
}

/// The times of a peer's responses, and what was exchanged with it.
#[derive(Debug, Default)]
pub(crate) struct PeerLatencies {
    pub(crate) statuses: StatusCounters,
    /// By the first digit of the status, which also counts those that are not counted apart.
    pub(crate) classes: [SingleWriterCounter; 6],
    pub(crate) sent: SingleWriterCounter,
    pub(crate) received: SingleWriterCounter,
    pub(crate) connect: LatencyHistogram,
    pub(crate) header: LatencyHistogram,
    pub(crate) response: LatencyHistogram,
}

impl PeerLatencies {
    /// Counts what was exchanged.
    pub(crate) fn count_traffic(&self, traffic: PeerTraffic) {
        if traffic.status > 0 {
            self.statuses.count(traffic.status);
            self.classes[usize::from(traffic.status / 100).min(5)].add(1);
        }
        self.sent.add(traffic.sent);
        self.received.add(traffic.received);
    }

    /// Counts the times of a response. Those of a try without one say nothing of the server.
    pub(crate) fn observe(&self, times: UpstreamTimes) {
        if let Some(connect) = times.connect {
            self.connect.observe(connect);
        }
        if let Some(header) = times.header {
            self.header.observe(header);
            if let Some(response) = times.response {
                self.response.observe(response);
            }
        }
    }
}

impl Default for PeerLoad {
    fn default() -> Self {
        PeerLoad {
            connections: LockedNumber::default(),
            fails: LockedNumber::default(),
            accessed: LockedNumber::default(),
            checked: LockedNumber::default(),
            started: LockedNumber::default(),
            connect_time: LockedNumber::default(),
            header_time: LockedNumber::default(),
            response_time: LockedNumber::default(),
            inflight_time: LockedNumber::default(),
            inflight: LockedNumber::default(),
            inflight_spent: LockedNumber::default(),
            inflight_changed: LockedNumber::default(),
            requests: LockedNumber::default(),
            failures: LockedNumber::default(),
            disabled: LockedNumber::default(),
            selected: LockedNumber::default(),
            down_since: LockedNumber::default(),
            downtime: LockedNumber::default(),
            checks: LockedNumber::default(),
            checks_failed: LockedNumber::default(),
            unhealthy: LockedNumber::default(),
            last_check_passed: LockedNumber::default(),
            latencies: OnceLock::new(),
            health: AtomicU8::new(PeerHealth::Unchecked as u8),
        }
    }
}

/// A snapshot of a peer for status pages.
#[derive(Clone, Debug)]
pub struct PeerStatus {
    /// The address as text.
    pub name: BString,
    /// The `server` line's address.
    pub server: BString,
    /// Whether the line says `backup`.
    pub backup: bool,
    /// Its configured state.
    pub state: ServerState,
    /// What active checks say.
    pub health: PeerHealth,
    /// Whether it would get a request now.
    pub available: bool,
    /// Its weight.
    pub weight: u32,
    /// Connections in use.
    pub connections: u64,
    /// Requests given to it so far.
    pub requests: u64,
    /// Failures that count towards `max_fails`.
    pub fails: u64,
    /// All failures so far, and how often they made it unavailable.
    pub failures: u64,
    /// See `failures`.
    pub disabled: u64,
    /// The times until connected, until the response head, and until the end of the response.
    pub latencies: [LatencySums; 3],
    /// The position of its `server` line.
    pub line: usize,
    /// The most connections in use at the same time; 0: no limit.
    pub max_conns: u32,
    /// Responses by status, once metrics are wanted, and bytes to it and from it.
    pub statuses: BTreeMap<u16, u64>,
    /// The same by the first digit of the status.
    pub classes: [u64; 6],
    /// See `statuses`.
    pub sent: u64,
    /// See `statuses`.
    pub received: u64,
    /// What active checks have done.
    pub checks: CheckTotals,
    /// How long ago it was last given a request; `None`: never.
    pub selected: Option<Duration>,
    /// For how long failures or checks have kept it from getting requests, now and before.
    pub down: Option<Duration>,
    /// See `down`.
    pub downtime: Duration,
    /// The mean time until connected.
    pub connect_time: Duration,
    /// The mean time until the response head.
    pub header_time: Duration,
    /// The mean time until the end of the response.
    pub response_time: Duration,
}

/// The active checks of a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckTotals {
    /// How many there were.
    pub checks: u64,
    /// How many of them failed.
    pub fails: u64,
    /// How often they made it unhealthy.
    pub unhealthy: u64,
    /// Whether the last one passed.
    pub last_passed: bool,
}

impl PeerStatus {
    /// The word for its state, as the commercial nginx has it.
    pub fn state_word(&self) -> &'static str {
        match (self.state, self.health) {
            (ServerState::Down, _) => "down",
            (_, PeerHealth::Unhealthy) => "unhealthy",
            (_, PeerHealth::Checking) => "checking",
            (ServerState::Drain, _) => "draining",
            (ServerState::Up, _) if self.down.is_some() => "unavail",
            (ServerState::Up, _) => "up",
        }
    }
}

/// Whether a peer can get a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerAvailability {
    /// Yes.
    Free,
    /// Not before a connection in use ends (`max_conns`).
    Occupied,
    /// No: it has failed, or must not be used.
    Out,
}

impl UpstreamPeer {
    pub(crate) fn new(
        id: u64,
        line: usize,
        server: &UpstreamServer,
        address: SocketAddress,
        load: Arc<PeerLoad>,
    ) -> UpstreamPeer {
        let name = BString::from(address.to_string());
        UpstreamPeer {
            id,
            sid: sticky::server_id(&server.route, &name),
            name,
            address,
            server: server.name.clone(),
            line,
            weight: i64::from(server.weight.max(1)),
            max_conns: i64::from(server.max_conns),
            max_fails: i64::from(server.max_fails),
            fail_timeout: milliseconds(server.fail_timeout),
            slow_start: milliseconds(server.slow_start),
            state: server.state,
            current_weight: LockedNumber::default(),
            effective_weight: LockedNumber::new(i64::from(server.weight.max(1)) * UNIT),
            load,
            idle_chain: ChainHint::default(),
        }
    }

    /// Where to connect.
    pub fn address(&self) -> &SocketAddress {
        &self.address
    }

    /// The address as `$upstream_addr` shows it.
    pub fn name(&self) -> &BString {
        &self.name
    }

    /// The address of the `server` line, as it is written.
    pub fn server(&self) -> &BString {
        &self.server
    }

    /// Its identifier in sticky cookies and routes.
    pub fn sid(&self) -> &BString {
        &self.sid
    }

    /// What active checks say.
    pub fn health(&self) -> PeerHealth {
        match self.load.health.load(Ordering::Relaxed) {
            1 => PeerHealth::Checking,
            2 => PeerHealth::Healthy,
            3 => PeerHealth::Unhealthy,
            _ => PeerHealth::Unchecked,
        }
    }

    pub(crate) fn set_health(&self, health: PeerHealth, now: i64) {
        self.load.health.store(health as u8, Ordering::Relaxed);
        match health {
            PeerHealth::Unchecked | PeerHealth::Healthy => self.note_up(now),
            PeerHealth::Checking => self.note_down(now),
            PeerHealth::Unhealthy => {
                self.load.unhealthy.add(1);
                self.note_down(now);
            }
        }
    }

    /// It gets no requests from now on.
    fn note_down(&self, now: i64) {
        if self.load.down_since.get() == 0 {
            self.load.down_since.set(now);
        }
    }

    /// It may get requests again, unless it has another reason not to.
    fn note_up(&self, now: i64) {
        let load = &self.load;
        let since = load.down_since.get();
        let ill = matches!(self.health(), PeerHealth::Checking | PeerHealth::Unhealthy);
        let has_failed = self.max_fails > 0 && load.fails.get() >= self.max_fails;
        if since != 0 && !ill && !has_failed {
            load.downtime.add((now - since).max(0));
            load.down_since.set(0);
        }
    }

    /// Whether it was made from a line that says the same as this one.
    pub(crate) fn is_of(&self, server: &UpstreamServer) -> bool {
        self.weight == i64::from(server.weight.max(1))
            && self.max_conns == i64::from(server.max_conns)
            && self.max_fails == i64::from(server.max_fails)
            && self.fail_timeout == milliseconds(server.fail_timeout)
            && self.slow_start == milliseconds(server.slow_start)
            && self.state == server.state
            && self.sid == sticky::server_id(&server.route, &self.name)
    }

    /// Whether it can get a request that is not bound to it.
    pub(crate) fn availability(&self, now: i64) -> PeerAvailability {
        match self.state {
            ServerState::Up => self.availability_when_bound(now),
            ServerState::Down | ServerState::Drain => PeerAvailability::Out,
        }
    }

    /// Whether it can get a request that is bound to it: a draining peer can.
    pub(crate) fn availability_when_bound(&self, now: i64) -> PeerAvailability {
        let ill = matches!(self.health(), PeerHealth::Checking | PeerHealth::Unhealthy);
        if self.state == ServerState::Down || ill || self.has_failed(now) {
            return PeerAvailability::Out;
        }
        self.occupancy()
    }

    /// Whether `max_conns` allows another request.
    pub(crate) fn occupancy(&self) -> PeerAvailability {
        match self.max_conns {
            0 => PeerAvailability::Free,
            most if self.load.connections.get() < most => PeerAvailability::Free,
            _ => PeerAvailability::Occupied,
        }
    }

    /// Whether failures make it unavailable. After `fail_timeout` it can get a request again, as a probe: the
    /// failures still count until that one succeeds.
    pub(crate) fn has_failed(&self, now: i64) -> bool {
        self.max_fails > 0
            && self.load.fails.get() >= self.max_fails
            && now - self.load.checked.get() <= self.fail_timeout
    }

    /// Its present weight, in units of [`UNIT`]: below the configured one during `slow_start`.
    pub(crate) fn weight_at(&self, now: i64) -> i64 {
        self.slow_start_share(self.weight * UNIT, now)
    }

    /// Scales `full` down during `slow_start`. Never to zero: round robin would skip the peer for ever.
    pub(crate) fn slow_start_share(&self, full: i64, now: i64) -> i64 {
        let age = now - self.load.started.get();
        if self.slow_start == 0 || age >= self.slow_start {
            return full;
        }
        (full * age.max(0) / self.slow_start).max(1)
    }

    /// Counts a failure; returns whether it makes the peer unavailable.
    pub(super) fn count_failure(&self, now: i64) -> bool {
        let load = &self.load;
        let fails = load.fails.add(1);
        load.failures.add(1);
        load.accessed.set(now);
        load.checked.set(now);
        if self.max_fails == 0 {
            return false;
        }
        // nginx's penalty: each failure takes off a share of the weight, so that a failing peer gets less already
        // before it is disabled.
        let lost = self.weight / self.max_fails * UNIT;
        self.effective_weight
            .set((self.effective_weight.get() - lost).max(0));
        let is_disabled = fails >= self.max_fails;
        if is_disabled {
            load.disabled.add(1);
            self.note_down(now);
        }
        is_disabled
    }

    /// A request did not fail. If the peer's last failure was before its last probe, this request was that probe:
    /// the failures are forgotten, and after having been unavailable the peer starts slowly.
    pub(super) fn note_success(&self, now: i64) {
        let load = &self.load;
        if load.accessed.get() < load.checked.get() && load.fails.get() > 0 {
            if self.max_fails > 0 && load.fails.get() >= self.max_fails {
                load.started.set(now);
            }
            load.fails.set(0);
            self.note_up(now);
        }
    }

    pub(crate) fn status(&self, backup: bool, now: i64) -> PeerStatus {
        let load = &self.load;
        let unsigned = |number: &LockedNumber| u64::try_from(number.get()).unwrap_or(0);
        let since = |number: &LockedNumber| {
            let then = Some(number.get()).filter(|then| *then != 0)?;
            Some(Duration::from_millis(
                u64::try_from(now - then).unwrap_or(0),
            ))
        };
        let down = since(&load.down_since);
        let traced = load.latencies.get();
        let mut statuses = BTreeMap::new();
        if let Some(traced) = traced {
            traced.statuses.add_to(&mut statuses);
        }
        PeerStatus {
            line: self.line,
            max_conns: u32::try_from(self.max_conns).unwrap_or(u32::MAX),
            statuses,
            classes: traced.map_or([0; 6], |traced| {
                traced.classes.each_ref().map(SingleWriterCounter::get)
            }),
            sent: traced.map_or(0, |traced| traced.sent.get()),
            received: traced.map_or(0, |traced| traced.received.get()),
            checks: CheckTotals {
                checks: unsigned(&load.checks),
                fails: unsigned(&load.checks_failed),
                unhealthy: unsigned(&load.unhealthy),
                last_passed: load.last_check_passed.get() != 0,
            },
            selected: since(&load.selected),
            down,
            downtime: Duration::from_millis(unsigned(&load.downtime)) + down.unwrap_or_default(),
            connect_time: Duration::from_millis(unsigned(&load.connect_time)),
            name: self.name.clone(),
            server: self.server.clone(),
            backup,
            state: self.state,
            health: self.health(),
            available: self.availability(now) == PeerAvailability::Free,
            weight: u32::try_from(self.weight).unwrap_or(u32::MAX),
            connections: unsigned(&load.connections),
            requests: unsigned(&load.requests),
            fails: unsigned(&load.fails),
            failures: unsigned(&load.failures),
            disabled: unsigned(&load.disabled),
            latencies: traced.map_or_else(Default::default, |times| {
                [&times.connect, &times.header, &times.response].map(LatencySums::of)
            }),
            header_time: Duration::from_millis(unsigned(&load.header_time)),
            response_time: Duration::from_millis(unsigned(&load.response_time)),
        }
    }
}

/// A weight of 1 in fixed point, so that `slow_start` has fractions of it. All weights have the same factor, so the
/// sequence is that of the plain numbers.
pub(crate) const UNIT: i64 = 1 << 12;

/// Updates a moving average over about twenty values.
pub(crate) fn moving_average(mean: &LockedNumber, value: i64) {
    let old = mean.get();
    mean.set(if old == 0 {
        value
    } else {
        (value + old * 19 + 10) / 20
    });
}

pub(crate) fn milliseconds(time: Duration) -> i64 {
    // At most a century: sums of such times cannot overflow.
    i64::try_from(time.as_millis())
        .unwrap_or(i64::MAX)
        .min(100 * 366 * 86_400_000)
}

/// Milliseconds since an epoch long before the start of the process, so that a time of 0 means "long ago" and no
/// time needs an `Option`.
pub(super) fn now_ms() -> i64 {
    const EPOCH: i64 = 1 << 40;
    EPOCH.saturating_add_unsigned(rt::monotonic_millis())
}
