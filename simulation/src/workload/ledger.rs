//! What there is to ask for, and what was said and heard: the ground of the invariants.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cache::PurgeMode;
use rt::simulation::clock;

use super::probe::ProbedMetrics;
use crate::chance::SeededChance;

/// How many resources the origin has, and how many files the server has.
pub(crate) const RESOURCES: usize = 8;
pub(crate) const FILES: usize = 4;
/// How many variants a resource has where its response varies.
pub(crate) const VARIANTS: usize = 3;

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

impl CachePolicy {
    pub(crate) fn is_shared(self) -> bool {
        !matches!(self, CachePolicy::NoStore | CachePolicy::Private)
    }
}

/// How a response's body is framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyFraming {
    Length,
    Chunked,
    Close,
}

/// The locations with a cache, each with directives of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CacheFlavour {
    Plain,
    /// `use_stale` and `background_update`.
    Stale,
    /// `proxy_cache_partial`.
    Parts,
    /// The origin's responses vary.
    Vary,
    /// `slice`.
    Slice,
    /// `proxy_cache_lock off`: each miss has a fetch of its own.
    Apart,
}

impl CacheFlavour {
    pub(crate) const ALL: [CacheFlavour; 6] = [
        CacheFlavour::Plain,
        CacheFlavour::Stale,
        CacheFlavour::Parts,
        CacheFlavour::Vary,
        CacheFlavour::Slice,
        CacheFlavour::Apart,
    ];

    /// What its paths begin with.
    pub(crate) fn letter(self) -> char {
        match self {
            CacheFlavour::Plain => 'c',
            CacheFlavour::Stale => 's',
            CacheFlavour::Parts => 'r',
            CacheFlavour::Vary => 'v',
            CacheFlavour::Slice => 'l',
            CacheFlavour::Apart => 'u',
        }
    }

    /// Its name as a cut.
    pub(crate) fn name(self) -> &'static str {
        match self {
            CacheFlavour::Plain => "plain",
            CacheFlavour::Stale => "stale",
            CacheFlavour::Parts => "parts",
            CacheFlavour::Vary => "vary",
            CacheFlavour::Slice => "slice",
            CacheFlavour::Apart => "apart",
        }
    }

    /// Whether it promises one fetch at a time of each thing.
    fn fetches_once(self) -> bool {
        matches!(self, CacheFlavour::Plain | CacheFlavour::Stale)
    }
}

/// A thing under a key of the cache: where, which resource, which variant.
pub(crate) type CachedThing = (CacheFlavour, usize, usize);

/// Something that the origin has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OriginResource {
    pub(crate) len: usize,
    pub(crate) framing: BodyFraming,
    pub(crate) policy: CachePolicy,
    /// It has a strong validator.
    pub(crate) has_etag: bool,
    /// Ranges of it can be asked for.
    pub(crate) has_ranges: bool,
    /// `If-Range` is understood: otherwise a part is given of whatever there is now, as some origins do.
    pub(crate) has_if_range: bool,
    /// How long its head takes, in milliseconds.
    pub(crate) delay_ms: u64,
    /// The longest pause between two pieces of its body, in milliseconds: it may take longer to come than it is fresh.
    pub(crate) pause_ms: u64,
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
            has_ranges: !chance.once_in(3),
            has_if_range: !chance.once_in(3),
            delay_ms: *chance.choose(&[0, 0, 1, 30, 400]),
            pause_ms: *chance.choose(&[0, 0, 900]),
            changes: *chance.choose(&[1, 3, 1000]),
        }
    }

    /// One at which the clients of a crowd meet: under way for long, and soon stale.
    fn of_crowd(flavour: CacheFlavour, chance: &mut SeededChance) -> OriginResource {
        let is_in_parts = matches!(flavour, CacheFlavour::Parts | CacheFlavour::Slice);
        let lives_long = flavour == CacheFlavour::Apart || chance.once_in(3);
        OriginResource {
            len: match is_in_parts {
                true => 66_000,
                false => *chance.choose(&[100, 5_000, 20_000]),
            },
            framing: BodyFraming::Length,
            policy: CachePolicy::MaxAge(if lives_long { 300 } else { 2 }),
            has_etag: is_in_parts || !chance.once_in(4),
            has_ranges: true,
            has_if_range: !chance.once_in(3),
            delay_ms: *chance.choose(&[0, 30, 400]),
            pause_ms: *chance.choose(&[0, 60, 600]),
            changes: match flavour {
                CacheFlavour::Apart => 1,
                _ => *chance.choose(&[1, 3, 1000]),
            },
        }
    }
}

