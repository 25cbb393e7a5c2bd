//! The VMs of an event loop: found by configuration, created when they are first needed.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use ::stream::StreamSession;
use bstr::ByteSlice;
use host::error_log::{LogLevel, Logger};
use http::Request;

use crate::api;
use crate::chunk::{LuaChunk, ScriptKind};
use crate::run::{RunEnd, ScriptRun};
use crate::run_owner::RunOwner;
use crate::scope::RunScope;
use crate::scripts::{HttpScripts, StreamScripts};
use crate::settings::LuaMainConf;
use crate::shared_dict::SharedDict;
use crate::vm::{ChunkLoadError, LuaVm, PerRequestVm};
use crate::vm_configuration::{self, LuaSubsystem, VmConfiguration};

/// Which subsystem's configuration, and its generation.
type VmKey = (LuaSubsystem, u64);

rt::local! {
    // The generation being replaced and the current one are usually all; a linear search is fine.
    static MACHINES: RefCell<Vec<(VmKey, Rc<LuaVm>)>> = const { RefCell::new(Vec::new()) };
}

/// The VM of a configuration on this loop, if it has been created.
fn find_vm(key: VmKey) -> Option<Rc<LuaVm>> {
    MACHINES.with_borrow(|machines| {
        let found = machines.iter().find(|(of, _)| *of == key);
        found.map(|(_, vm)| Rc::clone(vm))
    })
}

/// The VM of the request's configuration on this loop, created when it is first needed: a
/// configuration without Lua never pays for one.
pub(crate) fn for_request(request: &mut Request) -> Option<Rc<LuaVm>> {
    let vm = match find_vm((LuaSubsystem::Http, request.site.generation)) {
        Some(vm) => vm,
        None => {
            let engine = http::current_loop::http_loop()?;
            let place = LoopEnvironment::for_request(engine.log(), engine.index, &engine.zones);
            create(vm_configuration::for_http_site(&request.site), &place)?
        }
    };
    if request.conf::<HttpScripts>().code_cache {
        return (!vm.init_failed.get()).then_some(vm);
    }
    // Subrequests that a script makes are handed their parent's VM (`api/capture.rs`); all others,
    // such as those of SSI, get one of their own.
    request.state_or_default::<PerRequestVm>().for_request(&vm)
}

/// The VM of the session's configuration on this loop; otherwise as for a request.
pub(crate) fn for_session(session: &mut StreamSession) -> Option<Rc<LuaVm>> {
    let vm = match find_vm((LuaSubsystem::Stream, session.site.generation)) {
        Some(vm) => vm,
        None => {
            let engine = &session.engine;
            let place = LoopEnvironment::for_request(engine.log(), engine.index, &engine.zones);
            create(vm_configuration::for_stream_site(&session.site), &place)?
        }
    };
    if session.conf::<StreamScripts>().code_cache {
        return (!vm.init_failed.get()).then_some(vm);
    }
    if session.state::<PerRequestVm>().is_none() {
        session.set_state(PerRequestVm::default());
    }
    session.state::<PerRequestVm>()?.for_request(&vm)
}

impl PerRequestVm {
    /// The VM of one request (`lua_code_cache off`), created at its first script and kept for the
    /// others.
    fn for_request(&self, vm: &LuaVm) -> Option<Rc<LuaVm>> {
        if let Some(own) = &*self.0.borrow() {
            return Some(Rc::clone(own));
        }
        let own = vm_with_api(
            &vm.settings,
            vm.log.clone(),
            vm.configuration.clone(),
            vm.index,
            vm.dictionaries.clone(),
        )?;
        own.reads_files_anew.set(true);
        // Its result is ignored: during development a broken `init_by_lua` is logged at each
        // request, and the request's own script still runs.
        own.initialize();
        *self.0.borrow_mut() = Some(Rc::clone(&own));
        Some(own)
    }
}

/// What a new VM takes from the loop it is created on.
pub(crate) struct LoopEnvironment<'a> {
    log: Logger,
    index: usize,
    zones: &'a host::engine::ZoneRegistry,
}

impl<'a> LoopEnvironment<'a> {
    /// For the loop of this number, with its error log and its shared memory zones.
    pub(crate) fn for_request(
        log: Logger,
        index: usize,
        zones: &'a host::engine::ZoneRegistry,
    ) -> LoopEnvironment<'a> {
        // Scripts see the loops of all worker groups as one list.
        let index = zones.first_loop() + index;
        LoopEnvironment { log, index, zones }
    }
}

/// Creates the VM of a configuration on this loop, and forgets those whose configuration is gone.
pub(crate) fn create(
    (settings, home, generation): (&LuaMainConf, VmConfiguration, u64),
    place: &LoopEnvironment<'_>,
) -> Option<Rc<LuaVm>> {
    let settings = Arc::new(settings.clone());
    let engine = home.subsystem();
    let dictionaries = dictionaries(&settings, engine, place.zones);
    let vm = vm_with_api(
        &settings,
        place.log.clone(),
        home,
        place.index,
        dictionaries,
    )?;
    MACHINES.with_borrow_mut(|machines| {
        machines.retain(|(_, vm)| !vm.configuration.is_retired());
        machines.push(((engine, generation), Rc::clone(&vm)));
    });
    // Kept all the same: otherwise each request would create it anew, and fail again.
    if !vm.initialize() {
        vm.init_failed.set(true);
    }
    Some(vm)
}

