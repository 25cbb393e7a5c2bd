//! Turns a field section into a request header (RFC 9113, section 8.3; RFC 9114, section 4.3).
//!
//! The rest of the server knows one form of a request header, that of HTTP/1: the pseudo-header
//! fields become its request line and its Host field, several Cookie fields become one (RFC 9113,
//! section 8.2.3; RFC 9114, section 4.2.1), and what makes a request malformed is found on the way. What is rejected, and with which
//! messages, is nginx's behaviour; where nginx is lax the RFC decides.

use super::{DecodedField, rules};
use crate::known_fields::KnownField;
use crate::message::{InvalidHeaders, MessageVersion, RequestHead, UNIQUE};

pub use crate::message::UnderscorePolicy;

/// The limits of a request: the directives of the same names.
#[derive(Clone, Copy, Debug)]
pub struct RequestLimits {
    /// How underscores in field names are treated.
    pub underscores_in_headers: UnderscorePolicy,
    /// How fields with invalid names are treated.
    pub invalid_headers: InvalidHeaders,
    /// The maximum number of fields; all Cookie fields count as one.
    pub max_headers: usize,
    /// The maximum length of a name or a value.
    pub max_text: usize,
    /// The maximum length of all names and values together.
    pub max_texts: usize,
}

/// Why a request is malformed or too large.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MalformedRequest {
    /// The status of the response, mostly 400.
    pub status: u16,
    /// The line for the error log, at level `info`.
    pub line: Vec<u8>,
}

impl MalformedRequest {
    fn new(line: &str) -> MalformedRequest {
        MalformedRequest {
            status: 400,
            line: line.as_bytes().to_vec(),
        }
    }

    fn about(before: &str, text: &[u8], after: &str) -> MalformedRequest {
        MalformedRequest {
            status: 400,
            line: [before.as_bytes(), text, after.as_bytes()].concat(),
        }
    }
}

/// Collects the fields of one request after the other, and keeps its memory in between.
#[derive(Debug)]
pub struct RequestReader {
    /// The version of the requests.
    version: MessageVersion,
    /// The values of the pseudo-header fields.
    text: Vec<u8>,
    method: TextRange,
    path: TextRange,
    scheme: TextRange,
    authority: TextRange,
    protocol: TextRange,
    /// The Cookie fields, joined.
    cookie: Vec<u8>,
    /// Whether a regular field has occurred: pseudo-header fields must precede all of them.
    in_fields: bool,
    fields: usize,
    /// The length of all names and values.
    texts: usize,
    too_large: bool,
    seen: u128,
    malformed: Option<MalformedRequest>,
    /// The names of ignored fields, for the log.
    ignored: Vec<Vec<u8>>,
}

/// The offsets of a pseudo-header field's value, if it has occurred.
type TextRange = Option<(u32, u32)>;

impl RequestReader {
    /// A reader for requests of this version of HTTP.
    pub fn new(version: MessageVersion) -> RequestReader {
        RequestReader {
            version,
            text: Vec::new(),
            method: None,
            path: None,
            scheme: None,
            authority: None,
            protocol: None,
            cookie: Vec::new(),
            in_fields: false,
            fields: 0,
            texts: 0,
            too_large: false,
            seen: 0,
            malformed: None,
            ignored: Vec::new(),
        }
    }

    /// Adds a field.
    pub fn add_field(
        &mut self,
        field: DecodedField<'_>,
        limits: &RequestLimits,
        head: &mut RequestHead,
    ) {
        self.texts += field.name.len() + field.value.len();
        self.too_large |= self.texts > limits.max_texts
            || field.name.len() > limits.max_text
            || field.value.len() > limits.max_text;
        if self.malformed.is_some() || self.too_large {
            return;
        }
        let taken = if field.name.first() == Some(&b':') {
            self.pseudo(field)
        } else {
            self.field(field, limits, head)
        };
        if let Err(malformed) = taken {
            self.malformed = Some(malformed);
        }
    }

    /// Ends the block: the header is complete, or as complete as it gets, for the log. `size` is
    /// its size on the wire.
    pub fn finish(&mut self, size: u32, head: &mut RequestHead) -> Result<(), MalformedRequest> {
        let mut result = match self.malformed.take() {
            Some(malformed) => Err(malformed),
            None => Ok(()),
        };
        if !self.in_fields {
            let begun = self.end_pseudo_fields(head);
            result = result.and(begun);
        }
        head.set_size(size);
        if result.is_ok() {
            result = self.check_whole(head);
        }
        if !self.cookie.is_empty() {
            head.fields
                .push_numbered(KnownField::Cookie, b"cookie", &self.cookie);
        }
        result
    }

