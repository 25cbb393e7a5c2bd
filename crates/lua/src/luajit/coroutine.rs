//! Coroutines: what is resumed, waits, and is preempted when its time slice is over.
//!
//! Creating a Lua thread costs an allocation and work for the collector, and each request needs
//! one. So a coroutine that ended normally is reused, unless a script holds it: `coroutine.status`
//! of a dead coroutine must not suddenly say "running".

use std::ffi::c_int;
use std::rc::Rc;

use super::ffi;
use super::native::{GIVES_WAY, WAITS};
use super::reference::RegistryRef;
use super::stack::{LuaStack, LuaType, REGISTRY};
use super::state::LuaState;
use super::watchdog::{self, ScriptBudget};

/// A coroutine that the server resumes.
pub(crate) struct LuaCoroutine {
    state: Rc<LuaState>,
    l: *mut ffi::lua_State,
    /// Its slot in the registry, which keeps it from being collected.
    registry_index: c_int,
    /// It has returned normally, so its stack can be used again. One that raised an error cannot be
    /// resumed any more.
    reusable: bool,
    /// A script has a reference to it, so it must not be reused.
    known: bool,
}

/// Why a coroutine stopped running.
pub(crate) enum ResumeOutcome {
    /// Its function returned; this many results are on its stack.
    Ended(c_int),
    /// It waits for an operation of the API, which is in the scope.
    Waits,
    /// It called `coroutine.yield` itself, with no coroutine of the script above it to receive the
    /// values. It continues after the others had a turn, as in lua-nginx-module.
    Yielded,
    /// The watchdog interrupted it: its time slice is over.
    Preempted,
    /// It raised an error: the message, the traceback, and the values on its stack, which are the
    /// arguments of the function that raised the error and, last, the error itself.
    /// lua-nginx-module returns all of them from `ngx.thread.wait`, so the first is the message as
    /// `error` was given it, without file and line.
    Failed(Vec<u8>, Vec<u8>, Vec<RegistryRef>),
}

/// How many coroutines a state keeps for reuse.
const MAX_SPARE: usize = 256;

impl LuaCoroutine {
    /// A coroutine that will call the function on top of `from`, which is popped.
    pub(crate) fn of_top(state: &Rc<LuaState>, from: &LuaStack) -> LuaCoroutine {
        let coroutine = LuaCoroutine::new(state, from);
        from.move_to(&coroutine.stack(), 1);
        coroutine
    }

    /// A coroutine that will call `function`.
    pub(crate) fn of(function: &RegistryRef) -> LuaCoroutine {
        let stack = function.state().stack();
        let coroutine = LuaCoroutine::new(function.state(), &stack);
        function.push(&coroutine.stack());
        coroutine
    }

    fn new(state: &Rc<LuaState>, stack: &LuaStack) -> LuaCoroutine {
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
        LuaCoroutine {
            state: Rc::clone(state),
            l,
            registry_index: place,
            reusable: false,
            known: false,
        }
    }

    /// Pushes the coroutine on another stack of its state, as a value for a script.
    pub(crate) fn push(&mut self, to: &LuaStack) {
        self.known = true;
        let stack = self.stack();
        stack.push_itself();
        stack.move_to(to, 1);
    }

    /// Its stack.
    pub(crate) fn stack(&self) -> LuaStack {
        // SAFETY: the thread is kept in the registry of a state that lives as long as `self`.
        unsafe { LuaStack::new(self.l) }
    }

    /// Runs it with the `arguments` values on top of its stack, until it returns, waits, fails or
    /// is preempted. Results are left on its stack.
    pub(crate) fn resume(&mut self, arguments: c_int, budget: &ScriptBudget) -> ResumeOutcome {
        let memory = self.state.memory();
        // Here, while the limit is lifted, instead of in the middle of the run, where it is
        // enforced.
        if memory.wants_collection() {
            self.state.collect_garbage();
        }
        memory.set_enforced(true);
        let status = watchdog::watched(self.l, budget, || {
            // SAFETY: a thread that has not begun or that has yielded, with its arguments on top;
            // errors are caught by `lua_resume` itself.
            unsafe { ffi::lua_resume_(self.l, arguments) }
        });
        memory.set_enforced(false);
        let stack = self.stack();
        match status {
            ffi::LUA_OK => {
                self.reusable = true;
                ResumeOutcome::Ended(stack.top())
            }
            ffi::LUA_YIELD => self.why_yielded(&stack, budget),
            _ => {
                let message = stack.error_text(-1);
                let trace = stack.traceback(b"");
                // A stack that is full, as after endless recursion, has no room for copies: only
                // the error itself.
                let first = if stack.reserve(1) { 1 } else { stack.top() };
                let left = (first..=stack.top()).map(|at| {
                    stack.push_copy(at);
                    RegistryRef::take(&self.state, &stack)
                });
                let left = left.collect();
                ResumeOutcome::Failed(message, trace, left)
            }
        }
    }

    /// Tells the reasons for a yield apart. Ours are marked by an address that no script can
    /// produce.
    fn why_yielded(&self, stack: &LuaStack, budget: &ScriptBudget) -> ResumeOutcome {
        if budget.take_preempted() {
            return ResumeOutcome::Preempted;
        }
        let first = match stack.type_at(1) {
            LuaType::LightUserdata => stack.light(1).cast_const().cast::<u8>(),
            _ => std::ptr::null(),
        };
        stack.set_top(0);
        if std::ptr::eq(first, &WAITS) {
            ResumeOutcome::Waits
        } else if std::ptr::eq(first, &GIVES_WAY) {
            ResumeOutcome::Preempted
        } else {
            ResumeOutcome::Yielded
        }
    }
}

impl Drop for LuaCoroutine {
    fn drop(&mut self) {
        let mut spare = self.state.spare.take();
        if self.reusable {
            self.stack().set_top(0);
        }
        if self.reusable && !self.known && spare.len() < MAX_SPARE {
            spare.push(self.registry_index);
        } else {
            // SAFETY: the place is this coroutine's own.
            unsafe { ffi::luaL_unref(self.state.raw(), REGISTRY, self.registry_index) };
        }
        self.state.spare.set(spare);
    }
}
