//! Handles to values inside a state.

use std::ffi::c_int;
use std::rc::Rc;

use super::ffi;
use super::stack::{REGISTRY, Stack};
use super::state::State;

/// A handle to a Lua value, which lives at least as long as this.
pub(crate) struct Ref {
    state: Rc<State>,
    place: c_int,
}

impl Ref {
    /// Takes the value on top of a stack of `state`.
    pub(crate) fn take(state: &Rc<State>, stack: &Stack) -> Ref {
        stack.reserve(2);
        // SAFETY: the value is popped and kept in the registry; memory is unbounded while code of ours runs.
        let place = unsafe { ffi::luaL_ref(stack.l, REGISTRY) };
        Ref {
            state: Rc::clone(state),
            place,
        }
    }

    /// Pushes the value on a stack of the same state.
    pub(crate) fn push(&self, stack: &Stack) {
        stack.reserve(1);
        // SAFETY: reads the registry.
        unsafe { ffi::lua_rawgeti_(stack.l, REGISTRY, self.place) }
    }

    /// The state it belongs to.
    pub(crate) fn state(&self) -> &Rc<State> {
        &self.state
    }
}

impl Drop for Ref {
    fn drop(&mut self) {
        // SAFETY: the state lives, and the place is this handle's own.
        unsafe { ffi::luaL_unref(self.state.raw(), REGISTRY, self.place) };
    }
}
