//! `ngx.say`, `ngx.print`, `ngx.flush`, `ngx.eof`, `ngx.exit` and what else speaks to the client.

use std::rc::Rc;

use super::arguments::bad;
use super::{Called, Functions};
use crate::luajit::stack::Kind;
use crate::luajit::{Answer, Failure, Stack, Value, fail};
use crate::operation::Operation;
use crate::phases;
use crate::scope::{self, Scope};

pub(super) const FUNCTIONS: Functions = &[
    ("say", say),
    ("print", print),
    ("flush", flush),
    ("eof", eof),
    ("exit", exit),
    ("send_headers", send_headers),
];

/// How deep tables may stand in tables that are printed.
const MAX_DEPTH: u32 = 64;

/// How many elements an array that is printed may have.
const MAX_ELEMENTS: f64 = 10_000_000.0;

fn say(stack: &Stack) -> Called {
    speak(stack, b"\n")
}

fn print(stack: &Stack) -> Called {
    speak(stack, b"")
}

fn speak(stack: &Stack, end: &[u8]) -> Called {
    scope::with(|scope| {
        if !scope.kind.speaks() {
            return fail(scope.kind.refusal());
        }
        if scope.over.get() {
            return answer(stack, Value::failure("seen eof"));
        }
        if scope.raw.get() {
            return answer(stack, Value::failure("raw request socket acquired"));
        }
        let mut out = scope.output.borrow_mut();
        let before = out.len();
        for at in 1..=stack.top() {
            if let Err(failure) = append(stack, at, &mut out) {
                out.truncate(before);
                return Err(failure);
            }
        }
        out.extend_from_slice(end);
        scope.head_sent.set(true);
        if phases::is_much(out.len()) && !(phases::may_gather(out.len()) && is_gathered()) {
            drop(out);
            *scope.waits.borrow_mut() = Some(Operation::Flush);
            return Ok(Answer::Wait);
        }
        stack.push_number(1.0);
        super::ONE
    })?
}

/// Appends a value as `ngx.print` shows it: arrays are their elements, one after the other.
pub(super) fn append(stack: &Stack, at: i32, out: &mut Vec<u8>) -> Result<(), Failure> {
    match stack.kind(at) {
        Kind::String => out.extend_from_slice(stack.bytes(at).unwrap_or_default()),
        Kind::Table => append_array(stack, at, at, out, 0)?,
        kind => match stack.text(at) {
            Some(text) => out.extend_from_slice(&text),
            None if kind == Kind::LightUserdata => {}
            None => {
                let kind = kind.name();
                let why = format!(
                    "string, number, boolean, nil, ngx.null, or array table expected, but got {kind}"
                );
                return bad(stack, at, &why);
            }
        },
    }
    Ok(())
}

/// Appends the elements of the array at `at`, which stands in argument `argument`.
fn append_array(
    stack: &Stack,
    argument: i32,
    at: i32,
    out: &mut Vec<u8>,
    depth: u32,
) -> Result<(), Failure> {
    if depth == MAX_DEPTH {
        return bad(stack, argument, "too many tables in tables found");
    }
    let mut last = 0.0_f64;
    stack.push_nil();
    while stack.next(at) {
        stack.pop(1);
        match stack.kind(-1) {
            Kind::Number => match stack.number(-1) {
                Some(key) if key >= 1.0 && key.fract() == 0.0 => last = last.max(key),
                _ => return bad(stack, argument, "non-array table found"),
            },
            _ => return bad(stack, argument, "non-array table found"),
        }
    }
    // Elements that are not there show as `nil`: how many can, is bounded.
    if last > MAX_ELEMENTS {
        return bad(stack, argument, "too large an array found");
    }
    for n in 1..=last as usize {
        stack.element(at, n);
        let top = stack.top();
        match stack.kind(top) {
            Kind::String => out.extend_from_slice(stack.bytes(top).unwrap_or_default()),
            Kind::Table => append_array(stack, argument, top, out, depth + 1)?,
            kind => match stack.text(top) {
                Some(text) => out.extend_from_slice(&text),
                None if kind == Kind::LightUserdata => {}
                None => {
                    let why = format!("bad data type {} found", kind.name());
                    return bad(stack, argument, &why);
                }
            },
        }
        stack.pop(1);
    }
    Ok(())
}

fn flush(stack: &Stack) -> Called {
    let waits = stack.boolean(1);
    scope::with(|scope| {
        if !scope.kind.speaks() {
            return fail(scope.kind.refusal());
        }
        if scope.raw.get() {
            return answer(stack, Value::failure("raw request socket acquired"));
        }
        if scope.over.get() {
            return answer(stack, Value::failure("seen eof"));
        }
        if !scope.head_sent.get() {
            return answer(stack, Value::failure("nothing to flush"));
        }
        if phases::may_gather(scope.output.borrow().len()) && is_gathered() {
            return answer(stack, Value::failure("buffering"));
        }
        let _ = waits;
        *scope.waits.borrow_mut() = Some(Operation::Flush);
        Ok(Answer::Wait)
    })?
}

/// Whether the response waits until the script is through, since its client knows of no chunks.
fn is_gathered() -> bool {
    !scope::serves_session()
        && scope::with_request(|request| phases::is_gathered(request)).unwrap_or(false)
}

fn eof(stack: &Stack) -> Called {
    scope::with(|scope| {
        if !scope.kind.speaks() {
            return fail(scope.kind.refusal());
        }
        if scope.raw.get() {
            return answer(stack, Value::failure("raw request socket acquired"));
        }
        if scope.over.replace(true) {
            return answer(stack, Value::failure("seen eof"));
        }
        scope.head_sent.set(true);
        *scope.waits.borrow_mut() = Some(Operation::Flush);
        Ok(Answer::Wait)
    })?
}

fn send_headers(stack: &Stack) -> Called {
    scope::with(|scope| {
        if !scope.kind.speaks() {
            return fail(scope.kind.refusal());
        }
        if scope.raw.get() || scope.head_sent.replace(true) {
            stack.push_number(1.0);
            return super::ONE;
        }
        // Filters see it before the script goes on.
        *scope.waits.borrow_mut() = Some(Operation::Flush);
        Ok(Answer::Wait)
    })?
}

fn exit(stack: &Stack) -> Called {
    let Some(code) = stack.number(1) else {
        return fail("bad argument #1 to 'exit' (number expected)");
    };
    let code = code as i32;
    // These end the request whatever it waits for.
    if !matches!(code, -1 | 408 | 444 | 499) {
        need_no_captures()?;
    }
    end(Operation::Exit(code))
}

/// Fails while light threads of the script wait for subrequests: the response would go its way without them.
pub(super) fn need_no_captures() -> Result<(), Failure> {
    match scope::with(|scope| scope.captures.get())? {
        0 => Ok(()),
        _ => fail("attempt to abort with pending subrequests"),
    }
}

/// Fails where a script has no request whose way it decides.
pub(super) fn need_way() -> Result<(), Failure> {
    let kind = scope::with(|scope| scope.kind)?;
    match kind.directs() {
        true => Ok(()),
        false => fail(kind.refusal()),
    }
}

/// Ends the run.
pub(super) fn end(operation: Operation) -> Called {
    scope::with(|scope: &Rc<Scope>| {
        *scope.waits.borrow_mut() = Some(operation);
        Ok(Answer::Wait)
    })?
}

/// Values as the results of a function.
pub(super) fn answer(stack: &Stack, values: Vec<Value>) -> Called {
    for value in &values {
        value.push(stack);
    }
    Ok(Answer::Values(i32::try_from(values.len()).unwrap_or(0)))
}
