//! One script at work: its coroutines, what they wait for, and how it ended.
//!
//! ```text
//!             ┌──────────────────── ready ◀─────────────────────┐
//!             ▼                                                 │
//!   resume ─▶ Lua runs ─┬─▶ waits for a future ────── completes ┤
//!                       ├─▶ waits for the driver ───── answered ┤
//!                       ├─▶ waits for light threads ── one ends ┤
//!                       ├─▶ is preempted ───────────── its turn ┘
//!                       └─▶ returns or fails: ended, until a waiter takes the result
//! ```
//!
//! A run is polled like a future, but is lent the request or session anew at each poll: no future
//! could own `&mut Request` while the engine needs it too. Most scripts never wait. They are
//! complete after the first `advance`, and no future is created for them.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bstr::{BString, ByteSlice};
use host::error_log::LogLevel;
use http::ledger::LedgerPhase;
use rt::slow_turn::SuspectKind;

use crate::chunk::LuaChunk;
use crate::luajit::watchdog::{ScriptBudget, ScriptLimits};
use crate::luajit::{LuaCoroutine, LuaStack, LuaValue, RegistryRef, ResumeOutcome};
use crate::operation::{ResumeValues, WaitTask, YieldOperation};
use crate::run_owner::RunOwner;
use crate::scope::{self, RunScope, SpawnedThread};
use crate::turns::RunTurn;

/// A script at work.
pub(crate) struct ScriptRun {
    /// What the script's API calls work on.
    pub(crate) scope: Rc<RunScope>,
    /// Where the code stands; `None` for a function that a script has passed on, such as to a timer.
    chunk: Option<Arc<str>>,
    /// What the watchdog grants the script.
    budget: ScriptBudget,
    /// The main coroutine and the light threads, also those that have ended and whose results have
    /// not been taken.
    threads: Vec<RunThread>,
    /// Coroutines that can continue, each with what it is resumed with. The order is
    /// lua-nginx-module's, and scripts depend on it: see the pushes.
    ready: VecDeque<(usize, ResumeWith)>,
    /// What the request was doing before the script.
    former_phase: LedgerPhase,
    /// The script was preempted, and waits in line with other long-running scripts of this loop.
    turn: Option<RunTurn>,
    /// What the main coroutine returned, once it has. The run goes on while light threads do.
    returned: Option<Vec<ReturnedText>>,
    /// Inspects the results of the main coroutine while they are still on its stack.
    on_end: Option<OnEnd>,
}

/// Receives the stack and the number of results on it.
pub(crate) type OnEnd = Box<dyn FnOnce(&LuaStack, i32) -> Result<(), Vec<u8>>>;

/// A coroutine of a run: the main one, number 0, or a light thread.
struct RunThread {
    number: usize,
    /// `None` while it runs, and after it has ended.
    coroutine: Option<LuaCoroutine>,
    state: CoroutineState,
}

/// What a coroutine is doing.
enum CoroutineState {
    /// It is in the queue, or runs.
    Ready,
    /// It waits for a future that needs no request.
    Task(WaitTask),
    /// It waits for something that only the driver of the run can do, such as reading the request
    /// body.
    AwaitsDriver,
    /// It waits for the first of these light threads to end.
    WaitsForThreads(Vec<usize>),
    /// It has ended, and its result has not been asked for: a "zombie" in lua-nginx-module's words.
    Ended(Result<Vec<LuaValue>, Vec<LuaValue>>),
}

/// What a coroutine is resumed with.
enum ResumeWith {
    /// This many values, which are on its stack already.
    Arguments(i32),
    Reply(ResumeValues),
}

/// How far a run has come, for its driver to act upon.
pub(crate) enum RunEvent {
    /// It has ended.
    Ended(RunEnd),
    /// It needs the request body. The driver reads it and answers the coroutine of this number.
    NeedBody(usize),
    /// It waits until its output has been sent. The driver sends it and answers.
    Flush(usize),
    /// Every coroutine waits. Poll again when woken.
    Waiting,
}

/// How a run ended.
#[derive(Debug)]
pub(crate) enum RunEnd {
    /// The script returned these values.
    Completed(Vec<ReturnedText>),
    /// `ngx.exit` with this code: a status, or one of nginx's return codes.
    Exit(i32),
    /// `ngx.exec`: an internal redirect to this path with these arguments.
    Exec(BString, BString),
    /// `ngx.req.set_uri(uri, true)`: the location is to be looked up again.
    Jump,
    /// It failed, and the error log says why.
    Failed,
}

