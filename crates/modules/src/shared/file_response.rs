//! The response for an open file: what static files, precompressed files, `flv` and `mp4` share.

use http::content_identity::{ContentIdentity, FileIdentity};
use http::files::OpenFile;
use http::response_body::ResponseBody;
use http::{HandlerOutcome, Request};

/// Makes an open regular file the response: 200 with validators, the media type of the request's
/// path, and the content. Filters may still turn it into a 304, a range or a compressed response.
pub(crate) fn respond_with_file(request: &mut Request, found: OpenFile) -> HandlerOutcome {
    let (length, modified) = (found.length(), found.modified());
    let location = request.site.location(request.location);
    let has_etag = location.core.etag;
    // Only where a filter asks: it is a copy of seven numbers, and most locations send files as they are.
    if location.pipeline.identifies_content {
        let identity = FileIdentity::of(&found.metadata);
        request.out.identity = Some(Box::new(ContentIdentity::File(identity)));
    }
    request.out.status = 200;
    request.out.last_modified = Some(modified);
    if has_etag {
        let etag = request.out.new_etag();
        proto::etag::write_file(modified, length, etag);
    }
    // `X-Accel-Redirect` keeps the type that the application named.
    if request.out.content_type.is_empty() {
        http::content_type::set_content_type(request);
    }
    // Permission for the range filter; a filter that changes the content takes it back.
    request.out.transforms.ranges = true;
    // Small files can come with their content from the open file cache; others stay descriptors
    // down to `sendfile`.
    request.out.body = match (found.content, found.file) {
        (Some(content), _) => ResponseBody::bytes(content),
        (None, Some(file)) => ResponseBody::file(file, 0, length),
        (None, None) => ResponseBody::Empty,
    };
    HandlerOutcome::Respond
}
