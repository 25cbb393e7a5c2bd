//! Functions of ours that Lua calls.
//!
//! Such a function gets the stack with its arguments, and says how many values on top are its results, or that the
//! coroutine waits, or that it failed. Raising an error and yielding unwind the C stack; both happen in [`call`], when
//! nothing of ours is left on it.

use std::ffi::c_int;
use std::panic::{self, AssertUnwindSafe};
use std::ptr;

use super::ffi;
use super::memory::Memory;
use super::stack::Stack;

/// A function of ours.
pub(crate) type Native = fn(&Stack) -> Result<Answer, Failure>;

/// What a function of ours came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// So many values on top of the stack are its results.
    Values(c_int),
    /// The coroutine waits for the operation that the function left with its scope, and gets the results from there.
    Wait,
}

/// An error that Lua code gets to see, with the place of the call before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure(pub(crate) Vec<u8>);

/// A failure with this message.
pub(crate) fn fail<T>(message: impl Into<Vec<u8>>) -> Result<T, Failure> {
    Err(Failure(message.into()))
}

impl From<&str> for Failure {
    fn from(message: &str) -> Failure {
        Failure(message.into())
    }
}

impl From<String> for Failure {
    fn from(message: String) -> Failure {
        Failure(message.into())
    }
}

/// What a coroutine yields when it waits for an operation of ours: the address of this.
pub(crate) static WAITS: u8 = 0;

/// What a coroutine yields when its time was up while it ran inside another one: the address of this.
pub(crate) static GIVES_WAY: u8 = 1;

enum Outcome {
    Values(c_int),
    Wait,
    Error,
}

/// What Lua calls: finds the function of ours in its first upvalue, and calls it.
///
/// # Safety
/// Called by Lua, as a closure that [`Stack::push_native`] made.
pub(crate) unsafe extern "C-unwind" fn call(l: *mut ffi::lua_State) -> c_int {
    // SAFETY: `l` is the running thread, whose state lives.
    match unsafe { guarded(l) } {
        Outcome::Values(n) => n,
        Outcome::Wait => {
            // SAFETY: nothing of ours is on the C stack. The call raises an error where the thread can not yield, or
            // hands the one value on top to whoever resumed it.
            unsafe {
                ffi::lua_pushlightuserdata(l, ptr::from_ref(&WAITS).cast_mut().cast());
                ffi::lua_yield(l, 1)
            }
        }
        // SAFETY: nothing of ours is on the C stack; the message is on top.
        Outcome::Error => unsafe { ffi::lua_error(l) },
    }
}

/// # Safety
/// As [`call`].
unsafe fn guarded(l: *mut ffi::lua_State) -> Outcome {
    // SAFETY: a thread of a state that `State` made.
    let memory = unsafe { Memory::of(l) };
    let strict = memory.set_strict(false);
    // SAFETY: the thread runs, so its state lives.
    let stack = unsafe { Stack::new(l) };
    // SAFETY: the upvalue is the address of a `Native`, put there by `push_native`; such closures are made nowhere else.
    // JUSTIFICATION: Lua has no other place to keep a function pointer.
    let native: Native =
        unsafe { std::mem::transmute(ffi::lua_touserdata(l, ffi::lua_upvalueindex(1))) };
    let outcome = match panic::catch_unwind(AssertUnwindSafe(|| native(&stack))) {
        Ok(Ok(Answer::Values(n))) => Outcome::Values(n),
        Ok(Ok(Answer::Wait)) => Outcome::Wait,
        Ok(Err(failure)) => {
            push_error(&stack, &failure.0);
            Outcome::Error
        }
        // The hook of panics has reported it.
        Err(_) => {
            push_error(&stack, b"internal error: a function of the server panicked");
            Outcome::Error
        }
    };
    memory.set_strict(strict);
    outcome
}

fn push_error(stack: &Stack, message: &[u8]) {
    stack.reserve(4);
    // SAFETY: memory is unbounded, so that neither call raises.
    unsafe {
        ffi::luaL_where(stack.l, 1);
        ffi::lua_pushlstring_(stack.l, message.as_ptr().cast(), message.len());
        ffi::lua_concat(stack.l, 2);
    }
}
