//! A request from its head to a response that is ready for the wire.

use crate::module::{FilterVerdict, HandlerOutcome};
use crate::request::Request;
use crate::{filter, phase, status_response, tls};

/// Runs the phases and then the filters. Afterwards `request.out` can be sent, or `delivery.is_silent()` says that
/// nothing is.
pub async fn process_request(request: &mut Request) {
    // A client certificate is judged before any handler runs: `error_page 495` may answer, a location must not.
    if let Err(status) = tls::check_tls(request) {
        request.delivery.close();
        return refuse_request(request, status).await;
    }
    phase::run_phases(request).await;
    finalize_response(request).await;
}

/// Answers a malformed request with a status instead of serving it. `error_page` applies all the same, so the phases
/// may run for the page.
pub async fn refuse_request(request: &mut Request, status: u16) {
    respond_with_page(request, status).await;
    finalize_response(request).await;
}

/// Makes the page of a status the response. An error page that cannot be reached has a status of its own, and that one a
/// page; it ends, since each try is counted as an internal redirect.
async fn respond_with_page(request: &mut Request, status: u16) {
    let mut outcome = HandlerOutcome::Status(status);
    while let HandlerOutcome::Status(status) = outcome {
        outcome = status_response::respond_status(request, status);
    }
    if outcome == HandlerOutcome::Jump {
        phase::run_phases(request).await;
    }
}

/// Runs the filters over a complete response. A filter may refuse it; then the page of the status that it names is
/// sent, and that page passes the filters too.
pub async fn finalize_response(request: &mut Request) {
    // An error page may be refused in its turn (412 after `error_page 412 =200 …`). Each internal redirect is counted,
    // and what is left in the end is the built-in page, which no filter refuses; the bound of this loop is only reached
    // if a filter is broken.
    for _ in 0..=crate::request::MAX_JUMPS + 1 {
        settle_status(request);
        if request.delivery.is_silent() {
            return;
        }
        let FilterVerdict::Status(status) = filter::run_filters(request) else {
            return;
        };
        // With 412 nothing of the refused response counts any more. With 416 it is still about the same resource, and its
        // charset stays, as in nginx.
        if status == 412 {
            request.out.charset.clear();
        }
        respond_with_page(request, status).await;
    }
    settle_status(request);
}

/// Gives the response the status that `error_page` chose for it, whatever status the page itself was served with.
pub(crate) fn settle_status(request: &mut Request) {
    if let Some(status) = request.flow.forced_status.take() {
        request.out.status = status;
        // The reason phrase belonged to the page's own status.
        request.out.reason = None;
        request.out.is_upstream_status = false;
    }
}
