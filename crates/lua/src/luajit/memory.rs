//! The memory of a Lua state: counted, and limited while Lua code runs (`lua_memory_limit`).

use std::alloc::{self, Layout};
use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;

use super::ffi;

/// What a state has allocated and may allocate, in bytes.
pub(crate) struct LuaHeap {
    used: Cell<usize>,
    limit: usize,
    /// The limit is enforced: Lua code is running. Not while our code works on the state, because a
    /// failed allocation raises an error through it. What our code allocates is bounded by its
    /// input.
    is_enforced: Cell<bool>,
    /// An allocation was refused since this was last asked.
    refused: Cell<bool>,
    /// Garbage is collected when more than this is in use. LuaJIT itself lets the heap double
    /// before it collects, and does not try when an allocation fails, so a script could run out of
    /// memory that is mostly garbage.
    collect_at: Cell<usize>,
}

/// LuaJIT expects the alignment of `malloc`.
const ALIGN: usize = 16;

impl LuaHeap {
    /// Nothing allocated yet.
    pub(crate) fn new(limit: usize) -> LuaHeap {
        LuaHeap {
            used: Cell::new(0),
            limit,
            is_enforced: Cell::new(false),
            refused: Cell::new(false),
            collect_at: Cell::new(limit / 2),
        }
    }

    /// Whether garbage should be collected before more Lua code runs.
    pub(crate) fn wants_collection(&self) -> bool {
        self.refused.take() || self.used.get() > self.collect_at.get()
    }

    /// Garbage was collected. The next collection is due when half of what is free now has been
    /// used: a state that is nearly full collects more often instead of failing.
    pub(crate) fn collected(&self) {
        let used = self.used.get();
        self.collect_at
            .set(used.saturating_add(self.limit.saturating_sub(used) / 2));
    }

    /// Enforces the limit or lifts it; returns what was before.
    pub(crate) fn set_enforced(&self, strict: bool) -> bool {
        self.is_enforced.replace(strict)
    }

    /// The accounts of the state that `l` belongs to.
    ///
    /// # Safety
    /// `l` is a living state that [`super::state::LuaState`] created; the result is used while it lives.
    pub(crate) unsafe fn of<'a>(l: *mut ffi::lua_State) -> &'a LuaHeap {
        let mut data = ptr::null_mut();
        // SAFETY: reads a field of the state.
        unsafe { ffi::lua_getallocf(l, &mut data) };
        // SAFETY: the state was made with a `LuaHeap` that its owner keeps until the state is
        // closed.
        // JUSTIFICATION: the one place that finds the bound from a bare state, as a function called
        // by Lua must.
        unsafe { &*data.cast::<LuaHeap>() }
    }

    /// Whether the state may grow by `more` bytes.
    fn may_grow(&self, more: usize) -> bool {
        !self.is_enforced.get() || self.used.get().saturating_add(more) <= self.limit
    }
}

/// The allocator that LuaJIT calls for every block.
///
/// # Safety
/// Called by LuaJIT with the `LuaHeap` of the state, and with blocks and sizes that it got here.
pub(crate) unsafe extern "C" fn allocate(
    data: *mut c_void,
    block: *mut c_void,
    old: usize,
    new: usize,
) -> *mut c_void {
    // SAFETY: see `LuaHeap::of`.
    let memory = unsafe { &*data.cast::<LuaHeap>() };
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
    if new > old && !memory.may_grow(new - old) {
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
    } else if !memory.is_enforced.get() {
        // The system is out of memory, and our code has no way to receive a Lua error.
        alloc::handle_alloc_error(new_layout);
    }
    made.cast()
}
