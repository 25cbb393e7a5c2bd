//! The counters of `limit_conn`: how many requests or sessions of each key are in progress.
//!
//! [`ConnLimitPolicy::take_slots`] takes slots. Each goes back when its [`ConnSlot`] is dropped, so that no way of
//! ending a request can forget to return it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bstr::{BStr, ByteSlice};
use conf::{
    Arity, Contexts, Diagnostic, Directive, DirectiveLine, Expression, RepeatRule, Setter,
    Variable, parse,
};
use host::error_log::LogLevel;
use net::cluster::SlotShare;
use net::metrics::{MetricFamily, MetricSink};

use super::ClientScope;
use super::limit_conn_sync::report_slots;
use super::limit_req_sync::{SyncWords, ZoneSync};
use super::zones::{self, SharedZone, ZoneShards, ZoneState};

/// What an entry costs its zone besides the key, in bytes: close to the real cost here and the same
/// as in nginx, so that zone sizes carry over.
const FIXED_COST: usize = 36;

/// The row of `limit_conn_zone`. `read` is [`ConnZones::read`] for the zones' owner.
pub(crate) const fn zone_row(
    contexts: Contexts,
    doc: &'static str,
    read: fn(&mut ConnZones, &mut DirectiveLine) -> Result<(), Diagnostic>,
) -> Directive<ConnZones> {
    Directive {
        name: "limit_conn_zone",
        syntax: "key zone=name:size [sync=share|redis cluster=name]",
        default: None,
        contexts,
        since: "0.1",
        doc,
        set: Setter::Custom(Arity::between(2, 4), RepeatRule::Many, read),
    }
}

/// The row of `limit_conn`. `read` is [`ConnLimits::read`] for the zones' owner.
pub(crate) const fn limit_row(
    contexts: Contexts,
    doc: &'static str,
    read: fn(&mut ConnLimitPolicy, &mut DirectiveLine) -> Result<(), Diagnostic>,
) -> Directive<ConnLimitPolicy> {
    Directive {
        name: "limit_conn",
        syntax: "zone number",
        default: None,
        contexts,
        since: "0.1",
        doc,
        set: Setter::Custom(
            Arity::exactly(2),
            RepeatRule::Fresh(|c| c.limits.clear()),
            read,
        ),
    }
}

/// The row of `limit_conn_log_level`.
pub(crate) const fn log_level_row(
    contexts: Contexts,
    doc: &'static str,
) -> Directive<ConnLimitPolicy> {
    Directive {
        name: "limit_conn_log_level",
        syntax: "info | notice | warn | error",
        default: Some("error"),
        contexts,
        since: "0.1",
        doc,
        set: Setter::Word(&LEVEL_WORDS, |c, i| c.level = LEVELS[i]),
    }
}

/// The row of `limit_conn_dry_run`: to find good limits under real traffic before they reject
/// anything.
pub(crate) const fn dry_run_row(contexts: Contexts) -> Directive<ConnLimitPolicy> {
    Directive {
        name: "limit_conn_dry_run",
        syntax: "on | off",
        default: Some("off"),
        contexts,
        since: "0.1",
        doc: "Counts and logs, but does not reject.",
        set: Setter::Flag(|c| &mut c.dry_run),
    }
}

/// The row of `$limit_conn_status`.
pub(crate) const fn status_variable<S: 'static>(
    get: fn(&mut S, &mut Vec<u8>) -> bool,
) -> Variable<S> {
    let doc = "`PASSED`, `REJECTED` or `REJECTED_DRY_RUN`.";
    Variable::new("limit_conn_status", get, doc).volatile()
}

/// What becomes of a request or session, in metrics.
pub(crate) const OUTCOMES: [&str; 3] = ["passed", "refused", "refused_dry_run"];

static METRICS: MetricFamily = MetricFamily::counter(
    "weir_limit_conn_requests",
    "Requests that a zone of limit_conn judged: passed, refused, or what they would have been.",
);

