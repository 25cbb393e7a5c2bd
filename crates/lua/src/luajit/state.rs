//! A Lua state: the heap of one virtual machine.

use std::cell::Cell;
use std::rc::Rc;

use super::ffi;
use super::memory::{self, Memory};
use super::stack::Stack;

/// A Lua state. Closed when the last handle to it goes.
pub(crate) struct State {
    l: *mut ffi::lua_State,
    memory: Box<Memory>,
    /// Coroutines that have ended well and can be used again, as places in the registry.
    pub(crate) spare: Cell<Vec<i32>>,
}

/// How large a state may be that only checks syntax, in bytes.
const CHECK_LIMIT: usize = 64 << 20;

impl State {
    /// An empty state with Lua's own libraries. `None` when there is no memory for it.
    pub(crate) fn new(limit: usize) -> Option<Rc<State>> {
        let state = State::bare(limit)?;
        // SAFETY: a state that was just made; opening the libraries raises nothing while the memory is unbounded.
        unsafe { ffi::luaL_openlibs(state.l) };
        Some(Rc::new(state))
    }

    fn bare(limit: usize) -> Option<State> {
        let memory = Box::new(Memory::new(limit));
        let data: *const Memory = &*memory;
        // SAFETY: the allocator's contract is kept by `memory::allocate`; its data lives in a box that is dropped after
        // the state is closed.
        // JUSTIFICATION: a bound on the memory of scripts needs an allocator that counts.
        let l = unsafe { ffi::lua_newstate(memory::allocate, data.cast_mut().cast()) };
        (!l.is_null()).then(|| State {
            l,
            memory,
            spare: Cell::default(),
        })
    }

    /// The stack of the main thread.
    pub(crate) fn stack(&self) -> Stack {
        // SAFETY: the state lives as long as `self`; callers keep it while they use the stack.
        unsafe { Stack::new(self.l) }
    }

    pub(crate) fn raw(&self) -> *mut ffi::lua_State {
        self.l
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Collects what is not in use.
    pub(crate) fn collect_garbage(&self) {
        // SAFETY: finalizers are protected by LuaJIT; nothing else can raise here.
        unsafe { ffi::lua_gc(self.l, ffi::LUA_GCCOLLECT, 0) };
        self.memory.collected();
    }
}

impl Drop for State {
    fn drop(&mut self) {
        // SAFETY: nobody has a handle any more.
        unsafe { ffi::lua_close(self.l) };
    }
}

/// The message of the first error of syntax in a chunk, if there is one.
pub(crate) fn syntax_error(code: &[u8], name: &str) -> Option<Vec<u8>> {
    let state = State::bare(CHECK_LIMIT)?;
    let stack = state.stack();
    stack.load(code, name).err()
}
