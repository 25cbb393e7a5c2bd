//! One Lua virtual machine (VM) for each event loop and each generation of the configuration.
//!
//! nginx gives each worker process a VM. Here an event loop stands for a worker, so each loop has
//! its own: scripts that keep state in module-level variables see exactly what they see in nginx,
//! and no lock is ever taken to run Lua. A reload creates new VMs, as nginx's new workers do; an
//! old one is dropped when the last request of its generation has ended.
//!
//! With `lua_code_cache off` each request gets a VM of its own, which reads every file again.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use base::Lru;
use bstr::ByteSlice;
use host::error_log::Logger;

use crate::api::CosocketPools;
use crate::chunk::{ChunkSource, LuaChunk, without_shebang};
use crate::luajit::{LuaState, RegistryRef};
use crate::pcre::{CompiledRegex, MatchContext};
use crate::run_owner::RunOwner;
use crate::settings::LuaMainConf;
use crate::shared_dict::SharedDict;
use crate::vm_configuration::VmConfiguration;

/// A chunk's name and its code. The name is part of the key because Lua bakes it into the compiled
/// function, which shows it in error messages.
type NamedCode = (String, Vec<u8>);

/// How many handshake contexts (`ngx.ctx` of `ssl_*_by_lua`) are kept. The oldest is evicted: a
/// handshake that is never followed by a request would otherwise leave its table behind for good.
const MAX_HANDSHAKES: usize = 16_384;

/// A Lua VM with everything that its scripts share.
pub(crate) struct LuaVm {
    /// The heap itself; closed when the last reference into it is gone.
    pub(crate) state: Rc<LuaState>,
    /// The settings of the `http` or `stream` block.
    pub(crate) settings: Arc<LuaMainConf>,
    /// The error log of the `http` or `stream` block, for scripts that have no request.
    pub(crate) log: Logger,
    /// The configuration it serves. A weak reference: the VM must not keep its configuration alive.
    pub(crate) configuration: VmConfiguration,
    /// The number of its event loop: `ngx.worker.id()`.
    pub(crate) index: usize,
    /// Compiled functions by the number of their chunk: the lookup that each request makes.
    functions: RefCell<Vec<Option<Rc<RegistryRef>>>>,
    /// Compiled functions by name and code: the same code in many locations is compiled once.
    functions_by_content: RefCell<HashMap<NamedCode, Rc<RegistryRef>>>,
    /// Compiled regular expressions by options and pattern: the `o` flag of `ngx.re`.
    pub(crate) patterns: RefCell<Lru<Vec<u8>, Rc<CompiledRegex>>>,
    /// What those share: the match limit and the JIT stack.
    pub(crate) matcher: Rc<MatchContext>,
    /// `ngx.ctx` of TLS handshakes, by connection number, for the requests that follow to inherit.
    pub(crate) handshakes: RefCell<Lru<u64, Rc<RegistryRef>>>,
    /// Idle cosocket connections (`setkeepalive`).
    pub(crate) pools: Rc<CosocketPools>,
    /// `lua_shared_dict`.
    pub(crate) dictionaries: Vec<Arc<SharedDict>>,
    /// The number of the next light thread. The main coroutine of every run is number 0.
    pub(crate) next_thread: Cell<usize>,
    /// Timers that wait (bounded by `lua_max_pending_timers`), and those whose function runs
    /// (`lua_max_running_timers`).
    pub(crate) timers_pending: Cell<u32>,
    pub(crate) timers_running: Cell<u32>,
    /// Notified when the loop or the configuration ends. Pending timers then fire at once with the
    /// argument `premature` set, as in lua-nginx-module.
    pub(crate) shutdown: rt::sync::Notify,
    /// That has happened: `ngx.worker.exiting()`.
    pub(crate) is_shut_down: Cell<bool>,
    /// It belongs to one request (`lua_code_cache off`): files are read again.
    pub(crate) reads_files_anew: Cell<bool>,
    /// `init_by_lua` failed. Requests are answered with 500 rather than run scripts whose globals
    /// were never set up.
    pub(crate) init_failed: Cell<bool>,
}

impl LuaVm {
    /// A VM with the API installed and nothing else. `None`: out of memory.
    pub(crate) fn new(
        settings: &Arc<LuaMainConf>,
        log: Logger,
        home: VmConfiguration,
        index: usize,
        dictionaries: Vec<Arc<SharedDict>>,
    ) -> Option<Rc<LuaVm>> {
        let state = LuaState::new(settings.memory_limit)?;
        Some(Rc::new(LuaVm {
            state,
            settings: Arc::clone(settings),
            log,
            configuration: home,
            index,
            functions: RefCell::default(),
            functions_by_content: RefCell::default(),
            patterns: RefCell::new(Lru::new(
                usize::try_from(settings.regex_cache_entries)
                    .unwrap_or(1)
                    .max(1),
            )),
            handshakes: RefCell::new(Lru::new(MAX_HANDSHAKES)),
            matcher: MatchContext::new(
                u32::try_from(settings.regex_match_limit).unwrap_or(u32::MAX),
            ),
            pools: Rc::default(),
            dictionaries,
            next_thread: Cell::new(1),
            timers_pending: Cell::new(0),
            timers_running: Cell::new(0),
            shutdown: rt::sync::Notify::new(),
            is_shut_down: Cell::new(false),
            reads_files_anew: Cell::new(false),
            init_failed: Cell::new(false),
        }))
    }

