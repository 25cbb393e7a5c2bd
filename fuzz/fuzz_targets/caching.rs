//! The rules of caches over a response and a request of any bytes: no panic, and sound results.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proto::caching::vary::{self, Vary};
use proto::caching::{
    Freshness, HeuristicLifetime, ReceivedResponse, RequestControl, StaleRules, StoringRequest,
    StoringRules, StoringVerdict, decide_reuse, decide_storing, head_update, invalidated_targets,
    merge_304, response_tags, storable_fields, structured,
};
use proto::{Fields, KnownField};

const NAMES: [KnownField; 14] = [
    KnownField::CacheControl,
    KnownField::CdnCacheControl,
    KnownField::Expires,
    KnownField::Date,
    KnownField::Age,
    KnownField::Vary,
    KnownField::XAccelExpires,
    KnownField::LastModified,
    KnownField::Etag,
    KnownField::Location,
    KnownField::ContentLocation,
    KnownField::Pragma,
    KnownField::AcceptLanguage,
    KnownField::Connection,
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
    let rules = StoringRules {
        ignore: options >> 3,
        revalidate: options & 1 != 0,
        obey_must_revalidate: options & 2 != 0,
        heuristic: (options & 4 != 0).then_some(HeuristicLifetime {
            percent: 10,
            max_s: 1000,
        }),
        ..StoringRules::default()
    };
    let response = ReceivedResponse {
        status: 200 + u16::from(status) * 2,
        fields: &response_fields,
        requested_ms: 1_700_000_000_000,
        received_ms: 1_700_000_001_000,
    };
    let now_ms = response.received_ms + u64::from(now) * 1000;
    if let StoringVerdict::Store(freshness) =
        decide_storing(&response, &StoringRequest::default(), &rules, None)
    {
        assert_eq!(
            Freshness::from_bytes(&freshness.to_bytes()),
            Some(freshness)
        );
        assert!(freshness.age_s(now_ms) >= freshness.initial_age_s);
        let _ = freshness.ttl_s(now_ms);
        let client = RequestControl::parse(&request);
        let _ = decide_reuse(&freshness, now_ms, StaleRules::default(), Some(&client));
    }
    let _ = Freshness::from_bytes(rest);
    if let Vary::Names(names) = vary::of(&response_fields) {
        assert_eq!(
            vary::variant_key_values(&names, &request).len(),
            names.len()
        );
    }
    assert!(storable_fields(&response_fields).len() <= response_fields.len());
    let _ = merge_304(&response_fields, &request);
    let _ = head_update(&response_fields, &request, Some(5));
    for target in invalidated_targets(b"host", b"/a/b?c", &response_fields) {
        assert!(!target.contains(&b'#'));
    }
    let _ = response_tags(&response_fields);
    let _ = structured::dictionary(rest, |name, _| assert!(!name.is_empty()));
});
