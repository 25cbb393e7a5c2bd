//! Takes an explained request through the phases and the filters, one step of the server's own walk at a time.
//!
//! Between two steps it looks at the request: what has changed is what the step did. Handlers that only read are run;
//! the others are named, and what follows depends on them.

use std::rc::Rc;

use bstr::{BString, ByteSlice};

use super::notes::{ExplainNotes, ModuleExplain, StepResult};
use super::search::LocationSearchNotes;
use crate::handler::{FilterVerdict, HandlerOutcome, HttpPhase};
use crate::http_site::{LocationId, PhaseHandler};
use crate::module::HttpModule;
use crate::phase::{PhaseAction, PhaseState, PhaseWalk, WalkStep};
use crate::process_request::settle_status;
use crate::request::{MAX_JUMPS, PhaseEntry, Request};
use crate::{route, status_response};

/// How far an explanation came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExplainEnd {
    /// There is a response.
    Response,
    /// Another server would be asked, or a script be run: the response is its.
    Elsewhere,
}

/// An explained request under way.
pub(super) struct ExplainedWalk {
    pub(super) modules: &'static [&'static HttpModule],
    pub(super) notes: ExplainNotes,
    /// The module that answered.
    pub(super) answered_by: Option<&'static HttpModule>,
}

/// What a step may change.
struct WalkSight {
    location: LocationId,
    jumps: u16,
    path: BString,
    forced_status: Option<u16>,
}

impl WalkSight {
    fn of(request: &Request) -> WalkSight {
        WalkSight {
            location: request.location,
            jumps: u16::from(request.flow.jumps),
            path: request.uri.path.clone(),
            forced_status: request.flow.forced_status,
        }
    }
}

impl ExplainedWalk {
    /// Runs the phases, and the filters over a response.
    pub(super) async fn run(&mut self, request: &mut Request) -> ExplainEnd {
        match self.run_phases(request).await {
            ExplainEnd::Response => self.finish(request).await,
            ExplainEnd::Elsewhere => {
                self.filters_of_foreign(request);
                ExplainEnd::Elsewhere
            }
        }
    }

    /// Answers with a status, as for a request that is refused before the phases.
    pub(super) async fn refuse(&mut self, request: &mut Request, status: u16) -> ExplainEnd {
        if self.respond_status(request, status).await == ExplainEnd::Elsewhere {
            return ExplainEnd::Elsewhere;
        }
        self.finish(request).await
    }

    async fn respond_status(&mut self, request: &mut Request, status: u16) -> ExplainEnd {
        let mut outcome = HandlerOutcome::Status(status);
        while let HandlerOutcome::Status(status) = outcome {
            let before = WalkSight::of(request);
            outcome = status_response::respond_status(request, status);
            self.note_status(&before, request, status);
        }
        match outcome {
            HandlerOutcome::Jump => self.run_phases(request).await,
            _ => ExplainEnd::Response,
        }
    }

    async fn run_phases(&mut self, request: &mut Request) -> ExplainEnd {
        let mut walk = PhaseWalk::begin(request);
        loop {
            let before = WalkSight::of(request);
            let mut status = None;
            let search = self.search_before_step(&walk, request);
            match (walk.place, walk.step(request)) {
                (_, WalkStep::Arrived) => return ExplainEnd::Response,
                (_, WalkStep::Action(PhaseAction::Delay(_))) => {}
                (place, WalkStep::Moved) => {
                    if let PhaseState::Delayed(HandlerOutcome::Status(refusal)) = place {
                        status = Some(refusal);
                    }
                    if search {
                        status = self.note_entry(&before, request).or(status);
                    }
                }
                (PhaseState::Phase(phase), WalkStep::Action(PhaseAction::Handler(handler))) => {
                    let Some(outcome) = self.run_handler(phase, handler, request).await else {
                        return ExplainEnd::Elsewhere;
                    };
                    if let HandlerOutcome::Status(answer) = outcome {
                        status = Some(answer);
                    }
                    walk.take(outcome, request);
                    if outcome == HandlerOutcome::Jump {
                        self.note_jump(request);
                    }
                }
                (_, WalkStep::Action(PhaseAction::Handler(_))) => {}
            }
            if let Some(status) = status {
                self.note_status(&before, request, status);
            }
        }
    }

