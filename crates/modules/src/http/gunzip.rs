//! `gunzip`: decompresses responses for clients that do not accept gzip.
//!
//! ```nginx
//! gzip_static always;
//! gunzip      on;
//! ```
//!
//! With it only the compressed form has to be stored, on disk or in a cache. Which clients accept
//! it is decided by `gzip_http_version` and its neighbours.
//!
//! An empty response that claims to be compressed stays empty; nginx breaks it off.

use bytes::{Buf, Bytes};
use conf::{BufferSizes, Directive, DirectiveTable, HTTP_SERVER_LOCATION, Setter};
use flate2::{Decompress, FlushDecompress, Status};
use http::response_body::BodyError;
use http::{FilterVerdict, HttpModule, Request};
use proto::KnownField;

use crate::shared::gzip_accept;
use crate::shared::transform::{BodyTransform, TransformedBody};

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "gunzip",
    doc: "Decompresses responses for clients that do not accept gzip.",
    location: &DIRECTIVES,
    filter: Some(unpack),
    enabled: |location| location.confs.get::<Conf>().on,
    explain: http::module::ModuleExplain::Depends(&[(http::HttpPhase::Content, &["gunzip"])]),
    ..HttpModule::EMPTY
};

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::new(&[
    Directive {
        name: "gunzip",
        syntax: "on | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Whether to decompress responses with `Content-Encoding: gzip` for clients that do not accept it.",
        set: Setter::Flag(|c| &mut c.on),
    },
    Directive {
        name: "gunzip_buffers",
        syntax: "number size",
        default: Some("32 4k"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Accepted; Weir sizes its buffers itself.",
        set: Setter::Buffers(|c| &mut c.buffers),
    },
]);

#[derive(Clone, Debug, Default)]
struct Conf {
    on: bool,
    /// `gunzip_buffers`, accepted for compatibility.
    buffers: BufferSizes,
}

/// The body filter.
fn unpack(request: &mut Request) -> FilterVerdict {
    let coding = request.out.fields.get_known(KnownField::ContentEncoding);
    if !coding.is_some_and(|coding| coding.eq_ignore_ascii_case(b"gzip")) {
        return FilterVerdict::Pass;
    }
    // Also if this client gets it compressed: a cache must know that others do not.
    gzip_accept::mark_varying(request);
    if gzip_accept::accepts(request) {
        return FilterVerdict::Pass;
    }
    let out = &mut request.out;
    out.fields.remove_known(KnownField::ContentEncoding);
    let body = std::mem::take(&mut out.body);
    // The length of the result is unknown, and validators belong to the compressed form.
    out.content_changes();
    out.body = TransformedBody::body(
        body,
        GzipMembers {
            decoder: decoder(),
            is_between: true,
        },
    );
    FilterVerdict::Pass
}

/// The largest window of the format, 2^15 bytes.
const WINDOW_BITS: u8 = 15;

/// How much output one step produces, in bytes. The output is bounded, not the input: a kilobyte of
/// compressed data can become a megabyte.
const ROOM: usize = 16 * 1024;

/// A decoder at the beginning of a member.
fn decoder() -> Decompress {
    Decompress::new_gzip(WINDOW_BITS)
}

/// Decompresses gzip members, of which there can be several one after the other (RFC 1952, section
/// 2.2).
struct GzipMembers {
    decoder: Decompress,
    /// The previous member is complete and nothing of the next one has arrived: a good place to
    /// end.
    is_between: bool,
}

impl BodyTransform for GzipMembers {
    fn push(
        &mut self,
        request: &mut Request,
        input: &mut Bytes,
        out: &mut Vec<u8>,
    ) -> Result<(), BodyError> {
        out.reserve(ROOM);
        let (read, written) = (self.decoder.total_in(), self.decoder.total_out());
        let status = self
            .decoder
            .decompress_vec(input, out, FlushDecompress::None);
        let used = (self.decoder.total_in() - read) as usize;
        input.advance(used.min(input.len()));
        self.is_between = false;
        match status {
            Ok(Status::StreamEnd) => {
                // More members may follow; the end of the content shows whether they do.
                self.decoder = decoder();
                self.is_between = true;
                Ok(())
            }
            // Progress in either direction is enough; without any, this would loop forever.
            Ok(Status::Ok | Status::BufError) if used > 0 || self.decoder.total_out() > written => {
                Ok(())
            }
            Ok(Status::Ok | Status::BufError) => Err(inflate_error(request, NO_PROGRESS)),
            Err(_) => Err(inflate_error(request, WRONG_DATA)),
        }
    }

    fn end(&mut self, request: &mut Request, out: &mut Vec<u8>) -> Result<(), BodyError> {
        // Output that the decoder still holds because it had no room for it.
        while !self.is_between {
            out.reserve(ROOM);
            let before = self.decoder.total_out();
            match self
                .decoder
                .decompress_vec(&[], out, FlushDecompress::Finish)
            {
                Ok(Status::StreamEnd) => self.is_between = true,
                Ok(Status::Ok | Status::BufError) if self.decoder.total_out() > before => {}
                _ => return Err(inflate_error(request, NO_PROGRESS)),
            }
        }
        Ok(())
    }
}

/// zlib's numbers of what failed, which the error log has.
const WRONG_DATA: i32 = -3;
const NO_PROGRESS: i32 = -5;

/// Logs an error. The response is cut off, so that the client can tell.
fn inflate_error(request: &Request, code: i32) -> BodyError {
    request.error(format_args!("inflate() failed: 0, {code}"));
    BodyError::Producer
}
