//! `gzip`: compresses responses on their way.
//!
//! ```nginx
//! gzip            on;
//! gzip_types      text/css application/javascript application/json image/svg+xml;
//! gzip_min_length 1000;
//! ```
//!
//! Only for clients that take it (see `gzip_proxied` and its neighbours), only for the types that are named, and not
//! for what is encoded already. A strong entity tag becomes a weak one, ranges are no longer offered. What compresses
//! is [`crate::shared::compression`], with the encoder of [`encoder`].

mod encoder;

use std::rc::Rc;

use conf::{
    Arity, Buffers, Diagnostic, Directive, HTTP_SERVER_LOCATION, HTTP_SERVER_LOCATION_IF, Line,
    Repeat, Setter, Table, Variable,
};
use http::{Module, Request, Verdict};

use encoder::Encoder;

use crate::shared::compression::{self, Choice, ratio};

pub(crate) static MODULE: Module = Module {
    name: "gzip",
    doc: "Compresses responses with gzip.",
    location: &DIRECTIVES,
    filter: Some(compress),
    enabled: |location| location.confs.get::<Conf>().on,
    variables: &[Variable::new(
        "gzip_ratio",
        ratio::<Encoder>,
        "The compression ratio achieved.",
    )
    .volatile()],
    ..Module::EMPTY
};

static DIRECTIVES: Table<Conf> = Table::new(&[
    Directive {
        name: "gzip",
        syntax: "on | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION_IF,
        since: "0.1",
        doc: "Enables gzip compression.",
        set: Setter::Flag(|c| &mut c.on),
    },
    Directive {
        name: "gzip_types",
        syntax: "mime-type … | *",
        default: Some("text/html"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The media types to compress, in addition to `text/html`, which is always compressed. `*` means all.",
        set: Setter::Custom(
            Arity::at_least(1),
            Repeat::Fresh(|c| c.choice.types.clear()),
            |c, line| c.choice.types.read(line, &["text/html"]),
        ),
    },
    Directive {
        name: "gzip_comp_level",
        syntax: "level",
        default: Some("1"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The compression level, from 1 to 9. Levels above 6 gain little and cost much CPU time.",
        set: Setter::Number(|c| &mut c.level, 1, 9),
    },
    Directive {
        name: "gzip_min_length",
        syntax: "length",
        default: Some("20"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The minimum length of a response to compress; responses of unknown length are always compressed.",
        set: Setter::Size(|c| &mut c.choice.min_length),
    },
    Directive {
        name: "gzip_buffers",
        syntax: "number size",
        default: Some("32 4k"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Accepted; Weir sizes its buffers itself.",
        set: Setter::Buffers(|c| &mut c.buffers),
    },
    Directive {
        name: "gzip_window",
        syntax: "size",
        default: Some("32k"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Accepted, from 512 bytes to 32k; the window is always 32k.",
        set: Setter::Custom(Arity::ONE, Repeat::Once, |_, line| {
            power_of_two(line, 512, 32 * 1024)
        }),
    },
    Directive {
        name: "gzip_hash",
        syntax: "size",
        default: Some("64k"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Accepted, from 512 bytes to 128k; has no effect.",
        set: Setter::Custom(Arity::ONE, Repeat::Once, |_, line| {
            power_of_two(line, 512, 128 * 1024)
        }),
    },
    Directive {
        name: "postpone_gzipping",
        syntax: "size",
        default: Some("0"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Accepted; output is always gathered until there is enough to send.",
        set: Setter::Size(|c| &mut c.postponed),
    },
    Directive {
        name: "gzip_no_buffer",
        syntax: "on | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Accepted; has no effect.",
        set: Setter::Flag(|c| &mut c.unbuffered),
    },
]);

#[derive(Clone, Debug, Default)]
struct Conf {
    on: bool,
    choice: Choice,
    level: i64,
    /// Accepted.
    buffers: Buffers,
    /// Accepted.
    postponed: u64,
    /// Accepted.
    unbuffered: bool,
}

fn power_of_two(line: &mut Line, min: u64, max: u64) -> Result<(), Diagnostic> {
    let size = line.size(0)?;
    if size.is_power_of_two() && (min..=max).contains(&size) {
        return Ok(());
    }
    Err(line
        .directive_error_at(0, "must be a power of two")
        .note(format!("from {min} to {max} bytes")))
}

fn compress(request: &mut Request) -> Verdict {
    let site = Rc::clone(&request.site);
    let conf = site.location(request.location).confs.get::<Conf>();
    compression::apply(request, b"gzip", &conf.choice, |_| {
        Ok(Encoder::new(conf.level))
    })
}
