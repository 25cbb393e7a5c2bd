//! Rust functions that Lua calls.
//!
//! Such a function receives the stack with its arguments, and returns how many values on top are
//! its results, that the coroutine waits, or that it failed. Raising an error and yielding both
//! unwind the C stack. They happen in [`call`], when no Rust frame that owns anything is left on
//! it.

use std::ffi::c_int;
use std::panic::{self, AssertUnwindSafe};
use std::ptr;

use super::ffi;
use super::memory::LuaHeap;
use super::stack::LuaStack;

/// A Rust function that Lua can call.
pub(crate) type NativeFunction = fn(&LuaStack) -> Result<NativeReturn, LuaError>;

/// What such a function returns to Lua.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NativeReturn {
    /// This many values on top of the stack are its results.
    Values(c_int),
    /// The coroutine yields. It waits for the operation that the function left in the scope, and
    /// gets its results from there.
    Wait,
}

/// An error that is raised in Lua, with the place of the call in front of the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LuaError(pub(crate) Vec<u8>);

/// An error with this message.
pub(crate) fn fail<T>(message: impl Into<Vec<u8>>) -> Result<T, LuaError> {
    Err(LuaError(message.into()))
}

impl From<&str> for LuaError {
    fn from(message: &str) -> LuaError {
        LuaError(message.into())
    }
}

impl From<String> for LuaError {
    fn from(message: String) -> LuaError {
        LuaError(message.into())
    }
}

/// Yielded by a coroutine that waits for an operation: the address of this, which nothing in Lua
/// equals.
pub(crate) static WAITS: u8 = 0;

/// Yielded by a coroutine that was preempted inside another one: the address of this. `prelude.lua`
/// passes it on through every `coroutine.resume` up to the server.
pub(crate) static GIVES_WAY: u8 = 1;

/// What [`call`] has to do when the Rust function is off the stack.
enum GuardedOutcome {
    Values(c_int),
    Wait,
    /// The message is on top of the stack.
    Error,
}

/// The C function behind every Rust function: finds it in the first upvalue and calls it.
///
/// # Safety
/// Called by Lua, as a closure that [`LuaStack::push_native`] made.
pub(crate) unsafe extern "C-unwind" fn call(l: *mut ffi::lua_State) -> c_int {
    // SAFETY: `l` is the running thread, whose state lives.
    match unsafe { call_guarded(l) } {
        GuardedOutcome::Values(n) => n,
        GuardedOutcome::Wait => {
            // SAFETY: no Rust frame is on the C stack. The call raises an error where the thread
            // cannot yield, else it passes the one value on top to what resumed the thread.
            unsafe {
                ffi::lua_pushlightuserdata(l, ptr::from_ref(&WAITS).cast_mut().cast());
                ffi::lua_yield(l, 1)
            }
        }
        // SAFETY: nothing of ours is on the C stack; the message is on top.
        GuardedOutcome::Error => unsafe { ffi::lua_error(l) },
    }
}

/// What [`call`] does while Rust frames are on the stack.
///
/// # Safety
/// As [`call`].
unsafe fn call_guarded(l: *mut ffi::lua_State) -> GuardedOutcome {
    // SAFETY: a thread of a state that `LuaState` made.
    let memory = unsafe { LuaHeap::of(l) };
    let strict = memory.set_enforced(false);
    // SAFETY: the thread runs, so its state lives.
    let stack = unsafe { LuaStack::new(l) };
    // SAFETY: the upvalue is the address of a `NativeFunction`, put there by `push_native`; such
    // closures are made nowhere else.
    // JUSTIFICATION: Lua has no other place to keep a function pointer.
    let native: NativeFunction =
        unsafe { std::mem::transmute(ffi::lua_touserdata(l, ffi::lua_upvalueindex(1))) };
    let outcome = match panic::catch_unwind(AssertUnwindSafe(|| native(&stack))) {
        Ok(Ok(NativeReturn::Values(n))) => GuardedOutcome::Values(n),
        Ok(Ok(NativeReturn::Wait)) => GuardedOutcome::Wait,
        Ok(Err(failure)) => {
            push_error(&stack, &failure.0);
            GuardedOutcome::Error
        }
        // The panic hook has reported it.
        Err(_) => {
            push_error(&stack, b"internal error: a function of the server panicked");
            GuardedOutcome::Error
        }
    };
    memory.set_enforced(strict);
    outcome
}

/// Pushes the message with `file:line:` of the caller in front, as Lua's own `luaL_error` does.
fn push_error(stack: &LuaStack, message: &[u8]) {
    stack.reserve(4);
    // SAFETY: memory is unbounded, so that neither call raises.
    unsafe {
        ffi::luaL_where(stack.l, 1);
        ffi::lua_pushlstring_(stack.l, message.as_ptr().cast(), message.len());
        ffi::lua_concat(stack.l, 2);
    }
}
