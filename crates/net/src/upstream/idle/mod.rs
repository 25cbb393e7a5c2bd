//! Connections to upstream servers that wait for their next request.
//!
//! There is one pool for each group, for all loops: its bound is the bound of the server, and an idle connection of
//! another loop is taken before a new one is opened. The pool holds what is known of each; the sockets themselves stay
//! with the loop that used them last, registered there, so that the usual case, the same loop again, costs no system
//! call. Another loop asks the home loop for the socket.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rt::net::Address;
use rt::sync::remote_oneshot;

use super::group::Keepalive;
use super::state::GroupState;
use crate::transport::{Parts, Transport};

/// How often the idle connections of a loop are looked at.
const SWEEP: Duration = Duration::from_secs(1);

/// A loop whose turn lasts longer than this is not asked for a connection: a new one is sooner there.
const TOO_LATE: Duration = Duration::from_millis(10);

/// How long another loop may take to hand a connection over.
const HAND_OVER: Duration = Duration::from_millis(50);

/// Who may use a connection when it is idle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reuse {
    /// With `keepalive … local`: only who has the same number.
    pub tag: u64,
    /// Only who speaks the same dialect of the protocol.
    pub dialect: &'static str,
    /// Only who asks for the same TLS ([`Asked::key`](super::Asked::key)); 0 is without TLS.
    pub secure: u64,
}

impl Reuse {
    /// Of a plain connection in the usual dialect.
    pub fn of(tag: u64) -> Reuse {
        Reuse {
            tag,
            ..Reuse::default()
        }
    }

    /// Whether a connection that was left with `self` is for who wants `other`.
    fn suits(&self, other: &Reuse, local: bool) -> bool {
        (!local || self.tag == other.tag)
            && self.dialect == other.dialect
            && self.secure == other.secure
    }
}

/// A connection to a peer.
pub struct Connection {
    /// The connection itself.
    pub stream: Transport,
    /// What the protocol wants to know again when the connection carries its next request.
    pub carried: Option<Box<dyn Any + Send>>,
    reuse: Reuse,
    since: Instant,
    requests: u64,
}

impl Connection {
    /// A connection that was just opened, for its first request. `reuse` says who can use it later.
    pub fn new(stream: Transport, reuse: Reuse) -> Connection {
        Connection {
            stream,
            carried: None,
            reuse,
            since: rt::now(),
            requests: 1,
        }
    }

    /// How many requests it has carried, the present one included.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// Whether it carried a request before this one.
    pub fn is_reused(&self) -> bool {
        self.requests > 1
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("stream", &self.stream)
            .field("requests", &self.requests)
            .finish_non_exhaustive()
    }
}

/// A group's pool.
pub(crate) struct Idle {
    /// Tells it from the other pools of the process.
    id: u64,
    pool: Mutex<Pool>,
}

impl Default for Idle {
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Idle {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            pool: Mutex::default(),
        }
    }
}

#[derive(Default)]
struct Pool {
    settings: Option<Keepalive>,
    /// All entries, by the number that they got when they were left: the first was left first.
    entries: BTreeMap<u64, Entry>,
    /// The numbers of the entries of an address, the last one left last.
    by_address: HashMap<Address, Vec<u64>, KeyHash>,
    next: u64,
}

struct Entry {
    address: Address,
    reuse: Reuse,
    home: rt::Handle,
    expires: Instant,
}

/// A socket at home.
struct Parked {
    connection: Connection,
    expires: Instant,
    pool: Weak<GroupState>,
}

impl Parked {
    /// Whether it is of no use any more: its time is over, the peer has closed it, or its group is gone.
    fn is_over(&self, now: Instant) -> bool {
        self.expires <= now || self.pool.strong_count() == 0 || !self.connection.stream.is_quiet()
    }
}

/// A key of a parked socket: pools number their entries themselves.
type Key = (u64, u64);

/// Mixes the two numbers of a key, which are ours: nobody can choose them so that they collide.
#[derive(Clone, Copy, Default)]
struct KeyHash;

impl BuildHasher for KeyHash {
    type Hasher = KeyHasher;

    fn build_hasher(&self) -> KeyHasher {
        KeyHasher(0)
    }
}

struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }
}

thread_local! {
    static PARKED: RefCell<HashMap<Key, Parked, KeyHash>> = RefCell::default();
    static SWEEPING: Cell<bool> = const { Cell::new(false) };
    /// The loop is about to end: nothing is kept any more.
    static ENDING: Cell<bool> = const { Cell::new(false) };
}

/// What one loop sends another.
struct HandedOver {
    parts: Parts,
    carried: Option<Box<dyn Any + Send>>,
    reuse: Reuse,
    since: Instant,
    requests: u64,
}

impl Idle {
    pub(crate) fn len(&self) -> usize {
        self.pool().entries.len()
    }

    /// Follows a configuration: what is too much is closed.
    pub(crate) fn configure(&self, settings: Option<Keepalive>) {
        let mut pool = self.pool();
        pool.settings = settings;
        let most = settings.map_or(0, |settings| settings.connections);
        let mut closed = Vec::new();
        while pool.entries.len() > most {
            closed.extend(pool.remove_oldest());
        }
        drop(pool);
        for (number, home) in closed {
            self.close_at(number, &home);
        }
    }

    /// An idle connection to `address`: the one that was left last, preferably on this loop.
    pub(crate) async fn take(&self, address: &Address, reuse: Reuse) -> Option<Connection> {
        loop {
            // A statement of its own: the lock must be free again before the wait below.
            let found = self.pool().find(address, &reuse);
            let (number, home) = found?;
            let taken = if home.is_current() {
                unpark((self.id, number)).map(|parked| parked.connection)
            } else {
                // Seldom: its state is not to weigh on every exchange.
                Box::pin(hand_over((self.id, number), &home)).await
            };
            if let Some(mut connection) = taken
                && connection.stream.is_quiet()
            {
                connection.requests += 1;
                return Some(connection);
            }
        }
    }

