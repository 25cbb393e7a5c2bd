//! `brotli` and `brotli_static`: Brotli (RFC 7932), on the fly and from precompressed files.
//!
//! ```nginx
//! brotli            on;
//! brotli_types      text/css application/javascript application/json image/svg+xml;
//! brotli_comp_level 5;
//! brotli_static     on;    # /app.js is answered with /app.js.br for clients that accept br
//! ```
//!
//! nginx has no such module in its tree; the directives are those of the well-known third-party
//! one. If `gzip` is on as well, clients that accept both get Brotli. Which clients get compressed
//! content at all is decided by `gzip_vary`, `gzip_proxied` and their neighbours, for every coding.

use std::io::{self, Write};

use ::brotli::CompressorWriter;
use ::brotli::enc::BrotliEncoderParams;
use conf::{Arity, Directive, DirectiveTable, HTTP_SERVER_LOCATION, RepeatRule, Setter, Variable};
use http::{HandlerStep, HttpModule, HttpPhase, Request};

use crate::shared::compression::{ContentEncoder, write_ratio};
use crate::shared::compression_rows::{self, CompressionConf, ResponseCoding};
use crate::shared::precompressed::{self, PrecompressedCoding, StaticMode};

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "brotli",
    doc: "Compresses responses with Brotli.",
    location: &DIRECTIVES,
    identifies_content: true,
    filter: Some(compression_rows::compress::<BrotliEncoder>),
    enabled: compression_rows::is_on::<BrotliEncoder>,
    variables: &[Variable::new(
        "brotli_ratio",
        write_ratio::<BrotliEncoder>,
        "The compression ratio achieved by Brotli.",
    )
    .volatile()],
    explain: http::module::ModuleExplain::Runs(&["brotli"]),
    ..HttpModule::EMPTY
};

pub(crate) static STATIC: HttpModule = HttpModule {
    name: "brotli_static",
    doc: "Serves precompressed Brotli files.",
    location: &STATIC_DIRECTIVES,
    phases: &[(HttpPhase::Content, serve)],
    enabled: |location| location.confs.get::<BrotliStaticConf>().mode != StaticMode::Off,
    explain: http::module::ModuleExplain::ServesFiles(".br"),
    ..HttpModule::EMPTY
};

static DIRECTIVES: DirectiveTable<CompressionConf<BrotliSettings>> = DirectiveTable::new(&[
    compression_rows::switch(
        "brotli",
        "0.2",
        "Enables Brotli compression for clients that accept `br`.",
    ),
    compression_rows::types("brotli_types", "0.2"),
    compression_rows::level(
        // The third-party module's default.
        "brotli_comp_level",
        "0.2",
        "6",
        (0, 11),
        "The compression level, from 0 to 11. From 7 on, compression runs in the thread pool, because a single \
         step would block the event loop.",
    ),
    Directive {
        // The third-party module's default.
        name: "brotli_window",
        syntax: "size",
        default: Some("512k"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.2",
        doc: "The size of the compression window: a power of two from 1k to 16m. Each response being compressed needs \
              that much memory.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, |c, line| {
            let size = line.size(0)?;
            // The format has no other sizes.
            if size.is_power_of_two() && (1024..=16 * 1024 * 1024).contains(&size) {
                c.own.window_bits = size.trailing_zeros();
                return Ok(());
            }
            Err(line
                .directive_error_at(0, "must be a power of two")
                .note("from 1k to 16m"))
        }),
    },
    compression_rows::min_length("brotli_min_length", "0.2"),
    compression_rows::buffers("brotli_buffers", "0.2"),
]);

/// What Brotli has beside the settings that all codings share.
#[derive(Clone, Default)]
struct BrotliSettings {
    window_bits: u32,
}

/// The highest level at which one step stays within a turn of the loop. Above it, Brotli gathers up
/// to 256 KB and then takes tens of milliseconds for them.
const QUICK_LEVEL: i64 = 6;

/// How much output the writer gathers before passing it on, in bytes.
const BUFFER_SIZE: usize = 8 * 1024;

