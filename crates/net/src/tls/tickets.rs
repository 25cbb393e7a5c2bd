//! Session tickets: sessions that clients keep for the server, encrypted with a key that only the server has (RFC
//! 8446, section 4.6.1).
//!
//! ```text
//! key name         16   finds the key again after a change
//! nonce            12   random; a key of an hour sees far less than 2^32 tickets
//! sealed            n   AES-256-GCM of: the time of issue in seconds, 8 bytes, and rustls's session
//! tag              16
//! ```
//!
//! The key name and the context of the configuration are authenticated too: a ticket is valid only for servers with
//! the same certificates and the same trust.
//!
//! Keys come from files (`ssl_session_ticket_key`), or are random and replaced as often as sessions expire
//! (`ssl_session_timeout`), at least every hour. Random keys are shared by all loops and by all configurations with
//! the same timeout, so that a reload does not invalidate sessions.
//!
//! The workers of one master derive them from a secret that it gives them ([`TicketSecret`]), so that all have the same
//! ones, a worker that takes the place of a crashed one too. The secret of a minute is a digest of that of the minute
//! before and is not kept, so that who steals one cannot make the keys of the time before:
//!
//! ```text
//! secret of minute n ──HMAC "next"──▶ secret of minute n + 1 ──▶ …
//!        └──HMAC "name", "key" and the timeout──▶ the key of a period that begins at this minute
//! ```

use std::fmt;
use std::sync::{Arc, Weak};

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::hmac;
use base::sync::{Mutex, RwLock};
use rustls::server::ProducesTickets;

use super::config_error::TlsConfigError;

const NAME: usize = 16;
const NONCE: usize = 12;

/// The longest lifetime that a ticket may have (RFC 8446, section 4.6.1), in seconds.
const LONGEST: u32 = 7 * 24 * 3600;

/// How many seconds a random key encrypts at most.
const PERIOD: u64 = 3600;
/// How many seconds a random key decrypts at most after it has stopped encrypting: the longer a key exists, the
/// more a theft of it reveals.
const KEPT: u64 = 24 * 3600;

/// A key that tickets are encrypted with.
#[derive(Clone)]
pub struct TicketKey {
    name: [u8; NAME],
    key: Arc<LessSafeKey>,
    since: u64,
}

impl TicketKey {
    /// Reads a key file as nginx does: 48 or 80 random bytes, of which the first 16 are the name.
    pub fn from_file(content: &[u8], file: &str) -> Result<TicketKey, TlsConfigError> {
        if content.len() != 48 && content.len() != 80 {
            return Err(TlsConfigError::new(format!(
                "\"{file}\" must be 48 or 80 bytes"
            )));
        }
        let (name, secret) = content.split_at(NAME);
        // The rest, 32 or 64 bytes, is condensed to one AES-256 key: AES-GCM needs no separate HMAC key.
        let secret = digest(&SHA256, secret);
        TicketKey::new(name, secret.as_ref(), 0)
            .ok_or_else(|| TlsConfigError::new(format!("cannot create a key from \"{file}\"")))
    }

    fn random(now: u64) -> Option<TicketKey> {
        let mut bytes = [0; NAME + 32];
        super::provider::fill_random(&mut bytes).ok()?;
        TicketKey::new(&bytes[..NAME], &bytes[NAME..], now)
    }

    fn new(name: &[u8], secret: &[u8], since: u64) -> Option<TicketKey> {
        Some(TicketKey {
            name: name.try_into().ok()?,
            key: Arc::new(LessSafeKey::new(
                UnboundKey::new(&AES_256_GCM, secret).ok()?,
            )),
            since,
        })
    }
}

/// A secret that ticket keys are derived from, at a minute since the epoch.
#[derive(Clone)]
pub struct TicketSecret {
    minute: u64,
    secret: [u8; 32],
}

/// How far back a secret reaches, in minutes: the longest time for which a key is kept.
const REACH: u64 = (2 * PERIOD + KEPT) / 60;
/// A clock that is set forward by more than this many minutes, two years, leaves the secret behind.
const FARTHEST: u64 = 2 * 366 * 24 * 60;

/// The secret of this process's master, if there is one.
static SECRET: Mutex<Option<TicketSecret>> = Mutex::new(None);

impl TicketSecret {
    /// A random one, for periods that have begun within the last hour and later; `None` if the system has no random
    /// bytes.
    pub fn random() -> Option<TicketSecret> {
        let mut secret = [0; 32];
        rt::random::fill(&mut secret).ok()?;
        let minute = (seconds() / 60).saturating_sub(PERIOD / 60);
        Some(TicketSecret { minute, secret })
    }

