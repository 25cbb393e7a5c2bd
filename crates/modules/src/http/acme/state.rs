//! What the loops share: issued certificates, and the answers to the ACME server's challenges.
//!
//! It survives reloads. What has to survive the process is in the issuer's directory.

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::sync::Mutex;
use net::tls::TlsIdentity;

use super::renewal_info::RenewalAdvice;

/// The maximum number of pending challenges of each kind.
const MAX_CHALLENGES: usize = 1000;

/// An issued certificate (chain) and its key, both PEM.
pub(super) struct IssuedCertificate {
    /// The chain in PEM.
    pub(super) certificate: String,
    /// The private key in PEM.
    pub(super) key: String,
}

/// The state shared by all loops. Every lock is held for a map operation only.
#[derive(Default)]
pub(super) struct AcmeState {
    /// By order; no more than the configuration names.
    issued: Mutex<HashMap<String, Arc<IssuedCertificate>>>,
    /// By `account_name` of an issuer; no more than the configuration has issuers.
    issuers: Mutex<HashMap<String, IssuerState>>,
    /// By order, too.
    advice: Mutex<HashMap<String, RenewalAdvice>>,
    /// HTTP-01: the response for each token.
    http_challenges: Mutex<HashMap<String, String>>,
    /// TLS-ALPN-01: the certificate for each name.
    tls_challenge_certificate: Mutex<HashMap<String, Arc<TlsIdentity>>>,
}

/// What is remembered of an issuer.
#[derive(Default)]
struct IssuerState {
    /// Our account, in the form it is stored in.
    account: Option<Vec<u8>>,
    /// It asked to be left alone until then.
    pause: Option<Instant>,
}

impl AcmeState {
    /// Removes what the configuration no longer names.
    pub(super) fn retain(&self, orders: &[&str], issuers: &[String]) {
        self.issued
            .lock()
            .retain(|what, _| orders.contains(&what.as_str()));
        self.advice
            .lock()
            .retain(|what, _| orders.contains(&what.as_str()));
        self.issuers.lock().retain(|name, _| issuers.contains(name));
    }

    /// Our account at an issuer, in the form it is stored in.
    pub(super) fn account(&self, issuer: &str) -> Option<Vec<u8>> {
        self.issuers.lock().get(issuer)?.account.clone()
    }

    /// Remembers our account at an issuer.
    pub(super) fn set_account(&self, issuer: &str, text: Vec<u8>) {
        let mut issuers = self.issuers.lock();
        issuers.entry(issuer.to_owned()).or_default().account = Some(text);
    }

    /// Forgets our account; what else is known of the issuer stays.
    pub(super) fn forget_account(&self, issuer: &str) {
        if let Some(known) = self.issuers.lock().get_mut(issuer) {
            known.account = None;
        }
    }

    /// How long an issuer is still to be left alone.
    pub(super) fn pause(&self, issuer: &str) -> Duration {
        let until = self
            .issuers
            .lock()
            .get(issuer)
            .and_then(|known| known.pause);
        until.map_or(Duration::ZERO, |until| {
            until.saturating_duration_since(rt::now())
        })
    }

    /// Leaves an issuer alone for this long.
    pub(super) fn set_pause(&self, issuer: &str, pause: Duration) {
        let mut issuers = self.issuers.lock();
        issuers.entry(issuer.to_owned()).or_default().pause = Some(rt::now() + pause);
    }

    /// The certificate in use.
    pub(super) fn issued(&self, what: &str) -> Option<Arc<IssuedCertificate>> {
        self.issued.lock().get(what).cloned()
    }

    /// Puts a certificate into use.
    pub(super) fn set_issued(&self, what: &str, issued: IssuedCertificate) {
        // Renewal information is about one certificate, and this is another.
        self.update_advice(what, RenewalAdvice::reset);
        self.issued.lock().insert(what.to_owned(), Arc::new(issued));
    }

    /// The renewal information of a certificate.
    pub(super) fn advice(&self, what: &str) -> RenewalAdvice {
        self.advice.lock().get(what).cloned().unwrap_or_default()
    }

    /// Changes the renewal information of a certificate.
    pub(super) fn update_advice(&self, what: &str, change: impl FnOnce(&mut RenewalAdvice)) {
        change(self.advice.lock().entry(what.to_owned()).or_default());
    }

    /// The response to an HTTP-01 challenge; any loop may be asked.
    pub(super) fn http_challenge_response(&self, token: &str) -> Option<String> {
        self.http_challenges.lock().get(token).cloned()
    }

    /// The certificate that answers a TLS-ALPN-01 challenge for a name.
    pub(super) fn tls_challenges(&self, name: &str) -> Option<Arc<TlsIdentity>> {
        self.tls_challenge_certificate.lock().get(name).cloned()
    }

    /// Answers HTTP-01 for a token until the result is dropped.
    pub(super) fn add_http_challenge(
        self: &Arc<Self>,
        token: &str,
        answer: &str,
    ) -> Result<PendingChallenge, String> {
        insert_bounded(&self.http_challenges, token, answer.to_owned())?;
        Ok(PendingChallenge {
            state: Arc::clone(self),
            key: ChallengeKey::Token(token.to_owned()),
        })
    }

    /// Answers TLS-ALPN-01 for a name until the result is dropped.
    pub(super) fn add_tls_challenge(
        self: &Arc<Self>,
        name: &str,
        identity: Arc<TlsIdentity>,
    ) -> Result<PendingChallenge, String> {
        insert_bounded(&self.tls_challenge_certificate, name, identity)?;
        Ok(PendingChallenge {
            state: Arc::clone(self),
            key: ChallengeKey::Name(name.to_owned()),
        })
    }
}

/// Inserts into a bounded map.
fn insert_bounded<T>(map: &Mutex<HashMap<String, T>>, key: &str, value: T) -> Result<(), String> {
    let mut map = map.lock();
    if map.len() >= MAX_CHALLENGES {
        return Err("too many pending challenges".to_owned());
    }
    map.insert(key.to_owned(), value);
    Ok(())
}

/// A challenge that is answered as long as this value exists. Removal on drop covers timeouts and
/// reloads in the middle of an order.
pub(super) struct PendingChallenge {
    state: Arc<AcmeState>,
    key: ChallengeKey,
}

/// What is removed when a proof ends.
enum ChallengeKey {
    /// An HTTP-01 token.
    Token(String),
    /// A name with a TLS-ALPN-01 certificate.
    Name(String),
}

impl Drop for PendingChallenge {
    fn drop(&mut self) {
        match &self.key {
            ChallengeKey::Token(token) => drop(self.state.http_challenges.lock().remove(token)),
            ChallengeKey::Name(name) => {
                drop(self.state.tls_challenge_certificate.lock().remove(name))
            }
        }
    }
}

/// Writes a file readable by its owner only: first under another name, then in place of the old
/// one, so that a crash leaves one of the two. Blocks on the disk.
pub(super) fn write_private(path: &Path, content: &[u8]) -> io::Result<()> {
    use std::io::Write;
    let beside = path.with_extension("new");
    let mut file = std::fs::File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&beside)?;
    // A file left by an earlier process can have another mode, which opening does not change.
    rt::file::modes::make_private(&file)?;
    file.write_all(content)?;
    file.sync_all()?;
    std::fs::rename(&beside, path)
}
