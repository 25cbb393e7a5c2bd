//! The response that a file is: what `static`, `gzip_static` and `random_index` have in common.

use http::body::Body;
use http::files::OpenFile;
use http::{Outcome, Request};

/// Makes an open regular file the response: 200 with its validators, its type by the request's path, its content. It
/// may still become a 304, a part of it, or compressed.
pub(crate) fn respond(request: &mut Request, found: OpenFile) -> Outcome {
    let (length, modified) = (found.length(), found.modified());
    let has_etag = request.site.location(request.location).core.etag;
    request.out.status = 200;
    request.out.last_modified = Some(modified);
    if has_etag {
        let etag = request.out.new_etag();
        proto::etag::write_file(modified, length, etag);
    }
    // `X-Accel-Redirect` keeps the type that the application named.
    if request.out.content_type.is_empty() {
        http::types::set_content_type(request);
    }
    request.out.transforms.ranges = true;
    request.out.body = match (found.content, found.file) {
        (Some(content), _) => Body::bytes(content),
        (None, Some(file)) => Body::file(file, 0, length),
        (None, None) => Body::Empty,
    };
    Outcome::Respond
}
