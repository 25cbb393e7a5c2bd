//! `ngx.pipe`: programs that a script runs, and the pipes to them. `pipe.lua` makes the module of these.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::rc::Rc;
use std::time::Duration;

use rt::child::{Begun, Child, Ended, Pipe, Program};
use rt::sync::Notify;

use super::arguments::{bytes, number, optional_number};
use super::output::answer;
use super::tcp::Wanted;
use super::{Called, Functions, wait};
use crate::luajit::object::{self, Class, Shape};
use crate::luajit::stack::Kind;
use crate::luajit::{Failure, Stack, Value, fail, watchdog};
use crate::operation::{Operation, Reply};
use crate::scope;

pub(super) const CORE: Functions = &[("pipe_spawn", spawn), ("pipe_methods", methods)];

static PROCESS: Class = Class {
    name: "weir.pipe",
    shape: Shape::Userdata,
    methods: METHODS,
};

const METHODS: Functions = &[
    ("pid", id),
    ("set_times", set_times),
    ("read", read),
    ("send", write),
    ("close", close),
    ("wait_for_end", wait_for_end),
    ("signal", signal),
];

fn methods(stack: &Stack) -> Called {
    object::push_methods(stack, &PROCESS);
    super::ONE
}

/// What one read takes at most, in bytes.
const READ_SIZE: usize = 64 * 1024;

/// What is held unread of a program, in bytes.
const MAX_INPUT: usize = 64 << 20;

/// One of its pipes.
#[derive(Default)]
struct Way {
    /// `None`: it was closed, or never there.
    pipe: RefCell<Option<Rc<Pipe>>>,
    input: RefCell<Vec<u8>>,
    busy: Cell<bool>,
    /// Called when it is closed while something waits for it.
    closing: Notify,
    /// In milliseconds; 0: any time.
    patience: Cell<f64>,
}

/// A program that a script runs.
struct Process {
    /// `None`: it could not be begun, which is told as its end.
    child: Option<Child>,
    id: u32,
    stdin: Way,
    stdout: Way,
    stderr: Way,
    merged: bool,
    ended: Cell<bool>,
    waiting: Cell<bool>,
    patience: Cell<f64>,
}

fn texts(stack: &Stack, at: i32) -> Vec<Vec<u8>> {
    let mut texts = Vec::new();
    for n in 1..=stack.length(at) {
        stack.element(at, n);
        texts.push(stack.text(-1).unwrap_or_default());
        stack.pop(1);
    }
    texts
}

/// Begins a program: a table of words, one of its environment or nil, whether its errors go where its output goes.
fn spawn(stack: &Stack) -> Called {
    let program = Program {
        words: texts(stack, 1),
        environment: (stack.kind(2) == Kind::Table).then(|| texts(stack, 2)),
        merged: stack.boolean(3),
    };
    let kind = scope::with(|scope| scope.kind)?;
    if !kind.waits() || !watchdog::may_yield(stack) {
        // The thread waits while the kernel reads the program: there is no other way here.
        return match program.begin() {
            Ok(begun) => push(stack, Ok(begun), program.merged),
            Err(error) => push(stack, Err(error), program.merged),
        };
    }
    let merged = program.merged;
    let state = scope::with(|scope| Rc::clone(&scope.vm))?;
    wait(Operation::task(async move {
        let begun = rt::pool::default_pool().run(move || program.begin()).await;
        let process = match process(begun, merged) {
            Ok(process) => process,
            Err(error) => return Value::failure(words(&error)),
        };
        let stack = state.state.stack();
        object::push(&stack, &PROCESS, Rc::new(process));
        vec![Value::Ref(Rc::new(crate::luajit::Ref::take(
            &state.state,
            &stack,
        )))]
    }))
}

fn push(stack: &Stack, begun: io::Result<Begun>, merged: bool) -> Called {
    match process(begun, merged) {
        Ok(process) => object::push(stack, &PROCESS, Rc::new(process)),
        Err(error) => return answer(stack, Value::failure(words(&error))),
    }
    super::ONE
}

