//! A peer: one address of a server, with its counters.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bstr::{BStr, BString, ByteSlice};
use rt::net::SocketAddress;

use super::peer_load::{LockedNumber, PeerLoad, PeerTroubles};
use super::server::{ServerState, UpstreamServer};
use super::sticky::ServerSid;
use crate::counters::SingleWriterCounter;
use crate::metrics::LatencySums;

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
    /// One text, if the address is written as it is in the `server` line.
    name: Arc<[u8]>,
    server: Arc<[u8]>,
    sid: ServerSid,
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
        let text = address.to_string();
        let written: Arc<[u8]> = Arc::from(&**server.name);
        UpstreamPeer {
            id,
            sid: ServerSid::new(&server.route, text.as_bytes()),
            name: match *written == *text.as_bytes() {
                true => Arc::clone(&written),
                false => Arc::from(text.as_bytes()),
            },
            address,
            server: written,
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
    pub fn name(&self) -> &BStr {
        self.name.as_bstr()
    }

    /// The address of the `server` line, as it is written.
    pub fn server(&self) -> &BStr {
        self.server.as_bstr()
    }

    /// Its identifier in sticky cookies and routes.
    pub fn sid(&self) -> BString {
        self.sid.to_text()
    }

    /// Whether this is its identifier.
    pub(crate) fn is_called(&self, sid: &[u8]) -> bool {
        self.sid.is_text(sid)
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
                self.load.troubles().unhealthy.add(1);
                self.note_down(now);
            }
        }
    }

    /// It gets no requests from now on.
    fn note_down(&self, now: i64) {
        let down_since = &self.load.troubles().down_since;
        if down_since.get() == 0 {
            down_since.set(now);
        }
    }

    /// It may get requests again, unless it has another reason not to.
    fn note_up(&self, now: i64) {
        let load = &self.load;
        let Some(troubles) = load.known_troubles() else {
            return;
        };
        let since = troubles.down_since.get();
        let ill = matches!(self.health(), PeerHealth::Checking | PeerHealth::Unhealthy);
        let has_failed = self.max_fails > 0 && load.fails.get() >= self.max_fails;
        if since != 0 && !ill && !has_failed {
            troubles.downtime.add((now - since).max(0));
            troubles.down_since.set(0);
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
            && self.sid == ServerSid::new(&server.route, &self.name)
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
        if self.slow_start == 0 {
            return full;
        }
        let started = self.load.known_troubles();
        let age = now - started.map_or(0, |troubles| troubles.started.get());
        if age >= self.slow_start {
            return full;
        }
        (full * age.max(0) / self.slow_start).max(1)
    }

    /// Counts a failure; returns whether it makes the peer unavailable.
    pub(super) fn count_failure(&self, now: i64) -> bool {
        let load = &self.load;
        let fails = load.fails.add(1);
        load.troubles().failures.add(1);
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
            load.troubles().disabled.add(1);
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
                load.troubles().started.set(now);
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
        let none = PeerTroubles::default();
        let troubles = load.known_troubles().unwrap_or(&none);
        let down = since(&troubles.down_since);
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
                checks: unsigned(&troubles.checks),
                fails: unsigned(&troubles.checks_failed),
                unhealthy: unsigned(&troubles.unhealthy),
                last_passed: troubles.last_check_passed.get() != 0,
            },
            selected: since(&load.selected),
            down,
            downtime: Duration::from_millis(unsigned(&troubles.downtime))
                + down.unwrap_or_default(),
            connect_time: Duration::from_millis(unsigned(&load.connect_time)),
            name: self.name().to_owned(),
            server: self.server().to_owned(),
            backup,
            state: self.state,
            health: self.health(),
            available: self.availability(now) == PeerAvailability::Free,
            weight: u32::try_from(self.weight).unwrap_or(u32::MAX),
            connections: unsigned(&load.connections),
            requests: unsigned(&load.requests),
            fails: unsigned(&load.fails),
            failures: unsigned(&troubles.failures),
            disabled: unsigned(&troubles.disabled),
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
