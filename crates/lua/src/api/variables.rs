//! `ngx.var`: nginx's variables, of a request or a session.
//!
//! Variables that the configuration mentions have a slot, found by name in a table that is built
//! with the configuration. Others are computed by name at each access.

use std::borrow::Cow;
use std::rc::Rc;

use ::stream::StreamSession;
use bstr::ByteSlice;
use conf::{VarId, VariableScope as _, VariableTable};
use http::Request;

use super::CallResult;
use crate::luajit::stack::LuaType;
use crate::luajit::{LuaError, LuaStack, fail};
use crate::scope;

/// Adds `ngx.var` to the table on top: an empty table whose metatable does the work.
pub(super) fn install(stack: &LuaStack) {
    stack.push_table(0, 0);
    stack.push_table(0, 2);
    stack.push_native(get);
    stack.set(-2, "__index");
    stack.push_native(set);
    stack.set(-2, "__newindex");
    stack.set_metatable(-2);
    stack.set(-2, "var");
}

/// `ngx.var[name]`; a number is a capture of the last regular expression.
fn get(stack: &LuaStack) -> CallResult {
    if stack.type_at(2) == LuaType::Number {
        // nginx has no name for the whole match (`$0`) either.
        let n = stack.number(2).filter(|n| *n >= 1.0);
        return scope::with_request(|request| {
            push(stack, n.and_then(|n| request.captured.group(n as usize)));
            super::ONE
        })?;
    }
    let Some(name) = stack.bytes(2).and_then(|name| name.to_str().ok()) else {
        return fail("bad variable name");
    };
    let name = &lower(name);
    let value = match scope::serves_session() {
        true => scope::with_session(|session| of_session(session, name))?,
        false => scope::with_request(|request| value(request, name))?,
    };
    push(stack, value.as_deref());
    super::ONE
}

/// Variable names are lower case in nginx, however a script spells them.
fn lower(name: &str) -> Cow<'_, str> {
    match name.bytes().any(|byte| byte.is_ascii_uppercase()) {
        true => Cow::Owned(name.to_ascii_lowercase()),
        false => Cow::Borrowed(name),
    }
}

/// Pushes a value, or nil.
fn push(stack: &LuaStack, value: Option<&[u8]>) {
    match value {
        Some(value) => stack.push_bytes(value),
        None => stack.push_nil(),
    }
}

/// The value of a variable of http by name.
pub(super) fn value(request: &mut Request, name: &str) -> Option<Vec<u8>> {
    let site = Rc::clone(&request.site);
    let mut out = Vec::new();
    // By slot where there is one: its value is kept for the request, and what `set` gave it is
    // there.
    let found = match site.variables.id(name) {
        Some(id) => request.variable(id, &mut out),
        None => site.variables.find(name)?.value(request, &mut out),
    };
    found.then_some(out)
}

/// The value of a variable of stream by name.
fn of_session(session: &mut StreamSession, name: &str) -> Option<Vec<u8>> {
    let site = Rc::clone(&session.site);
    let mut out = Vec::new();
    let found = match site.variables.id(name) {
        Some(id) => session.variable(id, &mut out),
        None => site.variables.find(name)?.value(session, &mut out),
    };
    found.then_some(out)
}

/// `ngx.var[name] = value`.
fn set(stack: &LuaStack) -> CallResult {
    let name = match stack.type_at(2) {
        // Captures are read-only.
        LuaType::Number => None,
        _ => stack.bytes(2).and_then(|name| name.to_str().ok()),
    };
    let Some(name) = name else {
        return fail("bad variable name");
    };
    let name = &lower(name);
    // Nil unsets the variable; anything else becomes text, as in lua-nginx-module.
    let text = match stack.type_at(3) {
        LuaType::Nil => None,
        _ => Some(stack.tostring(3)),
    };
    if !scope::serves_session() {
        scope::with_request(|request| assign(request, name, text.as_deref()))??;
        return super::NONE;
    }
    scope::with_session(|session| {
        let site = Rc::clone(&session.site);
        let id = changeable(&site.variables, name)?;
        session.set_variable(id, text.as_deref().unwrap_or_default());
        super::NONE
    })?
}

/// Sets a variable by name; `None` makes it "not found".
pub(super) fn assign(
    request: &mut Request,
    name: &str,
    value: Option<&[u8]>,
) -> Result<(), LuaError> {
    let site = Rc::clone(&request.site);
    let name = &lower(name);
    if site.variables.id(name).is_none()
        && let Some(variable) = site.variables.find(name)
        && variable.is_changeable()
        && let Some(set) = variable.set
    {
        // One of the engine's own that can be set, such as `args`, but is not mentioned in the
        // configuration and so has no slot.
        set(request, value.unwrap_or_default());
        return Ok(());
    }
    let id = changeable(&site.variables, name)?;
    match value {
        Some(value) => request.set_variable(id, value),
        None => request.unset_variable(id),
    }
    Ok(())
}

/// The slot of a variable that a script may set. As in nginx it must be defined in the
/// configuration (`set`), because slots are assigned when that is built.
fn changeable<R>(variables: &VariableTable<R>, name: &str) -> Result<VarId, LuaError> {
    let Some(id) = variables.id(name) else {
        if variables.find(name).is_some() {
            return fail(format!("variable \"{name}\" not changeable"));
        }
        return fail(format!(
            "variable \"{name}\" not found for writing; maybe it is a built-in variable that is not changeable or you \
             forgot to use \"set ${name} '';\" in the config file to define it first"
        ));
    };
    if !variables.get(id).is_changeable() {
        return fail(format!("variable \"{name}\" not changeable"));
    }
    Ok(id)
}
