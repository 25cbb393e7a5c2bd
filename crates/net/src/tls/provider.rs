//! The cryptography that TLS runs on.

use std::cell::Cell;
use std::sync::{Arc, OnceLock};

use rustls::crypto::{CryptoProvider, GetRandomFailed, WebPkiSupportedAlgorithms};

/// Has the cryptography collect its randomness. The first time in a process and on a thread it measures the jitter of the
/// clock for that, for many milliseconds: it is done before clients come, not while the first one waits.
pub fn warm_up() {
    rt::local! {
        static WARM: Cell<bool> = const { Cell::new(false) };
    }
    if !WARM.replace(true) {
        // Without randomness every handshake fails, which says why.
        let _ = fill_random(&mut [0; 32]);
    }
}

/// Fills `bytes` with what the cryptography takes for random: keys, nonces and numbers of sessions come from where
/// rustls takes what it draws for a handshake, so that one provider stands for all of it.
pub fn fill_random(bytes: &mut [u8]) -> Result<(), GetRandomFailed> {
    provider().secure_random.fill(bytes)
}

/// The cryptography: AWS-LC, which was measured against ring in `docs/design/2026-11-21-tls.md`.
pub(super) fn provider() -> &'static Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    PROVIDER.get_or_init(|| Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
}

/// The signatures that can be checked.
pub(super) fn algorithms() -> WebPkiSupportedAlgorithms {
    provider().signature_verification_algorithms
}
