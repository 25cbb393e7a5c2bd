//! The trace context of a request: its identifiers, and the headers in which they travel.
//!
//! W3C Trace Context is the format of the specification; B3, Zipkin's, is there because the contrib module has it.
//! A malformed header counts as none: the trace begins here.

use std::cell::{Cell, OnceCell, RefCell};

use bstr::{BString, ByteSlice};
use http::Request;
use proto::Fields;

/// 16 bytes, not all zero.
pub(super) type TraceId = [u8; 16];
/// 8 bytes, not all zero.
pub(super) type SpanId = [u8; 8];

/// The header fields of W3C Trace Context.
const TRACEPARENT: &[u8] = b"traceparent";
const TRACESTATE: &[u8] = b"tracestate";
const B3: &[u8] = b"b3";
const B3_TRACE_ID: &[u8] = b"X-B3-TraceId";
const B3_SPAN_ID: &[u8] = b"X-B3-SpanId";
const B3_SAMPLED: &[u8] = b"X-B3-Sampled";

/// The length of a `traceparent` of version 00.
const TRACEPARENT_LENGTH: usize = 55;

/// How a context travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeaderFormat {
    /// `traceparent` and `tracestate`.
    W3c,
    /// `b3`.
    B3,
    /// `X-B3-TraceId`, `X-B3-SpanId`, `X-B3-Sampled`.
    B3Multi,
}

/// The context that a request came with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IncomingContext {
    pub(super) trace_id: TraceId,
    pub(super) span_id: SpanId,
    pub(super) sampled: bool,
    /// `tracestate`, as it came.
    pub(super) state: BString,
}

/// The context of a request.
#[derive(Debug)]
pub(super) struct TraceContext {
    pub(super) trace_id: TraceId,
    /// The request's own span.
    pub(super) span_id: SpanId,
    pub(super) parent: Option<IncomingContext>,
}

/// Where a client's request, and all its parts, find its context. Made when it is first needed.
#[derive(Default)]
pub(super) struct TraceSlot {
    context: OnceCell<TraceContext>,
    /// The request is recorded: decided once, in the first location that it comes to.
    pub(super) sampled: Cell<bool>,
}

impl TraceSlot {
    /// The context, from `incoming` if there is none yet.
    pub(super) fn ensure(
        &self,
        incoming: impl FnOnce() -> Option<IncomingContext>,
    ) -> &TraceContext {
        self.context.get_or_init(|| {
            let parent = incoming();
            let trace_id = match &parent {
                Some(parent) => parent.trace_id,
                None => random_id(),
            };
            TraceContext {
                trace_id,
                span_id: random_id(),
                parent,
            }
        })
    }

    /// The context, from nowhere if there is none yet.
    pub(super) fn context(&self) -> &TraceContext {
        self.ensure(|| None)
    }
}

impl TraceContext {
    /// The `traceparent` that says so of this trace and span (W3C Trace Context, section 3.2).
    pub(super) fn traceparent(&self, span: &SpanId, sampled: bool) -> [u8; TRACEPARENT_LENGTH] {
        let mut text = *b"00-................................-................-00";
        write_hex(&self.trace_id, &mut text[3..35]);
        write_hex(span, &mut text[36..52]);
        text[54] += u8::from(sampled);
        text
    }

    /// The same as a single `b3` field.
    pub(super) fn b3(&self, span: &SpanId, sampled: bool) -> [u8; 51] {
        let mut text = *b"................................-................-0";
        write_hex(&self.trace_id, &mut text[..32]);
        write_hex(span, &mut text[33..49]);
        text[50] += u8::from(sampled);
        text
    }

    /// What the client's `tracestate` was.
    pub(super) fn state(&self) -> &[u8] {
        self.parent.as_ref().map_or(b"", |parent| &parent.state)
    }
}

