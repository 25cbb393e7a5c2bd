//! `add_before_body`, `add_after_body`: the responses of other paths around a response.
//!
//! ```nginx
//! location / {
//!     add_before_body /before.html;
//!     add_after_body  /after.html;
//! }
//! ```
//!
//! Both are subrequests, and pass the filters of their own locations. They join the response behind the filters that
//! look into its content (`sub_filter`, `charset`, `ssi`) and before those that pack it, which is why this module
//! stands in the list twice: [`MODULE`] decides, [`JOIN`] puts the parts together.

use std::collections::VecDeque;
use std::task::{Context, Poll, ready};

use bstr::BString;
use conf::{Arity, Directive, HTTP_SERVER_LOCATION, Repeat, Setter, Table};
use http::body::{Body, BodyError, Chunk, Source};
use http::site::Location;
use http::subrequest::{Inclusion, Options};
use http::{Module, Request, Verdict};

use crate::shared::media_types::MediaTypes;

pub(crate) static MODULE: Module = Module {
    name: "addition",
    doc: "Adds the responses of other URIs before and after a response.",
    location: &DIRECTIVES,
    filter: Some(decide),
    enabled: adds,
    ..Module::EMPTY
};

/// The other half, behind the filters of content.
pub(crate) static JOIN: Module = Module {
    name: "addition_join",
    doc: "Assembles the parts that `addition` requests.",
    filter: Some(join),
    enabled: adds,
    ..Module::EMPTY
};

static DIRECTIVES: Table<Conf> = Table::new(&[
    Directive {
        name: "add_before_body",
        syntax: "path",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "A URI whose response is added before the response body. An empty value disables it.",
        set: Setter::Text(|c| &mut c.before),
    },
    Directive {
        name: "add_after_body",
        syntax: "path",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "A URI whose response is added after the response body. An empty value disables it.",
        set: Setter::Text(|c| &mut c.after),
    },
    Directive {
        name: "addition_types",
        syntax: "mime-type … | *",
        default: Some("text/html"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The media types to which responses are added, in addition to `text/html`. `*` means all.",
        set: Setter::Custom(
            Arity::at_least(1),
            Repeat::Fresh(|c| c.types.clear()),
            |c, line| c.types.read(line, &["text/html"]),
        ),
    },
]);

#[derive(Clone, Debug, Default)]
struct Conf {
    before: BString,
    after: BString,
    types: MediaTypes,
}

fn adds(location: &Location) -> bool {
    let conf = location.confs.get::<Conf>();
    !conf.before.is_empty() || !conf.after.is_empty()
}

/// What is to be put together; from the one half of the module to the other.
struct Wanted {
    before: BString,
    after: BString,
}

fn decide(request: &mut Request) -> Verdict {
    let conf = request.conf::<Conf>();
    let out = &request.out;
    if out.status != 200 || request.is_subrequest() || !conf.types.has(&out.content_type) {
        return Verdict::Pass;
    }
    request.out.content_changes();
    request.set_state(Wanted {
        before: conf.before.clone(),
        after: conf.after.clone(),
    });
    Verdict::Pass
}

fn join(request: &mut Request) -> Verdict {
    let Some(Wanted { before, after }) = request.state() else {
        return Verdict::Pass;
    };
    let (before, after) = (std::mem::take(before), std::mem::take(after));
    // A filter between the two halves may have said how long the content itself is.
    request.out.content_length = None;
    let body = std::mem::take(&mut request.out.body);
    let mut parts = VecDeque::from([Part::Path(before), Part::Body(body), Part::Path(after)]);
    parts.retain(|part| !matches!(part, Part::Path(path) if path.is_empty()));
    request.out.body = Body::stream(Joined { parts });
    Verdict::Pass
}

/// Several responses in a row.
struct Joined {
    /// What is still to come, the present part first.
    parts: VecDeque<Part>,
}

enum Part {
    /// Another response that nobody asked for yet.
    Path(BString),
    Included(Inclusion),
    Body(Body),
}

impl Source for Joined {
    fn poll_next(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Chunk, BodyError>>> {
        while let Some(part) = self.parts.front_mut() {
            let next = match part {
                Part::Body(body) => ready!(body.poll_next(request, context)),
                Part::Included(inclusion) => ready!(inclusion.poll_next(context)),
                Part::Path(path) => {
                    let options = Options::get(std::mem::take(path), "");
                    let Some(inclusion) = Inclusion::new(request, options) else {
                        return Poll::Ready(Some(Err(BodyError::Producer)));
                    };
                    *part = Part::Included(inclusion);
                    continue;
                }
            };
            if next.is_some() {
                return Poll::Ready(next);
            }
            self.parts.pop_front();
        }
        Poll::Ready(None)
    }

    fn poll_ahead(&mut self, request: &mut Request, context: &mut Context<'_>) {
        match self.parts.front_mut() {
            Some(Part::Body(body)) => body.poll_ahead(request, context),
            Some(Part::Included(inclusion)) => inclusion.poll_ahead(context),
            Some(Part::Path(_)) | None => {}
        }
    }
}
