//! A store that does what a history says, and what is found in it.

use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use cache::{
    CacheKey, CacheStore, CachedObject, LookupResult, ObjectHead, ObjectMeta, PurgeMode,
    PurgeRequest, StoreOptions,
};
use rt::pool::PoolHandle;

use super::history::{KEYS, StoreStep};
use super::model::{Found, StoreFacts, StoredNumber, body};

/// When histories begin, in milliseconds.
pub(super) const BEGINNING: u64 = 1_700_000_000_000;
/// The sizes of a store in which a few bodies are enough to make room.
const SEGMENT: u64 = 8 * 1024;
const MAX_SIZE: u64 = 200 * 1024;
/// One key has objects that are fresh for a while, in milliseconds; those of others are for ever.
const MORTAL_KEY: usize = 1;
const LIFETIME: u64 = 20_000;

/// A store and what must hold of it.
pub(crate) struct DrivenStore {
    store: CacheStore,
    path: PathBuf,
    pool: PoolHandle,
    now_ms: u64,
    next_number: u64,
    /// What holds if nothing crashes.
    pub(crate) facts: StoreFacts,
    /// What holds after the death of the process, and after a loss of power.
    pub(crate) promised: [StoreFacts; 2],
}

impl DrivenStore {
    /// Opens the store at this path, of which these promises were made.
    pub(crate) fn open(
        path: &Path,
        pool: &PoolHandle,
        facts: StoreFacts,
        next_number: u64,
        now_ms: u64,
    ) -> Result<DrivenStore, String> {
        let store = CacheStore::open(options(path, pool), now_ms)
            .map_err(|error| format!("S5: the store does not open: {error}"))?;
        Ok(DrivenStore {
            store,
            path: path.to_owned(),
            pool: pool.clone(),
            now_ms,
            next_number,
            facts,
            promised: [facts; 2],
        })
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.now_ms
    }

    pub(crate) fn next_number(&self) -> u64 {
        self.next_number
    }

    /// Why a key is not found.
    pub(crate) async fn explain_miss(&self, key: usize) -> String {
        let found = self.store.lookup(&cache_key(key), self.now_ms).await;
        let error = self.store.last_error().unwrap_or_default();
        format!("key {key}: {found:?}, {:?}, {error}", self.store.stats())
    }

    /// Does one step.
    pub(crate) async fn step(&mut self, step: StoreStep) -> Result<(), String> {
        match step {
            StoreStep::Put(key, len) => self.put(key, len).await,
            StoreStep::Use(key, times) => {
                for _ in 0..times {
                    let _found = self.store.lookup(&cache_key(key), self.now_ms).await;
                }
            }
            StoreStep::Refresh(key) => self.refresh(key).await,
            StoreStep::PurgeKey(key, mode) => {
                self.purge(PurgeRequest::Key(&cache_key(key)), mode, |other| {
                    other == key
                });
            }
            StoreStep::PurgeTag(mode) => {
                self.purge(PurgeRequest::Tag(b"even"), mode, |key| key % 2 == 0);
            }
            StoreStep::PurgePrefix(mode) => {
                self.purge(PurgeRequest::Prefix(b"key"), mode, |_| true);
            }
            StoreStep::PurgeAll(mode) => self.purge(PurgeRequest::All, mode, |_| true),
            StoreStep::Flush => self.flush().await,
            StoreStep::Checkpoint => {
                self.store
                    .checkpoint()
                    .await
                    .map_err(|error| format!("checkpoint: {error}"))?;
                self.promised = [self.facts; 2];
            }
            StoreStep::Upkeep => {
                self.now_ms += 15_000;
                self.store.run_upkeep(self.now_ms);
                self.flush().await;
            }
            StoreStep::Expire => {
                self.now_ms += 700_000;
                for _ in 0..16 {
                    self.store.run_upkeep(self.now_ms);
                }
                self.flush().await;
            }
            StoreStep::Reopen => return self.reopen().await,
        }
        Ok(())
    }

    async fn flush(&mut self) {
        self.store.flush().await;
        self.promised[0] = self.facts;
    }

    async fn reopen(&mut self) -> Result<(), String> {
        self.store
            .close()
            .await
            .map_err(|error| format!("close: {error}"))?;
        self.promised = [self.facts; 2];
        self.store.give_away();
        self.store.flush().await;
        let store = CacheStore::open(options(&self.path, &self.pool), self.now_ms);
        self.store = store.map_err(|error| format!("S5: the store does not open: {error}"))?;
        Ok(())
    }

    async fn put(&mut self, key: usize, len: usize) {
        let number = self.next_number;
        self.next_number += 1;
        let (mut writer, follower) = self.store.start_fill(&cache_key(key), self.now_ms);
        drop(follower);
        writer.start_storing(head(key, number, number, len, self.now_ms));
        // The store may refuse, such as on a full disk: then it is as if nothing had been put.
        if len > 0 && writer.write(Bytes::from(body(number, len))).await.is_err() {
            return;
        }
        writer.finish();
        self.facts.0[key].floor = number;
    }