/// The smallest window of the format: 2^10 bytes.
const LEAST_WINDOW_BITS: u32 = 10;

/// The encoder of one response.
struct BrotliEncoder {
    /// Taken at the end of the content, which consumes the writer.
    writer: Option<CompressorWriter<Vec<u8>>>,
    /// Whether steps run in the thread pool.
    is_slow: bool,
}

impl ResponseCoding for BrotliEncoder {
    /// An encoder for content of this length, if it is known.
    const NAME: &'static [u8] = b"br";
    type Own = BrotliSettings;

    fn variant(conf: &CompressionConf<BrotliSettings>) -> u32 {
        conf.own.window_bits
    }

    fn start(
        conf: &CompressionConf<BrotliSettings>,
        length: Option<u64>,
    ) -> io::Result<BrotliEncoder> {
        let (level, window_bits) = (conf.level, conf.own.window_bits);
        // A window larger than the content costs memory and gains nothing.
        let needed = length.map_or(window_bits, |length| {
            length
                .checked_ilog2()
                .map_or(LEAST_WINDOW_BITS, |log| log + 1)
        });
        let params = BrotliEncoderParams {
            // The row keeps it between 0 and 11.
            quality: level as i32,
            lgwin: needed.clamp(LEAST_WINDOW_BITS, window_bits.max(LEAST_WINDOW_BITS)) as i32,
            size_hint: length
                .and_then(|length| usize::try_from(length).ok())
                .unwrap_or(0),
            ..BrotliEncoderParams::default()
        };
        Ok(BrotliEncoder {
            writer: Some(CompressorWriter::with_params(
                Vec::new(),
                BUFFER_SIZE,
                &params,
            )),
            is_slow: level > QUICK_LEVEL,
        })
    }
}

impl BrotliEncoder {
    /// Runs an operation of the writer and appends its output.
    fn write(
        &mut self,
        out: &mut Vec<u8>,
        write: impl FnOnce(&mut CompressorWriter<Vec<u8>>) -> io::Result<()>,
    ) -> io::Result<()> {
        let Some(writer) = &mut self.writer else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        write(writer)?;
        // Moved rather than copied; the writer continues with an empty buffer.
        out.append(writer.get_mut());
        Ok(())
    }
}

impl ContentEncoder for BrotliEncoder {
    fn push(&mut self, input: &[u8], out: &mut Vec<u8>) -> io::Result<usize> {
        self.write(out, |writer| writer.write_all(input))?;
        Ok(input.len())
    }

    fn flush(&mut self, out: &mut Vec<u8>) -> io::Result<bool> {
        self.write(out, Write::flush)?;
        Ok(true)
    }

    fn finish(&mut self, out: &mut Vec<u8>) -> io::Result<bool> {
        if let Some(writer) = self.writer.take() {
            out.append(&mut writer.into_inner());
        }
        Ok(true)
    }

    fn is_slow(&self) -> bool {
        self.is_slow
    }
}

static STATIC_DIRECTIVES: DirectiveTable<BrotliStaticConf> = DirectiveTable::new(&[Directive {
    name: "brotli_static",
    syntax: "on | off | always",
    default: Some("off"),
    contexts: HTTP_SERVER_LOCATION,
    since: "0.2",
    doc: "Serves the precompressed file `NAME.br` instead of `NAME`: to clients that accept `br` (`on`), or to all \
          (`always`).",
    set: Setter::Word(&StaticMode::WORDS, |c, i| {
        c.mode = StaticMode::from_index(i)
    }),
}]);

#[derive(Clone, Debug, Default)]
struct BrotliStaticConf {
    mode: StaticMode,
}

static BROTLI: PrecompressedCoding = PrecompressedCoding {
    name: b"br",
    suffix: b".br",
};

/// The content handler of `brotli_static`.
fn serve(request: &mut Request) -> HandlerStep<'_> {
    let when = request.conf::<BrotliStaticConf>().mode;
    precompressed::serve(request, &BROTLI, when)
}
