//! A PROXY header is the same in growing prefixes, and no larger than its bound.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proto::proxy_protocol::{MAX_HEADER, ProxyHeaderStatus, parse};

fuzz_target!(|data: &[u8]| {
    let Some((&cut, wire)) = data.split_first() else {
        return;
    };
    let whole = parse(wire);
    let first = parse(&wire[..usize::from(cut).min(wire.len())]);
    match (&first, &whole) {
        (Ok(ProxyHeaderStatus::Partial), _) => {}
        (Ok(ProxyHeaderStatus::Complete(..)), _) => assert_eq!(first, whole),
        (Err(_), whole) => assert!(whole.is_err()),
    }
    if let Ok(ProxyHeaderStatus::Complete(length, header)) = whole {
        assert!(length <= wire.len().min(MAX_HEADER));
        for name in ["alpn", "ssl", "ssl_cn", "ssl_verify", "0xff"] {
            let _ = header.as_ref().map(|header| header.tlv(name));
        }
    }
});
