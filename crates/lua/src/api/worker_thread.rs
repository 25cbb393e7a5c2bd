//! `ngx.run_worker_thread`: Lua that blocks, on a thread of a named pool.
//!
//! Each thread of a pool has a machine of its own, without requests and sockets. Arguments and results are copied:
//! what has no meaning outside of its machine, a function for example, can not go.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bstr::ByteSlice;

use super::output::answer;
use super::{Called, Functions, wait};
use crate::chunk::Kind as Script;
use crate::dictionary::Dictionary;
use crate::home::{Engine, Home};
use crate::luajit::stack::{GLOBALS, Kind};
use crate::luajit::{Coroutine, Ref, Stack, Value, fail};
use crate::operation::Operation;
use crate::run::{End, Run};
use crate::scope::{self, Guest, Scope};
use crate::settings::Main;
use crate::vm::Vm;

pub(super) const FUNCTIONS: Functions = &[("run_worker_thread", run)];

/// A value that may go from one machine to another.
#[derive(Clone, Debug)]
enum Parcel {
    Nil,
    Boolean(bool),
    Number(f64),
    Bytes(Vec<u8>),
    Table(Vec<(Parcel, Parcel)>),
}

/// How deep tables may stand in tables.
const MAX_DEPTH: u32 = 100;

/// How many jobs of scripts are at work, or wait for a thread, in this process.
static AT_WORK: AtomicUsize = AtomicUsize::new(0);

/// A job that is counted while it is there.
struct Counted;

impl Counted {
    /// `None` where `limit` are there already.
    fn new(limit: Option<usize>) -> Option<Counted> {
        let before = AT_WORK.fetch_add(1, Ordering::Relaxed);
        let counted = Counted;
        limit.is_none_or(|limit| before < limit).then_some(counted)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        AT_WORK.fetch_sub(1, Ordering::Relaxed);
    }
}

/// `false` and a message.
fn refuse(stack: &Stack, message: impl Into<Vec<u8>>) -> Called {
    answer(
        stack,
        vec![Value::Boolean(false), Value::Bytes(message.into())],
    )
}

fn run(stack: &Stack) -> Called {
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
    if !kind.waits() {
        return fail(format!("API disabled in the context of {}*", kind.name()));
    }
    let Some(counted) = Counted::new(vm.settings.worker_machines) else {
        return refuse(stack, "no available Lua vm");
    };
    let mut arguments = Vec::new();
    for at in 4..=stack.top() {
        match pack(stack, at, 0) {
            Ok(parcel) => arguments.push(parcel),
            Err(why) => return refuse(stack, format!("{why} in the argument")),
        }
    }
    let job = Job {
        key: vm.home.key(),
        settings: Arc::clone(&vm.settings),
        dictionaries: vm.dictionaries.clone(),
        log: vm.log.clone(),
        module,
        function,
        arguments,
        _counted: counted,
    };
    wait(Operation::task(async move {
        match pool.run(move || job.work()).await {
            Ok(values) => {
                let mut reply = vec![Value::Boolean(true)];
                reply.extend(values.iter().map(unpack));
                reply
            }
            Err(message) => vec![Value::Boolean(false), Value::Bytes(message)],
        }
    }))
}

/// Which configuration a thread's machine was made for.
type Key = (Engine, u64);

thread_local! {
    /// The machine of this thread of a pool.
    static MACHINE: RefCell<Option<(Key, Rc<Vm>)>> = const { RefCell::new(None) };
}

/// A function of a module that is to be called, and all that its machine needs.
struct Job {
    key: Key,
    settings: Arc<Main>,
    dictionaries: Vec<Arc<Dictionary>>,
    log: rt::error_log::Logger,
    module: Vec<u8>,
    function: Vec<u8>,
    arguments: Vec<Parcel>,
    _counted: Counted,
}