    /// Whether the fields exceed a limit: those beyond it were not taken.
    pub fn is_too_large(&self) -> bool {
        self.too_large
    }

    /// Resets the reader for the next request.
    pub fn clear(&mut self) {
        const KEEP: usize = 4096;
        let (mut text, mut cookie) = (
            std::mem::take(&mut self.text),
            std::mem::take(&mut self.cookie),
        );
        text.clear();
        text.shrink_to(KEEP);
        cookie.clear();
        cookie.shrink_to(KEEP);
        *self = RequestReader {
            text,
            cookie,
            ..RequestReader::new(self.version)
        };
    }

    /// The names of fields that were ignored because they are invalid.
    pub fn ignored(&self) -> &[Vec<u8>] {
        &self.ignored
    }

    /// The `:scheme`.
    pub fn scheme(&self) -> &[u8] {
        self.part(self.scheme)
    }

    /// The `:protocol` of an extended CONNECT (RFC 8441).
    pub fn protocol(&self) -> Option<&[u8]> {
        self.protocol.is_some().then(|| self.part(self.protocol))
    }

    fn part(&self, part: TextRange) -> &[u8] {
        part.map_or(&[], |(start, end)| &self.text[start as usize..end as usize])
    }

    fn pseudo(&mut self, field: DecodedField<'_>) -> Result<(), MalformedRequest> {
        let DecodedField { name, value, .. } = field;
        check_text(&name[1..], value, name)?;
        if self.in_fields {
            return Err(MalformedRequest::new(
                "client sent out of order pseudo-headers",
            ));
        }
        let (part, what): (&mut TextRange, &str) = match name {
            b":method" => (&mut self.method, ":method"),
            b":path" => (&mut self.path, ":path"),
            b":scheme" => (&mut self.scheme, ":scheme"),
            b":authority" => (&mut self.authority, ":authority"),
            b":protocol" => (&mut self.protocol, ":protocol"),
            _ => {
                return Err(MalformedRequest::about(
                    "client sent unknown pseudo-header \"",
                    name,
                    "\"",
                ));
            }
        };
        if part.is_some() {
            return Err(MalformedRequest::new(&format!(
                "client sent duplicate {what} header"
            )));
        }
        if value.is_empty() && what != ":authority" {
            return Err(MalformedRequest::new(&format!(
                "client sent empty {what} header"
            )));
        }
        let valid = match what {
            ":method" => value
                .iter()
                .all(|&b| crate::message::method::is_method_byte(b)),
            ":path" => value[0] == b'/' && value.iter().all(|&b| b > b' ' && b != 0x7f),
            ":scheme" => {
                let rest = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.');
                value[0].is_ascii_alphabetic() && value.iter().all(rest)
            }
            _ => true,
        };
        if !valid {
            let before = match what {
                ":method" => "client sent invalid method: \"".to_owned(),
                _ => format!("client sent invalid {what} header: \""),
            };
            return Err(MalformedRequest::about(&before, value, "\""));
        }
        // The limit of a header list is far below 2^32.
        let start = self.text.len() as u32;
        self.text.extend_from_slice(value);
        *part = Some((start, self.text.len() as u32));
        Ok(())
    }

    fn field(
        &mut self,
        field: DecodedField<'_>,
        limits: &RequestLimits,
        head: &mut RequestHead,
    ) -> Result<(), MalformedRequest> {
        let DecodedField {
            name, value, known, ..
        } = field;
        let odd = check_text(name, value, name)?;
        if !self.in_fields {
            self.end_pseudo_fields(head)?;
        }
        let is_invalid = odd
            && (name
                .iter()
                .any(|b| *b != b'_' && NAME_CLASSES[usize::from(*b)] != 0)
                || is_underscored(name, limits));
        if is_invalid && limits.invalid_headers == InvalidHeaders::Ignored {
            if self.ignored.len() < RequestHead::MAX_IGNORED {
                self.ignored.push(name.to_vec());
            }
            return Ok(());
        }
        if known == KnownField::Cookie {
            if !self.cookie.is_empty() {
                self.cookie.extend_from_slice(b"; ");
            }
            self.cookie.extend_from_slice(value);
            return Ok(());
        }
        self.fields += 1;
        if self.fields > limits.max_headers {
            return Err(MalformedRequest {
                status: 494,
                line: b"client sent too many header lines".to_vec(),
            });
        }
        if self.seen & known.bit() & UNIQUE != 0 {
            return Err(duplicate(known, name, value, head));
        }
        self.seen |= known.bit();
        head.fields.push_numbered(known, name, value);
        Ok(())
    }

