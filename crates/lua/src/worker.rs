//! What happens on a loop when a configuration begins and ends: `init_by_lua`, `init_worker_by_lua`,
//! `exit_worker_by_lua`.

use http::engine::HttpLoop;

use crate::directives::Main;
use crate::vm;

/// A loop begins to serve a configuration.
pub(crate) fn start(engine: &HttpLoop) {
    // The timers of the former configurations run now, told that it is before their time.
    for former in vm::all() {
        former.end();
    }
    let site = engine.site();
    let main = site.main_confs.get::<Main>();
    if main.init.is_none() && main.init_worker.is_none() && main.exit_worker.is_none() {
        // The machine is made when a script is first run.
        return;
    }
    if let Some(vm) = vm::make(&site, engine)
        && let Some(chunk) = main.init_worker.clone()
    {
        vm.run_plain(&chunk);
    }
}

/// A loop ends.
pub(crate) fn stop(_: &HttpLoop) {
    for vm in vm::all() {
        if !vm.ended.get()
            && let Some(chunk) = vm.settings.exit_worker.clone()
        {
            vm.run_plain(&chunk);
        }
        vm.end();
    }
}
