//! `debug_block`: blocks its loop on purpose, to test what happens then.
//!
//! ```nginx
//! location = /block { debug_block 2s; }
//! location = /slow  { debug_block 2s disk; }
//! ```
//!
//! It does what no module may do: it waits on a loop's thread. It only exists in builds with the
//! feature `debug-stall`, which no release has.

use std::time::Duration;

use conf::{Arity, Directive, DirectiveTable, LOCATION, RepeatRule, Setter};
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
        declines: false,
    }),
    ..HttpModule::EMPTY
};

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::new(&[Directive {
    name: "debug_block",
    syntax: "time [disk]",
    default: None,
    contexts: LOCATION,
    since: "0.1",
    doc: "Every request blocks its event loop for this time; with `disk`, a thread of the pool. Debug builds only.",
    set: Setter::Custom(Arity::between(1, 2), RepeatRule::Once, |conf, line| {
        conf.time = line.millis(0)?;
        conf.disk = match line.get(1) {
            Some(_) => line.word(1, &["disk"])? == 0,
            None => false,
        };
        Ok(())
    }),
}]);

#[derive(Clone, Debug, Default)]
struct Conf {
    time: Duration,
    disk: bool,
}

fn block(request: &mut Request) -> HandlerStep<'_> {
    let site = std::rc::Rc::clone(&request.site);
    let conf: &Conf = site.location(request.location).confs.get();
    let time = conf.time;
    if conf.disk {
        return HandlerStep::later(async move {
            rt::pool::default_pool()
                .run(move || debug_block(time))
                .await;
            HandlerOutcome::Status(204)
        });
    }
    debug_block(time);
    HandlerOutcome::Status(204).into()
}

/// The name under which it appears in stack samples.
#[inline(never)]
fn debug_block(time: Duration) {
    std::thread::sleep(time);
}
