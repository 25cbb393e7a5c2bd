//! Conditional requests (RFC 9110, section 13): 304 if the client has the current representation,
//! 412 if it is not the one that the client expects.
//!
//! It runs first of all filters, so that the others see what will be sent. Every would-be 200 is
//! evaluated, including those of `return` and scripts, unless the conditions have been passed on to
//! an upstream (`transforms.unconditional`).
//!
//! Entity tags take precedence over dates, and a response without a validator meets no condition
//! (section 13.2.2); in nginx all conditions of a request have to hold.

use http::core::IfModifiedSince as Setting;
use http::response_body::ResponseBody;
use http::{FilterVerdict, HttpModule, Request};
use proto::KnownField;
use proto::conditional::{self, IfModifiedSinceMode, PreconditionOutcome, Validators};
use proto::message::Method;

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "not_modified",
    doc: "Handles conditional requests.",
    filter: Some(check_conditions),
    filters_for_members: true,
    explain: http::module::ModuleExplain::Runs(&[]),
    ..HttpModule::EMPTY
};

/// The fields that make a request conditional.
const CONDITIONS: [KnownField; 4] = [
    KnownField::IfModifiedSince,
    KnownField::IfNoneMatch,
    KnownField::IfUnmodifiedSince,
    KnownField::IfMatch,
];

/// The header filter. Conditions apply to what would otherwise succeed, and not to the methods that
/// select no representation (RFC 9110, section 13.2.1).
fn check_conditions(request: &mut Request) -> FilterVerdict {
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
        return FilterVerdict::Pass;
    }
    let dates = match request
        .site
        .location(request.location)
        .core
        .if_modified_since
    {
        Setting::Off => IfModifiedSinceMode::Off,
        Setting::Exact => IfModifiedSinceMode::Exact,
        Setting::Before => IfModifiedSinceMode::Before,
    };
    let validators = Validators {
        etag: request.out.etag.as_ref().map(|etag| etag.as_slice()),
        last_modified: request.out.last_modified,
    };
    // Only GET and HEAD can be answered with 304 (RFC 9110, sections 13.1.2 and 13.1.3). For other
    // methods a matching `If-None-Match` is 412, and `If-Modified-Since` is ignored.
    let is_read = matches!(request.method, Method::Get | Method::Head);
    match conditional::evaluate(fields, validators, dates) {
        PreconditionOutcome::Proceed => FilterVerdict::Pass,
        PreconditionOutcome::PreconditionFailed => precondition_failed(request),
        PreconditionOutcome::NotModified if !is_read => match fields.has(KnownField::IfNoneMatch) {
            true => precondition_failed(request),
            false => FilterVerdict::Pass,
        },
        PreconditionOutcome::NotModified => {
            not_modified(request);
            FilterVerdict::Pass
        }
    }
}

/// A 412. The handler's fields describe content that is not sent.
fn precondition_failed(request: &mut Request) -> FilterVerdict {
    request.out.fields.clear();
    FilterVerdict::Status(412)
}

/// Turns the response into a 304 (RFC 9110, section 15.4.5): fields about the content that is not
/// sent are dropped, fields about the representation that the client has stay.
fn not_modified(request: &mut Request) {
    let out = &mut request.out;
    out.status = 304;
    out.reason = None;
    out.type_not_sent = std::mem::take(&mut out.content_type);
    out.charset.clear();
    out.content_length = None;
    // Content-changing filters must not take the empty body for the known length of the
    // representation.
    out.transforms.unannounced_length = true;
    out.body = ResponseBody::Empty;
    out.identity = None;
    out.transforms.ranges = false;
    out.fields.remove_known(KnownField::AcceptRanges);
    out.fields.remove_known(KnownField::ContentEncoding);
}
