//! A request's way through the phases, until there is a response.
//!
//! A location holds a frozen array of handlers for each phase, in the order in which they run:
//!
//! ```text
//! server:    post_read → server_rewrite → find the location
//! location:  rewrite (→ find again, if the path changed) → preaccess → access → precontent → content
//! ```
//!
//! A handler that redirects the request internally (`Outcome::Jump`) starts the next pass, at most [`MAX_JUMPS`] times.
//! A status without content goes through `error_page` (see [`crate::special`]), which may redirect as well.

use std::rc::Rc;
use std::time::Duration;

use host::error_log::Level;

use crate::module::{Handler, Outcome, Phase, Step};
use crate::request::{Entry, MAX_JUMPS, Request};
use crate::route;
use crate::site::{LocationId, LocationKind, Satisfy};
use crate::special;

/// Runs the phases. Afterwards `request.out` is the response; only the filters are left to apply.
///
/// It never fails: an error is a response, too.
pub async fn run(request: &mut Request) {
    let mut walk = Walk::begin(request);
    while let Some(step) = walk.next(request) {
        match step {
            Next::Handler(handler) => {
                let outcome = match handler(request) {
                    Step::Now(outcome) => outcome,
                    Step::Later(future) => future.await,
                };
                walk.take(outcome, request);
            }
            Next::Delay(delay) => delay_refusal(request, delay).await,
        }
    }
}

/// The position of a request in the phases: plain state that never waits. [`run`] awaits the handlers.
struct Walk {
    place: Place,
    /// The index of the handler that runs next in the phase.
    next: usize,
    /// The location in which the phase began. A handler may move the request; its phase still runs to its end where it
    /// began.
    location: LocationId,
    /// With `satisfy any`, the refusal of an access handler that a later one may still overrule.
    refused: Option<u16>,
}

#[derive(Clone, Copy)]
enum Place {
    Phase(Phase),
    /// Access was refused, and `auth_delay` has yet to run.
    Refused(Outcome),
    /// Access was refused, and `auth_delay` has passed.
    Delayed(Outcome),
    /// There is a response.
    Arrived,
}

/// What [`run`] has to do next.
enum Next {
    Handler(Handler),
    Delay(Duration),
}

impl Walk {
    fn begin(request: &mut Request) -> Walk {
        let mut walk = Walk {
            place: Place::Arrived,
            next: 0,
            location: request.location,
            refused: None,
        };
        walk.begin_pass(request);
        walk
    }

    /// Begins a pass where the last redirect said, or at the server's phases.
    fn begin_pass(&mut self, request: &mut Request) {
        // Checked where every pass begins, so that no kind of redirect can escape the bound.
        if request.flow.jumps > MAX_JUMPS {
            report_cycle(request);
            return self.end_pass(Outcome::Status(500), request);
        }
        match request.flow.entry {
            Entry::Server => {}
            Entry::Location => return self.enter(Phase::Rewrite, request),
            Entry::Content => return self.enter(Phase::Content, request),
        }
        request.enter_server();
        // `realip` decides once, for the request as it arrived: a redirected request would judge the replaced address.
        let again = request.flow.internal || request.is_subrequest();
        let first = match again {
            true => Phase::ServerRewrite,
            false => Phase::PostRead,
        };
        self.enter(first, request);
    }

    /// Ends a pass, with a response or with the reason to begin another one.
    fn end_pass(&mut self, mut outcome: Outcome, request: &mut Request) {
        loop {
            match outcome {
                Outcome::Respond | Outcome::Ok => {
                    self.place = Place::Arrived;
                    return;
                }
                Outcome::Jump | Outcome::Declined => return self.begin_pass(request),
                // `error_page` may turn the status into a redirect, so the result goes around again. It ends, because
                // redirects are counted and the built-in page is a response.
                Outcome::Status(status) => outcome = special::finish(request, status),
            }
        }
    }

    fn enter(&mut self, phase: Phase, request: &Request) {
        self.place = Place::Phase(phase);
        self.next = 0;
        self.location = request.location;
    }

    /// What has to be done next; `None` once there is a response.
    fn next(&mut self, request: &mut Request) -> Option<Next> {
        loop {
            let phase = match self.place {
                Place::Phase(phase) => phase,
                Place::Refused(outcome) => {
                    self.place = Place::Delayed(outcome);
                    let core = &request.site.location(self.location).core;
                    return Some(Next::Delay(core.auth_delay));
                }
                Place::Delayed(outcome) => {
                    self.end_pass(outcome, request);
                    continue;
                }
                Place::Arrived => return None,
            };
            let site = &request.site;
            // The first two phases run before a location is chosen and are the server's.
            let phases = match phase {
                Phase::PostRead | Phase::ServerRewrite => &site.server(request.server).phases,
                _ => &site.location(self.location).pipeline.phases,
            };
            if let Some(&handler) = phases[phase].get(self.next) {
                request.debug(format_args!("{phase:?} phase: {}", self.next));
                self.next += 1;
                return Some(Next::Handler(handler));
            }
            self.end_phase(phase, request);
        }
    }

    /// Takes the outcome of a handler.
    fn take(&mut self, outcome: Outcome, request: &mut Request) {
        let Place::Phase(phase) = self.place else {
            return;
        };
        match (phase, outcome) {
            (_, Outcome::Declined) => {}
            (Phase::Access, outcome) => self.take_access(outcome, request),
            (Phase::Content, outcome) => self.end_pass(outcome, request),
            // The phase is over: an index beyond its end makes the loop above leave it.
            (_, Outcome::Ok) => self.next = usize::MAX,
            (_, outcome) => self.end_pass(outcome, request),
        }
    }