    /// Keeps a connection, if the settings of the group let it.
    pub(crate) fn keep(state: &Arc<GroupState>, address: Address, connection: Connection) {
        let idle = state.idle();
        let now = rt::now();
        let Some(settings) = idle.pool().settings else {
            return;
        };
        let old = connection.requests >= settings.requests
            || now.saturating_duration_since(connection.since) > settings.time;
        if old || settings.connections == 0 || ENDING.get() || !connection.stream.is_quiet() {
            return;
        }
        let expires = now + settings.timeout;
        let entry = Entry {
            address,
            reuse: connection.reuse,
            home: rt::handle(),
            expires,
        };
        let mut pool = idle.pool();
        let full = pool.entries.len() >= settings.connections;
        let evicted = if full { pool.remove_oldest() } else { None };
        let number = pool.insert(entry);
        // Before anybody can look for it.
        park(
            (idle.id, number),
            Parked {
                connection,
                expires,
                pool: Arc::downgrade(state),
            },
        );
        drop(pool);
        if let Some((number, home)) = evicted {
            idle.close_at(number, &home);
        }
    }

    /// Closes a connection whose entry is gone already.
    fn close_at(&self, number: u64, home: &rt::Handle) {
        let key = (self.id, number);
        if home.is_current() {
            drop(unpark(key));
        } else {
            // A loop that has ended has closed it.
            let _ended = home.post(move || drop(unpark(key)));
        }
    }

    fn forget(&self, number: u64) {
        self.pool().remove(number);
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pool {
    fn insert(&mut self, entry: Entry) -> u64 {
        let number = self.next;
        self.next += 1;
        self.by_address
            .entry(entry.address.clone())
            .or_default()
            .push(number);
        self.entries.insert(number, entry);
        number
    }

    /// Takes out the entry of an address that was left last: one of this loop, else one of a loop that has time.
    fn find(&mut self, address: &Address, reuse: &Reuse) -> Option<(u64, rt::Handle)> {
        let local = self.settings.is_some_and(|settings| settings.local);
        let now = rt::now();
        let mut foreign = None;
        let mut found = None;
        for &number in self.by_address.get(address)?.iter().rev() {
            let entry = &self.entries[&number];
            if !entry.reuse.suits(reuse, local) || entry.expires <= now {
                continue;
            }
            if entry.home.is_current() {
                found = Some(number);
                break;
            }
            if foreign.is_none() && entry.home.late() < TOO_LATE {
                foreign = Some(number);
            }
        }
        let number = found.or(foreign)?;
        self.remove(number).map(|entry| (number, entry.home))
    }

    fn remove_oldest(&mut self) -> Option<(u64, rt::Handle)> {
        let number = *self.entries.first_key_value()?.0;
        self.remove(number).map(|entry| (number, entry.home))
    }

    fn remove(&mut self, number: u64) -> Option<Entry> {
        let entry = self.entries.remove(&number)?;
        if let Some(numbers) = self.by_address.get_mut(&entry.address) {
            // Numbers grow, so that the list is in order.
            if let Ok(at) = numbers.binary_search(&number) {
                numbers.remove(at);
            }
            if numbers.is_empty() {
                self.by_address.remove(&entry.address);
            }
        }
        Some(entry)
    }
}

/// Closes every idle connection of this loop, which is about to end and keeps none any more.
pub fn close_idle() {
    ENDING.set(true);
    let parked = PARKED.with_borrow_mut(std::mem::take);
    for ((_, number), parked) in parked {
        if let Some(state) = parked.pool.upgrade() {
            state.idle().forget(number);
        }
    }
}

fn park(key: Key, parked: Parked) {
    PARKED.with_borrow_mut(|all| all.insert(key, parked));
    if !SWEEPING.replace(true) {
        rt::spawn_named("idle upstream connections", sweep());
    }
}

fn unpark(key: Key) -> Option<Parked> {
    PARKED.with_borrow_mut(|all| all.remove(&key))
}

/// Asks another loop for a socket.
async fn hand_over(key: Key, home: &rt::Handle) -> Option<Connection> {
    let (sender, receiver) = remote_oneshot::channel::<HandedOver>();
    let message = move || {
        if let Some(Parked { connection, .. }) = unpark(key) {
            // If nobody waits any more the socket is closed.
            let _left = sender.send(HandedOver {
                parts: connection.stream.into_parts(),
                carried: connection.carried,
                reuse: connection.reuse,
                since: connection.since,
                requests: connection.requests,
            });
        }
    };
    home.post(message).ok()?;
    let there = rt::timeout(HAND_OVER, receiver).await.ok()?.ok()?;
    Some(Connection {
        stream: Transport::from_parts(there.parts).ok()?,
        carried: there.carried,
        reuse: there.reuse,
        since: there.since,
        requests: there.requests,
    })
}

/// Closes what has expired or was closed by the peer, as long as there is anything.
async fn sweep() {
    loop {
        rt::sleep(SWEEP).await;
        let now = rt::now();
        let mut closed = Vec::new();
        let empty = PARKED.with_borrow_mut(|all| {
            closed.extend(all.extract_if(|_, parked| parked.is_over(now)));
            all.is_empty()
        });
        for ((_, number), parked) in closed {
            if let Some(state) = parked.pool.upgrade() {
                state.idle().forget(number);
            }
        }
        if empty {
            SWEEPING.set(false);
            return;
        }
    }
}