/// One response of the origin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SaidResponse {
    pub(crate) resource: usize,
    pub(crate) variant: usize,
    /// Which content it has, or confirms.
    pub(crate) version: u64,
    /// When its head was sent, in nanoseconds.
    pub(crate) sent: u64,
    pub(crate) policy: CachePolicy,
    /// How many clients have got its body.
    pub(crate) heard: u64,
}

/// When purges had been sent; 0: there was none.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PurgeTimes {
    pub(crate) hard: u64,
    pub(crate) soft: u64,
}

/// A fetch under way at the origin.
#[derive(Clone, Copy, Debug)]
struct RunningFetch {
    number: u64,
    thing: CachedThing,
    /// Until when its response may be shared, once its head was sent.
    fresh_until: Option<u64>,
    /// It was purged: requests since then begin another one.
    is_purged: bool,
}

/// What all loops of a simulation share.
pub(crate) struct WorkloadLedger {
    pub(crate) resources: Vec<OriginResource>,
    pub(crate) files: Vec<usize>,
    pub(crate) origin_is_moody: bool,
    /// What half of the requests are for, so that clients meet.
    pub(crate) hot: usize,
    /// How most of the requests of a crowd ask for it.
    pub(crate) crowd: Option<CacheFlavour>,
    state: Mutex<LedgerState>,
}

#[derive(Default)]
pub(crate) struct LedgerState {
    /// By number.
    pub(crate) said: Vec<SaidResponse>,
    /// The present version of each resource, then of each as slices show it.
    pub(crate) versions: Vec<u64>,
    /// Fetches under way at the origin for a cache.
    fetches: Vec<RunningFetch>,
    next_fetch: u64,
    /// Two at a time.
    pub(crate) doubled: Vec<String>,
    /// When the last purge of each kind that was answered had been sent.
    pub(crate) purged: BTreeMap<(CacheFlavour, usize), PurgeTimes>,
    /// When the last purge of it was sent.
    purging: BTreeMap<(CacheFlavour, usize), u64>,
    /// The latest response of each thing that a client has got whole as a hit.
    pub(crate) latest_hit: BTreeMap<(CacheFlavour, usize), usize>,
    /// How many requests clients have sent, and how many the origin has got.
    pub(crate) asked: u64,
    pub(crate) heard: u64,
    /// Those of them that came by the origin's name.
    pub(crate) named: u64,
    /// Requests under way at the origin that `limit_conn` lets through, and the most of them.
    pub(crate) limited_now: usize,
    pub(crate) limited_most: usize,
    /// When requests that `limit_req` lets through have come to the origin.
    pub(crate) paced: Vec<u64>,
    pub(crate) violations: Vec<String>,
    pub(crate) counts: BTreeMap<&'static str, u64>,
    pub(crate) clients_left: usize,
    pub(crate) stops_origin: bool,
    /// The last client is to begin, the origin is in no mood any more, and what the last client has got.
    pub(crate) probes: bool,
    pub(crate) origin_rests: bool,
    pub(crate) probed: Option<ProbedMetrics>,
}

