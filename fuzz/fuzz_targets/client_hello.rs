//! A client hello is the same in growing prefixes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proto::client_hello::{ClientHelloReader, HelloProgress};

fuzz_target!(|data: &[u8]| {
    let Some((&cut, wire)) = data.split_first() else {
        return;
    };
    let whole = ClientHelloReader::default().read(wire);
    let mut reader = ClientHelloReader::default();
    match reader.read(&wire[..usize::from(cut).min(wire.len())]) {
        HelloProgress::Partial => assert_eq!(reader.read(wire), whole),
        done => assert_eq!(done, whole),
    }
    if let HelloProgress::Complete(hello) = whole {
        assert!(hello.server_name.len() + hello.alpn_protocols.len() <= wire.len());
        let _ = hello.version_name();
    }
});
