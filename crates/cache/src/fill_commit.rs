//! The way of a fill into the log: runs of its body while it comes, and the object's record at its end. What is here runs on
//! the store's writer, or hands it work.

use std::sync::Arc;

use bytes::Bytes;

use crate::fill::{Fill, Phase, gather};
use crate::format::{Description, EXTENTS_MAX, Extent};
use crate::log::Log;
use crate::object::Stored;
use crate::reclaim::{Commit, append_run, commit};
use crate::store_core::StoreCore;
use crate::{Head, Mode};

impl Fill {
    /// Hands the store's writer what has come, if that is enough for a run or `all` of it.
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

    /// Hands the store's writer what is left, and the commit.
    pub(crate) fn commit_soon(self: &Arc<Self>, core: &Arc<StoreCore>, whole: bool) {
        // It is passed through only: there is nothing to commit, and new requests must not join it.
        if self.state().phase != Phase::Storing {
            core.fills.remove(self);
            return;
        }
        self.store_ready(core, true);
        let fill = Arc::clone(self);
        core.enqueue(Box::new(move |core, log| fill.commit(core, log, whole)));
    }

    fn write_run(self: Arc<Self>, core: &Arc<StoreCore>, log: &mut Log, offset: u64, data: &Bytes) {
        // The disk failed meanwhile, or a purge has hit it: what waits in the queue is not written.
        if self.state().phase != Phase::Storing {
            return;
        }
        let written =
            append_run(core, log, false, self.target().1, offset, data).and_then(|extents| {
                log.flush(core)?;
                Ok(extents)
            });
        let found = written.ok().and_then(|extents| {
            let segment = core.segment(extents.first()?.segment)?;
            Some((extents, segment))
        });
        match found {
            Some((extents, segment))
                if self.state().written.len() + extents.len() <= EXTENTS_MAX =>
            {
                let extents = extents
                    .into_iter()
                    .map(|extent| (extent, Arc::clone(&segment)));
                self.change(|state| state.written.extend(extents));
            }
            _ => core.fills.stop_storing(&self),
        }
    }

    /// The commit, on the writer's thread, after all extents.
    fn commit(self: Arc<Self>, core: &Arc<StoreCore>, log: &mut Log, whole: bool) {
        let Some(entry) = self.prepare(core, log, whole) else {
            core.fills.remove(&self);
            return;
        };
        let fill = Arc::clone(&self);
        // A failure runs the closure too, or the record was never taken: then the guard in it says so.
        let committed = move |core: &StoreCore, _| {
            let hash = fill.target().1;
            if fill.state().softened
                && let Some(entry) = core.index.get(hash, None)
            {
                core.index
                    .update(hash, entry.location(), |entry| entry.stale(true));
            }
            core.fills.remove(&fill);
        };
        if commit(core, log, entry, committed).is_err() {
            core.fills.remove(&self);
        }
    }

    fn prepare(&self, core: &Arc<StoreCore>, log: &mut Log, whole: bool) -> Option<Commit> {
        let (head, mut extents, inline) = {
            let state = self.state();
            let head = state
                .head
                .clone()
                .filter(|_| state.phase == Phase::Storing)?;
            let extents: Vec<Extent> = state.written.iter().map(|(extent, _)| *extent).collect();
            let rest = (state.received - state.on_disk(self.base)) as usize;
            (
                head,
                extents,
                gather(&state.chunks, state.on_disk(self.base), rest),
            )
        };
        if core
            .purges()
            .verdict(self.born, self.target().0.text(), &head.tags)
            == Some(Mode::Hard)
        {
            return None;
        }
        let mut head = Head::clone(&head);
        if whole && self.is_whole() && head.length.is_none() {
            head.length = Some(extents.last().map_or(0, Extent::end) + inline.len() as u64);
        }
        let mut inline = inline;
        if !self.covers_all(&head, whole) && !self.join(core, log, &head, &mut extents, &mut inline)
        {
            return None;
        }
        let (key, hash) = self.target();
        let main = log.ghosts.take(hash);
        Some(Commit {
            hash,
            born: self.born,
            description: Description {
                key: key.clone(),
                head,
                extents,
            },
            inline,
            accessed: (self.began_ms / 1000) as u32,
            main,
            frequency: 0,
        })
    }

    fn covers_all(&self, head: &Head, whole: bool) -> bool {
        whole && self.is_whole() && head.length == Some(self.state().received)
    }

    /// Joins a part with what the store has of the same version. False: it is not to be stored, because it would take
    /// the place of an object that is whole or cannot be told apart from another.
    fn join(
        &self,
        core: &Arc<StoreCore>,
        log: &mut Log,
        head: &Head,
        extents: &mut Vec<Extent>,
        inline: &mut Bytes,
    ) -> bool {
        let Some(length) = head.length else {
            return false;
        };
        if !inline.is_empty() {
            let Ok(more) = append_run(core, log, false, self.target().1, self.base, inline) else {
                return false;
            };
            extents.extend(more);
            *inline = Bytes::new();
        }
        let (key, hash) = self.target();
        let Some(entry) = core.index.get(hash, None) else {
            return !extents.is_empty();
        };
        let location = entry.location();
        let present = core
            .segment(location.segment)
            .and_then(|segment| Stored::parse(segment.read_record(location).ok()?, location, hash));
        let Some(present) = present else { return true };
        let there = &present.description.head;
        let same = present.description.key == *key
            && head.meta.version != 0
            && there.meta.version == head.meta.version
            && there.length == head.length;
        if !same {
            // Something else is there. If it is whole: stale is better than a part.
            let held: u64 = present.extents.iter().map(|old| u64::from(old.len)).sum();
            let is_whole = there.length.is_none_or(|length| held >= length);
            return !is_whole && !extents.is_empty();
        }
        join_extents(extents, &present.extents);
        // What is there already may be there under a new head.
        extents.last().is_some_and(|last| last.end() <= length) && extents.len() <= EXTENTS_MAX
    }
}

/// Adds to extents those of the same body that were stored before. Where they overlap the old ones stay, because they cannot
/// be cut, unless a new one has all that they have.
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
