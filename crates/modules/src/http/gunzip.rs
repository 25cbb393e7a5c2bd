//! `gunzip`: unpacks compressed responses for clients that do not take them.
//!
//! ```nginx
//! gzip_static always;
//! gunzip      on;
//! ```
//!
//! So that only one form has to be kept, on disk or in a cache. Which clients take compressed content,
//! `gzip_http_version` and its neighbours say.

use bytes::{Buf, Bytes};
use conf::{Buffers, Directive, HTTP_SERVER_LOCATION, Setter, Table};
use flate2::{Decompress, FlushDecompress, Status};
use http::body::BodyError;
use http::{Module, Request, Verdict};
use proto::Known;

use crate::shared::gzip_accept;
use crate::shared::transform::{Transform, Transformed};

pub(crate) static MODULE: Module = Module {
    name: "gunzip",
    doc: "Decompresses responses for clients that do not accept gzip.",
    location: &DIRECTIVES,
    filter: Some(unpack),
    enabled: |location| location.confs.get::<Conf>().on,
    ..Module::EMPTY
};

static DIRECTIVES: Table<Conf> = Table::new(&[
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
    /// Accepted.
    buffers: Buffers,
}

fn unpack(request: &mut Request) -> Verdict {
    let coding = request.out.fields.get_known(Known::ContentEncoding);
    if !coding.is_some_and(|coding| coding.eq_ignore_ascii_case(b"gzip")) {
        return Verdict::Pass;
    }
    gzip_accept::varies(request);
    if gzip_accept::accepts(request) {
        return Verdict::Pass;
    }
    let out = &mut request.out;
    out.fields.remove_known(Known::ContentEncoding);
    let body = std::mem::take(&mut out.body);
    out.content_changes();
    out.body = Transformed::body(
        body,
        Members {
            decoder: decoder(),
            is_between: true,
        },
    );
    Verdict::Pass
}

/// The largest window of the format, 2^15 bytes.
const WINDOW_BITS: u8 = 15;

/// Content that is unpacked in one go, in bytes. A kilobyte that is packed may be a megabyte: the output is bounded,
/// not the input.
const ROOM: usize = 16 * 1024;

fn decoder() -> Decompress {
    Decompress::new_gzip(WINDOW_BITS)
}

/// Unpacks gzip members, of which there may be several one after the other (RFC 1952, section 2.2).
struct Members {
    decoder: Decompress,
    /// Nothing of the present member has come yet.
    is_between: bool,
}

impl Transform for Members {
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
                self.decoder = decoder();
                self.is_between = true;
                Ok(())
            }
            Ok(Status::Ok | Status::BufError) if used > 0 || self.decoder.total_out() > written => {
                Ok(())
            }
            Ok(Status::Ok | Status::BufError) => Err(failed(request, "it makes no progress")),
            Err(error) => Err(failed(request, &error.to_string())),
        }
    }

    fn end(&mut self, request: &mut Request, out: &mut Vec<u8>) -> Result<(), BodyError> {
        // What the decoder had no room for: there was no more input to ask with.
        while !self.is_between {
            out.reserve(ROOM);
            let before = self.decoder.total_out();
            match self
                .decoder
                .decompress_vec(&[], out, FlushDecompress::Finish)
            {
                Ok(Status::StreamEnd) => self.is_between = true,
                Ok(Status::Ok | Status::BufError) if self.decoder.total_out() > before => {}
                _ => return Err(failed(request, "it ends prematurely")),
            }
        }
        Ok(())
    }
}

fn failed(request: &Request, why: &str) -> BodyError {
    request.error(format_args!(
        "inflate() failed: {why} while decompressing the response"
    ));
    BodyError::Producer
}
