//! `ngx.var`.

use std::borrow::Cow;
use std::rc::Rc;

use ::stream::Session;
use bstr::ByteSlice;
use conf::{Scope as _, VarId, Variables};
use http::Request;

use super::Called;
use crate::luajit::stack::Kind;
use crate::luajit::{Failure, Stack, fail};
use crate::scope;

/// Adds `var` to the table on top.
pub(super) fn install(stack: &Stack) {
    stack.push_table(0, 0);
    stack.push_table(0, 2);
    stack.push_native(get);
    stack.set(-2, "__index");
    stack.push_native(set);
    stack.set(-2, "__newindex");
    stack.set_metatable(-2);
    stack.set(-2, "var");
}

fn get(stack: &Stack) -> Called {
    if stack.kind(2) == Kind::Number {
        // The whole match has no name in nginx either.
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

/// Names of variables are in lower case, however a script spells them.
fn lower(name: &str) -> Cow<'_, str> {
    match name.bytes().any(|byte| byte.is_ascii_uppercase()) {
        true => Cow::Owned(name.to_ascii_lowercase()),
        false => Cow::Borrowed(name),
    }
}

fn push(stack: &Stack, value: Option<&[u8]>) {
    match value {
        Some(value) => stack.push_bytes(value),
        None => stack.push_nil(),
    }
}

/// The value of a variable by its name.
pub(super) fn value(request: &mut Request, name: &str) -> Option<Vec<u8>> {
    let site = Rc::clone(&request.site);
    let mut out = Vec::new();
    let found = match site.variables.id(name) {
        Some(id) => request.variable(id, &mut out),
        None => site.variables.find(name)?.value(request, &mut out),
    };
    found.then_some(out)
}

/// The value of a variable of stream by its name.
fn of_session(session: &mut Session, name: &str) -> Option<Vec<u8>> {
    let site = Rc::clone(&session.site);
    let mut out = Vec::new();
    let found = match site.variables.id(name) {
        Some(id) => session.variable(id, &mut out),
        None => site.variables.find(name)?.value(session, &mut out),
    };
    found.then_some(out)
}

fn set(stack: &Stack) -> Called {
    let name = match stack.kind(2) {
        // Groups of the last match are not to be written to.
        Kind::Number => None,
        _ => stack.bytes(2).and_then(|name| name.to_str().ok()),
    };
    let Some(name) = name else {
        return fail("bad variable name");
    };
    let name = &lower(name);
    let text = match stack.kind(3) {
        Kind::Nil => None,
        _ => Some(stack.shown(3)),
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

/// Sets a variable by its name; `None` makes it one that is not found.
pub(super) fn assign(
    request: &mut Request,
    name: &str,
    value: Option<&[u8]>,
) -> Result<(), Failure> {
    let site = Rc::clone(&request.site);
    let name = &lower(name);
    if site.variables.id(name).is_none()
        && let Some(variable) = site.variables.find(name)
        && variable.is_changeable()
        && let Some(set) = variable.set
    {
        // Of the engine's own, such as `args`, and mentioned nowhere in the configuration.
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

/// The number of a variable that a script may set.
fn changeable<R>(variables: &Variables<R>, name: &str) -> Result<VarId, Failure> {
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
