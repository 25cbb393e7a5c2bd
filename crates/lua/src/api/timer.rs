//! `ngx.timer`: functions that run later, without a request.
//!
//! A timer is a task of the event loop. It ends with its configuration: a reload makes pending
//! timers fire at once, with `premature` set, so that they can clean up. Repeated ones then stop.

use std::rc::Rc;
use std::time::Duration;

use host::error_log::LogLevel;

use super::arguments::number;
use super::{CallResult, NativeTable};
use crate::chunk::ScriptKind as Script;
use crate::dict_changes::DictWatch;
use crate::luajit::stack::LuaType;
use crate::luajit::{LuaCoroutine, LuaStack, LuaValue, RegistryRef, fail};
use crate::run;
use crate::run::ScriptRun;
use crate::run_owner::RunOwner;
use crate::scope::{self, RunScope};
use crate::vm::LuaVm;

pub(super) const FUNCTIONS: NativeTable = &[
    ("running_count", running_count),
    ("pending_count", pending_count),
];

pub(super) const CORE: NativeTable = &[("timer", timer)];

/// `ngx.timer.at` and `every`: delay, whether it repeats, the function and its arguments.
fn timer(stack: &LuaStack) -> CallResult {
    let delay = number(stack, 1)?;
    let repeats = stack.boolean(2);
    if stack.type_at(3) != LuaType::Function {
        return fail("bad argument #2 to '?' (Lua function expected)");
    }
    let Some(delay) = super::misc::duration(delay) else {
        return fail("delay cannot be negative");
    };
    scope::with(|scope| {
        let vm = &scope.vm;
        // These run outside an event loop, where nothing would call the function.
        if matches!(scope.kind, Script::Init | Script::WorkerThread) {
            return fail(scope.kind.refusal());
        }
        if vm.timers_pending.get() as i64 >= vm.settings.max_pending_timers {
            return super::called::answer(stack, LuaValue::failure("too many pending timers"));
        }
        // As in lua-nginx-module an exiting worker still accepts timers that run at once.
        if vm.is_shut_down.get() && !delay.is_zero() {
            return super::called::answer(stack, LuaValue::failure("process exiting"));
        }
        // In the registry, because the stack of the caller is gone when the timer runs.
        let mut values = Vec::new();
        for at in 3..=stack.top() {
            stack.push_copy(at);
            values.push(RegistryRef::take(&vm.state, stack));
        }
        vm.timers_pending.set(vm.timers_pending.get() + 1);
        // From now on, not from when the task begins: what is written in between must not be missed.
        let watch = match repeats {
            true => DictWatch::of(&vm.settings.waking, &vm.dictionaries),
            false => None,
        };
        let interval = TimerInterval {
            delay,
            repeats,
            watch,
        };
        rt::spawn_named("lua timer", run_timer(Rc::clone(vm), interval, values));
        stack.push_number(1.0);
        super::ONE
    })?
}

/// When a timer runs.
struct TimerInterval {
    delay: Duration,
    repeats: bool,
    /// The dictionaries whose changes make a repeated one run at once.
    watch: Option<DictWatch>,
}

/// Waits and calls, repeatedly if it repeats. `values` are the function and its arguments.
async fn run_timer(vm: Rc<LuaVm>, interval: TimerInterval, values: Vec<RegistryRef>) {
    let TimerInterval {
        delay,
        repeats,
        mut watch,
    } = interval;
    let values = Rc::new(values);
    // How late the last call was. The next one is due as if it had been on time, so that a repeated
    // timer does not drift.
    let mut late = Duration::ZERO;
    loop {
        let began = rt::now();
        let pause = delay.saturating_sub(late);
        let early = vm.is_shut_down.get() || !wait_delay(&vm, pause, watch.as_mut()).await;
        late = rt::now()
            .saturating_duration_since(began)
            .saturating_sub(pause);
        vm.timers_pending
            .set(vm.timers_pending.get().saturating_sub(1));
        // As lua-nginx-module documents it: beyond the limit a timer that expires is not called.
        if i64::from(vm.timers_running.get()) >= vm.settings.max_running_timers {
            vm.log.log_plain(
                LogLevel::Alert,
                format_args!(
                    "{} lua_max_running_timers are not enough",
                    vm.settings.max_running_timers
                ),
            );
        } else {
            vm.timers_running.set(vm.timers_running.get() + 1);
            let call = run_turn(Rc::clone(&vm), early, Rc::clone(&values));
            match repeats {
                // The next call comes when it is due, however long this one takes.
                true => rt::spawn_named("lua timer", call),
                false => call.await,
            }
        }
        if !repeats || vm.is_shut_down.get() {
            return;
        }
        vm.timers_pending.set(vm.timers_pending.get() + 1);
    }
}

/// Calls once, and counts while it runs.
async fn run_turn(vm: Rc<LuaVm>, early: bool, values: Rc<Vec<RegistryRef>>) {
    call_function(&vm, early, &values).await;
    vm.timers_running.set(vm.timers_running.get() - 1);
}

/// Waits for the delay, or until a dictionary changes; `false` if the loop or the configuration ended first.
async fn wait_delay(vm: &LuaVm, delay: Duration, watch: Option<&mut DictWatch>) -> bool {
    // A reload must not wait for a timer that is due in hours.
    let mut sleep = std::pin::pin!(rt::sleep(delay));
    let mut ending = std::pin::pin!(vm.shutdown.notified());
    let mut change = std::pin::pin!(async {
        match watch {
            Some(watch) => watch.changed().await,
            None => std::future::pending().await,
        }
    });
    std::future::poll_fn(|context| {
        use std::future::Future;
        if sleep.as_mut().poll(context).is_ready() {
            return std::task::Poll::Ready(true);
        }
        if change.as_mut().poll(context).is_ready() {
            return std::task::Poll::Ready(true);
        }
        ending.as_mut().poll(context).map(|()| false)
    })
    .await
}

/// Calls the function with `premature` and its arguments, in a run of its own.
async fn call_function(vm: &Rc<LuaVm>, early: bool, values: &[RegistryRef]) {
    let Some((function, arguments)) = values.split_first() else {
        return;
    };
    let coroutine = LuaCoroutine::of(function);
    let stack = coroutine.stack();
    stack.push_boolean(early);
    for argument in arguments {
        argument.push(&stack);
    }
    // `premature` takes the place of the function in the count.
    let count = i32::try_from(values.len()).unwrap_or(1);
    let mut run = ScriptRun::of_coroutine(
        RunScope::of_vm(vm, Script::Timer),
        coroutine,
        count,
        &vm.settings.limits,
    );
    run::run_to_end(&mut run, RunOwner::Server).await;
}

/// `ngx.timer.running_count()`.
fn running_count(stack: &LuaStack) -> CallResult {
    let count = scope::with(|scope| scope.vm.timers_running.get())?;
    stack.push_number(f64::from(count));
    super::ONE
}

/// `ngx.timer.pending_count()`.
fn pending_count(stack: &LuaStack) -> CallResult {
    let count = scope::with(|scope| scope.vm.timers_pending.get())?;
    stack.push_number(f64::from(count));
    super::ONE
}
