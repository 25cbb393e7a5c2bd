//! The authority's word about a certificate of the server, fetched and kept fresh.
//!
//! As in nginx it is asked for when the first client comes, who does not wait for it; unlike there it outlives reloads.
//! An answer that holds no longer is not sent, and an older one is sent until a newer one is there.

use std::sync::{Arc, LazyLock, Weak};

use base::sync::{Mutex, MutexGuard};
use rustls::pki_types::CertificateDer;
use rustls::sign::CertifiedKey;

use super::super::certificate::Certificate;
use super::super::shared::Shared;
use super::check::now;
use super::message::{self, Answer, Id, Signer, Status};
use super::responder::{Ask, Network, PATIENCE, Responder};

/// An answer is asked for again when it has been used for so long, in seconds.
const FRESH: i64 = 3600;
/// It is not asked for more often than this, in seconds.
const PAUSE: i64 = 300;

/// See the module's description.
pub struct Staple {
    id: Id,
    issuer: Certificate,
    responder: Responder,
    signer: Signer,
    ask: Ask,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    answer: Option<Arc<Held>>,
    /// When it is asked for again, in seconds.
    due: i64,
    /// It is being asked for.
    busy: bool,
}

/// An answer, with the key that it is sent with: the same for all handshakes.
struct Held {
    bytes: Vec<u8>,
    until: i64,
    key: Mutex<Option<(Weak<CertifiedKey>, Arc<CertifiedKey>)>>,
}

/// What tells one certificate's answers from another's.
type Key = (Id, Responder, bool);

impl Staple {
    /// For a certificate that `issuer` has issued, both encoded. `responder` is whom to ask; `None`: whom the certificate
    /// names. With `verifies` an answer is only sent if its signer is entitled to it. The error says why there will be
    /// none.
    pub fn new(
        certificate: &CertificateDer<'_>,
        issuer: &[u8],
        responder: Option<Responder>,
        verifies: bool,
        ask: Ask,
    ) -> Result<Arc<Staple>, String> {
        let unreadable = || "the certificate cannot be read".to_owned();
        let certificate = Certificate::parse(certificate).ok_or_else(unreadable)?;
        let issuer = Certificate::parse(issuer).ok_or_else(unreadable)?;
        let responder = match (responder, &certificate.responder) {
            (Some(responder), _) => responder,
            (None, None) => return Err("no OCSP responder URL".to_owned()),
            (None, Some(url)) => Responder::parse(url)
                .ok_or_else(|| format!("invalid URL prefix in OCSP responder \"{url}\""))?,
        };
        let id = Id::of(&certificate, &issuer);
        let key = (id.clone(), responder.clone(), verifies);
        Ok(shared(key, || Staple {
            id,
            issuer,
            responder,
            signer: match verifies {
                true => Signer::Entitled,
                false => Signer::Anybody,
            },
            ask,
            state: Mutex::default(),
        }))
    }

    /// A key with the answer that goes along with its certificate; `None`: there is none that holds.
    pub(in super::super) fn staple(&self, key: &Arc<CertifiedKey>) -> Option<Arc<CertifiedKey>> {
        let held = self.lock().answer.clone()?;
        if held.until < now() {
            return None;
        }
        let mut made = held.key.lock();
        if let Some((of, stapled)) = &*made
            && of.as_ptr() == Arc::as_ptr(key)
        {
            return Some(Arc::clone(stapled));
        }
        let mut stapled = CertifiedKey::clone(key);
        stapled.ocsp = Some(held.bytes.clone());
        let stapled = Arc::new(stapled);
        *made = Some((Arc::downgrade(key), Arc::clone(&stapled)));
        Some(stapled)
    }

    /// Asks again on this loop if it is time to; `log` gets what went wrong.
    pub(in super::super) fn refresh(
        self: &Arc<Self>,
        network: impl FnOnce() -> Network,
        log: impl FnOnce(String) + 'static,
    ) {
        let mut state = self.lock();
        if state.busy || now() < state.due {
            return;
        }
        state.busy = true;
        drop(state);
        let asking = Asking(Arc::clone(self));
        let network = network();
        rt::spawn(async move {
            if let Err(why) = asking.0.fetch(network).await {
                log(why);
            }
        });
    }

    async fn fetch(&self, network: Network) -> Result<(), String> {
        let asked = (self.ask)(self.responder.clone(), self.id.question(), network);
        let bytes = rt::timeout(PATIENCE, asked)
            .await
            .unwrap_or_else(|_| Err("OCSP responder timed out".to_owned()))?;
        let Answer { status, until } =
            message::examine(&bytes, &self.id, &self.issuer, self.signer, now())?;
        let mut state = self.lock();
        if status != Status::Good {
            // To send it would only tell clients to go away; not to send it any more is up to them.
            state.answer = None;
            let name = status.name();
            return Err(format!(
                "certificate status \"{name}\" in the OCSP response"
            ));
        }
        let now = now();
        let until = until.unwrap_or(i64::MAX);
        state.due = (until.saturating_sub(PAUSE))
            .min(now + FRESH)
            .max(now + PAUSE);
        state.answer = Some(Arc::new(Held {
            bytes,
            until,
            key: Mutex::new(None),
        }));
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// It is being asked for; however that ends, it may be asked for again after a while.
struct Asking(Arc<Staple>);

impl Drop for Asking {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.busy = false;
        state.due = state.due.max(now() + PAUSE);
    }
}

/// The one for this certificate in this process, so that a reload begins with what is known.
fn shared(key: Key, make: impl FnOnce() -> Staple) -> Arc<Staple> {
    static KNOWN: LazyLock<Shared<Key, Staple>> = LazyLock::new(Shared::default);
    KNOWN.get(key, || Arc::new(make()))
}
