//! Compares passwords with slow hashes: how many at a time, and which need not be compared again.
//!
//! A comparison takes a processor for up to a second, on purpose. So those of one address and of one user take turns: a
//! client that tries passwords, from wherever, keeps a few of the pool's places and not all of them.
//!
//! With `auth_basic_cache` a proof is remembered: that this password was right for this user, with this entry, in this
//! version of the file. What is remembered is a keyed hash, whose key is random at each start and never leaves the
//! memory; who reads that memory can try passwords against it as fast as against SHA-256, which is why it is off by
//! default. Requests with the same credentials that come meanwhile wait for the one comparison. A wrong password is
//! never remembered.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use aws_lc_rs::hmac;
use base::lru::Lru;
use base::sync::Mutex;
use bstr::BStr;
use rt::pool::PoolHandle;
use rt::sync::remote_oneshot::{self, RemoteReceiver, RemoteSender};

use crate::shared::password::PasswordHash;
use crate::shared::user_file::FileVersion;

/// How many comparisons may be under way at a time for a user, and for an address.
const AT_A_TIME: usize = 4;

/// How many may wait for their turn, for each of them. Beyond that, requests are refused.
const MOST_WAITING: usize = 64;

/// How many comparisons may be queued. Beyond that, requests wait for a place in the queue.
const COMPARISONS_QUEUED: usize = 1024;

/// How many password files have proofs.
const FILES_KEPT: usize = 64;

/// The pool for slow comparisons, separate from the file pool, which an attack on passwords would
/// otherwise fill. The space in its name keeps it apart from names in `thread_pool`.
const POOL: &str = "password hashes";

/// A password to be compared.
pub(super) struct PasswordAttempt<'a> {
    pub(super) file: &'a Path,
    pub(super) version: FileVersion,
    pub(super) name: &'a BStr,
    pub(super) password: &'a BStr,
    pub(super) hash: &'a Arc<PasswordHash>,
    /// The client's address, or the network that it can choose its addresses from.
    pub(super) address: &'a [u8],
    pub(super) memory: Option<ProofMemory>,
}

/// `auth_basic_cache`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProofMemory {
    /// How long a proof counts.
    pub(super) interval: Duration,
    /// How many are remembered for a file.
    pub(super) entries: usize,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttemptOutcome {
    Matches,
    Differs,
    /// Too many comparisons are waiting for this user or this address.
    Crowded,
}

impl From<bool> for AttemptOutcome {
    fn from(matches: bool) -> AttemptOutcome {
        match matches {
            true => AttemptOutcome::Matches,
            false => AttemptOutcome::Differs,
        }
    }
}

/// Names a user, a password, an entry and a version of a file, without telling them.
type ProofTag = [u8; 32];

/// The proofs of one version of a file.
struct FileProofs {
    version: FileVersion,
    entries: Lru<ProofTag, Instant>,
}

/// What the process knows of comparisons. For all loops together: a password that one loop has compared is known to the
/// others, and limits that each loop had for itself would be no limits on a machine with many.
struct Verifications {
    secret: hmac::Key,
    proofs: Mutex<Lru<PathBuf, FileProofs>>,
    /// The comparisons that others wait for, with those that do.
    running: Mutex<HashMap<ProofTag, Vec<RemoteSender<bool>>>>,
    turns: Arc<Turns>,
}

static VERIFICATIONS: OnceLock<Verifications> = OnceLock::new();

fn verifications() -> &'static Verifications {
    VERIFICATIONS.get_or_init(|| {
        let mut secret = [0; 32];
        rt::random::fill(&mut secret).expect("the kernel gives random bytes once it has booted");
        Verifications {
            secret: hmac::Key::new(hmac::HMAC_SHA256, &secret),
            proofs: Mutex::new(Lru::new(FILES_KEPT)),
            running: Mutex::default(),
            turns: Arc::default(),
        }
    })
}

/// Compares a password, or remembers that it was compared.
pub(super) async fn verify(attempt: &PasswordAttempt<'_>) -> AttemptOutcome {
    if !attempt.hash.is_slow() {
        return attempt.hash.matches(attempt.password).into();
    }
    let Some(memory) = attempt.memory else {
        return compare(attempt).await;
    };
    let tag = verifications().tag_of(attempt);
    loop {
        match begin(attempt, tag, memory) {
            Beginning::Known => return AttemptOutcome::Matches,
            Beginning::Follow(result) => {
                // Without a result, the client that compared has left, or was refused: the next one to come compares.
                if let Ok(matches) = result.await {
                    return matches.into();
                }
            }
            Beginning::Lead(lead) => {
                let outcome = compare(attempt).await;
                if outcome == AttemptOutcome::Matches {
                    remember(attempt, tag, memory);
                }
                if outcome != AttemptOutcome::Crowded {
                    lead.tell(outcome == AttemptOutcome::Matches);
                }
                return outcome;
            }
        }
    }
}

