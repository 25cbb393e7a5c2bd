//! One Lua machine for each loop and each generation of the configuration.
//!
//! A reload makes new machines, as nginx's new workers have; the old ones go when the last request of their generation
//! has ended.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use ::stream::Session;
use base::Lru;
use bstr::ByteSlice;
use http::Request;
use rt::error_log::{Level, Logger};

use crate::api::{self, Pattern, Pools};
use crate::chunk::{Chunk, Kind, Source, without_shebang};
use crate::dictionary::Dictionary;
use crate::directives::Code;
use crate::home::{self, Engine, Home};
use crate::luajit::{Ref, State};
use crate::pcre::Matcher;
use crate::run::{End, Run};
use crate::scope::{Guest, Scope};
use crate::settings::Main;
use crate::stream::StreamCode;

/// A chunk's name and its code.
type NamedCode = (String, Vec<u8>);

/// How many contexts of handshakes are kept.
const MAX_HANDSHAKES: usize = 16_384;

/// A machine.
pub(crate) struct Vm {
    pub(crate) state: Rc<State>,
    pub(crate) settings: Arc<Main>,
    /// Main's error log.
    pub(crate) log: Logger,
    /// The configuration it belongs to.
    pub(crate) home: Home,
    /// The loop's number.
    pub(crate) index: usize,
    /// Compiled functions by the number of their chunk in the configuration.
    functions: RefCell<Vec<Option<Rc<Ref>>>>,
    /// Compiled functions by name and code: the same code twice is one function.
    by_content: RefCell<HashMap<NamedCode, Rc<Ref>>>,
    /// Compiled regular expressions, by options and pattern.
    pub(crate) patterns: RefCell<Lru<Vec<u8>, Rc<Pattern>>>,
    /// What those share.
    pub(crate) matcher: Rc<Matcher>,
    /// `ngx.ctx` of handshakes, by the numbers of their connections.
    pub(crate) handshakes: RefCell<Lru<u64, Rc<Ref>>>,
    /// Idle connections of scripts' sockets.
    pub(crate) pools: Rc<Pools>,
    /// `lua_shared_dict`.
    pub(crate) dictionaries: Vec<Arc<Dictionary>>,
    /// The number of the next light thread; the scripts themselves are 0.
    pub(crate) next_thread: Cell<usize>,
    /// Timers that wait, and those that run.
    pub(crate) timers_pending: Cell<u32>,
    pub(crate) timers_running: Cell<u32>,
    /// Set when the loop or the configuration ends: timers run at once, told that it is before their time.
    pub(crate) ending: rt::sync::Notify,
    pub(crate) ended: Cell<bool>,
    /// It belongs to one request: files are read anew.
    fresh: Cell<bool>,
    /// `init_by_lua` failed: nothing runs.
    broken: Cell<bool>,
}

/// Which configuration a machine is for.
type Key = (Engine, u64);

thread_local! {
    static MACHINES: RefCell<Vec<(Key, Rc<Vm>)>> = const { RefCell::new(Vec::new()) };
}

fn known(key: Key) -> Option<Rc<Vm>> {
    MACHINES.with_borrow(|machines| {
        let found = machines.iter().find(|(of, _)| *of == key);
        found.map(|(_, vm)| Rc::clone(vm))
    })
}

/// The machine of the request's configuration on this loop, made at its first use.
pub(crate) fn of(request: &mut Request) -> Option<Rc<Vm>> {
    let vm = match known((Engine::Http, request.site.generation)) {
        Some(vm) => vm,
        None => {
            let engine = http::current::engine()?;
            let place = Place::of(&engine.log, engine.index, &engine.zones);
            make(home::of_http(&request.site), &place)?
        }
    };
    if request.conf::<Code>().code_cache {
        return (!vm.broken.get()).then_some(vm);
    }
    // Without a cache each request has a machine of its own, a subrequest too where no script has asked for it.
    request.state_or_default::<Own>().of(&vm)
}

/// The machine of the session's configuration on this loop, likewise.
pub(crate) fn of_session(session: &mut Session) -> Option<Rc<Vm>> {
    let vm = match known((Engine::Stream, session.site.generation)) {
        Some(vm) => vm,
        None => {
            let engine = &session.engine;
            let place = Place::of(&engine.log, engine.index, &engine.zones);
            make(home::of_stream(&session.site), &place)?
        }
    };
    if session.conf::<StreamCode>().code_cache {
        return (!vm.broken.get()).then_some(vm);
    }
    if session.state::<Own>().is_none() {
        session.set_state(Own::default());
    }
    session.state::<Own>()?.of(&vm)
}

/// The machine that a request has to itself.
#[derive(Clone, Default)]
pub(crate) struct Own(RefCell<Option<Rc<Vm>>>);

impl Own {
    fn of(&self, vm: &Vm) -> Option<Rc<Vm>> {
        if let Some(own) = &*self.0.borrow() {
            return Some(Rc::clone(own));
        }
        let own = Vm::new(
            &vm.settings,
            vm.log.clone(),
            vm.home.clone(),
            vm.index,
            vm.dictionaries.clone(),
        )?;
        own.fresh.set(true);
        own.initialize();
        *self.0.borrow_mut() = Some(Rc::clone(&own));
        Some(own)
    }
}

