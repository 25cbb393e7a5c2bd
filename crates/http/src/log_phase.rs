//! The end of a request: `post_action` and the log handlers, once its response has been sent.

use std::cell::Cell;
use std::rc::Rc;

use crate::block_ids::ServerId;
use crate::http_site::HttpSite;
use crate::module::HttpPhase;
use crate::request::{Request, RequestPurpose};
use crate::response_body::ResponseBody;

/// Who remembers requests.
pub struct RequestObserver {
    /// A request has a server. Whether it is counted as being under way.
    pub began: fn(&Request) -> bool,
    /// It has ended.
    pub ended: fn(&Request),
    /// A handshake with a server has ended.
    pub handshake: fn(&HttpSite, ServerId, ObservedHandshake),
}

/// How a TLS handshake ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObservedHandshake {
    /// With a new session.
    Full,
    /// With an old one.
    Resumed,
    /// It failed.
    Failed,
}

rt::local! {
    static OBSERVER: Cell<Option<&'static RequestObserver>> = const { Cell::new(None) };
}

/// Sets who remembers the requests of this thread's loop; `None`: nobody asks.
pub fn set_observer(observer: Option<&'static RequestObserver>) {
    OBSERVER.with(|current| current.set(observer));
}

/// Passes a request that begins to the observer, if there is one.
#[inline]
pub(crate) fn observe_beginning(request: &mut Request) {
    if let Some(observer) = OBSERVER.with(Cell::get) {
        request.ledger.is_counted = (observer.began)(request);
    }
}

/// Passes a request that has ended to the observer, if there is one, and to those who watch the server.
#[inline]
pub(crate) fn observe_request(request: &mut Request) {
    rt::probes::request_end(
        request.client.number,
        request.head.number,
        request.out.status,
    );
    if let Some(observer) = OBSERVER.with(Cell::get) {
        (observer.ended)(request);
    }
    crate::request_feed::feed_request(request);
}

/// Passes a handshake to the observer, if there is one.
pub(crate) fn observe_handshake(site: &HttpSite, server: ServerId, end: ObservedHandshake) {
    if let Some(observer) = OBSERVER.with(Cell::get) {
        (observer.handshake)(site, server, end);
    }
}

/// Whether [`run_log_phase`] has anything to do. Asked first, because without logs its future need not be made.
pub fn is_wanted(request: &Request) -> bool {
    let location = request.site.location(request.location);
    location.core.post_action.is_some() || !location.pipeline.phases[HttpPhase::Log].is_empty()
}

/// Runs `post_action` and the log handlers.
pub async fn run_log_phase(request: &mut Request) {
    // Most locations have none, and need no future for it.
    let location = request.site.location(request.location);
    if location.core.post_action.is_some() {
        // Boxed, as all that is rare: its space would be part of every connection's.
        Box::pin(post_action(request)).await;
    }
    run_log_handlers(request).await;
}

/// Runs the log handlers of the location in which the request ended.
pub async fn run_log_handlers(request: &mut Request) {
    request.head.doing.set("logging request");
    let site = Rc::clone(&request.site);
    for handler in &site.location(request.location).pipeline.phases[HttpPhase::Log] {
        // The response has been sent, so the outcome of a handler does not matter.
        let _ = handler(request).outcome().await;
        crate::stall::blame_if_late(request);
    }
}

/// Tells the location's modules that a part of a client's request has ended: a subrequest, or a fetch for the cache.
pub(crate) fn end_part(request: &mut Request) {
    let site = Rc::clone(&request.site);
    for handler in &site.location(request.location).pipeline.phases[HttpPhase::PartEnd] {
        // Nothing waits for a part that is over, so a handler that wants to wait has no time for it.
        drop(handler(request));
    }
}

/// Serves the path of `post_action` for its side effects; the client has its response already.
async fn post_action(request: &mut Request) {
    let site = Rc::clone(&request.site);
    let Some(target) = site.location(request.location).core.post_action.clone() else {
        return;
    };
    // Not without a response, nor for a client that left before its request was complete; and once only, because the
    // path served here may have a `post_action`, too.
    if request.delivery.is_silent()
        || request.flow.abandoned
        || request.flow.purpose == RequestPurpose::PostAction
    {
        return;
    }
    request.flow.purpose = RequestPurpose::PostAction;
    // The logs have to show the response that the client got. As in nginx the status is that of the path served here,
    // unless the response was an error or a redirect.
    let mut sent = std::mem::take(&mut request.out);
    request.delivery.header_only = true;
    if !request.body.is_kept() {
        // The content was or will be discarded. A handler that waited for the rest of it would hold up the path.
        request.body.withhold_content();
    }
    if target.starts_with(b"@") {
        request.redirect_named(target.as_ref());
    } else {
        request.redirect(target, "");
    }
    Box::pin(crate::phase::run_phases(request)).await;
    // Read to the end, so that the upstream server is not cut off.
    while let Some(Ok(_)) = ResponseBody::next_of(request).await {}
    if sent.status < 300 && request.out.status != 0 {
        sent.status = request.out.status;
    }
    request.out = sent;
}
