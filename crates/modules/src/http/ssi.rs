//! `ssi`: commands in pages, which the server carries out: includes, variables, conditions.
//!
//! ```nginx
//! location / { ssi on; }
//! ```
//!
//! ```text
//! <!--#include virtual="/head.html" -->
//! <!--#if expr="$remote_user" --> Welcome, <!--#echo var="remote_user" -->. <!--#endif -->
//! ```
//!
//! The way of a page: [`scanner`] finds the commands, [`weaver`] carries them out in order and is the body that comes
//! of it, [`page`] is what a page and all that it includes have in common, [`condition`] judges what `if` says.
//! Includes run side by side, as far ahead as [`weaver`] looks; their content is pulled when it is its turn. Commands:
//! `include`, `echo`, `set`, `config`, `if` `elif` `else` `endif`, `block` `endblock`. Unlike in nginx, an `if` may
//! stand inside another.

mod commands;
mod condition;
mod date;
mod page;
mod scanner;
mod weaver;

use conf::{
    Arity, Directive, HTTP_SERVER_LOCATION, HTTP_SERVER_LOCATION_IF, Repeat, Setter, Table,
    Variable,
};
use http::body::Body;
use http::{Module, Request, Verdict};

use crate::shared::media_types::MediaTypes;
use weaver::Weaver;

pub(crate) static MODULE: Module = Module {
    name: "ssi",
    doc: "Processes SSI commands in responses.",
    location: &DIRECTIVES,
    filter: Some(weave),
    enabled: |location| location.confs.get::<Conf>().on,
    variables: &[
        Variable::new(
            "date_local",
            date::local,
            "The local time, in the format set by `config timefmt`.",
        )
        .volatile(),
        Variable::new(
            "date_gmt",
            date::gmt,
            "The time in GMT, in the format set by `config timefmt`.",
        )
        .volatile(),
    ],
    commit: |_, _| {
        date::prepare();
        Ok(())
    },
    ..Module::EMPTY
};

static DIRECTIVES: Table<Conf> = Table::<Conf>::new(&[
    Directive {
        name: "ssi",
        syntax: "on | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION_IF,
        since: "0.1",
        doc: "Enables the processing of SSI commands.",
        set: Setter::Flag(|c| &mut c.on),
    },
    Directive {
        name: "ssi_types",
        syntax: "mime-type … | *",
        default: Some("text/html"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The media types to process, in addition to `text/html`. `*` means all.",
        set: Setter::Custom(
            Arity::at_least(1),
            Repeat::Fresh(|c| c.types.clear()),
            |c, line| c.types.read(line, &["text/html"]),
        ),
    },
    Directive {
        name: "ssi_silent_errors",
        syntax: "on | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Whether to output nothing instead of the `config errmsg` text when a command fails.",
        set: Setter::Flag(|c| &mut c.silent_errors),
    },
    Directive {
        name: "ssi_last_modified",
        syntax: "on | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Whether to keep `Last-Modified` and a weak entity tag. By default both are removed, since the page can \
              change while the file does not.",
        set: Setter::Flag(|c| &mut c.last_modified),
    },
    Directive {
        name: "ssi_value_length",
        syntax: "length",
        default: Some("255"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The maximum length of a parameter value in SSI commands.",
        set: Setter::Size(|c| &mut c.value_length),
    },
    Directive {
        name: "ssi_min_file_chunk",
        syntax: "size",
        default: Some("1k"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Accepted; text between commands is sent from memory.",
        set: Setter::Size(|c| &mut c.min_file_chunk),
    },
    Directive {
        name: "ssi_ignore_recycled_buffers",
        syntax: "on | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Accepted; has no effect.",
        set: Setter::Flag(|c| &mut c.ignore_recycled),
    },
])
.finish_changed(|conf, _, level| {
    // Expressions of pages are compiled while they are served.
    level.build.needs().executable_memory |= conf.on;
    Ok(())
});

#[derive(Clone, Debug, Default)]
struct Conf {
    on: bool,
    types: MediaTypes,
    silent_errors: bool,
    last_modified: bool,
    value_length: u64,
    /// Accepted.
    min_file_chunk: u64,
    /// Accepted.
    ignore_recycled: bool,
}

/// The longest value that `ssi_value_length` can allow: it is kept in memory.
const MAX_VALUE: u64 = 64 * 1024;

fn weave(request: &mut Request) -> Verdict {
    let conf = request.conf::<Conf>();
    if request.out.is_said_to_be_empty() || !conf.types.has(&request.out.content_type) {
        return Verdict::Pass;
    }
    let page = page::of(request);
    let out = &mut request.out;
    let body = std::mem::take(&mut out.body);
    out.content_changes();
    if !conf.last_modified {
        out.drop_validators();
    }
    // The bound makes it fit.
    let max_value = conf.value_length.min(MAX_VALUE) as usize;
    out.body = Body::stream(Weaver::new(body, page, max_value, conf.silent_errors));
    Verdict::Pass
}
