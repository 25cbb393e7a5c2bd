//! A script at work: its coroutines, what they wait for, and how it ended.
//!
//! A run is polled like a future, and is lent the request or session for each poll. Most scripts never wait: they are through
//! after [`Run::advance`], and no future is made for them.

use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll};

use bstr::{BString, ByteSlice};
use rt::error_log::Level;

use crate::fairness::Turn;
use crate::luajit::watchdog::{Budget, Limits};
use crate::luajit::{Coroutine, Ref, Resumed, Stack, Value};
use crate::operation::{Operation, Reply, Task};
use crate::scope::{self, Begun, Guest, Scope};

/// A script at work.
pub(crate) struct Run {
    pub(crate) scope: Rc<Scope>,
    budget: Budget,
    threads: Vec<Thread>,
    /// Coroutines that can go on, each with how many values its stack holds for it.
    ready: VecDeque<(usize, Go)>,
    turn: Option<Turn>,
    /// What the script itself returned, when it is through.
    returned: Option<Vec<Returned>>,
    /// Looks at what the script returned while it stands on its stack.
    on_end: Option<OnEnd>,
}

/// Gets the stack and how many results stand there.
pub(crate) type OnEnd = Box<dyn FnOnce(&Stack, i32) -> Result<(), Vec<u8>>>;

/// A coroutine of a run. Number 0 is the script itself.
struct Thread {
    number: usize,
    coroutine: Option<Coroutine>,
    state: State,
}

enum State {
    Ready,
    Task(Task),
    /// It waits for something that whoever drives the run has to do.
    Asked,
    Threads(Vec<usize>),
    /// It has ended and nobody has asked yet.
    Over(Result<Vec<Value>, Vec<Value>>),
}

/// What a coroutine goes on with.
enum Go {
    /// So many arguments stand on its stack.
    Arguments(i32),
    Reply(Reply),
}

/// How far a run came.
pub(crate) enum Event {
    /// It is over.
    Done(End),
    /// It wants the request's content; then [`Run::answer`].
    NeedBody(usize),
    /// It waits until what it said is sent; then [`Run::answer`].
    Flush(usize),
    /// Everything waits for something that takes time.
    Waiting,
}

/// How a run ended.
#[derive(Debug)]
pub(crate) enum End {
    /// The script is through. What it returned stands with the run.
    Through(Vec<Returned>),
    Exit(i32),
    Exec(BString, BString),
    Jump,
    /// It failed; the error log says why.
    Failed,
}

/// A value that a script returned, as the configuration can use it.
pub(crate) type Returned = Option<Vec<u8>>;

/// How many light threads a run may have at a time, those included that have ended and were not waited for.
pub(crate) const MAX_THREADS: usize = 10_000;

impl Run {
    /// A run of `function`.
    pub(crate) fn new(scope: Rc<Scope>, function: &Ref, limits: &Limits) -> Run {
        Run::of_coroutine(scope, Coroutine::of(function), 0, limits)
    }

    /// A run of a coroutine that has its function and `arguments` values on its stack.
    pub(crate) fn of_coroutine(
        scope: Rc<Scope>,
        coroutine: Coroutine,
        arguments: i32,
        limits: &Limits,
    ) -> Run {
        let budget = Budget::new(limits, scope.kind.gives_way());
        let mut ready = VecDeque::new();
        ready.push_back((0, Go::Arguments(arguments)));
        Run {
            scope,
            budget,
            threads: vec![Thread {
                number: 0,
                coroutine: Some(coroutine),
                state: State::Ready,
            }],
            ready,
            turn: None,
            returned: None,
            on_end: None,
        }
    }

    /// Has the script's results looked at before they are gone.
    pub(crate) fn on_end(&mut self, look: OnEnd) {
        self.on_end = Some(look);
    }

    /// Runs until the script is through, or every coroutine of it waits.
    pub(crate) fn advance(&mut self, mut guest: Guest<'_>) -> Event {
        while self.turn.is_none() {
            let Some((number, go)) = self.ready.pop_front() else {
                return Event::Waiting;
            };
            if let Some(event) = self.resume(number, go, guest.again()) {
                return event;
            }
        }
        Event::Waiting
    }

    /// [`Run::advance`], and then asks what coroutines wait for.
    pub(crate) fn poll(&mut self, mut guest: Guest<'_>, context: &mut Context<'_>) -> Poll<Event> {
        loop {
            if let Some(turn) = &mut self.turn {
                if turn.poll(context).is_pending() {
                    return Poll::Pending;
                }
                self.turn = None;
            }
            match self.advance(guest.again()) {
                Event::Waiting => {}
                event => return Poll::Ready(event),
            }
            if self.turn.is_some() {
                continue;
            }
            for thread in &mut self.threads {
                if let State::Task(task) = &mut thread.state
                    && let Poll::Ready(reply) = task.as_mut().poll(context)
                {
                    thread.state = State::Ready;
                    self.ready.push_back((thread.number, Go::Reply(reply)));
                }
            }
            if self.ready.is_empty() {
                return Poll::Pending;
            }
        }
    }

