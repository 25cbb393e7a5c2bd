//! A request's way through the phases, until there is a response.
//!
//! A location holds a frozen array of handlers for each phase, in the order in which they run:
//!
//! ```text
//! server:    post_read → server_rewrite → find the location
//! location:  rewrite (→ find again, if the path changed) → preaccess → access → precontent → content
//! ```
//!
//! A handler that redirects the request internally (`HandlerOutcome::Jump`) starts the next pass, at most [`MAX_JUMPS`]
//! times. A status without content goes through `error_page` (see [`crate::status_response`]), which may redirect as
//! well.

use std::rc::Rc;
use std::time::Duration;

use host::error_log::LogLevel;

use crate::http_site::{LocationId, LocationKind, Satisfy};
use crate::ledger::{EndedBy, LedgerPhase};
use crate::module::{HandlerOutcome, HandlerStep, HttpPhase, PhaseHandler};
use crate::request::{MAX_JUMPS, PhaseEntry, Request, RequestPurpose};
use crate::route;
use crate::status_response;

/// Runs the phases. Afterwards `request.out` is the response; only the filters are left to apply.
///
/// It never fails: an error is a response, too.
pub async fn run_phases(request: &mut Request) {
    let mut walk = PhaseWalk::begin(request);
    while let Some(step) = walk.next(request) {
        match step {
            PhaseAction::Handler(handler) => {
                let (outcome, has_waited) = match handler(request) {
                    HandlerStep::Now(outcome) => (outcome, false),
                    HandlerStep::Later(future) => (future.await, true),
                };
                if has_waited {
                    request.ledger.count_rest_as(walk.column());
                }
                crate::stall::blame_if_late(request);
                walk.take(outcome, request);
            }
            PhaseAction::Delay(delay) => delay_refusal(request, delay).await,
        }
    }
}

/// The position of a request in the phases: plain state that never waits. [`run_phases`] awaits the handlers, and
/// `weir explain` takes the same steps one at a time.
pub(crate) struct PhaseWalk {
    pub(crate) place: PhaseState,
    /// The index of the handler that runs next in the phase.
    pub(crate) next: usize,
    /// The location in which the phase began. A handler may move the request; its phase still runs to its end where it
    /// began.
    pub(crate) location: LocationId,
    /// With `satisfy any`, the refusal of an access handler that a later one may still overrule.
    refused: Option<u16>,
}

/// Where a request is.
#[derive(Clone, Copy)]
pub(crate) enum PhaseState {
    /// In this phase.
    Phase(HttpPhase),
    /// Access was refused, and `auth_delay` has yet to run.
    Refused(HandlerOutcome),
    /// Access was refused, and `auth_delay` has passed.
    Delayed(HandlerOutcome),
    /// There is a response.
    Arrived,
}

/// What [`run_phases`] has to do next.
pub(crate) enum PhaseAction {
    Handler(PhaseHandler),
    Delay(Duration),
}

/// One step of a walk.
pub(crate) enum WalkStep {
    /// This has to be done.
    Action(PhaseAction),
    /// The phase ended, and another one began; or there is a response.
    Moved,
    /// There was a response already.
    Arrived,
}

impl PhaseWalk {
    /// Begins where the request is to be processed from.
    pub(crate) fn begin(request: &mut Request) -> PhaseWalk {
        let mut walk = PhaseWalk {
            place: PhaseState::Arrived,
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
            // Logged where it was refused, with the place that it was to.
            return self.end_pass(HandlerOutcome::Status(500), request);
        }
        match request.flow.entry {
            // What was done for another path is over.
            PhaseEntry::Server => request.head.doing.set(""),
            PhaseEntry::Location => return self.enter(HttpPhase::Rewrite, request),
            PhaseEntry::Content => return self.enter(HttpPhase::Content, request),
        }
        request.enter_server();
        // `realip` decides once, for the request as it arrived: a redirected request would judge the replaced address.
        let again = request.flow.internal || request.is_subrequest();
        let first = match again {
            true => HttpPhase::ServerRewrite,
            false => HttpPhase::PostRead,
        };
        self.enter(first, request);
    }

    /// Ends a pass, with a response or with the reason to begin another one. A content handler's `Ok` is a response as well;
    /// `Declined` does not come here, because [`PhaseWalk::take`] goes on to the next handler then.
    fn end_pass(&mut self, mut outcome: HandlerOutcome, request: &mut Request) {
        loop {
            match outcome {
                HandlerOutcome::Respond | HandlerOutcome::Ok => {
                    self.place = PhaseState::Arrived;
                    return;
                }
                HandlerOutcome::Jump | HandlerOutcome::Declined => return self.begin_pass(request),
                // `error_page` may turn the status into a redirect, so the result goes around again. It ends, because
                // redirects are counted and the built-in page is a response.
                HandlerOutcome::Status(status) => {
                    outcome = status_response::respond_status(request, status)
                }
            }
        }
    }

