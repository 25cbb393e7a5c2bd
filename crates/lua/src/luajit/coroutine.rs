//! Coroutines: the unit that is run, that waits, and that gives way when its time is up.

use std::ffi::c_int;
use std::rc::Rc;

use super::ffi;
use super::native::{GIVES_WAY, WAITS};
use super::reference::Ref;
use super::stack::{Kind, REGISTRY, Stack};
use super::state::State;
use super::watchdog::{self, Budget};

/// A coroutine of ours. One that ended well is used again.
pub(crate) struct Coroutine {
    state: Rc<State>,
    l: *mut ffi::lua_State,
    place: c_int,
    /// It has ended well: its stack is as new.
    reusable: bool,
    /// Scripts know it, so it must not be used again for something else.
    known: bool,
}

/// Why a coroutine stopped.
pub(crate) enum Resumed {
    /// Its function is through; so many results stand on its stack.
    Ended(c_int),
    /// It waits for an operation of ours.
    Waits,
    /// It yielded values of its own to nobody: it wants to go on when others had a turn.
    Yielded,
    /// Its time was up.
    GaveWay,
    /// It failed with this message and this traceback. The values are what stood on its stack: what the function was
    /// called with that raised the error, and at last the error itself. nginx's module hands them all to who waits for
    /// a light thread, so that the first of them is the message as `error` got it, without its place.
    Failed(Vec<u8>, Vec<u8>, Vec<Ref>),
}

/// How many ended coroutines a state keeps.
const MAX_SPARE: usize = 256;

impl Coroutine {
    /// A coroutine that will run the function on top of the main stack of `state`, which is popped.
    pub(crate) fn of_top(state: &Rc<State>, from: &Stack) -> Coroutine {
        let coroutine = Coroutine::new(state, from);
        from.move_to(&coroutine.stack(), 1);
        coroutine
    }

    /// A coroutine that will run `function`.
    pub(crate) fn of(function: &Ref) -> Coroutine {
        let stack = function.state().stack();
        let coroutine = Coroutine::new(function.state(), &stack);
        function.push(&coroutine.stack());
        coroutine
    }

    fn new(state: &Rc<State>, stack: &Stack) -> Coroutine {
        let mut spare = state.spare.take();
        let known = spare.pop();
        state.spare.set(spare);
        stack.reserve(2);
        // SAFETY: makes a thread and keeps it in the registry, or finds the one that is kept there.
        let (l, place) = unsafe {
            match known {
                Some(place) => {
                    ffi::lua_rawgeti_(stack.l, REGISTRY, place);
                    let l = ffi::lua_tothread(stack.l, -1);
                    stack.pop(1);
                    (l, place)
                }
                None => {
                    let l = ffi::lua_newthread(stack.l);
                    (l, ffi::luaL_ref(stack.l, REGISTRY))
                }
            }
        };
        Coroutine {
            state: Rc::clone(state),
            l,
            place,
            reusable: false,
            known: false,
        }
    }

    /// Pushes the coroutine itself on another stack of its state: a script gets to know it.
    pub(crate) fn push(&mut self, to: &Stack) {
        self.known = true;
        let stack = self.stack();
        stack.push_itself();
        stack.move_to(to, 1);
    }

    /// Its stack.
    pub(crate) fn stack(&self) -> Stack {
        // SAFETY: the thread is kept in the registry of a state that lives as long as `self`.
        unsafe { Stack::new(self.l) }
    }

    /// Runs it with the `arguments` values on top of its stack, until it ends, waits, or its time is up. Results are
    /// left on its stack.
    pub(crate) fn resume(&mut self, arguments: c_int, budget: &Budget) -> Resumed {
        let memory = self.state.memory();
        if memory.wants_collection() {
            self.state.collect_garbage();
        }
        memory.set_strict(true);
        let status = watchdog::watched(self.l, budget, || {
            // SAFETY: a thread that has not begun or that has yielded, with its arguments on top; errors are caught by
            // `lua_resume` itself.
            unsafe { ffi::lua_resume_(self.l, arguments) }
        });
        memory.set_strict(false);
        let stack = self.stack();
        match status {
            ffi::LUA_OK => {
                self.reusable = true;
                Resumed::Ended(stack.top())
            }
            ffi::LUA_YIELD => self.why_yielded(&stack, budget),
            _ => {
                let message = stack.error_text(-1);
                let trace = stack.traceback(b"");
                let first = if stack.reserve(1) { 1 } else { stack.top() };
                let left = (first..=stack.top()).map(|at| {
                    stack.push_copy(at);
                    Ref::take(&self.state, &stack)
                });
                let left = left.collect();
                Resumed::Failed(message, trace, left)
            }
        }
    }

    fn why_yielded(&self, stack: &Stack, budget: &Budget) -> Resumed {
        if budget.take_given_way() {
            return Resumed::GaveWay;
        }
        let first = match stack.kind(1) {
            Kind::LightUserdata => stack.light(1).cast_const().cast::<u8>(),
            _ => std::ptr::null(),
        };
        stack.set_top(0);
        if std::ptr::eq(first, &WAITS) {
            Resumed::Waits
        } else if std::ptr::eq(first, &GIVES_WAY) {
            Resumed::GaveWay
        } else {
            Resumed::Yielded
        }
    }
}

impl Drop for Coroutine {
    fn drop(&mut self) {
        let mut spare = self.state.spare.take();
        if self.reusable {
            self.stack().set_top(0);
        }
        if self.reusable && !self.known && spare.len() < MAX_SPARE {
            spare.push(self.place);
        } else {
            // SAFETY: the place is this coroutine's own.
            unsafe { ffi::luaL_unref(self.state.raw(), REGISTRY, self.place) };
        }
        self.state.spare.set(spare);
    }
}