impl HeaderFormat {
    /// The context in a request's fields.
    pub(super) fn extract(self, fields: &Fields) -> Option<IncomingContext> {
        match self {
            HeaderFormat::W3c => {
                let mut incoming = parse_traceparent(only_one(fields, TRACEPARENT)?)?;
                for part in fields.all(TRACESTATE) {
                    if !incoming.state.is_empty() {
                        incoming.state.push(b',');
                    }
                    incoming.state.extend_from_slice(part);
                }
                Some(incoming)
            }
            // Each form is read where either is configured, as in the contrib module.
            HeaderFormat::B3 | HeaderFormat::B3Multi => {
                let single = fields.get(B3).and_then(parse_b3);
                single.or_else(|| extract_b3_multi(fields))
            }
        }
    }

    /// Puts a context into the request's fields, in place of what the client sent.
    pub(super) fn inject(
        self,
        request: &mut Request,
        context: &TraceContext,
        span: &SpanId,
        sampled: bool,
    ) {
        match self {
            HeaderFormat::W3c => {
                let value = context.traceparent(span, sampled);
                if request.head.field(TRACEPARENT) == Some(value.as_bstr()) {
                    return;
                }
                request.change_fields(TRACEPARENT, |fields| fields.set(TRACEPARENT, &value));
                let state = context.state();
                if !state.is_empty() {
                    request.change_fields(TRACESTATE, |fields| fields.set(TRACESTATE, state));
                } else if request.head.field(TRACESTATE).is_some() {
                    // It belongs to another trace.
                    request.change_fields(TRACESTATE, |fields| {
                        fields.remove(TRACESTATE);
                    });
                }
            }
            HeaderFormat::B3 => {
                let value = context.b3(span, sampled);
                request.change_fields(B3, |fields| fields.set(B3, &value));
            }
            HeaderFormat::B3Multi => {
                let value = context.b3(span, sampled);
                request.change_fields(B3_TRACE_ID, |fields| {
                    fields.set(B3_TRACE_ID, &value[..32]);
                    fields.set(B3_SPAN_ID, &value[33..49]);
                    fields.set(B3_SAMPLED, &value[50..]);
                });
            }
        }
    }
}

/// The value of a field that must not be repeated: two `traceparent`s are none (section 3.2).
fn only_one<'a>(fields: &'a Fields, name: &'a [u8]) -> Option<&'a [u8]> {
    // Asked first, because most requests have none and the answer is then a bit.
    fields.get(name)?;
    let mut values = fields.all(name);
    values.next().filter(|_| values.next().is_none())
}

/// Reads a `traceparent`. Of a later version, what version 00 has is read and the rest left alone (section 3.2.4).
fn parse_traceparent(text: &[u8]) -> Option<IncomingContext> {
    let text = text.trim_ascii();
    let (head, rest) = text.split_at_checked(TRACEPARENT_LENGTH)?;
    let version = parse_hex::<1>(&head[..2])?[0];
    let is_whole = match version {
        0x00 => rest.is_empty(),
        0xff => false,
        _ => rest.is_empty() || rest[0] == b'-',
    };
    if !is_whole || head[2] != b'-' || head[35] != b'-' || head[52] != b'-' {
        return None;
    }
    Some(IncomingContext {
        trace_id: parse_hex(&head[3..35]).filter(is_valid)?,
        span_id: parse_hex(&head[36..52]).filter(is_valid)?,
        sampled: parse_hex::<1>(&head[53..55])?[0] & 1 != 0,
        state: BString::default(),
    })
}

/// Reads a `b3`: trace, span, and optionally whether it is sampled, and the parent.
fn parse_b3(text: &[u8]) -> Option<IncomingContext> {
    let mut parts = text.split(|byte| *byte == b'-');
    let (trace, span) = (parts.next()?, parts.next()?);
    b3_context(trace, span, parts.next().unwrap_or_default())
}

fn extract_b3_multi(fields: &Fields) -> Option<IncomingContext> {
    let sampled = fields.get(B3_SAMPLED).unwrap_or_default();
    b3_context(fields.get(B3_TRACE_ID)?, fields.get(B3_SPAN_ID)?, sampled)
}