    /// The pseudo-header fields are complete: turns them into the request line.
    fn end_pseudo_fields(&mut self, head: &mut RequestHead) -> Result<(), MalformedRequest> {
        self.in_fields = true;
        let missing = |part: TextRange, name: &str| match part {
            Some(_) => Ok(()),
            None => Err(MalformedRequest::new(&format!(
                "client sent no {name} header"
            ))),
        };
        let all = missing(self.method, ":method")
            .and_then(|()| missing(self.scheme, ":scheme"))
            .and_then(|()| missing(self.path, ":path"));
        // As much as there is, for the log. A WebSocket's request is a GET everywhere else (RFC
        // 8441, section 4).
        let method = match (self.part(self.method), self.protocol()) {
            (b"CONNECT", Some(b"websocket")) => b"GET",
            (method, _) => method,
        };
        if !method.is_empty() {
            head.assemble(self.version, method, self.part(self.path));
        } else {
            head.clear();
            head.version = self.version;
        }
        all
    }

    /// Checks what depends on all fields.
    fn check_whole(&mut self, head: &mut RequestHead) -> Result<(), MalformedRequest> {
        if self.protocol.is_some() && self.part(self.method) != b"CONNECT" {
            return Err(MalformedRequest::new(
                "client sent :protocol header with a method other than CONNECT",
            ));
        }
        for (known, name) in [
            (KnownField::Connection, "Connection"),
            (KnownField::KeepAlive, "Keep-Alive"),
            (KnownField::TransferEncoding, "Transfer-Encoding"),
            (KnownField::Upgrade, "Upgrade"),
            (KnownField::ProxyConnection, "Proxy-Connection"),
        ] {
            if head.fields.has(known) {
                return Err(MalformedRequest::new(&format!(
                    "client sent \"{name}\" header"
                )));
            }
        }
        let trailers = |value: &[u8]| value.eq_ignore_ascii_case(b"trailers");
        let te = head.fields.all_known(KnownField::Te);
        if te.enumerate().any(|(i, value)| i > 0 || !trailers(value)) {
            return Err(MalformedRequest::new("client sent invalid \"TE\" header"));
        }
        let authority = self.part(self.authority);
        let host = head.fields.get_known(KnownField::Host);
        // Several hosts that were joined on the way are not a host (RFC 9113, section 8.3.1).
        if let Some(list) = [Some(authority), host]
            .into_iter()
            .flatten()
            .find(|host| host.contains(&b','))
        {
            return Err(MalformedRequest::about(
                "client sent invalid host: \"",
                list,
                "\"",
            ));
        }
        match host {
            None if authority.is_empty() => Err(MalformedRequest::new(
                "client sent neither \":authority\" nor \"Host\" header",
            )),
            Some(host) if !authority.is_empty() && host != authority => Err(MalformedRequest::new(
                "client sent \":authority\" and \"Host\" headers with different values",
            )),
            Some(_) => Ok(()),
            None => {
                head.fields
                    .push_numbered(KnownField::Host, b"host", authority);
                Ok(())
            }
        }
    }
}

/// Whether a name contains characters that nginx calls invalid. Characters that are forbidden in
/// any name or value are an error.
fn check_text(name: &[u8], value: &[u8], shown: &[u8]) -> Result<bool, MalformedRequest> {
    if name.is_empty() {
        return Err(MalformedRequest::new("client sent zero header name length"));
    }
    let classes = name
        .iter()
        .fold(0, |all, &byte| all | NAME_CLASSES[usize::from(byte)]);
    if classes & FORBIDDEN != 0 {
        return Err(MalformedRequest::about(
            "client sent invalid header name: \"",
            shown,
            "\"",
        ));
    }
    let odd = classes & ODD != 0;
    if !rules::is_value(value) || rules::is_padded(value) {
        let before = [
            b"client sent header \"",
            shown,
            b"\" with invalid value: \"",
        ]
        .concat();
        return Err(MalformedRequest {
            status: 400,
            line: [&before[..], value, b"\""].concat(),
        });
    }
    Ok(odd)
}

/// What a byte of a name is: nginx calls it invalid, or it must not occur.
const ODD: u8 = 1;
const FORBIDDEN: u8 = 2;

/// By byte. A lookup costs a third of the comparisons.
const NAME_CLASSES: [u8; 256] = build_name_classes();

const fn build_name_classes() -> [u8; 256] {
    let mut classes = [0; 256];
    let mut index = 0;
    while index < 256 {
        let byte = index as u8;
        classes[index] =
            if byte <= b' ' || byte >= 0x7f || byte == b':' || byte.is_ascii_uppercase() {
                FORBIDDEN
            } else if byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' {
                0
            } else {
                ODD
            };
        index += 1;
    }
    classes
}

