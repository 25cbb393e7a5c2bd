//! `ngx.pipe`: programs that a script runs, with pipes to them. `pipe.lua` builds the module from
//! these functions.
//!
//! Reads and writes use the patterns and the error messages of cosockets, as the original does.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::rc::Rc;
use std::time::Duration;

use rt::child::{ChildPipe, ChildProcess, ChildProgram, ProgramExit, StartedProgram};
use rt::sync::Notify;

use super::arguments::{bytes, number, optional_number};
use super::called::answer;
use super::tcp::ReadPattern;
use super::{CallResult, NativeTable, wait};
use crate::luajit::object::{self, ObjectClass, ObjectShape};
use crate::luajit::stack::LuaType;
use crate::luajit::{LuaError, LuaStack, LuaValue, fail, watchdog};
use crate::operation::{ResumeValues, YieldOperation};
use crate::scope;

pub(super) const CORE: NativeTable = &[("pipe_spawn", spawn), ("pipe_methods", methods)];

static PROCESS: ObjectClass = ObjectClass {
    name: "weir.pipe",
    shape: ObjectShape::Userdata,
    methods: METHODS,
};

const METHODS: NativeTable = &[
    ("pid", id),
    ("set_times", set_times),
    ("read", read),
    ("send", write),
    ("close", close),
    ("wait_for_end", wait_for_end),
    ("signal", signal),
];

/// The table of methods, for `pipe.lua` to wrap.
fn methods(stack: &LuaStack) -> CallResult {
    object::push_methods(stack, &PROCESS);
    super::ONE
}

/// How much one read takes at most, in bytes.
const READ_SIZE: usize = 64 * 1024;

/// How much unread output of a program is buffered, in bytes.
const MAX_INPUT: usize = 64 << 20;

/// One of a program's pipes.
#[derive(Default)]
struct ProcessPipe {
    /// `None`: it was closed, or was never open.
    pipe: RefCell<Option<Rc<ChildPipe>>>,
    /// What was read and not yet asked for.
    input: RefCell<Vec<u8>>,
    /// A coroutine reads or writes it: a second one gets an error, since their data would mix.
    busy: Cell<bool>,
    /// Notified when it is closed, to abort what waits for it.
    closing: Notify,
    /// The timeout in milliseconds; 0: none.
    timeout_ms: Cell<f64>,
}

/// A program that a script has started.
struct PipedProcess {
    /// `None`: it could not be started, which is reported as its exit code.
    child: Option<ChildProcess>,
    /// The process number, kept for `pid()` after the end.
    id: u32,
    /// Each of the three can be in use by one coroutine at a time.
    stdin: ProcessPipe,
    stdout: ProcessPipe,
    stderr: ProcessPipe,
    /// stderr goes where stdout goes.
    merged: bool,
    /// `wait` has returned its end: later calls are told "exited".
    ended: Cell<bool>,
    /// A coroutine is in `wait`.
    waiting: Cell<bool>,
    /// The timeout of `wait`, in milliseconds.
    wait_timeout_ms: Cell<f64>,
}

/// The elements of an array as texts.
fn texts(stack: &LuaStack, at: i32) -> Vec<Vec<u8>> {
    let mut texts = Vec::new();
    for n in 1..=stack.length(at) {
        stack.element(at, n);
        texts.push(stack.text(-1).unwrap_or_default());
        stack.pop(1);
    }
    texts
}

/// Starts a program: its arguments, its environment or nil, and whether stderr is merged into
/// stdout.
fn spawn(stack: &LuaStack) -> CallResult {
    let program = ChildProgram {
        words: texts(stack, 1),
        environment: (stack.type_at(2) == LuaType::Table).then(|| texts(stack, 2)),
        merged: stack.boolean(3),
    };
    let kind = scope::with(|scope| scope.kind)?;
    if !kind.may_yield() || !watchdog::may_yield(stack) {
        // `init_worker_by_lua` and the like cannot wait, so the thread blocks while the program is
        // loaded.
        return match program.start_program() {
            Ok(begun) => push(stack, Ok(begun), program.merged),
            Err(error) => push(stack, Err(error), program.merged),
        };
    }
    let merged = program.merged;
    let state = scope::with(|scope| Rc::clone(&scope.vm))?;
    // Starting a program waits for its `exec`, which reads from disk: on a pool's thread.
    wait(YieldOperation::task(async move {
        let begun = rt::pool::default_pool()
            .run(move || program.start_program())
            .await;
        let process = match piped_process(begun, merged) {
            Ok(process) => process,
            Err(error) => return LuaValue::failure(error_text(&error)),
        };
        let stack = state.state.stack();
        object::push(&stack, &PROCESS, Rc::new(process));
        vec![LuaValue::Ref(Rc::new(crate::luajit::RegistryRef::take(
            &state.state,
            &stack,
        )))]
    }))
}

