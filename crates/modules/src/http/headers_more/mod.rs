//! `more_set_headers` and its kin: fields of responses and of requests set, replaced and taken away, as the module
//! headers-more has them.
//!
//! ```nginx
//! more_clear_headers     Server "X-Powered-*";
//! more_set_headers       -s "404 500" -t text/html "X-Frame-Options: DENY";
//! more_set_input_headers "X-Real-IP: $remote_addr";
//! ```
//!
//! Unlike those of `add_header`, the lines of a block come on top of those of the outer block, count for every status, and
//! take the place of what a response has. They see it before `add_header`, `expires` and compression do. Lines about
//! requests work when the rewrites of the location are over.

mod line;
mod request;
mod response;

use std::sync::Arc;

use conf::{Arity, Directive, HTTP_SERVER_LOCATION_IF, Repeat, Setter, Table};
use http::{Module, Phase};

use self::line::{Change, Direction};

pub(crate) static MODULE: Module = Module {
    name: "headers_more",
    doc: "Sets, replaces and removes response and request headers.",
    location: &DIRECTIVES,
    filter: Some(response::change),
    enabled: |location| !location.confs.get::<Conf>().response.is_empty(),
    ..Module::EMPTY
};

/// Requests are changed at the end of the phase: behind scripts.
pub(crate) static INPUT: Module = Module {
    name: "headers_more_input",
    doc: "The part of `headers_more` that changes requests.",
    phases: &[(Phase::Rewrite, request::change)],
    enabled: |location| !location.confs.get::<Conf>().request.is_empty(),
    ..Module::EMPTY
};

static DIRECTIVES: Table<Conf> = Table::<Conf>::new(&[
    Directive {
        name: "more_set_headers",
        syntax: "[-a] [-s statuses] [-t types] 'name: value' ...",
        default: None,
        contexts: HTTP_SERVER_LOCATION_IF,
        since: "0.1",
        doc: "Sets response headers, replacing those of the same name; without a value, the header is removed. `-s` \
              and `-t` restrict this to responses with these statuses and media types; `-a` adds a header instead of \
              replacing. May contain variables.",
        set: Setter::Custom(Arity::at_least(1), Repeat::Many, |c, line| {
            c.response.push(Change::read(line, Direction::Response, true)?);
            Ok(())
        }),
    },
    Directive {
        name: "more_clear_headers",
        syntax: "[-s statuses] [-t types] name ...",
        default: None,
        contexts: HTTP_SERVER_LOCATION_IF,
        since: "0.1",
        doc: "Removes response headers. A name that ends with `*` matches as a prefix.",
        set: Setter::Custom(Arity::at_least(1), Repeat::Many, |c, line| {
            c.response.push(Change::read(line, Direction::Response, false)?);
            Ok(())
        }),
    },
    Directive {
        name: "more_set_input_headers",
        syntax: "[-r] [-t types] 'name: value' ...",
        default: None,
        contexts: HTTP_SERVER_LOCATION_IF,
        since: "0.1",
        doc: "Sets request headers, replacing those of the same name; without a value, the header is removed. `-t` \
              restricts this to requests with these media types; `-r` only replaces headers that are present. May \
              contain variables.",
        set: Setter::Custom(Arity::at_least(1), Repeat::Many, |c, line| {
            c.request.push(Change::read(line, Direction::Request, true)?);
            Ok(())
        }),
    },
    Directive {
        name: "more_clear_input_headers",
        syntax: "[-t types] name ...",
        default: None,
        contexts: HTTP_SERVER_LOCATION_IF,
        since: "0.1",
        doc: "Removes request headers. A name that ends with `*` matches as a prefix.",
        set: Setter::Custom(Arity::at_least(1), Repeat::Many, |c, line| {
            c.request.push(Change::read(line, Direction::Request, false)?);
            Ok(())
        }),
    },
])
.finish_changed(|conf, _, _| {
    conf.response.finish();
    conf.request.finish();
    Ok(())
});

/// What the lines of a block and of those around it say.
#[derive(Clone, Debug, Default)]
struct Conf {
    response: Changes,
    request: Changes,
}

/// Lines, those of outer blocks first.
#[derive(Clone, Debug, Default)]
struct Changes {
    all: Arc<[Change]>,
    /// The lines of the block that is being read.
    own: Vec<Change>,
}

impl Changes {
    fn push(&mut self, change: Change) {
        self.own.push(change);
    }

    fn finish(&mut self) {
        if self.own.is_empty() {
            return;
        }
        let own = std::mem::take(&mut self.own);
        self.all = self.all.iter().cloned().chain(own).collect();
    }

    fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}
