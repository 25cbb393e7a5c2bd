//! Errors about an argument, as Lua's own library raises them: with the name under which the script
//! has called the function, and "calling 'x' on bad self" for a method's object. Scripts and test
//! suites compare these messages.

use std::ffi::{CStr, c_int};

use super::ffi;
use super::native::LuaError;
use super::stack::LuaStack;

impl LuaStack {
    /// The error for a wrong argument `at`: "bad argument #2 to 'connect' (…)". The function is
    /// named as the script calls it. For a method the object is not counted, so the first argument
    /// after the colon is number 1.
    pub(crate) fn bad_argument(&self, at: c_int, message: &str) -> LuaError {
        // SAFETY: the record is plain data that Lua fills in; the names in it live as long as the
        // code that calls does, and are copied here. Nothing raises.
        // JUSTIFICATION: only Lua knows by which name the running function was called.
        let (name, is_method) = unsafe {
            let mut record: ffi::lua_Debug = std::mem::zeroed();
            let known = ffi::lua_getstack(self.l, 0, &raw mut record) != 0
                && ffi::lua_getinfo(self.l, c"n".as_ptr(), &raw mut record) != 0;
            let text = |text: *const std::ffi::c_char| match text.is_null() {
                true => String::new(),
                false => CStr::from_ptr(text).to_string_lossy().into_owned(),
            };
            match known {
                true => (text(record.name), text(record.namewhat) == "method"),
                false => (String::new(), false),
            }
        };
        let name = if name.is_empty() { "?" } else { &name };
        match at - c_int::from(is_method) {
            0 => format!("calling '{name}' on bad self ({message})").into(),
            at => format!("bad argument #{at} to '{name}' ({message})").into(),
        }
    }
}