/// A value that a script returned, as text; `None` for nil. Text is all the configuration can use
/// (`set_by_lua`, the code of a body filter).
pub(crate) type ReturnedText = Option<Vec<u8>>;

/// How many light threads a run may have at a time, including those that have ended but were not
/// waited for: a loop that only spawns would otherwise take all memory.
pub(crate) const MAX_THREADS: usize = 10_000;

impl ScriptRun {
    /// A run that calls `function` without arguments.
    pub(crate) fn new(
        scope: Rc<RunScope>,
        function: &RegistryRef,
        limits: &ScriptLimits,
    ) -> ScriptRun {
        ScriptRun::of_coroutine(scope, LuaCoroutine::of(function), 0, limits)
    }

    /// A run of a coroutine that has its function and `arguments` values on its stack.
    pub(crate) fn of_coroutine(
        scope: Rc<RunScope>,
        coroutine: LuaCoroutine,
        arguments: i32,
        limits: &ScriptLimits,
    ) -> ScriptRun {
        let budget = ScriptBudget::new(limits, scope.kind.is_preemptible());
        let mut ready = VecDeque::new();
        ready.push_back((0, ResumeWith::Arguments(arguments)));
        ScriptRun {
            scope,
            chunk: None,
            budget,
            threads: vec![RunThread {
                number: 0,
                coroutine: Some(coroutine),
                state: CoroutineState::Ready,
            }],
            ready,
            former_phase: LedgerPhase::Work,
            turn: None,
            returned: None,
            on_end: None,
        }
    }

    /// The same run, of a chunk in the configuration.
    pub(crate) fn of_chunk(mut self, chunk: &LuaChunk) -> ScriptRun {
        self.chunk = Some(Arc::clone(&chunk.name));
        self
    }

    /// Registers a look at the script's results before they are dropped.
    pub(crate) fn on_end(&mut self, look: OnEnd) {
        self.on_end = Some(look);
    }

    /// Runs until the script has ended or every coroutine of it waits.
    pub(crate) fn advance(&mut self, mut guest: RunOwner<'_>) -> RunEvent {
        // A script may hold the loop for long, and what comes after it must not be charged for that.
        let work = rt::LongWork::begin();
        if let RunOwner::Request(request) = &mut guest {
            let former = request.ledger.enter(LedgerPhase::Script);
            if former != LedgerPhase::Script {
                self.former_phase = former;
            }
        }
        let event = self.advance_threads(guest.reborrow());
        work.end();
        if rt::slow_turn::loop_is_late() {
            self.suspect(&guest);
        }
        // While it waits, the request is still in its script.
        if let (RunOwner::Request(request), RunEvent::Ended(_)) = (guest, &event) {
            request.ledger.enter(self.former_phase);
        }
        event
    }

    /// The loop is late: says that it was in this script, and for whom.
    #[cold]
    fn suspect(&self, guest: &RunOwner<'_>) {
        let kind = self.scope.kind.name();
        let name = self.chunk.as_deref().unwrap_or(kind);
        rt::suspect(SuspectKind::Part, || name.to_owned());
        match guest {
            RunOwner::Server => {}
            RunOwner::Request(request) => http::stall::suspect_request(request),
            RunOwner::Session(session) => session.suspect(),
        }
    }

    fn advance_threads(&mut self, mut guest: RunOwner<'_>) -> RunEvent {
        while self.turn.is_none() {
            let Some((number, go)) = self.ready.pop_front() else {
                return RunEvent::Waiting;
            };
            if let Some(event) = self.resume(number, go, guest.reborrow()) {
                return event;
            }
        }
        RunEvent::Waiting
    }

    /// [`ScriptRun::advance`], and then polls what the coroutines wait for.
    pub(crate) fn poll(
        &mut self,
        mut guest: RunOwner<'_>,
        context: &mut Context<'_>,
    ) -> Poll<RunEvent> {
        loop {
            if let Some(turn) = &mut self.turn {
                if turn.poll(context).is_pending() {
                    return Poll::Pending;
                }
                self.turn = None;
            }
            match self.advance(guest.reborrow()) {
                RunEvent::Waiting => {}
                event => return Poll::Ready(event),
            }
            // Preempted again: register with the queue before returning.
            if self.turn.is_some() {
                continue;
            }
            // All futures are polled at each wake-up. A run rarely has more than a handful, and
            // knowing which one woke would need a waker for each.
            for thread in &mut self.threads {
                if let CoroutineState::Task(task) = &mut thread.state
                    && let Poll::Ready(reply) = task.as_mut().poll(context)
                {
                    thread.state = CoroutineState::Ready;
                    self.ready
                        .push_back((thread.number, ResumeWith::Reply(reply)));
                }
            }
            if self.ready.is_empty() {
                return Poll::Pending;
            }
        }
    }