/// Returns the started process, or an error.
fn push(stack: &LuaStack, begun: io::Result<StartedProgram>, merged: bool) -> CallResult {
    match piped_process(begun, merged) {
        Ok(process) => object::push(stack, &PROCESS, Rc::new(process)),
        Err(error) => return answer(stack, LuaValue::failure(error_text(&error))),
    }
    super::ONE
}

/// Wraps a program that was started.
fn piped_process(begun: io::Result<StartedProgram>, merged: bool) -> io::Result<PipedProcess> {
    let way = |descriptor: Option<std::os::fd::OwnedFd>| -> io::Result<ProcessPipe> {
        let way = ProcessPipe::default();
        if let Some(descriptor) = descriptor {
            *way.pipe.borrow_mut() = Some(Rc::new(ChildPipe::of(descriptor)?));
        }
        Ok(way)
    };
    let mut begun = match begun {
        Ok(begun) => Some(begun),
        // lua-resty-core forks before it tries to execute, so a missing program is not an error of
        // `spawn`: the child exits with 1. This does the same.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
            ) =>
        {
            None
        }
        Err(error) => return Err(error),
    };
    let mut take = |which: fn(&mut StartedProgram) -> &mut Option<std::os::fd::OwnedFd>| {
        way(begun.as_mut().and_then(|begun| which(begun).take()))
    };
    let stdin = take(|begun| &mut begun.input)?;
    let stdout = take(|begun| &mut begun.output)?;
    let stderr = take(|begun| &mut begun.errors)?;
    let child = begun.map(ChildProcess::of).transpose()?;
    Ok(PipedProcess {
        id: child.as_ref().map_or(0, ChildProcess::id),
        child,
        stdin,
        stdout,
        stderr,
        merged,
        ended: Cell::new(false),
        waiting: Cell::new(false),
        wait_timeout_ms: Cell::new(0.0),
    })
}

/// An I/O error in the words of `ngx.pipe`.
fn error_text(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::BrokenPipe => "closed".to_owned(),
        _ => super::tcp::error_text(error),
    }
}

/// The process in the first argument.
fn this_process(stack: &LuaStack) -> Result<Rc<PipedProcess>, LuaError> {
    object::get(stack, 1, "process")
}

/// `proc:pid()`.
fn id(stack: &LuaStack) -> CallResult {
    stack.push_number(f64::from(this_process(stack)?.id));
    super::ONE
}

/// `proc:set_timeouts(write, stdout, stderr, wait)`; nil keeps a value.
fn set_times(stack: &LuaStack) -> CallResult {
    let process = this_process(stack)?;
    let places = [
        &process.stdin.timeout_ms,
        &process.stdout.timeout_ms,
        &process.stderr.timeout_ms,
        &process.wait_timeout_ms,
    ];
    for (at, place) in (2..).zip(places) {
        if let Some(millis) = optional_number(stack, at)? {
            place.set(millis);
        }
    }
    super::NONE
}

/// How a wait ended.
enum BoundedOutcome<T> {
    Done(T),
    TimedOut,
    /// The pipe was closed meanwhile.
    Aborted,
}

/// Waits for `work`, but no longer than this many milliseconds, or until the pipe is closed.
async fn run_bounded<T>(
    way: Option<&ProcessPipe>,
    millis: f64,
    work: impl Future<Output = T>,
) -> BoundedOutcome<T> {
    let never = Notify::new();
    let mut work = std::pin::pin!(work);
    let mut closing = std::pin::pin!(way.map_or(&never, |way| &way.closing).notified());
    let both = poll_fn(|context| {
        // It may have been closed before this was first polled.
        if way.is_some_and(|way| way.pipe.borrow().is_none()) {
            return std::task::Poll::Ready(BoundedOutcome::Aborted);
        }
        // Before the look at `closing`: what has arrived in the same turn is not lost.
        if let std::task::Poll::Ready(done) = work.as_mut().poll(context) {
            return std::task::Poll::Ready(BoundedOutcome::Done(done));
        }
        closing
            .as_mut()
            .poll(context)
            .map(|()| BoundedOutcome::Aborted)
    });
    // 0 is no timeout.
    if millis <= 0.0 {
        return both.await;
    }
    let time = Duration::from_secs_f64(millis / 1000.0);
    rt::timeout(time, both)
        .await
        .unwrap_or(BoundedOutcome::TimedOut)
}