    fn enter(&mut self, phase: HttpPhase, request: &Request) {
        self.place = PhaseState::Phase(phase);
        self.next = 0;
        self.location = request.location;
    }

    /// What has to be done next; `None` once there is a response.
    fn next(&mut self, request: &mut Request) -> Option<PhaseAction> {
        loop {
            match self.step(request) {
                WalkStep::Action(action) => return Some(action),
                WalkStep::Moved => {}
                WalkStep::Arrived => return None,
            }
        }
    }

    /// Takes one step.
    #[inline]
    pub(crate) fn step(&mut self, request: &mut Request) -> WalkStep {
        let phase = match self.place {
            PhaseState::Phase(phase) => phase,
            PhaseState::Refused(outcome) => {
                self.place = PhaseState::Delayed(outcome);
                let core = &request.site.location(self.location).core;
                return WalkStep::Action(PhaseAction::Delay(core.auth_delay));
            }
            PhaseState::Delayed(outcome) => {
                self.end_pass(outcome, request);
                return WalkStep::Moved;
            }
            PhaseState::Arrived => return WalkStep::Arrived,
        };
        let site = &request.site;
        // The first two phases run before a location is chosen and are the server's.
        let phases = match phase {
            HttpPhase::PostRead | HttpPhase::ServerRewrite => &site.server(request.server).phases,
            _ => &site.location(self.location).pipeline.phases,
        };
        if let Some(&handler) = phases[phase].get(self.next) {
            request.debug(format_args!("{phase:?} phase: {}", self.next));
            self.next += 1;
            return WalkStep::Action(PhaseAction::Handler(handler));
        }
        self.end_phase(phase, request);
        WalkStep::Moved
    }

    /// What a handler of the present phase waits for if it does not say.
    fn column(&self) -> LedgerPhase {
        match self.place {
            PhaseState::Phase(HttpPhase::Preaccess) => LedgerPhase::Limit,
            PhaseState::Phase(HttpPhase::Access) => LedgerPhase::Auth,
            PhaseState::Phase(HttpPhase::Precontent | HttpPhase::Content) => LedgerPhase::Disk,
            _ => LedgerPhase::Work,
        }
    }

    /// Takes the outcome of a handler.
    pub(crate) fn take(&mut self, outcome: HandlerOutcome, request: &mut Request) {
        let PhaseState::Phase(phase) = self.place else {
            return;
        };
        match (phase, outcome) {
            (_, HandlerOutcome::Declined) => {}
            (HttpPhase::Access, outcome) => self.take_access(outcome, request),
            (HttpPhase::Preaccess, outcome @ HandlerOutcome::Status(_)) => {
                request.ledger.end_in(EndedBy::Rule, LedgerPhase::Limit);
                self.end_pass(outcome, request);
            }
            (HttpPhase::Content, outcome) => self.end_pass(outcome, request),
            // The phase is over: an index beyond its end makes the loop above leave it.
            (_, HandlerOutcome::Ok) => self.next = usize::MAX,
            (_, outcome) => self.end_pass(outcome, request),
        }
    }

    /// Combines the outcomes of the access handlers as `satisfy` says. With `all` the first refusal counts, with `any`
    /// the first grant. If none grants, the last 401 or 407 wins over 403, so that the client learns that a password
    /// would help.
    fn take_access(&mut self, outcome: HandlerOutcome, request: &mut Request) {
        match (outcome, request.site.location(self.location).core.satisfy) {
            (HandlerOutcome::Ok, Satisfy::All) => {}
            (HandlerOutcome::Ok, Satisfy::Any) => {
                // A handler that refused before may have asked for a password. With access granted the challenge must
                // not go out.
                request.out.fields.remove(b"WWW-Authenticate");
                request.out.fields.remove(b"Proxy-Authenticate");
                self.enter(HttpPhase::Precontent, request);
            }
            (HandlerOutcome::Status(status @ (401 | 403 | 407)), Satisfy::Any) => {
                if !matches!(self.refused, Some(401 | 407)) {
                    self.refused = Some(status);
                }
            }
            (HandlerOutcome::Status(401 | 407), _) => {
                request.ledger.end_in(EndedBy::Rule, LedgerPhase::Auth);
                self.place = PhaseState::Refused(outcome);
            }
            (HandlerOutcome::Status(_), _) => {
                request.ledger.end_in(EndedBy::Rule, LedgerPhase::Auth);
                self.end_pass(outcome, request);
            }
            (other, _) => self.end_pass(other, request),
        }
    }

