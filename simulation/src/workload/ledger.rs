//! What there is to ask for, and what was said and heard: the ground of the invariants.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::chance::SeededChance;

/// How many resources the origin has, and how many files the server has.
pub(crate) const RESOURCES: usize = 8;
pub(crate) const FILES: usize = 4;

/// What a response says of caching.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CachePolicy {
    /// `max-age` in seconds.
    MaxAge(u64),
    /// Nothing: the configuration's `proxy_cache_valid` counts.
    Unsaid,
    NoStore,
    Private,
}

/// How a response's body is framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyFraming {
    Length,
    Chunked,
    Close,
}

/// Something that the origin has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OriginResource {
    pub(crate) len: usize,
    pub(crate) framing: BodyFraming,
    pub(crate) policy: CachePolicy,
    /// It has a strong validator.
    pub(crate) has_etag: bool,
    /// How long its head takes, in milliseconds.
    pub(crate) delay_ms: u64,
    /// It changes once in this number of responses.
    pub(crate) changes: usize,
}

const LENGTHS: [usize; 9] = [0, 1, 100, 1_400, 5_000, 20_000, 66_000, 150_000, 300_000];

impl OriginResource {
    fn draw(chance: &mut SeededChance) -> OriginResource {
        let framings = [
            BodyFraming::Length,
            BodyFraming::Length,
            BodyFraming::Chunked,
            BodyFraming::Close,
        ];
        let policies = [
            CachePolicy::MaxAge(2),
            CachePolicy::MaxAge(20),
            CachePolicy::MaxAge(300),
            CachePolicy::Unsaid,
            CachePolicy::NoStore,
            CachePolicy::Private,
        ];
        OriginResource {
            len: *chance.choose(&LENGTHS),
            framing: *chance.choose(&framings),
            policy: *chance.choose(&policies),
            has_etag: chance.once_in(2),
            delay_ms: *chance.choose(&[0, 0, 1, 30, 400]),
            changes: *chance.choose(&[1, 3, 1000]),
        }
    }
}

/// One response of the origin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SaidResponse {
    pub(crate) resource: usize,
    /// Which content it has, or confirms.
    pub(crate) version: u64,
    /// When its head was sent, in nanoseconds.
    pub(crate) sent: u64,
    pub(crate) policy: CachePolicy,
    /// How many clients have got its body.
    pub(crate) heard: u64,
}

/// What all loops of a simulation share.
pub(crate) struct WorkloadLedger {
    pub(crate) resources: Vec<OriginResource>,
    pub(crate) files: Vec<usize>,
    pub(crate) origin_is_moody: bool,
    state: Mutex<LedgerState>,
}

#[derive(Default)]
pub(crate) struct LedgerState {
    /// By number.
    pub(crate) said: Vec<SaidResponse>,
    /// The present version of each resource.
    pub(crate) versions: Vec<u64>,
    /// Fetches under way at the origin, by resource, for the cache.
    pub(crate) fetches: BTreeMap<usize, u64>,
    /// Two at a time.
    pub(crate) doubled: Vec<String>,
    pub(crate) violations: Vec<String>,
    pub(crate) counts: BTreeMap<&'static str, u64>,
    pub(crate) clients_left: usize,
    pub(crate) stops_origin: bool,
}

impl WorkloadLedger {
    pub(crate) fn draw(
        chance: &mut SeededChance,
        clients: usize,
        is_moody: bool,
    ) -> Arc<WorkloadLedger> {
        let state = LedgerState {
            versions: vec![1; RESOURCES],
            clients_left: clients,
            ..LedgerState::default()
        };
        Arc::new(WorkloadLedger {
            resources: (0..RESOURCES)
                .map(|_| OriginResource::draw(chance))
                .collect(),
            files: (0..FILES).map(|_| *chance.choose(&LENGTHS)).collect(),
            origin_is_moody: is_moody,
            state: Mutex::new(state),
        })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, LedgerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn count(&self, what: &'static str) {
        *self.state().counts.entry(what).or_default() += 1;
    }

    pub(crate) fn violate(&self, text: String) {
        rt::simulation::note(|| format!("VIOLATION {text}"));
        self.state().violations.push(text);
    }
}

/// The body of a version of a resource, or of a file: different at each place, and from others.
pub(crate) fn content(what: u64, version: u64, len: usize) -> Vec<u8> {
    let mut chance = SeededChance::new(what.wrapping_mul(1_000_003).wrapping_add(version));
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&chance.number().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// A number that stands for bytes, in the header fields of uploads.
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    let fold = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, fold)
}
