//! How a run begins: the VM of its configuration, the compiled function, a scope.

use std::rc::Rc;

use ::stream::StreamSession;
use ::stream::module::status;
use bstr::ByteSlice;
use http::Request;

use crate::chunk::LuaChunk;
use crate::loop_vms;
use crate::run::ScriptRun;
use crate::scope::RunScope;

/// A run of a chunk for a request. The error is the status to answer with when it cannot start.
pub(crate) fn for_request(request: &mut Request, chunk: &LuaChunk) -> Result<ScriptRun, u16> {
    // No VM: `init_by_lua` has failed, or there is no memory for one.
    let vm = loop_vms::for_request(request).ok_or(500_u16)?;
    let function = match vm.function(chunk, request.into()) {
        Ok(function) => function,
        Err(unloaded) => {
            request.error(format_args!("{}", unloaded.message.as_bstr()));
            return Err(unloaded.status);
        }
    };
    // The logger is cloned, because a run may outlive its borrow of the request.
    let scope = RunScope::new(Rc::clone(&vm), chunk.kind, request.logger().clone());
    Ok(ScriptRun::new(scope, &function, &vm.settings.limits).of_chunk(chunk))
}

/// A run of a chunk for a session. The error is the status to end with when it cannot start.
pub(crate) fn for_session(session: &mut StreamSession, chunk: &LuaChunk) -> Result<ScriptRun, u16> {
    let vm = loop_vms::for_session(session).ok_or(status::INTERNAL_SERVER_ERROR)?;
    let function = match vm.function(chunk, session.into()) {
        Ok(function) => function,
        Err(unloaded) => {
            session.error(format_args!("{}", unloaded.message.as_bstr()));
            return Err(status::INTERNAL_SERVER_ERROR);
        }
    };
    let scope = RunScope::new(Rc::clone(&vm), chunk.kind, session.logger().clone());
    Ok(ScriptRun::new(scope, &function, &vm.settings.limits).of_chunk(chunk))
}