    async fn refresh(&mut self, key: usize) {
        // What is put and not committed yet is not what a lookup finds.
        self.flush().await;
        let (LookupResult::Hit(object) | LookupResult::Stale(object, _)) =
            self.store.lookup(&cache_key(key), self.now_ms).await
        else {
            return;
        };
        let Some(stored) = numbers(&object) else {
            return;
        };
        let number = self.next_number;
        self.next_number += 1;
        let new = head(key, number, stored.body, stored.len, self.now_ms);
        // A fill that validates is younger than every purge so far.
        let (writer, follower) = self.store.start_fill(&cache_key(key), self.now_ms);
        let born = writer.born();
        drop((writer, follower));
        self.store
            .refresh(&object, new.meta, Some(new.opaque), born);
        self.facts.0[key].floor = number;
        self.flush().await;
    }

    fn purge(&mut self, what: PurgeRequest<'_>, mode: PurgeMode, hits: impl Fn(usize) -> bool) {
        self.store.purge(what, mode);
        for key in (0..KEYS).filter(|&key| hits(key)) {
            let facts = &mut self.facts.0[key];
            match mode {
                PurgeMode::Hard => facts.floor = self.next_number,
                PurgeMode::Soft => facts.soft = self.next_number - 1,
            }
        }
    }

    /// What is found of all keys, with each byte compared.
    pub(crate) async fn look(&self) -> Result<[Found; KEYS], String> {
        let mut all = [Found::Nothing; KEYS];
        for (key, found) in all.iter_mut().enumerate() {
            *found = match self.store.lookup(&cache_key(key), self.now_ms).await {
                LookupResult::Hit(object) => {
                    let stored = self.read(key, &object).await?;
                    if stored.fresh_until_ms <= self.now_ms {
                        let late = self.now_ms - stored.fresh_until_ms;
                        return Err(format!("S6: key {key} is fresh {late} ms after its time"));
                    }
                    Found::Fresh(stored)
                }
                LookupResult::Stale(object, _) => Found::Stale(self.read(key, &object).await?),
                LookupResult::Miss(..) => Found::Nothing,
            };
        }
        Ok(all)
    }

    /// Reads an object both ways: verified, and as `sendfile` sends it.
    async fn read(&self, key: usize, object: &CachedObject) -> Result<StoredNumber, String> {
        let stored =
            numbers(object).ok_or_else(|| format!("S1: the head of key {key} is not ours"))?;
        let wanted = body(stored.body, stored.len);
        if !object.is_complete() {
            return Err(format!("S1: key {key} has holes, and was stored whole"));
        }
        let mut at = 0;
        while at < wanted.len() {
            let sent = sent_bytes(object, at)?;
            let wrong = || {
                format!(
                    "S1: key {key}, number {}, has wrong bytes from {at} on",
                    stored.number
                )
            };
            if sent.is_empty() || wanted.get(at..at + sent.len()) != Some(&sent[..]) {
                return Err(wrong());
            }
            let read = object.read(at as u64, sent.len()).await;
            let read = read
                .map_err(|error| format!("S1: key {key} is a hit, and cannot be read: {error}"))?;
            if !sent.starts_with(&read) {
                return Err(wrong());
            }
            at += sent.len();
        }
        match object.length() == wanted.len() as u64 {
            true => Ok(stored),
            false => Err(format!("S1: key {key} has the wrong length")),
        }
    }
}

/// What would be sent from this place on, without a look at checksums.
fn sent_bytes(object: &CachedObject, at: usize) -> Result<Vec<u8>, String> {
    if let Some(body) = object.body_in_memory() {
        return Ok(body[at..].to_vec());
    }
    let Some(range) = object.file_range(at as u64) else {
        return Ok(Vec::new());
    };
    let file =
        std::fs::File::from(rustix::io::dup(&range.file).map_err(|error| format!("dup: {error}"))?);
    let mut bytes = vec![0; range.len as usize];
    match file.read_exact_at(&mut bytes, range.offset) {
        Ok(()) => Ok(bytes),
        Err(error) => Err(format!("S1: a hit whose file ends too early: {error}")),
    }
}

fn cache_key(key: usize) -> CacheKey {
    CacheKey::new(format!("key{key}").as_bytes())
}

fn options(path: &Path, pool: &PoolHandle) -> StoreOptions {
    StoreOptions {
        max_size: MAX_SIZE,
        memory: 0,
        segment_size: Some(SEGMENT),
        ..StoreOptions::new(path, pool.clone())
    }
}

fn head(key: usize, number: u64, body: u64, len: usize, now_ms: u64) -> ObjectHead {
    let tag = key.is_multiple_of(2).then(|| Bytes::from_static(b"even"));
    let fresh_until_ms = match key {
        MORTAL_KEY => now_ms + LIFETIME,
        _ => u64::MAX,
    };
    ObjectHead {
        meta: ObjectMeta {
            stored_ms: now_ms,
            validated_ms: now_ms,
            fresh_until_ms,
            version: body,
            ..ObjectMeta::default()
        },
        opaque: Bytes::from(format!("{number} {body} {len} {fresh_until_ms}")),
        tags: tag.into_iter().collect(),
        length: Some(len as u64),
    }
}

fn numbers(object: &CachedObject) -> Option<StoredNumber> {
    let text = std::str::from_utf8(&object.head().opaque).ok()?;
    let mut words = text.split(' ');
    Some(StoredNumber {
        number: words.next()?.parse().ok()?,
        body: words.next()?.parse().ok()?,
        len: words.next()?.parse().ok()?,
        fresh_until_ms: words.next()?.parse().ok()?,
    })
}
