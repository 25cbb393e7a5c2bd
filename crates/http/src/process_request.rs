//! A request from its head to a response that is ready for the wire.

use crate::module::{Outcome, Verdict};
use crate::request::Request;
use crate::{filter, phase, special, tls};

/// Runs the phases and then the filters. Afterwards `request.out` can be sent, or `delivery.is_silent()` says that nothing is.
pub async fn process_request(request: &mut Request) {
    if let Err(status) = tls::check(request) {
        request.delivery.close();
        return refuse_request(request, status).await;
    }
    phase::run(request).await;
    finalize_response(request).await;
}

/// Answers a request with a status instead of serving it: it was malformed. It may have an error page all the same.
pub async fn refuse_request(request: &mut Request, status: u16) {
    if special::finish(request, status) == Outcome::Jump {
        phase::run(request).await;
    }
    finalize_response(request).await;
}

/// Runs the filters over a response that is complete. A filter may refuse it; what is sent then is the page of the
/// status that it names, and that passes the filters too.
pub async fn finalize_response(request: &mut Request) {
    // An error page may be refused in its turn (412 after `error_page 412 =200 …`). Redirects are counted, and the
    // built-in page, which is what is left then, passes: one more refusal is a defect of a filter.
    for _ in 0..=crate::request::MAX_JUMPS + 1 {
        settle_status(request);
        if request.delivery.is_silent() {
            return;
        }
        let Verdict::Status(status) = filter::run(request) else {
            return;
        };
        if special::finish(request, status) == Outcome::Jump {
            phase::run(request).await;
        }
    }
    settle_status(request);
}

/// Gives the response the status that an error page keeps.
fn settle_status(request: &mut Request) {
    if let Some(status) = request.flow.forced_status.take() {
        request.out.status = status;
        request.out.reason = None;
        request.out.passed_on = false;
    }
}
