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

use std::fmt;
use std::sync::{Arc, Weak};

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::digest::{SHA256, digest};
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

/// The ticket keys of a server: the first one encrypts, all decrypt.
pub struct TicketKeys {
    keys: RwLock<Vec<TicketKey>>,
    /// The times of random keys; `None` for keys from files, which never change.
    change: Option<KeyRotation>,
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
}

impl TicketKeys {
    /// Keys from files.
    pub fn fixed(keys: Vec<TicketKey>) -> Arc<TicketKeys> {
        Arc::new(TicketKeys {
            keys: RwLock::new(keys),
            change: None,
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
        let tickets = Arc::new(TicketKeys {
            keys: RwLock::default(),
            change: Some(KeyRotation::of(timeout)),
        });
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
        let key = TicketKey::random(now)?;
        keys.retain(|key| key.since + change.decrypts >= now);
        keys.insert(0, key.clone());
        Some(key)
    }

    fn find(&self, name: &[u8]) -> Option<TicketKey> {
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
        let key = self.tickets.find(name)?;
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
        })
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
        assert!(tickets.find(&first[..NAME]).is_none());
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