/// A trace identifier of 64 bits, which B3 permits, is one with zeros in front.
fn b3_context(trace: &[u8], span: &[u8], sampled: &[u8]) -> Option<IncomingContext> {
    let trace_id = match trace.len() {
        16 => {
            let mut id = [0; 16];
            id[8..].copy_from_slice(&parse_hex::<8>(trace)?);
            id
        }
        _ => parse_hex(trace)?,
    };
    Some(IncomingContext {
        trace_id: Some(trace_id).filter(is_valid)?,
        span_id: parse_hex(span).filter(is_valid)?,
        sampled: matches!(sampled, b"1" | b"d" | b"true"),
        state: BString::default(),
    })
}

fn is_valid<const N: usize>(id: &[u8; N]) -> bool {
    id.iter().any(|byte| *byte != 0)
}

/// Bytes from hexadecimal digits, which must be lower case (section 3.2.2.3).
fn parse_hex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    if text.len() != 2 * N {
        return None;
    }
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

fn write_hex(bytes: &[u8], out: &mut [u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for (byte, pair) in bytes.iter().zip(out.chunks_exact_mut(2)) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
}

/// Random bytes that are taken from the kernel at a time: enough for 170 requests.
const RANDOM_STOCK: usize = 4096;

/// Random bytes of one loop.
struct RandomStock {
    bytes: [u8; RANDOM_STOCK],
    used: usize,
}

rt::local! {
    static STOCK: RefCell<RandomStock> = const { RefCell::new(RandomStock { bytes: [0; RANDOM_STOCK], used: RANDOM_STOCK }) };
}

/// A random identifier. All of it is random, so that samplers of other programs can take any part (section 3.2.2.3).
pub(super) fn random_id<const N: usize>() -> [u8; N] {
    STOCK.with_borrow_mut(|stock| {
        loop {
            if stock.used + N > RANDOM_STOCK {
                // Without the kernel's randomness, the same bytes serve again: identifiers are no secrets.
                let _ = rt::random::fill(&mut stock.bytes);
                stock.used = 0;
            }
            let mut id = [0; N];
            id.copy_from_slice(&stock.bytes[stock.used..stock.used + N]);
            stock.used += N;
            if is_valid(&id) {
                return id;
            }
            // Only if the kernel refuses at the very first time.
            stock.bytes[stock.used % RANDOM_STOCK] = 1;
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_traceparent_is_written_as_it_was_read() {
        let incoming = parse_traceparent(GOOD.as_bytes()).expect("it is one");
        let context = TraceContext {
            trace_id: incoming.trace_id,
            span_id: incoming.span_id,
            parent: None,
        };
        let text = context.traceparent(&context.span_id, incoming.sampled);
        assert_eq!(text.as_bstr(), GOOD);
        let b3 = context.b3(&context.span_id, true);
        assert_eq!(parse_b3(&b3), Some(incoming));
    }

    #[test]
    fn what_the_specification_refuses_is_none() {
        for (text, is_one) in [
            (GOOD.to_owned(), true),
            (format!(" {GOOD} "), true),
            (GOOD.replace("-01", "-03"), true),
            (GOOD.replace("00-0a", "01-0a"), true),
            (format!("{}-later", GOOD.replace("00-0a", "cc-0a")), true),
            (format!("{GOOD}-later"), false),
            (format!("{}later", GOOD.replace("00-0a", "cc-0a")), false),
            (GOOD.replace("00-0a", "ff-0a"), false),
            (GOOD.replace("af765", "AF765"), false),
            (
                GOOD.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
                false,
            ),
            (GOOD.replace("b7ad6b7169203331", &"0".repeat(16)), false),
            (GOOD.replace("-01", "-0"), false),
            (GOOD.replace('-', "_"), false),
            (String::new(), false),
        ] {
            assert_eq!(
                parse_traceparent(text.as_bytes()).is_some(),
                is_one,
                "{text}"
            );
        }
    }

    #[test]
    fn no_text_makes_it_panic() {
        for end in 0..GOOD.len() {
            for byte in [0, b'-', b'f', 0xff] {
                let mut text = GOOD.as_bytes()[..end].to_vec();
                text.push(byte);
                let _ = (parse_traceparent(&text), parse_b3(&text));
            }
        }
    }

    #[test]
    fn identifiers_differ() {
        let many: std::collections::HashSet<SpanId> = (0..2000).map(|_| random_id()).collect();
        assert_eq!(many.len(), 2000);
    }
}
