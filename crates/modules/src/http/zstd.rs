//! `zstd` and `zstd_static`: Zstandard (RFC 8878), on the way and from files that were compressed beforehand.
//!
//! ```nginx
//! zstd            on;
//! zstd_types      text/css application/javascript application/json image/svg+xml;
//! zstd_comp_level 3;
//! zstd_static     on;    # /app.js is answered with /app.js.zst for clients that take zstd
//! ```
//!
//! nginx has no such module in its tree; the names are those of the well-known one. Where other codings are on as well,
//! a client that takes several gets Brotli before Zstandard before gzip.

use std::io;
use std::rc::Rc;

use ::zstd::stream::raw::{CParameter, Encoder as Raw, InBuffer, Operation, OutBuffer};
use conf::{
    Arity, Buffers, Directive, HTTP_SERVER_LOCATION, HTTP_SERVER_LOCATION_IF, Repeat, Setter,
    Table, Variable,
};
use http::{Module, Phase, Request, Step, Verdict};

use crate::shared::compression::{self, Choice, ratio};
use crate::shared::precompressed::{self, Coding, When};

pub(crate) static MODULE: Module = Module {
    name: "zstd",
    doc: "Compresses responses with Zstandard.",
    location: &DIRECTIVES,
    filter: Some(compress),
    enabled: |location| location.confs.get::<Conf>().on,
    variables: &[Variable::new(
        "zstd_ratio",
        ratio::<Encoder>,
        "The compression ratio achieved by Zstandard.",
    )
    .volatile()],
    ..Module::EMPTY
};

pub(crate) static STATIC: Module = Module {
    name: "zstd_static",
    doc: "Serves precompressed Zstandard files.",
    location: &STATIC_DIRECTIVES,
    phases: &[(Phase::Content, serve)],
    enabled: |location| location.confs.get::<StaticConf>().when != When::Off,
    ..Module::EMPTY
};

static DIRECTIVES: Table<Conf> = Table::new(&[
    Directive {
        name: "zstd",
        syntax: "on | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION_IF,
        since: "0.2",
        doc: "Enables Zstandard compression for clients that accept `zstd`.",
        set: Setter::Flag(|c| &mut c.on),
    },
    Directive {
        name: "zstd_types",
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
        name: "zstd_comp_level",
        syntax: "level",
        default: Some("1"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.2",
        doc: "The compression level, from 1 to 22. From 10 on, compression runs in the thread pool, because a single \
              step would block the event loop.",
        set: Setter::Number(|c| &mut c.level, 1, 22),
    },
    Directive {
        name: "zstd_min_length",
        syntax: "length",
        default: Some("20"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.2",
        doc: "The minimum length of a response to compress; responses of unknown length are always compressed.",
        set: Setter::Size(|c| &mut c.choice.min_length),
    },
    Directive {
        name: "zstd_buffers",
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
    /// Accepted.
    buffers: Buffers,
}

fn compress(request: &mut Request) -> Verdict {
    let site = Rc::clone(&request.site);
    let conf = site.location(request.location).confs.get::<Conf>();
    compression::apply(request, b"zstd", &conf.choice, |length| {
        Encoder::new(conf.level, length)
    })
}

/// The highest level of which a step stays within a turn of the loop: a block of 128 KB takes it 3 ms.
const QUICK_LEVEL: i64 = 9;

/// The largest window that every client must be able to hold, 2^23 bytes (RFC 9659).
const WINDOW_BITS: u32 = 23;

/// Compresses one response.
struct Encoder {
    raw: Raw<'static>,
    is_slow: bool,
}

impl Encoder {
    fn new(level: i64, length: Option<u64>) -> io::Result<Encoder> {
        let mut raw = Raw::new(i32::try_from(level).unwrap_or(1))?;
        if level > QUICK_LEVEL {
            raw.set_parameter(CParameter::WindowLog(WINDOW_BITS))?;
        }
        // Sizes the tables for short content, and lets the head say the length.
        raw.set_pledged_src_size(length)?;
        Ok(Encoder {
            raw,
            is_slow: level > QUICK_LEVEL,
        })
    }
}

impl compression::Encoder for Encoder {
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

static STATIC_DIRECTIVES: Table<StaticConf> = Table::new(&[Directive {
    name: "zstd_static",
    syntax: "on | off | always",
    default: Some("off"),
    contexts: HTTP_SERVER_LOCATION,
    since: "0.2",
    doc: "Serves the precompressed file `NAME.zst` instead of `NAME`: to clients that accept `zstd` (`on`), or to all \
          (`always`).",
    set: Setter::Word(&When::WORDS, |c, i| c.when = When::from_index(i)),
}]);

#[derive(Clone, Debug, Default)]
struct StaticConf {
    when: When,
}

static ZSTD: Coding = Coding {
    name: b"zstd",
    suffix: b".zst",
};

fn serve(request: &mut Request) -> Step<'_> {
    let when = request.conf::<StaticConf>().when;
    precompressed::serve(request, &ZSTD, when)
}
