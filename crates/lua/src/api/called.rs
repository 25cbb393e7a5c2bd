//! How a function of the API returns to the script that called it: with values, or when an operation is over.

use crate::luajit::{LuaError, LuaStack, LuaValue, NativeFunction, NativeReturn, fail};
use crate::operation::YieldOperation;
use crate::scope;

/// What an API function returns.
pub(crate) type CallResult = Result<NativeReturn, LuaError>;

/// One result.
pub(crate) const ONE: CallResult = Ok(NativeReturn::Values(1));

/// No results.
pub(crate) const NONE: CallResult = Ok(NativeReturn::Values(0));

/// Functions by name.
pub(crate) type NativeTable = &'static [(&'static str, NativeFunction)];

/// Lets the coroutine wait for an operation, if its phase may wait at all.
pub(crate) fn wait(operation: YieldOperation) -> CallResult {
    scope::with(|scope| {
        if !scope.kind.may_yield() {
            return fail(scope.kind.refusal());
        }
        *scope.pending_operation.borrow_mut() = Some(operation);
        Ok(NativeReturn::Wait)
    })?
}

/// Returns these values.
pub(super) fn answer(stack: &LuaStack, values: Vec<LuaValue>) -> CallResult {
    for value in &values {
        value.push(stack);
    }
    Ok(NativeReturn::Values(
        i32::try_from(values.len()).unwrap_or(0),
    ))
}

/// Yields for good: the run ends with this operation.
pub(super) fn end_with(operation: YieldOperation) -> CallResult {
    scope::with(|scope| {
        *scope.pending_operation.borrow_mut() = Some(operation);
        Ok(NativeReturn::Wait)
    })?
}

/// Fails in phases where a script does not control a request.
pub(super) fn need_request_control() -> Result<(), LuaError> {
    let kind = scope::with(|scope| scope.kind)?;
    match kind.controls_request() {
        true => Ok(()),
        false => fail(kind.refusal()),
    }
}
