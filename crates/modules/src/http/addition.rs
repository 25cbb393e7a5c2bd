//! `add_before_body`, `add_after_body`: the responses of other URIs around a response.
//!
//! ```nginx
//! location / {
//!     add_before_body /before.html;
//!     add_after_body  /after.html;
//! }
//! ```
//!
//! Both are subrequests and pass the filters of their own locations. They have to join the response
//! after the filters that look into its content (`sub_filter`, `charset`, `ssi`) and before those
//! that compress it. That is why this module is in the list twice: [`MODULE`] decides, [`JOIN`]
//! assembles.

use std::collections::VecDeque;
use std::task::{Context, Poll, ready};

use bstr::BString;
use conf::{Arity, Directive, DirectiveTable, HTTP_SERVER_LOCATION, RepeatRule, Setter};
use http::http_site::Location;
use http::response_body::{BodyChunk, BodyError, BodySource, ResponseBody};
use http::subrequest::{IncludedSubrequest, SubrequestOptions};
use http::{FilterVerdict, HttpModule, Request};

use crate::shared::media_types::MediaTypes;

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "addition",
    doc: "Adds the responses of other URIs before and after a response.",
    location: &DIRECTIVES,
    filter: Some(decide),
    enabled: is_enabled,
    explain: http::module::ModuleExplain::Depends(&[(
        http::HttpPhase::Content,
        &["add_before_body"],
    )]),
    ..HttpModule::EMPTY
};

/// The other half, after the filters of content.
pub(crate) static JOIN: HttpModule = HttpModule {
    name: "addition_join",
    doc: "Assembles the parts that `addition` requests.",
    filter: Some(join),
    enabled: is_enabled,
    explain: http::module::ModuleExplain::Depends(&[(
        http::HttpPhase::Content,
        &["add_after_body"],
    )]),
    ..HttpModule::EMPTY
};

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::new(&[
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
            RepeatRule::Fresh(|c| c.types.clear()),
            |c, line| c.types.read(line, &["text/html"]),
        ),
    },
]);

#[derive(Clone, Debug, Default)]
struct Conf {
    /// Empty for none.
    before: BString,
    after: BString,
    types: MediaTypes,
}

/// Whether the location adds anything.
fn is_enabled(location: &Location) -> bool {
    let conf = location.confs.get::<Conf>();
    !conf.before.is_empty() || !conf.after.is_empty()
}

/// The URIs to add, passed from one half of the module to the other.
struct AdditionPaths {
    before: BString,
    after: BString,
}

/// The first half: whether this response gets additions. It has to be known early, since the
/// filters in between must not announce a length.
fn decide(request: &mut Request) -> FilterVerdict {
    let conf = request.conf::<Conf>();
    let out = &request.out;
    // Only whole pages: parts of a page would get the additions once more.
    if out.status != 200 || request.is_subrequest() || !conf.types.has(&out.content_type) {
        return FilterVerdict::Pass;
    }
    request.out.content_changes();
    request.set_state(AdditionPaths {
        before: conf.before.clone(),
        after: conf.after.clone(),
    });
    FilterVerdict::Pass
}

/// The second half: puts the parts together.
fn join(request: &mut Request) -> FilterVerdict {
    let Some(AdditionPaths { before, after }) = request.state() else {
        return FilterVerdict::Pass;
    };
    let (before, after) = (std::mem::take(before), std::mem::take(after));
    // A filter between the two halves may have set the length of the content itself.
    request.out.content_length = None;
    let body = std::mem::take(&mut request.out.body);
    let mut parts = VecDeque::from([
        BodyPart::Path(before),
        BodyPart::Body(body),
        BodyPart::Path(after),
    ]);
    parts.retain(|part| !matches!(part, BodyPart::Path(path) if path.is_empty()));
    request.out.body = ResponseBody::stream(JoinedBody { parts });
    FilterVerdict::Pass
}

/// Several responses one after the other.
struct JoinedBody {
    /// The parts still to send, the current one first.
    parts: VecDeque<BodyPart>,
}

/// A part of the joined response.
enum BodyPart {
    /// A subrequest not started yet. It starts when its turn comes, so an addition after a large
    /// file costs nothing until then.
    Path(BString),
    Included(IncludedSubrequest),
    Body(ResponseBody),
}

impl BodySource for JoinedBody {
    fn poll_next(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<BodyChunk, BodyError>>> {
        while let Some(part) = self.parts.front_mut() {
            let next = match part {
                BodyPart::Body(body) => ready!(body.poll_next(request, context)),
                BodyPart::Included(inclusion) => ready!(inclusion.poll_next(context)),
                BodyPart::Path(path) => {
                    let options = SubrequestOptions {
                        body: request.body.for_included(),
                        ..SubrequestOptions::get(std::mem::take(path), "")
                    };
                    let Some(inclusion) = IncludedSubrequest::new(request, options) else {
                        return Poll::Ready(Some(Err(BodyError::Producer)));
                    };
                    *part = BodyPart::Included(inclusion);
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
            Some(BodyPart::Body(body)) => body.poll_ahead(request, context),
            Some(BodyPart::Included(inclusion)) => inclusion.poll_ahead(context),
            Some(BodyPart::Path(_)) | None => {}
        }
    }
}
