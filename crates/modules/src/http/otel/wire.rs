//! Spans as OTLP has them on the wire: Protocol Buffers, written without a structure in between.
//!
//! A span has some fifteen attributes. As values of types they are thirty allocations, which cost more than all of the
//! request's other work on a small file; as bytes they are copied once. The numbers are those of
//! `opentelemetry/proto/trace/v1/trace.proto` and `common/v1/common.proto`; the tests of the server read what is
//! written here with the types that OpenTelemetry's own crate has.
//!
//! ```text
//! ExportTraceServiceRequest { 1: ResourceSpans { 1: Resource, 2: ScopeSpans { 1: Scope, 2: Span, 2: Span, … } } }
//! ```

use std::borrow::Cow;

use bstr::ByteSlice;
use prost::Message;
use prost::encoding::{encode_varint, encoded_len_varint};

use super::context::{SpanId, TraceId};

/// Wire types, in the low bits of a key.
const VARINT: u8 = 0;
const FIXED64: u8 = 1;
const BYTES: u8 = 2;
const FIXED32: u8 = 5;

/// The longest value of an attribute, in bytes. More is cut off: a variable may have a request's content.
const MAX_VALUE: usize = 16 * 1024;

/// What a span is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpanKind {
    Internal = 1,
    Server = 2,
    Client = 3,
}

/// What every span has.
pub(super) struct SpanHead<'a> {
    pub(super) trace_id: &'a TraceId,
    pub(super) span_id: &'a SpanId,
    pub(super) parent: Option<&'a SpanId>,
    /// The parent is of another process.
    pub(super) is_parent_remote: bool,
    pub(super) state: &'a [u8],
    pub(super) name: &'a [u8],
    pub(super) kind: SpanKind,
    /// In nanoseconds since 1970.
    pub(super) start: u64,
    pub(super) end: u64,
}

/// A span that is being written.
pub(super) struct SpanWriter<'a> {
    out: &'a mut Vec<u8>,
}