/// Marks a pipe as busy until it is dropped, even if the coroutine is killed.
struct PipeBusyGuard(Rc<PipedProcess>, fn(&PipedProcess) -> &Cell<bool>);

impl PipeBusyGuard {
    fn new(process: &Rc<PipedProcess>, mark: fn(&PipedProcess) -> &Cell<bool>) -> PipeBusyGuard {
        mark(process).set(true);
        PipeBusyGuard(Rc::clone(process), mark)
    }
}

impl Drop for PipeBusyGuard {
    fn drop(&mut self) {
        (self.1)(&self.0).set(false);
    }
}

/// The read functions: whether from stderr, which pattern, and how many bytes.
fn read(stack: &LuaStack) -> CallResult {
    let process = this_process(stack)?;
    let errors = stack.boolean(2);
    let n = optional_number(stack, 4)?.unwrap_or(0.0) as usize;
    let wanted = match bytes(stack, 3)? {
        b"all" => ReadPattern::All,
        b"line" => ReadPattern::Line,
        b"any" => ReadPattern::Any(n),
        _ => ReadPattern::Exactly(n),
    };
    super::tcp::need_yield()?;
    // Not an empty result: a script would take it for a program that wrote no errors.
    if errors && process.merged {
        return answer(stack, LuaValue::failure("merged to stdout"));
    }
    let (way, mark): (&ProcessPipe, fn(&PipedProcess) -> &Cell<bool>) = match errors {
        true => (&process.stderr, |process| &process.stderr.busy),
        false => (&process.stdout, |process| &process.stdout.busy),
    };
    let Some(pipe) = way.pipe.borrow().clone() else {
        return answer(stack, LuaValue::failure("closed"));
    };
    if way.busy.get() {
        return answer(stack, LuaValue::failure("pipe busy reading"));
    }
    let mut scanned = 0;
    // What an earlier read has left over may be enough.
    if let Some(reply) = wanted.take(&mut way.input.borrow_mut(), &mut scanned) {
        return answer(stack, reply);
    }
    let busy = PipeBusyGuard::new(&process, mark);
    wait(YieldOperation::task(async move {
        let way = match errors {
            true => &process.stderr,
            false => &process.stdout,
        };
        let work = fill(way, &pipe, &wanted, scanned);
        let outcome = run_bounded(Some(way), way.timeout_ms.get(), work).await;
        drop(busy);
        let why = match outcome {
            BoundedOutcome::Done(reply) => return reply,
            BoundedOutcome::TimedOut => "timeout",
            BoundedOutcome::Aborted => "aborted",
        };
        // As documented, a read that fails returns the data so far as its third result.
        let partial = wanted.partial(&mut way.input.borrow_mut());
        vec![LuaValue::Nil, LuaValue::text(why), LuaValue::Bytes(partial)]
    }))
}

/// Reads until the pattern is satisfied.
async fn fill(
    way: &ProcessPipe,
    pipe: &ChildPipe,
    wanted: &ReadPattern,
    mut scanned: usize,
) -> ResumeValues {
    let mut buffer = Vec::new();
    loop {
        buffer.clear();
        let read = poll_fn(|context| pipe.poll_read_into(context, &mut buffer, READ_SIZE)).await;
        let mut input = way.input.borrow_mut();
        match read {
            Ok(0) => return wanted.at_end(&mut input),
            Ok(_) => {
                input.extend_from_slice(&buffer);
                if let Some(reply) = wanted.take(&mut input, &mut scanned) {
                    return reply;
                }
                if input.len() > MAX_INPUT {
                    return vec![
                        LuaValue::Nil,
                        LuaValue::text("too much data"),
                        LuaValue::Bytes(std::mem::take(&mut input)),
                    ];
                }
            }
            Err(error) => {
                let partial = wanted.partial(&mut input);
                return vec![
                    LuaValue::Nil,
                    LuaValue::text(error_text(&error)),
                    LuaValue::Bytes(partial),
                ];
            }
        }
    }
}

