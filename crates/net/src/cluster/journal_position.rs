//! The journal of purges as one reader sees it: how far it has read, and what it does when the journal is not the one that
//! it knew. Pure: what was read goes in, what is to be done comes out.
//!
//! ```text
//!             what the reader finds at its position              what it does
//! known       the very entry that it applied last                reads on
//! known       that, and not the entry that it claimed            as below: it has lost entries
//! known       something else, or nothing though older is there   the journal has lost entries (a failover): everything is
//!             (or the journal ends before it)                    stale, and an entry says so to the others
//! known       nothing, and the journal has begun anew since      everything is stale
//! known       nothing, and the first entry is a later one        it was away for too long: everything is dropped
//! unknown     entries                                            everything that it has stored is dropped
//! unknown     nothing                                            everything is stale, since the journal may have been emptied; it
//!                                                                writes the first entry, so that there is a position
//! ```
//!
//! A position is the number of an entry and a digest of it. The number alone would not do: after a failover another entry
//! may have it.
//!
//! What a reader has *claimed* is the last entry of which others were told that it has been applied. What is kept with the
//! store may be from before it, after a crash; the entries between the two are read again, and until then nothing of them is
//! told to others: they know already that this server has them.

use std::collections::VecDeque;
use std::fmt;

use bstr::ByteSlice;

use super::peer_token::hash_of_key;

/// The number of an entry: Redis counts milliseconds, and entries within one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct JournalId {
    ms: u64,
    count: u64,
}

impl JournalId {
    /// Before all entries.
    pub const ZERO: JournalId = JournalId { ms: 0, count: 0 };

    /// From its two numbers.
    pub fn new(ms: u64, count: u64) -> JournalId {
        JournalId { ms, count }
    }

    /// From its text, `1764200000000-0`.
    pub fn parse(text: &[u8]) -> Option<JournalId> {
        let (ms, count) = text.to_str().ok()?.split_once('-')?;
        Some(JournalId {
            ms: ms.parse().ok()?,
            count: count.parse().ok()?,
        })
    }

    /// When the entry was made, by the clock of Redis.
    pub fn millis(self) -> u64 {
        self.ms
    }
}

impl fmt::Display for JournalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.ms, self.count)
    }
}

/// An entry of a journal: where it is, and what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalPosition {
    /// Its number.
    pub id: JournalId,
    /// A digest of what it says.
    pub digest: u64,
}

impl fmt::Display for JournalPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:016x}", self.id, self.digest)
    }
}

impl JournalPosition {
    /// From its text, `1764200000000-0.0123456789abcdef`.
    pub fn parse(text: &[u8]) -> Option<JournalPosition> {
        let (id, digest) = text.split_once_str(".")?;
        Some(JournalPosition {
            id: JournalId::parse(id)?,
            digest: u64::from_str_radix(digest.to_str().ok()?, 16).ok()?,
        })
    }

    /// The position as a text, which is kept with the store: `v1 NUMBER DIGEST STREAM`.
    pub(crate) fn to_text(self, stream: &str) -> Vec<u8> {
        format!("v1 {} {:016x} {stream}", self.id, self.digest).into_bytes()
    }

    /// Reads it; `None` if it is one in another stream.
    pub(crate) fn from_text(text: &[u8], stream: &str) -> Option<JournalPosition> {
        let mut words = text.strip_prefix(b"v1 ")?.splitn_str(3, " ");
        let id = JournalId::parse(words.next()?)?;
        let digest = u64::from_str_radix(words.next()?.to_str().ok()?, 16).ok()?;
        let is_same = words.next()? == stream.as_bytes();
        is_same.then_some(JournalPosition { id, digest })
    }
}

/// What an entry says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JournalContent {
    /// It begins the journal.
    Begin,
    /// Entries were lost: everything older is stale.
    Reset,
    /// A purge, in the form of the store.
    Purge(Vec<u8>),
}

/// The bytes of [`JournalContent::Begin`] and [`JournalContent::Reset`]. A purge begins with `h` or `s`.
const BEGIN: &[u8] = b"b";
const RESET: &[u8] = b"r";

impl JournalContent {
    /// The bytes of the entry.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        match self {
            JournalContent::Begin => BEGIN,
            JournalContent::Reset => RESET,
            JournalContent::Purge(purge) => purge,
        }
    }

    fn from_bytes(bytes: &[u8]) -> JournalContent {
        match bytes {
            BEGIN => JournalContent::Begin,
            RESET => JournalContent::Reset,
            purge => JournalContent::Purge(purge.to_vec()),
        }
    }
}

/// An entry of the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JournalEntry {
    /// Where it is.
    pub(crate) position: JournalPosition,
    /// What it says.
    pub(crate) content: JournalContent,
}

