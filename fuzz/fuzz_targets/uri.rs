//! A normal path has no way up, and normalising it again changes nothing.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proto::uri::{EscapeClass, SlashMerging, escape, normalize_path, parse_internal};

fuzz_target!(|target: &[u8]| {
    for slashes in [SlashMerging::Merge, SlashMerging::Keep] {
        let mut path = Vec::new();
        let Ok(found) = normalize_path(target, slashes, &mut path) else {
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
        escape(EscapeClass::Uri, &path, &mut escaped);
        if !path.contains(&0) {
            let mut again = Vec::new();
            assert!(normalize_path(&escaped, slashes, &mut again).is_ok());
            assert_eq!(again, path);
        }
    }
    let mut path = Vec::new();
    if parse_internal(target, &mut path).is_ok() {
        assert!(path.split(|&b| b == b'/').all(|segment| segment != b".."));
    }
});