fn process(begun: io::Result<Begun>, merged: bool) -> io::Result<Process> {
    let way = |descriptor: Option<std::os::fd::OwnedFd>| -> io::Result<Way> {
        let way = Way::default();
        if let Some(descriptor) = descriptor {
            *way.pipe.borrow_mut() = Some(Rc::new(Pipe::of(descriptor)?));
        }
        Ok(way)
    };
    let mut begun = match begun {
        Ok(begun) => Some(begun),
        // As where the library forks first: there is a child then, which cannot become that program.
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
    let mut take = |which: fn(&mut Begun) -> &mut Option<std::os::fd::OwnedFd>| {
        way(begun.as_mut().and_then(|begun| which(begun).take()))
    };
    let stdin = take(|begun| &mut begun.input)?;
    let stdout = take(|begun| &mut begun.output)?;
    let stderr = take(|begun| &mut begun.errors)?;
    let child = begun.map(Child::of).transpose()?;
    Ok(Process {
        id: child.as_ref().map_or(0, Child::id),
        child,
        stdin,
        stdout,
        stderr,
        merged,
        ended: Cell::new(false),
        waiting: Cell::new(false),
        patience: Cell::new(0.0),
    })
}

fn words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::BrokenPipe => "closed".to_owned(),
        _ => super::tcp::words(error),
    }
}

fn this(stack: &Stack) -> Result<Rc<Process>, Failure> {
    object::get(stack, 1, "process")
}

fn id(stack: &Stack) -> Called {
    stack.push_number(f64::from(this(stack)?.id));
    super::ONE
}

fn set_times(stack: &Stack) -> Called {
    let process = this(stack)?;
    let places = [
        &process.stdin.patience,
        &process.stdout.patience,
        &process.stderr.patience,
        &process.patience,
    ];
    for (at, place) in (2..).zip(places) {
        if let Some(millis) = optional_number(stack, at)? {
            place.set(millis);
        }
    }
    super::NONE
}

/// How something ended that may take too long or be given up.
enum Outcome<T> {
    Done(T),
    TimedOut,
    Aborted,
}

/// Waits for `work`, for this many milliseconds at most, and no longer than until the pipe is closed.
async fn bounded<T>(way: Option<&Way>, millis: f64, work: impl Future<Output = T>) -> Outcome<T> {
    let never = Notify::new();
    let mut work = std::pin::pin!(work);
    let mut closing = std::pin::pin!(way.map_or(&never, |way| &way.closing).notified());
    let both = poll_fn(|context| {
        // It may have been closed before anything of this was polled.
        if way.is_some_and(|way| way.pipe.borrow().is_none()) {
            return std::task::Poll::Ready(Outcome::Aborted);
        }
        if let std::task::Poll::Ready(done) = work.as_mut().poll(context) {
            return std::task::Poll::Ready(Outcome::Done(done));
        }
        closing.as_mut().poll(context).map(|()| Outcome::Aborted)
    });
    if millis <= 0.0 {
        return both.await;
    }
    let time = Duration::from_secs_f64(millis / 1000.0);
    rt::timeout(time, both).await.unwrap_or(Outcome::TimedOut)
}

/// A way is busy until this is dropped.
struct Busy(Rc<Process>, fn(&Process) -> &Cell<bool>);

impl Busy {
    fn new(process: &Rc<Process>, mark: fn(&Process) -> &Cell<bool>) -> Busy {
        mark(process).set(true);
        Busy(Rc::clone(process), mark)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        (self.1)(&self.0).set(false);
    }
}

/// Reads: from which pipe, what, and how much.
fn read(stack: &Stack) -> Called {
    let process = this(stack)?;
    let errors = stack.boolean(2);
    let n = optional_number(stack, 4)?.unwrap_or(0.0) as usize;
    let wanted = match bytes(stack, 3)? {
        b"all" => Wanted::All,
        b"line" => Wanted::Line,
        b"any" => Wanted::Any(n),
        _ => Wanted::Exactly(n),
    };
    super::tcp::waits()?;
    if errors && process.merged {
        return answer(stack, Value::failure("merged to stdout"));
    }
    let (way, mark): (&Way, fn(&Process) -> &Cell<bool>) = match errors {
        true => (&process.stderr, |process| &process.stderr.busy),
        false => (&process.stdout, |process| &process.stdout.busy),
    };
    let Some(pipe) = way.pipe.borrow().clone() else {
        return answer(stack, Value::failure("closed"));
    };
    if way.busy.get() {
        return answer(stack, Value::failure("pipe busy reading"));
    }
    let mut scanned = 0;
    if let Some(reply) = wanted.take(&mut way.input.borrow_mut(), &mut scanned) {
        return answer(stack, reply);
    }
    let busy = Busy::new(&process, mark);
    wait(Operation::task(async move {
        let way = match errors {
            true => &process.stderr,
            false => &process.stdout,
        };
        let work = fill(way, &pipe, &wanted, scanned);
        let outcome = bounded(Some(way), way.patience.get(), work).await;
        drop(busy);
        let why = match outcome {
            Outcome::Done(reply) => return reply,
            Outcome::TimedOut => "timeout",
            Outcome::Aborted => "aborted",
        };
        let partial = wanted.partial(&mut way.input.borrow_mut());
        vec![Value::Nil, Value::text(why), Value::Bytes(partial)]
    }))
}