    /// Runs to the end of a script that can not wait.
    pub(crate) fn finish_now(&mut self, guest: Guest<'_>) -> End {
        match self.advance(guest) {
            Event::Done(end) => end,
            Event::NeedBody(_) | Event::Flush(_) | Event::Waiting => {
                self.scope.log.plain(
                    Level::Error,
                    format_args!(
                        "lua: API disabled in the context of {}*: it cannot yield",
                        self.scope.kind.name()
                    ),
                );
                End::Failed
            }
        }
    }

    /// The client has left. Whether the script goes on, because it has something to run for that.
    pub(crate) fn client_left(&mut self) -> bool {
        let Some(function) = self.scope.on_abort.take() else {
            return false;
        };
        let next = &self.scope.vm.next_thread;
        let number = next.get();
        next.set(number + 1);
        self.threads.push(Thread {
            number,
            coroutine: Some(Coroutine::of(&function)),
            state: State::Ready,
        });
        self.ready.push_back((number, Go::Arguments(0)));
        true
    }

    /// Gives a coroutine what it asked for.
    pub(crate) fn answer(&mut self, number: usize, reply: Reply) {
        if let Some(thread) = self.thread(number) {
            thread.state = State::Ready;
            self.ready.push_back((number, Go::Reply(reply)));
        }
    }

    fn thread(&mut self, number: usize) -> Option<&mut Thread> {
        self.threads
            .iter_mut()
            .find(|thread| thread.number == number)
    }

    fn resume(&mut self, number: usize, go: Go, mut guest: Guest<'_>) -> Option<Event> {
        let mut coroutine = self.thread(number)?.coroutine.take()?;
        let arguments = match go {
            Go::Arguments(n) => n,
            Go::Reply(values) => {
                let stack = coroutine.stack();
                for value in &values {
                    value.push(&stack);
                }
                i32::try_from(values.len()).unwrap_or(0)
            }
        };
        let scope = Rc::clone(&self.scope);
        scope.thread.set(number);
        let resumed = scope::enter(&scope, guest.again(), || {
            coroutine.resume(arguments, &self.budget)
        });
        // First of all: what is left is what decides whether the run is over.
        self.take_begun();
        match resumed {
            Resumed::Ended(n) => self.ended(number, coroutine, n),
            Resumed::Failed(message, trace, left) => {
                drop(coroutine);
                self.failed(number, (&message, &trace, left), &guest)
            }
            Resumed::Waits => {
                self.put_back(number, coroutine);
                self.waits(number)
            }
            Resumed::Yielded => {
                self.put_back(number, coroutine);
                self.ready.push_back((number, Go::Arguments(0)));
                None
            }
            Resumed::GaveWay => {
                self.put_back(number, coroutine);
                self.ready.push_front((number, Go::Arguments(0)));
                self.turn = Some(Turn::new());
                None
            }
        }
    }

    fn put_back(&mut self, number: usize, coroutine: Coroutine) {
        if let Some(thread) = self.thread(number) {
            thread.coroutine = Some(coroutine);
        }
    }

    /// Takes in the light threads that the script has begun or killed. A new one runs before the one that began it goes
    /// on.
    fn take_begun(&mut self) {
        if self.scope.begun.borrow().is_empty() && self.scope.killed.borrow().is_empty() {
            return;
        }
        for begun in self.scope.begun.take() {
            let Begun {
                number,
                coroutine,
                arguments,
            } = begun;
            self.threads.push(Thread {
                number,
                coroutine: Some(coroutine),
                state: State::Ready,
            });
            // Before all that can go on already, as in nginx.
            self.ready.push_front((number, Go::Arguments(arguments)));
        }
        for number in self.scope.killed.take() {
            // What it waits for ends with it.
            self.threads.retain(|thread| thread.number != number);
            self.ready.retain(|(ready, _)| *ready != number);
        }
    }

