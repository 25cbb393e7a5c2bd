//! `ngx.thread`: light threads, and `ngx.semaphore`.
//!
//! A light thread is a coroutine that the run schedules beside the main one. Its number identifies
//! it across calls; the Lua value that scripts hold is the coroutine itself, so that
//! `coroutine.status` works on it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use super::arguments::{bad, number, optional_number};
use super::{CallResult, NativeTable};
use crate::luajit::object::{self, ObjectClass, ObjectShape};
use crate::luajit::stack::{LuaType, REGISTRY};
use crate::luajit::{
    LuaCoroutine, LuaError, LuaStack, LuaValue, NativeReturn, RegistryRef, fail, watchdog,
};
use crate::operation::YieldOperation;
use crate::run::MAX_THREADS;
use crate::scope::{self, LightThread, SpawnedThread};

pub(super) const FUNCTIONS: NativeTable = &[("spawn", spawn), ("wait", wait), ("kill", kill)];

pub(super) const CORE: NativeTable = &[
    ("semaphore", semaphore),
    ("semaphore_methods", semaphore_methods),
    ("thread_state", state),
    ("is_outermost", is_outermost),
];

/// The registry's key of a table of coroutines that scripts must not resume: light threads with
/// their numbers, and those that `prelude.lua` adds. Its keys are weak, so entries go with the
/// coroutines.
const COROUTINES: &str = "weir.coroutines";

/// Adds that table to the table on top.
pub(super) fn install(stack: &LuaStack) {
    stack.push_table(0, 16);
    stack.push_table(0, 1);
    stack.push_bytes("k");
    stack.set(-2, "__mode");
    stack.set_metatable(-2);
    stack.push_copy(-1);
    stack.set(REGISTRY, COROUTINES);
    stack.set(-2, "special");
}

/// The number of a light thread; `None` for any other value.
fn number_of(stack: &LuaStack, at: i32) -> Option<usize> {
    if stack.type_at(at) != LuaType::Thread {
        return None;
    }
    stack.field(REGISTRY, COROUTINES);
    stack.push_copy(at);
    stack.field_of_top(-2);
    let number = match stack.type_at(-1) {
        LuaType::Number => stack.number(-1).map(|n| n as usize),
        _ => None,
    };
    stack.pop(2);
    number
}

/// `ngx.thread.spawn(function, ...)`: starts a light thread and returns its coroutine. The thread
/// runs before the caller continues.
fn spawn(stack: &LuaStack) -> CallResult {
    if stack.type_at(1) != LuaType::Function {
        return bad(stack, 1, "Lua function expected");
    }
    let arguments = stack.top() - 1;
    scope::with(|scope| {
        if !scope.kind.may_yield() {
            return fail(scope.kind.refusal());
        }
        if scope.light_threads.borrow().len() >= MAX_THREADS {
            return fail("too many light threads");
        }
        // Numbers are unique in the VM: a script may hold a thread's coroutine longer than its
        // request lasts.
        let vm = &scope.vm;
        let number = vm.next_thread.get();
        vm.next_thread.set(number + 1);
        stack.push_copy(1);
        let mut coroutine = LuaCoroutine::of_top(&vm.state, stack);
        // `COROUTINES[coroutine] = number`, so that it is known as a light thread from its first moment. The handle that the
        // script gets is taken from the stack in between.
        stack.field(REGISTRY, COROUTINES);
        coroutine.push(stack);
        stack.push_copy(-1);
        let handle = LuaValue::Ref(Rc::new(RegistryRef::take(&vm.state, stack)));
        stack.push_number(number as f64);
        stack.set_pair(-3);
        stack.pop(1);
        // The arguments stand after the function; copies of them move to the new coroutine's stack.
        for at in 2..=arguments + 1 {
            stack.push_copy(at);
        }
        stack.move_to(&coroutine.stack(), arguments);
        let light = LightThread {
            parent: stack.identity(),
            ended: false,
            is_capturing: false,
        };
        scope.light_threads.borrow_mut().insert(number, light);
        scope.spawned.borrow_mut().push(SpawnedThread {
            number,
            coroutine,
            arguments,
        });
        // The caller yields, and goes on after the thread has run up to its first wait.
        *scope.pending_operation.borrow_mut() = Some(YieldOperation::RunSpawned(handle));
        Ok(NativeReturn::Wait)
    })?
}

/// Fails in phases that cannot wait, and so have no light threads.
fn need_threads() -> Result<(), LuaError> {
    let kind = scope::with(|scope| scope.kind)?;
    match kind.may_yield() {
        true => Ok(()),
        false => fail(kind.refusal()),
    }
}