impl<'a> SpanWriter<'a> {
    /// Begins a span at the end of `out`.
    pub(super) fn begin(head: &SpanHead<'_>, out: &'a mut Vec<u8>) -> SpanWriter<'a> {
        out.reserve(1024);
        // In pieces of a fixed length, which the compiler turns into a few stores each.
        out.extend_from_slice(&[1 << 3 | BYTES, 16]);
        out.extend_from_slice(head.trace_id);
        out.extend_from_slice(&[2 << 3 | BYTES, 8]);
        out.extend_from_slice(head.span_id);
        if !head.state.is_empty() {
            write_bytes(3, &text_of(head.state), out);
        }
        if let Some(parent) = head.parent {
            out.extend_from_slice(&[4 << 3 | BYTES, 8]);
            out.extend_from_slice(parent);
        }
        write_bytes(5, &text_of(head.name), out);
        out.extend_from_slice(&[6 << 3 | VARINT, head.kind as u8]);
        write_fixed64(7, head.start, out);
        write_fixed64(8, head.end, out);
        // SpanFlags: sampled, and that it is known whether the parent is remote.
        let flags = 0x101 | u32::from(head.is_parent_remote) << 9;
        // The key of field 16 has two bytes.
        out.extend_from_slice(&[(16 << 3 | FIXED32) | 0x80, 1]);
        out.extend_from_slice(&flags.to_le_bytes());
        SpanWriter { out }
    }

    /// Writes attributes without a span around them.
    pub(super) fn attributes(out: &'a mut Vec<u8>) -> SpanWriter<'a> {
        SpanWriter { out }
    }

    /// Attributes that are encoded already.
    #[inline]
    pub(super) fn encoded(&mut self, attributes: &[u8]) {
        self.out.extend_from_slice(attributes);
    }

    /// A text. The usual one is short and ASCII: then all lengths have one byte, and with a constant key all but the value's
    /// are constants.
    #[inline(always)]
    pub(super) fn text(&mut self, key: &str, value: &[u8]) {
        // KeyValue { 1: key, 2: AnyValue { 1: text } }: three keys with their lengths besides the two texts.
        if key.len() + value.len() + 6 < 0x80 && value.is_ascii() {
            let (key_length, length) = (key.len() as u8, value.len() as u8);
            let head = [9 << 3 | BYTES, key_length + length + 6, 0x0a, key_length];
            self.out.extend_from_slice(&head);
            self.out.extend_from_slice(key.as_bytes());
            self.out
                .extend_from_slice(&[2 << 3 | BYTES, length + 2, 1 << 3 | BYTES, length]);
            self.out.extend_from_slice(value);
        } else {
            self.long_text(key, value);
        }
    }

    #[cold]
    #[inline(never)]
    fn long_text(&mut self, key: &str, value: &[u8]) {
        let value = text_of(&value[..value.len().min(MAX_VALUE)]);
        let length = key_length(1, value.len());
        self.attribute(key, length);
        write_bytes(1, &value, self.out);
    }

    /// A number. The keys are ours and short, so that the length of the whole has one byte.
    #[inline(always)]
    pub(super) fn number(&mut self, key: &str, value: u64) {
        debug_assert!(key.len() < 64, "it is one of ours");
        let length = encoded_len_varint(value) as u8;
        let key_length = key.len() as u8;
        let head = [9 << 3 | BYTES, key_length + length + 5, 0x0a, key_length];
        self.out.extend_from_slice(&head);
        self.out.extend_from_slice(key.as_bytes());
        self.out
            .extend_from_slice(&[2 << 3 | BYTES, length + 1, 3 << 3 | VARINT]);
        match value < 0x80 {
            true => self.out.push(value as u8),
            false => encode_varint(value, self.out),
        }
    }

    /// A time, in seconds.
    pub(super) fn seconds(&mut self, key: &str, time: std::time::Duration) {
        self.attribute(key, 9);
        self.out.push(4 << 3 | FIXED64);
        self.out
            .extend_from_slice(&time.as_secs_f64().to_le_bytes());
    }

    /// A list of texts: header fields are lists, even if they stand once.
    pub(super) fn texts(&mut self, key: &str, values: &[&[u8]]) {
        let values: Vec<Cow<'_, [u8]>> = values
            .iter()
            .map(|value| text_of(&value[..value.len().min(MAX_VALUE)]))
            .collect();
        // ArrayValue { 1: AnyValue { 1: text }, … }
        let element = |value: &Cow<'_, [u8]>| key_length(1, value.len());
        let array: usize = values
            .iter()
            .map(|value| key_length(1, element(value)))
            .sum();
        self.attribute(key, key_length(5, array));
        write_key(5, array, self.out);
        for value in &values {
            write_key(1, element(value), self.out);
            write_bytes(1, value, self.out);
        }
    }

    /// Ends the span.
    pub(super) fn end(self, is_error: bool) {
        if is_error {
            // Status { 3: STATUS_CODE_ERROR }
            self.out
                .extend_from_slice(&[15 << 3 | BYTES, 2, 3 << 3 | VARINT, 2]);
        }
    }

    /// Begins a KeyValue whose AnyValue has this length.
    #[inline]
    fn attribute(&mut self, key: &str, value: usize) {
        let whole = key_length(1, key.len()) + key_length(2, value);
        write_key(9, whole, self.out);
        write_bytes(1, key.as_bytes(), self.out);
        write_key(2, value, self.out);
    }
}

/// The length of a field of up to number 15 that has this many bytes.
#[inline]
fn key_length(_field: u8, length: usize) -> usize {
    1 + encoded_len_varint(length as u64) + length
}

/// Writes the key and the length of such a field.
#[inline]
fn write_key(field: u8, length: usize, out: &mut Vec<u8>) {
    out.push(field << 3 | BYTES);
    if length < 0x80 {
        out.push(length as u8);
    } else {
        encode_varint(length as u64, out);
    }
}

#[inline]
fn write_bytes(field: u8, bytes: &[u8], out: &mut Vec<u8>) {
    write_key(field, bytes.len(), out);
    out.extend_from_slice(bytes);
}

fn write_fixed64(field: u8, value: u64, out: &mut Vec<u8>) {
    out.push(field << 3 | FIXED64);
    out.extend_from_slice(&value.to_le_bytes());
}

