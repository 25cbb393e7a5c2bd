//! The ledger of a request: where its time went, and who ended it.
//!
//! A request is doing one thing at any moment: [`LedgerPhase`]. Code that is about to wait says what for with
//! [`RequestLedger::enter`], and goes back to the former phase afterwards. The time is the loop's own clock, which
//! stands still within a turn, so that a request that never waits adds up nothing and allocates nothing. This is the
//! only place where phases are recorded: variables, the log field, `Server-Timing`, the list of slow requests and what
//! else explains a request read it here.
//!
//! What a task waits for can be over long before the loop polls it, because other tasks hold the loop. That part is
//! taken out of the phase that ended and counted as [`LedgerPhase::Loop`]: at most the turn before, if the loop found
//! the event waiting when that turn ended (`rt::turn_lag`).

mod report;
mod variables;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cache::CacheZone;

pub use report::{LedgerReport, ReportedColumn};
pub use variables::VARIABLES;

/// What a request is doing: a column of its ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LedgerPhase {
    /// Nothing that has a column of its own: handlers and filters at work.
    #[default]
    Work,
    /// It waited for its loop, which other tasks held.
    Loop,
    /// Its head came in parts.
    Head,
    /// It waits for the client's content.
    Upload,
    /// `limit_req`, `limit_conn` or `limit_rate` delays it.
    Limit,
    /// Its access is being judged: `auth_request`, `auth_delay`, a password on a thread of the pool.
    Auth,
    /// The cache is asked.
    Lookup,
    /// It waits for a fill of the cache, its own or another request's.
    Fill,
    /// It waits for a disk, on a thread of a pool.
    Disk,
    /// It waits for the resolver.
    Resolve,
    /// It waits for a place at an upstream server: `queue`, `max_conns`.
    Queue,
    /// It connects to an upstream server.
    Connect,
    /// It negotiates TLS with an upstream server.
    UpstreamTls,
    /// It has sent itself to an upstream server, and waits for the head of the response.
    FirstByte,
    /// It waits for the answer of another member of its cluster, which may wait for the origin.
    Member,
    /// It waits for content from an upstream server, or from another producer.
    Body,
    /// A script runs or waits.
    Script,
    /// The client does not take what is sent.
    Client,
}

/// The number of phases.
pub(crate) const PHASES: usize = 18;

/// The names of phases, in logs, variables and `Server-Timing`, and their letters in the termination code. By number.
const NAMES: [(&str, u8); PHASES] = [
    ("work", b'P'),
    ("loop", b'P'),
    ("head", b'R'),
    ("upload", b'B'),
    ("limit", b'L'),
    ("auth", b'A'),
    ("lookup", b'K'),
    ("fill", b'F'),
    ("disk", b'I'),
    ("resolve", b'N'),
    ("queue", b'Q'),
    ("connect", b'C'),
    ("upstream_tls", b'T'),
    ("first_byte", b'H'),
    ("member", b'M'),
    ("body", b'D'),
    ("script", b'X'),
    ("client", b'W'),
];

impl LedgerPhase {
    /// Its name.
    pub fn name(self) -> &'static str {
        NAMES[self as usize].0
    }

    fn letter(self) -> u8 {
        NAMES[self as usize].1
    }

    /// Whether a long turn of the loop can be what it waited for. Work and scripts are what makes turns long.
    fn can_be_late(self) -> bool {
        !matches!(self, LedgerPhase::Script | LedgerPhase::Loop)
    }
}

/// Who ended a request before its response was complete, or responded instead of the handler or upstream server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndedBy {
    /// The client left.
    Client,
    /// The client was too slow.
    ClientTimeout,
    /// An upstream server failed.
    Upstream,
    /// An upstream server was too slow.
    UpstreamTimeout,
    /// A rule of the configuration: limits, access.
    Rule,
    /// A resource was used up: no server left, a full queue.
    Resource,
    /// This server failed.
    Server,
}

impl EndedBy {
    fn letter(self) -> u8 {
        match self {
            EndedBy::Client => b'C',
            EndedBy::ClientTimeout => b'c',
            EndedBy::Upstream => b'S',
            EndedBy::UpstreamTimeout => b's',
            EndedBy::Rule => b'P',
            EndedBy::Resource => b'R',
            EndedBy::Server => b'I',
        }
    }
}

/// The part of a request in a fill of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FillRole {
    /// It started the fill.
    Leader,
    /// It follows a fill that another request started.
    Follower,
}

/// Where the cache had the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheTier {
    /// In memory.
    Memory,
    /// In a segment file.
    Disk,
    /// In a fill.
    Fill,
}

/// Whether a connection to an upstream server was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionUse {
    /// It was made.
    New,
    /// It was idle.
    Reused,
}

/// Microseconds in each phase.
pub(crate) type PhaseTimes = [u64; PHASES];

/// Turns that took less are not worth telling from the wait itself.
const LATE: Duration = Duration::from_millis(1);