    /// Moves on after a phase that none of its handlers has ended.
    #[inline]
    fn end_phase(&mut self, phase: HttpPhase, request: &mut Request) {
        match phase {
            HttpPhase::PostRead => self.enter(HttpPhase::ServerRewrite, request),
            HttpPhase::ServerRewrite => self.find_location(request),
            HttpPhase::Rewrite if request.flow.uri_changed => self.find_again(request),
            // The member of the cluster that asks has limited and admitted its client already.
            HttpPhase::Rewrite if request.flow.purpose == RequestPurpose::Member => {
                self.enter(HttpPhase::Precontent, request)
            }
            HttpPhase::Rewrite => self.enter(HttpPhase::Preaccess, request),
            // Access was decided for the client's request; its subrequests are parts of that response, as in nginx.
            HttpPhase::Preaccess if request.is_subrequest() => {
                self.enter(HttpPhase::Precontent, request)
            }
            HttpPhase::Preaccess => {
                // From an earlier pass: the refusal of another location says nothing about this one.
                self.refused = None;
                self.enter(HttpPhase::Access, request);
            }
            HttpPhase::Access => self.end_access(request),
            HttpPhase::Precontent => self.enter(HttpPhase::Content, request),
            // All content handlers have declined.
            HttpPhase::Content => {
                let outcome = no_content(request);
                self.end_pass(outcome, request);
            }
            // Run by `log_phase` after the response; no pass enters them.
            HttpPhase::Log | HttpPhase::PartEnd => self.place = PhaseState::Arrived,
        }
    }

    fn end_access(&mut self, request: &mut Request) {
        match self.refused {
            None => self.enter(HttpPhase::Precontent, request),
            Some(403) => {
                request.ledger.end_in(EndedBy::Rule, LedgerPhase::Auth);
                request.error(format_args!("access forbidden by rule"));
                self.end_pass(HandlerOutcome::Status(403), request);
            }
            Some(status) => {
                request.ledger.end_in(EndedBy::Rule, LedgerPhase::Auth);
                self.place = PhaseState::Refused(HandlerOutcome::Status(status));
            }
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
            return self.end_pass(HandlerOutcome::Status(500), request);
        }
        self.find_location(request);
    }

    fn find_location(&mut self, request: &mut Request) {
        match find_location(request) {
            HandlerOutcome::Ok => self.enter(HttpPhase::Rewrite, request),
            other => self.end_pass(other, request),
        }
    }
}

/// `auth_delay`: a client that guesses passwords has to wait for each answer.
///
/// The delay begins with a new iteration of the loop, not at the end of the check, so that the time of the answer does
/// not reveal how far the check came.
async fn delay_refusal(request: &mut Request, delay: Duration) {
    if delay.is_zero() {
        return;
    }
    let former = request.ledger.enter(LedgerPhase::Auth);
    request.log(
        LogLevel::Info,
        format_args!("delaying unauthorized request"),
    );
    rt::yield_now().await;
    rt::sleep(delay).await;
    request.ledger.enter(former);
}

/// Chooses the location for the current path and enters it.
fn find_location(request: &mut Request) -> HandlerOutcome {
    request.flow.uri_changed = false;
    match route::search_locations(request) {
        route::FoundLocation::Location(location) => enter_location(request, location),
        // The location's own refusal comes first: the redirect would reveal that a location exists that is `internal`.
        route::FoundLocation::AddSlash(location) => match enter_location(request, location) {
            HandlerOutcome::Ok => status_response::redirect_to_directory(request),
            refused => refused,
        },
    }
}

fn enter_location(request: &mut Request, location: LocationId) -> HandlerOutcome {
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
        return HandlerOutcome::Status(404);
    }
    request.limit_keepalive(core);
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
        request.body.withhold_content();
        return HandlerOutcome::Status(413);
    }
    HandlerOutcome::Ok
}

fn no_content(request: &mut Request) -> HandlerOutcome {
    // What nginx answers where no handler wants the request: for a directory that no index module answered a 403, for
    // the rest a 404.
    if !request.uri.path.ends_with(b"/") {
        return HandlerOutcome::Status(404);
    }
    let directory = request
        .file_path()
        .map(|path| path.to_string())
        .unwrap_or_default();
    request.error(format_args!(
        "directory index of \"{directory}\" is forbidden"
    ));
    HandlerOutcome::Status(403)
}