    /// The function that a chunk compiles to. `guest` evaluates file names that contain variables.
    pub(crate) fn function(
        &self,
        chunk: &LuaChunk,
        guest: RunOwner<'_>,
    ) -> Result<Rc<RegistryRef>, ChunkLoadError> {
        let number = chunk.number as usize;
        if let Some(Some(known)) = self.functions.borrow().get(number) {
            return Ok(Rc::clone(known));
        }
        match &chunk.source {
            ChunkSource::Inline(code) => self.compile(chunk, &chunk.name, code, true),
            // The copy that was read with the configuration would be out of date: that is what
            // `lua_code_cache off` is for.
            ChunkSource::File(path, _) if self.reads_files_anew.get() => {
                let code = read_code(path)?;
                self.compile(chunk, &chunk.name, &code, false)
            }
            ChunkSource::File(_, code) => self.compile(chunk, &chunk.name, code, true),
            ChunkSource::ByVariables(expression) => {
                let name = match guest {
                    RunOwner::Server => {
                        return Err(b"the name of the file needs a request".to_vec().into());
                    }
                    RunOwner::Request(request) => request.value(expression),
                    RunOwner::Session(session) => session.value(expression),
                };
                let path = self.settings.prefix.join(name.to_path_lossy());
                let shown = path.display().to_string();
                // An empty code stands for "the file of this name": what it contains is not known
                // before it is read, and reading is what the cache saves.
                let key = (path.display().to_string(), Vec::new());
                if let Some(known) = self.functions_by_content.borrow().get(&key) {
                    return Ok(Rc::clone(known));
                }
                let code = read_code(&path)?;
                let function = self.compile(chunk, &shown, &code, false)?;
                let mut known = self.functions_by_content.borrow_mut();
                // Clients may influence the variables in the name; beyond the bound a file is
                // compiled for each request instead of taking more memory.
                if known.len() < MAX_FUNCTIONS {
                    known.insert(key, Rc::clone(&function));
                }
                Ok(function)
            }
        }
    }

    /// Compiles a chunk, or finds the function of the same name and code. `keep` also remembers it
    /// under the chunk's number.
    fn compile(
        &self,
        chunk: &LuaChunk,
        name: &str,
        code: &[u8],
        keep: bool,
    ) -> Result<Rc<RegistryRef>, ChunkLoadError> {
        let key = (name.to_owned(), code.to_vec());
        let known = self.functions_by_content.borrow().get(&key).cloned();
        let function = match known {
            Some(known) => known,
            None => {
                let stack = self.state.stack();
                stack.load(without_shebang(code), name)?;
                Rc::new(RegistryRef::take(&self.state, &stack))
            }
        };
        if keep {
            self.functions_by_content
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

    /// The configuration was replaced, or the loop ends: wakes the timers.
    pub(crate) fn shut_down(&self) {
        self.is_shut_down.set(true);
        self.shutdown.notify_all();
    }
}

/// How many functions of files with variables in their names a VM keeps.
const MAX_FUNCTIONS: usize = 1000;

/// Reads a file of Lua code, and blocks the loop while it does. That happens once for each file
/// whose name contains variables, or for every request with `lua_code_cache off`, which is for
/// development.
fn read_code(path: &std::path::Path) -> Result<Vec<u8>, ChunkLoadError> {
    std::fs::read(path).map_err(|error| {
        rt::sandbox::note_refusal(path, &error);
        let shown = path.display();
        let message =
            format!("failed to load external Lua file \"{shown}\": cannot open {shown}: {error}");
        ChunkLoadError {
            message: message.into_bytes(),
            status: 404,
        }
    })
}

/// Why there is no function for a chunk.
pub(crate) struct ChunkLoadError {
    pub(crate) message: Vec<u8>,
    /// The status of the request that needed it: 404 when the file is missing, as in
    /// lua-nginx-module, 500 when it does not compile.
    pub(crate) status: u16,
}

impl From<Vec<u8>> for ChunkLoadError {
    fn from(message: Vec<u8>) -> ChunkLoadError {
        let status = 500;
        ChunkLoadError { message, status }
    }
}

/// The VM that one request has to itself, with `lua_code_cache off`.
#[derive(Clone, Default)]
pub(crate) struct PerRequestVm(pub(crate) RefCell<Option<Rc<LuaVm>>>);
