//! The rules of caches over a response and a request of any bytes: no panic, and sound results.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proto::caching::vary::{self, Vary};
use proto::caching::{
    Asked, Freshness, Heuristic, RequestControl, Response, Rules, StaleRules, Verdict, head_update,
    judge, keep, merge_304, reuse, structured, tags, targets,
};
use proto::{Fields, Known};

const NAMES: [Known; 14] = [
    Known::CacheControl,
    Known::CdnCacheControl,
    Known::Expires,
    Known::Date,
    Known::Age,
    Known::Vary,
    Known::XAccelExpires,
    Known::LastModified,
    Known::Etag,
    Known::Location,
    Known::ContentLocation,
    Known::Pragma,
    Known::AcceptLanguage,
    Known::Connection,
];

/// Lines of a byte that chooses the name and a value.
fn fields(data: &[u8]) -> Fields {
    let mut fields = Fields::new();
    for line in data.split(|&b| b == b'\n').take(32) {
        if let Some((&name, value)) = line.split_first() {
            fields.push_known(NAMES[usize::from(name) % NAMES.len()], value);
        }
    }
    fields
}

fuzz_target!(|data: &[u8]| {
    let Some((&[options, status, now], rest)) = data.split_first_chunk() else {
        return;
    };
    let half = rest.len() / 2;
    let (response_fields, request) = (fields(&rest[..half]), fields(&rest[half..]));
    let rules = Rules {
        ignore: options >> 3,
        revalidate: options & 1 != 0,
        obey_must_revalidate: options & 2 != 0,
        heuristic: (options & 4 != 0).then_some(Heuristic {
            percent: 10,
            max_s: 1000,
        }),
        ..Rules::default()
    };
    let response = Response {
        status: 200 + u16::from(status) * 2,
        fields: &response_fields,
        requested_ms: 1_700_000_000_000,
        received_ms: 1_700_000_001_000,
    };
    let now_ms = response.received_ms + u64::from(now) * 1000;
    if let Verdict::Store(freshness) = judge(&response, &Asked::default(), &rules, None) {
        assert_eq!(
            Freshness::from_bytes(&freshness.to_bytes()),
            Some(freshness)
        );
        assert!(freshness.age_s(now_ms) >= freshness.initial_age_s);
        let _ = freshness.ttl_s(now_ms);
        let client = RequestControl::parse(&request);
        let _ = reuse(&freshness, now_ms, StaleRules::default(), Some(&client));
    }
    let _ = Freshness::from_bytes(rest);
    if let Vary::Names(names) = vary::of(&response_fields) {
        assert_eq!(vary::select(&names, &request).len(), names.len());
    }
    assert!(keep(&response_fields).len() <= response_fields.len());
    let _ = merge_304(&response_fields, &request);
    let _ = head_update(&response_fields, &request, Some(5));
    for target in targets(b"host", b"/a/b?c", &response_fields) {
        assert!(!target.contains(&b'#'));
    }
    let _ = tags(&response_fields);
    let _ = structured::dictionary(rest, |name, _| assert!(!name.is_empty()));
});
