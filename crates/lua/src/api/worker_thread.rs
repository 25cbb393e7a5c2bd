//! `ngx.run_worker_thread`: Lua code that blocks, on a thread of a named pool.
//!
//! Each thread of a pool has a VM of its own, without requests and cosockets. Arguments and results
//! are copied between VMs; what has no meaning outside of its own, such as a function, cannot be
//! passed.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bstr::ByteSlice;

use super::called::answer;
use super::{CallResult, NativeTable, wait};
use crate::chunk::ScriptKind as Script;
use crate::loop_vms;
use crate::luajit::stack::{GLOBALS, LuaType};
use crate::luajit::{LuaCoroutine, LuaStack, LuaValue, RegistryRef, fail};
use crate::operation::YieldOperation;
use crate::run::{RunEnd, ScriptRun};
use crate::run_owner::RunOwner;
use crate::scope::{self, RunScope};
use crate::settings::LuaMainConf;
use crate::shared_dict::SharedDict;
use crate::vm::LuaVm;
use crate::vm_configuration::{LuaSubsystem, VmConfiguration};

pub(super) const FUNCTIONS: NativeTable = &[("run_worker_thread", run)];

/// A value without ties to a VM, which can be passed from one to another. What has none of these
/// forms, such as a function, cannot.
#[derive(Clone, Debug)]
enum PortableValue {
    Nil,
    Boolean(bool),
    Number(f64),
    Bytes(Vec<u8>),
    Table(Vec<(PortableValue, PortableValue)>),
}

/// How deep tables may be nested. A deeper one is taken for a cycle, as in lua-nginx-module.
const MAX_DEPTH: u32 = 100;

/// How many jobs are running or queued in this process. lua-nginx-module limits its VMs
/// (`lua_worker_thread_vm_pool_size`); here each thread has one, so the jobs are limited.
static AT_WORK: AtomicUsize = AtomicUsize::new(0);

/// Counts a job until it is dropped.
struct JobPermit;

impl JobPermit {
    /// `None` if there are `limit` already.
    fn new(limit: Option<usize>) -> Option<JobPermit> {
        // Counted first and given back if it is one too many: two loops that ask at the same moment
        // must not both get the last place.
        let before = AT_WORK.fetch_add(1, Ordering::Relaxed);
        let counted = JobPermit;
        limit.is_none_or(|limit| before < limit).then_some(counted)
    }
}

