//! The journal of purges of one zone: a stream in Redis, which every member reads from where it was.
//!
//! ```text
//! purge ── XADD ──▶ stream ── XREAD ──▶ each member: apply, then `applied` ──▶ who asks whether it has been
//!                                            │
//!                                            └──▶ the position, beside the store
//! ```
//!
//! One task reads, on one loop. What it may believe is decided by [`JournalReader`]; here is what is done about it.
//!
//! **Before the first read** nothing that was stored before is served ([`JournalTarget::hide_stored`]): what was purged
//! while the server was down is not known yet. The same holds after the process itself was stopped, which the beat of a
//! timer shows. A Redis that goes away while the server runs changes nothing: what is stored is served, and what was missed
//! is read when it is back.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Poll, Waker};
use std::time::Duration;

use base::sync::Mutex;
use bstr::{BStr, BString};
use host::error_log::{LogLevel, Logger};
use rt::sync::remote_oneshot;

use super::journal_position::{
    AppliedEntries, EntryKnowledge, JournalEntry, JournalFacts, JournalGap, JournalId,
    JournalPosition, JournalReader, JournalStep,
};
use super::kept_entries::KeptEntries;
use crate::redis::{
    RedisClient, RedisCommand, RedisConnection, RedisFault, RedisReply, elements_of, text_of,
};
use crate::resolver::Resolver;

/// Entries in one read.
const BATCH: u64 = 512;

/// How long a read waits for an entry.
const BLOCK: Duration = Duration::from_millis(500);

/// The interval of the beat.
const BEAT: Duration = Duration::from_millis(250);

/// After a beat that is missing for so long, the process was stopped: what is stored counts as unknown.
const STOPPED_MS: u64 = 2_000;

/// How often the position is kept with the store.
const KEEP_MS: u64 = 1_000;

/// Purges that wait for Redis. With more, they become one of everything.
const WAITING_MAX: usize = 4_096;

/// The pauses between attempts to read.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// A purge of everything, in the form of the store.
const PURGE_ALL: &[u8] = b"ha";

/// Is told whether a position is on the disk, by any thread.
pub type KeptAnswer = Box<dyn FnOnce(bool) + Send>;

/// What the journal is applied to: a store. Called on the loop that reads.
pub trait JournalTarget {
    /// Whether there is a store at the moment.
    fn is_open(&self) -> bool;
    /// The position that was kept with it.
    fn kept_position(&self) -> Option<Vec<u8>>;
    /// The position of which others have been told that it was reached.
    fn claimed_position(&self) -> Option<Vec<u8>>;
    /// Keeps a position with the store, once everything that was applied is on the disk.
    fn keep_position(&self, position: Vec<u8>);
    /// Has the disk remember that others are told of a position. `then` is told when it does, or that it cannot; without a
    /// store it is dropped.
    fn claim_position(&self, position: Vec<u8>, then: KeptAnswer);
    /// Applies a purge.
    fn purge(&self, purge: &[u8]);
    /// Drops everything that is stored, or makes it stale.
    fn purge_all(&self, is_dropped: bool);
    /// Serves nothing of what is stored now, until [`JournalTarget::show_stored`].
    fn hide_stored(&self);
    /// Serves it again.
    fn show_stored(&self);
}

/// The journal of a zone, as all loops see it. It is kept across reloads.
pub struct PurgeJournal {
    zone: BString,
    reader: Mutex<JournalReader>,
    /// What has been applied: the reader is ahead of it for a moment, and after a loss of entries until its own note about
    /// that has come back. So nobody relies on a member that has not heard of the loss.
    done: Mutex<AppliedEntries>,
    /// Those of them of which the disk knows that others were told.
    kept: KeptEntries,
    /// Who waits for an entry to be applied.
    waiting: Mutex<Vec<Waker>>,
    unsent: Mutex<UnsentPurges>,
    /// When the reading loop was last alive, in milliseconds of the monotonic clock; 0: nobody reads.
    beat_ms: AtomicU64,
    /// Since when what was stored is hidden; 0: it is not. At first it is, by the store itself.
    hidden_ms: AtomicU64,
    /// Entries that were applied.
    pub applied: AtomicU64,
    /// How often everything was dropped or became stale, because entries were missed.
    pub gaps: AtomicU64,
    /// How old the last entry was when it was applied, in milliseconds.
    pub lag_ms: AtomicU64,
}

#[derive(Default)]
struct UnsentPurges {
    purges: VecDeque<Vec<u8>>,
    waker: Option<Waker>,
}