/// How an attempt begins. Of all that begin with the same credentials until the first has its result, one leads.
enum Beginning {
    /// The proof is remembered.
    Known,
    /// Another request compares the same.
    Follow(RemoteReceiver<bool>),
    /// It has to be compared.
    Lead(LeadingComparison),
}

fn begin(attempt: &PasswordAttempt<'_>, tag: ProofTag, memory: ProofMemory) -> Beginning {
    let all = verifications();
    let mut running = all.running.lock();
    // Under the lock of those that run: a proof is remembered before its comparison leaves that table.
    if all.is_known(attempt, &tag, memory) {
        return Beginning::Known;
    }
    match running.entry(tag) {
        Entry::Occupied(mut entry) => {
            let (sender, receiver) = remote_oneshot::channel();
            entry.get_mut().push(sender);
            Beginning::Follow(receiver)
        }
        Entry::Vacant(entry) => {
            entry.insert(Vec::new());
            Beginning::Lead(LeadingComparison(tag))
        }
    }
}

/// The comparison that others wait for. Dropped without a result, they compare themselves.
struct LeadingComparison(ProofTag);

impl LeadingComparison {
    fn tell(self, matches: bool) {
        let waiting = verifications().running.lock().remove(&self.0);
        for sender in waiting.into_iter().flatten() {
            // Returned if that client has left.
            let _left = sender.send(matches);
        }
    }
}

impl Drop for LeadingComparison {
    fn drop(&mut self) {
        let waiting = verifications().running.lock().remove(&self.0);
        drop(waiting);
    }
}

fn remember(attempt: &PasswordAttempt<'_>, tag: ProofTag, memory: ProofMemory) {
    let mut proofs = verifications().proofs.lock();
    let now = rt::clock::read_clock();
    let is_current = |known: &FileProofs| {
        known.version == attempt.version && known.entries.capacity() == memory.entries
    };
    if !proofs
        .get(attempt.file)
        .is_some_and(|known| is_current(known))
    {
        let none = FileProofs {
            version: attempt.version,
            entries: Lru::new(memory.entries),
        };
        proofs.insert(attempt.file.to_owned(), none);
    }
    if let Some(known) = proofs.get(attempt.file) {
        known.entries.insert(tag, now);
    }
}

/// Forgets the proofs of other versions of a file than this one. They would not count anyway; but what nobody needs any more
/// is not left in memory.
pub(super) fn forget_former(file: &Path, version: FileVersion) {
    if let Some(all) = VERIFICATIONS.get() {
        let mut proofs = all.proofs.lock();
        if proofs
            .peek(file)
            .is_some_and(|known| known.version != version)
        {
            proofs.remove(file);
        }
    }
}

impl Verifications {
    fn is_known(&self, attempt: &PasswordAttempt<'_>, tag: &ProofTag, memory: ProofMemory) -> bool {
        let mut proofs = self.proofs.lock();
        let Some(known) = proofs.get(attempt.file) else {
            return false;
        };
        if known.version != attempt.version {
            proofs.remove(attempt.file);
            return false;
        }
        let proven = known.entries.get(tag).copied();
        let is_fresh = |proven| rt::clock::elapsed(proven) < memory.interval;
        if proven.is_some_and(is_fresh) {
            return true;
        }
        known.entries.remove(tag);
        false
    }

    fn tag_of(&self, attempt: &PasswordAttempt<'_>) -> ProofTag {
        let mut context = hmac::Context::with_key(&self.secret);
        let path = attempt.file.as_os_str().as_encoded_bytes();
        for part in [path, attempt.name, attempt.hash.written(), attempt.password] {
            // With their lengths, so that no two lists of parts are the same bytes.
            context.update(&(part.len() as u64).to_le_bytes());
            context.update(part);
        }
        let mut tag = [0; 32];
        tag.copy_from_slice(context.sign().as_ref());
        tag
    }
}

/// Compares on a thread of the pool, when it is the turn of both the address and the user.
async fn compare(attempt: &PasswordAttempt<'_>) -> AttemptOutcome {
    let turns = &verifications().turns;
    // Addresses first and users second, for all alike: nobody holds what another needs first.
    let Some(_address) = turns.take(TurnOf::Address, attempt.address).await else {
        return AttemptOutcome::Crowded;
    };
    let Some(_user) = turns.take(TurnOf::User, attempt.name).await else {
        return AttemptOutcome::Crowded;
    };
    let (hash, password) = (Arc::clone(attempt.hash), attempt.password.to_owned());
    pool().run(move || hash.matches(&password)).await.into()
}