impl JournalEntry {
    /// An entry as it was read: its number, who wrote it and a number that it drew, and what it says.
    pub(crate) fn new(id: JournalId, writer: &[u8], content: &[u8]) -> JournalEntry {
        let hash = hash_of_key(&[writer, b"\n", content].concat());
        JournalEntry {
            position: JournalPosition {
                id,
                digest: u64::from_be_bytes(hash[..8].try_into().unwrap_or_default()),
            },
            content: JournalContent::from_bytes(content),
        }
    }
}

/// What there is when a reader comes to the journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct JournalFacts {
    /// The entry with the number of the reader's position.
    pub(crate) at_position: Option<JournalPosition>,
    /// The entry with the number of the reader's claim.
    pub(crate) at_claim: Option<JournalPosition>,
    /// The first entry.
    pub(crate) first: Option<JournalEntry>,
    /// The last entry.
    pub(crate) last: Option<JournalPosition>,
}

/// What has to be done, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JournalStep {
    /// Apply a purge.
    Purge(Vec<u8>),
    /// Drop everything that was stored until now.
    DropAll(JournalGap),
    /// Make everything stale that was stored until now.
    StaleAll(JournalGap),
    /// Write an entry.
    Append(JournalContent),
}

/// Why everything is dropped, or becomes stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JournalGap {
    /// There is no position, and others have purged before.
    Unknown,
    /// What it missed is not in the journal any more.
    Trimmed,
    /// The journal has lost entries.
    Lost,
    /// The journal begins now, or again.
    Begins,
}

/// How far one store has read the journal.
#[derive(Clone, Debug, Default)]
pub(crate) struct JournalReader {
    position: Option<JournalPosition>,
    /// `None`: the position is as far.
    claimed: Option<JournalPosition>,
}

impl JournalReader {
    /// A reader that continues at a position, and whose process has claimed another one before.
    pub(crate) fn new(
        position: Option<JournalPosition>,
        claimed: Option<JournalPosition>,
    ) -> JournalReader {
        JournalReader {
            position,
            claimed: claimed.filter(|_| claimed != position),
        }
    }

    /// The last entry of which others know that it was applied here.
    pub(crate) fn claim(&self) -> Option<JournalPosition> {
        self.claimed.or(self.position)
    }

    /// The entry that was applied last.
    pub(crate) fn position(&self) -> Option<JournalPosition> {
        self.position
    }

    /// The position to be kept with the store; `None`: there is none, or it is behind what was claimed, and would take that
    /// back.
    pub(crate) fn position_to_keep(&self) -> Option<JournalPosition> {
        self.position.filter(|_| self.claimed.is_none())
    }

    /// The number to read behind.
    pub(crate) fn reads_behind(&self) -> JournalId {
        self.position
            .map_or(JournalId::ZERO, |position| position.id)
    }

    /// Comes to the journal, for the first time or again.
    pub(crate) fn resume(&mut self, facts: &JournalFacts) -> Vec<JournalStep> {
        let Some(known) = self.position else {
            self.position = facts.last;
            self.claimed = None;
            return match facts.last {
                Some(_) => vec![JournalStep::DropAll(JournalGap::Unknown)],
                // What others write at the same moment is read as well: nothing was read yet.
                None => vec![
                    JournalStep::StaleAll(JournalGap::Begins),
                    JournalStep::Append(JournalContent::Begin),
                ],
            };
        };
        let has_claim = self.claimed.is_none() || facts.at_claim == self.claimed;
        if facts.at_position == Some(known) && has_claim {
            return Vec::new();
        }
        self.position = facts.last;
        self.claimed = None;
        let later = facts
            .first
            .as_ref()
            .filter(|first| known.id < first.position.id);
        if let Some(first) = later {
            return match first.content {
                // What begins a journal is not what is left of one.
                JournalContent::Begin | JournalContent::Reset => {
                    vec![JournalStep::StaleAll(JournalGap::Lost)]
                }
                JournalContent::Purge(_) => vec![JournalStep::DropAll(JournalGap::Trimmed)],
            };
        }
        vec![
            JournalStep::StaleAll(JournalGap::Lost),
            JournalStep::Append(JournalContent::Reset),
        ]
    }

    /// Takes entries that were read behind the position: what has to be done, and which entries others may be told of then.
    pub(crate) fn take(
        &mut self,
        entries: Vec<JournalEntry>,
    ) -> (Vec<JournalStep>, Vec<JournalPosition>) {
        let mut steps = Vec::with_capacity(entries.len());
        let mut told = Vec::with_capacity(entries.len());
        for entry in entries {
            // Up to what was claimed they have been told.
            if self
                .claimed
                .is_some_and(|claimed| entry.position.id >= claimed.id)
            {
                self.claimed = None;
            }
            if self.claimed.is_none() {
                told.push(entry.position);
            }
            // Read twice, after a reply that was cut off.
            if self
                .position
                .is_some_and(|known| entry.position.id <= known.id)
            {
                continue;
            }
            self.position = Some(entry.position);
            match entry.content {
                JournalContent::Begin => {}
                JournalContent::Reset => steps.push(JournalStep::StaleAll(JournalGap::Lost)),
                JournalContent::Purge(purge) => steps.push(JournalStep::Purge(purge)),
            }
        }
        (steps, told)
    }
}

