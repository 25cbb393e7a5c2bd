//! Connections to upstream servers that wait for their next request.
//!
//! There is one pool for each group, for all loops: its bound is `keepalive` times the loops, as many as the workers of
//! nginx keep together, and an idle connection of another loop is taken before a new one is opened. The pool holds what is known of each; the sockets themselves stay
//! with the loop that used them last, registered there, so that the usual case, the same loop again, costs no system
//! call. Another loop asks the home loop for the socket.

mod parked;
mod pool;

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rt::net::Address;
use rt::sync::remote_oneshot;

use super::group::Keepalive;
use super::peer::Peer;
use super::state::GroupState;
use crate::transport::{Parts, Transport};
use parked::{park, unpark};
use pool::{EntryId, Found, Left, Pool};

pub use parked::close_idle;
pub(crate) use pool::ChainHint;

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
        self.pool().len()
    }

    /// Follows a configuration, of so many loops: what is too much is closed.
    pub(crate) fn configure(&self, settings: Option<Keepalive>, loops: usize) {
        let mut pool = self.pool();
        pool.settings = settings;
        let each = settings.map_or(0, |settings| settings.connections);
        pool.most = each.saturating_mul(loops);
        let mut closed = Vec::new();
        while pool.len() > pool.most {
            closed.extend(pool.remove_oldest());
        }
        drop(pool);
        for found in closed {
            self.close(found);
        }
    }

    /// An idle connection to a peer: the one that was left last, preferably on this loop.
    pub(crate) async fn take(
        state: &Arc<GroupState>,
        peer: &Arc<Peer>,
        reuse: Reuse,
    ) -> Option<Connection> {
        let idle = state.idle();
        let in_use = usize::try_from(peer.load.connections.get()).unwrap_or(0);
        loop {
            // A statement of its own: the lock must be free again before the wait below.
            let found = idle
                .pool()
                .find(peer.address(), &peer.idle_chain, &reuse, in_use);
            let found = found?;
            let taken = match found.home.clone() {
                None => unpark(found.place, (idle.id, found.number)),
                // Seldom: its state is not to weigh on every exchange.
                Some(home) => match Box::pin(hand_over(state, peer, &found, home)).await {
                    Ok(taken) => taken,
                    Err(TookTooLong) => return None,
                },
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
    pub(crate) fn keep(
        state: &Arc<GroupState>,
        address: &Address,
        hint: &ChainHint,
        connection: Connection,
    ) {
        let idle = state.idle();
        let now = rt::now();
        let mut pool = idle.pool();
        let Some(settings) = pool.settings else {
            return;
        };
        let old = connection.requests >= settings.requests
            || now.saturating_duration_since(connection.since) > settings.time;
        let useless = old || pool.most == 0 || parked::is_ending();
        if useless || !connection.stream.is_quiet() {
            return;
        }
        let full = pool.len() >= pool.most;
        let evicted = if full { pool.remove_oldest() } else { None };
        let (reuse, expires) = (connection.reuse, now + settings.timeout);
        let number = pool.next_number();
        let entry = pool.vacancy(number);
        // Before anybody can look for it.
        let place = park((idle.id, number), connection, expires, entry, || {
            Arc::downgrade(state)
        });
        let left = Left {
            number,
            reuse,
            place,
            expires,
        };
        pool.insert(address, hint, left);
        drop(pool);
        if let Some(found) = evicted {
            idle.close(found);
        }
    }

    /// Closes a connection whose entry is gone already.
    fn close(&self, found: Found) {
        let (place, key) = (found.place, (self.id, found.number));
        match found.home {
            None => drop(unpark(place, key)),
            Some(home) => {
                // A loop that has ended has closed it.
                let _ended = home.post(move || drop(unpark(place, key)));
            }
        }
    }

    fn forget(&self, entry: EntryId) {
        self.pool().remove(entry);
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A loop did not hand its connection over in time.
struct TookTooLong;

/// Asks another loop for a socket. Without an error and without a connection: it is gone.
async fn hand_over(
    state: &Arc<GroupState>,
    peer: &Arc<Peer>,
    found: &Found,
    home: rt::Handle,
) -> Result<Option<Connection>, TookTooLong> {
    let (sender, receiver) = remote_oneshot::channel::<HandedOver>();
    let (place, key) = (found.place, (state.idle().id, found.number));
    let (state, peer) = (Arc::clone(state), Arc::clone(peer));
    let message = move || {
        let Some(connection) = unpark(place, key) else {
            return;
        };
        // Nobody waits any more, and the connection is as good as it was: the next one gets it.
        if let Err(back) = sender.send(HandedOver::from(connection))
            && let Some(connection) = back.into_connection()
        {
            Idle::keep(&state, peer.address(), &peer.idle_chain, connection);
        }
    };
    if home.post(message).is_err() {
        return Ok(None);
    }
    match rt::timeout(HAND_OVER, receiver).await {
        Ok(Ok(there)) => Ok(there.into_connection()),
        Ok(Err(_gone)) => Ok(None),
        Err(_) => Err(TookTooLong),
    }
}

impl HandedOver {
    fn from(connection: Connection) -> HandedOver {
        HandedOver {
            parts: connection.stream.into_parts(),
            carried: connection.carried,
            reuse: connection.reuse,
            since: connection.since,
            requests: connection.requests,
        }
    }

    /// The connection, of the loop that calls this. `None`: the loop cannot have it.
    fn into_connection(self) -> Option<Connection> {
        Some(Connection {
            stream: Transport::from_parts(self.parts).ok()?,
            carried: self.carried,
            reuse: self.reuse,
            since: self.since,
            requests: self.requests,
        })
    }
}
