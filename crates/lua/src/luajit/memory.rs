//! The memory of a state: counted, and bounded while Lua code runs.

use std::alloc::{self, Layout};
use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;

use super::ffi;

/// What a state has taken, and what it may take, in bytes.
pub(crate) struct Memory {
    used: Cell<usize>,
    limit: usize,
    /// Lua code is running: the limit holds. Not so while code of ours works on the state, because the API would raise
    /// an error through it. What that code takes is bounded by what it was given.
    strict: Cell<bool>,
    /// A block was refused since somebody asked.
    refused: Cell<bool>,
    /// Garbage is to be collected when more than this is in use. LuaJIT itself lets the heap double before it looks, and
    /// does not look when a block is refused.
    collect_at: Cell<usize>,
}

/// LuaJIT wants its blocks aligned like `malloc`'s.
const ALIGN: usize = 16;

impl Memory {
    pub(crate) fn new(limit: usize) -> Memory {
        Memory {
            used: Cell::new(0),
            limit,
            strict: Cell::new(false),
            refused: Cell::new(false),
            collect_at: Cell::new(limit / 2),
        }
    }

    /// Whether garbage should be collected before more code runs.
    pub(crate) fn wants_collection(&self) -> bool {
        self.refused.take() || self.used.get() > self.collect_at.get()
    }

    /// Garbage was collected: the next time is when half of what is left now is used up.
    pub(crate) fn collected(&self) {
        let used = self.used.get();
        self.collect_at
            .set(used.saturating_add(self.limit.saturating_sub(used) / 2));
    }

    /// Makes the limit hold or not; gives back how it was.
    pub(crate) fn set_strict(&self, strict: bool) -> bool {
        self.strict.replace(strict)
    }

    /// The memory of the state that `l` belongs to.
    ///
    /// # Safety
    /// `l` is a living state that [`super::State`] made; the result is used while it lives.
    pub(crate) unsafe fn of<'a>(l: *mut ffi::lua_State) -> &'a Memory {
        let mut data = ptr::null_mut();
        // SAFETY: reads a field of the state.
        unsafe { ffi::lua_getallocf(l, &mut data) };
        // SAFETY: the state was made with a `Memory` that its owner keeps until the state is closed.
        // JUSTIFICATION: the one place that finds the bound from a bare state, as a function called by Lua must.
        unsafe { &*data.cast::<Memory>() }
    }

    /// Whether a block may grow by `more` bytes.
    fn admits(&self, more: usize) -> bool {
        !self.strict.get() || self.used.get().saturating_add(more) <= self.limit
    }
}

/// What LuaJIT calls for every block.
///
/// # Safety
/// Called by LuaJIT with the `Memory` of the state, and with blocks and sizes that it got here.
pub(crate) unsafe extern "C" fn allocate(
    data: *mut c_void,
    block: *mut c_void,
    old: usize,
    new: usize,
) -> *mut c_void {
    // SAFETY: see `Memory::of`.
    let memory = unsafe { &*data.cast::<Memory>() };
    let layout = |size: usize| Layout::from_size_align(size, ALIGN).ok();
    let old = if block.is_null() { 0 } else { old };
    if new == 0 {
        if let (false, Some(old_layout)) = (block.is_null(), layout(old)) {
            // SAFETY: the block came from here with this size.
            unsafe { alloc::dealloc(block.cast(), old_layout) };
            memory.used.set(memory.used.get().saturating_sub(old));
        }
        return ptr::null_mut();
    }
    if new > old && !memory.admits(new - old) {
        memory.refused.set(true);
        return ptr::null_mut();
    }
    let Some(new_layout) = layout(new) else {
        return ptr::null_mut();
    };
    let made = match (block.is_null(), layout(old)) {
        (false, Some(old_layout)) => {
            // SAFETY: the block came from here with this size, and the new size is not zero.
            unsafe { alloc::realloc(block.cast(), old_layout, new) }
        }
        // SAFETY: the size is not zero.
        _ => unsafe { alloc::alloc(new_layout) },
    };
    if !made.is_null() {
        memory.used.set(memory.used.get() - old + new);
    } else if !memory.strict.get() {
        // The system has nothing left, and code of ours can not be told by an error.
        alloc::handle_alloc_error(new_layout);
    }
    made.cast()
}
