//! What runs on an event loop when a configuration begins and ends: `init_by_lua`,
//! `init_worker_by_lua`, `exit_worker_by_lua`. A loop stands for one of nginx's workers.
//!
//! nginx runs `init_by_lua` once, in its master, and the workers inherit the VM by forking. Loops
//! are threads and cannot, so each runs it for its own VM.

use ::stream::stream_loop::StreamLoop;
use http::http_loop::HttpLoop;

use crate::loop_vms::{self, LoopEnvironment};
use crate::settings::LuaMainConf;
use crate::vm_configuration::{self, LuaSubsystem, VmConfiguration};

/// A loop begins to serve a configuration of http.
pub(crate) fn start_http(engine: &HttpLoop) {
    let place = LoopEnvironment::for_request(engine.log(), engine.index, &engine.zones);
    begin_configuration(vm_configuration::for_http_site(&engine.site()), &place);
}

/// A loop begins to serve a configuration of stream.
pub(crate) fn start_stream(engine: &StreamLoop) {
    let place = LoopEnvironment::for_request(engine.log(), engine.index, &engine.zones);
    begin_configuration(vm_configuration::for_stream_site(&engine.site()), &place);
}

/// Ends the replaced configurations on this loop, and starts a new one: its VM, if there are `init`
/// scripts, and those.
fn begin_configuration(of: (&LuaMainConf, VmConfiguration, u64), place: &LoopEnvironment<'_>) {
    // As nginx's old workers do on a reload, the timers of replaced configurations fire now, with
    // `premature` set. Requests of those configurations go on in their VMs.
    for former in loop_vms::all_of_subsystem(of.1.subsystem()) {
        former.shut_down();
    }
    let main = of.0;
    if main.init.is_none() && main.init_worker.is_none() && main.exit_worker.is_none() {
        // Without such scripts the VM is created by the first request that needs it.
        return;
    }
    let init_worker = main.init_worker.clone();
    if let Some(vm) = loop_vms::create(of, place)
        && let Some(chunk) = init_worker
    {
        vm.run_without_request(&chunk);
    }
}

/// A loop of http ends.
pub(crate) fn stop_http(_: &HttpLoop) {
    end_subsystem(LuaSubsystem::Http);
}

/// A loop of stream ends.
pub(crate) fn stop_stream(_: &StreamLoop) {
    end_subsystem(LuaSubsystem::Stream);
}

/// Runs `exit_worker_by_lua` in each VM that has not ended yet, then wakes the timers.
fn end_subsystem(engine: LuaSubsystem) {
    for vm in loop_vms::all_of_subsystem(engine) {
        if !vm.is_shut_down.get()
            && let Some(chunk) = vm.settings.exit_worker.clone()
        {
            vm.run_without_request(&chunk);
        }
        vm.shut_down();
    }
}
