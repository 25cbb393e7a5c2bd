//! memcached's answer is judged only once its line is complete, and an escaped key can not leave its line.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proto::memcached::{MemcachedHead, escape_key, read_head};

fuzz_target!(|data: &[u8]| {
    let Some((&cut, wire)) = data.split_first() else {
        return;
    };
    let cut = usize::from(cut).min(wire.len());
    let key = escape_key(&wire[..cut]);
    assert!(key.iter().all(|&byte| byte > b' '));
    match read_head(wire, &key) {
        Ok(MemcachedHead::Partial) => assert!(!wire.contains(&b'\n')),
        Ok(MemcachedHead::Missing(used) | MemcachedHead::Value { used, .. }) => {
            assert_eq!(wire[used - 1], b'\n')
        }
        Err(line) => assert!(line.starts_with(b"memcached sent invalid ")),
    }
});
