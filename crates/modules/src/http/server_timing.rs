//! `server_timing`: tells the client where the time of its request went.
//!
//! ```nginx
//! location /shop/ { proxy_pass http://shop; server_timing on; }
//! ```
//!
//! The field is what browsers show beside a request (W3C Server Timing). It has the columns of the request's ledger up to
//! the moment when the head is sent; the rest is in the log (`$weir_ledger`).

use conf::{Directive, DirectiveTable, HTTP_SERVER_LOCATION, Setter};
use http::ledger::LedgerReport;
use http::module::FilterVerdict;
use http::{HttpModule, Request};

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "server_timing",
    doc: "Tells clients where the time of their requests went.",
    location: &DIRECTIVES,
    filter: Some(add_field),
    enabled: |location| location.confs.get::<Conf>().on,
    explain: http::module::ModuleExplain::Aside(&["server_timing"]),
    ..HttpModule::EMPTY
};

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::new(&[Directive {
    name: "server_timing",
    syntax: "on | off",
    default: Some("off"),
    contexts: HTTP_SERVER_LOCATION,
    since: "0.2",
    doc: "Adds the header `Server-Timing`, which says where the time of the request was spent so far, in milliseconds: \
          the columns of `$weir_ledger`. It makes internals visible to clients.",
    set: Setter::Flag(|conf| &mut conf.on),
}]);

#[derive(Clone, Debug, Default)]
struct Conf {
    on: bool,
}

/// Adds the field. It joins those of the upstream server instead of replacing them: the client sees both, each with its own
/// names, and sums of durations are not its meaning.
fn add_field(request: &mut Request) -> FilterVerdict {
    if !request.is_subrequest() {
        let report = LedgerReport::of_request(request);
        let write = |out: &mut Vec<u8>| report.write_server_timing(out);
        request.out.fields.push_with(b"Server-Timing", write);
    }
    FilterVerdict::Pass
}
