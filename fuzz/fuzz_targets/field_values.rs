//! The grammars of single fields: no panic, and sound results.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proto::cache_control::CacheControl;
use proto::range::{SelectedRanges, parse, parse_content_range};
use proto::{accept_encoding, conditional, cookie, date, etag, form, host, mime};

fuzz_target!(|data: &[u8]| {
    let Some((&length, value)) = data.split_first() else {
        return;
    };
    let length = u64::from(length);
    let ranges = match parse(value, length, None) {
        SelectedRanges::Ignore | SelectedRanges::Unsatisfiable => Vec::new(),
        SelectedRanges::One(range) => vec![range],
        SelectedRanges::Many(ranges) => ranges,
    };
    assert!(
        ranges
            .iter()
            .all(|range| range.start < range.end && range.end <= length)
    );
    assert!(
        ranges
            .iter()
            .map(|range| range.end - range.start)
            .sum::<u64>()
            <= length
    );
    let _ = parse_content_range(value);
    if let Some(seconds) = date::parse(value) {
        let mut text = Vec::new();
        date::write_http(seconds, &mut text);
        assert_eq!(date::parse(&text), Some(seconds));
    }
    let _ = CacheControl::parse(std::iter::once(value));
    assert!(accept_encoding::weight(value, b"gzip").is_none_or(|weight| weight <= 1000));
    let _ = etag::list_has(value, |_| false);
    let tagged = conditional::Validators {
        etag: Some(b"\"x\""),
        last_modified: Some(0),
    };
    let _ = conditional::if_range(value, tagged);
    let _ = (
        mime::essence(value),
        mime::charset(value),
        form::find(value, b"a"),
        cookie::set_cookie_value(value, b"a"),
    );
    if let Ok(host) = host::parse(value) {
        assert!(!host.name.is_empty() && !host.name.ends_with(b".") && !host.name.contains(&b'/'));
    }
});
