//! Idle connections to upstream servers, kept for their next request.
//!
//! Each group has one pool for all loops. Its bound is `keepalive` times the number of loops, which is what nginx's
//! workers keep together. An idle connection of another loop is taken before a new one is opened. The pool has the
//! records; the sockets stay registered with the loop that used them last, so that the usual case, the same loop
//! again, needs no system call. Another loop asks that home loop for the socket.

mod connection;
mod parked;
mod peer_stream;
mod pool;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::sync::{Mutex, MutexGuard};
use rt::sync::remote_oneshot;

use super::peer::UpstreamPeer;
use super::settings::KeepaliveSettings;
use connection::HandedOverConnection;
use parked::{park, unpark};
use pool::{EntryId, IdlePoolState, NewIdleEntry, RemovedEntry};

pub use connection::{PeerConnection, ReuseTerms};
pub use parked::close_idle;
pub use peer_stream::{PeerStream, QuicPeerStream};

/// How long another loop may take to hand a connection over: after that, a new connection is sooner there.
const HAND_OVER: Duration = Duration::from_millis(50);

/// A group's pool.
pub(crate) struct IdlePool {
    /// Identifies the pool in this process.
    id: u64,
    pool: Mutex<IdlePoolState>,
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

    /// Applies a new configuration: connections beyond the new bound are closed, oldest first.
    pub(crate) fn configure(&self, settings: Option<KeepaliveSettings>, loops: usize) {
        let mut pool = self.pool();
        pool.settings = settings;
        let each = settings.map_or(0, |settings| settings.connections);
        pool.most = each.saturating_mul(loops);
        let mut closed = Vec::new();
        while pool.len() > pool.most {
            closed.extend(pool.remove_oldest());
        }
        drop(pool);
        // Without the lock: closing is a system call, or a message to another loop.
        for found in closed {
            self.close(found);
        }
    }

    /// An idle connection to a peer: the one that was used last, which its server is least likely to have timed
    /// out; preferably on this loop.
    pub(crate) async fn take_connection(
        self: &Arc<Self>,
        peer: &Arc<UpstreamPeer>,
        reuse: ReuseTerms,
    ) -> Option<Box<PeerConnection>> {
        let in_use = usize::try_from(peer.load.connections.get()).unwrap_or(0);
        loop {
            // Its own statement, so that the lock is released before the wait below.
            let found = self
                .pool()
                .find(peer.address(), &peer.idle_chain, &reuse, in_use);
            let found = found?;
            let taken = match found.home.clone() {
                None => unpark(found.place, (self.id, found.number)),
                // Boxed because it is rare: its state would make the future of every exchange larger.
                Some(home) => match Box::pin(self.hand_over(peer, &found, home)).await {
                    Ok(taken) => taken,
                    Err(HandOverTimeout) => return None,
                },
            };
            // The server may have closed it meanwhile, or sent something unasked. The loop ends: each turn takes
            // one record out of the pool.
            if let Some(mut connection) = taken
                && connection.stream.is_quiet()
            {
                connection.requests += 1;
                return Some(connection);
            }
        }
    }

    /// Keeps a connection for the next request, if the group's settings allow it. Otherwise it is closed.
    pub(crate) fn keep_connection(
        self: &Arc<Self>,
        peer: &UpstreamPeer,
        connection: Box<PeerConnection>,
    ) {
        let now = rt::now();
        let mut pool = self.pool();
        let Some(settings) = pool.settings else {
            return;
        };
        let end = connection.since.checked_add(settings.time);
        let old = connection.requests >= settings.requests || end.is_some_and(|end| now > end);
        let useless = old || pool.most == 0 || parked::is_ending();
        // The check of the socket comes last: it may cost a system call.
        if useless || !connection.stream.is_quiet() {
            return;
        }
        // As in nginx, the connection that was unused for longest makes room.
        let full = pool.len() >= pool.most;
        let evicted = if full { pool.remove_oldest() } else { None };
        let (reuse, expires) = (connection.reuse, now + settings.timeout);
        let number = pool.next_number();
        let entry = pool.vacancy(number);
        // The socket is parked before its record can be found: another loop could ask for it at once.
        let place = park((self.id, number), connection, expires, entry, || {
            Arc::downgrade(self)
        });
        let left = NewIdleEntry {
            number,
            reuse,
            place,
            expires,
        };
        pool.insert(peer.address(), &peer.idle_chain, left);
        drop(pool);
        // Closed without the lock, as above.
        if let Some(found) = evicted {
            self.close(found);
        }
    }

    /// Asks another loop for its socket. `Ok(None)`: that connection is gone.
    async fn hand_over(
        self: &Arc<Self>,
        peer: &Arc<UpstreamPeer>,
        found: &RemovedEntry,
        home: rt::LoopHandle,
    ) -> Result<Option<Box<PeerConnection>>, HandOverTimeout> {
        let (sender, receiver) = remote_oneshot::channel::<HandedOverConnection>();
        let (place, key) = (found.place, (self.id, found.number));
        let (idle, peer) = (Arc::clone(self), Arc::clone(peer));
        let message = move || {
            let connection = unpark(place, key);
            let Some(connection) = connection.and_then(|one| HandedOverConnection::from(*one))
            else {
                return;
            };
            // The request has stopped waiting. The connection is as good as before and is kept for the next one.
            if let Err(back) = sender.send(connection)
                && let Some(connection) = back.into_connection()
            {
                idle.keep_connection(&peer, connection);
            }
        };
        if home.post(message).is_err() {
            return Ok(None);
        }
        match rt::timeout(HAND_OVER, receiver).await {
            Ok(Ok(there)) => Ok(there.into_connection()),
            Ok(Err(_gone)) => Ok(None),
            // The record is out of the pool already. The home loop puts it back when it gets to the message and
            // finds the receiver gone.
            Err(_) => Err(HandOverTimeout),
        }
    }

    /// Closes a connection whose record was taken out of the pool.
    fn close(&self, found: RemovedEntry) {
        let (place, key) = (found.place, (self.id, found.number));
        match found.home {
            None => drop(unpark(place, key)),
            Some(home) => {
                // An error means that the loop has ended, and closed it with all others.
                let _ended = home.post(move || drop(unpark(place, key)));
            }
        }
    }

    fn forget(&self, entry: EntryId) {
        self.pool().remove(entry);
    }

    fn pool(&self) -> MutexGuard<'_, IdlePoolState> {
        self.pool.lock()
    }
}

/// A loop did not hand its connection over in time.
struct HandOverTimeout;
