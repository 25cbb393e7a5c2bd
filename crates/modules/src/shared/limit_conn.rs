//! The counters of `limit_conn`: how many requests or sessions of each key are under way.
//!
//! Places are taken with [`Policy::take`], and one is given back when the [`Place`] is dropped, however its owner ends.

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::Arc;

use bstr::BStr;
use conf::{Diagnostic, Expression, Line, parse};
use rt::error_log::Level;

use super::Session;
use super::zones::{self, Parts, State, Zone};

/// What a key takes of its zone beside itself, in bytes; near to what it is here and the same as in nginx.
const FIXED_COST: usize = 36;

/// The counters of a zone, which all loops share.
pub(crate) struct Counters {
    size: u64,
    /// The key's source text: a zone whose key changes its meaning can not be taken over.
    key: Box<[u8]>,
    tables: Parts<Table>,
}

#[derive(Default)]
struct Table {
    /// Counters that are not 0.
    counts: HashMap<Arc<[u8]>, u32>,
    /// The sum of the costs of the keys; at most the size of the part.
    used: u64,
}

/// A place among those that a key may have. Dropped, it is free again.
pub(crate) struct Place {
    counters: Arc<Counters>,
    key: Arc<[u8]>,
}

/// Why there is no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NoPlace {
    /// The key has as many as it may have.
    Limit,
    /// The zone has no room for another key.
    ZoneFull,
}

/// The zones that a configuration declares.
#[derive(Clone, Default)]
pub(crate) struct Declared(Vec<Arc<ConnZone>>);

/// A zone of counters.
type ConnZone = Zone<Declaration, Counters>;

/// What a zone counts.
pub(crate) struct Declaration {
    key: Expression,
}

/// The limits of a block, in the order of the configuration.
#[derive(Clone, Default)]
pub(crate) struct Limits(Vec<Limit>);

/// One of them.
#[derive(Clone)]
struct Limit {
    zone: Arc<ConnZone>,
    most: u32,
}

/// What a block says of its limits.
#[derive(Clone)]
pub(crate) struct Policy {
    pub(crate) limits: Limits,
    /// Of log lines about refusals.
    pub(crate) level: Level,
    /// Count and log, but refuse nobody.
    pub(crate) dry_run: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            limits: Limits::default(),
            level: Level::Error,
            dry_run: false,
        }
    }
}

/// What became of a request or session that some limit is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Passed,
    Rejected,
    RejectedDryRun,
}

/// The words of `limit_conn_log_level`.
pub(crate) const LEVEL_WORDS: [&str; 4] = ["info", "notice", "warn", "error"];
/// What they mean.
pub(crate) const LEVELS: [Level; 4] = [Level::Info, Level::Notice, Level::Warn, Level::Error];

/// A key that is longer is not counted, in bytes.
const MAX_KEY: usize = 255;

/// The largest limit.
const MAX_LIMIT: i64 = 65_535;

impl Declared {
    /// Reads `limit_conn_zone KEY zone=NAME:SIZE`. `kind` is who uses the zone, as messages name it.
    pub(crate) fn read(&mut self, line: &mut Line, kind: &'static str) -> Result<(), Diagnostic> {
        let key = line.expression(0)?;
        let Some(value) = parse::parameter(line.text(1), "zone") else {
            return Err(line.invalid_parameter(1));
        };
        let zone = zones::name_and_size(line, 1, value)?;
        let name = zone.name.clone();
        let twice = |first: &Declaration| {
            format!(
                "limit_conn_zone \"{name}\" is already bound to key \"{}\"",
                first.key.source()
            )
        };
        self.0.push(zones::declare(
            line,
            zone,
            kind,
            Declaration { key },
            twice,
        )?);
        Ok(())
    }

