//! OCSP responses about the server's own certificates, fetched and kept fresh (`ssl_stapling`).
//!
//! As in nginx, the first client triggers the request and does not wait for it. Unlike in nginx, responses outlive
//! reloads. An expired response is not sent; a valid one is sent until a newer one has arrived.

use std::sync::{Arc, LazyLock, Weak};

use base::sync::{Mutex, MutexGuard};
use rustls::pki_types::CertificateDer;
use rustls::sign::CertifiedKey;

use super::super::certificate::Certificate;
use super::super::shared_by_name::SharedByName;
use super::check::now;
use super::message::{self, CertId, CertStatus, OcspAnswer, SignerPolicy};
use super::responder::{OcspResolver, OcspResponder, PATIENCE, SendOcspRequest};

/// A response is renewed after this many seconds.
const FRESH: i64 = 3600;
/// The shortest time between two requests, in seconds: a failing responder is not flooded.
const PAUSE: i64 = 300;

/// The OCSP response of one certificate, and its renewal.
pub struct OcspStaple {
    id: CertId,
    issuer: Certificate,
    responder: OcspResponder,
    signer: SignerPolicy,
    send: SendOcspRequest,
    state: Mutex<StapleState>,
}

#[derive(Default)]
struct StapleState {
    answer: Option<Arc<FetchedStaple>>,
    /// When to ask again, in seconds.
    due: i64,
    /// A request is under way.
    busy: bool,
}

/// A response, with the certified key that includes it: built once for all handshakes.
struct FetchedStaple {
    bytes: Vec<u8>,
    until: i64,
    key: Mutex<Option<(Weak<CertifiedKey>, Arc<CertifiedKey>)>>,
}

/// Identifies a certificate's responses in the process.
type StapleKey = (CertId, OcspResponder, bool);

impl OcspStaple {
    /// For a certificate and its issuer's certificate, both in DER. `responder` overrides the URL in the
    /// certificate. With `verifies` a response is sent only if its signer is authorized (`ssl_stapling_verify`).
    /// The error says why stapling is not possible.
    pub fn new(
        certificate: &CertificateDer<'_>,
        issuer: &[u8],
        responder: Option<OcspResponder>,
        verifies: bool,
        send: SendOcspRequest,
    ) -> Result<Arc<OcspStaple>, String> {
        let unreadable = || "the certificate cannot be read".to_owned();
        let certificate = Certificate::parse(certificate).ok_or_else(unreadable)?;
        let issuer = Certificate::parse(issuer).ok_or_else(unreadable)?;
        let responder = match (responder, &certificate.responder) {
            (Some(responder), _) => responder,
            (None, None) => return Err("no OCSP responder URL".to_owned()),
            (None, Some(url)) => OcspResponder::parse(url)
                .ok_or_else(|| format!("invalid URL prefix in OCSP responder \"{url}\""))?,
        };
        let id = CertId::of(&certificate, &issuer);
        let key = (id.clone(), responder.clone(), verifies);
        Ok(shared(key, || OcspStaple {
            id,
            issuer,
            responder,
            signer: match verifies {
                true => SignerPolicy::Entitled,
                false => SignerPolicy::Anybody,
            },
            send,
            state: Mutex::default(),
        }))
    }

    /// The certified key with the present response; `None` if there is no valid one.
    pub(in super::super) fn stapled_key(
        &self,
        key: &Arc<CertifiedKey>,
    ) -> Option<Arc<CertifiedKey>> {
        let held = self.lock().answer.clone()?;
        if held.until < now() {
            return None;
        }
        let mut made = held.key.lock();
        if let Some((of, stapled)) = &*made
            // Another key: the configuration was reloaded, and the copy must be built again.
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

    /// Sends a request on this loop if it is time to. Failures go to `log`.
    pub(in super::super) fn refresh_if_due(
        self: &Arc<Self>,
        network: impl FnOnce() -> OcspResolver,
        log: impl FnOnce(String) + 'static,
    ) {
        let mut state = self.lock();
        if state.busy || now() < state.due {
            return;
        }
        state.busy = true;
        // Not held while the task is created: every handshake takes this lock.
        drop(state);
        let asking = StapleFetch(Arc::clone(self));
        let network = network();
        rt::spawn(async move {
            if let Err(why) = asking.0.fetch(network).await {
                log(why);
            }
        });
    }

    async fn fetch(&self, resolver: OcspResolver) -> Result<(), String> {
        let asked = (self.send)(self.responder.clone(), self.id.encode_request(), resolver);
        let bytes = rt::timeout(PATIENCE, asked)
            .await
            .unwrap_or_else(|_| Err("OCSP responder timed out".to_owned()))?;
        let OcspAnswer { status, until } =
            message::verify_response(&bytes, &self.id, &self.issuer, self.signer, now())?;
        let mut state = self.lock();
        if status != CertStatus::Good {
            // A response "revoked" would only make clients turn away. It is not sent; whether they accept the
            // certificate without one is up to them.
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
        state.answer = Some(Arc::new(FetchedStaple {
            bytes,
            until,
            key: Mutex::new(None),
        }));
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, StapleState> {
        self.state.lock()
    }
}

/// A request under way. However it ends, the next one is possible after a pause.
struct StapleFetch(Arc<OcspStaple>);

impl Drop for StapleFetch {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.busy = false;
        state.due = state.due.max(now() + PAUSE);
    }
}

/// The shared state for this certificate in the process, so that a reload starts with the known response.
fn shared(key: StapleKey, make: impl FnOnce() -> OcspStaple) -> Arc<OcspStaple> {
    static KNOWN: LazyLock<SharedByName<StapleKey, OcspStaple>> =
        LazyLock::new(SharedByName::default);
    KNOWN.get(key, || Arc::new(make()))
}
