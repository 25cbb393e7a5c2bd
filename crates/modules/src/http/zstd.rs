//! `zstd` and `zstd_static`: Zstandard (RFC 8878), compressed on the fly or taken from
//! precompressed files.
//!
//! ```nginx
//! zstd            on;
//! zstd_types      text/css application/javascript application/json image/svg+xml;
//! zstd_comp_level 3;
//! zstd_static     on;    # /app.js is answered with /app.js.zst for clients that take zstd
//! ```
//!
//! nginx itself has no such module; the names are those of the well-known third-party one. If other
//! codings are enabled as well, Brotli is preferred to Zstandard, and Zstandard to gzip.

use std::io;

use ::zstd::stream::raw::{CParameter, Encoder as Raw, InBuffer, Operation, OutBuffer};
use conf::{Directive, DirectiveTable, HTTP_SERVER_LOCATION, Setter, Variable};
use http::{HandlerStep, HttpModule, HttpPhase, Request};

use crate::shared::compression::{ContentEncoder, write_ratio};
use crate::shared::compression_rows::{self, CompressionConf, ResponseCoding};
use crate::shared::precompressed::{self, PrecompressedCoding, StaticMode};

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "zstd",
    doc: "Compresses responses with Zstandard.",
    location: &DIRECTIVES,
    identifies_content: true,
    filter: Some(compression_rows::compress::<ZstdEncoder>),
    enabled: compression_rows::is_on::<ZstdEncoder>,
    variables: &[Variable::new(
        "zstd_ratio",
        write_ratio::<ZstdEncoder>,
        "The compression ratio achieved by Zstandard.",
    )
    .volatile()],
    explain: http::module::ModuleExplain::Runs(&["zstd"]),
    ..HttpModule::EMPTY
};

pub(crate) static STATIC: HttpModule = HttpModule {
    name: "zstd_static",
    doc: "Serves precompressed Zstandard files.",
    location: &STATIC_DIRECTIVES,
    phases: &[(HttpPhase::Content, serve)],
    enabled: |location| location.confs.get::<ZstdStaticConf>().mode != StaticMode::Off,
    explain: http::module::ModuleExplain::ServesFiles(".zst"),
    ..HttpModule::EMPTY
};

static DIRECTIVES: DirectiveTable<CompressionConf<ZstdSettings>> = DirectiveTable::new(&[
    compression_rows::switch(
        "zstd",
        "0.2",
        "Enables Zstandard compression for clients that accept `zstd`.",
    ),
    compression_rows::types("zstd_types", "0.2"),
    compression_rows::level(
        // The third-party module's default.
        "zstd_comp_level",
        "0.2",
        "1",
        (1, 22),
        "The compression level, from 1 to 22. From 10 on, compression runs in the thread pool, because a single \
         step would block the event loop.",
    ),
    compression_rows::min_length("zstd_min_length", "0.2"),
    compression_rows::buffers("zstd_buffers", "0.2"),
]);

/// Zstandard has no settings of its own.
#[derive(Clone, Default)]
struct ZstdSettings;

/// The highest level at which a step is short enough for an event loop: a block of 128 KB takes 3
/// ms. Higher levels run in the thread pool.
const QUICK_LEVEL: i64 = 9;

/// The largest window that every client must support: 2^23 bytes (RFC 9659).
const WINDOW_BITS: u32 = 23;

/// The compression of one response.
struct ZstdEncoder {
    raw: Raw<'static>,
    /// Whether steps run in the thread pool.
    is_slow: bool,
}

impl ResponseCoding for ZstdEncoder {
    /// An encoder for content of this length, if it is known.
    const NAME: &'static [u8] = b"zstd";
    type Own = ZstdSettings;

    fn start(conf: &CompressionConf<ZstdSettings>, length: Option<u64>) -> io::Result<ZstdEncoder> {
        let level = conf.level;
        // The row keeps it between 1 and 22.
        let mut raw = Raw::new(level as i32)?;
        // Lower levels stay within this window by themselves.
        if level > QUICK_LEVEL {
            raw.set_parameter(CParameter::WindowLog(WINDOW_BITS))?;
        }
        // Sizes the tables for short content, and puts the length into the frame header.
        raw.set_pledged_src_size(length)?;
        Ok(ZstdEncoder {
            raw,
            is_slow: level > QUICK_LEVEL,
        })
    }
}

impl ContentEncoder for ZstdEncoder {
    fn push(&mut self, input: &[u8], out: &mut Vec<u8>) -> io::Result<usize> {
        let at = out.len();
        let mut input = InBuffer::around(input);
        self.raw
            .run(&mut input, &mut OutBuffer::around_pos(out, at))?;
        Ok(input.pos())
    }

    fn flush(&mut self, out: &mut Vec<u8>) -> io::Result<bool> {
        let at = out.len();
        Ok(self.raw.flush(&mut OutBuffer::around_pos(out, at))? == 0)
    }

    fn finish(&mut self, out: &mut Vec<u8>) -> io::Result<bool> {
        let at = out.len();
        let left = self.raw.finish(&mut OutBuffer::around_pos(out, at), true)?;
        Ok(left == 0)
    }

    fn is_slow(&self) -> bool {
        self.is_slow
    }
}

static STATIC_DIRECTIVES: DirectiveTable<ZstdStaticConf> = DirectiveTable::new(&[Directive {
    name: "zstd_static",
    syntax: "on | off | always",
    default: Some("off"),
    contexts: HTTP_SERVER_LOCATION,
    since: "0.2",
    doc: "Serves the precompressed file `NAME.zst` instead of `NAME`: to clients that accept `zstd` (`on`), or to all \
          (`always`).",
    set: Setter::Word(&StaticMode::WORDS, |c, i| {
        c.mode = StaticMode::from_index(i)
    }),
}]);

#[derive(Clone, Debug, Default)]
struct ZstdStaticConf {
    mode: StaticMode,
}

static ZSTD: PrecompressedCoding = PrecompressedCoding {
    name: b"zstd",
    suffix: b".zst",
};

/// The content handler of `zstd_static`.
fn serve(request: &mut Request) -> HandlerStep<'_> {
    let when = request.conf::<ZstdStaticConf>().mode;
    precompressed::serve(request, &ZSTD, when)
}