fn is_underscored(name: &[u8], limits: &RequestLimits) -> bool {
    limits.underscores_in_headers == UnderscorePolicy::Invalid && name.contains(&b'_')
}

fn duplicate(known: KnownField, name: &[u8], value: &[u8], head: &RequestHead) -> MalformedRequest {
    let what: &[u8] = match known {
        KnownField::Host => b"client sent duplicate host header: \"",
        _ => b"client sent duplicate header line: \"",
    };
    let previous = head.fields.get_known(known).unwrap_or_default();
    MalformedRequest {
        status: 400,
        line: [
            what,
            name,
            b": ",
            value,
            b"\", previous value: \"",
            name,
            b": ",
            previous,
            b"\"",
        ]
        .concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: RequestLimits = RequestLimits {
        underscores_in_headers: UnderscorePolicy::Invalid,
        invalid_headers: InvalidHeaders::Ignored,
        max_headers: 10,
        max_text: 100,
        max_texts: 1000,
    };

    const GET: [(&str, &str); 4] = [
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/a?b"),
        (":authority", "example.com"),
    ];

    fn read(fields: &[(&str, &str)]) -> (RequestHead, Result<(), String>) {
        let mut reader = RequestReader::new(MessageVersion::HTTP_2);
        let mut head = RequestHead::new();
        for (name, value) in fields {
            let field = DecodedField {
                name: name.as_bytes(),
                value: value.as_bytes(),
                known: KnownField::from_name(name.as_bytes()),
                never_indexed: false,
            };
            reader.add_field(field, &LIMITS, &mut head);
        }
        let result = reader
            .finish(77, &mut head)
            .map_err(|bad| String::from_utf8_lossy(&bad.line).into_owned());
        (head, result)
    }

    fn with(more: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
        GET.iter().chain(more).copied().collect()
    }

    #[test]
    fn a_request_looks_as_if_it_had_come_by_http_1() {
        let fields = [
            ("x-a", "1"),
            ("cookie", "a=1"),
            ("te", "trailers"),
            ("cookie", "b=2"),
        ];
        let (head, result) = read(&with(&fields));
        assert_eq!(result, Ok(()));
        assert_eq!(head.request_line(), b"GET /a?b HTTP/2.0");
        assert_eq!(head.target(), b"/a?b");
        assert_eq!(head.method_text(), b"GET");
        assert_eq!(head.protocol(), b"HTTP/2.0");
        assert_eq!(head.fields.get(b"host"), Some(&b"example.com"[..]));
        assert_eq!(head.fields.get(b"cookie"), Some(&b"a=1; b=2"[..]));
        assert_eq!(head.fields.len(), 4);
        assert_eq!(head.size(), 77);
    }

    #[test]
    fn malformed_requests_and_why() {
        let refused = |fields: &[(&str, &str)], why: &str| {
            let (_, result) = read(fields);
            let line = result.expect_err(why);
            assert!(line.contains(why), "{line:?} for {why:?}");
        };
        refused(&GET[1..], "no :method");
        refused(&GET[..2], "no :path");
        refused(&GET[..3], "neither \":authority\" nor \"Host\"");
        refused(&with(&[(":method", "GET")]), "duplicate :method");
        refused(&with(&[("a", "b"), (":x", "y")]), "out of order");
        refused(&with(&[(":x", "y")]), "unknown pseudo-header \":x\"");
        refused(&with(&[("X-a", "y")]), "invalid header name: \"X-a\"");
        refused(&with(&[("x-a", "y\r")]), "invalid value");
        refused(&with(&[("x-a", " y")]), "invalid value");
        refused(&with(&[("x-a", "y\t")]), "invalid value");
        refused(&with(&[("x-\u{e9}", "y")]), "invalid header name");
        refused(&with(&[("host", "a,b")]), "invalid host: \"a,b\"");
        refused(&with(&[("", "y")]), "zero header name");
        refused(&with(&[("connection", "close")]), "\"Connection\"");
        refused(&with(&[("te", "gzip")]), "\"TE\"");
        refused(&with(&[("host", "other")]), "different values");
        refused(
            &with(&[("expect", "a"), ("expect", "b")]),
            "duplicate header line",
        );
        refused(&with(&[("x", "y"); 11]), "too many header lines");
        let mut bad = GET;
        bad[2].1 = "a";
        refused(&bad, "invalid :path");
        bad[2].1 = "";
        refused(&bad, "empty :path");
    }

    #[test]
    fn invalid_names_are_ignored() {
        let (head, result) = read(&with(&[("x_y", "1"), ("x*", "2"), ("x-y", "3")]));
        assert_eq!(result, Ok(()));
        assert_eq!(head.fields.len(), 2);
    }
}
