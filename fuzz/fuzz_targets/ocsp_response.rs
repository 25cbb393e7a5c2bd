//! What an OCSP responder answers does not make us panic, and nothing is believed that nobody has signed.
#![no_main]

use libfuzzer_sys::fuzz_target;

/// An authority whose key nobody has any more.
const ISSUER: &[u8] = include_bytes!("../data/issuer.der");

fuzz_target!(|data: &[u8]| {
    assert!(
        !net::tls::ocsp::is_believed(data, ISSUER),
        "an answer that the authority has not signed"
    );
});