    /// If the next step searches for a location, notes how that search goes. It is repeated by the step.
    fn search_before_step(&mut self, walk: &PhaseWalk, request: &mut Request) -> bool {
        let PhaseState::Phase(phase) = walk.place else {
            return false;
        };
        let site = Rc::clone(&request.site);
        let count = match phase {
            HttpPhase::ServerRewrite => site.server(request.server).phases[phase].len(),
            HttpPhase::Rewrite if request.flow.uri_changed => {
                site.location(walk.location).pipeline.phases[phase].len()
            }
            _ => return false,
        };
        if walk.next < count || request.flow.jumps >= MAX_JUMPS {
            return false;
        }
        let mut search = LocationSearchNotes::new(&site, request.uri.path.clone());
        route::observe_search(request, &mut search);
        search.tell(&mut self.notes);
        true
    }

    /// Notes what entering a location brings. Returns the status with which it refuses, or redirects.
    fn note_entry(&mut self, before: &WalkSight, request: &Request) -> Option<u16> {
        let site = &request.site;
        let entered = site.location(request.location);
        let is_refused = request.flow.forced_status != before.forced_status;
        if let Some(block) = self.notes.tree.block(request.location)
            && block.node.name.is("limit_except")
        {
            let (text, place) = (block.text.clone(), block.place.clone());
            self.notes
                .step("limit_except", StepResult::Applies, text, place);
        }
        // An error page may have moved the request on at once.
        let chosen = match request.flow.jumps == 0 || u16::from(request.flow.jumps) == before.jumps
        {
            true => request.location,
            false => before.location,
        };
        if is_refused
            && site.location(chosen).core.internal
            && request.flow.forced_status == Some(404)
        {
            let place = self.notes.place_of(chosen, &["internal"]);
            self.notes
                .step("internal", StepResult::Applies, "404 to clients", place);
            return Some(404);
        }
        if is_refused && entered.adds_slash {
            let place = self
                .notes
                .tree
                .block(request.location)
                .and_then(|line| line.place);
            let name = &entered.name;
            self.notes
                .step("redirect", StepResult::Applies, format!("to {name}"), place);
        }
        request.flow.forced_status.filter(|_| is_refused)
    }

    /// Runs a handler, or what stands for it. `None`: nothing is known of what follows.
    async fn run_handler(
        &mut self,
        phase: HttpPhase,
        handler: PhaseHandler,
        request: &mut Request,
    ) -> Option<HandlerOutcome> {
        let Some(module) = self.module_of(phase, handler) else {
            return Some(handler(request).outcome().await);
        };
        let outcome = match module.explain {
            ModuleExplain::Runs(names) => {
                let location = request.location;
                let client = Rc::clone(&request.remote);
                let outcome = handler(request).outcome().await;
                if !Rc::ptr_eq(&client, &request.remote) {
                    let place = self.notes.place_of(location, names);
                    let text = format!("the client is {}", request.remote.text);
                    self.notes
                        .step(module.name, StepResult::Applies, text, place);
                }
                if outcome != HandlerOutcome::Declined && outcome != HandlerOutcome::Jump {
                    self.note_run(module, names, location, outcome);
                }
                outcome
            }
            ModuleExplain::ServesFiles(_) => handler(request).outcome().await,
            ModuleExplain::Described(describe) => {
                let outcome = describe(request, phase, &mut self.notes).outcome().await;
                if self.notes.is_elsewhere {
                    return None;
                }
                outcome
            }
            ModuleExplain::Depends(names) => {
                let depends = self.note_dependence(module, phase, names, request.location);
                if depends && phase == HttpPhase::Content {
                    return None;
                }
                HandlerOutcome::Declined
            }
            ModuleExplain::Aside(names) => {
                self.note_lines(module.name, names, request.location);
                HandlerOutcome::Declined
            }
            ModuleExplain::Exchange(exchange) => match exchange(request, &mut self.notes) {
                Ok(()) => return None,
                Err(outcome) => outcome,
            },
        };
        if phase == HttpPhase::Content && outcome != HandlerOutcome::Declined {
            self.answered_by = Some(module);
        }
        Some(outcome)
    }