    /// The process derives its keys from this secret from now on.
    pub fn use_here(self) {
        *SECRET.lock() = Some(self);
    }

    /// Forgets what is needed for no key that can still be in use.
    pub fn forget_past(&mut self) {
        self.advance((seconds() / 60).saturating_sub(REACH));
    }

    /// Forgets in this process what only keys of the past need: configurations that come later begin with the present
    /// period.
    pub fn forget_past_here() {
        if let Some(secret) = &mut *SECRET.lock() {
            secret.advance((seconds() / 60).saturating_sub(PERIOD / 60));
        }
    }

    /// Becomes the secret of a later minute. A minute of the past, or one that is too far ahead, changes nothing.
    fn advance(&mut self, minute: u64) {
        if minute.saturating_sub(self.minute) > FARTHEST {
            return;
        }
        while self.minute < minute {
            self.secret = self.derive(b"next");
            self.minute += 1;
        }
    }

    fn derive(&self, what: &[u8]) -> [u8; 32] {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.secret);
        let mut derived = [0; 32];
        derived.copy_from_slice(hmac::sign(&key, what).as_ref());
        derived
    }

    /// The key of the period that begins at this minute, for sessions of this timeout.
    fn key(&self, timeout: u32) -> Option<TicketKey> {
        let part = |what: &[u8]| self.derive(&[what, &timeout.to_be_bytes()].concat());
        TicketKey::new(&part(b"name")[..NAME], &part(b"key"), self.minute * 60)
    }
}

/// Derives the keys of one timeout.
struct DerivedKeys {
    /// At the beginning of the next period.
    secret: TicketSecret,
    timeout: u32,
    /// Minutes.
    period: u64,
}

impl DerivedKeys {
    /// For the process's secret; `None` if it has none.
    fn new(timeout: u32, rotation: KeyRotation) -> Option<DerivedKeys> {
        let mut secret = SECRET.lock().clone()?;
        let period = rotation.encrypts / 60;
        let oldest = (seconds() / 60).saturating_sub(rotation.decrypts.div_ceil(60) + period);
        secret.advance(oldest.max(secret.minute).next_multiple_of(period));
        Some(DerivedKeys {
            secret,
            timeout,
            period,
        })
    }

    /// Adds the keys of all periods up to the present one, newest first.
    fn catch_up(&mut self, keys: &mut Vec<TicketKey>, now: u64) {
        let present = now / 60 / self.period * self.period;
        if present.saturating_sub(self.secret.minute) > FARTHEST {
            return;
        }
        while self.secret.minute <= present {
            keys.extend(self.secret.key(self.timeout));
            keys.rotate_right(1);
            self.secret.advance(self.secret.minute + self.period);
        }
    }
}

/// The ticket keys of a server: the first one encrypts, all decrypt.
pub struct TicketKeys {
    keys: RwLock<Vec<TicketKey>>,
    /// The times of random keys; `None` for keys from files, which never change.
    change: Option<KeyRotation>,
    /// Where the keys come from, if other processes have the same ones.
    derived: Mutex<Option<DerivedKeys>>,
}

/// The lifetimes of a random key in seconds. As in nginx, it encrypts for about as long as a session may be
/// resumed, and decrypts for that much longer. So a stolen key reveals little of what was recorded before.
#[derive(Clone, Copy)]
struct KeyRotation {
    encrypts: u64,
    decrypts: u64,
}

impl KeyRotation {
    fn of(timeout: u32) -> KeyRotation {
        let encrypts = u64::from(timeout).clamp(1, PERIOD);
        KeyRotation {
            encrypts,
            decrypts: encrypts + u64::from(timeout).min(KEPT),
        }
    }

    /// The same in whole minutes, one at least: what several processes derive does not depend on the second at which
    /// they do.
    fn in_minutes(self) -> KeyRotation {
        let encrypts = (self.encrypts / 60).max(1) * 60;
        KeyRotation {
            encrypts,
            decrypts: encrypts + self.decrypts - self.encrypts,
        }
    }
}

impl TicketKeys {
    /// Keys from files.
    pub fn fixed(keys: Vec<TicketKey>) -> Arc<TicketKeys> {
        Arc::new(TicketKeys {
            keys: RwLock::new(keys),
            change: None,
            derived: Mutex::new(None),
        })
    }

