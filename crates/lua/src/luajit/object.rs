//! Rust objects that Lua holds: userdata with methods.
//!
//! The userdata owns an `Rc`, which its finalizer drops. What makes the cast back safe is the
//! metatable: only ours have [`MARK`] as a key, and `__metatable` keeps scripts from reading or
//! replacing it.

use std::any::Any;
use std::rc::Rc;

use super::ffi;
use super::native::{LuaError, NativeFunction, NativeReturn, fail};
use super::stack::{LuaStack, LuaType, REGISTRY};

/// What is in the memory of a userdata; `None` once it was finalized.
type UserdataSlot = Option<Rc<dyn Any>>;

/// The key that only our metatables have: the address of this.
static MARK: u8 = 0;

/// What an object looks like to scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ObjectShape {
    /// A userdata: opaque.
    Userdata,
    /// A table with the userdata in its first element and the methods behind it, like the objects
    /// of lua-nginx-module. Libraries store fields of their own in them and override methods.
    Table,
}

/// A class of objects.
pub(crate) struct ObjectClass {
    /// Its key in the registry, unique in the program.
    pub(crate) name: &'static str,
    /// What its objects look like.
    pub(crate) shape: ObjectShape,
    /// Its methods by name.
    pub(crate) methods: &'static [(&'static str, NativeFunction)],
}

/// Pushes an object as scripts see it.
pub(crate) fn push(stack: &LuaStack, class: &'static ObjectClass, object: Rc<dyn Any>) {
    stack.reserve(4);
    if class.shape == ObjectShape::Userdata {
        return push_userdata(stack, class, object);
    }
    stack.push_table(1, 0);
    push_userdata(stack, class, object);
    stack.set_element(-2, 1);
    push_methods(stack, class);
    stack.set_metatable(-2);
}

/// Pushes the userdata of an object, without the table around it.
pub(crate) fn push_userdata(stack: &LuaStack, class: &'static ObjectClass, object: Rc<dyn Any>) {
    stack.reserve(4);
    // SAFETY: the block is large enough for a `UserdataSlot` and aligned to 16 bytes. It is initialized
    // before a script can see it, and emptied only by `collect`, which leaves a `None` behind.
    // JUSTIFICATION: Lua's collector decides how long an object lives.
    unsafe {
        let block = ffi::lua_newuserdata(stack.l, size_of::<UserdataSlot>()).cast::<UserdataSlot>();
        block.write(Some(object));
    }
    push_metatable(stack, class);
    stack.set_metatable(-2);
}

/// Pushes the metatable of a class's userdata, created when it is first needed.
fn push_metatable(stack: &LuaStack, class: &'static ObjectClass) {
    if stack.field(REGISTRY, class.name) == LuaType::Table {
        return;
    }
    stack.pop(1);
    stack.push_table(0, 4);
    stack.push_light(our_mark());
    stack.push_boolean(true);
    stack.set_pair(-3);
    stack.push_native(collect);
    stack.set(-2, "__gc");
    push_methods(stack, class);
    stack.set(-2, "__index");
    // `getmetatable` returns false and `setmetatable` fails: a script that could remove the
    // finalizer would leak, and one that could move the metatable to another value would crash the
    // server.
    stack.push_boolean(false);
    stack.set(-2, "__metatable");
    stack.push_copy(-1);
    stack.set(REGISTRY, class.name);
}

/// Pushes the table of a class's methods, created when it is first needed. Objects that are tables
/// have it as their metatable.
pub(crate) fn push_methods(stack: &LuaStack, class: &'static ObjectClass) {
    stack.reserve(4);
    let name = [class.name, " methods"].concat();
    if stack.field(REGISTRY, &name) == LuaType::Table {
        return;
    }
    stack.pop(1);
    stack.push_table(0, class.methods.len() + 1);
    for (name, method) in class.methods {
        stack.push_native(*method);
        stack.set(-2, name);
    }
    if class.shape == ObjectShape::Table {
        stack.push_copy(-1);
        stack.set(-2, "__index");
    }
    stack.push_copy(-1);
    stack.set(REGISTRY, &name);
}

fn our_mark() -> *mut std::ffi::c_void {
    std::ptr::from_ref(&MARK).cast_mut().cast()
}

/// Whether the value is a userdata of ours, of any class.
fn has_our_metatable(stack: &LuaStack, at: std::ffi::c_int) -> bool {
    if stack.type_at(at) != LuaType::Userdata || !stack.push_metatable(at) {
        return false;
    }
    stack.push_light(our_mark());
    let ours = stack.field_of_top(-2) == LuaType::Boolean;
    stack.pop(2);
    ours
}

/// The object at a position. `what` names in the error what was expected.
pub(crate) fn get<T: Any>(
    stack: &LuaStack,
    at: std::ffi::c_int,
    what: &str,
) -> Result<Rc<T>, LuaError> {
    let at = stack.absolute(at);
    if let Some(object) = find(stack, at) {
        return Ok(object);
    }
    fail(format!(
        "bad argument #{at} ({what} expected, got {})",
        stack.type_at(at).name()
    ))
}

/// The object at a position, in a userdata or in the first element of a table.
fn find<T: Any>(stack: &LuaStack, at: std::ffi::c_int) -> Option<Rc<T>> {
    if stack.type_at(at) == LuaType::Table {
        stack.element(at, 1);
        let found = object_in_userdata(stack, stack.top());
        stack.pop(1);
        return found;
    }
    object_in_userdata(stack, at)
}

fn object_in_userdata<T: Any>(stack: &LuaStack, at: std::ffi::c_int) -> Option<Rc<T>> {
    if !has_our_metatable(stack, at) {
        return None;
    }
    // SAFETY: a userdata with a metatable of ours was made by `push_userdata`. Its field
    // `__metatable` hides that metatable, so only the libraries `debug` and `ffi`, with which a
    // script can break anything, give it to another value.
    let slot = unsafe { &*stack.light(at).cast::<UserdataSlot>() };
    slot.clone()?.downcast().ok()
}

/// `__gc`: drops the object.
fn collect(stack: &LuaStack) -> Result<NativeReturn, LuaError> {
    if has_our_metatable(stack, 1) {
        // SAFETY: as in `get`; Lua calls a finalizer once, and a second call finds nothing.
        let slot = unsafe { &mut *stack.light(1).cast::<UserdataSlot>() };
        drop(slot.take());
    }
    Ok(NativeReturn::Values(0))
}
