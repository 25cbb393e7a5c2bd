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

/// What scripts see of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// A userdata that nothing can be added to.
    Userdata,
    /// A table of the script's own, with the userdata in its first element and the methods behind it: as objects of
    /// lua-nginx-module are. Libraries keep fields of theirs in them, and put functions in the place of methods.
    Table,
}

/// A class of objects.
pub(crate) struct Class {
    /// Its name, unique in the program.
    pub(crate) name: &'static str,
    /// How its objects look.
    pub(crate) shape: Shape,
    /// Its methods.
    pub(crate) methods: &'static [(&'static str, Native)],
}

/// Pushes an object.
pub(crate) fn push(stack: &Stack, class: &'static Class, object: Rc<dyn Any>) {
    stack.reserve(4);
    if class.shape == Shape::Userdata {
        return push_userdata(stack, class, object);
    }
    stack.push_table(1, 0);
    push_userdata(stack, class, object);
    stack.set_element(-2, 1);
    push_methods(stack, class);
    stack.set_metatable(-2);
}

/// Pushes what holds an object, without the table that scripts may be shown of it.
pub(crate) fn push_userdata(stack: &Stack, class: &'static Class, object: Rc<dyn Any>) {
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

/// Pushes the metatable of a class's userdata, made at its first use.
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
    push_methods(stack, class);
    stack.set(-2, "__index");
    // Nobody is to take the finalizer off.
    stack.push_boolean(false);
    stack.set(-2, "__metatable");
    stack.push_copy(-1);
    stack.set(REGISTRY, class.name);
}

/// Pushes the table of a class's methods, made at its first use. It is the metatable of objects that are tables.
pub(crate) fn push_methods(stack: &Stack, class: &'static Class) {
    stack.reserve(4);
    let name = [class.name, " methods"].concat();
    if stack.field(REGISTRY, &name) == Kind::Table {
        return;
    }
    stack.pop(1);
    stack.push_table(0, class.methods.len() + 1);
    for (name, method) in class.methods {
        stack.push_native(*method);
        stack.set(-2, name);
    }
    if class.shape == Shape::Table {
        stack.push_copy(-1);
        stack.set(-2, "__index");
    }
    stack.push_copy(-1);
    stack.set(REGISTRY, &name);
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
    if let Some(object) = find(stack, at) {
        return Ok(object);
    }
    fail(format!(
        "bad argument #{at} ({what} expected, got {})",
        stack.kind(at).name()
    ))
}

/// The object at a place, in a userdata or in the first element of a table.
fn find<T: Any>(stack: &Stack, at: std::ffi::c_int) -> Option<Rc<T>> {
    if stack.kind(at) == Kind::Table {
        stack.element(at, 1);
        let found = held(stack, stack.top());
        stack.pop(1);
        return found;
    }
    held(stack, at)
}

fn held<T: Any>(stack: &Stack, at: std::ffi::c_int) -> Option<Rc<T>> {
    if !is_ours(stack, at) {
        return None;
    }
    // SAFETY: a userdata with a metatable of ours was made by `push_userdata`. Its field `__metatable` hides that
    // metatable, so only the libraries `debug` and `ffi`, with which a script can break anything, give it to another value.
    let slot = unsafe { &*stack.light(at).cast::<Slot>() };
    slot.clone()?.downcast().ok()
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
