//! `ngx.run_worker_thread`: Lua that blocks, on a thread of a named pool.
//!
//! Each thread of a pool has a machine of its own, without requests and sockets. Arguments and results are copied:
//! what has no meaning outside of its machine, a function for example, can not go.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use bstr::ByteSlice;

use super::arguments::text;
use super::output::answer;
use super::{Called, Functions, wait};
use crate::chunk::Kind as Script;
use crate::home::{Engine, Home};
use crate::luajit::stack::{GLOBALS, Kind};
use crate::luajit::{Coroutine, Failure, Ref, Stack, Value, fail};
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

fn run(stack: &Stack) -> Called {
    let pool = text(stack, 1)?.to_str_lossy().into_owned();
    let module = text(stack, 2)?;
    let function = text(stack, 3)?;
    let mut arguments = Vec::new();
    for at in 4..=stack.top() {
        match pack(stack, at, 0) {
            Ok(parcel) => arguments.push(parcel),
            Err(failure) => {
                stack.push_boolean(false);
                stack.push_bytes(&failure.0);
                return super::tcp::results(2);
            }
        }
    }
    let Some(pool) = rt::pool::get(&pool) else {
        return answer(
            stack,
            vec![
                Value::Boolean(false),
                Value::text(format!("thread pool {pool} not found")),
            ],
        );
    };
    let (settings, log) =
        scope::with(|scope| (Arc::clone(&scope.vm.settings), scope.vm.log.clone()))?;
    wait(Operation::task(async move {
        let result = pool
            .run(move || work(&settings, &log, &module, &function, arguments))
            .await;
        match result {
            Ok(values) => {
                let mut reply = vec![Value::Boolean(true)];
                reply.extend(values.iter().map(unpack));
                reply
            }
            Err(message) => vec![Value::Boolean(false), Value::Bytes(message)],
        }
    }))
}

thread_local! {
    /// The machine of this thread of a pool, and the settings that it was made with.
    static MACHINE: RefCell<Option<(Arc<Main>, Rc<Vm>)>> = const { RefCell::new(None) };
}

fn machine(settings: &Arc<Main>, log: &rt::error_log::Logger) -> Option<Rc<Vm>> {
    MACHINE.with_borrow_mut(|machine| {
        if let Some((of, vm)) = machine
            && Arc::ptr_eq(of, settings)
        {
            return Some(Rc::clone(vm));
        }
        let vm = Vm::new(
            settings,
            log.clone(),
            Home::Nowhere(Engine::Http),
            0,
            Vec::new(),
        )?;
        *machine = Some((Arc::clone(settings), Rc::clone(&vm)));
        Some(vm)
    })
}

/// Calls a function of a module. Runs on a thread of the pool, and may block there.
fn work(
    settings: &Arc<Main>,
    log: &rt::error_log::Logger,
    module: &[u8],
    function: &[u8],
    arguments: Vec<Parcel>,
) -> Result<Vec<Parcel>, Vec<u8>> {
    let vm = machine(settings, log).ok_or("no memory for a machine")?;
    let stack = vm.state.stack();
    stack.set_top(0);
    stack.field(GLOBALS, "require");
    stack.push_bytes(module);
    stack.call(1, 1)?;
    if stack.kind(-1) != Kind::Table {
        stack.set_top(0);
        return Err(format!("module {} is no table", module.as_bstr()).into_bytes());
    }
    if stack.field(-1, function) != Kind::Function {
        stack.set_top(0);
        return Err(format!("function {} not found", function.as_bstr()).into_bytes());
    }
    let wanted = Ref::take(&vm.state, &stack);
    stack.set_top(0);
    let coroutine = Coroutine::of(&wanted);
    for argument in &arguments {
        unpack(argument).push(&coroutine.stack());
    }
    let count = i32::try_from(arguments.len()).unwrap_or(0);
    let scope = Scope::new(Rc::clone(&vm), Script::WorkerThread, vm.log.clone());
    let results: Rc<RefCell<Vec<Parcel>>> = Rc::default();
    let mut run = Run::of_coroutine(Rc::clone(&scope), coroutine, count, &settings.limits);
    let taken = Rc::clone(&results);
    run.on_end(Box::new(move |stack, n| {
        for at in 1..=n {
            match pack(stack, at, 0) {
                Ok(parcel) => taken.borrow_mut().push(parcel),
                Err(failure) => return Err(failure.0),
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

fn pack(stack: &Stack, at: i32, depth: u32) -> Result<Parcel, Failure> {
    Ok(match stack.kind(at) {
        Kind::Nil | Kind::None => Parcel::Nil,
        Kind::Boolean => Parcel::Boolean(stack.boolean(at)),
        Kind::Number => Parcel::Number(stack.number(at).unwrap_or(0.0)),
        Kind::String => Parcel::Bytes(stack.bytes(at).unwrap_or_default().to_vec()),
        Kind::Table => {
            if depth >= MAX_DEPTH || !stack.reserve(4) {
                return fail("suspicious circular reference, or a table that is too deep");
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
                    (Err(failure), _) | (_, Err(failure)) => {
                        stack.pop(2);
                        return Err(failure);
                    }
                }
                stack.pop(1);
            }
            Parcel::Table(entries)
        }
        other => return fail(format!("unsupported Lua type: {}", other.name())),
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
