//! References from Rust to Lua values. The value is kept in Lua's registry, so that the collector
//! spares it, and is released when the reference is dropped.

use std::ffi::c_int;
use std::rc::Rc;

use super::ffi;
use super::stack::{LuaStack, REGISTRY};
use super::state::LuaState;

/// A reference to a Lua value. It is in Lua's registry, so the collector leaves it alone.
pub(crate) struct RegistryRef {
    state: Rc<LuaState>,
    registry_index: c_int,
}

impl RegistryRef {
    /// Pops the value on top of a stack of `state`.
    pub(crate) fn take(state: &Rc<LuaState>, stack: &LuaStack) -> RegistryRef {
        stack.reserve(2);
        // SAFETY: the value is popped and kept in the registry; memory is unbounded while code of
        // ours runs.
        let place = unsafe { ffi::luaL_ref(stack.l, REGISTRY) };
        RegistryRef {
            state: Rc::clone(state),
            registry_index: place,
        }
    }

    /// Pushes the value on a stack of the same state.
    pub(crate) fn push(&self, stack: &LuaStack) {
        stack.reserve(1);
        // SAFETY: reads the registry.
        unsafe { ffi::lua_rawgeti_(stack.l, REGISTRY, self.registry_index) }
    }

    /// The state that the value is in.
    pub(crate) fn state(&self) -> &Rc<LuaState> {
        &self.state
    }
}

impl Drop for RegistryRef {
    fn drop(&mut self) {
        // SAFETY: the state lives, and the place is this handle's own.
        unsafe { ffi::luaL_unref(self.state.raw(), REGISTRY, self.registry_index) };
    }
}
