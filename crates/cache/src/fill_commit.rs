//! How a fill gets into the log: runs of its body while it comes, the object record at its end. These functions run on
//! the writer of the store, or queue work for it.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;

use crate::fill::{Fill, FillPhase, copy_range};
use crate::format::{EXTENTS_MAX, Extent, ObjectRecord};
use crate::object::ParsedObject;
use crate::reclaim::{ObjectCommit, append_run, commit_object};
use crate::store_core::StoreCore;
use crate::store_log::StoreLog;
use crate::{ObjectHead, PurgeMode};

impl Fill {
    /// Queues what has come for the writer, if that is a whole run or `all` of it is wanted.
    pub(crate) fn store_ready(self: &Arc<Self>, core: &Arc<StoreCore>, all: bool) {
        loop {
            let Some((offset, data)) = self.next_run(&mut self.state(), all) else {
                return;
            };
            let fill = Arc::clone(self);
            core.enqueue(Box::new(move |core, log| {
                fill.write_run(core, log, offset, &data)
            }));
        }
    }

    /// Queues what is left for the writer, and the commit.
    pub(crate) fn enqueue_commit(self: &Arc<Self>, core: &Arc<StoreCore>, whole: bool) {
        // Not stored: there is nothing to commit, and new requests must not join.
        if self.state().phase != FillPhase::Storing {
            core.fills.remove(self);
            return;
        }
        self.store_ready(core, true);
        // Jobs run in the order of the queue: by then all runs are written.
        let fill = Arc::clone(self);
        core.enqueue(Box::new(move |core, log| fill.commit(core, log, whole)));
    }

    fn write_run(
        self: Arc<Self>,
        core: &Arc<StoreCore>,
        log: &mut StoreLog,
        offset: u64,
        data: &Bytes,
    ) {
        // The disk failed meanwhile, or a purge has hit it: what waits in the queue is not written.
        if self.state().phase != FillPhase::Storing {
            return;
        }
        let written =
            append_run(core, log, false, self.storage_key().1, offset, data).and_then(|extents| {
                // Written at once: followers are told to read these extents from the file.
                log.flush(core)?;
                Ok(extents)
            });
        let found = written.ok().and_then(|extents| {
            let segment = core.segment(extents.first()?.segment)?;
            Some((extents, segment))
        });
        match found {
            Some((extents, segment))
                // An object record has no place for more.
                if self.state().written.len() + extents.len() <= EXTENTS_MAX =>
            {
                let extents = extents
                    .into_iter()
                    .map(|extent| (extent, Arc::clone(&segment)));
                self.update_and_wake(|state| state.written.extend(extents));
            }
            _ => core.fills.stop_storing(&self),
        }
    }

    /// The commit. Runs on the writer after all runs of the body.
    fn commit(self: Arc<Self>, core: &Arc<StoreCore>, log: &mut StoreLog, whole: bool) {
        // A part is joined with what is there, whichever is older.
        let may_be_outdated = whole && self.is_whole() && self.is_overtaken.load(Relaxed);
        let outdated = may_be_outdated && self.is_outdated(core, log);
        let entry = match outdated {
            true => None,
            false => self.prepare(core, log, whole),
        };
        let Some(entry) = entry else {
            core.fills.remove(&self);
            return;
        };
        let fill = Arc::clone(&self);
        // Runs whether the record was written or lost. A record that was not even taken drops it, and the fill is
        // removed below.
        let committed = move |core: &StoreCore, _| {
            let hash = fill.storage_key().1;
            let (is_stopped, is_softened) = {
                let state = fill.state();
                (state.phase != FillPhase::Storing, state.softened)
            };
            // A purge has come between the end of the body and this moment, perhaps while the record was being written: it
            // had no entry to remove, or to mark.
            if is_stopped {
                core.index.remove(hash);
            } else if is_softened {
                crate::store::mark_stale(core, hash);
            }
            // After the index has the object: in between a request would find neither, and fetch.
            core.fills.remove(&fill);
        };
        if commit_object(core, log, entry, committed).is_err() {
            core.fills.remove(&self);
        }
    }

    /// Whether the index has a response of its key whose head came later: that of a fill which has overtaken this one. Of
    /// several responses the most recent one counts (RFC 9111, section 4).
    fn is_outdated(&self, core: &Arc<StoreCore>, log: &mut StoreLog) -> bool {
        // What is pending may be that response. A failure has been reported.
        let _ = log.flush(core);
        let (key, hash) = self.storage_key();
        let present = present_object(core, hash).filter(|it| it.description.key == *key);
        present.is_some_and(|present| {
            let validated_ms = present.description.head.meta.validated_ms;
            (validated_ms, present.record.born) > self.recency()
        })
    }