impl Drop for JobPermit {
    fn drop(&mut self) {
        AT_WORK.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns false and a message: this function's convention for errors.
fn refuse(stack: &LuaStack, message: impl Into<Vec<u8>>) -> CallResult {
    answer(
        stack,
        vec![LuaValue::Boolean(false), LuaValue::Bytes(message.into())],
    )
}

/// `ngx.run_worker_thread(pool, module, function, ...)`: success, results.
fn run(stack: &LuaStack) -> CallResult {
    if stack.top() < 3 {
        return refuse(stack, "expecting at least 3 arguments");
    }
    let Some(name) = stack.text(1) else {
        return refuse(stack, "threadpool should be a string");
    };
    let Some(pool) = rt::pool::get(&name.to_str_lossy()) else {
        let name = name.as_bstr();
        return refuse(stack, format!("thread pool {name} not found"));
    };
    let Some(module) = stack.text(2) else {
        return refuse(stack, "module name should be a string");
    };
    let Some(function) = stack.text(3) else {
        return refuse(stack, "function name should be a string");
    };
    let (vm, kind) = scope::with(|scope| (Rc::clone(&scope.vm), scope.kind))?;
    if !kind.may_yield() {
        return fail(format!("API disabled in the context of {}*", kind.name()));
    }
    // Each call occupies a VM (`lua_worker_thread_vm_pool_size`); beyond the limit it fails at
    // once instead of waiting.
    let Some(counted) = JobPermit::new(vm.settings.worker_thread_vms) else {
        return refuse(stack, "no available Lua vm");
    };
    // Copied here, on the loop: the thread must never touch this VM.
    let mut arguments = Vec::new();
    for at in 4..=stack.top() {
        match pack(stack, at, 0) {
            Ok(parcel) => arguments.push(parcel),
            Err(why) => return refuse(stack, format!("{why} in the argument")),
        }
    }
    let job = ThreadJob {
        key: vm.configuration.key(),
        settings: Arc::clone(&vm.settings),
        dictionaries: vm.dictionaries.clone(),
        log: vm.log.clone(),
        module,
        function,
        arguments,
        _counted: counted,
    };
    wait(YieldOperation::task(async move {
        match pool.run(move || job.work()).await {
            Ok(values) => {
                let mut reply = vec![LuaValue::Boolean(true)];
                reply.extend(values.iter().map(unpack));
                reply
            }
            Err(message) => vec![LuaValue::Boolean(false), LuaValue::Bytes(message)],
        }
    }))
}

/// Which configuration a thread's VM was created for.
type PoolVmKey = (LuaSubsystem, u64);

rt::local! {
    /// The VM of this thread.
    static MACHINE: RefCell<Option<(PoolVmKey, Rc<LuaVm>)>> = const { RefCell::new(None) };
}

/// A call of a module's function, with all that a VM for it needs.
struct ThreadJob {
    /// The configuration, for which the thread keeps its VM from call to call.
    key: PoolVmKey,
    /// For a VM that has yet to be created.
    settings: Arc<LuaMainConf>,
    dictionaries: Vec<Arc<SharedDict>>,
    log: host::error_log::Logger,
    /// The module to `require`, and the function in it.
    module: Vec<u8>,
    function: Vec<u8>,
    arguments: Vec<PortableValue>,
    /// The call's place among those that may run at once, given back when the job is dropped.
    _counted: JobPermit,
}

impl ThreadJob {
    /// The VM of this thread; a new one after a reload.
    fn thread_vm(&self) -> Option<Rc<LuaVm>> {
        MACHINE.with_borrow_mut(|machine| {
            // The VM of a replaced configuration is dropped here, when its thread next has work.
            if let Some((of, vm)) = machine
                && *of == self.key
            {
                return Some(Rc::clone(vm));
            }
            let vm = loop_vms::vm_with_api(
                &self.settings,
                self.log.clone(),
                VmConfiguration::Detached(self.key.0),
                0,
                self.dictionaries.clone(),
            )?;
            *machine = Some((self.key, Rc::clone(&vm)));
            Some(vm)
        })
    }

    /// Runs on a thread of the pool, where it may block.
    fn work(self) -> Result<Vec<PortableValue>, Vec<u8>> {
        let vm = self.thread_vm().ok_or("no memory for a Lua VM")?;
        let result = self.call(&vm);
        // The thread may be idle for long: garbage of this call must not be held until the next
        // one.
        vm.state.stack().set_top(0);
        vm.state.collect_garbage();
        result
    }

    /// Requires the module, and runs the function as a run of its own, so that the time limits
    /// apply.
    fn call(&self, vm: &Rc<LuaVm>) -> Result<Vec<PortableValue>, Vec<u8>> {
        let stack = vm.state.stack();
        stack.set_top(0);
        stack.field(GLOBALS, "require");
        stack.push_bytes(&self.module);
        stack.call(1, 1)?;
        if stack.type_at(-1) != LuaType::Table {
            return Err(b"invalid lua module".to_vec());
        }
        if stack.field(-1, &self.function) != LuaType::Function {
            return Err(b"invalid function".to_vec());
        }
        let wanted = RegistryRef::take(&vm.state, &stack);
        stack.set_top(0);
        let coroutine = LuaCoroutine::of(&wanted);
        for argument in &self.arguments {
            unpack(argument).push(&coroutine.stack());
        }
        let count = i32::try_from(self.arguments.len()).unwrap_or(0);
        let scope = RunScope::new(Rc::clone(vm), Script::WorkerThread, vm.log.clone());
        let results: Rc<RefCell<Vec<PortableValue>>> = Rc::default();
        // A pool has few threads: a call that never ends would take one of them for ever.
        let limits = &self.settings.limits;
        let mut run = ScriptRun::of_coroutine(Rc::clone(&scope), coroutine, count, limits);
        let taken = Rc::clone(&results);
        // Results are copied while they are on the stack: the run only keeps their texts.
        run.on_end(Box::new(move |stack, n| {
            for at in 1..=n {
                match pack(stack, at, 0) {
                    Ok(parcel) => taken.borrow_mut().push(parcel),
                    Err(why) => return Err(format!("{why} in the return value").into_bytes()),
                }
            }
            Ok(())
        }));
        match run.run_to_completion(RunOwner::Server) {
            RunEnd::Completed(_) => Ok(results.take()),
            _ => Err(scope
                .failure
                .take()
                .unwrap_or_else(|| b"the function failed".to_vec())),
        }
    }
}

/// Copies a value out of its VM; the error says why it cannot be.
fn pack(stack: &LuaStack, at: i32, depth: u32) -> Result<PortableValue, String> {
    Ok(match stack.type_at(at) {
        LuaType::Nil | LuaType::None => PortableValue::Nil,
        LuaType::Boolean => PortableValue::Boolean(stack.boolean(at)),
        LuaType::Number => PortableValue::Number(stack.number(at).unwrap_or(0.0)),
        LuaType::String => PortableValue::Bytes(stack.bytes(at).unwrap_or_default().to_vec()),
        LuaType::Table => {
            // A table that contains itself would never end; the depth tells, and its message says
            // what is suspected.
            if depth >= MAX_DEPTH || !stack.reserve(4) {
                return Err(format!(
                    "suspicious circular references, table depth exceed max depth: {MAX_DEPTH}"
                ));
            }
            let at = stack.absolute(at);
            let mut entries = Vec::new();
            stack.push_nil();
            while stack.next(at) {
                let top = stack.top();
                let value = pack(stack, top, depth + 1);
                let key = pack(stack, top - 1, depth + 1);
                match (key, value) {
                    (Ok(key), Ok(value)) => entries.push((key, value)),
                    (Err(why), _) | (_, Err(why)) => {
                        // The walk through the table is given up: its key and value must not stay
                        // on the stack.
                        stack.pop(2);
                        return Err(why);
                    }
                }
                stack.pop(1);
            }
            PortableValue::Table(entries)
        }
        LuaType::Cdata => return Err("unsupported Lua type".to_owned()),
        other => {
            let name = other.name().to_uppercase();
            return Err(format!("unsupported Lua type: LUA_T{name}"));
        }
    })
}

/// The value as the other VM gets it.
fn unpack(parcel: &PortableValue) -> LuaValue {
    match parcel {
        PortableValue::Nil => LuaValue::Nil,
        PortableValue::Boolean(value) => LuaValue::Boolean(*value),
        PortableValue::Number(value) => LuaValue::Number(*value),
        PortableValue::Bytes(value) => LuaValue::Bytes(value.clone()),
        PortableValue::Table(entries) => LuaValue::Table(
            entries
                .iter()
                .map(|(key, value)| (unpack(key), unpack(value)))
                .collect(),
        ),
    }
}
