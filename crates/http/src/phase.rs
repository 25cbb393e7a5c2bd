//! A request's way through the phases, until there is a response.
//!
//! A location holds a frozen array of handlers for each phase, in the order in which they run:
//!
//! ```text
//! server:    post_read → server_rewrite → find the location
//! location:  rewrite (→ find again, if the path changed) → preaccess → access → precontent → content
//! ```
//!
//! A handler that points the request elsewhere (`Outcome::Jump`) starts the way again, at most [`MAX_JUMPS`] times.
//! A status without content goes through `error_page` (see [`crate::special`]) and may jump as well.

use std::rc::Rc;
use std::time::Duration;

use rt::error_log::Level;

use crate::module::{Handler, Outcome, Phase};
use crate::request::{Entry, Request};
use crate::route;
use crate::site::{LocationId, LocationKind, Phases, Satisfy};
use crate::special;

/// Changes of place that a request may make, internal redirects and rewrites each.
pub const MAX_JUMPS: u8 = 10;

/// Serves the request: afterwards `request.out` is the response, complete but for the filters.
///
/// Never fails: whatever goes wrong is a response too.
pub async fn run(request: &mut Request) {
    let mut outcome = pass(request).await;
    loop {
        outcome = match outcome {
            Outcome::Respond | Outcome::Ok => return,
            Outcome::Jump | Outcome::Declined => pass(request).await,
            Outcome::Status(status) => special::finish(request, status),
        };
    }
}

/// One pass, from where `flow.entry` says to an answer or to the next jump.
async fn pass(request: &mut Request) -> Outcome {
    if request.flow.jumps > MAX_JUMPS {
        let path = request.uri.path.clone();
        request.error(format_args!(
            "rewrite or internal redirection cycle while internally redirecting to \"{path}\""
        ));
        return Outcome::Status(500);
    }
    if request.flow.entry == Entry::Server {
        request.enter_server();
        match server_phases(request).await {
            Outcome::Ok => {}
            other => return other,
        }
    }
    match rewrite(request).await {
        Outcome::Ok => location_phases(request).await,
        other => other,
    }
}

async fn server_phases(request: &mut Request) -> Outcome {
    let site = Rc::clone(&request.site);
    let phases = &site.server(request.server).phases;
    // The client is who it is: `realip` decides once, for the request as it came.
    if !request.flow.internal && !request.is_subrequest() {
        match each(phases, Phase::PostRead, request).await {
            Outcome::Declined | Outcome::Ok => {}
            other => return other,
        }
    }
    match each(phases, Phase::ServerRewrite, request).await {
        Outcome::Declined | Outcome::Ok => {}
        other => return other,
    }
    find_location(request)
}

/// Runs the location's rewrites, and those of the next location for as long as they change the path.
async fn rewrite(request: &mut Request) -> Outcome {
    for _ in 0..=MAX_JUMPS {
        let site = Rc::clone(&request.site);
        match each(
            &site.location(request.location).phases,
            Phase::Rewrite,
            request,
        )
        .await
        {
            Outcome::Declined | Outcome::Ok => {}
            other => return other,
        }
        if !request.flow.uri_changed {
            return Outcome::Ok;
        }
        match find_location(request) {
            Outcome::Ok => {}
            other => return other,
        }
    }
    let path = request.uri.path.clone();
    request.error(format_args!(
        "rewrite or internal redirection cycle while processing \"{path}\""
    ));
    Outcome::Status(500)
}

/// Preaccess to content. An `if` block that matched is the location by now.
async fn location_phases(request: &mut Request) -> Outcome {
    let site = Rc::clone(&request.site);
    let location = site.location(request.location);
    match each(&location.phases, Phase::Preaccess, request).await {
        Outcome::Declined | Outcome::Ok => {}
        other => return other,
    }
    // Who may see a subrequest's part was decided for the request it belongs to.
    if !request.is_subrequest() {
        match access(
            &location.phases[Phase::Access],
            location.core.satisfy,
            request,
        )
        .await
        {
            Outcome::Ok => {}
            refused @ Outcome::Status(401 | 407) => {
                delay_refusal(request, location.core.auth_delay).await;
                return refused;
            }
            other => return other,
        }
    }
    match each(&location.phases, Phase::Precontent, request).await {
        Outcome::Declined | Outcome::Ok => {}
        other => return other,
    }
    match each(&location.phases, Phase::Content, request).await {
        Outcome::Declined => no_content(request),
        other => other,
    }
}