/// The loop that a machine is made on.
pub(crate) struct Place<'a> {
    log: &'a Logger,
    index: usize,
    zones: &'a rt::engine::Zones,
}

impl<'a> Place<'a> {
    /// A loop of this number, with its error log and its zones.
    pub(crate) fn of(log: &'a Logger, index: usize, zones: &'a rt::engine::Zones) -> Place<'a> {
        Place { log, index, zones }
    }
}

/// Makes the machine of a configuration on this loop, and forgets those whose configuration is gone.
pub(crate) fn make(
    (settings, home, generation): (&Main, Home, u64),
    place: &Place<'_>,
) -> Option<Rc<Vm>> {
    let settings = Arc::new(settings.clone());
    let engine = home.engine();
    let dictionaries = dictionaries(&settings, engine, place.zones);
    let vm = Vm::new(
        &settings,
        place.log.clone(),
        home,
        place.index,
        dictionaries,
    )?;
    MACHINES.with_borrow_mut(|machines| {
        machines.retain(|(_, vm)| !vm.home.is_gone());
        machines.push(((engine, generation), Rc::clone(&vm)));
    });
    if !vm.initialize() {
        vm.broken.set(true);
    }
    Some(vm)
}

/// What has to be tried before a configuration is taken on: whether `init_by_lua` goes well.
pub(crate) fn trial(settings: &Main, engine: Engine) -> Option<rt::engine::Trial> {
    settings.init.as_ref()?;
    let settings = settings.clone();
    Some(Box::new(move || {
        Vm::trial(&settings, engine, &rt::engine::Zones::default())
    }))
}

/// The dictionaries of a configuration: found by name, or made. One whose size has changed begins anew.
fn dictionaries(
    settings: &Main,
    engine: Engine,
    zones: &rt::engine::Zones,
) -> Vec<Arc<Dictionary>> {
    let wanted = settings.dictionaries.iter();
    wanted
        .map(|(name, size)| {
            let zone = &engine.zone(name);
            let known = zones.get_or_create(zone, || Dictionary::new(name, *size));
            if known.size == *size {
                return known;
            }
            let made = Arc::new(Dictionary::new(name, *size));
            zones.replace(zone, Arc::clone(&made));
            made
        })
        .collect()
}

/// Every machine of this loop that runs scripts of this engine.
pub(crate) fn all(engine: Engine) -> Vec<Rc<Vm>> {
    MACHINES.with_borrow(|machines| {
        let of_engine = machines.iter().filter(|((of, _), _)| *of == engine);
        of_engine.map(|(_, vm)| Rc::clone(vm)).collect()
    })
}

impl Vm {
    /// A machine with the API in it and nothing else.
    pub(crate) fn new(
        settings: &Arc<Main>,
        log: Logger,
        home: Home,
        index: usize,
        dictionaries: Vec<Arc<Dictionary>>,
    ) -> Option<Rc<Vm>> {
        let state = State::new(settings.memory_limit)?;
        let vm = Rc::new(Vm {
            state,
            settings: Arc::clone(settings),
            log,
            home,
            index,
            functions: RefCell::default(),
            by_content: RefCell::default(),
            patterns: RefCell::new(Lru::new(
                usize::try_from(settings.regex_cache_entries)
                    .unwrap_or(1)
                    .max(1),
            )),
            handshakes: RefCell::new(Lru::new(MAX_HANDSHAKES)),
            matcher: Matcher::new(u32::try_from(settings.regex_match_limit).unwrap_or(u32::MAX)),
            pools: Rc::default(),
            dictionaries,
            next_thread: Cell::new(1),
            timers_pending: Cell::new(0),
            timers_running: Cell::new(0),
            ending: rt::sync::Notify::new(),
            ended: Cell::new(false),
            fresh: Cell::new(false),
            broken: Cell::new(false),
        });
        api::install(&vm);
        Some(vm)
    }

    /// Runs `init_by_lua`; whether it went well.
    pub(crate) fn initialize(self: &Rc<Vm>) -> bool {
        match self.settings.init.clone() {
            Some(chunk) => matches!(self.run_plain(&chunk), End::Through(_) | End::Exit(0)),
            None => true,
        }
    }

    /// Whether `init_by_lua` goes well: tried before a configuration is taken on. Not on a loop.
    pub(crate) fn trial(
        settings: &Main,
        engine: Engine,
        zones: &rt::engine::Zones,
    ) -> Result<(), String> {
        let dictionaries = dictionaries(settings, engine, zones);
        let Some(chunk) = &settings.init else {
            return Ok(());
        };
        let settings = Arc::new(settings.clone());
        let vm = Vm::new(
            &settings,
            Logger::default(),
            Home::Nowhere(engine),
            0,
            dictionaries,
        )
        .ok_or("no memory for a Lua VM")?;
        let scope = vm.scope(Kind::Init);
        let function = vm
            .function(chunk, Guest::Nobody)
            .map_err(|unloaded| unloaded.message.to_str_lossy().into_owned())?;
        let mut run = Run::new(Rc::clone(&scope), &function, &settings.limits);
        match run.finish_now(Guest::Nobody) {
            End::Through(_) | End::Exit(0) => Ok(()),
            _ => {
                let why = scope.failure.take().unwrap_or_default();
                Err(format!("init_by_lua error: {}", why.as_bstr()))
            }
        }
    }

