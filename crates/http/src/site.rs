//! The frozen configuration of `http {}`: servers, locations and the handlers that run in each.
//!
//! One [`Frozen`] exists per generation of the configuration and is shared by all loops. Each loop wraps it in an
//! `Rc<Site>`: every request changes a reference count, and a shared atomic one would move its cache line between all
//! processors.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::ops::{Deref, Index};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bstr::{BStr, BString};
use conf::{AnyConf, Variables};

use crate::core::{Identity, LocationConf, ServerConf};
use crate::listen::Endpoint;
use crate::location_tree::LocationTree;
use crate::module::{Filter, Handler, HandshakeHandler, Keeps, Phase};
use crate::request::Request;

pub use crate::block_ids::{LocationId, ServerId};
pub use crate::core::Satisfy;
pub use crate::location_tree::LocationKind;

/// A generation as one loop holds it: with a reference count of the loop's own.
pub struct Site {
    frozen: Arc<Frozen>,
}

impl Site {
    /// Wraps a generation for one loop.
    pub fn new(frozen: Arc<Frozen>) -> Rc<Site> {
        Rc::new(Site { frozen })
    }
}

impl Deref for Site {
    type Target = Frozen;

    fn deref(&self) -> &Frozen {
        &self.frozen
    }
}

static GENERATIONS: AtomicU64 = AtomicU64::new(1);

/// The number of a new generation.
pub(crate) fn next_generation() -> u64 {
    GENERATIONS.fetch_add(1, Ordering::Relaxed)
}

/// One generation of `http {}`. Nothing in it changes after it was built, so that all loops read it without locks.
pub struct Frozen {
    /// The settings of the modules' main tables.
    pub main_confs: ConfSet,
    /// The settings of the modules' location tables at the level of `http {}`, for what belongs to no location.
    pub outer_confs: ConfSet,
    /// All servers, in the order of the configuration.
    pub servers: Vec<Server>,
    /// All locations of all servers, `if` blocks and `limit_except` blocks too.
    pub locations: Vec<Location>,
    /// The listening addresses, each with the servers behind it.
    pub endpoints: Vec<Arc<Endpoint>>,
    /// Every variable that the configuration knows.
    pub variables: Variables<Request>,
    /// The names under which the server identifies itself (`server_tokens`).
    pub identity: Identity,
    /// The directory to which relative paths with variables are relative.
    pub prefix: PathBuf,
    /// The directory of the configuration file, to which paths of certificates are relative.
    pub conf_prefix: PathBuf,
    /// The number of this generation.
    pub generation: u64,
}

impl Frozen {
    /// The server with this number.
    ///
    /// A connection that has not noticed a reload yet may hold the number of a server of the previous configuration
    /// until its next request. If there are fewer servers now, it gets the timeouts of the first one, rather than a
    /// panic.
    pub fn server(&self, id: ServerId) -> &Server {
        self.servers.get(id.0 as usize).unwrap_or(&self.servers[0])
    }

    /// The location with this number.
    pub fn location(&self, id: LocationId) -> &Location {
        &self.locations[id.0 as usize]
    }
}

/// A `server {}` block.
pub struct Server {
    /// Its first name, which `$server_name` and the error log show.
    pub name: BString,
    /// The engine's own settings of it.
    pub core: Arc<ServerConf>,
    /// The settings of the modules' server tables.
    pub confs: ConfSet,
    /// Its TLS settings; `None` if it has none of its own.
    pub tls: Option<Arc<net::tls::Service>>,
    /// The hook of a module in its handshakes.
    pub handshake: Option<(HandshakeHandler, Keeps)>,
    /// The pseudo location that a request is in before one is chosen: the server's own level.
    pub root: LocationId,
    /// Its locations.
    pub tree: LocationTree,
    /// Its named locations, sorted by name.
    pub named: Vec<(BString, LocationId)>,
    /// The handlers that run before a location is chosen.
    pub phases: Phases,
    /// Whether one of its locations may accept CONNECT; otherwise the method is refused when the head is checked.
    pub takes_connect: bool,
}

impl Server {
    /// The named location `@name`; `name` begins with the `@`.
    pub fn named_location(&self, name: &BStr) -> Option<LocationId> {
        let index = self
            .named
            .binary_search_by(|(known, _)| known.as_slice().cmp(name))
            .ok()?;
        Some(self.named[index].1)
    }
}

/// A `location {}` block, an `if {}` or `limit_except {}` block, or the outermost level of a server.
pub struct Location {
    /// What it matches, as written; empty for blocks without a name.
    pub name: BString,
    /// How it was written.
    pub kind: LocationKind,
    /// The engine's own settings of it.
    pub core: Arc<LocationConf>,
    /// The settings of the modules' location tables.
    pub confs: ConfSet,
    /// Locations inside it.
    pub tree: LocationTree,
    /// The location for methods that `limit_except` does not name, and the bits of those that it does.
    pub limit_except: Option<(u32, LocationId)>,
    /// Whether a path that lacks only the slash at the end of this location's name is redirected to the one with it.
    pub adds_slash: bool,
    /// The handlers and filters that run in it.
    pub pipeline: Arc<Pipeline>,
}

