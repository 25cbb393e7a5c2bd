//! `ngx.thread` and `ngx.semaphore`.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use super::arguments::{number, optional_number};
use super::{Called, Functions};
use crate::luajit::object::{self, Class};
use crate::luajit::stack::Kind;
use crate::luajit::{Answer, Coroutine, Stack, Value, fail};
use crate::operation::Operation;
use crate::run::MAX_THREADS;
use crate::scope::{self, Begun};

pub(super) const FUNCTIONS: Functions = &[("spawn", spawn), ("wait", wait), ("kill", kill)];

pub(super) const CORE: Functions = &[("semaphore", semaphore)];

/// What a script holds of a light thread.
struct Handle {
    number: usize,
}

static THREAD: Class = Class {
    name: "weir.thread",
    methods: &[],
};

fn spawn(stack: &Stack) -> Called {
    if stack.kind(1) != Kind::Function {
        return fail("bad argument #1 to 'spawn' (function expected)");
    }
    let arguments = stack.top() - 1;
    scope::with(|scope| {
        if !scope.kind.waits() {
            return fail(format!(
                "API disabled in the context of {}*",
                scope.kind.name()
            ));
        }
        let number = scope.next_thread.get();
        if number > MAX_THREADS {
            return fail("too many light threads");
        }
        scope.next_thread.set(number + 1);
        let state = &scope.vm.state;
        stack.push_copy(1);
        let coroutine = Coroutine::of_top(state, stack);
        for at in 2..=arguments + 1 {
            stack.push_copy(at);
        }
        stack.move_to(&coroutine.stack(), arguments);
        scope.begun.borrow_mut().push(Begun {
            number,
            coroutine,
            arguments,
        });
        let handle = Value::Object(&THREAD, Rc::new(Handle { number }));
        *scope.waits.borrow_mut() = Some(Operation::Begin(handle));
        Ok(Answer::Wait)
    })?
}

fn wait(stack: &Stack) -> Called {
    let mut wanted = Vec::new();
    for at in 1..=stack.top() {
        wanted.push(object::get::<Handle>(stack, at, "light thread")?.number);
    }
    if wanted.is_empty() {
        return fail("at least one light thread expected");
    }
    super::wait(Operation::Threads(wanted))
}

fn kill(stack: &Stack) -> Called {
    let number = object::get::<Handle>(stack, 1, "light thread")?.number;
    scope::with(|scope| scope.killed.borrow_mut().push(number))?;
    stack.push_number(1.0);
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
    gone: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

static SEMAPHORE: Class = Class {
    name: "weir.semaphore",
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

fn post(stack: &Stack) -> Called {
    let semaphore = object::get::<Semaphore>(stack, 1, "semaphore")?;
    let n = optional_number(stack, 2)?.unwrap_or(1.0);
    if n < 1.0 {
        return fail("no less than 1 expected");
    }
    for _ in 0..(n as i64).min(MAX_WAITING as i64) {
        let next = loop {
            match semaphore.waiting.borrow_mut().pop_front() {
                Some(waiting) if waiting.gone.get() => {}
                other => break other,
            }
        };
        match next {
            Some(waiting) => {
                waiting.given.set(true);
                if let Some(waker) = waiting.waker.take() {
                    waker.wake();
                }
            }
            None => semaphore.count.set(semaphore.count.get() + 1),
        }
    }
    stack.push_boolean(true);
    super::ONE
}

fn count(stack: &Stack) -> Called {
    let semaphore = object::get::<Semaphore>(stack, 1, "semaphore")?;
    let waiting = semaphore
        .waiting
        .borrow()
        .iter()
        .filter(|waiting| !waiting.gone.get())
        .count();
    stack.push_number(semaphore.count.get() as f64 - waiting as f64);
    super::ONE
}

/// Marks who waits as gone when the wait is dropped; what it was given goes to the next.
struct Leaving(Rc<Semaphore>, Rc<Waiting>, bool);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.1.gone.set(true);
        if self.1.given.get() && !self.2 {
            self.0.count.set(self.0.count.get() + 1);
        }
    }
}

fn wait_for(stack: &Stack) -> Called {
    let semaphore = object::get::<Semaphore>(stack, 1, "semaphore")?;
    let time = optional_number(stack, 2)?.unwrap_or(0.0);
    if semaphore.count.get() > 0 {
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
    super::wait(Operation::task(async move {
        let mut leaving = Leaving(semaphore, waiting, false);
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
                vec![Value::Boolean(true)]
            }
            Err(_) => Value::failure("timeout"),
        }
    }))
}