    /// The module of a handler. Handlers are told apart by their addresses, like pipelines.
    fn module_of(&self, phase: HttpPhase, handler: PhaseHandler) -> Option<&'static HttpModule> {
        let is_meant = |other: PhaseHandler| other as usize == handler as usize;
        self.modules.iter().copied().find(|module| {
            let mut phases = module.phases.iter();
            let content = module.content_handler.as_ref();
            phases.any(|(other, candidate)| *other == phase && is_meant(*candidate))
                || phase == HttpPhase::Content
                    && content.is_some_and(|content| is_meant(content.handler))
        })
    }

    /// Notes a handler that was run.
    fn note_run(
        &mut self,
        module: &HttpModule,
        names: &[&str],
        location: LocationId,
        outcome: HandlerOutcome,
    ) {
        let lines = self.notes.tree.lines(location, names);
        let (text, place) = match lines.first() {
            Some(line) => (line.text.clone(), line.place.clone()),
            None => (module.name.into(), None),
        };
        let text = match outcome {
            HandlerOutcome::Status(status) => format!("{text} → {status}"),
            HandlerOutcome::Ok => format!("{text} → granted"),
            HandlerOutcome::Declined | HandlerOutcome::Respond | HandlerOutcome::Jump => {
                text.to_string()
            }
        };
        self.notes
            .step(module.name, StepResult::Applies, text, place);
    }

    /// Notes a handler that is not run. `false`: no directive gives it anything to do here.
    fn note_dependence(
        &mut self,
        module: &HttpModule,
        phase: HttpPhase,
        names: &[(HttpPhase, &[&str])],
        location: LocationId,
    ) -> bool {
        if names.is_empty() {
            self.notes
                .step(module.name, StepResult::NotRun, module.doc, None);
            self.notes.depends_on.push(module.name.into());
            return true;
        }
        let names = names.iter().filter(|(acts_in, _)| *acts_in == phase);
        let names: Vec<&str> = names.flat_map(|(_, names)| names.iter().copied()).collect();
        let tree = Rc::clone(&self.notes.tree);
        let lines = tree.lines(location, &names);
        for line in &lines {
            self.notes.not_run(module.name, line);
        }
        !lines.is_empty()
    }

    /// Notes lines that change nothing of what is explained.
    fn note_lines(&mut self, kind: &'static str, names: &[&str], location: LocationId) {
        let tree = Rc::clone(&self.notes.tree);
        for line in tree.lines(location, names) {
            let (text, place) = (line.text.clone(), line.place.clone());
            self.notes.step(kind, StepResult::NotRun, text, place);
        }
    }

    fn note_jump(&mut self, request: &Request) {
        let text = match request.flow.entry {
            PhaseEntry::Location => {
                format!("to {}", request.site.location(request.location).name)
            }
            PhaseEntry::Server | PhaseEntry::Content => format!("to {}", request.uri.path),
        };
        self.notes
            .step("internal redirect", StepResult::Applies, text, None);
    }

    /// Notes what became of a status: an error page, if one redirected the request.
    fn note_status(&mut self, before: &WalkSight, request: &Request, status: u16) {
        let location = before.location;
        let number = status.to_string();
        let tree = Rc::clone(&self.notes.tree);
        let lines = tree.lines(location, &["error_page"]);
        let line = lines
            .iter()
            .find(|line| line.node.args.iter().any(|word| word.is(&number)));
        let moved = u16::from(request.flow.jumps) > before.jumps || request.uri.path != before.path;
        match line {
            Some(line) if moved || request.out.location.is_some() => {
                let text = format!("{status}: {}", line.text);
                self.notes
                    .step("error_page", StepResult::Applies, text, line.place.clone());
            }
            Some(_) | None => {}
        }
    }

    /// Runs the filters that only look at the head.
    async fn finish(&mut self, request: &mut Request) -> ExplainEnd {
        for _ in 0..=MAX_JUMPS + 1 {
            settle_status(request);
            if request.delivery.is_silent() {
                return ExplainEnd::Response;
            }
            let FilterVerdict::Status(status) = self.run_filters(request) else {
                return ExplainEnd::Response;
            };
            if status == 412 {
                request.out.charset.clear();
            }
            if self.respond_status(request, status).await == ExplainEnd::Elsewhere {
                return ExplainEnd::Elsewhere;
            }
        }
        settle_status(request);
        ExplainEnd::Response
    }

    fn run_filters(&mut self, request: &mut Request) -> FilterVerdict {
        let site = Rc::clone(&request.site);
        let location = request.location;
        for (name, filter) in &site.location(location).pipeline.filters {
            let module = self.modules.iter().find(|module| module.name == *name);
            let verdict = match module.map(|module| (*module, module.explain)) {
                Some((module, ModuleExplain::Runs(names))) => {
                    let before = (request.out.fields.iter().count(), request.out.status);
                    let verdict = filter(request);
                    self.note_filter(module, names, request, before);
                    verdict
                }
                Some((module, ModuleExplain::Depends(_) | ModuleExplain::Aside(_))) => {
                    self.note_lines(module.name, &filter_lines(module), location);
                    FilterVerdict::Pass
                }
                Some(_) | None => FilterVerdict::Pass,
            };
            if verdict != FilterVerdict::Pass {
                return verdict;
            }
        }
        FilterVerdict::Pass
    }

    /// Notes what a filter has changed.
    fn note_filter(
        &mut self,
        module: &HttpModule,
        names: &[&str],
        request: &Request,
        (fields, status): (usize, u16),
    ) {
        let tree = Rc::clone(&self.notes.tree);
        let lines = tree.lines(request.location, names);
        for (name, value) in request.out.fields.iter().skip(fields) {
            let is_of = |word: &conf::DirectiveWord| word.text.eq_ignore_ascii_case(name);
            let own = lines.iter().find(|line| line.node.args.iter().any(is_of));
            let place = own.or(lines.first()).and_then(|line| line.place.clone());
            let text = format!("{}: {}", name.as_bstr(), value.as_bstr());
            self.notes.step("header", StepResult::Applies, text, place);
        }
        if request.out.status != status {
            let text = format!("status {}", request.out.status);
            self.notes
                .step(module.name, StepResult::Applies, text, None);
        }
    }

    /// Names the directives that will work on a response that is not known yet.
    fn filters_of_foreign(&mut self, request: &Request) {
        let site = Rc::clone(&request.site);
        let location = request.location;
        for (name, _) in &site.location(location).pipeline.filters {
            let Some(module) = self.modules.iter().find(|module| module.name == *name) else {
                continue;
            };
            self.note_lines("response", &filter_lines(module), location);
        }
        self.note_lines("response", &["error_page"], location);
    }
}

/// The directives of a filter.
fn filter_lines(module: &HttpModule) -> Vec<&'static str> {
    match module.explain {
        ModuleExplain::Runs(names) | ModuleExplain::Aside(names) => names.to_vec(),
        ModuleExplain::Depends(names) => {
            let names = names.iter().flat_map(|(_, names)| names.iter());
            names.copied().collect()
        }
        ModuleExplain::ServesFiles(_)
        | ModuleExplain::Described(_)
        | ModuleExplain::Exchange(_) => Vec::new(),
    }
}
