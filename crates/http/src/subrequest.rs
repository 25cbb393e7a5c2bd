//! Requests that the server makes to itself in the course of a client's request.
//!
//! A subrequest has the client's head and variables, a path of its own, and no content. It passes the phases but for
//! access, and its response is handed to whoever asked, who decides what becomes of the body.

use std::rc::Rc;

use bstr::BString;
use proto::h1::Method;

use crate::body_reader::RequestBody;
use crate::request::{Parent, Request};
use crate::{phase, serve};

/// How deep subrequests may stand inside subrequests.
pub const MAX_DEPTH: u8 = 50;

/// What a subrequest is to be.
pub struct Options {
    /// The path.
    pub path: BString,
    /// The arguments.
    pub args: BString,
    /// Only the head of the response matters.
    pub header_only: bool,
    /// Whether the response passes the filters, as content that is included in another response does.
    pub filtered: bool,
    /// Content to send along, instead of none.
    pub body: Option<RequestBody>,
    /// The method; GET, or HEAD where only the head matters.
    pub method: Method,
}

impl Options {
    /// A GET of `path`.
    pub fn get(path: impl Into<BString>, args: impl Into<BString>) -> Options {
        Options {
            path: path.into(),
            args: args.into(),
            header_only: false,
            filtered: true,
            body: None,
            method: Method::Get,
        }
    }
}

/// A request made on behalf of `parent`; `None` when they stand too deep, which is logged.
pub fn create(parent: &Request, options: Options) -> Option<Request> {
    let depth = parent.parent.as_ref().map_or(0, |parent| parent.depth) + 1;
    if depth > MAX_DEPTH {
        parent.error(format_args!("subrequests cycle while processing \"{}\"", options.path));
        return None;
    }
    let site = Rc::clone(&parent.site);
    let mut request = Request::new(site, Rc::clone(&parent.client), Rc::clone(&parent.head), parent.server);
    request.method = options.method;
    request.uri.path = options.path;
    request.uri.args = options.args;
    request.remote = Rc::clone(&parent.remote);
    request.variables = Rc::clone(&parent.variables);
    request.parent = Some(Rc::new(Parent { depth }));
    request.flow.internal = true;
    request.flow.header_only = options.header_only;
    request.flow.user = parent.flow.user.clone();
    request.ledger = parent.ledger.clone();
    if let Some(body) = options.body {
        request.body = body;
    }
    Some(request)
}

/// Serves a subrequest. Afterwards its `out` is the response.
pub async fn run(request: &mut Request, filtered: bool) {
    // A request inside a request: the future refers to itself and must stand on the heap.
    Box::pin(async {
        if filtered {
            serve::serve(request).await;
        } else {
            phase::run(request).await;
        }
    })
    .await;
}

/// Ends a subrequest: it is logged when `log_subrequest` says so.
pub async fn end(request: &mut Request) {
    if request.site.location(request.location).core.log_subrequest {
        crate::log_phase::log(request).await;
    }
}
