//! `ngx.thread` and `ngx.semaphore`.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use super::arguments::{bad, number, optional_number};
use super::{Called, Functions};
use crate::luajit::object::{self, Class, Shape};
use crate::luajit::stack::{Kind, REGISTRY};
use crate::luajit::{Answer, Coroutine, Failure, Ref, Stack, Value, fail, watchdog};
use crate::operation::Operation;
use crate::run::MAX_THREADS;
use crate::scope::{self, Begun, Light};

pub(super) const FUNCTIONS: Functions = &[("spawn", spawn), ("wait", wait), ("kill", kill)];

pub(super) const CORE: Functions = &[
    ("semaphore", semaphore),
    ("semaphore_methods", semaphore_methods),
    ("thread_state", state),
    ("is_outermost", is_outermost),
];

/// Where the registry keeps the coroutines that are not the script's own to resume: light threads with their numbers,
/// and what `prelude.lua` adds. Forgotten with the coroutines.
const SPECIAL: &str = "weir.coroutines";

/// Adds the table of special coroutines to the table on top.
pub(super) fn install(stack: &Stack) {
    stack.push_table(0, 16);
    stack.push_table(0, 1);
    stack.push_bytes("k");
    stack.set(-2, "__mode");
    stack.set_metatable(-2);
    stack.push_copy(-1);
    stack.set(REGISTRY, SPECIAL);
    stack.set(-2, "special");
}

/// The number of a light thread.
fn number_of(stack: &Stack, at: i32) -> Option<usize> {
    if stack.kind(at) != Kind::Thread {
        return None;
    }
    stack.field(REGISTRY, SPECIAL);
    stack.push_copy(at);
    stack.field_of_top(-2);
    let number = match stack.kind(-1) {
        Kind::Number => stack.number(-1).map(|n| n as usize),
        _ => None,
    };
    stack.pop(2);
    number
}

fn spawn(stack: &Stack) -> Called {
    if stack.kind(1) != Kind::Function {
        return bad(stack, 1, "Lua function expected");
    }
    let arguments = stack.top() - 1;
    scope::with(|scope| {
        if !scope.kind.waits() {
            return fail(scope.kind.refusal());
        }
        if scope.lights.borrow().len() >= MAX_THREADS {
            return fail("too many light threads");
        }
        let vm = &scope.vm;
        let number = vm.next_thread.get();
        vm.next_thread.set(number + 1);
        stack.push_copy(1);
        let mut coroutine = Coroutine::of_top(&vm.state, stack);
        stack.field(REGISTRY, SPECIAL);
        coroutine.push(stack);
        stack.push_copy(-1);
        let handle = Value::Ref(Rc::new(Ref::take(&vm.state, stack)));
        stack.push_number(number as f64);
        stack.set_pair(-3);
        stack.pop(1);
        for at in 2..=arguments + 1 {
            stack.push_copy(at);
        }
        stack.move_to(&coroutine.stack(), arguments);
        let light = Light {
            parent: stack.identity(),
            over: false,
            captures: false,
        };
        scope.lights.borrow_mut().insert(number, light);
        scope.begun.borrow_mut().push(Begun {
            number,
            coroutine,
            arguments,
        });
        *scope.waits.borrow_mut() = Some(Operation::Begin(handle));
        Ok(Answer::Wait)
    })?
}

/// Fails where there are no light threads.
fn need_threads() -> Result<(), Failure> {
    let kind = scope::with(|scope| scope.kind)?;
    match kind.waits() {
        true => Ok(()),
        false => fail(kind.refusal()),
    }
}

fn wait(stack: &Stack) -> Called {
    need_threads()?;
    let last = stack.top();
    if last == 0 {
        return fail("at least one coroutine should be specified");
    }
    let mut wanted = Vec::new();
    for at in 1..=last {
        if stack.kind(at) != Kind::Thread {
            return bad(stack, at, "lua thread expected");
        }
        let Some(number) = number_of(stack, at) else {
            return fail("attempt to wait on a coroutine that is not a user thread");
        };
        let found = scope::with(|scope| {
            let lights = scope.lights.borrow();
            lights.get(&number).map(|light| (light.parent, light.over))
        })?;
        match found {
            Some((parent, _)) if parent != stack.identity() => {
                return fail("only the parent coroutine can wait on the thread");
            }
            Some((_, true)) => return super::wait(Operation::Threads(vec![number])),
            Some((_, false)) => wanted.push(number),
            // Not the one that has to be there.
            None if at < last => {}
            None => return super::output::answer(stack, Value::failure(GONE)),
        }
    }
    super::wait(Operation::Threads(wanted))
}

/// What is said of a thread whose end was told already.
const GONE: &str = "already waited or killed";

fn kill(stack: &Stack) -> Called {
    need_threads()?;
    if stack.kind(1) != Kind::Thread {
        return bad(stack, 1, "lua thread expected");
    }
    let message = match number_of(stack, 1) {
        None => Some("not user thread"),
        Some(number) => scope::with(|scope| {
            let mut lights = scope.lights.borrow_mut();
            let (parent, over) = match lights.get(&number) {
                Some(light) => (light.parent, light.over),
                None => return Some(GONE),
            };
            if parent != stack.identity() {
                // So that what runs, or has resumed what runs, is never ended from below.
                return Some("killer not parent");
            }
            if lights.get(&number).is_some_and(|light| light.captures) {
                return Some("pending subrequests");
            }
            lights.remove(&number);
            scope.killed.borrow_mut().push(number);
            over.then_some("already terminated")
        })?,
    };
    match message {
        Some(message) => super::output::answer(stack, Value::failure(message)),
        // What it waited for is to be free again when the script goes on.
        None if watchdog::may_yield(stack) => super::wait(Operation::Settle(Value::Number(1.0))),
        None => {
            stack.push_number(1.0);
            super::ONE
        }
    }
}