/// The entries that have been applied lately. Whether another member may rely on this one is asked by whole positions: after
/// a failover, a journal can have a later entry than one that it has lost.
#[derive(Clone, Debug, Default)]
pub(crate) struct AppliedEntries(VecDeque<JournalPosition>);

/// How many are remembered. Who is further behind than that is away.
const APPLIED_MAX: usize = 1024;

/// What is known of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryKnowledge {
    /// It has been applied.
    Applied,
    /// It may still come.
    Awaited,
    /// It will not: a later one has been applied.
    Unknown,
}

impl AppliedEntries {
    /// The last one.
    pub(crate) fn last(&self) -> Option<JournalPosition> {
        self.0.back().copied()
    }

    /// Notes entries that have been applied, in their order.
    pub(crate) fn note(&mut self, entries: impl Iterator<Item = JournalPosition>) {
        for entry in entries {
            // The journal has lost what was remembered.
            while self.0.back().is_some_and(|last| last.id >= entry.id) {
                self.0.pop_back();
            }
            if self.0.len() == APPLIED_MAX {
                self.0.pop_front();
            }
            self.0.push_back(entry);
        }
    }

    /// Comes to the journal as its reader does: `steps` are what that has to do, `position` is where it continues.
    pub(crate) fn resume(&mut self, steps: &[JournalStep], position: Option<JournalPosition>) {
        // What others rely on stays as it was until the note about the loss has been read: what they have may be from
        // before it, and they have not heard of it.
        let is_lost = steps
            .iter()
            .any(|step| matches!(step, JournalStep::Append(_)));
        // After a start nothing was applied by this process yet.
        if !is_lost && (!steps.is_empty() || self.last() != position) {
            self.0.clear();
            self.0.extend(position);
        }
    }