    fn waits(&mut self, number: usize) -> Option<Event> {
        let Some(operation) = self.scope.waits.take() else {
            // Nothing that a script can bring about; it goes on with nothing.
            self.ready.push_back((number, Go::Arguments(0)));
            return None;
        };
        let (state, event) = match operation {
            Operation::Task(task) => (State::Task(task), None),
            Operation::ReadBody => (State::Asked, Some(Event::NeedBody(number))),
            Operation::Flush => (State::Asked, Some(Event::Flush(number))),
            Operation::Exit(code) => return Some(Event::Done(End::Exit(code))),
            Operation::Exec(path, args) => return Some(Event::Done(End::Exec(path, args))),
            Operation::Jump => return Some(Event::Done(End::Jump)),
            Operation::Threads(wanted) => (State::Threads(wanted), None),
            Operation::Settle(reply) => {
                if let Some(thread) = self.thread(number) {
                    thread.state = State::Ready;
                }
                self.ready.push_front((number, Go::Reply(vec![reply])));
                return None;
            }
            Operation::Begin(reply) => {
                // The new one, which stands before it in the queue, runs first, as far as it comes.
                self.answer(number, vec![reply]);
                return None;
            }
        };
        if let Some(thread) = self.thread(number) {
            thread.state = state;
        }
        self.wake_waiting();
        event
    }

    /// Hands what has ended to those who wait for it.
    fn wake_waiting(&mut self) {
        for at in 0..self.threads.len() {
            let State::Threads(wanted) = &self.threads[at].state else {
                continue;
            };
            let over = self.threads.iter().position(|thread| {
                matches!(thread.state, State::Over(_)) && wanted.contains(&thread.number)
            });
            let gone = wanted
                .iter()
                .all(|number| !self.threads.iter().any(|thread| thread.number == *number));
            let reply = match over {
                Some(over) => {
                    let waiter = self.threads[at].number;
                    let ended = self.threads.remove(over);
                    self.scope.lights.borrow_mut().remove(&ended.number);
                    let State::Over(result) = ended.state else {
                        continue;
                    };
                    let reply = match result {
                        Ok(mut values) => {
                            values.insert(0, Value::Boolean(true));
                            values
                        }
                        Err(mut values) => {
                            values.insert(0, Value::Boolean(false));
                            values
                        }
                    };
                    self.answer(waiter, reply);
                    return self.wake_waiting();
                }
                None if gone => Value::failure("already waited or killed"),
                None => continue,
            };
            let waiter = self.threads[at].number;
            self.answer(waiter, reply);
        }
    }

    fn ended(&mut self, number: usize, coroutine: Coroutine, n: i32) -> Option<Event> {
        let stack = coroutine.stack();
        if number == 0 {
            if let Some(look) = self.on_end.take()
                && let Err(message) = look(&stack, n)
            {
                *self.scope.failure.borrow_mut() = Some(message);
                return Some(Event::Done(End::Failed));
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
            let mut values = Vec::new();
            for at in 1..=n {
                stack.push_copy(at);
                values.push(Value::Ref(Rc::new(Ref::take(state, &stack))));
            }
            drop(coroutine);
            self.put_over(number, Ok(values));
        }
        self.end_if_over()
    }

    fn put_over(&mut self, number: usize, result: Result<Vec<Value>, Vec<Value>>) {
        if let Some(light) = self.scope.lights.borrow_mut().get_mut(&number) {
            light.over = true;
        }
        if let Some(thread) = self.thread(number) {
            thread.state = State::Over(result);
        }
        self.wake_waiting();
    }

    fn failed(
        &mut self,
        number: usize,
        (message, trace, left): (&[u8], &[u8], Vec<Ref>),
        guest: &Guest<'_>,
    ) -> Option<Event> {
        let which = if number == 0 { "entry" } else { "user" };
        let shown = trace.replacen("stack traceback:\n", "stack traceback:\ncoroutine 0:\n", 1);
        let text = format!(
            "lua {which} thread aborted: runtime error: {}{}",
            message.as_bstr(),
            shown.as_bstr()
        );
        guest.log(&self.scope.log, Level::Error, format_args!("{text}"));
        if number == 0 {
            let mut why = message.to_vec();
            if self.scope.kind == crate::chunk::Kind::Init {
                why.extend_from_slice(trace);
            }
            *self.scope.failure.borrow_mut() = Some(why);
            return Some(Event::Done(End::Failed));
        }
        let left = left.into_iter().map(|value| Value::Ref(Rc::new(value)));
        self.put_over(number, Err(left.collect()));
        self.end_if_over()
    }

    /// The run is over when the script is through and no light thread is at work.
    fn end_if_over(&mut self) -> Option<Event> {
        let working = self
            .threads
            .iter()
            .any(|thread| !matches!(thread.state, State::Over(_)));
        if working || !self.scope.begun.borrow().is_empty() {
            return None;
        }
        let returned = self.returned.take()?;
        Some(Event::Done(End::Through(returned)))
    }
}
