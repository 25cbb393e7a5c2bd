//! `debug_block`: blocks its loop on purpose, to test what happens then.
//!
//! ```nginx
//! location = /block { debug_block 2s; }
//! ```
//!
//! It does what no module may do: it waits on a loop's thread. It only exists in builds with the
//! feature `debug-stall`, which no release has.

use std::time::Duration;

use conf::{Directive, DirectiveTable, LOCATION, Setter};
use http::module::ContentHandler;
use http::{HandlerOutcome, HandlerStep, HttpModule, Request};

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "debug_block",
    doc: "Blocks an event loop on purpose.",
    location: &DIRECTIVES,
    content_handler: Some(ContentHandler {
        directives: &["debug_block"],
        when: |location| !location.confs.get::<Conf>().time.is_zero(),
        handler: block,
        adds_slash: false,
    }),
    ..HttpModule::EMPTY
};

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::new(&[Directive {
    name: "debug_block",
    syntax: "time",
    default: None,
    contexts: LOCATION,
    since: "0.1",
    doc: "Every request blocks its event loop for this time. Debug builds only.",
    set: Setter::Millis(|conf| &mut conf.time),
}]);

#[derive(Clone, Debug, Default)]
struct Conf {
    time: Duration,
}

fn block(request: &mut Request) -> HandlerStep<'_> {
    let site = std::rc::Rc::clone(&request.site);
    let conf: &Conf = site.location(request.location).confs.get();
    debug_block(conf.time);
    HandlerOutcome::Status(204).into()
}

/// The name under which it appears in stack samples.
#[inline(never)]
fn debug_block(time: Duration) {
    std::thread::sleep(time);
}
