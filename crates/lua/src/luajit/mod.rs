//! LuaJIT behind safe words: states, stacks, functions of ours, objects, coroutines, and the watchdog that ends a
//! script which does not end by itself.
//!
//! All `unsafe` of the crate is here, in [`crate::pcre`] and in [`crate::scope`]. The rules that make it sound:
//!
//! - **One thread.** A state belongs to the thread that made it; nothing here is `Send`. The watchdog, which is
//!   another thread, only sends a signal.
//! - **Errors never cross Rust.** Lua raises errors by unwinding the C stack. Code of ours calls only functions of the
//!   API that raise nothing, with one exception: want of memory. So the memory bound is lifted while code of ours runs
//!   ([`memory`]), and holds while Lua's runs. A function of ours that fails says so in its result, and the error is
//!   raised by [`native`] from a frame that owns nothing.
//! - **Panics never cross Lua.** [`native`] catches them and makes an error of them.
//! - **Lua outlives its handles.** A [`reference::Ref`] keeps its state alive.

mod blame;
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

pub(crate) use coroutine::{Coroutine, Resumed};
pub(crate) use native::{Answer, Failure, Native, fail};
pub(crate) use reference::Ref;
pub(crate) use stack::Stack;
pub(crate) use state::State;
pub(crate) use value::Value;