/// A text as Protocol Buffers require it. A collector may refuse a whole batch for one byte that is not UTF-8, and
/// clients choose the bytes of targets and fields.
#[inline]
fn text_of(value: &[u8]) -> Cow<'_, [u8]> {
    // Most are ASCII, which is cheaper to find out.
    match value.is_ascii() || std::str::from_utf8(value).is_ok() {
        true => Cow::Borrowed(value),
        false => Cow::Owned(value.to_str_lossy().into_owned().into_bytes()),
    }
}

/// Appends a span to a batch: field 2 of ScopeSpans.
#[inline]
pub(super) fn append_span(span: &[u8], batch: &mut Vec<u8>) {
    write_bytes(2, span, batch);
}

/// What stands before the spans of a batch: the same for all, except for the lengths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct BatchHead {
    /// Resource.
    resource: Vec<u8>,
    /// InstrumentationScope.
    scope: Vec<u8>,
}

impl BatchHead {
    /// The head for a resource with these attributes.
    pub(super) fn new<'a>(attributes: impl Iterator<Item = (&'a str, &'a str)>) -> BatchHead {
        let resource = ResourceMessage {
            attributes: attributes
                .map(|(key, value)| KeyValueMessage {
                    key: key.to_owned(),
                    value: Some(AnyValueMessage {
                        string_value: Some(value.to_owned()),
                    }),
                })
                .collect(),
        };
        let scope = ScopeMessage {
            name: "weir".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        BatchHead {
            resource: resource.encode_to_vec(),
            scope: scope.encode_to_vec(),
        }
    }

    /// Writes a whole message with these spans into `out`, behind the prefix that gRPC wants before each message
    /// (Length-Prefixed-Message, not compressed): so that it is copied once, by whatever it travels.
    pub(super) fn write_message(&self, spans: &[u8], out: &mut Vec<u8>) {
        let scope_spans = key_length(1, self.scope.len()) + spans.len();
        let resource_spans = key_length(1, self.resource.len()) + key_length(2, scope_spans);
        out.clear();
        out.reserve(PREFIX + resource_spans + 16);
        out.push(0);
        out.extend_from_slice(&(key_length(1, resource_spans) as u32).to_be_bytes());
        write_key(1, resource_spans, out);
        write_bytes(1, &self.resource, out);
        write_key(2, scope_spans, out);
        write_bytes(1, &self.scope, out);
        out.extend_from_slice(spans);
    }
}

/// The length of the prefix of a message in gRPC.
pub(super) const PREFIX: usize = 5;

/// What the collector did not take of a batch, from its response: how many spans, and why.
pub(super) fn rejected_spans(response: &[u8]) -> (u64, String) {
    // A collector that answers with something else has taken the batch all the same: its status says so.
    let response = ExportTraceMessage::decode(response).unwrap_or_default();
    let partial = response.partial_success.unwrap_or_default();
    let rejected = u64::try_from(partial.rejected_spans).unwrap_or(0);
    (rejected, partial.error_message)
}

#[derive(Clone, PartialEq, Message)]
struct ResourceMessage {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValueMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValueMessage {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValueMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct AnyValueMessage {
    #[prost(string, optional, tag = "1")]
    string_value: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeMessage {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    version: String,
}

#[derive(Clone, PartialEq, Message)]
struct ExportTraceMessage {
    #[prost(message, optional, tag = "1")]
    partial_success: Option<PartialSuccessMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct PartialSuccessMessage {
    #[prost(int64, tag = "1")]
    rejected_spans: i64,
    #[prost(string, tag = "2")]
    error_message: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_text_becomes_a_valid_one() {
        assert_eq!(&*text_of("ü".as_bytes()), "ü".as_bytes());
        assert_eq!(&*text_of(b"a\xffb"), "a\u{fffd}b".as_bytes());
    }

    #[test]
    fn a_response_says_what_was_rejected() {
        assert_eq!(rejected_spans(b""), (0, String::new()));
        assert_eq!(
            rejected_spans(b"\x0a\x07\x08\x03\x12\x03why"),
            (3, "why".to_owned())
        );
        assert_eq!(rejected_spans(b"\xff\xff"), (0, String::new()));
    }
}
