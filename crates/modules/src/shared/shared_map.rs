//! A map in Redis of which every member of a cluster has a copy: the entries of `keyval_zone … sync=redis`, and the sessions of
//! `sticky learn … sync=redis`.
//!
//! ```text
//! {prefix}:NAME           a hash: key, and "END VALUE"; END in milliseconds since 1970, 0 for never
//! {prefix}:NAME:changes   a stream: n a number, k a key, v "END VALUE" (none: it goes); without k all go
//! {prefix}:NAME:number    the last n
//! {prefix}:NAME:ends      a sorted set: when each key ends, so that the script finds those that have ended
//! ```
//!
//! One script writes all of them, so that they never differ, and decides whether a key is there already. Members read the
//! stream ten times a second. One that has missed a number, because the stream is bounded or Redis has lost some, reads the
//! hash. Requests look only into the copy: while Redis is away it stays as it was, and changes are refused.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bstr::ByteSlice;
use host::error_log::{LogLevel, Logger};
use net::redis::{
    RedisClient, RedisCommand, RedisFault, RedisReply, elements_of, number_of, text_of,
};

/// The interval of reads.
const ROUND: Duration = Duration::from_millis(100);

/// The changes that the stream has, about.
const CHANGES: u64 = 10_000;

/// How many are read at a time.
const BATCH: u64 = 1_000;

/// How many entries of the hash are read at a time, about.
const SCANNED: u64 = 1_000;

/// How long who has made a change waits until it is in this member's copy.
const PATIENCE: Duration = Duration::from_secs(1);

/// The script of all changes.
///
/// ```text
/// KEYS  the hash, the stream, the number, the ends
/// ARGV  the mode, the length of the stream, then of each change: key, value, validity in milliseconds (0: for ever)
/// ```
///
/// In this order: what has ended goes, as far as a thousand keys, so that a change takes a bounded time; then all keys are
/// checked, before any of them is changed, because a script is not undone; then they are changed, and each change is
/// numbered. Times are those of Redis: the clocks of members may differ, and decide only when a copy lets go of an entry.
const SCRIPT: &str = "local t = redis.call('TIME') \
     local now = t[1] * 1000 + math.floor(t[2] / 1000) \
     local mode = ARGV[1] \
     local function log(...) \
       local n = redis.call('INCR', KEYS[3]) \
       redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[2], '*', 'n', n, ...) \
       return n \
     end \
     for _, key in ipairs(redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', now, 'LIMIT', 0, 1000)) do \
       redis.call('HDEL', KEYS[1], key) redis.call('ZREM', KEYS[4], key) \
     end \
     if mode == 'clear' then redis.call('DEL', KEYS[1], KEYS[4]) return {'done', log()} end \
     if mode == 'list' and redis.call('HLEN', KEYS[1]) > 0 then return {'filled', 0} end \
     for i = 3, #ARGV, 3 do \
       local v = redis.call('HGET', KEYS[1], ARGV[i]) \
       local there = false \
       if v then local u = tonumber(string.match(v, '^%d+')) there = u == 0 or u > now end \
       if there and (mode == 'add' or mode == 'list') then return {'exists', i} end \
       if not there and (mode == 'set' or mode == 'remove') then return {'missing', i} end \
     end \
     local n = 0 \
     for i = 3, #ARGV, 3 do \
       if mode == 'remove' then \
         redis.call('HDEL', KEYS[1], ARGV[i]) redis.call('ZREM', KEYS[4], ARGV[i]) n = log('k', ARGV[i]) \
       else \
         local ends = '0' \
         if tonumber(ARGV[i + 2]) > 0 then \
           ends = string.format('%.0f', now + ARGV[i + 2]) redis.call('ZADD', KEYS[4], ends, ARGV[i]) \
         else redis.call('ZREM', KEYS[4], ARGV[i]) end \
         local v = ends .. ' ' .. ARGV[i + 1] \
         redis.call('HSET', KEYS[1], ARGV[i], v) n = log('k', ARGV[i], 'v', v) \
       end \
     end \
     return {'done', n}";