/// Tells what became of the requests of each zone.
pub(crate) fn tell_metrics(zones: &ConnZones, sink: &mut dyn MetricSink) {
    sink.family(&METRICS);
    for (name, counters) in zones.states() {
        for (outcome, count) in OUTCOMES.iter().zip(&counters.outcomes) {
            let labels = [("zone", name.as_bytes()), ("outcome", outcome.as_bytes())];
            sink.count(&labels, count.load(Relaxed));
        }
    }
}

/// The counters of a zone, shared by all loops.
pub(crate) struct ConnCounters {
    size: u64,
    /// What became of requests: see [`OUTCOMES`].
    pub(crate) outcomes: [AtomicU64; OUTCOMES.len()],
    /// The key's source text. A reload that changes it is refused, because the counts under the old
    /// keys would mean something else.
    key: Box<[u8]>,
    /// In parts, so that loops rarely wait for each other's lock.
    tables: ZoneShards<CounterTable>,
}

/// One shard of a zone.
#[derive(Default)]
struct CounterTable {
    /// Counters above 0; one that drops to 0 is removed.
    counts: HashMap<Arc<[u8]>, ConnCount>,
    /// The sum of the costs of all keys; at most the size of the shard.
    used: u64,
    /// Keys that the other members still take for counted here. At most [`ENDED_MAX`]: of others they forget by themselves.
    ended: Vec<Arc<[u8]>>,
}

/// The counter of a key.
struct ConnCount {
    taken: u32,
    /// What is known of the other members, with `sync=redis`.
    share: Option<SlotShare>,
    /// The number has changed since the other members were told.
    is_changed: bool,
    /// The table's copy of the key, for slots to share: a slot then costs no allocation for a key that is known.
    key: Arc<[u8]>,
}

/// One place of a key's limit, returned on drop.
pub(crate) struct ConnSlot {
    counters: Arc<ConnCounters>,
    key: Arc<[u8]>,
}

/// How many places of a key may be taken here.
#[derive(Clone, Copy, Debug)]
enum SlotLimit {
    /// This number.
    Fixed(u32),
    /// The first number, at all members together, of which there are the second.
    Common(u32, usize),
}

impl SlotLimit {
    fn most(self, share: Option<&SlotShare>) -> u32 {
        match (self, share) {
            (SlotLimit::Fixed(most), _) => most,
            (SlotLimit::Common(limit, _), Some(share)) => share.most(limit),
            (SlotLimit::Common(limit, members), None) => SlotShare::most_at_first(limit, members),
        }
    }
}

/// See [`CounterTable::ended`].
const ENDED_MAX: usize = 4096;

/// Why a place was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnRefusal {
    /// The key is at its limit.
    LimitReached,
    /// The zone is full.
    ZoneFull,
}

/// The zones declared by a configuration.
#[derive(Clone, Default)]
pub(crate) struct ConnZones(Vec<Arc<ConnZone>>);

/// A zone as `limit_conn_zone` declares it.
pub(crate) type ConnZone = SharedZone<ConnZoneDeclaration, ConnCounters>;

/// What a zone counts by.
pub(crate) struct ConnZoneDeclaration {
    key: Expression,
    /// With whom the limits are shared.
    pub(crate) sync: Option<ZoneSync>,
}

/// A block's limits in the order of the configuration, which is the order they are applied in.
#[derive(Clone, Default)]
pub(crate) struct ConnLimits(Vec<ConnLimit>);

/// One `limit_conn` line.
#[derive(Clone)]
struct ConnLimit {
    zone: Arc<ConnZone>,
    /// The maximum number of concurrent requests or sessions per key.
    max: u32,
}

/// A block's limits with the directives that qualify them.
#[derive(Clone, Default)]
pub(crate) struct ConnLimitPolicy {
    pub(crate) limits: ConnLimits,
    /// The level of log lines about rejections.
    pub(crate) level: LogLevel,
    /// `limit_conn_dry_run`: count and log, but reject nothing.
    pub(crate) dry_run: bool,
    /// The status of rejected requests; a session's is always 503.
    pub(crate) status: i64,
}

