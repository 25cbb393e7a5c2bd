//! `more_set_headers` and its kin: set, replace and remove fields of responses and requests, as the
//! third-party module headers-more does.
//!
//! ```nginx
//! more_clear_headers     Server "X-Powered-*";
//! more_set_headers       -s "404 500" -t text/html "X-Frame-Options: DENY";
//! more_set_input_headers "X-Real-IP: $remote_addr";
//! ```
//!
//! Unlike those of `add_header`, a block's lines are applied in addition to the outer block's, for
//! every status, and replace what the response has. They run before `add_header`, `expires` and
//! compression. Lines about requests run after the location's rewrites.
//!
//! Where the third-party module would break the framing of messages, this one does not:
//! `Content-Length` of a response can only be shortened, that of a request is changed for variables
//! and scripts but not for what is read and forwarded, and control characters in values are
//! escaped.

mod line;
mod request;
mod response;

use std::sync::Arc;

use conf::{Arity, Directive, DirectiveTable, HTTP_SERVER_LOCATION_IF, RepeatRule, Setter};
use http::{HttpModule, HttpPhase};

use self::line::{HeaderChange, MessageSide};

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "headers_more",
    doc: "Sets, replaces and removes response and request headers.",
    location: &DIRECTIVES,
    filter: Some(response::change),
    enabled: |location| !location.confs.get::<Conf>().response.is_empty(),
    explain: http::module::ModuleExplain::Runs(&["more_set_headers", "more_clear_headers"]),
    ..HttpModule::EMPTY
};

/// Requests are changed at the end of the rewrite phase, after scripts.
pub(crate) static INPUT: HttpModule = HttpModule {
    name: "headers_more_input",
    doc: "The part of `headers_more` that changes requests.",
    phases: &[(HttpPhase::Rewrite, request::change)],
    enabled: |location| !location.confs.get::<Conf>().request.is_empty(),
    explain: http::module::ModuleExplain::Runs(&[
        "more_set_input_headers",
        "more_clear_input_headers",
    ]),
    ..HttpModule::EMPTY
};

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::<Conf>::new(&[
    Directive {
        name: "more_set_headers",
        syntax: "[-a] [-s statuses] [-t types] 'name: value' ...",
        default: None,
        contexts: HTTP_SERVER_LOCATION_IF,
        since: "0.1",
        doc: "Sets response headers, replacing those of the same name; without a value, the header is removed. `-s` \
              and `-t` restrict this to responses with these statuses and media types; `-a` adds a header instead of \
              replacing. May contain variables.",
        set: Setter::Custom(Arity::at_least(1), RepeatRule::Many, |c, line| {
            c.response.push(HeaderChange::read(line, MessageSide::Response, true)?);
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
        set: Setter::Custom(Arity::at_least(1), RepeatRule::Many, |c, line| {
            c.response.push(HeaderChange::read(line, MessageSide::Response, false)?);
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
        set: Setter::Custom(Arity::at_least(1), RepeatRule::Many, |c, line| {
            c.request.push(HeaderChange::read(line, MessageSide::Request, true)?);
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
        set: Setter::Custom(Arity::at_least(1), RepeatRule::Many, |c, line| {
            c.request.push(HeaderChange::read(line, MessageSide::Request, false)?);
            Ok(())
        }),
    },
])
.finish_changed(|conf, _, _| {
    conf.response.finish();
    conf.request.finish();
    Ok(())
});

/// The lines that apply in a block.
#[derive(Clone, Debug, Default)]
struct Conf {
    response: HeaderChanges,
    request: HeaderChanges,
}

/// Lines of one kind, those of outer blocks first: an inner block has the last word.
#[derive(Clone, Debug, Default)]
struct HeaderChanges {
    all: Arc<[HeaderChange]>,
    /// The lines of the block itself, while it is being read.
    own: Vec<HeaderChange>,
}

impl HeaderChanges {
    /// Adds a line of the block itself.
    fn push(&mut self, change: HeaderChange) {
        self.own.push(change);
    }

    /// Combines the lines when the block is complete, so that a request only walks one list.
    fn finish(&mut self) {
        if self.own.is_empty() {
            return;
        }
        let own = std::mem::take(&mut self.own);
        self.all = self.all.iter().cloned().chain(own).collect();
    }

    /// Whether nothing is changed here.
    fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}
