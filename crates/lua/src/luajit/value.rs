//! Lua values that stand outside of a state: what operations give back to the coroutine that waits for them.

use std::rc::Rc;

use super::reference::Ref;
use super::stack::Stack;

/// A value.
#[derive(Clone)]
pub(crate) enum Value {
    Nil,
    Boolean(bool),
    Number(f64),
    Bytes(Vec<u8>),
    /// A value that stands in the state already.
    Ref(Rc<Ref>),
    /// A table with these entries.
    Table(Vec<(Value, Value)>),
}

impl Value {
    /// Pushes it.
    pub(crate) fn push(&self, stack: &Stack) {
        match self {
            Value::Nil => stack.push_nil(),
            Value::Boolean(value) => stack.push_boolean(*value),
            Value::Number(value) => stack.push_number(*value),
            Value::Bytes(value) => stack.push_bytes(value),
            Value::Ref(value) => value.push(stack),
            Value::Table(entries) => {
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
    pub(crate) fn text(text: impl Into<Vec<u8>>) -> Value {
        Value::Bytes(text.into())
    }

    /// Lua's way to report what went wrong: `nil` and a message.
    pub(crate) fn failure(message: impl Into<Vec<u8>>) -> Vec<Value> {
        vec![Value::Nil, Value::Bytes(message.into())]
    }
}
