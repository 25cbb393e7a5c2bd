//! Writes the head of a response on an HTTP/2 stream.

use std::rc::Rc;

use proto::fields::Fields;
use proto::h2::hpack::HpackEncoder;

use super::stream::Http2Stream;
use crate::request::Request;
use crate::response_section::{each_field, each_of, prepare_head};

/// Appends the head of the response. `ends`: nothing follows. Returns its size on the wire.
pub(super) fn write_head(request: &mut Request, stream: &Rc<Http2Stream>, ends: bool) -> usize {
    let status = prepare_head(request, "http2");
    stream.write_headers(ends, |encoder, out| {
        encoder.status(status, out);
        each_field(request, |known, name, value, secrecy| {
            encoder.field(known, name, value, secrecy, out);
        });
    })
}

/// Encodes trailers: a header block of these fields alone.
pub(super) fn write_fields(fields: &Fields, encoder: &mut HpackEncoder, out: &mut Vec<u8>) {
    each_of(fields, |known, name, value, secrecy| {
        encoder.field(known, name, value, secrecy, out);
    });
}
