//! The end of a request: what is done when its response has been sent.

use std::rc::Rc;

use crate::body::Body;
use crate::module::Phase;
use crate::request::{Request, RequestPurpose};

/// Whether [`end`] has anything to do.
pub fn is_wanted(request: &Request) -> bool {
    let location = request.site.location(request.location);
    location.core.post_action.is_some() || !location.pipeline.phases[Phase::Log].is_empty()
}

/// Runs `post_action` and the log handlers.
pub async fn end(request: &mut Request) {
    post_action(request).await;
    log(request).await;
}

/// Runs the log handlers of the request's location.
pub async fn log(request: &mut Request) {
    let site = Rc::clone(&request.site);
    for handler in &site.location(request.location).pipeline.phases[Phase::Log] {
        // Nothing can be decided any more, so what a handler says does not count.
        let _ = handler(request).outcome().await;
    }
}

/// Serves the path of `post_action` for its effects; the client has its response already.
async fn post_action(request: &mut Request) {
    let site = Rc::clone(&request.site);
    let Some(target) = site.location(request.location).core.post_action.clone() else {
        return;
    };
    if request.delivery.is_silent()
        || request.flow.abandoned
        || request.flow.purpose == RequestPurpose::PostAction
    {
        return;
    }
    request.flow.purpose = RequestPurpose::PostAction;
    // Logs tell of the response that the client got. As in nginx its status is that of the path served here, unless it
    // was an error or a redirect.
    let mut sent = std::mem::take(&mut request.out);
    request.delivery.header_only = true;
    if !request.body.is_kept() {
        // It was thrown away, or will be: waiting for the rest of it would keep the path from being served.
        request.body.withhold();
    }
    if target.starts_with(b"@") {
        request.redirect_named(target.as_ref());
    } else {
        request.redirect(target, "");
    }
    Box::pin(crate::phase::run(request)).await;
    while let Some(Ok(_)) = Body::next_of(request).await {}
    if sent.status < 300 && request.out.status != 0 {
        sent.status = request.out.status;
    }
    request.out = sent;
}
