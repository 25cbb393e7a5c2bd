//! One Lua machine for each loop and each generation of the configuration.
//!
//! A reload makes new machines, as nginx's new workers have; the old ones go when the last request of their generation
//! has ended.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use base::Lru;
use bstr::ByteSlice;
use http::Request;
use http::engine::HttpLoop;
use http::site::Site;
use rt::error_log::{Level, Logger};

use crate::api::{self, Pattern, Pools};
use crate::chunk::{Chunk, Kind, Source, without_shebang};
use crate::dictionary::Dictionary;
use crate::directives::{Code, Main};
use crate::luajit::{Ref, State};
use crate::run::{End, Run};
use crate::scope::Scope;

/// A chunk's name and its code.
type NamedCode = (String, Vec<u8>);

/// A machine.
pub(crate) struct Vm {
    pub(crate) state: Rc<State>,
    pub(crate) settings: Arc<Main>,
    /// Main's error log.
    pub(crate) log: Logger,
    /// The configuration it belongs to.
    pub(crate) site: Weak<Site>,
    /// The loop's number.
    pub(crate) index: usize,
    /// Compiled functions by the number of their chunk in the configuration.
    functions: RefCell<Vec<Option<Rc<Ref>>>>,
    /// Compiled functions by name and code: the same code twice is one function.
    by_content: RefCell<HashMap<NamedCode, Rc<Ref>>>,
    /// Compiled regular expressions, by options and pattern.
    pub(crate) patterns: RefCell<Lru<Vec<u8>, Rc<Pattern>>>,
    /// Idle connections of scripts' sockets.
    pub(crate) pools: Rc<Pools>,
    /// `lua_shared_dict`.
    pub(crate) dictionaries: Vec<Arc<Dictionary>>,
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

thread_local! {
    static MACHINES: RefCell<Vec<(u64, Rc<Vm>)>> = const { RefCell::new(Vec::new()) };
}

/// The machine of the request's configuration on this loop, made at its first use.
pub(crate) fn of(request: &Request) -> Option<Rc<Vm>> {
    let generation = request.site.generation;
    let known = MACHINES.with_borrow(|machines| {
        machines
            .iter()
            .find(|(of, _)| *of == generation)
            .map(|(_, vm)| Rc::clone(vm))
    });
    match known {
        Some(vm) => usable(request, vm),
        None => {
            let engine = http::current::engine()?;
            usable(request, make(&request.site, &engine)?)
        }
    }
}

fn usable(request: &Request, vm: Rc<Vm>) -> Option<Rc<Vm>> {
    match request.conf::<Code>().code_cache {
        true => (!vm.broken.get()).then_some(vm),
        // Without a cache each request has a machine of its own.
        false => own(request, &vm),
    }
}

/// The machine that a request has to itself.
#[derive(Default)]
struct Own(RefCell<Option<Rc<Vm>>>);

fn own(request: &Request, of: &Vm) -> Option<Rc<Vm>> {
    let own: Rc<Own> = request.shared();
    if let Some(vm) = &*own.0.borrow() {
        return Some(Rc::clone(vm));
    }
    let vm = Vm::new(
        &of.settings,
        of.log.clone(),
        of.site.clone(),
        of.index,
        of.dictionaries.clone(),
    )?;
    vm.fresh.set(true);
    vm.initialize();
    *own.0.borrow_mut() = Some(Rc::clone(&vm));
    Some(vm)
}

/// Makes the machine of a configuration on this loop, and forgets those whose configuration is gone.
pub(crate) fn make(site: &Rc<Site>, engine: &HttpLoop) -> Option<Rc<Vm>> {
    let settings = Arc::new(site.main_confs.get::<Main>().clone());
    let vm = Vm::new(
        &settings,
        engine.log.clone(),
        Rc::downgrade(site),
        engine.index,
        dictionaries(&settings, &engine.zones),
    )?;
    MACHINES.with_borrow_mut(|machines| {
        machines.retain(|(_, vm)| vm.site.strong_count() > 0);
        machines.push((site.generation, Rc::clone(&vm)));
    });
    if !vm.initialize() {
        vm.broken.set(true);
    }
    Some(vm)
}

/// The dictionaries of a configuration: found by name, or made. One whose size has changed begins anew.
pub(crate) fn dictionaries(settings: &Main, zones: &rt::engine::Zones) -> Vec<Arc<Dictionary>> {
    let wanted = settings.dictionaries.iter();
    wanted
        .map(|(name, size)| {
            let known = zones.get_or_create(name, || Dictionary::new(name, *size));
            if known.size == *size {
                return known;
            }
            let made = Arc::new(Dictionary::new(name, *size));
            zones.replace(name, Arc::clone(&made));
            made
        })
        .collect()
}

/// Every machine of this loop.
pub(crate) fn all() -> Vec<Rc<Vm>> {
    MACHINES.with_borrow(|machines| machines.iter().map(|(_, vm)| Rc::clone(vm)).collect())
}

impl Vm {
    /// A machine with the API in it and nothing else.
    pub(crate) fn new(
        settings: &Arc<Main>,
        log: Logger,
        site: Weak<Site>,
        index: usize,
        dictionaries: Vec<Arc<Dictionary>>,
    ) -> Option<Rc<Vm>> {
        let state = State::new(settings.memory_limit)?;
        let vm = Rc::new(Vm {
            state,
            settings: Arc::clone(settings),
            log,
            site,
            index,
            functions: RefCell::default(),
            by_content: RefCell::default(),
            patterns: RefCell::new(Lru::new(
                usize::try_from(settings.regex_cache_entries)
                    .unwrap_or(1)
                    .max(1),
            )),
            pools: Rc::default(),
            dictionaries,
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
    pub(crate) fn trial(settings: &Main, zones: &rt::engine::Zones) -> Result<(), String> {
        let dictionaries = dictionaries(settings, zones);
        let Some(chunk) = &settings.init else {
            return Ok(());
        };
        let settings = Arc::new(settings.clone());
        let vm = Vm::new(&settings, Logger::default(), Weak::new(), 0, dictionaries)
            .ok_or("no memory for a Lua machine")?;
        let scope = vm.scope(Kind::Init);
        let function = vm
            .function(chunk, None)
            .map_err(|message| message.to_str_lossy().into_owned())?;
        let mut run = Run::new(Rc::clone(&scope), &function, &settings.limits);
        match run.finish_now(None) {
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
        match self.function(chunk, None) {
            Ok(function) => Run::new(scope, &function, &self.settings.limits).finish_now(None),
            Err(message) => {
                self.log
                    .plain(Level::Error, format_args!("{}", message.as_bstr()));
                End::Failed
            }
        }
    }

    /// The function that a chunk compiles to. `request` is who needs it, for names that are made of variables.
    pub(crate) fn function(
        &self,
        chunk: &Chunk,
        request: Option<&mut Request>,
    ) -> Result<Rc<Ref>, Vec<u8>> {
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
                let Some(request) = request else {
                    return Err(b"the name of the file needs a request".to_vec());
                };
                let name = request.value(expression);
                let path = request.site.prefix.join(name.to_path_lossy());
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
    ) -> Result<Rc<Ref>, Vec<u8>> {
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
fn read(path: &std::path::Path) -> Result<Vec<u8>, Vec<u8>> {
    std::fs::read(path).map_err(|error| {
        format!(
            "failed to load external Lua file \"{}\": {error}",
            path.display()
        )
        .into_bytes()
    })
}