/// What reading takes.
pub struct JournalReading {
    /// The journal.
    pub journal: Arc<PurgeJournal>,
    /// The store.
    pub target: Rc<dyn JournalTarget>,
    /// Redis.
    pub client: Arc<RedisClient>,
    /// Finds the addresses of its name.
    pub resolver: Arc<Resolver>,
    /// How many entries are kept, about.
    pub length: u64,
    /// The error log.
    pub log: Logger,
}

impl PurgeJournal {
    /// The journal of a zone, of which nothing was read yet.
    pub fn new(zone: &BStr) -> PurgeJournal {
        PurgeJournal {
            zone: zone.to_owned(),
            reader: Mutex::default(),
            done: Mutex::default(),
            kept: KeptEntries::default(),
            waiting: Mutex::default(),
            unsent: Mutex::default(),
            beat_ms: AtomicU64::new(0),
            hidden_ms: AtomicU64::new(1),
            applied: AtomicU64::new(0),
            gaps: AtomicU64::new(0),
            lag_ms: AtomicU64::new(0),
        }
    }

    /// The stream of this zone.
    pub fn stream(&self, client: &RedisClient) -> String {
        client.settings().key(&format!("journal:{}", self.zone))
    }

    /// The entry that was applied last.
    pub fn position(&self) -> Option<JournalPosition> {
        self.done.lock().last()
    }

    /// Whether an entry has been applied.
    pub fn has_applied(&self, entry: JournalPosition) -> bool {
        self.done.lock().knowledge_of(entry) == EntryKnowledge::Applied
    }

    /// Waits until an entry has been applied, for at most this long. Whether it has.
    pub async fn until_applied(&self, entry: JournalPosition, limit: Duration) -> bool {
        let applied = poll_fn(|context| {
            let mut waiting = self.waiting.lock();
            // Asked with the list locked: it is emptied after the entry has been noted.
            let knowledge = self.done.lock().knowledge_of(entry);
            if knowledge != EntryKnowledge::Awaited {
                return Poll::Ready(knowledge == EntryKnowledge::Applied);
            }
            if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                waiting.push(context.waker().clone());
            }
            Poll::Pending
        });
        rt::timeout(limit, applied).await.unwrap_or(false)
    }

    /// Waits until an entry has been applied, and the disk remembers that it was. Whether it does.
    pub async fn until_kept(&self, entry: JournalPosition, limit: Duration) -> bool {
        let kept = async {
            self.until_applied(entry, limit).await && {
                poll_fn(|context| self.kept.poll_kept(entry, context)).await;
                true
            }
        };
        rt::timeout(limit, kept).await.unwrap_or(false)
    }

    /// Writes purges; the last one. Nothing was purged by that: it is when the entry has been read.
    pub async fn append(
        &self,
        client: &RedisClient,
        length: u64,
        purges: &[Vec<u8>],
    ) -> Result<JournalPosition, RedisFault> {
        let mut replies = Vec::with_capacity(purges.len());
        for purge in purges {
            let draft = EntryDraft::new(purge);
            replies.push((
                client.begin(draft.command(&self.stream(client), length))?,
                draft,
            ));
        }
        let mut last: Option<JournalPosition> = None;
        for (reply, draft) in replies {
            let lost = |_| Err(RedisFault::Away("the connection has ended".to_owned()));
            let position = draft.position(&reply.await.unwrap_or_else(lost)?)?;
            last = last.filter(|last| last.id > position.id).or(Some(position));
        }
        last.ok_or_else(|| RedisFault::Refused("there is nothing to purge".to_owned()))
    }

    /// Has a purge written as soon as that is possible. Any thread may call.
    pub fn append_soon(&self, purge: Vec<u8>) {
        let waker = {
            let mut unsent = self.unsent.lock();
            if unsent.purges.len() >= WAITING_MAX {
                // Rather too much than too little.
                unsent.purges.clear();
                unsent.purges.push_back(PURGE_ALL.to_vec());
            }
            unsent.purges.push_back(purge);
            unsent.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The purges that wait for Redis.
    pub fn unsent_count(&self) -> usize {
        self.unsent.lock().purges.len()
    }

    /// Whether what is stored has to be hidden first: the process was stopped, and nothing was read since.
    #[inline]
    pub fn was_stopped(&self, now_ms: u64) -> bool {
        let beat = self.beat_ms.load(Relaxed);
        beat != 0 && now_ms.saturating_sub(beat) > STOPPED_MS
    }

    /// Notes that what is stored is hidden since now.
    pub fn note_hidden(&self, now_ms: u64) {
        self.hidden_ms.store(now_ms, Relaxed);
    }

    /// Notes what has been applied, and tells who waits for that.
    fn note_done(&self, entries: impl Iterator<Item = JournalPosition>) {
        self.done.lock().note(entries);
        let waiting = std::mem::take(&mut *self.waiting.lock());
        waiting.into_iter().for_each(Waker::wake);
    }
}

/// An entry that is to be written.
struct EntryDraft<'a> {
    /// Drawn, so that no two entries are the same: see [`JournalPosition`].
    writer: String,
    content: &'a [u8],
}

