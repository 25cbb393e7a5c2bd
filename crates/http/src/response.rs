//! A response between its handler and the wire: what the filters read and change.
//!
//! What filters decide on (type, length, validators) has fields of its own; everything else is in `fields`, in the
//! order in which it was added. The connection turns both into the head of its protocol.

use bstr::{BString, ByteSlice};
use proto::fields::Fields;

use crate::content_identity::ContentIdentity;
use crate::response_body::ResponseBody;

/// A response that a handler has made.
#[derive(Default)]
pub struct Response {
    /// The status code; 0 before there is one.
    pub status: u16,
    /// The reason phrase where it is not the usual one of the status.
    pub reason: Option<BString>,
    /// The status line came from an upstream server. Its 204 or 304 may describe content that it does not carry.
    pub is_upstream_status: bool,
    /// The media type, without charset; empty if the response has none.
    pub content_type: BString,
    /// The value of `; charset=`; empty if there is none.
    pub charset: BString,
    /// The field as the upstream server wrote it, if we would write it differently, with the `content_type` and
    /// `charset` that were read from it. It is used for as long as those two are unchanged.
    pub content_type_as_sent: Option<Box<(BString, BString, BString)>>,
    /// The media type of the content that a 304 describes.
    pub type_not_sent: BString,
    /// The content's length, if the body itself does not know it: for a response to HEAD, or a proxied one.
    pub content_length: Option<u64>,
    /// The time of the last change, in seconds since 1970.
    pub last_modified: Option<i64>,
    /// `last_modified` was set by an upstream server or the configuration, and is sent whatever the status is. The time
    /// of a file is sent only with a response that shows the file.
    pub last_modified_was_said: bool,
    /// The entity tag with its quotes, and with `W/` if it is weak.
    pub etag: Option<BString>,
    /// The buffer of an earlier entity tag, to be reused.
    pub(crate) spare_etag: BString,
    /// The redirect target as the handler set it. A path is made absolute when the head is written.
    pub location: Option<BString>,
    /// All other header fields.
    pub fields: Fields,
    /// Fields that must not be added: the upstream server's would have been passed on, but it sent none; or they were
    /// removed.
    pub omitted: OmittedFields,
    /// The trailers.
    pub trailers: Fields,
    /// The content.
    pub body: ResponseBody,
    /// What the content is a copy of, byte for byte; only in locations whose filters ask
    /// ([`HttpModule::identifies_content`](crate::HttpModule::identifies_content)). `None` as soon as a filter has changed it.
    pub identity: Option<Box<ContentIdentity>>,
    /// What filters may still do to it.
    pub transforms: AllowedTransforms,
}

/// Fields that a response usually has and this one must not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OmittedFields {
    /// `Server`.
    pub server: bool,
    /// `Date`.
    pub date: bool,
    /// `Expires`, even if `expires` is configured.
    pub expires: bool,
}

/// Which generic transformations a response still allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllowedTransforms {
    /// A `Range` of the request may be applied: the content is byte for byte what its handler provides.
    pub ranges: bool,
    /// The request's conditions have been judged by an upstream server, and must not be judged again.
    pub unconditional: bool,
    /// The content must not be compressed on the fly.
    pub keep_encoding: bool,
    /// The content's length is known only because all of it has arrived; its head did not name it. Decisions by length
    /// treat it as unknown, so that they do not depend on how fast the content arrived.
    pub unannounced_length: bool,
    /// Only a single range is answered, as `slice` and the cache need it.
    pub single_range: bool,
}

impl Response {
    /// Empties the response for the next one, and keeps its memory.
    pub fn clear(&mut self) {
        self.status = 0;
        self.reason = None;
        self.is_upstream_status = false;
        self.content_type.clear();
        self.charset.clear();
        self.content_type_as_sent = None;
        self.type_not_sent.clear();
        self.content_length = None;
        self.last_modified = None;
        self.last_modified_was_said = false;
        if let Some(etag) = self.etag.take() {
            self.spare_etag = etag;
        }
        self.location = None;
        self.fields.clear();
        self.omitted = OmittedFields::default();
        self.trailers.clear();
        self.body = ResponseBody::Empty;
        self.forget_identity();
        self.transforms = AllowedTransforms::default();
    }

    /// Nothing asks for the identity any more. Mostly there is none, and a look costs less than to drop one.
    #[inline]
    pub(crate) fn forget_identity(&mut self) {
        if self.identity.is_some() {
            self.identity = None;
        }
    }

    /// Takes over a `Content-Type` that an upstream server wrote. The charset is separated, so that filters see both;
    /// as long as no filter changes them, the value is sent exactly as it was received.
    pub fn set_content_type(&mut self, value: &[u8]) {
        let (media_type, charset) = split_charset(value);
        self.content_type.clear();
        self.content_type.extend_from_slice(media_type);
        if charset.is_empty() {
            return;
        }
        self.charset = charset;
        let mut canonical = Vec::with_capacity(value.len() + 1);
        self.write_content_type(&mut canonical);
        if canonical != value {
            self.content_type_as_sent = Some(Box::new((
                value.into(),
                self.content_type.clone(),
                self.charset.clone(),
            )));
        }
    }