/// The outcome for a request or session with at least one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimitConnStatus {
    Passed,
    Rejected,
    RejectedDryRun,
}

/// The words of `limit_conn_log_level`.
const LEVEL_WORDS: [&str; 4] = ["info", "notice", "warn", "error"];
/// The levels in the order of these words.
const LEVELS: [LogLevel; 4] = [
    LogLevel::Info,
    LogLevel::Notice,
    LogLevel::Warn,
    LogLevel::Error,
];

/// Longer keys are not counted, in bytes; nginx's bound, from the one byte that holds the length
/// there.
const MAX_KEY: usize = 255;

/// The largest limit; nginx keeps the count in 16 bits.
const MAX_LIMIT: i64 = 65_535;

impl ConnZones {
    /// Reads `limit_conn_zone KEY zone=NAME:SIZE`. `kind` is the owner of the zone in messages;
    /// http and stream have separate zones.
    pub(crate) fn read(
        &mut self,
        line: &mut DirectiveLine,
        kind: &'static str,
    ) -> Result<(), Diagnostic> {
        let key = line.expression(0)?;
        let Some(value) = parse::parameter(line.text(1), "zone") else {
            return Err(line.invalid_parameter(1));
        };
        let zone = zones::name_and_size(line, 1, value)?;
        let mut sync = SyncWords::default();
        for index in 2..line.args().len() {
            if !sync.take(line, index)? {
                return Err(line.invalid_parameter(index));
            }
        }
        let sync = sync.finish(line)?;
        if let Some(sync) = &sync {
            sync.note_need(line);
        }
        let name = zone.name.clone();
        let twice = |first: &ConnZoneDeclaration| {
            format!(
                "limit_conn_zone \"{name}\" is already bound to key \"{}\"",
                first.key.source()
            )
        };
        self.0.push(zones::declare(
            line,
            zone,
            kind,
            ConnZoneDeclaration { key, sync },
            twice,
        )?);
        Ok(())
    }

    /// Finds the counters that a previous configuration left, or creates them.
    pub(crate) fn adopt_states(
        &self,
        zones: &host::engine::ZoneRegistry,
        kind: &str,
    ) -> Result<(), String> {
        for zone in &self.0 {
            let source = |declared: &ConnZoneDeclaration| declared.key.source().to_vec();
            let counters = zone.adopt_state(zones, kind, |size, declared| {
                ConnCounters::new(size, &source(declared))
            });
            let key = zone.declared().map(source).unwrap_or_default();
            // nginx refuses such a reload too.
            if *counters.key != *key {
                let (key, former) = (BStr::new(&key), BStr::new(&*counters.key));
                let name = &zone.name;
                return Err(format!(
                    "limit_conn_zone \"{name}\" uses the \"{key}\" key while previously it used the \"{former}\" key"
                ));
            }
        }
        Ok(())
    }

    /// Starts to tell the other members what the zones of `sync=redis` have. To be called on one loop.
    pub(crate) fn start_reports(&self) -> Vec<rt::JoinHandle<()>> {
        let counted = self.0.iter().filter(|zone| {
            let sync = zone.declared().and_then(|declared| declared.sync.as_ref());
            sync.is_some_and(ZoneSync::needs_redis)
        });
        let report = |zone: &Arc<ConnZone>| {
            rt::spawn_handle("limit_conn reports", report_slots(Arc::clone(zone))).abort_on_drop()
        };
        counted.map(report).collect()
    }

    /// Refuses zones of a cluster that no block declares. For stream: http, where clusters are declared, may not be there.
    pub(crate) fn check_clusters(&self) -> Result<(), String> {
        let all = self.0.iter();
        let syncs = all.filter_map(|zone| Some((&zone.name, zone.declared()?.sync.as_ref()?)));
        zones::check_clusters(
            "limit_conn_zone",
            syncs.map(|(name, sync)| (name, sync.cluster())),
        )
    }