/// Where the time of one request went.
#[derive(Debug)]
pub struct RequestLedger {
    /// When the present phase began, or was last added up.
    since: Instant,
    /// When the request began: with its first byte, or when the loop should have read that.
    began: Instant,
    /// When the response had been sent.
    ended: Option<Instant>,
    phase: LedgerPhase,
    cut: Option<(EndedBy, LedgerPhase)>,
    /// Its part in a fill.
    pub role: Option<FillRole>,
    /// Where the cache had the response.
    pub tier: Option<CacheTier>,
    /// The cache that was asked.
    pub cache: Option<Arc<CacheZone>>,
    /// How the last upstream server was reached.
    pub connection: Option<ConnectionUse>,
    /// The observer has counted it as being under way.
    pub is_counted: bool,
    /// Whether time has passed in some phase. Until then `spent` means nothing.
    has_spent: bool,
    /// Its memory is kept for the next request on the connection.
    spent: Option<Box<PhaseTimes>>,
}

impl RequestLedger {
    /// A ledger that begins now.
    #[inline]
    pub fn begin() -> RequestLedger {
        RequestLedger::begin_with(None)
    }

    /// Begins again for the next request on the connection.
    #[inline]
    pub(crate) fn begin_again(&mut self) {
        *self = RequestLedger::begin_with(self.spent.take());
    }

    #[inline]
    fn begin_with(spent: Option<Box<PhaseTimes>>) -> RequestLedger {
        let now = rt::now();
        RequestLedger {
            since: now,
            began: now,
            ended: None,
            phase: LedgerPhase::Work,
            cut: None,
            role: None,
            tier: None,
            cache: None,
            connection: None,
            is_counted: false,
            has_spent: false,
            spent,
        }
    }

    /// The columns, if any of them has something.
    #[inline]
    fn spent(&self) -> Option<&PhaseTimes> {
        self.spent.as_deref().filter(|_| self.has_spent)
    }

    /// The columns, to be added to.
    fn spent_mut(&mut self) -> &mut PhaseTimes {
        let spent = self.spent.get_or_insert_default();
        if !std::mem::replace(&mut self.has_spent, true) {
            **spent = PhaseTimes::default();
        }
        spent
    }

    /// Enters a phase. Returns the former one, to be entered again afterwards.
    #[inline]
    pub fn enter(&mut self, phase: LedgerPhase) -> LedgerPhase {
        let now = rt::now();
        // Mostly nothing has waited since, and the clock of the loop stands still.
        if now != self.since {
            self.add_up(now);
        }
        std::mem::replace(&mut self.phase, phase)
    }

    /// What has passed outside of all columns counts as this one: for handlers whose wait has no name of its own.
    #[inline]
    pub(crate) fn count_rest_as(&mut self, phase: LedgerPhase) {
        if self.phase == LedgerPhase::Work {
            self.phase = phase;
            self.enter(LedgerPhase::Work);
        }
    }

    /// The present phase.
    pub fn phase(&self) -> LedgerPhase {
        self.phase
    }

    /// The request began earlier than its ledger, and was in this phase.
    #[cold]
    pub(crate) fn began_earlier(&mut self, phase: LedgerPhase, by: Duration) {
        self.began = self.began.checked_sub(by).unwrap_or(self.began);
        self.spent_mut()[phase as usize] += micros(by);
    }

    /// When the request began.
    pub fn began(&self) -> Instant {
        self.began
    }