impl WorkloadLedger {
    /// In a storm, what half of the requests are for is such that clients meet stale responses and renew them.
    pub(crate) fn draw(
        chance: &mut SeededChance,
        is_moody: bool,
        (is_storm, is_crowd): (bool, bool),
    ) -> Arc<WorkloadLedger> {
        let state = LedgerState {
            versions: vec![1; 2 * RESOURCES],
            ..LedgerState::default()
        };
        let draw = |_| OriginResource::draw(chance);
        let mut resources: Vec<OriginResource> = (0..RESOURCES).map(draw).collect();
        let hot = chance.below(RESOURCES);
        if chance.once_in(2) {
            (resources[hot].policy, resources[hot].pause_ms) = (CachePolicy::MaxAge(2), 900);
        }
        if is_storm {
            resources[hot] = OriginResource {
                len: 20_000,
                framing: BodyFraming::Length,
                policy: CachePolicy::MaxAge(2),
                has_etag: true,
                has_ranges: true,
                has_if_range: true,
                delay_ms: 400,
                pause_ms: 500,
                changes: 3,
            };
        }
        let crowd = is_crowd.then(|| *chance.choose(&CacheFlavour::ALL));
        if let Some(flavour) = crowd {
            resources[hot] = OriginResource::of_crowd(flavour, chance);
        }
        Arc::new(WorkloadLedger {
            resources,
            files: (0..FILES).map(|_| *chance.choose(&LENGTHS)).collect(),
            origin_is_moody: is_moody,
            hot,
            crowd,
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

    /// A purge that was sent at `sent` has been answered.
    pub(crate) fn note_purged(
        &self,
        flavour: CacheFlavour,
        resource: usize,
        mode: PurgeMode,
        sent: u64,
    ) {
        let mut state = self.state();
        let known = state.purged.entry((flavour, resource)).or_default();
        let known = match mode {
            PurgeMode::Hard => &mut known.hard,
            PurgeMode::Soft => &mut known.soft,
        };
        *known = sent.max(*known);
    }

    /// A purge is sent: from now on requests need not join what is under way.
    pub(crate) fn note_purging(&self, flavour: CacheFlavour, resource: usize) {
        let mut state = self.state();
        state.purging.insert((flavour, resource), clock::nanos());
        for fetch in &mut state.fetches {
            fetch.is_purged |= fetch.thing.0 == flavour && fetch.thing.1 == resource;
        }
    }

    /// Another process takes over: it joins nothing that is under way at the origin.
    pub(crate) fn note_upgrade(&self) {
        self.state().latest_hit.clear();
    }

    /// The process has died. What it was asked to purge may be back, since it has not said when that is on the disk; and it
    /// joins nothing that is under way at the origin.
    pub(crate) fn note_crash(&self) {
        let mut state = self.state();
        state.purged.clear();
        state.latest_hit.clear();
        state
            .fetches
            .iter_mut()
            .for_each(|fetch| fetch.is_purged = true);
    }
}

impl LedgerState {
    /// Whether a purge of it was sent then or later.
    pub(crate) fn was_purged_since(&self, thing: (CacheFlavour, usize), time: u64) -> bool {
        self.purging.get(&thing).is_some_and(|sent| *sent >= time)
    }

    /// A client has got a response whole, as a hit.
    pub(crate) fn note_hit(&mut self, thing: (CacheFlavour, usize), number: usize) {
        let latest = self.latest_hit.entry(thing).or_default();
        *latest = number.max(*latest);
    }
}

/// A fetch of the cache, while it lasts at the origin.
pub(crate) struct FetchGuard {
    ledger: Arc<WorkloadLedger>,
    number: u64,
}

impl FetchGuard {
    /// A fetch whose first client has sent its request at `asked`.
    pub(crate) fn new(ledger: &Arc<WorkloadLedger>, thing: CachedThing, asked: u64) -> FetchGuard {
        let (flavour, resource, _) = thing;
        let counts = flavour.fetches_once() && ledger.resources[resource].policy.is_shared();
        let now = clock::nanos();
        let mut state = ledger.state();
        let is_joinable = |fetch: &&RunningFetch| {
            let is_fresh = fetch.fresh_until.is_none_or(|until| now < until);
            fetch.thing == thing && is_fresh && !fetch.is_purged
        };
        // It may have begun before a purge, and have come to the origin after it: then it is none of those that may be joined,
        // and need not have joined one that has begun since.
        let purging = state.purging.get(&(flavour, resource));
        let is_purged = purging.is_some_and(|sent| *sent >= asked);
        if counts && !is_purged && state.fetches.iter().any(|fetch| is_joinable(&fetch)) {
            let text = format!("{thing:?} is fetched twice at once at {now}");
            state.doubled.push(text);
        }
        let number = state.next_fetch;
        state.next_fetch += 1;
        state.fetches.push(RunningFetch {
            number,
            thing,
            fresh_until: None,
            is_purged,
        });
        drop(state);
        FetchGuard {
            ledger: Arc::clone(ledger),
            number,
        }
    }

    /// The head has been sent.
    pub(crate) fn note_head(&self, lifetime_nanos: u64) {
        let mut state = self.ledger.state();
        let mut fetches = state.fetches.iter_mut();
        if let Some(fetch) = fetches.find(|fetch| fetch.number == self.number) {
            fetch.fresh_until = Some(clock::nanos() + lifetime_nanos);
        }
    }
}

impl Drop for FetchGuard {
    fn drop(&mut self) {
        let mut state = self.ledger.state();
        state.fetches.retain(|fetch| fetch.number != self.number);
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

/// What stands for a variant of a resource in [`content`].
pub(crate) fn variant_of(resource: usize, variant: usize) -> u64 {
    (resource + 100 * variant) as u64
}

/// A number that stands for bytes, in the header fields of uploads.
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    let fold = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, fold)
}
