//! The safe interface to LuaJIT: states, stacks, our functions and objects, coroutines, and the
//! watchdog that ends a script which does not end by itself.
//!
//! All `unsafe` of the crate is here, in [`crate::pcre`] and in [`crate::scope`]. What makes it
//! sound:
//!
//! - **One thread.** A state belongs to the thread that created it; nothing here is `Send`. The
//!   watchdog is another thread, but all it does is send a signal.
//! - **Errors never cross Rust frames.** Lua raises errors by unwinding the C stack, which would
//!   skip destructors. Our code calls only functions of the API that cannot raise, with one
//!   exception: any allocation may fail. So the memory limit is lifted while our code runs
//!   ([`memory`]) and enforced while Lua's does. A function of ours reports failure in its result,
//!   and [`native`] raises the error from a frame that owns nothing.
//! - **Panics never cross Lua frames.** [`native`] catches them and raises a Lua error instead.
//! - **A state outlives its handles.** A [`reference::RegistryRef`] keeps its state alive.

mod argument_error;
pub(crate) mod coroutine;
pub(crate) mod memory;
pub(crate) mod native;
pub(crate) mod object;
pub(crate) mod reference;
pub(crate) mod stack;
pub(crate) mod state;
pub(crate) mod value;
pub(crate) mod watchdog;

/// The functions of LuaJIT.
pub(crate) use mlua_sys::lua51 as ffi;

pub(crate) use coroutine::{LuaCoroutine, ResumeOutcome};
pub(crate) use native::{LuaError, NativeFunction, NativeReturn, fail};
pub(crate) use reference::RegistryRef;
pub(crate) use stack::LuaStack;
pub(crate) use state::LuaState;
pub(crate) use value::LuaValue;
