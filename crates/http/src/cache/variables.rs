//! The variables `$upstream_cache_…`.

use conf::Variable;

use super::fetch_fields::FetchFields;
use crate::request::Request;

/// The variables. They are volatile, because their values change while the request is being answered.
pub static VARIABLES: &[Variable<Request>] = &[
    Variable::new(
        "upstream_cache_status",
        |request: &mut Request, out| {
            let status = request.upstream.get().and_then(|record| record.cache);
            status.is_some_and(|status| {
                out.extend_from_slice(status.nginx_word().as_bytes());
                true
            })
        },
        "What the cache did: MISS, BYPASS, EXPIRED, STALE, UPDATING, REVALIDATED or HIT.",
    )
    .volatile(),
    Variable::new(
        "upstream_cache_last_modified",
        |request: &mut Request, out| {
            let ask = request.state::<FetchFields>();
            let value = ask.and_then(|ask| ask.last_modified.as_ref());
            value.is_some_and(|value| {
                out.extend_from_slice(value);
                true
            })
        },
        "The `Last-Modified` header of the stale object being revalidated.",
    )
    .volatile(),
    Variable::new(
        "upstream_cache_etag",
        |request: &mut Request, out| {
            let ask = request.state::<FetchFields>();
            let value = ask.and_then(|ask| ask.etag.as_ref());
            value.is_some_and(|value| {
                out.extend_from_slice(value);
                true
            })
        },
        "The `ETag` header of the stale object being revalidated.",
    )
    .volatile(),
    Variable::new(
        "upstream_cache_reason",
        |request: &mut Request, out| {
            let reason = request.upstream.get().map(|record| &record.cache_reason);
            reason.filter(|reason| !reason.is_empty()).is_some_and(|reason| {
                out.extend_from_slice(reason.as_bytes());
                true
            })
        },
        "Why the response was not stored, or not looked for: the rule, and the line that has it, such as `set-cookie` or \
         `bypass (nginx.conf:31)`.",
    )
    .volatile(),
    Variable::new(
        "upstream_cache_age",
        |request: &mut Request, out| {
            let record = request.upstream.get();
            let Some(age) = record.and_then(|record| record.cache_age_s) else {
                return false;
            };
            base::text::write_number(age.into(), out);
            true
        },
        "The age of the object that was served, in seconds.",
    )
    .volatile(),
];