    /// The zones that have counters, with their names.
    pub(crate) fn states(&self) -> impl Iterator<Item = (&BStr, &Arc<ConnCounters>)> {
        let zones = self.0.iter();
        zones.filter_map(|zone| Some((zone.name.as_bstr(), zone.state()?)))
    }

    /// Makes the zones those that later configurations find.
    pub(crate) fn commit_states(&self, zones: &host::engine::ZoneRegistry, kind: &str) {
        for zone in &self.0 {
            zone.commit_state(zones, kind);
        }
    }
}

impl ConnLimitPolicy {
    /// Takes a place for each limit; `None` if no limit counts this request or session. A rejected
    /// one holds no places, and the reason has been logged.
    pub(crate) fn take_slots<S: ClientScope>(
        &self,
        session: &mut S,
    ) -> Option<(LimitConnStatus, Vec<ConnSlot>)> {
        let mut places = Vec::new();
        for limit in &self.limits.0 {
            let Some(key) = limit.key(session) else {
                continue;
            };
            // Only before the configuration is committed, when nothing is served.
            let Some(counters) = limit.zone.state() else {
                continue;
            };
            match counters.take_slot(&key, limit.most_here()) {
                Ok(place) => places.push(place),
                Err(why) => {
                    self.log_refusal(session, &limit.zone.name, why);
                    let (verdict, outcome) = match self.dry_run {
                        true => (LimitConnStatus::RejectedDryRun, 2),
                        false => (LimitConnStatus::Rejected, 1),
                    };
                    counters.outcomes[outcome].fetch_add(1, Relaxed);
                    // Dropping `places` here returns what the earlier limits gave: a request that
                    // is not served must not count.
                    return Some((verdict, Vec::new()));
                }
            }
        }
        for place in &places {
            // Behind the lock of the slot, this is nothing.
            place.counters.outcomes[0].fetch_add(1, Relaxed);
        }
        (!places.is_empty()).then_some((LimitConnStatus::Passed, places))
    }

    /// Logs a rejection. A full zone is a fault of the configuration, not of the client, hence its
    /// own level.
    fn log_refusal<S: ClientScope>(&self, session: &S, zone: impl Display, why: ConnRefusal) {
        match why {
            ConnRefusal::LimitReached => {
                let dry = if self.dry_run { ", dry run," } else { "" };
                session.log(
                    self.level,
                    format_args!("limiting connections{dry} by zone \"{zone}\""),
                );
            }
            ConnRefusal::ZoneFull => {
                session.log(
                    LogLevel::Crit,
                    format_args!("no room for another key in limit_conn zone \"{zone}\""),
                );
            }
        }
    }
}

impl ConnLimit {
    /// This server's part of the limit, at least one.
    fn most_here(&self) -> SlotLimit {
        let sync = self.zone.declared().and_then(|zone| zone.sync.as_ref());
        match sync {
            None => SlotLimit::Fixed(self.max),
            Some(sync) if sync.needs_redis() => SlotLimit::Common(self.max, sync.members()),
            Some(sync) => {
                let members = u32::try_from(sync.members()).unwrap_or(u32::MAX);
                SlotLimit::Fixed((self.max / members).max(1))
            }
        }
    }

    /// The key in this zone; `None` if it is empty or too long, in which case the zone does not
    /// count it.
    fn key<S: ClientScope>(&self, session: &mut S) -> Option<Vec<u8>> {
        let expression = &self.zone.declared()?.key;
        let key = expression.to_bytes(session);
        if key.len() > MAX_KEY {
            let (source, key) = (expression.source(), BStr::new(&key));
            session.log(
                LogLevel::Error,
                format_args!(
                    "the value of the \"{source}\" key is more than {MAX_KEY} bytes: \"{key}\""
                ),
            );
            return None;
        }
        (!key.is_empty()).then_some(key)
    }
}

impl LimitConnStatus {
    /// The value of `$limit_conn_status`.
    pub(crate) fn text(self) -> &'static str {
        match self {
            LimitConnStatus::Passed => "PASSED",
            LimitConnStatus::Rejected => "REJECTED",
            LimitConnStatus::RejectedDryRun => "REJECTED_DRY_RUN",
        }
    }
}