/// `ngx.thread.wait(thread, ...)`: the results of the first of these to end.
fn wait(stack: &LuaStack) -> CallResult {
    need_threads()?;
    let last = stack.top();
    if last == 0 {
        return fail("at least one coroutine should be specified");
    }
    let mut wanted = Vec::new();
    for at in 1..=last {
        if stack.type_at(at) != LuaType::Thread {
            return bad(stack, at, "lua thread expected");
        }
        let Some(number) = number_of(stack, at) else {
            return fail("attempt to wait on a coroutine that is not a user thread");
        };
        let found = scope::with(|scope| {
            let lights = scope.light_threads.borrow();
            lights.get(&number).map(|light| (light.parent, light.ended))
        })?;
        match found {
            Some((parent, _)) if parent != stack.identity() => {
                return fail("only the parent coroutine can wait on the thread");
            }
            // One has ended already: its results are there, and the other arguments are not looked
            // at.
            Some((_, true)) => return super::wait(YieldOperation::WaitThreads(vec![number])),
            Some((_, false)) => wanted.push(number),
            // lua-nginx-module reports a thread that is gone only for the last argument.
            None if at < last => {}
            None => return super::called::answer(stack, LuaValue::failure(GONE)),
        }
    }
    super::wait(YieldOperation::WaitThreads(wanted))
}

/// The error for a thread whose results were taken already.
const GONE: &str = "already waited or killed";

/// `ngx.thread.kill(thread)`.
fn kill(stack: &LuaStack) -> CallResult {
    need_threads()?;
    if stack.type_at(1) != LuaType::Thread {
        return bad(stack, 1, "lua thread expected");
    }
    let message = match number_of(stack, 1) {
        None => Some("not user thread"),
        Some(number) => scope::with(|scope| {
            let mut lights = scope.light_threads.borrow_mut();
            let (parent, over) = match lights.get(&number) {
                Some(light) => (light.parent, light.ended),
                None => return Some(GONE),
            };
            if parent != stack.identity() {
                // With this rule nothing that is running, or has resumed what is running, can be
                // killed.
                return Some("killer not parent");
            }
            if lights.get(&number).is_some_and(|light| light.is_capturing) {
                return Some("pending subrequests");
            }
            lights.remove(&number);
            scope.killed.borrow_mut().push(number);
            over.then_some("already terminated")
        })?,
    };
    match message {
        Some(message) => super::called::answer(stack, LuaValue::failure(message)),
        // Sockets and locks that the thread held must be free when the caller continues.
        None if watchdog::may_yield(stack) => {
            super::wait(YieldOperation::AfterKill(LuaValue::Number(1.0)))
        }
        None => {
            stack.push_number(1.0);
            super::ONE
        }
    }
}

/// For `coroutine.status`: the state of a light thread; nil for another coroutine.
fn state(stack: &LuaStack) -> CallResult {
    let number = number_of(stack, 1);
    let state = scope::with(|scope| match scope.light_threads.borrow().get(&number?) {
        Some(light) if light.ended => Some("zombie"),
        Some(_) => Some("running"),
        None => Some("dead"),
    })?;
    match state {
        Some(state) => stack.push_bytes(state),
        None => stack.push_nil(),
    }
    super::ONE
}

/// For `prelude.lua`: whether the running coroutine is one that the server resumes.
fn is_outermost(stack: &LuaStack) -> CallResult {
    stack.push_boolean(watchdog::is_outermost(stack));
    super::ONE
}

/// A counting semaphore among the coroutines of one loop.
#[derive(Default)]
struct LuaSemaphore {
    /// What `post` has added and no `wait` has taken.
    count: Cell<i64>,
    /// In the order of their waits.
    waiting: RefCell<VecDeque<Rc<SemaphoreWaiter>>>,
}

