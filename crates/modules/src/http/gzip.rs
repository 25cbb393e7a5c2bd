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
//! is [`stream`].

mod stream;

use conf::{
    Arity, Buffers, Diagnostic, Directive, HTTP_SERVER_LOCATION, HTTP_SERVER_LOCATION_IF, Line,
    Repeat, Setter, Table, Variable,
};
use http::body::Body;
use http::{Module, Request, Verdict};
use proto::Known;

use crate::shared::gzip_accept;
use crate::shared::media_types::MediaTypes;

pub(crate) static MODULE: Module = Module {
    name: "gzip",
    doc: "Compresses responses.",
    location: &DIRECTIVES,
    filter: Some(compress),
    enabled: |location| location.confs.get::<Conf>().on,
    variables: &[Variable::new(
        "gzip_ratio",
        ratio,
        "How many times shorter the compressed content is.",
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
        doc: "Whether responses are compressed.",
        set: Setter::Flag(|c| &mut c.on),
    },
    Directive {
        name: "gzip_types",
        syntax: "mime-type … | *",
        default: Some("text/html"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The media types that are compressed, besides `text/html`, which always is. `*` is all of them.",
        set: Setter::Custom(
            Arity::at_least(1),
            Repeat::Fresh(|c| c.types.clear()),
            |c, line| c.types.read(line, &["text/html"]),
        ),
    },
    Directive {
        name: "gzip_comp_level",
        syntax: "level",
        default: Some("1"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "How hard to compress, from 1 to 9. Above 6 there is little to win, and much time to lose.",
        set: Setter::Number(|c| &mut c.level, 1, 9),
    },
    Directive {
        name: "gzip_min_length",
        syntax: "length",
        default: Some("20"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Shorter responses are not compressed, if their length is known.",
        set: Setter::Size(|c| &mut c.min_length),
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
        doc: "Accepted; what is compressed is gathered anyway until there is enough to send.",
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
    types: MediaTypes,
    level: i64,
    min_length: u64,
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
    let conf = request.conf::<Conf>();
    let out = &request.out;
    if !matches!(out.status, 200 | 403 | 404)
        || out.transforms.keep_encoding
        || out
            .fields
            .get_known(Known::ContentEncoding)
            .is_some_and(|coding| !coding.is_empty())
        || out.length().is_some_and(|length| length < conf.min_length)
        || !conf.types.has(&out.content_type)
    {
        return Verdict::Pass;
    }
    gzip_accept::varies(request);
    if !gzip_accept::accepts(request) {
        return Verdict::Pass;
    }
    let out = &mut request.out;
    out.fields.remove_known(Known::ContentEncoding);
    out.fields.push_known(Known::ContentEncoding, b"gzip");
    let length = out.length();
    let body = std::mem::take(&mut out.body);
    out.content_changes();
    out.body = Body::stream(stream::Compressed::new(body, length, conf.level));
    Verdict::Pass
}

/// How much came in and went out, for `$gzip_ratio`.
struct Amounts {
    before: u64,
    after: u64,
}

fn ratio(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let Some(&mut Amounts { before, after }) = request.state::<Amounts>() else {
        return false;
    };
    if after == 0 {
        return false;
    }
    // In hundredths, rounded: 1.234 is shown as 1.23, 1.239 as 1.24.
    let hundredths = (before.saturating_mul(1000) / after).saturating_add(5) / 10;
    http::text::write_number(hundredths / 100, out);
    out.push(b'.');
    http::text::write_padded(hundredths % 100, 2, out);
    true
}
