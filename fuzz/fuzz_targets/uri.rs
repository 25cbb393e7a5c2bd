//! A normal path has no way up, and normalising it again changes nothing.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proto::uri::{Escape, Slashes, escape, normalize, parse_internal};

fuzz_target!(|target: &[u8]| {
    for slashes in [Slashes::Merge, Slashes::Keep] {
        let mut path = Vec::new();
        let Ok(found) = normalize(target, slashes, &mut path) else {
            assert!(path.is_empty());
            continue;
        };
        assert!(path.starts_with(b"/") && !path.contains(&0) || target.contains(&0));
        assert!(
            path.split(|&b| b == b'/')
                .all(|segment| segment != b".." && segment != b".")
        );
        assert!(found.args.end <= target.len());
        let mut escaped = Vec::new();
        escape(Escape::Uri, &path, &mut escaped);
        if !path.contains(&0) {
            let mut again = Vec::new();
            assert!(normalize(&escaped, slashes, &mut again).is_ok());
            assert_eq!(again, path);
        }
    }
    let mut path = Vec::new();
    if parse_internal(target, &mut path).is_ok() {
        assert!(path.split(|&b| b == b'/').all(|segment| segment != b".."));
    }
});