    /// The random keys of this process for sessions of this timeout.
    pub fn random(timeout: u32) -> Arc<TicketKeys> {
        /// Their number is limited by the different timeouts of configurations in use.
        static SHARED: Mutex<Vec<(u32, Weak<TicketKeys>)>> = Mutex::new(Vec::new());
        let mut shared = SHARED.lock();
        shared.retain(|(_, tickets)| tickets.strong_count() > 0);
        let known = shared.iter().find(|(known, _)| *known == timeout);
        if let Some(tickets) = known.and_then(|(_, tickets)| tickets.upgrade()) {
            return tickets;
        }
        let change = KeyRotation::of(timeout);
        let derived = DerivedKeys::new(timeout, change.in_minutes());
        let change = match derived {
            Some(_) => change.in_minutes(),
            None => change,
        };
        let tickets = Arc::new(TicketKeys {
            keys: RwLock::default(),
            change: Some(change),
            derived: Mutex::new(derived),
        });
        // Tickets of other processes may come before this one issues any.
        tickets.current(seconds());
        shared.push((timeout, Arc::downgrade(&tickets)));
        tickets
    }

    fn current(&self, now: u64) -> Option<TicketKey> {
        let change = self.change;
        let fresh = |key: &TicketKey| change.is_none_or(|change| key.since + change.encrypts > now);
        {
            // Nearly always a read lock is enough; the key changes once an hour.
            let keys = self.keys.read();
            if let Some(key) = keys.first().filter(|key| fresh(key)) {
                return Some(key.clone());
            }
        }
        let change = self.change?;
        let mut keys = self.keys.write();
        // Another loop may have made the key between the two locks.
        if let Some(key) = keys.first().filter(|key| fresh(key)) {
            return Some(key.clone());
        }
        keys.retain(|key| key.since + change.decrypts >= now);
        if let Some(derived) = &mut *self.derived.lock() {
            derived.catch_up(&mut keys, now);
            keys.retain(|key| key.since + change.decrypts >= now);
            if let Some(key) = keys.first().filter(|key| fresh(key)) {
                return Some(key.clone());
            }
        }
        // Without a common secret, or with a clock that has left it behind.
        let key = TicketKey::random(now)?;
        keys.insert(0, key.clone());
        Some(key)
    }

    fn find(&self, name: &[u8], now: u64) -> Option<TicketKey> {
        if self.change.is_some() {
            // Another process may have issued a ticket in a period in which this one has issued none.
            self.current(now);
        }
        let keys = self.keys.read();
        keys.iter().find(|key| key.name == name).cloned()
    }
}

/// Encrypts and decrypts the tickets of one configuration.
pub(super) struct SessionTicketer {
    pub(super) tickets: Arc<TicketKeys>,
    /// A digest of what a session depends on.
    pub(super) context: [u8; 32],
    /// How long a session may be resumed, in seconds.
    pub(super) timeout: u32,
}

impl fmt::Debug for SessionTicketer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionTicketer").finish_non_exhaustive()
    }
}

fn seconds() -> u64 {
    rt::wall_millis() / 1000
}

impl SessionTicketer {
    fn aad(&self, name: &[u8]) -> Aad<Vec<u8>> {
        Aad::from([name, &self.context].concat())
    }

    fn seal(&self, plain: &[u8], now: u64) -> Option<Vec<u8>> {
        let key = self.tickets.current(now)?;
        let mut nonce = [0; NONCE];
        super::provider::fill_random(&mut nonce).ok()?;
        let mut sealed = [&now.to_be_bytes()[..], plain].concat();
        key.key
            .seal_in_place_append_tag(
                Nonce::assume_unique_for_key(nonce),
                self.aad(&key.name),
                &mut sealed,
            )
            .ok()?;
        Some([&key.name[..], &nonce, &sealed].concat())
    }

    fn open(&self, ticket: &[u8], now: u64) -> Option<Vec<u8>> {
        let (name, rest) = ticket.split_at_checked(NAME)?;
        let (nonce, sealed) = rest.split_first_chunk::<NONCE>()?;
        let key = self.tickets.find(name, now)?;
        let mut sealed = sealed.to_vec();
        let plain = key
            .key
            .open_in_place(
                Nonce::assume_unique_for_key(*nonce),
                self.aad(name),
                &mut sealed,
            )
            .ok()?;
        let (issued, session) = plain.split_first_chunk::<8>()?;
        // The time of issue is authenticated. One in the future means that a clock was set back: such a ticket is
        // refused.
        let age = now.checked_sub(u64::from_be_bytes(*issued))?;
        (age <= u64::from(self.timeout)).then(|| session.to_vec())
    }
}

impl ProducesTickets for SessionTicketer {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        self.timeout.min(LONGEST)
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.seal(plain, seconds())
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        self.open(cipher, seconds())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticketer(tickets: &Arc<TicketKeys>, context: u8) -> SessionTicketer {
        SessionTicketer {
            tickets: Arc::clone(tickets),
            context: [context; 32],
            timeout: 300,
        }
    }

