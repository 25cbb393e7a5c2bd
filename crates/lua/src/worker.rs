//! What happens on a loop when a configuration begins and ends: `init_by_lua`, `init_worker_by_lua`,
//! `exit_worker_by_lua`.

use ::stream::engine::StreamLoop;
use http::engine::HttpLoop;

use crate::home::{self, Engine, Home};
use crate::settings::Main;
use crate::vm::{self, Place};

/// A loop begins to serve a configuration of http.
pub(crate) fn start(engine: &HttpLoop) {
    let place = Place::of(&engine.log, engine.index, &engine.zones);
    begin(home::of_http(&engine.site()), &place);
}

/// A loop begins to serve a configuration of stream.
pub(crate) fn start_stream(engine: &StreamLoop) {
    let place = Place::of(&engine.log, engine.index, &engine.zones);
    begin(home::of_stream(&engine.site()), &place);
}

fn begin(of: (&Main, Home, u64), place: &Place<'_>) {
    // The timers of the former configurations run now, told that it is before their time.
    for former in vm::all(of.1.engine()) {
        former.end();
    }
    let main = of.0;
    if main.init.is_none() && main.init_worker.is_none() && main.exit_worker.is_none() {
        // The machine is made when a script is first run.
        return;
    }
    let init_worker = main.init_worker.clone();
    if let Some(vm) = vm::make(of, place)
        && let Some(chunk) = init_worker
    {
        vm.run_plain(&chunk);
    }
}

/// A loop of http ends.
pub(crate) fn stop(_: &HttpLoop) {
    end(Engine::Http);
}

/// A loop of stream ends.
pub(crate) fn stop_stream(_: &StreamLoop) {
    end(Engine::Stream);
}

fn end(engine: Engine) {
    for vm in vm::all(engine) {
        if !vm.ended.get()
            && let Some(chunk) = vm.settings.exit_worker.clone()
        {
            vm.run_plain(&chunk);
        }
        vm.end();
    }
}
