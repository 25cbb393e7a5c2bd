//! Whether clients' certificates have been revoked.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use base::lru::Lru;
use base::sync::{Mutex, MutexGuard};
use rt::sync::remote_oneshot::{self, Receiver, Sender};

use super::super::certificate::Certificate;
use super::super::session::Session;
use super::super::shared::Shared;
use super::super::verify::{Assessment, Fault, REVOKED, Trust};
use super::message::{self, Answer, Id, Signer, Status};
use super::responder::{Ask, Network, PATIENCE, Responder};

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
        let Some(cache) = &self.cache else {
            let answer = self.question(certificate, issuer, &id, network).await?;
            return Ok(answer.status);
        };
        loop {
            let asking = match cache.turn(&id, now()) {
                Turn::Known(status) => return Ok(status),
                Turn::Wait(answer) => match answer.await {
                    Ok(outcome) => return outcome,
                    // The client for whom it was asked has left: somebody else has to ask.
                    Err(_) => continue,
                },
                Turn::Ask(asking) => asking,
            };
            let answer = self.question(certificate, issuer, &id, network).await;
            return asking.tell(answer);
        }
    }

    /// Asks the authority.
    async fn question(
        &self,
        certificate: &Certificate,
        issuer: &Certificate,
        id: &Id,
        network: &Network,
    ) -> Result<Answer, String> {
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
        message::examine(&answer, id, issuer, Signer::Entitled, now())
    }
}

pub(super) fn now() -> i64 {
    i64::try_from(rt::wall_millis() / 1000).unwrap_or(i64::MAX)
}

/// What authorities have said (`ssl_ocsp_cache`): it has a name, belongs to all loops, and outlives reloads. What was
/// used longest ago goes when it is full. Clients with the same certificate that come while its authority is asked wait
/// for that answer.
pub struct StatusCache {
    state: Mutex<State>,
}

struct State {
    known: Lru<Id, (Status, i64)>,
    /// Who waits for an answer; bounded by the connections that are open.
    asked: HashMap<Id, Vec<Sender<Outcome>>>,
}

/// What becomes of a question; the text is for the log.
type Outcome = Result<Status, String>;

/// What somebody who wants to know has to do.
enum Turn {
    Known(Status),
    Wait(Receiver<Outcome>),
    Ask(Asking),
}

impl StatusCache {
    /// The cache of this name and size in this process: the one that is in use, if there is one.
    pub fn shared(name: &str, bytes: usize) -> Arc<StatusCache> {
        static KNOWN: LazyLock<Shared<(String, usize), StatusCache>> =
            LazyLock::new(Shared::default);
        KNOWN.get((name.to_owned(), bytes), || {
            Arc::new(StatusCache::of((bytes / ENTRY).max(1)))
        })
    }

    fn of(entries: usize) -> StatusCache {
        StatusCache {
            state: Mutex::new(State {
                known: Lru::new(entries),
                asked: HashMap::new(),
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn turn(self: &Arc<Self>, id: &Id, now: i64) -> Turn {
        let mut state = self.state();
        if let Some(&mut (status, until)) = state.known.get(id)
            && now <= until
        {
            return Turn::Known(status);
        }
        if let Some(waiters) = state.asked.get_mut(id) {
            let (sender, receiver) = remote_oneshot::channel();
            waiters.push(sender);
            return Turn::Wait(receiver);
        }
        state.asked.insert(id.clone(), Vec::new());
        Turn::Ask(Asking {
            cache: Arc::clone(self),
            id: id.clone(),
            is_told: false,
        })
    }
}

/// A question under way. Those who wait for it learn of its end, or that whoever asked has left.
struct Asking {
    cache: Arc<StatusCache>,
    id: Id,
    is_told: bool,
}

impl Asking {
    fn tell(mut self, answer: Result<Answer, String>) -> Outcome {
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
            // One that has left does not want to know.
            let _ = waiter.send(outcome.clone());
        }
        outcome
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        if self.is_told {
            return;
        }
        let waiters = self.cache.state().asked.remove(&self.id);
        // They are told without the lock, which the first of them takes.
        drop(waiters);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_asks_when_the_one_who_asked_has_left() {
        let cache = Arc::new(StatusCache::of(4));
        let id = Id::default();
        let Turn::Ask(asking) = cache.turn(&id, 0) else {
            panic!("nobody has asked");
        };
        let Turn::Wait(waiter) = cache.turn(&id, 0) else {
            panic!("somebody asks already");
        };
        drop(asking);
        let options = rt::LoopOptions::default();
        let outcome = rt::run(options, || waiter).expect("a loop");
        assert!(outcome.is_err());
        let Turn::Ask(asking) = cache.turn(&id, 0) else {
            panic!("nobody asks any more");
        };
        let answer = Answer {
            status: Status::Good,
            until: Some(10),
        };
        assert_eq!(asking.tell(Ok(answer)), Ok(Status::Good));
        assert!(matches!(cache.turn(&id, 10), Turn::Known(Status::Good)));
        assert!(matches!(cache.turn(&id, 11), Turn::Ask(_)));
    }
}
