//! `ngx.say`, `ngx.print`, `ngx.flush`, `ngx.eof`, `ngx.exit` and `ngx.send_headers`.
//!
//! Output is collected in the scope. The driver of the run turns it into the response: at the end
//! of the script as one body with a length, or while the script runs as a stream (see `phases`).

use super::arguments::bad;
use super::called::{answer, end_with};
use super::{CallResult, NativeTable};
use crate::buffering;
use crate::chunk::ScriptKind;
use crate::luajit::stack::LuaType;
use crate::luajit::{LuaError, LuaStack, LuaValue, NativeReturn, fail};
use crate::operation::YieldOperation;
use crate::scope;

pub(super) const FUNCTIONS: NativeTable = &[
    ("say", say),
    ("print", print),
    ("flush", flush),
    ("eof", eof),
    ("exit", exit),
    ("send_headers", send_headers),
];

/// How deep printed tables may be nested.
const MAX_DEPTH: u32 = 64;

/// How many elements a printed array may have.
const MAX_ELEMENTS: f64 = 10_000_000.0;

/// `ngx.say(...)`: `ngx.print` with a line feed.
fn say(stack: &LuaStack) -> CallResult {
    write_output(stack, b"\n")
}

/// `ngx.print(...)`.
fn print(stack: &LuaStack) -> CallResult {
    write_output(stack, b"")
}

/// Appends the arguments to the output.
fn write_output(stack: &LuaStack, end: &[u8]) -> CallResult {
    scope::with(|scope| {
        if !scope.kind.may_send_output() {
            return fail(scope.kind.refusal());
        }
        if scope.eof_sent.get() {
            return answer(stack, LuaValue::failure("seen eof"));
        }
        // The script writes the response itself; anything else on the connection would corrupt it.
        if scope.raw_socket.get() {
            return answer(stack, LuaValue::failure("raw request socket acquired"));
        }
        let mut out = scope.output.borrow_mut();
        let before = out.len();
        for at in 1..=stack.top() {
            if let Err(failure) = append(stack, at, &mut out) {
                // All or nothing: a bad argument prints none of the others.
                out.truncate(before);
                return Err(failure);
            }
        }
        out.extend_from_slice(end);
        // From here on the headers count as sent, although they may still be in memory: with
        // lua-nginx-module they are on the wire now, and scripts must not see a difference.
        scope.head_sent.set(true);
        // Backpressure: the script continues when the client has taken this.
        if buffering::must_flush(out.len()) && !(buffering::may_buffer(out.len()) && is_gathered())
        {
            drop(out);
            *scope.pending_operation.borrow_mut() = Some(YieldOperation::Flush);
            return Ok(NativeReturn::Wait);
        }
        stack.push_number(1.0);
        super::ONE
    })?
}