impl EntryDraft<'_> {
    fn new(content: &[u8]) -> EntryDraft<'_> {
        let drawn = rt::random::number().unwrap_or_else(|_| rt::wall_millis());
        EntryDraft {
            writer: drawn.to_string(),
            content,
        }
    }

    fn command(&self, stream: &str, length: u64) -> RedisCommand {
        RedisCommand::new("XADD")
            .arg(stream)
            .arg("MAXLEN")
            .arg("~")
            .number(length)
            .arg("*")
            .arg("w")
            .arg(&self.writer)
            .arg("p")
            .arg(self.content)
    }

    /// Where it was written.
    fn position(&self, reply: &RedisReply) -> Result<JournalPosition, RedisFault> {
        let id = text_of(reply).and_then(JournalId::parse);
        let id = id.ok_or_else(|| RedisFault::Refused("it gave no number".to_owned()))?;
        Ok(JournalEntry::new(id, self.writer.as_bytes(), self.content).position)
    }
}

/// Reads a journal for as long as the result is polled.
pub async fn read_journal(reading: JournalReading) {
    let reading = Rc::new(reading);
    let beating = Rc::clone(&reading);
    let _beat =
        rt::spawn_handle("journal beat", async move { beating.beat().await }).abort_on_drop();
    let writing = Rc::clone(&reading);
    let _writer = rt::spawn_handle(
        "journal writer",
        async move { writing.write_unsent().await },
    )
    .abort_on_drop();
    let keeping = Rc::clone(&reading);
    let _keeper = rt::spawn_handle("journal keeper", async move { keeping.keep_wanted().await })
        .abort_on_drop();
    let mut pause = PAUSE_MIN;
    loop {
        if reading.target.is_open() {
            // Why is in the log already: the client of Redis has the same trouble.
            let mut has_read = false;
            let Err(_away) = reading.read_session(&mut has_read).await;
            if has_read {
                pause = PAUSE_MIN;
            }
        }
        rt::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

impl JournalReading {
    /// Notes that the loop is alive, and notices when it was not.
    async fn beat(&self) {
        let journal = &self.journal;
        journal.beat_ms.store(rt::monotonic_millis(), Relaxed);
        loop {
            rt::sleep(BEAT).await;
            let now_ms = rt::monotonic_millis();
            if journal.was_stopped(now_ms) {
                journal.note_hidden(now_ms);
                self.target.hide_stored();
            }
            journal.beat_ms.store(now_ms, Relaxed);
        }
    }

    /// Comes to the journal and reads it until the connection fails.
    async fn read_session(&self, has_read: &mut bool) -> Result<Infallible, RedisFault> {
        let journal = &self.journal;
        let stream = journal.stream(&self.client);
        let known = {
            let mut reader = journal.reader.lock();
            if reader.position().is_none()
                && let Some(kept) = self.target.kept_position()
            {
                let read = |text: Vec<u8>| JournalPosition::from_text(&text, &stream);
                let claimed = self.target.claimed_position().and_then(read);
                *reader = JournalReader::new(read(kept), claimed);
            }
            (reader.position(), reader.claim())
        };
        // What this server had applied before its start counts in its questions to others from the beginning, even if
        // Redis is away: what it has is hidden, so that it can be believed up to what was claimed.
        if journal.position().is_none() {
            journal.done.lock().resume(&[], known.1);
        }
        let mut connection = self.client.connect(&self.resolver).await?;
        let facts = self.ask_facts(&mut connection, &stream, known).await?;
        let (steps, position) = {
            let mut reader = journal.reader.lock();
            (reader.resume(&facts), reader.claim())
        };
        journal.done.lock().resume(&steps, position);
        self.do_steps(steps).await?;
        *has_read = true;
        let mut kept_ms = 0;
        loop {
            // A read that waits could not say for half a second that everything has been read.
            let is_hidden = journal.hidden_ms.load(Relaxed) != 0;
            let sent_ms = rt::monotonic_millis();
            let behind = journal.reader.lock().reads_behind();
            let entries = self
                .read_behind(&mut connection, &stream, behind, !is_hidden)
                .await?;
            let is_end = (entries.len() as u64) < BATCH;
            if let Some(last) = entries.last() {
                let age = rt::wall_millis().saturating_sub(last.position.id.millis());
                journal.lag_ms.store(age, Relaxed);
            }
            let (steps, read) = journal.reader.lock().take(entries);
            self.do_steps(steps).await?;
            journal.note_done(read.into_iter());
            if is_end && is_hidden && journal.hidden_ms.load(Relaxed) <= sent_ms {
                journal.hidden_ms.store(0, Relaxed);
                self.target.show_stored();
            }
            // At once if there is none: without one, everything would have to be dropped at the next start.
            if rt::monotonic_millis().saturating_sub(kept_ms) >= KEEP_MS
                || self.target.kept_position().is_none()
            {
                kept_ms = rt::monotonic_millis();
                self.keep_position(&stream);
            }
        }
    }

    /// Keeps the position with the store, if it is another one.
    fn keep_position(&self, stream: &str) {
        let Some(position) = self.journal.reader.lock().position_to_keep() else {
            return;
        };
        let text = position.to_text(stream);
        if self.target.kept_position().as_deref() != Some(&text[..]) {
            self.target.keep_position(text);
        }
    }

    /// Keeps what has been applied as soon as a request waits for that.
    async fn keep_wanted(&self) {
        let journal = &self.journal;
        loop {
            journal.kept.until_wanted().await;
            let entries = journal.done.lock().clone();
            let Some(last) = entries.last() else {
                continue;
            };
            let (answer, kept) = remote_oneshot::channel();
            let text = last.to_text(&journal.stream(&self.client));
            // An error means that this task has ended.
            let then = move |is_kept| {
                let _ = answer.send(is_kept);
            };
            self.target.claim_position(text, Box::new(then));
            match kept.await {
                Ok(true) => journal.kept.note(entries),
                // Why is in the log. Who waits does so in vain, and is not named.
                Ok(false) | Err(_) => rt::sleep(BEAT).await,
            }
        }
    }

    async fn do_steps(&self, steps: Vec<JournalStep>) -> Result<(), RedisFault> {
        let journal = &self.journal;
        for step in steps {
            match step {
                JournalStep::Purge(purge) => {
                    self.target.purge(&purge);
                    journal.applied.fetch_add(1, Relaxed);
                }
                JournalStep::DropAll(gap) => {
                    self.target.purge_all(true);
                    self.note_gap(gap);
                }
                JournalStep::StaleAll(gap) => {
                    self.target.purge_all(false);
                    self.note_gap(gap);
                }
                JournalStep::Append(content) => {
                    let draft = EntryDraft::new(content.as_bytes());
                    let stream = journal.stream(&self.client);
                    self.client.ask(draft.command(&stream, self.length)).await?;
                }
            }
        }
        Ok(())
    }

    fn note_gap(&self, gap: JournalGap) {
        let (level, what) = match gap {
            JournalGap::Unknown => (
                LogLevel::Warn,
                "how much of it was read is not known, what is stored is dropped",
            ),
            JournalGap::Trimmed => (
                LogLevel::Warn,
                "what was missed is not in it any more, what is stored is dropped",
            ),
            JournalGap::Lost => (
                LogLevel::Warn,
                "it has lost entries, what is stored is stale",
            ),
            JournalGap::Begins => (
                LogLevel::Notice,
                "it begins here, what was stored before is stale",
            ),
        };
        if gap != JournalGap::Begins {
            self.journal.gaps.fetch_add(1, Relaxed);
        }
        let zone = &self.journal.zone;
        self.log.log_plain(
            level,
            format_args!("journal of purges of cache \"{zone}\": {what}"),
        );
    }

    /// Asks what there is at the position of the reader, at the beginning and at the end.
    async fn ask_facts(
        &self,
        connection: &mut RedisConnection,
        stream: &str,
        (known, claimed): (Option<JournalPosition>, Option<JournalPosition>),
    ) -> Result<JournalFacts, RedisFault> {
        let range = |name, from: &str, to: &str| {
            let range = RedisCommand::new(name).arg(stream).arg(from).arg(to);
            range.arg("COUNT").number(1)
        };
        let id = |at: Option<JournalPosition>| at.map_or(JournalId::ZERO, |at| at.id).to_string();
        let (known, claimed) = (id(known), id(claimed));
        let questions = [
            range("XRANGE", &known, &known),
            range("XRANGE", &claimed, &claimed),
            range("XRANGE", "-", "+"),
            range("XREVRANGE", "+", "-"),
        ];
        let replies = connection
            .exchange(&questions, self.client.settings().timeout)
            .await?;
        let mut found = Vec::with_capacity(replies.len());
        for (reply, question) in replies.into_iter().zip(&questions) {
            let reply = self
                .client
                .follow_ask(reply, question, &self.resolver)
                .await;
            found.push(self.entries_of(&reply)?.pop());
        }
        let [at_position, at_claim, first, last] = &found[..] else {
            return Err(RedisFault::Refused("there are replies missing".to_owned()));
        };
        let position = |entry: &Option<JournalEntry>| entry.as_ref().map(|entry| entry.position);
        Ok(JournalFacts {
            at_position: position(at_position),
            at_claim: position(at_claim),
            first: first.clone(),
            last: position(last),
        })
    }

    /// Reads entries behind one, and waits for some if there are none and `waits` says so.
    async fn read_behind(
        &self,
        connection: &mut RedisConnection,
        stream: &str,
        behind: JournalId,
        waits: bool,
    ) -> Result<Vec<JournalEntry>, RedisFault> {
        let mut command = RedisCommand::new("XREAD COUNT").number(BATCH);
        let mut limit = self.client.settings().timeout;
        if waits {
            let block = u64::try_from(BLOCK.as_millis()).unwrap_or(0);
            command = command.arg("BLOCK").number(block);
            limit += BLOCK;
        }
        let command = command.arg("STREAMS").arg(stream).arg(behind.to_string());
        let commands = [command];
        let mut replies = connection.exchange(&commands, limit).await?;
        let reply = match replies.pop() {
            Some(reply) => Some(
                self.client
                    .follow_ask(reply, &commands[0], &self.resolver)
                    .await,
            ),
            None => None,
        };
        match &reply {
            // One stream: its name, and its entries.
            Some(RedisReply::Array(streams)) => match streams.first().map(elements_of) {
                Some([_, entries]) => self.entries_of(entries),
                _ => Ok(Vec::new()),
            },
            Some(RedisReply::Error(why)) => Err(self.refusal(why)),
            _ => Ok(Vec::new()),
        }
    }

    /// Reads a list of entries: for each its number, and a list of names and values.
    fn entries_of(&self, reply: &RedisReply) -> Result<Vec<JournalEntry>, RedisFault> {
        if let RedisReply::Error(why) = reply {
            return Err(self.refusal(why));
        }
        let read = |entry: &RedisReply| {
            let [id, fields] = elements_of(entry) else {
                return None;
            };
            let mut fields = elements_of(fields).iter().filter_map(text_of);
            let (mut writer, mut content) = (None, None);
            while let (Some(name), Some(value)) = (fields.next(), fields.next()) {
                match name {
                    b"w" => writer = Some(value),
                    b"p" => content = Some(value),
                    // Of a later version.
                    _ => {}
                }
            }
            // What cannot be read purges everything: rather too much than too little.
            let content = content.unwrap_or(PURGE_ALL);
            Some(JournalEntry::new(
                JournalId::parse(text_of(id)?)?,
                writer.unwrap_or_default(),
                content,
            ))
        };
        Ok(elements_of(reply).iter().filter_map(read).collect())
    }

    fn refusal(&self, why: &str) -> RedisFault {
        self.client.note_error(why);
        let zone = &self.journal.zone;
        self.log.log_plain(
            LogLevel::Error,
            format_args!("journal of purges of cache \"{zone}\" cannot be read: {why}"),
        );
        RedisFault::Refused(why.to_owned())
    }

    /// Writes what waits, in its order.
    async fn write_unsent(&self) {
        let journal = &self.journal;
        loop {
            let purge = poll_fn(|context| {
                let mut unsent = journal.unsent.lock();
                match unsent.purges.front() {
                    Some(purge) => Poll::Ready(purge.clone()),
                    None => {
                        unsent.waker = Some(context.waker().clone());
                        Poll::Pending
                    }
                }
            })
            .await;
            let draft = EntryDraft::new(&purge);
            let stream = journal.stream(&self.client);
            match self.client.ask(draft.command(&stream, self.length)).await {
                // It may have been written and written again: a purge twice does no harm.
                Ok(_) => {
                    let mut unsent = journal.unsent.lock();
                    // Unless the list has become one purge of everything meanwhile.
                    if unsent.purges.front() == Some(&purge) {
                        unsent.purges.pop_front();
                    }
                }
                Err(_) => rt::sleep(BEAT).await,
            }
        }
    }
}