    /// Runs a script that cannot wait to its end. If it tries to wait it fails, with the message
    /// that lua-nginx-module has for it.
    pub(crate) fn run_to_completion(&mut self, guest: RunOwner<'_>) -> RunEnd {
        match self.advance(guest) {
            RunEvent::Ended(end) => end,
            RunEvent::NeedBody(_) | RunEvent::Flush(_) | RunEvent::Waiting => {
                self.scope.log.log_plain(
                    LogLevel::Error,
                    format_args!(
                        "lua: API disabled in the context of {}*: it cannot yield",
                        self.scope.kind.name()
                    ),
                );
                RunEnd::Failed
            }
        }
    }

    /// The client has disconnected. Starts the handler of `ngx.on_abort` as a light thread, and
    /// tells whether there is one: without it the script is aborted.
    pub(crate) fn on_client_abort(&mut self) -> bool {
        let Some(function) = self.scope.on_abort.take() else {
            return false;
        };
        let next = &self.scope.vm.next_thread;
        let number = next.get();
        next.set(number + 1);
        self.threads.push(RunThread {
            number,
            coroutine: Some(LuaCoroutine::of(&function)),
            state: CoroutineState::Ready,
        });
        self.ready.push_back((number, ResumeWith::Arguments(0)));
        true
    }

    /// Resumes a coroutine with what it waited for. One that was killed meanwhile is not there any
    /// more.
    pub(crate) fn resume_with(&mut self, number: usize, reply: ResumeValues) {
        if let Some(thread) = self.thread(number) {
            thread.state = CoroutineState::Ready;
            self.ready.push_back((number, ResumeWith::Reply(reply)));
        }
    }

    fn thread(&mut self, number: usize) -> Option<&mut RunThread> {
        self.threads
            .iter_mut()
            .find(|thread| thread.number == number)
    }

    /// Resumes one coroutine; an event if the driver has to act.
    fn resume(
        &mut self,
        number: usize,
        go: ResumeWith,
        mut guest: RunOwner<'_>,
    ) -> Option<RunEvent> {
        // Taken out while it runs: the script may kill it, which removes the entry.
        let mut coroutine = self.thread(number)?.coroutine.take()?;
        let arguments = match go {
            ResumeWith::Arguments(n) => n,
            ResumeWith::Reply(values) => {
                let stack = coroutine.stack();
                for value in &values {
                    value.push(&stack);
                }
                i32::try_from(values.len()).unwrap_or(0)
            }
        };
        let scope = Rc::clone(&self.scope);
        scope.current_thread.set(number);
        let resumed = scope::enter(&scope, guest.reborrow(), || {
            coroutine.resume(arguments, &self.budget)
        });
        // Before anything is decided: threads that were spawned a moment ago keep the run alive.
        self.adopt_spawned();
        match resumed {
            ResumeOutcome::Ended(n) => self.on_ended(number, coroutine, n),
            ResumeOutcome::Failed(message, trace, left) => {
                drop(coroutine);
                self.on_failed(number, (&message, &trace, left), &guest)
            }
            ResumeOutcome::Waits => {
                self.store_coroutine(number, coroutine);
                self.on_wait(number)
            }
            // `coroutine.yield` of the main coroutine or a light thread itself: to the back of the
            // queue, so that the others get a turn.
            ResumeOutcome::Yielded => {
                self.store_coroutine(number, coroutine);
                self.ready.push_back((number, ResumeWith::Arguments(0)));
                None
            }
            // To the front: when its turn comes it continues where it was interrupted, and no other
            // coroutine of the same script may observe the state in between.
            ResumeOutcome::Preempted => {
                self.store_coroutine(number, coroutine);
                self.ready.push_front((number, ResumeWith::Arguments(0)));
                self.turn = Some(RunTurn::new());
                None
            }
        }
    }

