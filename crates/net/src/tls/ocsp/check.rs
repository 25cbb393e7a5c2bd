//! Whether clients' certificates have been revoked.

use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use base::lru::Lru;

use super::super::certificate::Certificate;
use super::super::session::Session;
use super::super::shared::Shared;
use super::super::verify::{Assessment, Fault, REVOKED, Trust};
use super::message::{self, Id, Signer, Status};
use super::{Ask, Network, PATIENCE, Responder};

/// The responder was not to be asked, or what it said is no answer.
const FAILED: Fault = Fault {
    number: 0,
    text: "certificate status request failed",
};
/// The authority does not know the certificate.
const UNKNOWN: Fault = Fault {
    number: 0,
    text: "certificate status unknown",
};

/// How long an answer is kept that says nothing about that, in seconds.
const WITHOUT_END: i64 = 3600;
/// What an entry of the cache takes, roughly, in bytes.
const ENTRY: usize = 200;

/// Which certificates of a path are asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checks {
    /// The client's own.
    Leaf,
    /// All but the root.
    All,
}

/// `ssl_ocsp` of a server.
pub struct StatusCheck {
    /// Which certificates.
    pub checks: Checks,
    /// Whom to ask; `None`: whom the certificate names.
    pub responder: Option<Responder>,
    /// What was said before.
    pub cache: Option<Arc<StatusCache>>,
    /// How to ask.
    pub ask: Ask,
}

impl StatusCheck {
    /// Asks about the client of a session whose certificate is good so far, and notes in the session what came of it.
    /// The text is what the log shall say of it.
    pub async fn check(
        &self,
        session: &mut Session,
        trust: &Trust,
        network: &Network,
    ) -> Option<String> {
        if session.assessment() != Some(&Assessment::Good) {
            return None;
        }
        let path = session.path(trust);
        let pairs = path.windows(2).take(match self.checks {
            Checks::Leaf => 1,
            Checks::All => usize::MAX,
        });
        for pair in pairs {
            let (fault, line) = match self.status(&pair[0], &pair[1], network).await {
                Ok(Status::Good) => continue,
                Ok(Status::Revoked) => (
                    Fault {
                        number: 0,
                        ..REVOKED
                    },
                    None,
                ),
                Ok(Status::Unknown) => (UNKNOWN, None),
                Err(why) => (FAILED, Some(why)),
            };
            session.assess(Assessment::Bad(fault));
            return line;
        }
        None
    }

    async fn status(
        &self,
        certificate: &Certificate,
        issuer: &Certificate,
        network: &Network,
    ) -> Result<Status, String> {
        let id = Id::of(certificate, issuer);
        if let Some(cache) = &self.cache
            && let Some(known) = cache.get(&id, now())
        {
            return Ok(known);
        }
        let named = || {
            let url = certificate.responder.as_deref();
            let url = url.ok_or("no OCSP responder URL in certificate")?;
            Responder::parse(url)
                .ok_or_else(|| format!("invalid URL prefix in OCSP responder \"{url}\""))
        };
        let responder = match &self.responder {
            Some(responder) => responder.clone(),
            None => named()?,
        };
        let asked = (self.ask)(responder, id.question(), network.clone());
        let answer = rt::timeout(PATIENCE, asked)
            .await
            .unwrap_or_else(|_| Err("OCSP responder timed out".to_owned()))?;
        let answer = message::examine(&answer, &id, issuer, Signer::Entitled, now())?;
        if let Some(cache) = &self.cache {
            let until = answer.until.unwrap_or_else(|| now() + WITHOUT_END);
            cache.put(id, answer.status, until);
        }
        Ok(answer.status)
    }
}

pub(super) fn now() -> i64 {
    i64::try_from(rt::wall_millis() / 1000).unwrap_or(i64::MAX)
}

/// What authorities have said (`ssl_ocsp_cache`): it has a name, belongs to all loops, and outlives reloads. What was
/// used longest ago goes when it is full.
pub struct StatusCache {
    known: Mutex<Lru<Id, (Status, i64)>>,
}

impl StatusCache {
    /// The cache of this name and size in this process: the one that is in use, if there is one.
    pub fn shared(name: &str, bytes: usize) -> Arc<StatusCache> {
        static KNOWN: LazyLock<Shared<(String, usize), StatusCache>> =
            LazyLock::new(Shared::default);
        KNOWN.get((name.to_owned(), bytes), || {
            Arc::new(StatusCache {
                known: Mutex::new(Lru::new((bytes / ENTRY).max(1))),
            })
        })
    }

    fn get(&self, id: &Id, now: i64) -> Option<Status> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let (status, until) = *known.get(id)?;
        (now <= until).then_some(status)
    }

    fn put(&self, id: Id, status: Status, until: i64) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(id, (status, until));
    }
}