    /// What is known of an entry.
    pub(crate) fn knowledge_of(&self, entry: JournalPosition) -> EntryKnowledge {
        match self.0.binary_search_by_key(&entry.id, |known| known.id) {
            Ok(at) if self.0[at] == entry => EntryKnowledge::Applied,
            Err(at) if at == self.0.len() => EntryKnowledge::Awaited,
            Ok(_) | Err(_) => EntryKnowledge::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(ms: u64, text: &str) -> JournalEntry {
        JournalEntry::new(JournalId::new(ms, 0), b"1", text.as_bytes())
    }

    fn facts(
        entries: &[JournalEntry],
        known: Option<JournalPosition>,
        claimed: Option<JournalPosition>,
    ) -> JournalFacts {
        let positions = || entries.iter().map(|entry| entry.position);
        let at = |at: Option<JournalPosition>| {
            positions().find(|one| at.is_some_and(|at| at.id == one.id))
        };
        JournalFacts {
            at_position: at(known),
            at_claim: at(claimed),
            first: entries.first().cloned(),
            last: positions().next_back(),
        }
    }

    fn resumed(entries: &[JournalEntry], known: Option<JournalPosition>) -> Vec<JournalStep> {
        JournalReader::new(known, None).resume(&facts(entries, known, None))
    }

    /// A process that has crashed after it had told others of an entry, before the position was kept.
    #[test]
    fn what_was_claimed_is_read_again_or_was_lost() {
        let all = [
            entry(1, "b"),
            entry(2, "hk/a"),
            entry(3, "hk/b"),
            entry(4, "hk/c"),
        ];
        let at = |index: usize| Some(all[index].position);
        let mut reader = JournalReader::new(at(0), at(2));
        assert_eq!(reader.claim(), at(2));
        assert_eq!(reader.resume(&facts(&all, at(0), at(2))), []);
        let (steps, told) = reader.take(all[1..2].to_vec());
        assert_eq!(
            (steps.len(), told.len()),
            (1, 0),
            "others know that it has this one"
        );
        assert_eq!(reader.claim(), at(2));
        let (steps, told) = reader.take(all[2..].to_vec());
        assert_eq!(steps.len(), 2);
        assert_eq!(told, [all[2].position, all[3].position]);
        assert_eq!(reader.claim(), at(3));
        // Redis has lost what was claimed, and has what is kept: this member may be the only one that has it, and others rely on it.
        let mut reader = JournalReader::new(at(0), at(2));
        let steps = reader.resume(&facts(&all[..2], at(0), at(2)));
        let lost = [
            JournalStep::StaleAll(JournalGap::Lost),
            JournalStep::Append(JournalContent::Reset),
        ];
        assert_eq!(steps, lost);
        assert_eq!(reader.claim(), at(1));
    }

    #[test]
    fn a_reader_trusts_only_the_journal_that_it_knew() {
        let all = [
            entry(1, "b"),
            entry(2, "hk/a"),
            entry(3, "hk/b"),
            entry(4, "sa"),
        ];
        let at = |index: usize| Some(all[index].position);
        let lost = [
            JournalStep::StaleAll(JournalGap::Lost),
            JournalStep::Append(JournalContent::Reset),
        ];
        assert_eq!(resumed(&all, at(1)), [], "the entry is there");
        assert_eq!(
            resumed(&all, None),
            [JournalStep::DropAll(JournalGap::Unknown)]
        );
        assert_eq!(
            resumed(&[], None),
            [
                JournalStep::StaleAll(JournalGap::Begins),
                JournalStep::Append(JournalContent::Begin)
            ]
        );
        let trimmed = [JournalStep::DropAll(JournalGap::Trimmed)];
        assert_eq!(resumed(&all[2..], at(1)), trimmed);
        assert_eq!(
            resumed(&all[..2], at(3)),
            lost,
            "the last number went backwards"
        );
        assert_eq!(resumed(&[], at(3)), lost);
        let grown = [entry(1, "b"), entry(5, "hk/c")];
        assert_eq!(resumed(&grown, at(3)), lost, "it has grown again since");
        for anew in ["b", "r"] {
            let anew = [entry(5, anew), entry(6, "hk/c")];
            assert_eq!(
                resumed(&anew, at(3)),
                [JournalStep::StaleAll(JournalGap::Lost)],
                "it began anew"
            );
        }
        let other = [entry(1, "b"), entry(2, "hk/x")];
        assert_eq!(
            resumed(&other, at(1)),
            lost,
            "the same number, another entry"
        );
    }

    #[test]
    fn entries_are_applied_once_and_in_order() {
        let mut reader = JournalReader::new(Some(entry(2, "hk/a").position), None);
        let (steps, _) = reader.take(vec![entry(2, "hk/a"), entry(3, "hk/b"), entry(4, "r")]);
        let expected = [
            JournalStep::Purge(b"hk/b".to_vec()),
            JournalStep::StaleAll(JournalGap::Lost),
        ];
        assert_eq!(steps, expected);
        assert_eq!(reader.reads_behind(), JournalId::new(4, 0));
        assert_eq!(reader.take(vec![entry(3, "hk/b")]).0, []);
    }

    #[test]
    fn what_was_applied_is_known_by_what_it_was() {
        let mut applied = AppliedEntries::default();
        let position = |ms, text| entry(ms, text).position;
        assert_eq!(
            applied.knowledge_of(position(1, "b")),
            EntryKnowledge::Awaited
        );
        applied.note([position(1, "b"), position(3, "hk/a")].into_iter());
        assert_eq!(
            applied.knowledge_of(position(3, "hk/a")),
            EntryKnowledge::Applied
        );
        assert_eq!(
            applied.knowledge_of(position(3, "hk/b")),
            EntryKnowledge::Unknown
        );
        assert_eq!(
            applied.knowledge_of(position(2, "hk/a")),
            EntryKnowledge::Unknown
        );
        assert_eq!(
            applied.knowledge_of(position(4, "hk/a")),
            EntryKnowledge::Awaited
        );
        applied.note([position(2, "hk/x")].into_iter());
        assert_eq!(
            applied.knowledge_of(position(3, "hk/a")),
            EntryKnowledge::Awaited,
            "it was lost"
        );
        applied.note((10..2_000).map(|ms| position(ms, "ha")));
        assert_eq!(applied.0.len(), APPLIED_MAX);
        assert_eq!(
            applied.knowledge_of(position(1, "b")),
            EntryKnowledge::Unknown
        );
    }

    #[test]
    fn a_position_is_kept_as_a_text() {
        let position = entry(17, "hk/a").position;
        let text = position.to_text("{edge}:journal:one");
        assert_eq!(
            JournalPosition::parse(position.to_string().as_bytes()),
            Some(position)
        );
        let read = |stream| JournalPosition::from_text(&text, stream);
        assert_eq!(read("{edge}:journal:one"), Some(position));
        assert_eq!(read("{edge}:journal:two"), None);
        for other in ["", "v1", "v1 1-0", "v1 1-0 x s", "v1 1 0 s", "v2 1-0 0 s"] {
            assert_eq!(
                JournalPosition::from_text(other.as_bytes(), "s"),
                None,
                "{other}"
            );
        }
    }
}
