//! The structs of a block that was read, as requests and sessions find them: by their type.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::Arc;

use base::number_map::NumberHasher;

use crate::block_confs::{AnyConf, downcast};

/// The structs of a block's tables, found by their type.
///
/// They stand in chunks, and blocks share the chunks in which they do not differ: a location that
/// sets one thing costs a chunk and not the whole list.
#[derive(Default)]
pub struct ConfSet {
    positions: Arc<ConfPositions>,
    chunks: Box<[Arc<ConfChunk>]>,
}

impl ConfSet {
    /// The struct of type `C`. Panics when no module of the program has it: then the caller's
    /// module is not in the list of modules.
    pub fn get<C: Any>(&self) -> &C {
        self.at(self.position_of::<C>())
    }

    /// Where the struct of type `C` stands in every set of this group, for who asks more than once.
    /// Panics as [`ConfSet::get`] does.
    pub fn position_of<C: Any>(&self) -> usize {
        let at = self.positions.find(TypeId::of::<C>());
        at.expect("the module that asks for its struct is in the list of modules")
    }

    /// The settings at a position that [`ConfSet::position_of`] returned for the same type.
    pub fn at<C: Any>(&self, position: usize) -> &C {
        downcast(&*self.chunks[position / CHUNK][position % CHUNK])
    }
}

/// How many settings form a chunk. A list of 62 is smallest at 8: as many chunks as settings in each.
const CHUNK: usize = 8;

/// The settings of some tables. The last chunk is filled up with the last one.
type ConfChunk = [Arc<dyn AnyConf>; CHUNK];

/// How many chunks are known at the beginning of a server.
const MAX_KNOWN_CHUNKS: usize = 4096;

/// Makes the sets of one group of tables, and knows what they share.
#[derive(Default)]
pub struct ConfSets {
    /// The same for all of them: made for the first one.
    positions: Option<Arc<ConfPositions>>,
    /// Chunks that are there, by the addresses of the structs in them.
    chunks: HashMap<[usize; CHUNK], Arc<ConfChunk>, BuildHasherDefault<NumberHasher>>,
}

impl ConfSets {
    /// The set of structs that stand in the order of their tables.
    pub fn set(&mut self, confs: &[Arc<dyn AnyConf>]) -> ConfSet {
        let positions = self
            .positions
            .get_or_insert_with(|| ConfPositions::of(confs));
        let positions = Arc::clone(positions);
        let chunks = confs.chunks(CHUNK).map(|confs| self.share(confs));
        ConfSet {
            positions,
            chunks: chunks.collect(),
        }
    }

    /// Called after each server. Forgets the chunks when they are many: those that all servers have are made again, and
    /// the others are of no use to the next one.
    pub fn forget_chunks(&mut self) {
        if self.chunks.len() > MAX_KNOWN_CHUNKS {
            self.chunks.clear();
        }
    }

    fn share(&mut self, confs: &[Arc<dyn AnyConf>]) -> Arc<ConfChunk> {
        let at = |index: usize| &confs[index.min(confs.len() - 1)];
        let key = std::array::from_fn(|index| Arc::as_ptr(at(index)).addr());
        let make = || Arc::new(std::array::from_fn(|index| Arc::clone(at(index))));
        Arc::clone(self.chunks.entry(key).or_insert_with(make))
    }
}

/// Where the struct of each type is: a table with open addressing, at most half full. A request asks
/// it many times.
#[derive(Default)]
struct ConfPositions {
    slots: Box<[Option<(TypeId, u16)>]>,
}

impl ConfPositions {
    /// The positions of settings that are listed in the order of their tables.
    fn of(confs: &[Arc<dyn AnyConf>]) -> Arc<ConfPositions> {
        let mut slots = vec![None; (confs.len() * 2).next_power_of_two()].into_boxed_slice();
        for (index, conf) in confs.iter().enumerate() {
            let id = (**conf).type_id();
            let mut at = ConfPositions::start(id, slots.len());
            // Half of the slots are empty, so every probe ends.
            while slots[at].is_some_and(|(known, _)| known != id) {
                at = (at + 1) % slots.len();
            }
            slots[at] = Some((id, index as u16));
        }
        Arc::new(ConfPositions { slots })
    }

    /// Where the search for a type begins. The identity of a type is a hash already, so hashing it again would be
    /// wasted.
    fn start(id: TypeId, slots: usize) -> usize {
        let mut hasher = FirstWord(0);
        id.hash(&mut hasher);
        hasher.0 as usize & (slots - 1)
    }

    fn find(&self, id: TypeId) -> Option<usize> {
        let mut at = ConfPositions::start(id, self.slots.len());
        loop {
            match self.slots[at] {
                Some((known, index)) if known == id => return Some(usize::from(index)),
                Some(_) => at = (at + 1) & (self.slots.len() - 1),
                None => return None,
            }
        }
    }
}

/// A hasher that passes the word through.
struct FirstWord(u64);

impl Hasher for FirstWord {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0 ^= u64::from_ne_bytes(word);
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 ^= word;
    }
}
