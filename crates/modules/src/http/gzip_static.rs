//! `gzip_static`: precompressed files.
//!
//! ```nginx
//! gzip_static on;      # /app.js is answered with /app.js.gz for clients that take gzip
//! gzip_vary   on;
//! ```
//!
//! With `always` every client gets the compressed file, and `gunzip` can decompress it for those
//! that cannot. The mechanism is [`crate::shared::precompressed`].

use conf::{Directive, DirectiveTable, HTTP_SERVER_LOCATION, Setter};
use http::{HandlerStep, HttpModule, HttpPhase, Request};

use crate::shared::precompressed::{self, PrecompressedCoding, StaticMode};

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "gzip_static",
    doc: "Serves precompressed gzip files.",
    location: &DIRECTIVES,
    phases: &[(HttpPhase::Content, serve)],
    enabled: |location| location.confs.get::<Conf>().mode != StaticMode::Off,
    explain: http::module::ModuleExplain::ServesFiles(".gz"),
    ..HttpModule::EMPTY
};

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::new(&[Directive {
    name: "gzip_static",
    syntax: "on | off | always",
    default: Some("off"),
    contexts: HTTP_SERVER_LOCATION,
    since: "0.1",
    doc: "Serves the precompressed file `NAME.gz` instead of `NAME`: to clients that accept gzip (`on`), or to all \
          (`always`).",
    set: Setter::Word(&StaticMode::WORDS, |c, i| {
        c.mode = StaticMode::from_index(i)
    }),
}]);

#[derive(Clone, Debug, Default)]
struct Conf {
    mode: StaticMode,
}

static GZIP: PrecompressedCoding = PrecompressedCoding {
    name: b"gzip",
    suffix: b".gz",
};

/// The content handler.
fn serve(request: &mut Request) -> HandlerStep<'_> {
    let when = request.conf::<Conf>().mode;
    precompressed::serve(request, &GZIP, when)
}