/// `proc:write(data)`.
fn write(stack: &LuaStack) -> CallResult {
    let process = this_process(stack)?;
    let data = bytes(stack, 2)?.to_vec();
    super::tcp::need_yield()?;
    let Some(pipe) = process.stdin.pipe.borrow().clone() else {
        return answer(stack, LuaValue::failure("closed"));
    };
    if process.stdin.busy.get() {
        return answer(stack, LuaValue::failure("pipe busy writing"));
    }
    let busy = PipeBusyGuard::new(&process, |process| &process.stdin.busy);
    wait(YieldOperation::task(async move {
        let work = async {
            let mut rest = data.as_slice();
            while !rest.is_empty() {
                let n = poll_fn(|context| pipe.poll_write(context, rest)).await?;
                rest = &rest[n..];
            }
            Ok::<(), io::Error>(())
        };
        let way = &process.stdin;
        let outcome = run_bounded(Some(way), way.timeout_ms.get(), work).await;
        drop(busy);
        match outcome {
            BoundedOutcome::Done(Ok(())) => vec![LuaValue::Number(data.len() as f64)],
            BoundedOutcome::Done(Err(error)) => {
                // A broken pipe stays broken: the next write reports "closed".
                way.pipe.take();
                LuaValue::failure(error_text(&error))
            }
            BoundedOutcome::TimedOut => LuaValue::failure("timeout"),
            BoundedOutcome::Aborted => LuaValue::failure("aborted"),
        }
    }))
}

/// `proc:shutdown(direction)`.
fn close(stack: &LuaStack) -> CallResult {
    let process = this_process(stack)?;
    let way = match bytes(stack, 2)? {
        b"stdin" => &process.stdin,
        b"stdout" => &process.stdout,
        _ if process.merged => return answer(stack, LuaValue::failure("merged to stdout")),
        _ => &process.stderr,
    };
    if way.pipe.take().is_none() {
        return answer(stack, LuaValue::failure("closed"));
    }
    // A read or a write in progress ends with "aborted".
    way.closing.notify_all();
    stack.push_boolean(true);
    super::ONE
}

/// `proc:wait()`.
fn wait_for_end(stack: &LuaStack) -> CallResult {
    let process = this_process(stack)?;
    super::tcp::need_yield()?;
    if process.ended.get() {
        return answer(stack, LuaValue::failure("exited"));
    }
    if process.waiting.get() {
        return answer(stack, LuaValue::failure("pipe busy waiting"));
    }
    if process.child.is_none() {
        process.ended.set(true);
        return answer(stack, exit_reply(ProgramExit::Exit(1)));
    }
    let busy = PipeBusyGuard::new(&process, |process| &process.waiting);
    wait(YieldOperation::task(async move {
        let end = poll_fn(|context| match &process.child {
            Some(child) => child.poll_end(context),
            None => std::task::Poll::Ready(Ok(ProgramExit::Exit(1))),
        });
        let outcome = run_bounded(None, process.wait_timeout_ms.get(), end).await;
        drop(busy);
        match outcome {
            BoundedOutcome::Done(Ok(ended)) => {
                process.ended.set(true);
                exit_reply(ended)
            }
            BoundedOutcome::Done(Err(error)) => LuaValue::failure(error_text(&error)),
            BoundedOutcome::TimedOut | BoundedOutcome::Aborted => LuaValue::failure("timeout"),
        }
    }))
}

/// The results of `wait`: whether it succeeded, "exit" or "signal", and the number.
fn exit_reply(ended: ProgramExit) -> ResumeValues {
    let (reason, status) = match ended {
        ProgramExit::Exit(status) => ("exit", status),
        ProgramExit::Signal(signal) => ("signal", signal),
    };
    vec![
        LuaValue::Boolean(ended == ProgramExit::Exit(0)),
        LuaValue::text(reason),
        LuaValue::Number(f64::from(status)),
    ]
}

/// `proc:kill(signal)`.
fn signal(stack: &LuaStack) -> CallResult {
    let process = this_process(stack)?;
    let number = number(stack, 2)? as i32;
    // After the end of the program its number may belong to another process.
    let running = |child: &&ChildProcess| !process.ended.get() && !child.has_ended();
    let Some(child) = process.child.as_ref().filter(running) else {
        return answer(stack, LuaValue::failure("exited"));
    };
    match child.kill(number) {
        Ok(()) => stack.push_boolean(true),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            return answer(stack, LuaValue::failure("invalid signal"));
        }
        // ESRCH: it has ended since the look above.
        Err(error) if error.raw_os_error() == Some(3) => {
            return answer(stack, LuaValue::failure("exited"));
        }
        Err(error) => return fail(error_text(&error)),
    }
    super::ONE
}