    /// Runs a chunk that has no request and can not wait.
    pub(crate) fn run_plain(self: &Rc<Vm>, chunk: &Chunk) -> End {
        let scope = Scope::new(Rc::clone(self), chunk.kind, self.log.clone());
        match self.function(chunk, Guest::Nobody) {
            Ok(function) => {
                Run::new(scope, &function, &self.settings.limits).finish_now(Guest::Nobody)
            }
            Err(Unloaded { message, .. }) => {
                self.log
                    .plain(Level::Error, format_args!("{}", message.as_bstr()));
                End::Failed
            }
        }
    }

    /// The function that a chunk compiles to. `guest` is who needs it, for names that are made of variables.
    pub(crate) fn function(&self, chunk: &Chunk, guest: Guest<'_>) -> Result<Rc<Ref>, Unloaded> {
        let number = chunk.number as usize;
        if let Some(Some(known)) = self.functions.borrow().get(number) {
            return Ok(Rc::clone(known));
        }
        match &chunk.source {
            Source::Text(code) => self.compiled(chunk, &chunk.name, code, true),
            Source::File(path, _) if self.fresh.get() => {
                let code = read(path)?;
                self.compiled(chunk, &chunk.name, &code, false)
            }
            Source::File(_, code) => self.compiled(chunk, &chunk.name, code, true),
            Source::Named(expression) => {
                let name = match guest {
                    Guest::Nobody => {
                        return Err(b"the name of the file needs a request".to_vec().into());
                    }
                    Guest::Request(request) => request.value(expression),
                    Guest::Session(session) => session.value(expression),
                };
                let path = self.settings.prefix.join(name.to_path_lossy());
                let shown = path.display().to_string();
                let key = (path.display().to_string(), Vec::new());
                if let Some(known) = self.by_content.borrow().get(&key) {
                    return Ok(Rc::clone(known));
                }
                let code = read(&path)?;
                let function = self.compiled(chunk, &shown, &code, false)?;
                let mut known = self.by_content.borrow_mut();
                if known.len() < MAX_FUNCTIONS {
                    known.insert(key, Rc::clone(&function));
                }
                Ok(function)
            }
        }
    }

    fn compiled(
        &self,
        chunk: &Chunk,
        name: &str,
        code: &[u8],
        keep: bool,
    ) -> Result<Rc<Ref>, Unloaded> {
        let key = (name.to_owned(), code.to_vec());
        let known = self.by_content.borrow().get(&key).cloned();
        let function = match known {
            Some(known) => known,
            None => {
                let stack = self.state.stack();
                stack.load(without_shebang(code), name)?;
                Rc::new(Ref::take(&self.state, &stack))
            }
        };
        if keep {
            self.by_content
                .borrow_mut()
                .insert(key, Rc::clone(&function));
            let mut functions = self.functions.borrow_mut();
            let number = chunk.number as usize;
            if functions.len() <= number {
                functions.resize(number + 1, None);
            }
            functions[number] = Some(Rc::clone(&function));
        }
        Ok(function)
    }

    /// A scope for a chunk of this machine.
    pub(crate) fn scope(self: &Rc<Vm>, kind: Kind) -> Rc<Scope> {
        Scope::new(Rc::clone(self), kind, self.log.clone())
    }

    /// The configuration or the loop ends.
    pub(crate) fn end(&self) {
        self.ended.set(true);
        self.ending.notify_all();
    }
}

/// How many functions of files with names made of variables a machine keeps.
const MAX_FUNCTIONS: usize = 1000;

/// Reads a file of code. Waits for the disk: for files that are read while their configuration serves, which happens
/// once for each, or always when `lua_code_cache` is off, which is for development.
fn read(path: &std::path::Path) -> Result<Vec<u8>, Unloaded> {
    std::fs::read(path).map_err(|error| {
        rt::sandbox::note_refusal(path, &error);
        let shown = path.display();
        let message =
            format!("failed to load external Lua file \"{shown}\": cannot open {shown}: {error}");
        Unloaded {
            message: message.into_bytes(),
            status: 404,
        }
    })
}

/// Why there is no function of a chunk.
pub(crate) struct Unloaded {
    pub(crate) message: Vec<u8>,
    /// What a request that wanted it is answered.
    pub(crate) status: u16,
}

impl From<Vec<u8>> for Unloaded {
    fn from(message: Vec<u8>) -> Unloaded {
        let status = 500;
        Unloaded { message, status }
    }
}