    /// Combines the outcomes of the access handlers as `satisfy` says. With `all` the first refusal counts, with `any`
    /// the first grant. If none grants, the last 401 or 407 wins over 403, so that the client learns that a password
    /// would help.
    fn take_access(&mut self, outcome: Outcome, request: &mut Request) {
        match (outcome, request.site.location(self.location).core.satisfy) {
            (Outcome::Ok, Satisfy::All) => {}
            (Outcome::Ok, Satisfy::Any) => {
                // A handler that refused before may have asked for a password. With access granted the challenge must
                // not go out.
                request.out.fields.remove(b"WWW-Authenticate");
                request.out.fields.remove(b"Proxy-Authenticate");
                self.enter(Phase::Precontent, request);
            }
            (Outcome::Status(status @ (401 | 403 | 407)), Satisfy::Any) => {
                if !matches!(self.refused, Some(401 | 407)) {
                    self.refused = Some(status);
                }
            }
            (Outcome::Status(401 | 407), _) => self.place = Place::Refused(outcome),
            (other, _) => self.end_pass(other, request),
        }
    }

    /// Moves on after a phase that none of its handlers has ended.
    fn end_phase(&mut self, phase: Phase, request: &mut Request) {
        match phase {
            Phase::PostRead => self.enter(Phase::ServerRewrite, request),
            Phase::ServerRewrite => self.find_location(request),
            Phase::Rewrite if request.flow.uri_changed => self.find_again(request),
            Phase::Rewrite => self.enter(Phase::Preaccess, request),
            // Access was decided for the client's request; its subrequests are parts of that response, as in nginx.
            Phase::Preaccess if request.is_subrequest() => self.enter(Phase::Precontent, request),
            Phase::Preaccess => {
                // From an earlier pass: the refusal of another location says nothing about this one.
                self.refused = None;
                self.enter(Phase::Access, request);
            }
            Phase::Access => self.end_access(request),
            Phase::Precontent => self.enter(Phase::Content, request),
            // `proxy_pass` and its like replace all other content handlers of a location, as in nginx.
            Phase::Content => {
                let outcome = no_content(request);
                self.end_pass(outcome, request);
            }
            Phase::Log => self.place = Place::Arrived,
        }
    }

    fn end_access(&mut self, request: &mut Request) {
        match self.refused {
            None => self.enter(Phase::Precontent, request),
            Some(403) => {
                request.error(format_args!("access forbidden by rule"));
                self.end_pass(Outcome::Status(403), request);
            }
            Some(status) => self.place = Place::Refused(Outcome::Status(status)),
        }
    }

    /// Chooses the location anew after rewrites have changed the path.
    fn find_again(&mut self, request: &mut Request) {
        request.flow.jumps += 1;
        if request.flow.jumps > MAX_JUMPS {
            let path = request.uri.path.clone();
            request.error(format_args!(
                "rewrite or internal redirection cycle while processing \"{path}\""
            ));
            return self.end_pass(Outcome::Status(500), request);
        }
        self.find_location(request);
    }

    fn find_location(&mut self, request: &mut Request) {
        match find_location(request) {
            Outcome::Ok => self.enter(Phase::Rewrite, request),
            other => self.end_pass(other, request),
        }
    }
}

/// Logs the target of the internal redirect that exceeded the limit.
fn report_cycle(request: &Request) {
    let path = &request.uri.path;
    match request.flow.entry {
        Entry::Location => {
            let name = &request.site.location(request.location).name;
            request.error(format_args!(
                "rewrite or internal redirection cycle while redirect to named location \"{name}\""
            ));
        }
        Entry::Server | Entry::Content => request.error(format_args!(
            "rewrite or internal redirection cycle while internally redirecting to \"{path}\""
        )),
    }
}

/// `auth_delay`: a client that guesses passwords has to wait for each answer.
///
/// The delay begins with a new iteration of the loop, not at the end of the check, so that the time of the answer does
/// not reveal how far the check came.
async fn delay_refusal(request: &Request, delay: Duration) {
    if delay.is_zero() {
        return;
    }
    request.log(Level::Info, format_args!("delaying unauthorized request"));
    rt::yield_now().await;
    rt::sleep(delay).await;
}

/// Chooses the location for the current path and enters it.
fn find_location(request: &mut Request) -> Outcome {
    request.flow.uri_changed = false;
    match route::find(request) {
        route::Found::Location(location) => enter_location(request, location),
        // The location's own refusal comes first: the redirect would reveal that a location exists that is `internal`.
        route::Found::AddSlash(location) => match enter_location(request, location) {
            Outcome::Ok => special::redirect_to_directory(request),
            refused => refused,
        },
    }
}

fn enter_location(request: &mut Request, location: LocationId) -> Outcome {
    request.enter_location(location);
    let site = Rc::clone(&request.site);
    let core = &site.location(location).core;
    if host::error_log::debug_is_on() {
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
    // 404, as in nginx: to the client it must look as if the location did not exist.
    if core.internal && !request.flow.internal {
        return Outcome::Status(404);
    }
    let limit = core.client_max_body_size;
    if limit != 0
        && !request.is_subrequest()
        // Before anything is read or any handler runs: the limit depends on the location, and the client may still wait
        // for `100 Continue`. Content without a length is checked while it is read.
        && let Some(length) = request.body.announced_length()
        && length > limit
    {
        request.error(format_args!(
            "client intended to send too large body: {length} bytes"
        ));
        request.body.withhold();
        return Outcome::Status(413);
    }
    Outcome::Ok
}

fn no_content(request: &mut Request) -> Outcome {
    // What nginx answers where no handler wants the request: for a directory that no index module answered a 403, for
    // the rest a 404.
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
