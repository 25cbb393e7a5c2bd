//! A response as a server sends it on a stream: what HTTP/2 and HTTP/3 as upstream protocols share.

use bstr::ByteSlice;
use http::upstream::{ContentLength, HeadProgress, ProtocolFault};
use proto::KnownField;
use proto::field_section::{DecodedField, rules};
use proto::fields::Fields;
use proto::h1::response::{FIRST_WINS, UNIQUE};
use proto::message::{Method, ResponseFraming, ResponseHead, parse_length};

use super::gateway::response::framing_fault;

/// The maximum size of the fields of a response, in bytes as RFC 9113 counts them (section 6.5.2), and RFC 9114 (section
/// 4.2.2).
pub(crate) const MAX_LIST: usize = 128 * 1024;

/// The content of a response, and what follows it.
#[derive(Default)]
pub(crate) struct StreamResponse {
    /// The length, once the head is known.
    pub(crate) length: Option<ContentLength>,
    /// Content still expected, if its length is known.
    remaining: Option<u64>,
    /// Fields after the content; gRPC's status is among them.
    pub(crate) trailers: Fields,
}

impl StreamResponse {
    /// The next bytes are those of another response.
    pub(crate) fn clear(&mut self) {
        self.length = None;
        self.remaining = None;
        self.trailers.clear();
    }

    /// Evaluates a head. `is_head`: the request was a HEAD. `end`: the stream is known to have ended with it.
    pub(crate) fn accept_head(
        &mut self,
        head: &ResponseHead,
        is_head: bool,
        end: bool,
        used: usize,
    ) -> Result<HeadProgress, ProtocolFault> {
        match head.status {
            // No `:status` means malformed (RFC 9113, section 8.3.2; RFC 9114, section 4.3.2), and there is no 101
            // (RFC 9113, section 8.6; RFC 9114, section 4.5).
            0 => return Err(ProtocolFault::new("upstream sent no :status header")),
            101 => return Err(unexpected_status(head.status)),
            100..200 if end => {
                return Err(ProtocolFault::new("upstream prematurely closed stream"));
            }
            100..200 => return Ok(HeadProgress::Interim(used)),
            _ => {}
        }
        if let Err(bad) = ResponseFraming::of_response(Method::Get, 200, &head.fields) {
            return Err(ProtocolFault::new(framing_fault(bad, head)));
        }
        let announced = head
            .fields
            .get_known(KnownField::ContentLength)
            .and_then(parse_length);
        let is_empty = is_head || matches!(head.status, 204 | 304);
        let (length, remaining) = match announced {
            _ if is_empty => (ContentLength::None, None),
            Some(length) => (ContentLength::Known(length), Some(length)),
            None if end => (ContentLength::Known(0), Some(0)),
            None => (ContentLength::Unknown, None),
        };
        (self.length, self.remaining) = (Some(length), remaining);
        Ok(HeadProgress::Complete(used))
    }

    /// The length of the content.
    pub(crate) fn content_length(&self) -> ContentLength {
        self.length.unwrap_or(ContentLength::None)
    }

    /// Counts a piece of content against the announced length (RFC 9113, section 8.1.1; RFC 9114, section 4.1.2).
    pub(crate) fn count_content(&mut self, length: usize) -> Result<(), ProtocolFault> {
        if let Some(left) = &mut self.remaining {
            *left = left.checked_sub(length as u64).ok_or_else(|| {
                ProtocolFault::new(
                    "upstream sent response body larger than indicated content length",
                )
            })?;
        }
        Ok(())
    }

    /// The stream has ended in order. Content shorter than announced is malformed nevertheless.
    pub(crate) fn check_end(&self) -> Result<(), ProtocolFault> {
        match self.remaining {
            Some(1..) => Err(ProtocolFault::new("upstream prematurely closed stream")),
            Some(0) | None => Ok(()),
        }
    }
}

/// Stores a field of the head; returns a fault if it is invalid.
pub(crate) fn store_field(
    field: &DecodedField<'_>,
    head: &mut ResponseHead,
) -> Option<ProtocolFault> {
    if field.name != b":status" {
        if !is_valid(field) {
            return Some(invalid_field("header", field));
        }
        // The same fields are unique as in HTTP/1, and of the same ones the first counts.
        let known = KnownField::from_name(field.name);
        let is_repeated = known.bit() & (FIRST_WINS | UNIQUE) != 0 && head.fields.has(known);
        if is_repeated && known.bit() & UNIQUE != 0 {
            let (name, value) = (field.name.as_bstr(), field.value.as_bstr());
            let previous = head.fields.get_known(known).unwrap_or_default().as_bstr();
            let message = format!(
                "upstream sent duplicate header line: \"{name}: {value}\", previous value: \"{name}: {previous}\""
            );
            return Some(ProtocolFault::new(message));
        }
        match is_repeated {
            true => head.note_repeated(field.name, field.value),
            false => head.fields.push(field.name, field.value),
        }
        return None;
    }
    // RFC 9113, section 8.3: pseudo-headers must not be repeated.
    if head.status != 0 {
        return Some(ProtocolFault::new("upstream sent duplicate :status header"));
    }
    let status = match field.value {
        digits if digits.len() == 3 && digits.iter().all(u8::is_ascii_digit) => digits
            .iter()
            .fold(0, |n, digit| n * 10 + u16::from(digit - b'0')),
        _ => 0,
    };
    head.status = status;
    let value = field.value.as_bstr();
    (status < 100).then(|| ProtocolFault::new(format!("upstream sent invalid :status \"{value}\"")))
}

/// Checks a trailer field.
pub(crate) fn check_trailer(field: &DecodedField<'_>) -> Option<ProtocolFault> {
    (!is_valid(field)).then(|| invalid_field("trailer", field))
}

/// Whether a field could be passed on to an HTTP/1 client, where a line end would begin another
/// field.
fn is_valid(field: &DecodedField<'_>) -> bool {
    rules::is_name(field.name) && rules::is_value(field.value)
}

/// The fault of a field.
fn invalid_field(what: &str, field: &DecodedField<'_>) -> ProtocolFault {
    let (name, value) = (field.name.as_bstr(), field.value.as_bstr());
    ProtocolFault::new(format!("upstream sent invalid {what}: \"{name}: {value}\""))
}

/// The fault of a status that has no place here.
fn unexpected_status(status: u16) -> ProtocolFault {
    ProtocolFault::new(format!("upstream sent unexpected :status \"{status}\""))
}