/// A coroutine in `wait`.
#[derive(Default)]
struct SemaphoreWaiter {
    /// It was granted a unit, and has not run since.
    granted: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

static SEMAPHORE: ObjectClass = ObjectClass {
    name: "weir.semaphore",
    shape: ObjectShape::Table,
    methods: &[("post", post), ("wait", wait_semaphore), ("count", count)],
};

/// How many coroutines may wait for one semaphore.
const MAX_WAITING: usize = 100_000;

/// `semaphore.new(count)`.
fn semaphore(stack: &LuaStack) -> CallResult {
    let semaphore = LuaSemaphore::default();
    semaphore.count.set(number(stack, 1)? as i64);
    object::push(stack, &SEMAPHORE, Rc::new(semaphore));
    super::ONE
}

/// The table of methods, for `sockets.lua` to add checks of arguments to.
fn semaphore_methods(stack: &LuaStack) -> CallResult {
    object::push_methods(stack, &SEMAPHORE);
    super::ONE
}

impl LuaSemaphore {
    /// Grants units to the coroutines that wait, in their order.
    fn grant(&self) {
        let waiting = self.waiting.borrow();
        for one in waiting.iter().filter(|one| !one.granted.get()) {
            // Later waits come after this one: none of them may be granted what it was not.
            if self.count.get() == 0 {
                return;
            }
            self.count.set(self.count.get() - 1);
            one.granted.set(true);
            if let Some(waker) = one.waker.take() {
                waker.wake();
            }
        }
    }
}

/// `sema:post(n)`.
fn post(stack: &LuaStack) -> CallResult {
    let semaphore = object::get::<LuaSemaphore>(stack, 1, "semaphore")?;
    let n = optional_number(stack, 2)?.unwrap_or(1.0);
    if n < 1.0 {
        return fail("positive number required");
    }
    semaphore
        .count
        .set(semaphore.count.get().saturating_add(n as i64));
    semaphore.grant();
    stack.push_boolean(true);
    super::ONE
}

/// `sema:count()`: negative if coroutines wait.
fn count(stack: &LuaStack) -> CallResult {
    let semaphore = object::get::<LuaSemaphore>(stack, 1, "semaphore")?;
    let waiting = semaphore.waiting.borrow();
    let waiting = waiting.iter().filter(|one| !one.granted.get()).count();
    stack.push_number(semaphore.count.get() as f64 - waiting as f64);
    super::ONE
}

/// Removes a coroutine from the queue when its wait is over, timed out or dropped. A unit that it
/// was granted and did not take goes to the next one: a killed thread must not lose it.
struct WaiterGuard {
    semaphore: Rc<LuaSemaphore>,
    waiter: Rc<SemaphoreWaiter>,
    /// The coroutine has its unit.
    is_taken: bool,
}

impl Drop for WaiterGuard {
    fn drop(&mut self) {
        let semaphore = &self.semaphore;
        let mut waiting = semaphore.waiting.borrow_mut();
        waiting.retain(|other| !Rc::ptr_eq(other, &self.waiter));
        drop(waiting);
        if self.waiter.granted.get() && !self.is_taken {
            semaphore.count.set(semaphore.count.get() + 1);
            semaphore.grant();
        }
    }
}

/// `sema:wait(timeout)`.
fn wait_semaphore(stack: &LuaStack) -> CallResult {
    let semaphore = object::get::<LuaSemaphore>(stack, 1, "semaphore")?;
    let time = optional_number(stack, 2)?.unwrap_or(0.0);
    // First come, first served: a unit is not taken past coroutines that wait, nor past one that
    // was granted one and has not run yet.
    if semaphore.count.get() > 0 && semaphore.waiting.borrow().is_empty() {
        semaphore.count.set(semaphore.count.get() - 1);
        stack.push_boolean(true);
        return super::ONE;
    }
    let Some(time) = super::misc::duration(time).filter(|time| !time.is_zero()) else {
        return super::called::answer(stack, LuaValue::failure("timeout"));
    };
    if semaphore.waiting.borrow().len() >= MAX_WAITING {
        return super::called::answer(stack, LuaValue::failure("too many waiting"));
    }
    let waiting = Rc::new(SemaphoreWaiter::default());
    semaphore
        .waiting
        .borrow_mut()
        .push_back(Rc::clone(&waiting));
    semaphore.grant();
    // Created before the wait begins: a coroutine that is killed before its first poll leaves the
    // queue, too.
    let guard = WaiterGuard {
        semaphore,
        waiter: waiting,
        is_taken: false,
    };
    super::wait(YieldOperation::task(async move {
        // Moves all of it into the future, not only the fields that are used here.
        let mut guard = guard;
        let given = rt::timeout(
            time,
            poll_fn(|context| match guard.waiter.granted.get() {
                true => Poll::Ready(()),
                false => {
                    *guard.waiter.waker.borrow_mut() = Some(context.waker().clone());
                    Poll::Pending
                }
            }),
        )
        .await;
        match given {
            Ok(()) => {
                guard.is_taken = true;
                // lua-nginx-module returns two results if the wait took time.
                vec![LuaValue::Boolean(true), LuaValue::Nil]
            }
            Err(_) => LuaValue::failure("timeout"),
        }
    }))
}