    /// Appends the value of `Content-Type`.
    pub fn write_content_type(&self, out: &mut Vec<u8>) {
        if let Some((text, content_type, charset)) = self.content_type_as_sent.as_deref()
            && *content_type == self.content_type
            && *charset == self.charset
        {
            return out.extend_from_slice(text);
        }
        out.extend_from_slice(&self.content_type);
        if !self.charset.is_empty() && !self.content_type.contains_str("charset=") {
            out.extend_from_slice(b"; charset=");
            out.extend_from_slice(&self.charset);
        }
    }

    /// A buffer for a new entity tag, reusing that of an earlier response.
    pub fn new_etag(&mut self) -> &mut Vec<u8> {
        let mut etag = self.etag.take().unwrap_or_default();
        if etag.capacity() == 0 {
            etag = std::mem::take(&mut self.spare_etag);
        }
        etag.clear();
        self.etag.insert(etag)
    }

    /// The content's length, if it is known.
    pub fn length(&self) -> Option<u64> {
        self.content_length.or_else(|| self.body.length())
    }

    /// Whether the head says that there is no content. That none has arrived does not count.
    pub fn is_said_to_be_empty(&self) -> bool {
        self.length() == Some(0) && !self.transforms.unannounced_length
    }

    /// Removes what a response without content (1xx, 204, 304) must not say about it: no `Content-Length` (RFC 9110,
    /// section 8.6). A response that was passed on keeps its media type: a 304 may describe what a 200 would have shown.
    pub(crate) fn drop_content_fields(&mut self) {
        if !self.is_upstream_status {
            self.content_type.clear();
        }
        self.content_length = None;
    }

    /// Must be called by a filter that changes the content: its length becomes unknown, ranges of it make no sense any
    /// more, and a strong validator becomes a weak one (RFC 9110, section 8.8.1).
    pub fn content_changes(&mut self) {
        self.content_length = None;
        self.identity = None;
        // Even if the changed content is short and complete at once, later filters must treat its length as unknown.
        self.transforms.unannounced_length = true;
        self.transforms.ranges = false;
        self.fields.remove(b"Accept-Ranges");
        self.weaken_etag();
    }

    /// Makes the entity tag a weak one. What is none (RFC 9110, section 8.8.3) cannot become one.
    pub fn weaken_etag(&mut self) {
        match &mut self.etag {
            Some(etag) if etag.starts_with(b"\"") => {
                etag.splice(0..0, *b"W/");
            }
            Some(etag) if etag.starts_with(b"W/") => {}
            _ => self.etag = None,
        }
    }

    /// Removes the time of a file from a response that does not show the file: an error page, or the like.
    pub(crate) fn drop_unfit_date(&mut self) {
        if !self.last_modified_was_said && !matches!(self.status, 200 | 206 | 304) {
            self.last_modified = None;
        }
    }

    /// Must be called by a filter whose output has no stable validators at all.
    pub fn drop_validators(&mut self) {
        self.last_modified = None;
        self.etag = None;
    }
}

/// Splits a media type from its charset; further parameters in front of the charset stay with the type.
fn split_charset(value: &[u8]) -> (&[u8], BString) {
    let mut at = 0;
    while let Some(semicolon) = value[at..].find_byte(b';') {
        let end = at + semicolon;
        let parameter = value[end + 1..].trim_start_with(|c| c == ' ');
        if parameter.len() >= 8 && parameter[..8].eq_ignore_ascii_case(b"charset=") {
            let charset = parameter[8..]
                .strip_prefix(b"\"")
                .unwrap_or(&parameter[8..]);
            let charset = charset.strip_suffix(b"\"").unwrap_or(charset);
            return (&value[..end], charset.into());
        }
        at = end + 1;
    }
    (value, BString::default())
}

#[cfg(test)]
mod tests {
    use super::split_charset;

    #[test]
    fn charsets_are_taken_off_media_types() {
        for (value, media_type, charset) in [
            ("text/html", "text/html", ""),
            ("text/html; charset=utf-8", "text/html", "utf-8"),
            ("text/html;charset=\"utf-8\"", "text/html", "utf-8"),
            (
                "multipart/x; boundary=a; charset=b",
                "multipart/x; boundary=a",
                "b",
            ),
            ("text/html;", "text/html;", ""),
            ("text/html; CHARSET=", "text/html", ""),
        ] {
            let (found, text) = split_charset(value.as_bytes());
            assert_eq!(
                (found, text.as_slice()),
                (media_type.as_bytes(), charset.as_bytes()),
                "{value}"
            );
        }
    }
}
