//! The counters of a peer, which outlive a reload. They change under the lock of its group.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU8, Ordering};

use super::outcome::{PeerTraffic, UpstreamTimes};
use super::peer::PeerHealth;
use crate::counters::SingleWriterCounter;
use crate::metrics::{LatencyHistogram, StatusCounters};

/// The counters of a peer that survive a reload. Times are in milliseconds.
///
/// A group may have ten thousand peers, so what only a few of them have is apart.
#[derive(Debug)]
pub(crate) struct PeerLoad {
    pub(crate) connections: LockedNumber,
    pub(crate) fails: LockedNumber,
    /// When it last failed.
    pub(crate) accessed: LockedNumber,
    /// When it was last given a request as a probe after `fail_timeout`, or failed.
    pub(crate) checked: LockedNumber,
    /// Moving averages, for `least_time`.
    pub(crate) connect_time: LockedNumber,
    pub(crate) header_time: LockedNumber,
    pub(crate) response_time: LockedNumber,
    /// How many requests it was given.
    pub(crate) requests: LockedNumber,
    /// When it was last given a request; 0: never.
    pub(crate) selected: LockedNumber,
    /// Once it has failed or was checked.
    troubles: OnceLock<Box<PeerTroubles>>,
    /// Once `least_time … inflight` has looked at it.
    inflight: OnceLock<Box<PeerInflight>>,
    /// The times of its responses, once metrics are wanted. Written under the group's lock: one thread at a time.
    pub(crate) latencies: OnceLock<Box<PeerLatencies>>,
    pub(super) health: AtomicU8,
}

/// What a peer that has never failed does not have. Times are in milliseconds.
#[derive(Debug, Default)]
pub(crate) struct PeerTroubles {
    /// When it recovered after being unavailable, for `slow_start`; 0: never.
    pub(crate) started: LockedNumber,
    /// How many requests failed, and how often that made it unavailable.
    pub(super) failures: LockedNumber,
    pub(super) disabled: LockedNumber,
    /// Since when failures or checks keep it from getting requests; 0: they do not. And how long they have done so before.
    pub(super) down_since: LockedNumber,
    pub(super) downtime: LockedNumber,
    /// Active checks: how many there were, how many failed, how often they made it unhealthy, and whether the last one
    /// passed.
    pub(crate) checks: LockedNumber,
    pub(crate) checks_failed: LockedNumber,
    pub(super) unhealthy: LockedNumber,
    pub(crate) last_check_passed: LockedNumber,
}

/// The requests under way of a peer, for `least_time … inflight`. Times are in milliseconds.
#[derive(Debug, Default)]
pub(crate) struct PeerInflight {
    /// The moving average of their ages.
    pub(crate) time: LockedNumber,
    pub(crate) count: LockedNumber,
    /// The total time that they had taken at `changed`.
    pub(crate) spent: LockedNumber,
    pub(crate) changed: LockedNumber,
}

impl PeerLoad {
    /// What there is of its troubles so far.
    pub(super) fn known_troubles(&self) -> Option<&PeerTroubles> {
        self.troubles.get().map(|troubles| &**troubles)
    }

    /// Its troubles, to add to them.
    pub(crate) fn troubles(&self) -> &PeerTroubles {
        self.troubles.get_or_init(Box::default)
    }

    /// Its requests under way, if `least_time … inflight` has counted any.
    pub(crate) fn known_inflight(&self) -> Option<&PeerInflight> {
        self.inflight.get().map(|inflight| &**inflight)
    }

    /// Its requests under way, to count one.
    pub(crate) fn inflight(&self) -> &PeerInflight {
        self.inflight.get_or_init(Box::default)
    }
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
            connect_time: LockedNumber::default(),
            header_time: LockedNumber::default(),
            response_time: LockedNumber::default(),
            requests: LockedNumber::default(),
            selected: LockedNumber::default(),
            troubles: OnceLock::new(),
            inflight: OnceLock::new(),
            latencies: OnceLock::new(),
            health: AtomicU8::new(PeerHealth::Unchecked as u8),
        }
    }
}

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

/// Updates a moving average over about twenty values.
pub(crate) fn moving_average(mean: &LockedNumber, value: i64) {
    let old = mean.get();
    mean.set(if old == 0 {
        value
    } else {
        (value + old * 19 + 10) / 20
    });
}
