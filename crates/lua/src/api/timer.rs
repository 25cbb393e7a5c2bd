//! `ngx.timer`: code that runs later, without a request.

use std::rc::Rc;
use std::time::Duration;

use rt::error_log::Level;

use super::arguments::number;
use super::{Called, Functions};
use crate::chunk::Kind as Script;
use crate::luajit::stack::Kind;
use crate::luajit::{Coroutine, Ref, Stack, Value, fail};
use crate::phases;
use crate::run::Run;
use crate::scope::{self, Guest};
use crate::vm::Vm;

pub(super) const FUNCTIONS: Functions = &[
    ("running_count", running_count),
    ("pending_count", pending_count),
];

pub(super) const CORE: Functions = &[("timer", timer)];

fn timer(stack: &Stack) -> Called {
    let delay = number(stack, 1)?;
    let repeats = stack.boolean(2);
    if stack.kind(3) != Kind::Function {
        return fail("bad argument #2 (function expected)");
    }
    let Some(delay) = super::misc::duration(delay) else {
        return fail("delay cannot be negative");
    };
    scope::with(|scope| {
        let vm = &scope.vm;
        if matches!(scope.kind, Script::Init | Script::WorkerThread) {
            return fail(scope.kind.refusal());
        }
        if vm.timers_pending.get() as i64 >= vm.settings.max_pending_timers {
            return super::output::answer(stack, Value::failure("too many pending timers"));
        }
        if vm.ended.get() && !delay.is_zero() {
            return super::output::answer(stack, Value::failure("process exiting"));
        }
        let mut values = Vec::new();
        for at in 3..=stack.top() {
            stack.push_copy(at);
            values.push(Ref::take(&vm.state, stack));
        }
        vm.timers_pending.set(vm.timers_pending.get() + 1);
        rt::spawn_named("lua timer", run(Rc::clone(vm), delay, repeats, values));
        stack.push_number(1.0);
        super::ONE
    })?
}

/// Waits and calls, again and again when it repeats. `values` are the function and its arguments.
async fn run(vm: Rc<Vm>, delay: Duration, repeats: bool, values: Vec<Ref>) {
    let values = Rc::new(values);
    // How late the last turn was: the next one is due as if it had not been.
    let mut late = Duration::ZERO;
    loop {
        let began = rt::now();
        let pause = delay.saturating_sub(late);
        let early = vm.ended.get() || !wait(&vm, pause).await;
        late = rt::now()
            .saturating_duration_since(began)
            .saturating_sub(pause);
        vm.timers_pending
            .set(vm.timers_pending.get().saturating_sub(1));
        if i64::from(vm.timers_running.get()) >= vm.settings.max_running_timers {
            vm.log.plain(
                Level::Alert,
                format_args!(
                    "{} lua_max_running_timers are not enough",
                    vm.settings.max_running_timers
                ),
            );
        } else {
            vm.timers_running.set(vm.timers_running.get() + 1);
            let call = turn(Rc::clone(&vm), early, Rc::clone(&values));
            match repeats {
                // The next turn comes when it is due, however long this one takes.
                true => rt::spawn_named("lua timer", call),
                false => call.await,
            }
        }
        if !repeats || vm.ended.get() {
            return;
        }
        vm.timers_pending.set(vm.timers_pending.get() + 1);
    }
}

async fn turn(vm: Rc<Vm>, early: bool, values: Rc<Vec<Ref>>) {
    call(&vm, early, &values).await;
    vm.timers_running.set(vm.timers_running.get() - 1);
}

/// Whether the whole time has passed; `false` when the loop or the configuration ends.
async fn wait(vm: &Vm, delay: Duration) -> bool {
    let mut sleep = std::pin::pin!(rt::sleep(delay));
    let mut ending = std::pin::pin!(vm.ending.notified());
    std::future::poll_fn(|context| {
        use std::future::Future;
        if sleep.as_mut().poll(context).is_ready() {
            return std::task::Poll::Ready(true);
        }
        ending.as_mut().poll(context).map(|()| false)
    })
    .await
}

async fn call(vm: &Rc<Vm>, early: bool, values: &[Ref]) {
    let Some((function, arguments)) = values.split_first() else {
        return;
    };
    let coroutine = Coroutine::of(function);
    let stack = coroutine.stack();
    stack.push_boolean(early);
    for argument in arguments {
        argument.push(&stack);
    }
    let count = i32::try_from(values.len()).unwrap_or(1);
    let mut run = Run::of_coroutine(
        vm.scope(Script::Timer),
        coroutine,
        count,
        &vm.settings.limits,
    );
    phases::to_the_end(&mut run, Guest::Nobody).await;
}

fn running_count(stack: &Stack) -> Called {
    let count = scope::with(|scope| scope.vm.timers_running.get())?;
    stack.push_number(f64::from(count));
    super::ONE
}

fn pending_count(stack: &Stack) -> Called {
    let count = scope::with(|scope| scope.vm.timers_pending.get())?;
    stack.push_number(f64::from(count));
    super::ONE
}