/// The pool, created when it is first needed, with a thread per processor.
fn pool() -> PoolHandle {
    let processors = || std::thread::available_parallelism().map_or(1, usize::from);
    rt::pool::get(POOL)
        .unwrap_or_else(|| rt::pool::register(POOL, processors(), COMPARISONS_QUEUED))
}

/// What a turn belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum TurnOf {
    Address,
    User,
}

/// Who compares, and who waits for that.
#[derive(Default)]
struct Turns(Mutex<HashMap<(TurnOf, Vec<u8>), TurnQueue>>);

#[derive(Default)]
struct TurnQueue {
    taken: usize,
    /// In the order of arrival. Each gets the turn itself, so that one that was given to a request which has ended
    /// goes to the next.
    waiting: VecDeque<RemoteSender<Turn>>,
}

/// The right to compare, returned when it is dropped: with the result, or when the client leaves and its request ends. The
/// comparison itself goes on in the pool, which is bounded by its threads.
struct Turn {
    turns: Arc<Turns>,
    key: (TurnOf, Vec<u8>),
}

impl Turns {
    /// Waits for a turn; `None` if too many wait already.
    async fn take(self: &Arc<Turns>, of: TurnOf, name: &[u8]) -> Option<Turn> {
        let key = (of, name.to_vec());
        let receiver = {
            let mut queues = self.0.lock();
            let queue = queues.entry(key.clone()).or_default();
            if queue.taken < AT_A_TIME {
                queue.taken += 1;
                return Some(Turn {
                    turns: Arc::clone(self),
                    key,
                });
            }
            queue.waiting.retain(|waiting| !waiting.is_closed());
            if queue.waiting.len() >= MOST_WAITING {
                return None;
            }
            let (sender, receiver) = remote_oneshot::channel();
            queue.waiting.push_back(sender);
            receiver
        };
        receiver.await.ok()
    }

    /// The next that waits for a returned turn. Without one the turn is free.
    fn next(&self, key: &(TurnOf, Vec<u8>)) -> Option<RemoteSender<Turn>> {
        let mut queues = self.0.lock();
        let queue = queues.get_mut(key)?;
        while let Some(sender) = queue.waiting.pop_front() {
            if !sender.is_closed() {
                return Some(sender);
            }
        }
        queue.taken -= 1;
        if queue.taken == 0 {
            queues.remove(key);
        }
        None
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(sender) = self.turns.next(&self.key) {
            let turn = Turn {
                turns: Arc::clone(&self.turns),
                key: std::mem::replace(&mut self.key, (TurnOf::User, Vec::new())),
            };
            // If that request has ended in between, the turn comes back and is dropped again, which gives it to the one
            // after.
            drop(sender.send(turn));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn poll<T>(future: &mut std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match future
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    #[test]
    fn turns_are_given_in_order_and_to_those_who_stay() {
        let turns = Arc::new(Turns::default());
        let take = || turns.take(TurnOf::User, b"bob");
        let mut taken: Vec<Turn> = (0..AT_A_TIME)
            .map(|_| poll(&mut pin!(take())).flatten().expect("it is free"))
            .collect();
        let mut other = pin!(turns.take(TurnOf::Address, b"bob"));
        assert!(poll(&mut other).flatten().is_some(), "of something else");
        let mut third = pin!(take());
        {
            let mut first = pin!(take());
            let mut second = pin!(take());
            assert!(poll(&mut first).is_none() && poll(&mut second).is_none());
            assert!(poll(&mut third).is_none());
            taken.pop();
            assert!(poll(&mut second).is_none(), "the first is before it");
            // Both leave: one that was given the turn, and one that waits.
        }
        assert!(poll(&mut third).flatten().is_some());
        taken.clear();
        assert!(turns.0.lock().is_empty(), "nothing is left of any of them");
    }

    #[test]
    fn too_many_are_refused() {
        let turns = Arc::new(Turns::default());
        let take = || turns.take(TurnOf::Address, b"192.0.2.1");
        let mut all: Vec<_> = (0..AT_A_TIME + MOST_WAITING)
            .map(|_| Box::pin(take()))
            .collect();
        let mut context = Context::from_waker(Waker::noop());
        let begun: Vec<_> = all
            .iter_mut()
            .map(|one| one.as_mut().poll(&mut context))
            .collect();
        assert_eq!(
            begun.iter().filter(|one| one.is_pending()).count(),
            MOST_WAITING
        );
        assert!(matches!(poll(&mut pin!(take())), Some(None)));
        drop(all);
        assert!(
            poll(&mut pin!(take())).is_none(),
            "those that began still compare"
        );
        drop(begun);
        assert!(matches!(poll(&mut pin!(take())), Some(Some(_))));
    }
}