    fn prepare(
        &self,
        core: &Arc<StoreCore>,
        log: &mut StoreLog,
        whole: bool,
    ) -> Option<ObjectCommit> {
        let (head, mut extents, inline) = {
            let state = self.state();
            let head = state
                .head
                .clone()
                .filter(|_| state.phase == FillPhase::Storing)?;
            let extents: Vec<Extent> = state.written.iter().map(|(extent, _)| *extent).collect();
            let rest = (state.received - state.stored_end(self.base)) as usize;
            (
                head,
                extents,
                copy_range(&state.chunks, state.stored_end(self.base), rest),
            )
        };
        // Purged since it began: to store it would undo the purge. The tags have only been known since the head.
        if core
            .purges()
            .purge_mode(self.born, self.storage_key().0.text(), &head.tags)
            == Some(PurgeMode::Hard)
        {
            return None;
        }
        let mut head = ObjectHead::clone(&head);
        // A body without an announced length (chunked) has one when it has ended.
        if whole && self.is_whole() && head.length.is_none() {
            head.length = Some(extents.last().map_or(0, Extent::end) + inline.len() as u64);
        }
        let mut inline = inline;
        if !self.covers_all(&head, whole)
            && !self.join(core, log, &mut head, &mut extents, &mut inline)
        {
            return None;
        }
        let (key, hash) = self.storage_key();
        // Evicted not long ago and fetched again: it goes to the main side at once.
        let main = log.ghosts.take(hash);
        Some(ObjectCommit {
            hash,
            born: self.born,
            description: ObjectRecord {
                key: key.clone(),
                head,
                extents,
            },
            inline,
            accessed: (self.began_ms / 1000) as u32,
            main,
            frequency: 0,
            is_stale: self.state().softened,
            replaces: None,
        })
    }

    fn covers_all(&self, head: &ObjectHead, whole: bool) -> bool {
        whole && self.is_whole() && head.length == Some(self.state().received)
    }

    /// Joins a part with what the store has of the same version. False: it is not stored, because it would replace a
    /// whole object, or nothing tells its version.
    fn join(
        &self,
        core: &Arc<StoreCore>,
        log: &mut StoreLog,
        head: &mut ObjectHead,
        extents: &mut Vec<Extent>,
        inline: &mut Bytes,
    ) -> bool {
        // Without the length of the whole body nothing tells what is still missing.
        let Some(length) = head.length else {
            return false;
        };
        // The object record holds a body from its first byte. What is left of a part becomes a record of its own.
        if !inline.is_empty() {
            let Ok(more) = append_run(core, log, false, self.storage_key().1, self.base, inline)
            else {
                return false;
            };
            extents.extend(more);
            *inline = Bytes::new();
        }
        let (key, hash) = self.storage_key();
        if core.index.get(hash, None).is_none() {
            return !extents.is_empty();
        }
        // What is stored cannot be read: the part replaces it.
        let Some(present) = present_object(core, hash) else {
            return true;
        };
        let there = &present.description.head;
        let is_older = there.meta.validated_ms > head.meta.validated_ms;
        // RFC 9111, section 3.4: parts are combined only if they share a strong validator.
        let same = present.description.key == *key
            && head.meta.version != 0
            && there.meta.version == head.meta.version
            && there.length == head.length;
        if !same {
            // Another object is there. If it is whole it stays: even stale it is of more use than a part.
            let held: u64 = present.extents.iter().map(|old| u64::from(old.len)).sum();
            let is_whole = there.length.is_none_or(|length| held >= length);
            return !is_whole && !is_older && !extents.is_empty();
        }
        join_extents(extents, &present.extents);
        // Of the two heads the later one counts (RFC 9111, section 3.4): a part that began before another one may end after
        // it. With a newer head the part is stored even if all of its bytes were there already.
        if is_older {
            *head = there.clone();
        }
        extents.last().is_some_and(|last| last.end() <= length) && extents.len() <= EXTENTS_MAX
    }
}

/// What the index has under a hash, if it can be read.
fn present_object(core: &StoreCore, hash: u64) -> Option<ParsedObject> {
    let location = core.index.get(hash, None)?.location();
    let segment = core.segment(location.segment)?;
    ParsedObject::parse(segment.read_record(location).ok()?, location, hash)
}

/// Adds to extents those of the same body that were stored before. Where they overlap the old one stays, because an
/// extent cannot be cut without its checksum, unless the new one covers all of it.
fn join_extents(extents: &mut Vec<Extent>, before: &[Extent]) {
    let overlaps = |old: &Extent, new: &Extent| old.offset < new.end() && new.offset < old.end();
    let covers = |new: &Extent, old: &Extent| new.offset <= old.offset && old.end() <= new.end();
    let mut joined = before.to_vec();
    for new in std::mem::take(extents) {
        let in_the_way = joined
            .iter()
            .any(|old| overlaps(old, &new) && !covers(&new, old));
        if !in_the_way {
            joined.retain(|old| !overlaps(old, &new));
            joined.push(new);
        }
    }
    joined.sort_by_key(|extent| extent.offset);
    *extents = joined;
}
