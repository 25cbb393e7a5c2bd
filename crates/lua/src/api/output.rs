//! `ngx.say`, `ngx.print`, `ngx.flush`, `ngx.eof`, `ngx.exit` and what else speaks to the client.

use std::rc::Rc;

use super::{Called, Functions};
use crate::luajit::stack::Kind;
use crate::luajit::{Answer, Stack, Value, fail};
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

fn say(stack: &Stack) -> Called {
    speak(stack, b"\n")
}

fn print(stack: &Stack) -> Called {
    speak(stack, b"")
}

fn speak(stack: &Stack, end: &[u8]) -> Called {
    scope::with(|scope| {
        if !scope.kind.speaks() {
            return fail(format!(
                "API disabled in the context of {}*",
                scope.kind.name()
            ));
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
            if let Err(failure) = append(stack, at, &mut out, 0) {
                out.truncate(before);
                return Err(failure);
            }
        }
        out.extend_from_slice(end);
        scope.head_sent.set(true);
        if phases::is_much(out.len()) {
            drop(out);
            *scope.waits.borrow_mut() = Some(Operation::Flush);
            return Ok(Answer::Wait);
        }
        stack.push_number(1.0);
        super::ONE
    })?
}

/// Appends a value as `ngx.print` shows it: arrays are their elements, one after the other.
pub(super) fn append(
    stack: &Stack,
    at: i32,
    out: &mut Vec<u8>,
    depth: u32,
) -> Result<(), crate::luajit::Failure> {
    match stack.kind(at) {
        Kind::String => out.extend_from_slice(stack.bytes(at).unwrap_or_default()),
        Kind::Table if depth < MAX_DEPTH => {
            for n in 1..=stack.length(at) {
                stack.element(at, n);
                let top = stack.top();
                append(stack, top, out, depth + 1)?;
                stack.pop(1);
            }
        }
        kind => match stack.text(at) {
            Some(text) => out.extend_from_slice(&text),
            None => {
                return fail(format!(
                    "bad argument #{at} (string, number, boolean, nil, ngx.null, or array table expected, but got {})",
                    kind.name()
                ));
            }
        },
    }
    Ok(())
}

fn flush(stack: &Stack) -> Called {
    let waits = stack.boolean(1);
    scope::with(|scope| {
        if !scope.kind.speaks() {
            return fail(format!(
                "API disabled in the context of {}*",
                scope.kind.name()
            ));
        }
        if scope.raw.get() {
            return answer(stack, Value::failure("raw request socket acquired"));
        }
        scope.head_sent.set(true);
        let _ = waits;
        *scope.waits.borrow_mut() = Some(Operation::Flush);
        Ok(Answer::Wait)
    })?
}

fn eof(stack: &Stack) -> Called {
    scope::with(|scope| {
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
    scope::with(|scope| scope.head_sent.set(true))?;
    stack.push_number(1.0);
    super::ONE
}

fn exit(stack: &Stack) -> Called {
    let Some(code) = stack.number(1) else {
        return fail("bad argument #1 to 'exit' (number expected)");
    };
    end(Operation::Exit(code as i32))
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
