//! Requests that the server makes to itself in the course of a client's request.
//!
//! A subrequest has the client's head and variables, a path of its own, and the content that it is given. It passes through the phases
//! except for access, and its response goes to the code that created it, which decides what to do with the body.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bstr::BString;
use bytes::Bytes;
use proto::message::Method;

use crate::body_reader::RequestBody;
use crate::phase;
use crate::process_request::{finalize_response, process_request};
use crate::request::{ErrorPages, Request, SubrequestParent};
use crate::response_body::{BodyChunk, BodyError, ResponseBody};

/// How deep subrequests may be nested; nginx's bound.
pub const MAX_DEPTH: u8 = 51;

/// The limit on the subrequests of one client request. Each counts by its depth, because its content passes through all
/// the responses it is part of. So a page may include 60,000 others, while one that includes itself twice, which would
/// be 2⁵⁰ subrequests, ends after some 1,200.
pub const MAX_COUNT: u32 = 60_000;

/// What kind of subrequest to create.
pub struct SubrequestOptions {
    /// The path of the subrequest, on the server of its parent.
    pub path: BString,
    /// The arguments.
    pub args: BString,
    /// Only the head of the response is needed.
    pub header_only: bool,
    /// Whether the response passes the filters, as content does that is included in another response.
    pub filtered: bool,
    /// Content to send along, instead of none.
    pub body: Option<RequestBody>,
    /// The method: GET, or HEAD if only the head matters.
    pub method: Method,
    /// Replaces a response that is an error or has no content. No error page is made then.
    pub stub: Option<SubrequestStub>,
}

/// Content in place of a response.
#[derive(Clone, Debug, Default)]
pub struct SubrequestStub {
    /// Its media type.
    pub content_type: BString,
    /// The content.
    pub content: Bytes,
}

/// Counts the subrequests of a client's request.
#[derive(Default)]
struct SubrequestCount {
    /// The sum of their depths, including those that were refused.
    total: Cell<u32>,
    /// How many are being included at the moment.
    included: Cell<usize>,
}

impl SubrequestOptions {
    /// A GET of `path`.
    pub fn get(path: impl Into<BString>, args: impl Into<BString>) -> SubrequestOptions {
        SubrequestOptions {
            path: path.into(),
            args: args.into(),
            header_only: false,
            filtered: true,
            body: None,
            method: Method::Get,
            stub: None,
        }
    }
}

/// Creates a request on behalf of `parent`; `None` if the nesting is too deep or there are too many, which is logged.
pub fn create_subrequest(parent: &Request, options: SubrequestOptions) -> Option<Request> {
    let depth = parent.parent.as_ref().map_or(0, |parent| parent.depth) + 1;
    let count = &parent.shared::<SubrequestCount>().total;
    // Counted before it is judged: what is refused must not be free, or a page could ask forever.
    let before = count.get();
    count.set(before.saturating_add(depth.into()));
    if before > MAX_COUNT {
        // This was logged for the first one: a page may ask for many more.
        return None;
    }
    if count.get() > MAX_COUNT {
        parent.error(format_args!(
            "too many subrequests while processing \"{}\"",
            options.path
        ));
        return None;
    }
    if depth > MAX_DEPTH {
        parent.error(format_args!(
            "subrequests cycle while processing \"{}\"",
            options.path
        ));
        return None;
    }
    let site = Rc::clone(&parent.site);
    let mut request = Request::new(
        site,
        Rc::clone(&parent.client),
        Rc::clone(&parent.head),
        parent.server,
    );
    request.stream = Rc::clone(&parent.stream);
    request.method = options.method;
    request.uri.path = options.path;
    request.uri.args = options.args;
    request.remote = Rc::clone(&parent.remote);
    // Shared, as in nginx: a variable that the subrequest sets is seen by its parent.
    request.variables = Rc::clone(&parent.variables);
    request.parent = Some(Rc::new(SubrequestParent { depth }));
    request.flow.internal = true;
    request.delivery.header_only = options.header_only;
    request.user = parent.user.clone();
    request.times = parent.times.clone();
    if let Some(body) = options.body {
        request.body = body;
    }
    if options.stub.is_some() {
        request.flow.error_pages = ErrorPages::Withheld;
    }
    request.debug(format_args!(
        "http subrequest \"{}?{}\"",
        request.uri.path, request.uri.args
    ));
    Some(request)
}

/// Serves a subrequest. Afterwards its `out` is the response.
pub async fn run_subrequest(request: &mut Request, filtered: bool) {
    // On the heap, because it is a request inside the future of a request: the type would contain itself.
    Box::pin(async {
        if filtered {
            process_request(request).await;
        } else {
            phase::run_phases(request).await;
        }
    })
    .await;
}

/// A copy of `parent` in its location, for one more response of the same content handler: the earlier phases are not
/// run again. It has no content, and does not count as included in a page.
pub fn copy_request(parent: &Request) -> Request {
    let mut request = Request::new(
        Rc::clone(&parent.site),
        Rc::clone(&parent.client),
        Rc::clone(&parent.head),
        parent.server,
    );
    request.method = parent.method;
    request.uri = parent.uri.clone();
    request.location = parent.location;
    request.remote = Rc::clone(&parent.remote);
    request.variables = Rc::clone(&parent.variables);
    request.captured = parent.captured.clone();
    let depth = parent.parent.as_ref().map_or(0, |parent| parent.depth);
    request.parent = Some(Rc::new(SubrequestParent { depth: depth + 1 }));
    request.flow.entry = crate::request::PhaseEntry::Content;
    request.flow.internal = true;
    request.flow.rewritten = parent.flow.rewritten;
    request.delivery.header_only = parent.delivery.header_only;
    request.user = parent.user.clone();
    request.times = parent.times.clone();
    request
}

