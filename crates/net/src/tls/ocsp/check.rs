//! Checks whether clients' certificates are revoked (`ssl_ocsp`).

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use base::lru::Lru;
use base::sync::{Mutex, MutexGuard};
use rt::sync::remote_oneshot::{self, RemoteReceiver, RemoteSender};

use super::super::certificate::Certificate;
use super::super::session::TlsSession;
use super::super::shared_by_name::SharedByName;
use super::super::verify::{REVOKED, TrustStore, VerifyError, VerifyResult};
use super::message::{self, CertId, CertStatus, OcspAnswer, SignerPolicy};
use super::responder::{OcspResolver, OcspResponder, PATIENCE, SendOcspRequest};

/// The responder could not be asked, or its response is not valid.
const FAILED: VerifyError = VerifyError {
    number: 0,
    text: "certificate status request failed",
};
/// The responder does not know the certificate.
const UNKNOWN: VerifyError = VerifyError {
    number: 0,
    text: "certificate status unknown",
};

/// For how many seconds a response without `nextUpdate` is cached.
const WITHOUT_END: i64 = 3600;
/// The approximate size of a cache entry in bytes.
const ENTRY: usize = 200;

/// Which certificates of a chain are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OcspScope {
    /// The client's own (`ssl_ocsp leaf`).
    Leaf,
    /// All except the root, which is trusted by itself.
    All,
}

/// `ssl_ocsp` of a server.
pub struct StatusCheck {
    /// Which certificates.
    pub checks: OcspScope,
    /// The responder; `None`: the one in the certificate.
    pub responder: Option<OcspResponder>,
    /// The cache of responses.
    pub cache: Option<Arc<StatusCache>>,
    /// The function that sends the request.
    pub send: SendOcspRequest,
}

impl StatusCheck {
    /// Checks the client of a session whose certificate is valid so far, and records the result in the session.
    /// Returns a message for the log, if any.
    pub async fn check(
        &self,
        session: &mut TlsSession,
        trust: &TrustStore,
        resolver: &OcspResolver,
    ) -> Option<String> {
        if session.verify_result() != Some(&VerifyResult::Good) {
            return None;
        }
        // In the path that was verified each certificate is followed by its issuer, whose key signs the response.
        let path = session.certificate_path(trust);
        let pairs = path.windows(2).take(match self.checks {
            OcspScope::Leaf => 1,
            OcspScope::All => usize::MAX,
        });
        for pair in pairs {
            let (fault, line) = match self.status(&pair[0], &pair[1], resolver).await {
                Ok(CertStatus::Good) => continue,
                Ok(CertStatus::Revoked) => (
                    VerifyError {
                        number: 0,
                        ..REVOKED
                    },
                    None,
                ),
                Ok(CertStatus::Unknown) => (UNKNOWN, None),
                Err(why) => (FAILED, Some(why)),
            };
            session.set_verify_result(VerifyResult::Bad(fault));
            return line;
        }
        None
    }

    async fn status(
        &self,
        certificate: &Certificate,
        issuer: &Certificate,
        resolver: &OcspResolver,
    ) -> Result<CertStatus, String> {
        let id = CertId::of(certificate, issuer);
        let Some(cache) = &self.cache else {
            let answer = self.question(certificate, issuer, &id, resolver).await?;
            return Ok(answer.status);
        };
        loop {
            let asking = match cache.turn(&id, now()) {
                StatusLookup::Known(status) => return Ok(status),
                StatusLookup::Wait(answer) => match answer.await {
                    Ok(outcome) => return outcome,
                    // The connection that asked has ended without an answer: this one takes its turn.
                    Err(_) => continue,
                },
                StatusLookup::Ask(asking) => asking,
            };
            let answer = self.question(certificate, issuer, &id, resolver).await;
            return asking.tell(answer);
        }
    }

    /// Sends the request and checks the response.
    async fn question(
        &self,
        certificate: &Certificate,
        issuer: &Certificate,
        id: &CertId,
        resolver: &OcspResolver,
    ) -> Result<OcspAnswer, String> {
        let named = || {
            let url = certificate.responder.as_deref();
            let url = url.ok_or("no OCSP responder URL in certificate")?;
            OcspResponder::parse(url)
                .ok_or_else(|| format!("invalid URL prefix in OCSP responder \"{url}\""))
        };
        let responder = match &self.responder {
            Some(responder) => responder.clone(),
            None => named()?,
        };
        let asked = (self.send)(responder, id.encode_request(), resolver.clone());
        let answer = rt::timeout(PATIENCE, asked)
            .await
            .unwrap_or_else(|_| Err("OCSP responder timed out".to_owned()))?;
        message::verify_response(&answer, id, issuer, SignerPolicy::Entitled, now())
    }
}