/// The handlers and filters of a location. Locations with equal ones share one.
#[derive(Default)]
pub struct Pipeline {
    /// The handlers by phase.
    pub phases: Phases,
    /// The filters that responses pass, with the names of their modules.
    pub filters: Box<[(&'static str, Filter)]>,
}

/// The handlers of a location or server by phase.
#[derive(Default)]
pub struct Phases([Box<[Handler]>; 8]);

impl Phases {
    /// Collects handlers, each with its phase, in the order of the modules.
    pub fn collect(handlers: impl Iterator<Item = (Phase, Handler)>) -> Phases {
        let mut lists: [Vec<Handler>; 8] = Default::default();
        for (phase, handler) in handlers {
            lists[phase as usize].push(handler);
        }
        Phases(lists.map(Vec::into_boxed_slice))
    }
}

impl Index<Phase> for Phases {
    type Output = [Handler];

    fn index(&self, phase: Phase) -> &[Handler] {
        &self.0[phase as usize]
    }
}

/// The settings of a block's tables, found by their type.
///
/// They are kept in chunks, and blocks share the chunks in which they do not differ: a location that sets one thing
/// costs one chunk and not the whole list.
pub struct ConfSet {
    positions: Arc<Positions>,
    chunks: Box<[Arc<Chunk>]>,
}

/// How many settings form a chunk. A list of 62 is smallest at 8: as many chunks as settings in each.
const CHUNK: usize = 8;

/// The settings of some tables. The last chunk is filled up with the last one.
type Chunk = [Arc<dyn AnyConf>; CHUNK];

/// Known chunks, by the addresses of the settings in them.
#[derive(Default)]
pub(crate) struct Chunks(HashMap<[usize; CHUNK], Arc<Chunk>>);

impl Chunks {
    /// Forgets them. The next server has too little in common with this one to be worth a search among all chunks.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    fn share(&mut self, confs: &[Arc<dyn AnyConf>]) -> Arc<Chunk> {
        let at = |index: usize| &confs[index.min(confs.len() - 1)];
        let key = std::array::from_fn(|index| Arc::as_ptr(at(index)).addr());
        let make = || Arc::new(std::array::from_fn(|index| Arc::clone(at(index))));
        Arc::clone(self.0.entry(key).or_insert_with(make))
    }
}

/// The position of each type's settings: an open-addressing table, at most half full. A request searches it many times.
pub(crate) struct Positions {
    slots: Box<[Option<(TypeId, u16)>]>,
}

impl Positions {
    /// The positions of settings that are listed in the order of their tables.
    pub(crate) fn of(confs: &[Arc<dyn AnyConf>]) -> Arc<Positions> {
        let mut slots = vec![None; (confs.len() * 2).next_power_of_two()].into_boxed_slice();
        for (index, conf) in confs.iter().enumerate() {
            let id = (**conf).type_id();
            let mut at = Positions::start(id, slots.len());
            // Half of the slots are empty, so every probe ends.
            while slots[at].is_some_and(|(known, _)| known != id) {
                at = (at + 1) % slots.len();
            }
            slots[at] = Some((id, index as u16));
        }
        Arc::new(Positions { slots })
    }

    /// Where the search for a type begins. The identity of a type is a hash already, so hashing it again would be
    /// wasted.
    fn start(id: TypeId, slots: usize) -> usize {
        let mut hasher = FirstWord(0);
        id.hash(&mut hasher);
        hasher.0 as usize & (slots - 1)
    }

    fn find(&self, id: TypeId) -> Option<usize> {
        let mut at = Positions::start(id, self.slots.len());
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

impl ConfSet {
    /// The settings of one group, in the order of its tables.
    pub(crate) fn new(
        positions: Arc<Positions>,
        confs: &[Arc<dyn AnyConf>],
        known: &mut Chunks,
    ) -> ConfSet {
        let chunks = confs.chunks(CHUNK).map(|confs| known.share(confs));
        ConfSet {
            positions,
            chunks: chunks.collect(),
        }
    }

    /// The settings of type `C`. Panics if no module of the program has them: then the caller's module is missing from
    /// the list of modules.
    pub fn get<C: Any>(&self) -> &C {
        self.at(self.position_of::<C>())
    }

    /// The position of the settings of type `C` in every set of this group, for callers that need them more than once.
    /// Panics as [`ConfSet::get`] does.
    pub fn position_of<C: Any>(&self) -> usize {
        let at = self.positions.find(TypeId::of::<C>());
        at.expect("the module that asks for its struct is in the list of modules")
    }

    /// The settings at a position that [`ConfSet::position_of`] returned for the same type.
    pub fn at<C: Any>(&self, position: usize) -> &C {
        conf::confs::downcast(&*self.chunks[position / CHUNK][position % CHUNK])
    }
}

/// A module's settings in a location. They keep the generation alive, so that they may be held while the request
/// changes.
pub struct ConfRef<C> {
    site: Rc<Site>,
    location: LocationId,
    position: usize,
    kind: PhantomData<C>,
}

impl<C: Any + Send + Sync> ConfRef<C> {
    pub(crate) fn new(site: Rc<Site>, location: LocationId) -> Self {
        let position = site.location(location).confs.position_of::<C>();
        ConfRef {
            site,
            location,
            position,
            kind: PhantomData,
        }
    }
}

impl<C: Any + Send + Sync> Deref for ConfRef<C> {
    type Target = C;

    fn deref(&self) -> &C {
        self.site.location(self.location).confs.at(self.position)
    }
}

/// A module's settings in a server.
pub struct ServerConfRef<C> {
    site: Rc<Site>,
    server: ServerId,
    kind: PhantomData<C>,
}

impl<C: Any + Send + Sync> ServerConfRef<C> {
    pub(crate) fn new(site: Rc<Site>, server: ServerId) -> Self {
        ServerConfRef {
            site,
            server,
            kind: PhantomData,
        }
    }
}

impl<C: Any + Send + Sync> Deref for ServerConfRef<C> {
    type Target = C;

    fn deref(&self) -> &C {
        self.site.server(self.server).confs.get()
    }
}
