//! Objects of ours that Lua holds: userdata with methods.

use std::any::Any;
use std::rc::Rc;

use super::ffi;
use super::native::{Answer, Failure, Native, fail};
use super::stack::{Kind, REGISTRY, Stack};

/// What the memory of a userdata of ours holds. Its bytes may be compared with nothing: only metatables tell.
type Slot = Option<Rc<dyn Any>>;

/// The key that only metatables of ours have: the address of this.
static MARK: u8 = 0;

/// A class of objects.
pub(crate) struct Class {
    /// Its name, unique in the program.
    pub(crate) name: &'static str,
    /// Its methods.
    pub(crate) methods: &'static [(&'static str, Native)],
}

/// Pushes an object.
pub(crate) fn push(stack: &Stack, class: &'static Class, object: Rc<dyn Any>) {
    stack.reserve(4);
    // SAFETY: the block is large enough for a `Slot` and aligned to 16 bytes; it is filled before anybody can see it,
    // and emptied only by `collect`, which leaves a `None` behind.
    // JUSTIFICATION: Lua's collector decides how long an object lives.
    unsafe {
        let block = ffi::lua_newuserdata(stack.l, size_of::<Slot>()).cast::<Slot>();
        block.write(Some(object));
    }
    push_metatable(stack, class);
    stack.set_metatable(-2);
}

/// Pushes a class's metatable, made at its first use.
fn push_metatable(stack: &Stack, class: &'static Class) {
    if stack.field(REGISTRY, class.name) == Kind::Table {
        return;
    }
    stack.pop(1);
    stack.push_table(0, 4);
    stack.push_light(mark());
    stack.push_boolean(true);
    stack.set_pair(-3);
    stack.push_native(collect);
    stack.set(-2, "__gc");
    stack.push_table(0, class.methods.len());
    for (name, method) in class.methods {
        stack.push_native(*method);
        stack.set(-2, name);
    }
    stack.set(-2, "__index");
    // Nobody is to take the finalizer off.
    stack.push_boolean(false);
    stack.set(-2, "__metatable");
    stack.push_copy(-1);
    stack.set(REGISTRY, class.name);
}

/// Pushes the table of a class's methods.
pub(crate) fn push_methods(stack: &Stack, class: &'static Class) {
    stack.reserve(4);
    push_metatable(stack, class);
    stack.field(-1, "__index");
    stack.remove(-2);
}

fn mark() -> *mut std::ffi::c_void {
    std::ptr::from_ref(&MARK).cast_mut().cast()
}

fn is_ours(stack: &Stack, at: std::ffi::c_int) -> bool {
    if stack.kind(at) != Kind::Userdata || !stack.push_metatable(at) {
        return false;
    }
    stack.push_light(mark());
    let ours = stack.field_of_top(-2) == Kind::Boolean;
    stack.pop(2);
    ours
}

/// The object at a place; the failure says what was expected there.
pub(crate) fn get<T: Any>(
    stack: &Stack,
    at: std::ffi::c_int,
    what: &str,
) -> Result<Rc<T>, Failure> {
    let at = stack.absolute(at);
    if is_ours(stack, at) {
        // SAFETY: a userdata with a metatable of ours was made by `push`.
        let slot = unsafe { &*stack.light(at).cast::<Slot>() };
        if let Some(Ok(object)) = slot.clone().map(Rc::downcast) {
            return Ok(object);
        }
    }
    fail(format!(
        "bad argument #{at} ({what} expected, got {})",
        stack.kind(at).name()
    ))
}

/// The finalizer.
fn collect(stack: &Stack) -> Result<Answer, Failure> {
    if is_ours(stack, 1) {
        // SAFETY: as in `get`; Lua calls a finalizer once, and a second call finds nothing.
        let slot = unsafe { &mut *stack.light(1).cast::<Slot>() };
        drop(slot.take());
    }
    Ok(Answer::Values(0))
}
