//! The response that a file is: what `static`, `gzip_static` and `random_index` have in common.

use bstr::BString;
use http::body::Body;
use http::files::OpenFile;
use http::{Outcome, Request};

/// Two quotes, a dash, and two numbers of which a usual one has at most 8 hexadecimal digits.
const ETAG_LENGTH: usize = 2 + 1 + 2 * 8;

/// Makes an open regular file the response: 200 with its validators, its type by the request's path, its content. It
/// may still become a 304, a part of it, or compressed.
pub(crate) fn respond(request: &mut Request, found: OpenFile) -> Outcome {
    let (length, modified) = (found.length(), found.modified());
    let has_etag = request.site.location(request.location).core.etag;
    request.out.status = 200;
    request.out.last_modified = Some(modified);
    if has_etag {
        let mut etag = Vec::with_capacity(ETAG_LENGTH);
        proto::etag::write_file(modified, length, &mut etag);
        request.out.etag = Some(BString::from(etag));
    }
    // `X-Accel-Redirect` keeps the type that the application named.
    if request.out.content_type.is_empty() {
        request.out.content_type = http::types::content_type(request);
    }
    request.out.transforms.ranges = true;
    request.out.transforms.conditions = true;
    request.out.body = match found.file {
        Some(file) => Body::file(file, 0, length),
        None => Body::Empty,
    };
    Outcome::Respond
}