    fn changing(timeout: u32) -> Arc<TicketKeys> {
        Arc::new(TicketKeys {
            keys: RwLock::default(),
            change: Some(KeyRotation::of(timeout)),
            derived: Mutex::new(None),
        })
    }

    /// As a process makes them that has this secret.
    fn derived(secret: &TicketSecret, timeout: u32) -> Arc<TicketKeys> {
        let change = KeyRotation::of(timeout).in_minutes();
        let period = change.encrypts / 60;
        let mut secret = secret.clone();
        secret.advance(secret.minute.next_multiple_of(period));
        Arc::new(TicketKeys {
            keys: RwLock::default(),
            change: Some(change),
            derived: Mutex::new(Some(DerivedKeys {
                secret,
                timeout,
                period,
            })),
        })
    }

    #[test]
    fn processes_with_one_secret_take_each_other_s_tickets() {
        let secret = TicketSecret {
            minute: 1000,
            secret: [7; 32],
        };
        let one = ticketer(&derived(&secret, 300), 1);
        let begin = 1010 * 60;
        let ticket = one.seal(b"a", begin).expect("random bytes");
        // Started later, from a secret that has moved on, and it has issued nothing itself.
        let mut moved = secret.clone();
        moved.advance(1004);
        let other = ticketer(&derived(&moved, 300), 1);
        assert!(other.open(&ticket, begin + 299).is_some());
        let later = other.seal(b"b", begin + 700).expect("random bytes");
        assert!(one.open(&later, begin + 700).is_some());
        assert_ne!(ticket[..NAME], later[..NAME], "keys change");
        // The past is gone: no key of it can be made again.
        moved.advance(1020);
        assert!(
            ticketer(&derived(&moved, 300), 1)
                .open(&ticket, begin + 299)
                .is_none()
        );
        let stranger = TicketSecret {
            minute: 1000,
            secret: [8; 32],
        };
        let stranger = ticketer(&derived(&stranger, 300), 1);
        assert!(stranger.open(&ticket, begin).is_none());
        // A clock that runs away makes no endless work.
        assert!(one.seal(b"c", u64::MAX / 2).is_some());
    }

    #[test]
    fn keys_change_as_often_as_sessions_end() {
        let tickets = changing(300);
        let ours = ticketer(&tickets, 1);
        let first = ours.seal(b"a", 1000).expect("random bytes");
        let same = ours.seal(b"a", 1299).expect("random bytes");
        assert_eq!(first[..NAME], same[..NAME]);
        let next = ours.seal(b"a", 1300).expect("random bytes");
        assert_ne!(first[..NAME], next[..NAME]);
        // As long as a session of the key before may be resumed, it is.
        ours.seal(b"a", 1600).expect("random bytes");
        assert!(ours.open(&same, 1599).is_some());
        ours.seal(b"a", 1900).expect("random bytes");
        assert!(tickets.find(&first[..NAME], 1900).is_none());
    }

    #[test]
    fn servers_with_one_timeout_share_their_keys() {
        let (one, same, other) = (
            TicketKeys::random(7),
            TicketKeys::random(7),
            TicketKeys::random(8),
        );
        assert!(Arc::ptr_eq(&one, &same) && !Arc::ptr_eq(&one, &other));
    }

    #[test]
    fn a_ticket_is_good_for_its_time_and_its_context() {
        let tickets = changing(300);
        let ours = ticketer(&tickets, 1);
        let ticket = ours.seal(b"session", 1000).expect("random bytes");
        assert_eq!(ours.open(&ticket, 1300).as_deref(), Some(&b"session"[..]));
        assert_eq!(ours.open(&ticket, 1301), None);
        assert_eq!(ours.open(&ticket, 999), None);
        assert_eq!(ticketer(&tickets, 2).open(&ticket, 1000), None);
        for at in 0..ticket.len() {
            let mut broken = ticket.clone();
            broken[at] ^= 1;
            assert_eq!(ours.open(&broken, 1000), None, "byte {at}");
            assert_eq!(ours.open(&ticket[..at], 1000), None, "length {at}");
        }
    }

    #[test]
    fn keys_change_and_old_ones_are_kept_for_a_day() {
        let tickets = changing(1_000_000);
        let mut ours = ticketer(&tickets, 1);
        ours.timeout = 1_000_000;
        let first = ours.seal(b"a", 0).expect("random bytes");
        for hour in 1..=24 {
            let now = hour * PERIOD;
            let later = ours.seal(b"a", now).expect("random bytes");
            assert_ne!(first[..NAME], later[..NAME]);
            assert!(ours.open(&first, now).is_some(), "hour {hour}");
        }
        ours.seal(b"a", 26 * PERIOD).expect("random bytes");
        assert!(ours.open(&first, 26 * PERIOD).is_none());
    }
}