    /// Returns a coroutine to its entry, unless it was killed while it ran.
    fn store_coroutine(&mut self, number: usize, coroutine: LuaCoroutine) {
        if let Some(thread) = self.thread(number) {
            thread.coroutine = Some(coroutine);
        }
    }

    /// Adds the light threads that the script has spawned and removes those it has killed.
    fn adopt_spawned(&mut self) {
        if self.scope.spawned.borrow().is_empty() && self.scope.killed.borrow().is_empty() {
            return;
        }
        for begun in self.scope.spawned.take() {
            let SpawnedThread {
                number,
                coroutine,
                arguments,
            } = begun;
            self.threads.push(RunThread {
                number,
                coroutine: Some(coroutine),
                state: CoroutineState::Ready,
            });
            // `ngx.thread.spawn` runs the new thread at once, before its parent continues, and
            // scripts rely on it: the thread may have ended when `spawn` returns.
            self.ready
                .push_front((number, ResumeWith::Arguments(arguments)));
        }
        for number in self.scope.killed.take() {
            // Dropping the entry drops its future, and with it the socket operation or timer.
            self.threads.retain(|thread| thread.number != number);
            self.ready.retain(|(ready, _)| *ready != number);
        }
    }

    /// A coroutine yielded in an API function. Records what it waits for.
    fn on_wait(&mut self, number: usize) -> Option<RunEvent> {
        let Some(operation) = self.scope.pending_operation.take() else {
            // Not reachable from a script: every function that yields sets an operation first.
            self.ready.push_back((number, ResumeWith::Arguments(0)));
            return None;
        };
        let (state, event) = match operation {
            YieldOperation::Task(task) => (CoroutineState::Task(task), None),
            YieldOperation::ReadBody => (
                CoroutineState::AwaitsDriver,
                Some(RunEvent::NeedBody(number)),
            ),
            YieldOperation::Flush => (CoroutineState::AwaitsDriver, Some(RunEvent::Flush(number))),
            YieldOperation::Exit(code) => return Some(RunEvent::Ended(RunEnd::Exit(code))),
            YieldOperation::Exec(path, args) => {
                return Some(RunEvent::Ended(RunEnd::Exec(path, args)));
            }
            YieldOperation::Jump => return Some(RunEvent::Ended(RunEnd::Jump)),
            YieldOperation::WaitThreads(wanted) => (CoroutineState::WaitsForThreads(wanted), None),
            // To the front of the queue, behind nothing: by now the killed threads are gone, which
            // is all it waited for.
            YieldOperation::AfterKill(reply) => {
                if let Some(thread) = self.thread(number) {
                    thread.state = CoroutineState::Ready;
                }
                self.ready
                    .push_front((number, ResumeWith::Reply(vec![reply])));
                return None;
            }
            YieldOperation::RunSpawned(reply) => {
                // The spawned thread is in the queue already and runs first, as far as it gets.
                self.resume_with(number, vec![reply]);
                return None;
            }
        };
        if let Some(thread) = self.thread(number) {
            thread.state = state;
        }
        self.wake_joiners();
        event
    }

    /// Hands the results of ended light threads to the coroutines that wait for them.
    fn wake_joiners(&mut self) {
        for at in 0..self.threads.len() {
            let CoroutineState::WaitsForThreads(wanted) = &self.threads[at].state else {
                continue;
            };
            let over = self.threads.iter().position(|thread| {
                matches!(thread.state, CoroutineState::Ended(_)) && wanted.contains(&thread.number)
            });
            // Their results were taken by another coroutine, or they were killed: nothing is left
            // to wait for.
            let gone = wanted
                .iter()
                .all(|number| !self.threads.iter().any(|thread| thread.number == *number));
            let reply = match over {
                Some(over) => {
                    let waiter = self.threads[at].number;
                    let ended = self.threads.remove(over);
                    self.scope.light_threads.borrow_mut().remove(&ended.number);
                    let CoroutineState::Ended(result) = ended.state else {
                        continue;
                    };
                    let reply = match result {
                        Ok(mut values) => {
                            values.insert(0, LuaValue::Boolean(true));
                            values
                        }
                        Err(mut values) => {
                            values.insert(0, LuaValue::Boolean(false));
                            values
                        }
                    };
                    self.resume_with(waiter, reply);
                    // The list has changed under the loop: start again.
                    return self.wake_joiners();
                }
                None if gone => LuaValue::failure("already waited or killed"),
                None => continue,
            };
            let waiter = self.threads[at].number;
            self.resume_with(waiter, reply);
        }
    }

