//! What the loops share about certificates: those that were issued, and the proofs that the ACME server asks for.
//!
//! It survives reloads; what must survive the process lies in the issuer's folder.

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use net::tls::Identity;

use super::advice::Advice;

/// Proofs that are kept at a time; more orders wait for theirs.
const MAX_PROOFS: usize = 1000;

/// A certificate with its key, both PEM.
pub(super) struct Issued {
    pub(super) certificate: String,
    pub(super) key: String,
}

/// Shared by all loops.
#[derive(Default)]
pub(super) struct State {
    /// By what was ordered; as many as the configuration orders.
    issued: Mutex<HashMap<String, Arc<Issued>>>,
    /// By [`super::issuer::Issuer::account_name`]; as many as the configuration has issuers.
    issuers: Mutex<HashMap<String, Known>>,
    /// By what was ordered, too.
    advice: Mutex<HashMap<String, Advice>>,
    /// HTTP-01: what to answer for a token.
    tokens: Mutex<HashMap<String, String>>,
    /// TLS-ALPN-01: what to show for a name.
    shown: Mutex<HashMap<String, Arc<Identity>>>,
}

/// What is remembered of an issuer.
#[derive(Default)]
struct Known {
    /// The account there, as it stands in a file.
    account: Option<Vec<u8>>,
    /// Until then it asked to be left alone.
    pause: Option<Instant>,
}

impl State {
    /// Forgets what the configuration does not name any more.
    pub(super) fn retain(&self, orders: &[&str], issuers: &[String]) {
        lock(&self.issued).retain(|what, _| orders.contains(&what.as_str()));
        lock(&self.advice).retain(|what, _| orders.contains(&what.as_str()));
        lock(&self.issuers).retain(|name, _| issuers.contains(name));
    }

    pub(super) fn account(&self, issuer: &str) -> Option<Vec<u8>> {
        lock(&self.issuers).get(issuer)?.account.clone()
    }

    pub(super) fn set_account(&self, issuer: &str, text: Vec<u8>) {
        let mut issuers = lock(&self.issuers);
        issuers.entry(issuer.to_owned()).or_default().account = Some(text);
    }

    pub(super) fn forget_account(&self, issuer: &str) {
        if let Some(known) = lock(&self.issuers).get_mut(issuer) {
            known.account = None;
        }
    }

    /// How long an issuer still is to be left alone.
    pub(super) fn pause(&self, issuer: &str) -> Duration {
        let until = lock(&self.issuers)
            .get(issuer)
            .and_then(|known| known.pause);
        until.map_or(Duration::ZERO, |until| {
            until.saturating_duration_since(rt::now())
        })
    }

    pub(super) fn set_pause(&self, issuer: &str, pause: Duration) {
        let mut issuers = lock(&self.issuers);
        issuers.entry(issuer.to_owned()).or_default().pause = Some(rt::now() + pause);
    }

    pub(super) fn issued(&self, what: &str) -> Option<Arc<Issued>> {
        lock(&self.issued).get(what).cloned()
    }

    pub(super) fn set_issued(&self, what: &str, issued: Issued) {
        self.advise(what, Advice::renew);
        lock(&self.issued).insert(what.to_owned(), Arc::new(issued));
    }

    /// What the authority says about a certificate's renewal.
    pub(super) fn advice(&self, what: &str) -> Advice {
        lock(&self.advice).get(what).cloned().unwrap_or_default()
    }

    /// Changes that.
    pub(super) fn advise(&self, what: &str, change: impl FnOnce(&mut Advice)) {
        change(lock(&self.advice).entry(what.to_owned()).or_default());
    }

    pub(super) fn token(&self, token: &str) -> Option<String> {
        lock(&self.tokens).get(token).cloned()
    }

    pub(super) fn shown(&self, name: &str) -> Option<Arc<Identity>> {
        lock(&self.shown).get(name).cloned()
    }

    /// Keeps an answer for a token, until the proof is dropped.
    pub(super) fn answer(self: &Arc<Self>, token: &str, answer: &str) -> Result<Proof, String> {
        keep(&self.tokens, token, answer.to_owned())?;
        Ok(Proof {
            state: Arc::clone(self),
            what: What::Token(token.to_owned()),
        })
    }

    /// Keeps a certificate to show for a name, until the proof is dropped.
    pub(super) fn show(
        self: &Arc<Self>,
        name: &str,
        identity: Arc<Identity>,
    ) -> Result<Proof, String> {
        keep(&self.shown, name, identity)?;
        Ok(Proof {
            state: Arc::clone(self),
            what: What::Name(name.to_owned()),
        })
    }
}

fn keep<T>(map: &Mutex<HashMap<String, T>>, key: &str, value: T) -> Result<(), String> {
    let mut map = lock(map);
    if map.len() >= MAX_PROOFS {
        return Err("too many pending challenges".to_owned());
    }
    map.insert(key.to_owned(), value);
    Ok(())
}

/// A proof for the ACME server, there as long as this lives.
pub(super) struct Proof {
    state: Arc<State>,
    what: What,
}

enum What {
    Token(String),
    Name(String),
}

impl Drop for Proof {
    fn drop(&mut self) {
        match &self.what {
            What::Token(token) => drop(lock(&self.state.tokens).remove(token)),
            What::Name(name) => drop(lock(&self.state.shown).remove(name)),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes a file that only its owner can read: first beside, then in the place of the old one. Waits for the disk.
pub(super) fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    use std::io::Write;
    let beside = path.with_extension("new");
    let mut file = std::fs::File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&beside)?;
    // One that an earlier process has left may have another.
    rt::file::modes::make_private(&file)?;
    file.write_all(content)?;
    file.sync_all()?;
    std::fs::rename(&beside, path)
}