/// Runs the handlers of a phase until one does not decline.
async fn each(phases: &Phases, phase: Phase, request: &mut Request) -> Outcome {
    for (n, handler) in phases[phase].iter().enumerate() {
        request.debug(format_args!("{phase:?} phase: {n}"));
        match handler(request).outcome().await {
            Outcome::Declined => {}
            other => return other,
        }
    }
    Outcome::Declined
}

/// `auth_delay`: whoever tries passwords has to wait for each answer.
///
/// The time is counted from a turn of the loop, not from the end of the check, so that the answer's moment does not
/// tell how far the check came.
async fn delay_refusal(request: &Request, delay: Duration) {
    if delay.is_zero() {
        return;
    }
    request.log(Level::Info, format_args!("delaying unauthorized request"));
    rt::yield_now().await;
    rt::sleep(delay).await;
}

/// Combines the answers of the access handlers as `satisfy` says: with `all` the first refusal counts, with `any` the
/// first grant; when nobody granted, the last 401 or 407 wins over 403, so that the client learns that a password would
/// help.
async fn access(handlers: &[Handler], satisfy: Satisfy, request: &mut Request) -> Outcome {
    let mut refused = None;
    for handler in handlers {
        match (handler(request).outcome().await, satisfy) {
            (Outcome::Declined, _) | (Outcome::Ok, Satisfy::All) => {}
            (Outcome::Ok, Satisfy::Any) => {
                request.out.fields.remove(b"WWW-Authenticate");
                request.out.fields.remove(b"Proxy-Authenticate");
                return Outcome::Ok;
            }
            (Outcome::Status(status @ (401 | 403 | 407)), Satisfy::Any) => {
                if !matches!(refused, Some(401 | 407)) {
                    refused = Some(status);
                }
            }
            (other, _) => return other,
        }
    }
    match refused {
        None => Outcome::Ok,
        Some(status) => {
            if status == 403 {
                request.error(format_args!("access forbidden by rule"));
            }
            Outcome::Status(status)
        }
    }
}

/// Chooses the location for the present path and enters it.
fn find_location(request: &mut Request) -> Outcome {
    request.flow.uri_changed = false;
    match route::find(request) {
        route::Found::Location(location) => enter_location(request, location),
        route::Found::AddSlash(location) => {
            request.enter_location(location);
            special::redirect_to_directory(request)
        }
    }
}

fn enter_location(request: &mut Request, location: LocationId) -> Outcome {
    request.enter_location(location);
    let site = Rc::clone(&request.site);
    let core = &site.location(location).core;
    if rt::error_log::debug_is_on() {
        let location = site.location(location);
        let exact = if matches!(location.kind, LocationKind::Exact) {
            "="
        } else {
            ""
        };
        request.debug(format_args!(
            "using configuration \"{exact}{}\"",
            location.name
        ));
    }
    if core.internal && !request.flow.internal {
        return Outcome::Status(404);
    }
    let limit = core.client_max_body_size;
    if limit != 0
        && !request.is_subrequest()
        && let Some(length) = request.body.announced_length()
        && length > limit
    {
        request.error(format_args!(
            "client intended to send too large body: {length} bytes"
        ));
        return Outcome::Status(413);
    }
    Outcome::Ok
}

fn no_content(request: &mut Request) -> Outcome {
    if !request.uri.path.ends_with(b"/") {
        return Outcome::Status(404);
    }
    let directory = request
        .file_path()
        .map(|path| path.to_string())
        .unwrap_or_default();
    request.error(format_args!(
        "directory index of \"{directory}\" is forbidden"
    ));
    Outcome::Status(403)
}
