//! Connections to upstream servers that wait for their next request.
//!
//! There is one pool for each group, for all loops: its bound is `keepalive` times the loops, as many as the workers of
//! nginx keep together, and an idle connection of another loop is taken before a new one is opened. The pool holds what is
//! known of each; the sockets themselves stay with the loop that used them last, registered there, so that the usual case,
//! the same loop again, costs no system call. Another loop asks the home loop for the socket.

mod connection;
mod parked;
mod pool;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::sync::{Mutex, MutexGuard};
use rt::sync::remote_oneshot;

use super::peer::Peer;
use super::settings::Keepalive;
use connection::HandedOver;
use parked::{park, unpark};
use pool::{EntryId, Found, Left, Pool};

pub use connection::{Connection, Reuse};
pub use parked::close_idle;

/// How long another loop may take to hand a connection over.
const HAND_OVER: Duration = Duration::from_millis(50);

/// A group's pool.
pub(crate) struct IdlePool {
    /// Tells it from the other pools of the process.
    id: u64,
    pool: Mutex<Pool>,
}

impl Default for IdlePool {
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        IdlePool {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            pool: Mutex::default(),
        }
    }
}

impl IdlePool {
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
        self: &Arc<Self>,
        peer: &Arc<Peer>,
        reuse: Reuse,
    ) -> Option<Connection> {
        let in_use = usize::try_from(peer.load.connections.get()).unwrap_or(0);
        loop {
            // A statement of its own: the lock must be free again before the wait below.
            let found = self
                .pool()
                .find(peer.address(), &peer.idle_chain, &reuse, in_use);
            let found = found?;
            let taken = match found.home.clone() {
                None => unpark(found.place, (self.id, found.number)),
                // Seldom: its state is not to weigh on every exchange.
                Some(home) => match Box::pin(self.hand_over(peer, &found, home)).await {
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
    pub(crate) fn keep(self: &Arc<Self>, peer: &Peer, connection: Connection) {
        let now = rt::now();
        let mut pool = self.pool();
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
        // Before the entry can be found.
        let place = park((self.id, number), connection, expires, entry, || {
            Arc::downgrade(self)
        });
        let left = Left {
            number,
            reuse,
            place,
            expires,
        };
        pool.insert(peer.address(), &peer.idle_chain, left);
        drop(pool);
        if let Some(found) = evicted {
            self.close(found);
        }
    }

    /// Asks another loop for a socket. Without an error and without a connection: it is gone.
    async fn hand_over(
        self: &Arc<Self>,
        peer: &Arc<Peer>,
        found: &Found,
        home: rt::Handle,
    ) -> Result<Option<Connection>, TookTooLong> {
        let (sender, receiver) = remote_oneshot::channel::<HandedOver>();
        let (place, key) = (found.place, (self.id, found.number));
        let (idle, peer) = (Arc::clone(self), Arc::clone(peer));
        let message = move || {
            let Some(connection) = unpark(place, key) else {
                return;
            };
            // The request waits no more, and the connection is as good as it was: the next one gets it.
            if let Err(back) = sender.send(HandedOver::from(connection))
                && let Some(connection) = back.into_connection()
            {
                idle.keep(&peer, connection);
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
        self.pool.lock()
    }
}

/// A loop did not hand its connection over in time.
struct TookTooLong;