/// What a change does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SharedChange {
    /// A key that is not there.
    Add,
    /// The same for several, in an empty zone.
    List,
    /// A key that is there.
    Set,
    /// Keys, whether they are there or not.
    Put,
    /// It goes.
    Remove,
    /// All go.
    Clear,
}

impl SharedChange {
    fn word(self) -> &'static str {
        match self {
            SharedChange::Add => "add",
            SharedChange::List => "list",
            SharedChange::Set => "set",
            SharedChange::Put => "put",
            SharedChange::Remove => "remove",
            SharedChange::Clear => "clear",
        }
    }
}

/// What Redis says to a change. What is there already is decided where all members look, and not by a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SharedAnswer {
    /// It is made.
    Done,
    /// The zone has entries already.
    Filled,
    /// This key is there already.
    Exists(usize),
    /// It is not there.
    Missing(usize),
}

/// A key, its value, and for how many milliseconds it is valid.
pub(crate) type SharedEntry<'a> = (&'a str, &'a str, Option<u64>);

/// How far a copy has read: the last number, for who waits for a change of its own.
#[derive(Default)]
pub(crate) struct MapProgress(AtomicU64);

/// An entry of the hash, with when it ends in milliseconds since 1970.
pub(crate) type MapEntry = (String, String, Option<u64>);

/// The copy of a member. Any thread may look into it.
pub(crate) trait MapCopy {
    /// How far it is.
    fn progress(&self) -> &MapProgress;
    /// These are all entries. How many of them do not fit.
    fn replace_all(&self, list: &[MapEntry]) -> usize;
    /// Puts an entry, or removes it; whether it fits.
    fn put_entry(&self, key: &str, entry: Option<(&str, Option<u64>)>) -> bool;
    /// Removes all.
    fn remove_all(&self);
}

/// A map, where it is and its copy here.
pub(crate) struct SharedMap<'a> {
    /// The connection that all commands of this server share.
    pub(crate) client: &'a RedisClient,
    /// Its name in Redis, such as `keyval:denied`.
    pub(crate) name: String,
    pub(crate) copy: &'a dyn MapCopy,
}

/// The names of the hash, of the stream, of the number and of the ends.
fn keys(client: &RedisClient, name: &str) -> [String; 4] {
    let name = client.settings().key(name);
    let changes = format!("{name}:changes");
    let number = format!("{name}:number");
    let ends = format!("{name}:ends");
    [name, changes, number, ends]
}

impl SharedMap<'_> {
    /// Makes a change for all members. The number of the change.
    pub(crate) async fn send(
        &self,
        change: SharedChange,
        entries: &[SharedEntry<'_>],
    ) -> Result<(SharedAnswer, u64), RedisFault> {
        let mut command = RedisCommand::new("EVAL").arg(SCRIPT).number(4);
        for key in keys(self.client, &self.name) {
            command = command.arg(key);
        }
        command = command.arg(change.word()).number(CHANGES);
        for (key, value, valid_ms) in entries {
            command = command.arg(key).arg(value).number(valid_ms.unwrap_or(0));
        }
        let reply = self.client.ask(command).await?;
        let other = || RedisFault::Refused("the script gave something else".to_owned());
        let [word, number] = elements_of(&reply) else {
            return Err(other());
        };
        let number = number_of(number).and_then(|number| u64::try_from(number).ok());
        let number = number.ok_or_else(other)?;
        // The third argument is the first key.
        let index = usize::try_from(number.saturating_sub(3) / 3).unwrap_or(0);
        let answer = match text_of(word) {
            Some(b"done") => SharedAnswer::Done,
            Some(b"filled") => SharedAnswer::Filled,
            Some(b"exists") => SharedAnswer::Exists(index),
            Some(b"missing") => SharedAnswer::Missing(index),
            _ => return Err(other()),
        };
        Ok((answer, number))
    }

    /// The same, and waits a moment until it is in this member's copy.
    pub(crate) async fn change(
        &self,
        change: SharedChange,
        entries: &[SharedEntry<'_>],
    ) -> Result<SharedAnswer, RedisFault> {
        let (answer, number) = self.send(change, entries).await?;
        if answer == SharedAnswer::Done {
            let until_read = async {
                while self.copy.progress().0.load(Relaxed) < number {
                    rt::sleep(ROUND / 10).await;
                }
            };
            // It is made, whether this member has read it or not.
            let _ = rt::timeout(PATIENCE, until_read).await;
        }
        Ok(answer)
    }
}

/// Keeps the copy of a map for as long as the result is polled. `map` gives it, once there is one; `describe` says what it is
/// in messages.
///
/// After anything that was not as expected the place is forgotten, and everything is read again: a copy that is a little
/// late is no harm, one that differs for ever is.
pub(crate) async fn follow_map<'a>(
    map: impl Fn() -> Option<SharedMap<'a>>,
    description: String,
    log: Logger,
) {
    let mut place: Option<ChangePlace> = None;
    loop {
        if let Some(map) = map() {
            let reading = MapReading {
                map: &map,
                description: &description,
                log: &log,
            };
            let read = match place.take() {
                Some(place) => reading.read_changes(place).await,
                None => reading.read_all().await,
            };
            // Why Redis is away is in the log already; afterwards everything is read again.
            place = read.ok().flatten();
        }
        rt::sleep(ROUND).await;
    }
}

