//! The errors of the API: the objects that the commercial nginx's has.

use std::borrow::Cow;

use serde_json::{Value, json};

/// An error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ApiFailure {
    /// The status of the response.
    pub(super) status: u16,
    /// For programs.
    pub(super) code: &'static str,
    /// For people.
    pub(super) text: Cow<'static, str>,
}

impl ApiFailure {
    /// There is nothing under this path.
    pub(super) const PATH_NOT_FOUND: ApiFailure =
        ApiFailure::fixed(404, "PathNotFound", "path not found");
    /// The version is not known.
    pub(super) const UNKNOWN_VERSION: ApiFailure =
        ApiFailure::fixed(404, "UnknownVersion", "unknown version");
    /// Nothing can be changed here.
    pub(super) const METHOD_DISABLED: ApiFailure =
        ApiFailure::fixed(405, "MethodDisabled", "method disabled");
    /// The content is not JSON, or not an object.
    pub(super) const JSON: ApiFailure = ApiFailure::fixed(415, "JsonError", "json error");
    /// The content did not arrive.
    pub(super) const BODY_READ: ApiFailure =
        ApiFailure::fixed(400, "BodyReadError", "reading request body failed");
    /// There is too much of it.
    pub(super) const TOO_LARGE: ApiFailure =
        ApiFailure::fixed(413, "BodyTooLarge", "request body is too large");

    /// An error whose text is always the same.
    pub(super) const fn fixed(status: u16, code: &'static str, text: &'static str) -> ApiFailure {
        ApiFailure {
            status,
            code,
            text: Cow::Borrowed(text),
        }
    }

    /// An error with a text of its own.
    pub(super) fn new(status: u16, code: &'static str, text: impl Into<String>) -> ApiFailure {
        ApiFailure {
            status,
            code,
            text: Cow::Owned(text.into()),
        }
    }

    /// The object.
    pub(super) fn value(&self, request_id: &str) -> Value {
        json!({
            "error": { "status": self.status, "text": self.text, "code": self.code },
            "request_id": request_id,
            "href": "https://nginx.org/en/docs/http/ngx_http_api_module.html",
        })
    }
}
