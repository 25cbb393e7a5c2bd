//! `mirror`: sends a copy of each request to another location and ignores the response.
//!
//! ```nginx
//! location / {
//!     mirror /mirror;
//!     proxy_pass http://backend;
//! }
//! location = /mirror {
//!     internal;
//!     proxy_pass http://test_backend$request_uri;
//! }
//! ```
//!
//! Each copy is a task of its own, so it outlives the request and is not aborted when the client
//! disconnects. The request does not wait for it.

use bstr::BString;
use conf::{Arity, Directive, DirectiveTable, HTTP_SERVER_LOCATION, RepeatRule, Setter};
use http::request::RequestPurpose;
use http::response_body::ResponseBody;
use http::subrequest::{self, SubrequestOptions};
use http::{HandlerOutcome, HandlerStep, HttpModule, HttpPhase, Request};

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "mirror",
    doc: "Mirrors requests to other locations.",
    location: &DIRECTIVES,
    phases: &[(HttpPhase::Precontent, mirror)],
    enabled: |location| !location.confs.get::<Conf>().paths.is_empty(),
    explain: http::module::ModuleExplain::Aside(&["mirror"]),
    ..HttpModule::EMPTY
};

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::new(&[
    Directive {
        name: "mirror",
        syntax: "path | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "A URI that gets a copy of each request. Several lines make several copies.",
        set: Setter::Custom(
            Arity::ONE,
            RepeatRule::Fresh(|c| c.paths.clear()),
            |c, line| {
                let path = line.text(0);
                match path == "off" {
                    true if line.is_repeated() => return Err(line.directive_error("is duplicate")),
                    true => {}
                    false => c.paths.push(path.to_owned()),
                }
                Ok(())
            },
        ),
    },
    Directive {
        name: "mirror_request_body",
        syntax: "on | off",
        default: Some("on"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Whether to mirror the request body, which is then read before the request is processed.",
        set: Setter::Flag(|c| &mut c.with_body),
    },
]);

#[derive(Clone, Default)]
struct Conf {
    paths: Vec<BString>,
    with_body: bool,
}

/// The handler of the precontent phase.
fn mirror(request: &mut Request) -> HandlerStep<'_> {
    // A mirrored request is not mirrored again.
    if request.is_subrequest() {
        return HandlerOutcome::Declined.into();
    }
    HandlerStep::later(async move {
        let conf = request.conf::<Conf>();
        if conf.with_body
            // Both requests need the body, so it has to be read in full before either is processed.
            && let Err(status) = http::body_reader::read_body(request).await
        {
            return HandlerOutcome::Status(status);
        }
        for path in &conf.paths {
            let options = SubrequestOptions {
                // The response is read and thrown away.
                header_only: true,
                method: request.method,
                body: conf.with_body.then(|| request.body.share_content()),
                ..SubrequestOptions::get(path.clone(), request.uri.args.clone())
            };
            let Some(mut copy) = subrequest::create_subrequest(request, options) else {
                return HandlerOutcome::Status(500);
            };
            // Not part of the response: it must neither delay nor end with the request.
            copy.flow.purpose = RequestPurpose::Background;
            // What the requests share is gone when the first one ends, mostly before the copy begins.
            copy.inherit_facts(request);
            rt::spawn_named("mirror", async move {
                subrequest::run_subrequest(&mut copy, true).await;
                // The response must be read, or the server would block on sending it.
                while let Some(Ok(_)) = ResponseBody::next_of(&mut copy).await {}
                subrequest::end_subrequest(&mut copy).await;
            });
        }
        HandlerOutcome::Declined
    })
}
