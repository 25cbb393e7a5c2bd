//! `brotli` and `brotli_static`: Brotli (RFC 7932), on the way and from files that were compressed beforehand.
//!
//! ```nginx
//! brotli            on;
//! brotli_types      text/css application/javascript application/json image/svg+xml;
//! brotli_comp_level 5;
//! brotli_static     on;    # /app.js is answered with /app.js.br for clients that take br
//! ```
//!
//! nginx has no such module in its tree; the names are those of the well-known one. Where `gzip` is on as well, clients
//! that take both get Brotli. Which clients take compressed content at all, `gzip_vary`, `gzip_proxied` and their
//! neighbours say for every coding.

use std::io::{self, Write};
use std::rc::Rc;

use ::brotli::CompressorWriter;
use ::brotli::enc::BrotliEncoderParams;
use conf::{
    Arity, Buffers, Directive, HTTP_SERVER_LOCATION, HTTP_SERVER_LOCATION_IF, Repeat, Setter,
    Table, Variable,
};
use http::{Module, Phase, Request, Step, Verdict};

use crate::shared::compression::{self, Choice, ratio};
use crate::shared::precompressed::{self, Coding, When};

pub(crate) static MODULE: Module = Module {
    name: "brotli",
    doc: "Compresses responses with Brotli.",
    location: &DIRECTIVES,
    filter: Some(compress),
    enabled: |location| location.confs.get::<Conf>().on,
    variables: &[Variable::new(
        "brotli_ratio",
        ratio::<Encoder>,
        "The compression ratio achieved by Brotli.",
    )
    .volatile()],
    ..Module::EMPTY
};

pub(crate) static STATIC: Module = Module {
    name: "brotli_static",
    doc: "Serves precompressed Brotli files.",
    location: &STATIC_DIRECTIVES,
    phases: &[(Phase::Content, serve)],
    enabled: |location| location.confs.get::<StaticConf>().when != When::Off,
    ..Module::EMPTY
};

static DIRECTIVES: Table<Conf> = Table::new(&[
    Directive {
        name: "brotli",
        syntax: "on | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION_IF,
        since: "0.2",
        doc: "Enables Brotli compression for clients that accept `br`.",
        set: Setter::Flag(|c| &mut c.on),
    },
    Directive {
        name: "brotli_types",
        syntax: "mime-type … | *",
        default: Some("text/html"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.2",
        doc: "The media types to compress, in addition to `text/html`, which is always compressed. `*` means all.",
        set: Setter::Custom(
            Arity::at_least(1),
            Repeat::Fresh(|c| c.choice.types.clear()),
            |c, line| c.choice.types.read(line, &["text/html"]),
        ),
    },
    Directive {
        name: "brotli_comp_level",
        syntax: "level",
        default: Some("6"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.2",
        doc: "The compression level, from 0 to 11. From 7 on, compression runs in the thread pool, because a single \
              step would block the event loop.",
        set: Setter::Number(|c| &mut c.level, 0, 11),
    },
    Directive {
        name: "brotli_window",
        syntax: "size",
        default: Some("512k"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.2",
        doc: "The size of the compression window: a power of two from 1k to 16m. Each response being compressed needs \
              that much memory.",
        set: Setter::Custom(Arity::ONE, Repeat::Once, |c, line| {
            let size = line.size(0)?;
            if size.is_power_of_two() && (1024..=16 * 1024 * 1024).contains(&size) {
                c.window_bits = size.trailing_zeros();
                return Ok(());
            }
            Err(line
                .directive_error_at(0, "must be a power of two")
                .note("from 1k to 16m"))
        }),
    },
    Directive {
        name: "brotli_min_length",
        syntax: "length",
        default: Some("20"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.2",
        doc: "The minimum length of a response to compress; responses of unknown length are always compressed.",
        set: Setter::Size(|c| &mut c.choice.min_length),
    },
    Directive {
        name: "brotli_buffers",
        syntax: "number size",
        default: Some("32 4k"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.2",
        doc: "Accepted; Weir sizes its buffers itself.",
        set: Setter::Buffers(|c| &mut c.buffers),
    },
]);

#[derive(Clone, Debug, Default)]
struct Conf {
    on: bool,
    choice: Choice,
    level: i64,
    window_bits: u32,
    /// Accepted.
    buffers: Buffers,
}

fn compress(request: &mut Request) -> Verdict {
    let site = Rc::clone(&request.site);
    let conf = site.location(request.location).confs.get::<Conf>();
    compression::apply(request, b"br", &conf.choice, |length| {
        Ok(Encoder::new(conf.level, conf.window_bits, length))
    })
}

/// The highest level of which a step stays within a turn of the loop: above it, Brotli gathers up to 256 KB and then
/// takes tens of milliseconds for them.
const QUICK_LEVEL: i64 = 6;

/// What the writer gathers before it writes, in bytes.
const BUFFER: usize = 8 * 1024;

/// The smallest window of the format: 2^10 bytes.
const LEAST_WINDOW_BITS: u32 = 10;

/// Compresses one response.
struct Encoder {
    /// There until the end.
    writer: Option<CompressorWriter<Vec<u8>>>,
    is_slow: bool,
}

impl Encoder {
    fn new(level: i64, window_bits: u32, length: Option<u64>) -> Encoder {
        // A window larger than the content costs memory and wins nothing.
        let needed = length.map_or(window_bits, |length| {
            length
                .checked_ilog2()
                .map_or(LEAST_WINDOW_BITS, |log| log + 1)
        });
        let params = BrotliEncoderParams {
            quality: i32::try_from(level).unwrap_or(6),
            lgwin: needed.clamp(LEAST_WINDOW_BITS, window_bits.max(LEAST_WINDOW_BITS)) as i32,
            size_hint: length
                .and_then(|length| usize::try_from(length).ok())
                .unwrap_or(0),
            ..BrotliEncoderParams::default()
        };
        Encoder {
            writer: Some(CompressorWriter::with_params(Vec::new(), BUFFER, &params)),
            is_slow: level > QUICK_LEVEL,
        }
    }

    fn write(
        &mut self,
        out: &mut Vec<u8>,
        write: impl FnOnce(&mut CompressorWriter<Vec<u8>>) -> io::Result<()>,
    ) -> io::Result<()> {
        let Some(writer) = &mut self.writer else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        write(writer)?;
        out.append(writer.get_mut());
        Ok(())
    }
}

impl compression::Encoder for Encoder {
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

static STATIC_DIRECTIVES: Table<StaticConf> = Table::new(&[Directive {
    name: "brotli_static",
    syntax: "on | off | always",
    default: Some("off"),
    contexts: HTTP_SERVER_LOCATION,
    since: "0.2",
    doc: "Serves the precompressed file `NAME.br` instead of `NAME`: to clients that accept `br` (`on`), or to all \
          (`always`).",
    set: Setter::Word(&When::WORDS, |c, i| c.when = When::from_index(i)),
}]);

#[derive(Clone, Debug, Default)]
struct StaticConf {
    when: When,
}

static BROTLI: Coding = Coding {
    name: b"br",
    suffix: b".br",
};

fn serve(request: &mut Request) -> Step<'_> {
    let when = request.conf::<StaticConf>().when;
    precompressed::serve(request, &BROTLI, when)
}
