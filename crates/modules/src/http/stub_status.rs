//! `stub_status`: a page with the counters of connections and requests, in nginx's format, for
//! monitoring tools.
//!
//! ```nginx
//! location = /status { stub_status; allow 127.0.0.1; deny all; }
//! ```
//!
//! The counters are sums over all event loops, on the page over those of all worker groups.

use base::text::write_number;
use conf::{Arity, Directive, DirectiveTable, RepeatRule, SERVER_LOCATION, Setter, Variable};
use http::module::ContentHandler;
use http::response_body::ResponseBody;
use http::{HandlerOutcome, HandlerStep, HttpModule, Request};
use net::counters::{self, AllCounters, CounterTotals};
use proto::message::Method;

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "stub_status",
    doc: "Shows connection and request counters.",
    location: &DIRECTIVES,
    content_handler: Some(ContentHandler {
        directives: &["stub_status"],
        when: |location| location.confs.get::<Conf>().on,
        handler: page,
        adds_slash: false,
        declines: false,
    }),
    variables: &[
        Variable::new(
            "connections_active",
            active,
            "The number of open client connections.",
        )
        .volatile(),
        Variable::new(
            "connections_reading",
            reading,
            "The number of connections whose request header is being read.",
        )
        .volatile(),
        Variable::new(
            "connections_writing",
            writing,
            "The number of connections with a request in progress.",
        )
        .volatile(),
        Variable::new(
            "connections_waiting",
            waiting,
            "The number of idle keep-alive connections.",
        )
        .volatile(),
    ],
    nested: |confs| confs.change_if::<Conf>(|conf| conf.on, |conf| conf.on = false),
    explain: http::module::ModuleExplain::Depends(&[(http::HttpPhase::Content, &["stub_status"])]),
    ..HttpModule::EMPTY
};

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::new(&[Directive {
    name: "stub_status",
    syntax: "",
    default: None,
    contexts: SERVER_LOCATION,
    since: "0.1",
    doc: "Responds with connection and request counters, in nginx's four lines of text.",
    // nginx before 1.7.5 required an argument, so configurations have `stub_status on`.
    set: Setter::Custom(Arity::between(0, 1), RepeatRule::Many, |conf, _| {
        conf.on = true;
        Ok(())
    }),
}]);

#[derive(Clone, Debug, Default)]
struct Conf {
    on: bool,
}

/// The counters of all event loops of this process.
fn totals() -> CounterTotals {
    match http::current_loop::http_loop() {
        Some(engine) => engine
            .zones
            .get_or_create(counters::ZONE, AllCounters::default)
            .totals(),
        None => CounterTotals::default(),
    }
}

/// Appends a counter.
fn write_count(value: u64, out: &mut Vec<u8>) -> bool {
    write_number(value, out);
    true
}

/// `$connections_active`.
fn active(_: &mut Request, out: &mut Vec<u8>) -> bool {
    write_count(totals().active, out)
}

/// `$connections_reading`.
fn reading(_: &mut Request, out: &mut Vec<u8>) -> bool {
    write_count(totals().reading, out)
}

/// `$connections_writing`.
fn writing(_: &mut Request, out: &mut Vec<u8>) -> bool {
    write_count(totals().writing, out)
}

/// `$connections_waiting`.
fn waiting(_: &mut Request, out: &mut Vec<u8>) -> bool {
    write_count(totals().waiting, out)
}

/// The content handler.
fn page(request: &mut Request) -> HandlerStep<'_> {
    if !matches!(request.method, Method::Get | Method::Head) {
        return HandlerOutcome::Status(405).into();
    }
    let engine = http::current_loop::http_loop();
    match engine.filter(|engine| engine.zones.group().has_siblings()) {
        None => respond(request, &totals()).into(),
        Some(engine) => HandlerStep::later(async move {
            let totals = counters::server_totals(&engine.zones).await;
            respond(request, &totals)
        }),
    }
}

/// Responds with the page.
fn respond(request: &mut Request, totals: &CounterTotals) -> HandlerOutcome {
    request.out.status = 200;
    request.out.content_type = "text/plain".into();
    request.out.body = ResponseBody::bytes(text(totals));
    HandlerOutcome::Respond
}

/// The page. The spaces at the ends of lines are nginx's; some tools split at them.
fn text(totals: &CounterTotals) -> String {
    let CounterTotals {
        accepted,
        handled,
        requests,
        active,
        reading,
        writing,
        waiting,
        ..
    } = totals;
    format!(
        "Active connections: {active} \nserver accepts handled requests\n {accepted} {handled} {requests} \n\
         Reading: {reading} Writing: {writing} Waiting: {waiting} \n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_nginx_s() {
        let totals = CounterTotals {
            accepted: 3,
            handled: 2,
            requests: 9,
            active: 1,
            reading: 0,
            writing: 1,
            waiting: 0,
            ..CounterTotals::default()
        };
        let expected = "Active connections: 1 \nserver accepts handled requests\n 3 2 9 \nReading: 0 Writing: 1 Waiting: 0 \n";
        assert_eq!(text(&totals), expected);
    }
}