/// Ends a subrequest, and logs it if `log_subrequest` is on.
pub async fn end_subrequest(request: &mut Request) {
    crate::log_phase::end_part(request);
    if request.site.location(request.location).core.log_subrequest {
        crate::log_phase::run_log_handlers(request).await;
    }
}

/// A subrequest whose response becomes a part of another one.
///
/// It runs whenever it is polled, so that several progress side by side. Its content is pulled only when it is its
/// turn, so that nothing has to be gathered.
pub struct IncludedSubrequest {
    state: InclusionState,
    count: Rc<SubrequestCount>,
}

/// How many subrequests are currently being included in the client's request that `request` is, or belongs to.
pub fn included_count(request: &Request) -> usize {
    request.shared::<SubrequestCount>().included.get()
}

enum InclusionState {
    /// On its way to a response.
    Running(Pin<Box<dyn Future<Output = Box<Request>>>>),
    /// The response has been made, and its content is pulled.
    Sending(Box<Request>),
    /// The content has been passed on; the end is being logged.
    Ending(Pin<Box<dyn Future<Output = ()>>>),
    Ended,
}

impl IncludedSubrequest {
    /// A subrequest of `parent`; `None` as with [`create_subrequest`].
    pub fn new(parent: &Request, mut options: SubrequestOptions) -> Option<IncludedSubrequest> {
        let stub = options.stub.clone();
        options.filtered = true;
        let mut request = Box::new(create_subrequest(parent, options)?);
        let running = Box::pin(async move {
            phase::run_phases(&mut request).await;
            if let Some(stub) = stub
                // Before the filters, so that the replacement passes them like any other content.
                && has_nothing_to_show(&request)
            {
                put_in_place(stub, &mut request);
            }
            finalize_response(&mut request).await;
            request
        });
        let count: Rc<SubrequestCount> = parent.shared();
        count.included.set(count.included.get() + 1);
        Some(IncludedSubrequest {
            state: InclusionState::Running(running),
            count,
        })
    }

    /// Includes a [`copy_request`] whose response is needed as its handler makes it, without filters.
    pub fn unfiltered(parent: &Request, mut request: Box<Request>) -> IncludedSubrequest {
        let running = Box::pin(async move {
            phase::run_phases(&mut request).await;
            request
        });
        let count: Rc<SubrequestCount> = parent.shared();
        count.included.set(count.included.get() + 1);
        IncludedSubrequest {
            state: InclusionState::Running(running),
            count,
        }
    }

    /// Runs the subrequest until it has a response.
    pub fn poll_response(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let InclusionState::Running(running) = &mut self.state {
            let request = ready!(running.as_mut().poll(context));
            self.state = InclusionState::Sending(request);
        }
        Poll::Ready(())
    }

    /// Lets it progress as far as it can before its turn.
    pub fn poll_ahead(&mut self, context: &mut Context<'_>) {
        if self.poll_response(context).is_ready()
            && let InclusionState::Sending(request) = &mut self.state
        {
            ResponseBody::poll_ahead_of(request, context);
        }
    }

    /// The subrequest, available from its response to the end of its content.
    pub fn request_mut(&mut self) -> Option<&mut Request> {
        match &mut self.state {
            InclusionState::Sending(request) => Some(request),
            InclusionState::Running(_) | InclusionState::Ending(_) | InclusionState::Ended => None,
        }
    }

    /// The next chunk of its content, `None` at the end.
    pub fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<BodyChunk, BodyError>>> {
        ready!(self.poll_response(context));
        if let InclusionState::Sending(request) = &mut self.state {
            let mut body = std::mem::take(&mut request.out.body);
            let next = match request.delivery.is_silent() || request.delivery.header_only {
                // A handler asked for no response at all, or only the head was wanted: nothing is included.
                true => Poll::Ready(None),
                false => body.poll_next(request, context),
            };
            match ready!(keep(body, request, next)) {
                Some(chunk) => return Poll::Ready(Some(chunk)),
                None => self.begin_end(),
            }
        }
        if let InclusionState::Ending(ending) = &mut self.state {
            ready!(ending.as_mut().poll(context));
            self.state = InclusionState::Ended;
        }
        Poll::Ready(None)
    }

    fn begin_end(&mut self) {
        let InclusionState::Sending(mut request) =
            std::mem::replace(&mut self.state, InclusionState::Ended)
        else {
            return;
        };
        self.state =
            InclusionState::Ending(Box::pin(async move { end_subrequest(&mut request).await }));
    }
}

impl Drop for IncludedSubrequest {
    fn drop(&mut self) {
        self.count.included.set(self.count.included.get() - 1);
    }
}

/// Puts a body that has not ended back into its request.
fn keep<T>(body: ResponseBody, request: &mut Request, next: Poll<Option<T>>) -> Poll<Option<T>> {
    if !matches!(next, Poll::Ready(None)) {
        request.out.body = body;
    }
    next
}

fn has_nothing_to_show(request: &Request) -> bool {
    request.out.status >= 300 || request.out.body.length() == Some(0)
}

fn put_in_place(stub: SubrequestStub, request: &mut Request) {
    request.out.clear();
    request.flow.forced_status = None;
    request.out.status = 200;
    request.out.content_type = stub.content_type;
    request.out.body = ResponseBody::bytes(stub.content);
}