/// Appends a value as `ngx.print` shows it; the elements of an array one after the other.
pub(super) fn append(stack: &LuaStack, at: i32, out: &mut Vec<u8>) -> Result<(), LuaError> {
    match stack.type_at(at) {
        LuaType::String => out.extend_from_slice(stack.bytes(at).unwrap_or_default()),
        LuaType::Table => append_array(stack, at, at, out, 0)?,
        kind => match stack.text(at) {
            Some(text) => out.extend_from_slice(&text),
            None if kind == LuaType::LightUserdata => {}
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

/// Appends the elements of the array at `at`, which is within argument `argument`.
fn append_array(
    stack: &LuaStack,
    argument: i32,
    at: i32,
    out: &mut Vec<u8>,
    depth: u32,
) -> Result<(), LuaError> {
    if depth == MAX_DEPTH {
        return bad(stack, argument, "too many tables in tables found");
    }
    // The highest index is found first: the length operator of Lua is not defined for a table with
    // holes.
    let mut last = 0.0_f64;
    stack.push_nil();
    while stack.next(at) {
        stack.pop(1);
        match stack.type_at(-1) {
            LuaType::Number => match stack.number(-1) {
                Some(key) if key >= 1.0 && key.fract() == 0.0 => last = last.max(key),
                _ => return bad(stack, argument, "non-array table found"),
            },
            _ => return bad(stack, argument, "non-array table found"),
        }
    }
    // Missing elements are printed as `nil`, so their number must be bounded.
    if last > MAX_ELEMENTS {
        return bad(stack, argument, "too large an array found");
    }
    for n in 1..=last as usize {
        stack.element(at, n);
        let top = stack.top();
        match stack.type_at(top) {
            LuaType::String => out.extend_from_slice(stack.bytes(top).unwrap_or_default()),
            LuaType::Table => append_array(stack, argument, top, out, depth + 1)?,
            kind => match stack.text(top) {
                Some(text) => out.extend_from_slice(&text),
                None if kind == LuaType::LightUserdata => {}
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

/// `ngx.flush(wait)`. It waits until the output has been sent even if the script does not ask for
/// that.
fn flush(stack: &LuaStack) -> CallResult {
    let given = stack.top();
    if given > 1 {
        return fail(format!(
            "attempt to pass {given} arguments, but accepted 0 or 1"
        ));
    }
    // Whether to wait: it is checked, and waits in any case.
    if given == 1 && stack.type_at(1) != LuaType::Boolean && !is_in_subrequest() {
        let why = format!("boolean expected, got {}", stack.type_at(1).name());
        return super::arguments::bad(stack, 1, &why);
    }
    scope::with(|scope| {
        if !scope.kind.may_send_output() {
            return fail(scope.kind.refusal());
        }
        if scope.raw_socket.get() {
            return answer(stack, LuaValue::failure("raw request socket acquired"));
        }
        if scope.eof_sent.get() {
            return answer(stack, LuaValue::failure("seen eof"));
        }
        if !scope.head_sent.get() {
            return answer(stack, LuaValue::failure("nothing to flush"));
        }
        if buffering::may_buffer(scope.output.borrow().len()) && is_gathered() {
            return answer(stack, LuaValue::failure("buffering"));
        }
        *scope.pending_operation.borrow_mut() = Some(YieldOperation::Flush);
        Ok(NativeReturn::Wait)
    })?
}

/// Whether the script is one of a subrequest, which `ngx.flush` does not ask for its argument.
fn is_in_subrequest() -> bool {
    !scope::serves_session()
        && scope::with_request(|request| request.is_subrequest()).unwrap_or(false)
}

/// Whether the response is buffered until the script has ended (`lua_http10_buffering`).
fn is_gathered() -> bool {
    !scope::serves_session()
        && scope::with_request(|request| buffering::is_http10_buffered(request)).unwrap_or(false)
}

/// `ngx.eof()`: ends the response, while the script goes on.
fn eof(stack: &LuaStack) -> CallResult {
    scope::with(|scope| {
        if !scope.kind.may_send_output() {
            return fail(scope.kind.refusal());
        }
        if scope.raw_socket.get() {
            return answer(stack, LuaValue::failure("raw request socket acquired"));
        }
        if scope.eof_sent.replace(true) {
            return answer(stack, LuaValue::failure("seen eof"));
        }
        // A response without output ends as well, and its head is sent with the end.
        scope.head_sent.set(true);
        *scope.pending_operation.borrow_mut() = Some(YieldOperation::Flush);
        Ok(NativeReturn::Wait)
    })?
}

/// `ngx.send_headers()`.
fn send_headers(stack: &LuaStack) -> CallResult {
    scope::with(|scope| {
        if !scope.kind.may_send_output() {
            return fail(scope.kind.refusal());
        }
        if scope.raw_socket.get() || scope.head_sent.replace(true) {
            stack.push_number(1.0);
            return super::ONE;
        }
        // Header filters run before the script continues, as in nginx.
        *scope.pending_operation.borrow_mut() = Some(YieldOperation::Flush);
        Ok(NativeReturn::Wait)
    })?
}

/// `ngx.exit(status)`. What it does depends on the phase, see `phases`.
fn exit(stack: &LuaStack) -> CallResult {
    let Some(code) = stack.number(1) else {
        return fail("bad argument #1 to 'exit' (number expected)");
    };
    let code = code as i32;
    // `ngx.ERROR`, 408, 444 and 499 end the request whatever it waits for.
    if !matches!(code, -1 | 408 | 444 | 499) {
        need_no_captures()?;
    }
    // These two run to their end, as with nginx, and the code counts then.
    let runs_on = scope::with(|scope| {
        let runs_on = matches!(scope.kind, ScriptKind::HeaderFilter | ScriptKind::Balancer);
        if runs_on {
            scope.later_exit.set(Some(code));
        }
        runs_on
    })?;
    match runs_on {
        true => super::NONE,
        false => end_with(YieldOperation::Exit(code)),
    }
}

/// Fails while light threads wait for subrequests: those would be left without their parent.
pub(super) fn need_no_captures() -> Result<(), LuaError> {
    match scope::with(|scope| scope.pending_captures.get())? {
        0 => Ok(()),
        _ => fail("attempt to abort with pending subrequests"),
    }
}