async fn fill(way: &Way, pipe: &Pipe, wanted: &Wanted, mut scanned: usize) -> Reply {
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
                        Value::Nil,
                        Value::text("too much data"),
                        Value::Bytes(std::mem::take(&mut input)),
                    ];
                }
            }
            Err(error) => {
                let partial = wanted.partial(&mut input);
                return vec![
                    Value::Nil,
                    Value::text(words(&error)),
                    Value::Bytes(partial),
                ];
            }
        }
    }
}

fn write(stack: &Stack) -> Called {
    let process = this(stack)?;
    let data = bytes(stack, 2)?.to_vec();
    super::tcp::waits()?;
    let Some(pipe) = process.stdin.pipe.borrow().clone() else {
        return answer(stack, Value::failure("closed"));
    };
    if process.stdin.busy.get() {
        return answer(stack, Value::failure("pipe busy writing"));
    }
    let busy = Busy::new(&process, |process| &process.stdin.busy);
    wait(Operation::task(async move {
        let work = async {
            let mut rest = data.as_slice();
            while !rest.is_empty() {
                let n = poll_fn(|context| pipe.poll_write(context, rest)).await?;
                rest = &rest[n..];
            }
            Ok::<(), io::Error>(())
        };
        let way = &process.stdin;
        let outcome = bounded(Some(way), way.patience.get(), work).await;
        drop(busy);
        match outcome {
            Outcome::Done(Ok(())) => vec![Value::Number(data.len() as f64)],
            Outcome::Done(Err(error)) => {
                way.pipe.take();
                Value::failure(words(&error))
            }
            Outcome::TimedOut => Value::failure("timeout"),
            Outcome::Aborted => Value::failure("aborted"),
        }
    }))
}

fn close(stack: &Stack) -> Called {
    let process = this(stack)?;
    let way = match bytes(stack, 2)? {
        b"stdin" => &process.stdin,
        b"stdout" => &process.stdout,
        _ if process.merged => return answer(stack, Value::failure("merged to stdout")),
        _ => &process.stderr,
    };
    if way.pipe.take().is_none() {
        return answer(stack, Value::failure("closed"));
    }
    way.closing.notify_all();
    stack.push_boolean(true);
    super::ONE
}

fn wait_for_end(stack: &Stack) -> Called {
    let process = this(stack)?;
    super::tcp::waits()?;
    if process.ended.get() {
        return answer(stack, Value::failure("exited"));
    }
    if process.waiting.get() {
        return answer(stack, Value::failure("pipe busy waiting"));
    }
    if process.child.is_none() {
        process.ended.set(true);
        return answer(stack, told(Ended::Exit(1)));
    }
    let busy = Busy::new(&process, |process| &process.waiting);
    wait(Operation::task(async move {
        let end = poll_fn(|context| match &process.child {
            Some(child) => child.poll_end(context),
            None => std::task::Poll::Ready(Ok(Ended::Exit(1))),
        });
        let outcome = bounded(None, process.patience.get(), end).await;
        drop(busy);
        match outcome {
            Outcome::Done(Ok(ended)) => {
                process.ended.set(true);
                told(ended)
            }
            Outcome::Done(Err(error)) => Value::failure(words(&error)),
            Outcome::TimedOut | Outcome::Aborted => Value::failure("timeout"),
        }
    }))
}

fn told(ended: Ended) -> Reply {
    let (reason, status) = match ended {
        Ended::Exit(status) => ("exit", status),
        Ended::Signal(signal) => ("signal", signal),
    };
    vec![
        Value::Boolean(ended == Ended::Exit(0)),
        Value::text(reason),
        Value::Number(f64::from(status)),
    ]
}

fn signal(stack: &Stack) -> Called {
    let process = this(stack)?;
    let number = number(stack, 2)? as i32;
    let running = |child: &&Child| !process.ended.get() && !child.has_ended();
    let Some(child) = process.child.as_ref().filter(running) else {
        return answer(stack, Value::failure("exited"));
    };
    match child.kill(number) {
        Ok(()) => stack.push_boolean(true),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            return answer(stack, Value::failure("invalid signal"));
        }
        Err(error) if error.raw_os_error() == Some(3) => {
            return answer(stack, Value::failure("exited"));
        }
        Err(error) => return fail(words(&error)),
    }
    super::ONE
}