    /// Finds or makes the counters of the zones.
    pub(crate) fn commit(&self, zones: &rt::engine::Zones, kind: &str) -> Result<(), String> {
        for zone in &self.0 {
            let source = |declared: &Declaration| declared.key.source().to_vec();
            let counters = zone.commit(zones, kind, |size, declared| {
                Counters::new(size, &source(declared))
            });
            let key = zone.declared().map(source).unwrap_or_default();
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
}

impl Policy {
    /// Takes a place for each limit of a request or session. `None` when none of them counts it. Whoever is refused
    /// holds no places, and why was logged.
    pub(crate) fn take<S: Session>(&self, session: &mut S) -> Option<(Verdict, Vec<Place>)> {
        let mut places = Vec::new();
        for limit in &self.limits.0 {
            let Some(key) = limit.key(session) else {
                continue;
            };
            let Some(counters) = limit.zone.state() else {
                continue;
            };
            match counters.take(&key, limit.most) {
                Ok(place) => places.push(place),
                Err(why) => {
                    self.log_refusal(session, &limit.zone.name, why);
                    let verdict = match self.dry_run {
                        true => Verdict::RejectedDryRun,
                        false => Verdict::Rejected,
                    };
                    return Some((verdict, Vec::new()));
                }
            }
        }
        (!places.is_empty()).then_some((Verdict::Passed, places))
    }

    fn log_refusal<S: Session>(&self, session: &S, zone: impl Display, why: NoPlace) {
        match why {
            NoPlace::Limit => {
                let dry = if self.dry_run { ", dry run," } else { "" };
                session.log(
                    self.level,
                    format_args!("limiting connections{dry} by zone \"{zone}\""),
                );
            }
            NoPlace::ZoneFull => {
                session.log(
                    Level::Crit,
                    format_args!("no room for another key in limit_conn zone \"{zone}\""),
                );
            }
        }
    }
}

impl Limit {
    /// The key in the zone; `None` for what is not counted there.
    fn key<S: Session>(&self, session: &mut S) -> Option<Vec<u8>> {
        let expression = &self.zone.declared()?.key;
        let key = expression.to_bytes(session);
        if key.len() > MAX_KEY {
            let (source, key) = (expression.source(), BStr::new(&key));
            session.log(
                Level::Error,
                format_args!(
                    "the value of the \"{source}\" key is more than {MAX_KEY} bytes: \"{key}\""
                ),
            );
            return None;
        }
        (!key.is_empty()).then_some(key)
    }
}

impl Verdict {
    /// What `$limit_conn_status` says.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Verdict::Passed => "PASSED",
            Verdict::Rejected => "REJECTED",
            Verdict::RejectedDryRun => "REJECTED_DRY_RUN",
        }
    }
}

impl Limits {
    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Forgets what was inherited.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Reads `limit_conn ZONE NUMBER`.
    pub(crate) fn read(&mut self, line: &mut Line, kind: &'static str) -> Result<(), Diagnostic> {
        let zone = zones::refer(line, line.text(0), kind)?;
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
        self.0.push(Limit {
            zone,
            most: most as u32,
        });
        Ok(())
    }
}

impl State for Counters {
    fn size(&self) -> u64 {
        self.size
    }
}

impl Counters {
    /// No counters, in a zone of `size` bytes.
    fn new(size: u64, key: &[u8]) -> Counters {
        Counters {
            size,
            key: key.into(),
            tables: Parts::new(size, Table::default),
        }
    }

    /// Takes a place, if fewer than `limit` are taken.
    fn take(self: &Arc<Self>, key: &[u8], limit: u32) -> Result<Place, NoPlace> {
        let mut table = self.tables.lock(key);
        if let Some((known, _)) = table.counts.get_key_value(key) {
            let known = Arc::clone(known);
            match table.counts.get_mut(key) {
                Some(count) if *count < limit => *count += 1,
                _ => return Err(NoPlace::Limit),
            }
            return Ok(Place {
                counters: Arc::clone(self),
                key: known,
            });
        }
        let cost = cost(key);
        if table.used + cost > self.tables.part_size {
            return Err(NoPlace::ZoneFull);
        }
        table.used += cost;
        let key: Arc<[u8]> = key.into();
        table.counts.insert(Arc::clone(&key), 1);
        Ok(Place {
            counters: Arc::clone(self),
            key,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut table = self.counters.tables.lock(&self.key);
        let Some(count) = table.counts.get_mut(&self.key) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            table.counts.remove(&self.key);
            table.used -= cost(&self.key);
        }
    }
}

/// What a key takes of its zone. nginx hands out powers of two; so one megabyte keeps as many keys here as there.
fn cost(key: &[u8]) -> u64 {
    (FIXED_COST + key.len()).next_power_of_two() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_free_again_when_it_is_dropped() {
        let counters = Arc::new(Counters::new(1 << 20, b"k"));
        let first = counters.take(b"a", 2).ok();
        let second = counters.take(b"a", 2).ok();
        assert!(first.is_some() && second.is_some());
        assert_eq!(counters.take(b"a", 2).err(), Some(NoPlace::Limit));
        assert_eq!(
            counters.take(b"a", 1).err(),
            Some(NoPlace::Limit),
            "the limit is the caller's"
        );
        assert!(counters.take(b"b", 1).is_ok());
        drop(first);
        assert!(counters.take(b"a", 2).is_ok());
        drop(second);
        assert!(counters.tables.lock(b"a").counts.is_empty());
        assert_eq!(counters.tables.lock(b"a").used, 0);
    }

    #[test]
    fn a_full_zone_takes_no_new_keys() {
        let counters = Arc::new(Counters::new(128, b"k"));
        let places = [counters.take(b"a", 9), counters.take(b"b", 9)];
        assert!(places.iter().all(Result::is_ok));
        assert_eq!(counters.take(b"c", 9).err(), Some(NoPlace::ZoneFull));
        assert!(counters.take(b"a", 9).is_ok(), "keys that are there go on");
    }
}