    /// Shows the columns that are not empty to `show`, by their names. Most requests have none.
    #[inline]
    pub fn each_column(&self, mut show: impl FnMut(&'static str, Duration)) {
        let Some(spent) = self.spent() else {
            return;
        };
        for (micros, (name, _)) in spent.iter().zip(NAMES) {
            if *micros > 0 {
                show(name, Duration::from_micros(*micros));
            }
        }
    }

    /// From the beginning until the response had been sent, or until now.
    pub fn total(&self) -> Duration {
        let end = self.ended.unwrap_or_else(rt::now);
        match end == self.began {
            // Within one turn the clock stands still.
            true => Duration::ZERO,
            false => end.saturating_duration_since(self.began),
        }
    }

    /// Adds the time since the last entry to the present phase.
    #[cold]
    fn add_up(&mut self, now: Instant) {
        let took = now.saturating_duration_since(self.since);
        self.since = now;
        let lag = rt::turn_lag();
        let late = match lag >= LATE && self.phase.can_be_late() {
            true => took.min(lag),
            false => Duration::ZERO,
        };
        let phase = self.phase;
        let spent = self.spent_mut();
        spent[LedgerPhase::Loop as usize] += micros(late);
        spent[phase as usize] += micros(took - late);
    }

    /// Notes who ended the request in the present phase. The first one counts.
    pub fn end_by(&mut self, who: EndedBy) {
        self.end_in(who, self.phase);
    }

    /// Notes who ended the request, and in which phase.
    pub fn end_in(&mut self, who: EndedBy, phase: LedgerPhase) {
        self.cut.get_or_insert((who, phase));
    }

    /// A later try succeeded.
    pub(crate) fn forget_end(&mut self) {
        self.cut = None;
    }

    /// The response has been sent, or there is to be none: from here on the columns stand still.
    #[inline]
    pub(crate) fn finish(&mut self) {
        self.enter(LedgerPhase::Work);
        self.ended = Some(self.since);
    }

    /// The columns as they are, for [`RequestLedger::count_as_member`].
    pub(crate) fn columns_now(&mut self) -> PhaseTimes {
        self.enter(self.phase);
        self.spent().copied().unwrap_or_default()
    }

    /// What an exchange has taken since `before` was a question to a member, whatever part of it: connecting and waiting are
    /// columns of the origin.
    pub(crate) fn count_as_member(&mut self, before: &PhaseTimes) {
        self.enter(self.phase);
        if !self.has_spent {
            return;
        }
        let spent = self.spent_mut();
        for phase in [
            LedgerPhase::Queue,
            LedgerPhase::Connect,
            LedgerPhase::UpstreamTls,
            LedgerPhase::FirstByte,
        ] {
            let at = phase as usize;
            let took = spent[at].saturating_sub(before[at]);
            spent[at] -= took;
            spent[LedgerPhase::Member as usize] += took;
        }
    }

    /// The columns until now; the time that they have and `told` does not. `told` has it afterwards. For the request of
    /// the client that a fetch was started for.
    pub(crate) fn news(&self, told: &mut PhaseTimes) -> PhaseTimes {
        let mut now = self.spent().copied().unwrap_or_default();
        now[self.phase as usize] += micros(rt::now().saturating_duration_since(self.since));
        let before = std::mem::replace(told, now);
        std::array::from_fn(|at| now[at].saturating_sub(before[at]))
    }

    /// Says what a wait for a fill of its own was spent on: the fetch's columns take the place of as much of the wait.
    pub(crate) fn explain_fill(&mut self, of_fetch: &PhaseTimes) {
        self.enter(self.phase);
        if !self.has_spent {
            return;
        }
        let spent = self.spent_mut();
        for phase in [
            LedgerPhase::Resolve,
            LedgerPhase::Queue,
            LedgerPhase::Connect,
            LedgerPhase::UpstreamTls,
            LedgerPhase::FirstByte,
            LedgerPhase::Member,
            LedgerPhase::Script,
            LedgerPhase::Disk,
            LedgerPhase::Loop,
        ] {
            let at = phase as usize;
            let moved = of_fetch[at].min(spent[LedgerPhase::Fill as usize]);
            spent[LedgerPhase::Fill as usize] -= moved;
            spent[at] += moved;
        }
    }

    /// The termination code: who ended it, and in which phase; `--` if nobody did.
    pub fn termination(&self) -> [u8; 2] {
        match self.cut {
            Some((who, phase)) => [who.letter(), phase.letter()],
            None => *b"--",
        }
    }

    /// The time in a phase until now.
    fn spent_in(&self, phase: LedgerPhase) -> Duration {
        let spent = self.spent().map_or(0, |spent| spent[phase as usize]);
        let running = match phase == self.phase && self.ended.is_none() {
            true => rt::now().saturating_duration_since(self.since),
            false => Duration::ZERO,
        };
        Duration::from_micros(spent) + running
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_the_order_of_the_phases() {
        let rows = [
            (LedgerPhase::Work, "work"),
            (LedgerPhase::Limit, "limit"),
            (LedgerPhase::Resolve, "resolve"),
            (LedgerPhase::FirstByte, "first_byte"),
            (LedgerPhase::Client, "client"),
        ];
        for (phase, name) in rows {
            assert_eq!(phase.name(), name);
        }
        assert_eq!(LedgerPhase::Client as usize + 1, PHASES);
    }

    #[test]
    fn the_first_end_counts() {
        let mut ledger = RequestLedger::begin();
        assert_eq!(&ledger.termination(), b"--");
        ledger.phase = LedgerPhase::Connect;
        ledger.end_by(EndedBy::UpstreamTimeout);
        ledger.end_in(EndedBy::Client, LedgerPhase::Client);
        assert_eq!(&ledger.termination(), b"sC");
        ledger.forget_end();
        assert_eq!(&ledger.termination(), b"--");
    }

    #[test]
    fn a_fetch_explains_no_more_than_the_wait_for_it() {
        let mut ledger = RequestLedger::begin();
        ledger.began_earlier(LedgerPhase::Fill, Duration::from_micros(100));
        let mut of_fetch = PhaseTimes::default();
        of_fetch[LedgerPhase::Connect as usize] = 30;
        of_fetch[LedgerPhase::FirstByte as usize] = 500;
        ledger.explain_fill(&of_fetch);
        let spent = |phase| ledger.spent().map(|spent| spent[phase as usize]);
        assert_eq!(spent(LedgerPhase::Connect), Some(30));
        assert_eq!(spent(LedgerPhase::FirstByte), Some(70));
        assert_eq!(spent(LedgerPhase::Fill), Some(0));
    }
}
