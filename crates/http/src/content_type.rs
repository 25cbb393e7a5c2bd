//! The media type of the file that a request's path names: by `types`, else `default_type`.

use bstr::BString;

use crate::request::Request;

/// Sets the response's media type to that of the request's path.
pub fn set_content_type(request: &mut Request) {
    let core = &request.site.location(request.location).core;
    let media_type = core
        .types
        .of_path(&request.uri.path)
        .unwrap_or(&core.default_type);
    request.out.content_type.clear();
    request.out.content_type.extend_from_slice(media_type);
}

/// The media type of the request's path.
pub fn content_type(request: &Request) -> BString {
    let core = &request.site.location(request.location).core;
    core.types
        .of_path(&request.uri.path)
        .unwrap_or(&core.default_type)
        .clone()
}
