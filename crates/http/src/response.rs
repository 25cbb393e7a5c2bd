//! A response between its handler and the wire: what the filters read and change.
//!
//! The fields that filters decide on (type, length, validators) are fields of the struct; everything else stands in
//! `fields` in the order in which it was added. The connection turns both into the head of its protocol.

use bstr::{BString, ByteSlice};
use proto::fields::Fields;

use crate::body::Body;

/// A response that a handler has made.
#[derive(Default)]
pub struct Response {
    /// The status code; 0 before there is one.
    pub status: u16,
    /// The reason phrase where it is not the usual one of the status.
    pub reason: Option<BString>,
    /// The status line is that of a server behind: a 204 or 304 of it says what its content would be, as it said.
    pub passed_on: bool,
    /// The media type, without charset; empty when the response has none.
    pub content_type: BString,
    /// What `; charset=` says; empty when nothing.
    pub charset: BString,
    /// Type and charset as an upstream wrote them, where we would write them otherwise; then what `content_type` and
    /// `charset` were. It counts as long as they are that.
    pub content_type_as_sent: Option<(BString, BString, BString)>,
    /// The media type of the content that a 304 is about.
    pub type_not_sent: BString,
    /// The content's length when it differs from what the body itself knows: a response to HEAD, a proxied one.
    pub content_length: Option<u64>,
    /// Seconds since 1970 of the last change.
    pub last_modified: Option<i64>,
    /// An upstream or the configuration said when the last change was: that goes out whatever the status is. What a file
    /// says is about a response that shows the file.
    pub last_modified_was_said: bool,
    /// The entity tag with its quotes, and `W/` when weak.
    pub etag: Option<BString>,
    /// The memory of an entity tag that is gone.
    pub(crate) spare_etag: BString,
    /// The redirect target as the handler gave it; made absolute at the wire when it is a path.
    pub location: Option<BString>,
    /// All other header fields.
    pub fields: Fields,
    /// Fields that are not ours to say: an upstream's was to be passed on, and it sent none; or they were taken away.
    pub unsaid: Unsaid,
    /// Fields that follow the content.
    pub trailers: Fields,
    /// The content.
    pub body: Body,
    /// What may still be done to it on its way.
    pub transforms: Transforms,
}

/// Fields that a response usually has and this one has not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unsaid {
    /// `Server`.
    pub server: bool,
    /// `Date`.
    pub date: bool,
    /// `Expires`, where `expires` has a time for it.
    pub expires: bool,
}

/// Which generic transformations a response still allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transforms {
    /// A `Range` of the request may be applied: the content is what its handler says it is, byte by byte.
    pub ranges: bool,
    /// The request's conditions were for somebody else, who has seen them: an upstream.
    pub unconditional: bool,
    /// The reason for which the on-the-fly compression must leave this response alone.
    pub keep_encoding: bool,
    /// The content's length is known because all of it has come, not because its head named it: what decides by the
    /// length of a response takes it for unknown, so that it does not depend on how the content came.
    pub unannounced_length: bool,
    /// An only-one-range answer, as `slice` and caches want it.
    pub single_range: bool,
}

impl Response {
    /// Forgets everything, but keeps the memory.
    pub fn clear(&mut self) {
        self.status = 0;
        self.reason = None;
        self.passed_on = false;
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
        self.unsaid = Unsaid::default();
        self.trailers.clear();
        self.body = Body::Empty;
        self.transforms = Transforms::default();
    }

    /// Takes the value of `Content-Type` that another party wrote: the charset is known as such, so that filters see both,
    /// and what goes out is the text as it was.
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
            self.content_type_as_sent = Some((
                value.into(),
                self.content_type.clone(),
                self.charset.clone(),
            ));
        }
    }

    /// Appends the value of `Content-Type`.
    pub fn write_content_type(&self, out: &mut Vec<u8>) {
        if let Some((text, content_type, charset)) = &self.content_type_as_sent
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

    /// An entity tag to be written, for a response of a connection that has sent others before.
    pub fn new_etag(&mut self) -> &mut Vec<u8> {
        let mut etag = self.etag.take().unwrap_or_default();
        if etag.capacity() == 0 {
            etag = std::mem::take(&mut self.spare_etag);
        }
        etag.clear();
        self.etag.insert(etag)
    }

    /// The content's length when it is known.
    pub fn length(&self) -> Option<u64> {
        self.content_length.or_else(|| self.body.length())
    }

    /// Whether there is known to be no content: by the length that was said, and not by what has come.
    pub fn is_said_to_be_empty(&self) -> bool {
        self.length() == Some(0) && !self.transforms.unannounced_length
    }

    /// A filter changes the content from here on: its length is unknown, ranges make no sense any more, and a strong
    /// validator becomes a weak one (RFC 9110, section 8.8.1).
    pub fn content_changes(&mut self) {
        self.content_length = None;
        self.transforms.unannounced_length = true;
        self.transforms.ranges = false;
        self.fields.remove(b"Accept-Ranges");
        self.weaken_etag();
    }

    /// Makes the entity tag a weak one.
    pub fn weaken_etag(&mut self) {
        if let Some(etag) = &mut self.etag
            && !etag.starts_with(b"W/")
        {
            etag.splice(0..0, *b"W/");
        }
    }

    /// Takes away the time of a file where the response does not show the file: it is the page of an error, or the like.
    pub(crate) fn drop_unfit_date(&mut self) {
        if !self.last_modified_was_said && !matches!(self.status, 200 | 206 | 304) {
            self.last_modified = None;
        }
    }

    /// A filter changes the content in a way that gives it no stable validators at all.
    pub fn drop_validators(&mut self) {
        self.last_modified = None;
        self.etag = None;
    }
}

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