/// Up to where the stream has been read.
struct ChangePlace {
    /// The number of the entry in the stream.
    id: String,
    /// The last `n`.
    number: u64,
}

/// One round.
struct MapReading<'a> {
    map: &'a SharedMap<'a>,
    description: &'a str,
    log: &'a Logger,
}

impl MapReading<'_> {
    /// Reads the hash. The place in the stream is asked for first: a change between the two is then made twice, which does
    /// no harm.
    async fn read_all(&self) -> Result<Option<ChangePlace>, RedisFault> {
        let client = self.map.client;
        let [hash, changes, number, _] = keys(client, &self.map.name);
        let last = RedisCommand::new("XREVRANGE")
            .arg(&changes)
            .arg("+")
            .arg("-");
        let last = client.begin(last.arg("COUNT").number(1))?;
        let number = client.begin(RedisCommand::new("GET").arg(number))?;
        // Begun together, so that they are one batch.
        let lost = |_| Err(RedisFault::Away("the connection has ended".to_owned()));
        let last = last.await.unwrap_or_else(lost)?;
        let number = number.await.unwrap_or_else(lost)?;
        let last = elements_of(&last).first().map(elements_of);
        let id = last.and_then(|entry| text_of(entry.first()?)?.to_str().ok().map(str::to_owned));
        let list = self.scan(&hash).await?;
        let refused = self.map.copy.replace_all(&list);
        self.note_refused(refused);
        let number = number_of(&number).and_then(|number| u64::try_from(number).ok());
        let number = number.unwrap_or(0);
        self.map.copy.progress().0.store(number, Relaxed);
        Ok(Some(ChangePlace {
            id: id.unwrap_or_else(|| "0-0".to_owned()),
            number,
        }))
    }

    /// Reads all entries of the hash, some at a time: a reply with all of them could be longer than a reply may be, and would
    /// keep Redis from everything else.
    async fn scan(&self, hash: &str) -> Result<Vec<MapEntry>, RedisFault> {
        let mut list = Vec::new();
        let mut cursor = "0".to_owned();
        loop {
            let command = RedisCommand::new("HSCAN").arg(hash).arg(&cursor);
            let reply = self
                .map
                .client
                .ask(command.arg("COUNT").number(SCANNED))
                .await?;
            let [next, pairs] = elements_of(&reply) else {
                return Err(RedisFault::Refused("HSCAN gave something else".to_owned()));
            };
            for pair in elements_of(pairs).chunks_exact(2) {
                if let (Some(key), Some((value, until))) =
                    (words(&pair[0]), words(&pair[1]).and_then(split))
                {
                    list.push((key.to_owned(), value.to_owned(), until));
                }
            }
            match words(next) {
                None | Some("0") => return Ok(list),
                Some(next) => cursor = next.to_owned(),
            }
        }
    }

    /// Reads what has changed, until nothing is left; `None`: something was missed.
    async fn read_changes(
        &self,
        mut place: ChangePlace,
    ) -> Result<Option<ChangePlace>, RedisFault> {
        let client = self.map.client;
        let [_, changes, number, _] = keys(client, &self.map.name);
        loop {
            let read = RedisCommand::new("XREAD COUNT")
                .number(BATCH)
                .arg("STREAMS");
            let read = client.begin(read.arg(&changes).arg(&place.id))?;
            let number = client.begin(RedisCommand::new("GET").arg(&number))?;
            let lost = |_| Err(RedisFault::Away("the connection has ended".to_owned()));
            let read = read.await.unwrap_or_else(lost)?;
            let number = number.await.unwrap_or_else(lost)?;
            let stream = elements_of(&read).first().map(elements_of);
            let entries = match stream {
                Some([_, entries]) => elements_of(entries),
                _ => &[],
            };
            if !self.take_changes(&mut place, entries) {
                return Ok(None);
            }
            // Redis has lost what this member knows: it was emptied, or another one has taken over.
            let number = number_of(&number).and_then(|number| u64::try_from(number).ok());
            if number.unwrap_or(0) < place.number && entries.is_empty() {
                return Ok(None);
            }
            if (entries.len() as u64) < BATCH {
                return Ok(Some(place));
            }
        }
    }

    /// Makes changes in the copy; `false`: one was missed.
    fn take_changes(&self, place: &mut ChangePlace, entries: &[RedisReply]) -> bool {
        let mut refused = 0;
        for entry in entries {
            let [id, fields] = elements_of(entry) else {
                return false;
            };
            let change = StreamedChange::read(fields);
            let Some(change) = change.filter(|change| change.number == place.number + 1) else {
                return false;
            };
            refused += usize::from(!self.make(&change));
            place.number = change.number;
            place.id = words(id).unwrap_or_default().to_owned();
            self.map.copy.progress().0.store(place.number, Relaxed);
        }
        self.note_refused(refused);
        true
    }

    /// Makes a change in the copy; whether it fits. A zone that is smaller here than where the change was made keeps what it
    /// has room for: the log says how much it lacks.
    fn make(&self, change: &StreamedChange<'_>) -> bool {
        match change.key {
            None => {
                self.map.copy.remove_all();
                true
            }
            Some(key) => self.map.copy.put_entry(key, change.entry),
        }
    }

    fn note_refused(&self, refused: usize) {
        if refused > 0 {
            let what = self.description;
            self.log.log_plain(
                LogLevel::Error,
                format_args!("{what}: {refused} entries of the cluster do not fit"),
            );
        }
    }
}