impl ConnLimits {
    /// Whether the block has no limits, in which case the module is not run.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Drops inherited limits: a block with limits of its own inherits none.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Reads `limit_conn ZONE NUMBER`.
    pub(crate) fn read(
        &mut self,
        line: &mut DirectiveLine,
        kind: &'static str,
    ) -> Result<(), Diagnostic> {
        let zone = zones::refer_to(line, line.text(0), kind)?;
        if self.0.iter().any(|limit| Arc::ptr_eq(&limit.zone, &zone)) {
            return Err(line.directive_error("is duplicate"));
        }
        let invalid = || {
            line.error_at(
                1,
                format!("invalid number of connections \"{}\"", line.text(1)),
            )
        };
        let most = parse::number(line.text(1))
            .filter(|number| *number > 0)
            .ok_or_else(invalid)?;
        if most > MAX_LIMIT {
            return Err(line.error_at(1, "connection limit must be less 65536"));
        }
        self.0.push(ConnLimit {
            zone,
            max: most as u32,
        });
        Ok(())
    }
}

impl ZoneState for ConnCounters {
    fn size(&self) -> u64 {
        self.size
    }
}

impl ConnCounters {
    /// An empty zone of `size` bytes.
    fn new(size: u64, key: &[u8]) -> ConnCounters {
        ConnCounters {
            size,
            outcomes: Default::default(),
            key: key.into(),
            tables: ZoneShards::new(size, CounterTable::default),
        }
    }

    /// How many bytes are used.
    pub(crate) fn used(&self) -> u64 {
        self.tables.sum(|table| table.used)
    }

    /// What is to be told of each key that is counted, or was when it was told last: of all, or of those that have changed.
    pub(crate) fn slot_reports(&self, all: bool) -> Vec<(Arc<[u8]>, u32)> {
        let mut reports = Vec::new();
        for table in self.tables.all() {
            let mut table = table.lock();
            let ended = std::mem::take(&mut table.ended);
            for count in table.counts.values_mut() {
                let is_changed = std::mem::take(&mut count.is_changed);
                if all || is_changed {
                    reports.push((Arc::clone(&count.key), count.taken));
                }
            }
            let is_over = |key: &Arc<[u8]>| !table.counts.contains_key(key);
            reports.extend(ended.into_iter().filter(is_over).map(|key| (key, 0)));
        }
        reports
    }

    /// How many keys are counted.
    pub(crate) fn keys(&self) -> u64 {
        self.tables.sum(|table| table.counts.len() as u64)
    }

    /// Notes what is known of the other members of the key; `None`: nothing.
    pub(crate) fn set_share(&self, key: &[u8], share: Option<SlotShare>) {
        if let Some(count) = self.tables.lock(key).counts.get_mut(key) {
            count.share = share;
        }
    }

    /// Takes a place if fewer than `limit` are taken.
    fn take_slot(self: &Arc<Self>, key: &[u8], limit: SlotLimit) -> Result<ConnSlot, ConnRefusal> {
        let mut table = self.tables.lock(key);
        if let Some(count) = table.counts.get_mut(key) {
            if count.taken >= limit.most(count.share.as_ref()) {
                return Err(ConnRefusal::LimitReached);
            }
            count.taken += 1;
            count.is_changed = true;
            return Ok(ConnSlot {
                counters: Arc::clone(self),
                key: Arc::clone(&count.key),
            });
        }
        let cost = key_cost(key);
        // Nothing is evicted, unlike in `limit_req`: every counter belongs to requests in progress, and a lost one
        // would let a client exceed its limit.
        if table.used + cost > self.tables.part_size {
            return Err(ConnRefusal::ZoneFull);
        }
        table.used += cost;
        let key: Arc<[u8]> = key.into();
        let first = ConnCount {
            taken: 1,
            share: None,
            is_changed: true,
            key: Arc::clone(&key),
        };
        table.counts.insert(Arc::clone(&key), first);
        Ok(ConnSlot {
            counters: Arc::clone(self),
            key,
        })
    }
}