impl Job {
    fn machine(&self) -> Option<Rc<Vm>> {
        MACHINE.with_borrow_mut(|machine| {
            if let Some((of, vm)) = machine
                && *of == self.key
            {
                return Some(Rc::clone(vm));
            }
            let vm = Vm::new(
                &self.settings,
                self.log.clone(),
                Home::Nowhere(self.key.0),
                0,
                self.dictionaries.clone(),
            )?;
            *machine = Some((self.key, Rc::clone(&vm)));
            Some(vm)
        })
    }

    /// Runs on a thread of the pool, and may block there.
    fn work(self) -> Result<Vec<Parcel>, Vec<u8>> {
        let vm = self.machine().ok_or("no memory for a Lua VM")?;
        let result = self.call(&vm);
        // What was made for this call is not to stay until the next one comes.
        vm.state.stack().set_top(0);
        vm.state.collect_garbage();
        result
    }

    fn call(&self, vm: &Rc<Vm>) -> Result<Vec<Parcel>, Vec<u8>> {
        let stack = vm.state.stack();
        stack.set_top(0);
        stack.field(GLOBALS, "require");
        stack.push_bytes(&self.module);
        stack.call(1, 1)?;
        if stack.kind(-1) != Kind::Table {
            return Err(b"invalid lua module".to_vec());
        }
        if stack.field(-1, &self.function) != Kind::Function {
            return Err(b"invalid function".to_vec());
        }
        let wanted = Ref::take(&vm.state, &stack);
        stack.set_top(0);
        let coroutine = Coroutine::of(&wanted);
        for argument in &self.arguments {
            unpack(argument).push(&coroutine.stack());
        }
        let count = i32::try_from(self.arguments.len()).unwrap_or(0);
        let scope = Scope::new(Rc::clone(vm), Script::WorkerThread, vm.log.clone());
        let results: Rc<RefCell<Vec<Parcel>>> = Rc::default();
        let limits = &self.settings.limits;
        let mut run = Run::of_coroutine(Rc::clone(&scope), coroutine, count, limits);
        let taken = Rc::clone(&results);
        run.on_end(Box::new(move |stack, n| {
            for at in 1..=n {
                match pack(stack, at, 0) {
                    Ok(parcel) => taken.borrow_mut().push(parcel),
                    Err(why) => return Err(format!("{why} in the return value").into_bytes()),
                }
            }
            Ok(())
        }));
        match run.finish_now(Guest::Nobody) {
            End::Through(_) => Ok(results.take()),
            _ => Err(scope
                .failure
                .take()
                .unwrap_or_else(|| b"the function failed".to_vec())),
        }
    }
}

/// A copy of a value; otherwise why there can be none.
fn pack(stack: &Stack, at: i32, depth: u32) -> Result<Parcel, String> {
    Ok(match stack.kind(at) {
        Kind::Nil | Kind::None => Parcel::Nil,
        Kind::Boolean => Parcel::Boolean(stack.boolean(at)),
        Kind::Number => Parcel::Number(stack.number(at).unwrap_or(0.0)),
        Kind::String => Parcel::Bytes(stack.bytes(at).unwrap_or_default().to_vec()),
        Kind::Table => {
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
                        stack.pop(2);
                        return Err(why);
                    }
                }
                stack.pop(1);
            }
            Parcel::Table(entries)
        }
        Kind::Cdata => return Err("unsupported Lua type".to_owned()),
        other => {
            let name = other.name().to_uppercase();
            return Err(format!("unsupported Lua type: LUA_T{name}"));
        }
    })
}

fn unpack(parcel: &Parcel) -> Value {
    match parcel {
        Parcel::Nil => Value::Nil,
        Parcel::Boolean(value) => Value::Boolean(*value),
        Parcel::Number(value) => Value::Number(*value),
        Parcel::Bytes(value) => Value::Bytes(value.clone()),
        Parcel::Table(entries) => Value::Table(
            entries
                .iter()
                .map(|(key, value)| (unpack(key), unpack(value)))
                .collect(),
        ),
    }
}