    /// A coroutine returned, with `n` results on its stack.
    fn on_ended(&mut self, number: usize, coroutine: LuaCoroutine, n: i32) -> Option<RunEvent> {
        let stack = coroutine.stack();
        if number == 0 {
            if let Some(look) = self.on_end.take()
                && let Err(message) = look(&stack, n)
            {
                *self.scope.failure.borrow_mut() = Some(message);
                return Some(RunEvent::Ended(RunEnd::Failed));
            }
            let returned = (1..=n).map(|at| match stack.is_nil(at) {
                true => None,
                false => stack.text(at),
            });
            let returned = returned.collect();
            drop(coroutine);
            self.threads.retain(|thread| thread.number != 0);
            self.returned = Some(returned);
        } else {
            let state = &self.scope.vm.state;
            // Results of a light thread may be any Lua value: they are kept by reference until
            // `thread.wait` asks for them.
            let mut values = Vec::new();
            for at in 1..=n {
                stack.push_copy(at);
                values.push(LuaValue::Ref(Rc::new(RegistryRef::take(state, &stack))));
            }
            drop(coroutine);
            self.mark_ended(number, Ok(values));
        }
        self.end_if_complete()
    }

    /// Marks a light thread as ended, with its results or its error.
    fn mark_ended(&mut self, number: usize, result: Result<Vec<LuaValue>, Vec<LuaValue>>) {
        if let Some(light) = self.scope.light_threads.borrow_mut().get_mut(&number) {
            light.ended = true;
        }
        if let Some(thread) = self.thread(number) {
            thread.state = CoroutineState::Ended(result);
        }
        self.wake_joiners();
    }

    /// A coroutine raised an error. An uncaught error of the main coroutine ends the whole run; one
    /// of a light thread is only reported to whatever waits for it, as in lua-nginx-module.
    fn on_failed(
        &mut self,
        number: usize,
        (message, trace, left): (&[u8], &[u8], Vec<RegistryRef>),
        guest: &RunOwner<'_>,
    ) -> Option<RunEvent> {
        let which = if number == 0 { "entry" } else { "user" };
        let shown = trace.replacen("stack traceback:\n", "stack traceback:\ncoroutine 0:\n", 1);
        let text = format!(
            "lua {which} thread aborted: runtime error: {}{}",
            message.as_bstr(),
            shown.as_bstr()
        );
        guest.log(&self.scope.log, LogLevel::Error, format_args!("{text}"));
        if number == 0 {
            let mut why = message.to_vec();
            // A failed `init_by_lua` refuses the configuration. This message is all that the
            // operator sees of it, so it includes the traceback.
            if self.scope.kind == crate::chunk::ScriptKind::Init {
                why.extend_from_slice(trace);
            }
            *self.scope.failure.borrow_mut() = Some(why);
            return Some(RunEvent::Ended(RunEnd::Failed));
        }
        let left = left.into_iter().map(|value| LuaValue::Ref(Rc::new(value)));
        self.mark_ended(number, Err(left.collect()));
        self.end_if_complete()
    }

    /// The run ends when the main coroutine has returned and no light thread is still alive, as in
    /// lua-nginx-module.
    fn end_if_complete(&mut self) -> Option<RunEvent> {
        let working = self
            .threads
            .iter()
            .any(|thread| !matches!(thread.state, CoroutineState::Ended(_)));
        if working || !self.scope.spawned.borrow().is_empty() {
            return None;
        }
        let returned = self.returned.take()?;
        let end = match self.scope.later_exit.get() {
            Some(code) => RunEnd::Exit(code),
            None => RunEnd::Completed(returned),
        };
        Some(RunEvent::Ended(end))
    }
}

/// Polls a run without output, such as a timer's, to its end.
pub(crate) async fn run_to_end(run: &mut ScriptRun, mut guest: RunOwner<'_>) -> RunEnd {
    loop {
        let event =
            poll_fn(|context| Poll::Ready(ready!(run.poll(guest.reborrow(), context)))).await;
        match event {
            RunEvent::Ended(end) => return end,
            RunEvent::NeedBody(thread) | RunEvent::Flush(thread) => {
                run.resume_with(thread, LuaValue::failure("no request found"));
            }
            RunEvent::Waiting => {}
        }
    }
}