/// An entry of the stream.
struct StreamedChange<'a> {
    /// One more than that of the entry before.
    number: u64,
    /// `None`: all keys go.
    key: Option<&'a str>,
    /// The value and its end; `None`: the key goes.
    entry: Option<(&'a str, Option<u64>)>,
}

impl<'a> StreamedChange<'a> {
    fn read(fields: &'a RedisReply) -> Option<StreamedChange<'a>> {
        let mut change = StreamedChange {
            number: 0,
            key: None,
            entry: None,
        };
        for pair in elements_of(fields).chunks_exact(2) {
            match text_of(&pair[0])? {
                b"n" => change.number = u64::try_from(number_of(&pair[1])?).ok()?,
                b"k" => change.key = Some(words(&pair[1])?),
                b"v" => change.entry = Some(split(words(&pair[1])?)?),
                // Of a later version.
                _ => {}
            }
        }
        Some(change)
    }
}

/// A text; what members write is UTF-8.
fn words(reply: &RedisReply) -> Option<&str> {
    text_of(reply)?.to_str().ok()
}

/// The value and the end of `END VALUE`.
fn split(text: &str) -> Option<(&str, Option<u64>)> {
    let (until, value) = text.split_once(' ')?;
    let until: u64 = until.parse().ok()?;
    Some((value, (until > 0).then_some(until)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_its_end_and_its_value() {
        assert_eq!(split("0 a b"), Some(("a b", None)));
        assert_eq!(split("12 "), Some(("", Some(12))));
        for none in ["", "a", "x y", "-1 a"] {
            assert_eq!(split(none), None, "{none}");
        }
    }
}
