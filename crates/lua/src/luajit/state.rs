//! A Lua state: the heap of one VM. It is closed when the last value that Rust code keeps in it is
//! gone.

use std::cell::Cell;
use std::rc::Rc;

use super::ffi;
use super::memory::{self, LuaHeap};
use super::stack::LuaStack;

/// A Lua state. Closed when the last reference to it is dropped.
pub(crate) struct LuaState {
    l: *mut ffi::lua_State,
    /// Boxed because LuaJIT keeps its address.
    memory: Box<LuaHeap>,
    /// Coroutines that can be reused, as slots of the registry.
    pub(crate) spare: Cell<Vec<i32>>,
}

/// The memory limit of a state that only checks syntax, in bytes.
const CHECK_LIMIT: usize = 64 << 20;

impl LuaState {
    /// A state with Lua's own libraries; `None` if there is no memory for it.
    pub(crate) fn new(limit: usize) -> Option<Rc<LuaState>> {
        let state = LuaState::bare(limit)?;
        // SAFETY: a state that was just made; opening the libraries raises nothing while the memory
        // is unbounded.
        unsafe { ffi::luaL_openlibs(state.l) };
        Some(Rc::new(state))
    }

    /// A state without libraries, which is enough to compile code.
    fn bare(limit: usize) -> Option<LuaState> {
        let memory = Box::new(LuaHeap::new(limit));
        let data: *const LuaHeap = &*memory;
        // SAFETY: the allocator's contract is kept by `memory::allocate`; its data lives in a box
        // that is dropped after the state is closed.
        // JUSTIFICATION: a bound on the memory of scripts needs an allocator that counts.
        let l = unsafe { ffi::lua_newstate(memory::allocate, data.cast_mut().cast()) };
        (!l.is_null()).then(|| LuaState {
            l,
            memory,
            spare: Cell::default(),
        })
    }

    /// The stack of the main thread.
    pub(crate) fn stack(&self) -> LuaStack {
        // SAFETY: the state lives as long as `self`; callers keep it while they use the stack.
        unsafe { LuaStack::new(self.l) }
    }

    /// The state for calls of LuaJIT's API.
    pub(crate) fn raw(&self) -> *mut ffi::lua_State {
        self.l
    }

    /// Its memory accounts.
    pub(crate) fn memory(&self) -> &LuaHeap {
        &self.memory
    }

    /// Runs a full garbage collection.
    pub(crate) fn collect_garbage(&self) {
        // SAFETY: finalizers are protected by LuaJIT; nothing else can raise here.
        unsafe { ffi::lua_gc(self.l, ffi::LUA_GCCOLLECT, 0) };
        self.memory.collected();
    }
}

impl Drop for LuaState {
    fn drop(&mut self) {
        // SAFETY: this was the last reference.
        unsafe { ffi::lua_close(self.l) };
    }
}

/// The message of the first syntax error in a chunk, if there is one. Nothing is run.
pub(crate) fn syntax_error(code: &[u8], name: &str) -> Option<Vec<u8>> {
    let state = LuaState::bare(CHECK_LIMIT)?;
    let stack = state.stack();
    stack.load(code, name).err()
}