pub(super) fn now() -> i64 {
    i64::try_from(rt::wall_millis() / 1000).unwrap_or(i64::MAX)
}

/// The cached responses (`ssl_ocsp_cache`): it has a name, is shared by all loops, and outlives reloads. The entry
/// that was unused for longest is evicted first. While a responder is asked, other clients with the same
/// certificate wait for that answer instead of asking too.
pub struct StatusCache {
    state: Mutex<StatusCacheState>,
}

struct StatusCacheState {
    known: Lru<CertId, (CertStatus, i64)>,
    /// Connections that wait for an answer; bounded by the number of open connections.
    asked: HashMap<CertId, Vec<RemoteSender<StatusOutcome>>>,
}

/// The result of a request; the text is for the log.
type StatusOutcome = Result<CertStatus, String>;

/// What a connection has to do for a status.
enum StatusLookup {
    Known(CertStatus),
    Wait(RemoteReceiver<StatusOutcome>),
    Ask(StatusQuery),
}

impl StatusCache {
    /// The cache with this name and size in this process: the existing one, if it is in use.
    pub fn shared(name: &str, bytes: usize) -> Arc<StatusCache> {
        static KNOWN: LazyLock<SharedByName<(String, usize), StatusCache>> =
            LazyLock::new(SharedByName::default);
        KNOWN.get((name.to_owned(), bytes), || {
            Arc::new(StatusCache::of((bytes / ENTRY).max(1)))
        })
    }

    fn of(entries: usize) -> StatusCache {
        StatusCache {
            state: Mutex::new(StatusCacheState {
                known: Lru::new(entries),
                asked: HashMap::new(),
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, StatusCacheState> {
        self.state.lock()
    }

    fn turn(self: &Arc<Self>, id: &CertId, now: i64) -> StatusLookup {
        let mut state = self.state();
        if let Some(&mut (status, until)) = state.known.get(id)
            && now <= until
        {
            return StatusLookup::Known(status);
        }
        if let Some(waiters) = state.asked.get_mut(id) {
            let (sender, receiver) = remote_oneshot::channel();
            waiters.push(sender);
            return StatusLookup::Wait(receiver);
        }
        state.asked.insert(id.clone(), Vec::new());
        StatusLookup::Ask(StatusQuery {
            cache: Arc::clone(self),
            id: id.clone(),
            is_told: false,
        })
    }
}

/// A request under way. Connections that wait for it learn its result, or that the one that asked has gone.
struct StatusQuery {
    cache: Arc<StatusCache>,
    id: CertId,
    is_told: bool,
}

impl StatusQuery {
    fn tell(mut self, answer: Result<OcspAnswer, String>) -> StatusOutcome {
        let mut state = self.cache.state();
        let outcome = answer.map(|answer| {
            let until = answer.until.unwrap_or_else(|| now() + WITHOUT_END);
            let entry = (answer.status, until);
            state.known.insert(self.id.clone(), entry);
            answer.status
        });
        let waiters = state.asked.remove(&self.id).unwrap_or_default();
        drop(state);
        self.is_told = true;
        for waiter in waiters {
            // An error means that this connection has ended.
            let _ = waiter.send(outcome.clone());
        }
        outcome
    }
}

impl Drop for StatusQuery {
    fn drop(&mut self) {
        if self.is_told {
            return;
        }
        let waiters = self.cache.state().asked.remove(&self.id);
        // Dropped after the lock is released: the first of them takes it to ask itself.
        drop(waiters);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_asks_when_the_one_who_asked_has_left() {
        let cache = Arc::new(StatusCache::of(4));
        let id = CertId::default();
        let StatusLookup::Ask(asking) = cache.turn(&id, 0) else {
            panic!("nobody has asked");
        };
        let StatusLookup::Wait(waiter) = cache.turn(&id, 0) else {
            panic!("a request is already in progress");
        };
        drop(asking);
        let options = rt::LoopOptions::default();
        let outcome = rt::run(options, || waiter).expect("a loop");
        assert!(outcome.is_err());
        let StatusLookup::Ask(asking) = cache.turn(&id, 0) else {
            panic!("nobody asks any more");
        };
        let answer = OcspAnswer {
            status: CertStatus::Good,
            until: Some(10),
        };
        assert_eq!(asking.tell(Ok(answer)), Ok(CertStatus::Good));
        assert!(matches!(
            cache.turn(&id, 10),
            StatusLookup::Known(CertStatus::Good)
        ));
        assert!(matches!(cache.turn(&id, 11), StatusLookup::Ask(_)));
    }
}
