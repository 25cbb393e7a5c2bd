//! The cryptography library of TLS.

use std::cell::Cell;
use std::sync::{Arc, OnceLock};

use rustls::crypto::{CryptoProvider, GetRandomFailed, WebPkiSupportedAlgorithms};

/// Lets the library collect its entropy. The first time in a process, and on each thread, it measures the jitter of
/// the clock for many milliseconds. That should happen at the start and not while the first client waits.
pub fn warm_up() {
    rt::local! {
        static WARM: Cell<bool> = const { Cell::new(false) };
    }
    if !WARM.replace(true) {
        // A failure is not reported here: every handshake fails with it and says why.
        let _ = fill_random(&mut [0; 32]);
    }
}

/// Fills `bytes` with random bytes from the source that the handshakes use: keys, nonces and session numbers then
/// depend on one provider.
pub fn fill_random(bytes: &mut [u8]) -> Result<(), GetRandomFailed> {
    provider().secure_random.fill(bytes)
}

/// The library: AWS-LC, which was measured against ring in `docs/design/2026-11-21-tls.md`.
pub(super) fn provider() -> &'static Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    PROVIDER.get_or_init(|| Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
}

/// The signature algorithms that can be verified.
pub(super) fn algorithms() -> WebPkiSupportedAlgorithms {
    provider().signature_verification_algorithms
}
