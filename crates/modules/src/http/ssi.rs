//! `ssi`: server side includes: commands in pages for includes, variables and conditions.
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
//! How a page is processed: [`scanner`] finds the commands, [`ssi_body`] executes them in order and
//! is the resulting body, [`shared_page`] is the state that a page shares with all that it includes,
//! [`condition`] evaluates the expressions of `if`. Includes run concurrently, as far ahead as
//! [`ssi_body`] looks; their content is pulled when its turn comes. Commands: `include`, `echo`,
//! `set`, `config`, `if` `elif` `else` `endif`, `block` `endblock`. Unlike in nginx, an `if` may be
//! nested in another.
//!
//! A page can include itself, and pages may come from users, so everything is bounded: 32 includes
//! run at once, a page has at most 60,000, each weighted by its nesting depth, and its variables
//! and blocks are limited to 1 MB.

mod commands;
mod condition;
mod date;
mod scanner;
mod shared_page;
mod ssi_body;

use conf::{
    Arity, Directive, DirectiveTable, HTTP_SERVER_LOCATION, HTTP_SERVER_LOCATION_IF, RepeatRule,
    Setter, Variable,
};
use http::response_body::ResponseBody;
use http::{FilterVerdict, HttpModule, Request};

use crate::shared::media_types::MediaTypes;
use ssi_body::SsiBody;

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "ssi",
    doc: "Processes SSI commands in responses.",
    location: &DIRECTIVES,
    filter: Some(ssi_filter),
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
    commit: |_, _| date::load_local_zone(),
    explain: http::module::ModuleExplain::Depends(&[(http::HttpPhase::Content, &["ssi"])]),
    ..HttpModule::EMPTY
};

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::<Conf>::new(&[
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
            RepeatRule::Fresh(|c| c.types.clear()),
            |c, line| c.types.read(line, &["text/html"]),
        ),
    },
    Directive {
        // Off, so that mistakes in pages are seen.
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
        // nginx's default; a bound, since values are kept in memory.
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
    // Regular expressions in pages are compiled just in time, while pages are served.
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
    /// Without effect.
    min_file_chunk: u64,
    /// Without effect.
    ignore_recycled: bool,
}

/// The bound of `ssi_value_length`, since values are kept in memory.
const MAX_VALUE: u64 = 64 * 1024;

/// The filter: replaces the body by one that executes the commands.
fn ssi_filter(request: &mut Request) -> FilterVerdict {
    let conf = request.conf::<Conf>();
    if request.out.is_said_to_be_empty() || !conf.types.has(&request.out.content_type) {
        return FilterVerdict::Pass;
    }
    let page = shared_page::page_of(request);
    let out = &mut request.out;
    let body = std::mem::take(&mut out.body);
    out.content_changes();
    // Includes and variables may change without the file.
    if !conf.last_modified {
        out.drop_validators();
    }
    // At most `MAX_VALUE`, which fits.
    let max_value = conf.value_length.min(MAX_VALUE) as usize;
    out.body = ResponseBody::stream(SsiBody::new(body, page, max_value, conf.silent_errors));
    FilterVerdict::Pass
}