/// What must succeed before a configuration is accepted: `init_by_lua`. `None` without such a line.
///
/// nginx runs the code in its master and refuses the configuration when it fails. A trial runs it
/// in a child process (`weir/trial`), with empty dictionaries, so that nothing of it reaches the
/// server.
pub(crate) fn init_trial(
    settings: &LuaMainConf,
    engine: LuaSubsystem,
) -> Option<host::engine::ConfigurationTest> {
    settings.init.as_ref()?;
    let settings = settings.clone();
    Some(Box::new(move || {
        LuaVm::try_init(&settings, engine, &host::engine::ZoneRegistry::default())
    }))
}

/// The dictionaries of a configuration, found by name or created. As in nginx their content
/// survives a reload; one whose size has changed starts empty.
fn dictionaries(
    settings: &LuaMainConf,
    engine: LuaSubsystem,
    zones: &host::engine::ZoneRegistry,
) -> Vec<Arc<SharedDict>> {
    let wanted = settings.dictionaries.iter();
    wanted
        .map(|(name, size)| {
            let zone = &engine.zone(name);
            let known = zones.get_or_create(zone, || SharedDict::new(name, *size));
            if known.size == *size {
                return known;
            }
            // Scripts of the old configuration keep the old one until they end.
            let made = Arc::new(SharedDict::new(name, *size));
            zones.replace(zone, Arc::clone(&made));
            made
        })
        .collect()
}

/// All VMs of this loop and subsystem, those of replaced configurations included.
pub(crate) fn all_of_subsystem(engine: LuaSubsystem) -> Vec<Rc<LuaVm>> {
    MACHINES.with_borrow(|machines| {
        let of_engine = machines.iter().filter(|((of, _), _)| *of == engine);
        of_engine.map(|(_, vm)| Rc::clone(vm)).collect()
    })
}

/// A VM with the `ngx` API in it; nothing has run.
pub(crate) fn vm_with_api(
    settings: &Arc<LuaMainConf>,
    log: Logger,
    home: VmConfiguration,
    index: usize,
    dictionaries: Vec<Arc<SharedDict>>,
) -> Option<Rc<LuaVm>> {
    let vm = LuaVm::new(settings, log, home, index, dictionaries)?;
    api::install(&vm);
    Some(vm)
}

impl LuaVm {
    /// Runs `init_by_lua`; whether it succeeded.
    pub(crate) fn initialize(self: &Rc<LuaVm>) -> bool {
        match self.settings.init.clone() {
            Some(chunk) => matches!(
                self.run_without_request(&chunk),
                RunEnd::Completed(_) | RunEnd::Exit(0)
            ),
            None => true,
        }
    }

    /// Runs `init_by_lua` in a throwaway VM, away from any loop, and says why it failed. Unlike a
    /// check of the configuration it is given the real zones: what the code stores in a dictionary
    /// is there for the workers, as with nginx, where the master runs it before it forks.
    pub(crate) fn try_init(
        settings: &LuaMainConf,
        engine: LuaSubsystem,
        zones: &host::engine::ZoneRegistry,
    ) -> Result<(), String> {
        let dictionaries = dictionaries(settings, engine, zones);
        let Some(chunk) = &settings.init else {
            return Ok(());
        };
        let settings = Arc::new(settings.clone());
        let vm = vm_with_api(
            &settings,
            Logger::default(),
            VmConfiguration::Detached(engine),
            0,
            dictionaries,
        )
        .ok_or("no memory for a Lua VM")?;
        let scope = RunScope::of_vm(&vm, ScriptKind::Init);
        let function = vm
            .function(chunk, RunOwner::Server)
            .map_err(|unloaded| unloaded.message.to_str_lossy().into_owned())?;
        let mut run = ScriptRun::new(Rc::clone(&scope), &function, &settings.limits);
        match run.run_to_completion(RunOwner::Server) {
            RunEnd::Completed(_) | RunEnd::Exit(0) => Ok(()),
            _ => {
                let why = scope.failure.take().unwrap_or_default();
                Err(format!("init_by_lua error: {}", why.as_bstr()))
            }
        }
    }

    /// Runs a chunk that has no request and cannot wait: the `init` and `exit` scripts.
    pub(crate) fn run_without_request(self: &Rc<LuaVm>, chunk: &LuaChunk) -> RunEnd {
        let scope = RunScope::new(Rc::clone(self), chunk.kind, self.log.clone());
        match self.function(chunk, RunOwner::Server) {
            Ok(function) => ScriptRun::new(scope, &function, &self.settings.limits)
                .of_chunk(chunk)
                .run_to_completion(RunOwner::Server),
            Err(ChunkLoadError { message, .. }) => {
                self.log
                    .log_plain(LogLevel::Error, format_args!("{}", message.as_bstr()));
                RunEnd::Failed
            }
        }
    }
}