/// What `coroutine.status` says of a light thread.
fn state(stack: &Stack) -> Called {
    let number = number_of(stack, 1);
    let state = scope::with(|scope| match scope.lights.borrow().get(&number?) {
        Some(light) if light.over => Some("zombie"),
        Some(_) => Some("running"),
        None => Some("dead"),
    })?;
    match state {
        Some(state) => stack.push_bytes(state),
        None => stack.push_nil(),
    }
    super::ONE
}

/// Whether the coroutine that runs is one that the server resumes, and no script.
fn is_outermost(stack: &Stack) -> Called {
    stack.push_boolean(watchdog::is_outermost(stack));
    super::ONE
}

/// A counter that coroutines of one loop wait for.
#[derive(Default)]
struct Semaphore {
    count: Cell<i64>,
    waiting: RefCell<VecDeque<Rc<Waiting>>>,
}

#[derive(Default)]
struct Waiting {
    given: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

static SEMAPHORE: Class = Class {
    name: "weir.semaphore",
    shape: Shape::Table,
    methods: &[("post", post), ("wait", wait_for), ("count", count)],
};

/// How many may wait for a semaphore.
const MAX_WAITING: usize = 100_000;

fn semaphore(stack: &Stack) -> Called {
    let semaphore = Semaphore::default();
    semaphore.count.set(number(stack, 1)? as i64);
    object::push(stack, &SEMAPHORE, Rc::new(semaphore));
    super::ONE
}

/// The table of the methods, for `sockets.lua` to add checks to.
fn semaphore_methods(stack: &Stack) -> Called {
    object::push_methods(stack, &SEMAPHORE);
    super::ONE
}

impl Semaphore {
    /// Gives what there is to those who wait, in their order. They take it when they run.
    fn hand_out(&self) {
        let waiting = self.waiting.borrow();
        for one in waiting.iter().filter(|one| !one.given.get()) {
            if self.count.get() == 0 {
                return;
            }
            self.count.set(self.count.get() - 1);
            one.given.set(true);
            if let Some(waker) = one.waker.take() {
                waker.wake();
            }
        }
    }
}

fn post(stack: &Stack) -> Called {
    let semaphore = object::get::<Semaphore>(stack, 1, "semaphore")?;
    let n = optional_number(stack, 2)?.unwrap_or(1.0);
    if n < 1.0 {
        return fail("positive number required");
    }
    semaphore
        .count
        .set(semaphore.count.get().saturating_add(n as i64));
    semaphore.hand_out();
    stack.push_boolean(true);
    super::ONE
}

fn count(stack: &Stack) -> Called {
    let semaphore = object::get::<Semaphore>(stack, 1, "semaphore")?;
    let waiting = semaphore.waiting.borrow();
    let waiting = waiting.iter().filter(|one| !one.given.get()).count();
    stack.push_number(semaphore.count.get() as f64 - waiting as f64);
    super::ONE
}

/// Takes who waits out of the row when the wait is over or dropped; what it was given and did not take goes to the next.
struct Leaving(Rc<Semaphore>, Rc<Waiting>, bool);

impl Drop for Leaving {
    fn drop(&mut self) {
        let mut waiting = self.0.waiting.borrow_mut();
        waiting.retain(|other| !Rc::ptr_eq(other, &self.1));
        drop(waiting);
        if self.1.given.get() && !self.2 {
            self.0.count.set(self.0.count.get() + 1);
            self.0.hand_out();
        }
    }
}

fn wait_for(stack: &Stack) -> Called {
    let semaphore = object::get::<Semaphore>(stack, 1, "semaphore")?;
    let time = optional_number(stack, 2)?.unwrap_or(0.0);
    // Nobody gets ahead of those who wait, also of one that was given something and has not run yet.
    if semaphore.count.get() > 0 && semaphore.waiting.borrow().is_empty() {
        semaphore.count.set(semaphore.count.get() - 1);
        stack.push_boolean(true);
        return super::ONE;
    }
    let Some(time) = super::misc::duration(time).filter(|time| !time.is_zero()) else {
        return super::output::answer(stack, Value::failure("timeout"));
    };
    if semaphore.waiting.borrow().len() >= MAX_WAITING {
        return super::output::answer(stack, Value::failure("too many waiting"));
    }
    let waiting = Rc::new(Waiting::default());
    semaphore
        .waiting
        .borrow_mut()
        .push_back(Rc::clone(&waiting));
    semaphore.hand_out();
    // Made before the wait begins: who is killed at once has never been asked.
    let leaving = Leaving(semaphore, waiting, false);
    super::wait(Operation::task(async move {
        let mut leaving = leaving;
        let given = rt::timeout(
            time,
            poll_fn(|context| match leaving.1.given.get() {
                true => Poll::Ready(()),
                false => {
                    *leaving.1.waker.borrow_mut() = Some(context.waker().clone());
                    Poll::Pending
                }
            }),
        )
        .await;
        match given {
            Ok(()) => {
                leaving.2 = true;
                // As in lua-nginx-module, where a wait that took time has two results.
                vec![Value::Boolean(true), Value::Nil]
            }
            Err(_) => Value::failure("timeout"),
        }
    }))
}