impl Drop for ConnSlot {
    fn drop(&mut self) {
        let mut table = self.counters.tables.lock(&self.key);
        let Entry::Occupied(mut count) = table.counts.entry(Arc::clone(&self.key)) else {
            return;
        };
        count.get_mut().taken -= 1;
        count.get_mut().is_changed = true;
        if count.get().taken == 0 {
            let was_told = count.remove().share.is_some();
            table.used -= key_cost(&self.key);
            if was_told && table.ended.len() < ENDED_MAX {
                table.ended.push(Arc::clone(&self.key));
            }
        }
    }
}

/// What a key costs its zone. nginx's slab allocator hands out powers of two, so with the same
/// rounding a megabyte holds as many keys here as there.
fn key_cost(key: &[u8]) -> u64 {
    (FIXED_COST + key.len()).next_power_of_two() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_free_again_when_it_is_dropped() {
        let counters = Arc::new(ConnCounters::new(1 << 20, b"k"));
        let first = counters.take_slot(b"a", SlotLimit::Fixed(2)).ok();
        let second = counters.take_slot(b"a", SlotLimit::Fixed(2)).ok();
        assert!(first.is_some() && second.is_some());
        assert_eq!(
            counters.take_slot(b"a", SlotLimit::Fixed(2)).err(),
            Some(ConnRefusal::LimitReached)
        );
        assert_eq!(
            counters.take_slot(b"a", SlotLimit::Fixed(1)).err(),
            Some(ConnRefusal::LimitReached),
            "the limit is the caller's"
        );
        assert!(counters.take_slot(b"b", SlotLimit::Fixed(1)).is_ok());
        drop(first);
        assert!(counters.take_slot(b"a", SlotLimit::Fixed(2)).is_ok());
        drop(second);
        assert!(counters.tables.lock(b"a").counts.is_empty());
        assert_eq!(counters.tables.lock(b"a").used, 0);
    }

    #[test]
    fn a_full_zone_takes_no_new_keys() {
        let counters = Arc::new(ConnCounters::new(128, b"k"));
        let places = [
            counters.take_slot(b"a", SlotLimit::Fixed(9)),
            counters.take_slot(b"b", SlotLimit::Fixed(9)),
        ];
        assert!(places.iter().all(Result::is_ok));
        assert_eq!(
            counters.take_slot(b"c", SlotLimit::Fixed(9)).err(),
            Some(ConnRefusal::ZoneFull)
        );
        assert!(
            counters.take_slot(b"a", SlotLimit::Fixed(9)).is_ok(),
            "keys that are there go on"
        );
    }

    #[test]
    fn members_are_told_of_what_is_counted_and_of_what_no_longer_is() {
        let counters = Arc::new(ConnCounters::new(1 << 20, b"k"));
        let common = SlotLimit::Common(4, 2);
        let take = || counters.take_slot(b"a", common).ok();
        let (first, second) = (take(), take());
        assert!(take().is_none(), "half of the limit at first");
        let told = |all| {
            let reports = counters.slot_reports(all).into_iter();
            reports
                .map(|(key, taken)| (key.to_vec(), taken))
                .collect::<Vec<_>>()
        };
        assert_eq!(told(false), [(b"a".to_vec(), 2)]);
        assert_eq!(told(false), []);
        assert_eq!(told(true), [(b"a".to_vec(), 2)]);
        counters.set_share(b"a", Some(SlotShare::new(2, 1, 2)));
        let third = take();
        assert!(
            third.is_some() && take().is_none(),
            "one is another member's"
        );
        drop((first, second, third));
        assert_eq!(told(false), [(b"a".to_vec(), 0)]);
        assert_eq!((told(true), counters.keys()), (vec![], 0));
        // It was never told of, so that nobody has to be told that it is over.
        drop(take());
        assert_eq!(told(true), []);
    }
}
