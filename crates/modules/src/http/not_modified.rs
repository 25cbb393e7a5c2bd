//! Conditional requests (RFC 9110, section 13): 304 when the client has it already, 412 when it is not what it thinks.
//!
//! It runs first of all filters, so that those after it see what will be sent. Whatever would be a 200 is judged, also
//! what `return` or a script says, unless the conditions went to an upstream (`transforms.unconditional`).

use http::body::Body;
use http::core::location::IfModifiedSince as Setting;
use http::{Module, Request, Verdict};
use proto::Known;
use proto::conditional::{self, IfModifiedSince, Outcome, Validators};
use proto::h1::Method;

pub(crate) static MODULE: Module = Module {
    name: "not_modified",
    doc: "Handles conditional requests.",
    filter: Some(judge),
    ..Module::EMPTY
};

/// The fields that make a request conditional.
const CONDITIONS: [Known; 4] = [
    Known::IfModifiedSince,
    Known::IfNoneMatch,
    Known::IfUnmodifiedSince,
    Known::IfMatch,
];

fn judge(request: &mut Request) -> Verdict {
    let fields = &request.head.wire.fields;
    if request.out.status != 200
        || request.out.transforms.unconditional
        || request.is_subrequest()
        || !CONDITIONS.iter().any(|known| fields.has(*known))
        || matches!(
            request.method,
            Method::Options | Method::Trace | Method::Connect
        )
    {
        return Verdict::Pass;
    }
    let dates = match request
        .site
        .location(request.location)
        .core
        .if_modified_since
    {
        Setting::Off => IfModifiedSince::Off,
        Setting::Exact => IfModifiedSince::Exact,
        Setting::Before => IfModifiedSince::Before,
    };
    let validators = Validators {
        etag: request.out.etag.as_ref().map(|etag| etag.as_slice()),
        last_modified: request.out.last_modified,
    };
    // A 304 is for who reads (RFC 9110, sections 13.1.2 and 13.1.3).
    let is_read = matches!(request.method, Method::Get | Method::Head);
    match conditional::evaluate(fields, validators, dates) {
        Outcome::Proceed => Verdict::Pass,
        Outcome::PreconditionFailed => failed(request),
        Outcome::NotModified if !is_read => match fields.has(Known::IfNoneMatch) {
            true => failed(request),
            false => Verdict::Pass,
        },
        Outcome::NotModified => {
            not_modified(request);
            Verdict::Pass
        }
    }
}

/// A 412: what the handler said is about content that is not sent.
fn failed(request: &mut Request) -> Verdict {
    request.out.fields.clear();
    Verdict::Status(412)
}

/// Makes the response a 304: what describes the content that is not sent goes, what describes the one that the client
/// has stays.
fn not_modified(request: &mut Request) {
    let out = &mut request.out;
    out.status = 304;
    out.reason = None;
    out.type_not_sent = std::mem::take(&mut out.content_type);
    out.charset.clear();
    out.content_length = None;
    // Filters that would have changed the content do not take it for known to be empty.
    out.transforms.unannounced_length = true;
    out.body = Body::Empty;
    out.transforms.ranges = false;
    out.fields.remove_known(Known::AcceptRanges);
    out.fields.remove_known(Known::ContentEncoding);
}
