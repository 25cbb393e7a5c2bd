//! Lua values outside of a state: the results of operations, made while no Lua code runs. They
//! become Lua values when the coroutine that waits for them is resumed.

use std::rc::Rc;

use super::reference::RegistryRef;
use super::stack::LuaStack;

/// A Lua value, owned by Rust.
#[derive(Clone)]
pub(crate) enum LuaValue {
    Nil,
    Boolean(bool),
    Number(f64),
    Bytes(Vec<u8>),
    /// A value that is in the state already.
    Ref(Rc<RegistryRef>),
    /// A table with these entries.
    Table(Vec<(LuaValue, LuaValue)>),
}

impl LuaValue {
    /// Pushes it on a stack.
    pub(crate) fn push(&self, stack: &LuaStack) {
        match self {
            LuaValue::Nil => stack.push_nil(),
            LuaValue::Boolean(value) => stack.push_boolean(*value),
            LuaValue::Number(value) => stack.push_number(*value),
            LuaValue::Bytes(value) => stack.push_bytes(value),
            LuaValue::Ref(value) => value.push(stack),
            LuaValue::Table(entries) => {
                stack.push_table(0, entries.len());
                for (key, value) in entries {
                    key.push(stack);
                    value.push(stack);
                    stack.set_pair(-3);
                }
            }
        }
    }

    /// A string.
    pub(crate) fn text(text: impl Into<Vec<u8>>) -> LuaValue {
        LuaValue::Bytes(text.into())
    }

    /// Lua's convention for an error result: `nil` and a message.
    pub(crate) fn failure(message: impl Into<Vec<u8>>) -> Vec<LuaValue> {
        vec![LuaValue::Nil, LuaValue::Bytes(message.into())]
    }
}
