//! Receiving: a line, a number of bytes, all, whatever there is, or up to a mark.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use bstr::ByteSlice as _;

use super::super::output::answer;
use super::super::wire::Wire;
use super::super::{ONE, arguments, wait};
use super::{Busy, Called, Tcp, refuse, send, this, words};
use crate::chunk::Kind as Script;
use crate::luajit::object::{self, Class, Shape};
use crate::luajit::stack::Kind;
use crate::luajit::{Stack, Value, fail};
use crate::operation::{Operation, Reply};
use crate::scope;

/// What a socket holds unread, in bytes.
const MAX_INPUT: usize = 64 << 20;

/// What one read takes at most, in bytes.
const READ_SIZE: usize = 64 * 1024;

/// What is waited for.
#[derive(Clone)]
pub(in crate::api) enum Wanted {
    Line,
    All,
    Exactly(usize),
    Any(usize),
    /// This many bytes, which stay.
    Peek(usize),
    /// Up to a mark; what stands before it, at most this many bytes at a time.
    Until(Rc<Mark>, Option<usize>),
}

/// A mark to read up to.
pub(in crate::api) struct Mark {
    text: Vec<u8>,
    /// For each length of a beginning of it: how much of that beginning's end it begins with.
    borders: Vec<usize>,
    inclusive: bool,
    /// It was reached: the next call says so.
    reached: Cell<bool>,
}

impl Wanted {
    /// Takes what is wanted out of the input, if it is there. What `scanned` counts was looked at before.
    pub(in crate::api) fn take(&self, input: &mut Vec<u8>, scanned: &mut usize) -> Option<Reply> {
        match self {
            Wanted::Line => {
                let from = std::mem::replace(scanned, input.len());
                let end = from + input.get(from..)?.find_byte(b'\n')?;
                let mut line: Vec<u8> = input.drain(..=end).collect();
                line.pop();
                // As the library does: every carriage return goes.
                line.retain(|byte| *byte != b'\r');
                Some(vec![Value::Bytes(line)])
            }
            Wanted::All => None,
            Wanted::Exactly(n) => {
                (input.len() >= *n).then(|| vec![Value::Bytes(input.drain(..*n).collect())])
            }
            Wanted::Peek(n) => (input.len() >= *n).then(|| vec![Value::text(&input[..*n])]),
            Wanted::Any(most) => {
                let n = input.len().min(*most);
                (n > 0).then(|| vec![Value::Bytes(input.drain(..n).collect())])
            }
            Wanted::Until(mark, None) => mark.find(input, scanned),
            Wanted::Until(mark, Some(most)) => mark.find_within(input, *most),
        }
    }

    /// What came of it, when no more comes for now.
    pub(in crate::api) fn partial(&self, input: &mut Vec<u8>) -> Vec<u8> {
        match self {
            Wanted::Until(mark, _) => {
                // What may be the beginning of the mark is neither here nor there.
                let keep = mark.beginning_at_end_of(input);
                let sure = input.len() - keep;
                input.drain(..sure).collect()
            }
            _ => std::mem::take(input),
        }
    }

    /// What the end of the connection means.
    pub(in crate::api) fn at_end(&self, input: &mut Vec<u8>) -> Reply {
        if let Wanted::Peek(_) = self {
            return Value::failure("closed");
        }
        let rest = self.partial(input);
        match self {
            Wanted::All => vec![Value::Bytes(rest)],
            _ => vec![Value::Nil, Value::text("closed"), Value::Bytes(rest)],
        }
    }
}

impl Mark {
    fn new(text: Vec<u8>, inclusive: bool) -> Mark {
        let mut borders = vec![0; text.len() + 1];
        let mut border = 0;
        for at in 1..text.len() {
            while border > 0 && text[border] != text[at] {
                border = borders[border];
            }
            border += usize::from(text[border] == text[at]);
            borders[at + 1] = border;
        }
        Mark {
            text,
            borders,
            inclusive,
            reached: Cell::new(false),
        }
    }

    fn find(&self, input: &mut Vec<u8>, scanned: &mut usize) -> Option<Reply> {
        let from = scanned.saturating_sub(self.text.len() - 1);
        *scanned = input.len();
        let at = from + input.get(from..)?.find(&self.text)?;
        Some(self.up_to(input, at))
    }

    fn up_to(&self, input: &mut Vec<u8>, at: usize) -> Reply {
        let mut data: Vec<u8> = input.drain(..at + self.text.len()).collect();
        if !self.inclusive {
            data.truncate(at);
        }
        vec![Value::Bytes(data)]
    }

    /// Some `most` bytes before the mark: a few more where they looked like its beginning, as in lua-nginx-module.
    fn find_within(&self, input: &mut Vec<u8>, most: usize) -> Option<Reply> {
        let (mut state, mut sure) = (0, 0);
        for at in 0..input.len() {
            let byte = input[at];
            while state > 0 && self.text[state] != byte {
                state = self.borders[state];
            }
            state += usize::from(self.text[state] == byte);
            if state == self.text.len() {
                self.reached.set(true);
                return Some(self.up_to(input, at + 1 - state));
            }
            sure = at + 1 - state;
            if sure >= most {
                break;
            }
        }
        (sure >= most).then(|| vec![Value::Bytes(input.drain(..sure).collect())])
    }

    /// How many bytes at the end may begin the mark.
    fn beginning_at_end_of(&self, input: &[u8]) -> usize {
        let longest = input.len().min(self.text.len() - 1);
        (1..=longest)
            .rev()
            .find(|n| input.ends_with(&self.text[..*n]))
            .unwrap_or(0)
    }
}

pub(super) fn receive(stack: &Stack) -> Called {
    let top = stack.top();
    if !(1..=2).contains(&top) {
        return fail(format!(
            "expecting 1 or 2 arguments (including the object), but got {top}"
        ));
    }
    let socket = this(stack)?;
    let wire = match ready(stack, &socket)? {
        Ok(wire) => wire,
        Err(called) => return called,
    };
    let wanted = match (stack.kind(2), stack.number(2)) {
        (Kind::None, _) => Wanted::Line,
        (_, Some(n)) if n.trunc() < 0.0 => return Err(stack.bad_argument(2, "bad number argument")),
        (_, Some(n)) => Wanted::Exactly(n as usize),
        (Kind::String, None) => match arguments::bytes(stack, 2)? {
            b"*l" => Wanted::Line,
            b"*a" => Wanted::All,
            [b'*', _] => return Err(stack.bad_argument(2, "bad pattern argument")),
            other => {
                let message = format!("bad pattern argument: {}", other.as_bstr());
                return Err(stack.bad_argument(2, &message));
            }
        },
        _ => return Err(stack.bad_argument(2, "bad argument")),
    };
    if matches!(wanted, Wanted::Exactly(0)) {
        stack.push_bytes("");
        return ONE;
    }
    take(stack, socket, wire, wanted)
}

pub(super) fn receive_any(stack: &Stack) -> Called {
    if stack.top() != 2 {
        return fail(format!(
            "expecting 2 arguments (including the object), but got {}",
            stack.top()
        ));
    }
    let socket = this(stack)?;
    let wire = match ready(stack, &socket)? {
        Ok(wire) => wire,
        Err(called) => return called,
    };
    match stack.number(2) {
        Some(most) if most >= 1.0 => take(stack, socket, wire, Wanted::Any(most as usize)),
        _ => Err(stack.bad_argument(2, "bad max argument")),
    }
}

/// Looks at the first bytes of a client of stream, and leaves them for the next reader.
pub(super) fn peek(stack: &Stack) -> Called {
    let socket = this(stack)?;
    let n = arguments::number(stack, 2)?;
    if n < 1.0 {
        return fail("bad number argument");
    }
    if scope::with(|scope| scope.kind != Script::Preread)? {
        return fail("API disabled in the current context: only preread_by_lua* may peek");
    }
    match ready(stack, &socket)? {
        Ok(wire) => take(stack, socket, wire, Wanted::Peek(n as usize)),
        Err(called) => called,
    }
}

/// The connection, if a read may begin on it; or what is answered instead.
fn ready(stack: &Stack, socket: &Rc<Tcp>) -> Result<Result<Wire, Called>, crate::luajit::Failure> {
    socket.check_left()?;
    let wire = match socket.to_read() {
        Ok(wire) => wire,
        Err(message) => {
            send::closed(socket, "receive")?;
            return Ok(Err(refuse(stack, message)));
        }
    };
    socket.check_owner()?;
    Ok(match socket.busy(true, false) {
        Ok(()) => Ok(wire),
        Err(message) => Err(refuse(stack, message)),
    })
}

fn take(stack: &Stack, socket: Rc<Tcp>, wire: Wire, wanted: Wanted) -> Called {
    let mut scanned = 0;
    if let Some(reply) = wanted.take(&mut socket.input.borrow_mut(), &mut scanned) {
        return answer(stack, reply);
    }
    let busy = Busy::new(&socket, |socket| &socket.reading);
    wait(Operation::task(async move {
        let reply = fill(&socket, &wire, &wanted, scanned).await;
        busy.over();
        reply
    }))
}

/// Reads until what is wanted is there. The time that the script grants is that of each piece.
async fn fill(socket: &Tcp, wire: &Wire, wanted: &Wanted, mut scanned: usize) -> Reply {
    let mut buffer = Vec::new();
    loop {
        buffer.clear();
        let time: Duration = socket.read_timeout.get();
        let read = rt::timeout(time, wire.read(&mut buffer, READ_SIZE)).await;
        let mut input = socket.input.borrow_mut();
        match read {
            Err(_) if matches!(wanted, Wanted::Peek(_)) => return Value::failure("timeout"),
            // The connection stays as it is: the script may go on reading.
            Err(_) => return with_partial("timeout", wanted.partial(&mut input)),
            Ok(Ok(0)) => {
                let reply = wanted.at_end(&mut input);
                if !matches!(wanted, Wanted::All | Wanted::Peek(_)) {
                    input.clear();
                    // What was read to its end may still be written to.
                    socket.read_closed.set(true);
                }
                return reply;
            }
            Ok(Ok(n)) => {
                socket.received.set(socket.received.get() + n as u64);
                input.extend_from_slice(&buffer);
                if let Some(reply) = wanted.take(&mut input, &mut scanned) {
                    return reply;
                }
                if input.len() > MAX_INPUT {
                    return with_partial("too much data", std::mem::take(&mut input));
                }
            }
            Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(Err(error)) => {
                let partial = wanted.partial(&mut input);
                input.clear();
                socket.read_closed.set(true);
                return with_partial(&words(&error), partial);
            }
        }
    }
}

fn with_partial(error: &str, partial: Vec<u8>) -> Reply {
    vec![Value::Nil, Value::text(error), Value::Bytes(partial)]
}

/// What reads up to a mark.
struct Until {
    socket: Rc<Tcp>,
    mark: Rc<Mark>,
}

static UNTIL: Class = Class {
    name: "weir.socket.until",
    shape: Shape::Userdata,
    methods: &[("read", read_until)],
};

pub(super) fn receive_until(stack: &Stack) -> Called {
    let top = stack.top();
    if !(2..=3).contains(&top) {
        return fail(format!(
            "expecting 2 or 3 arguments (including the object), but got {top}"
        ));
    }
    let mut inclusive = false;
    if top == 3 {
        arguments::table(stack, 3)?;
        match stack.field(3, "inclusive") {
            Kind::Nil => {}
            Kind::Boolean => inclusive = stack.boolean(-1),
            kind => {
                return fail(format!(
                    "bad \"inclusive\" option value type: {}",
                    kind.name()
                ));
            }
        }
        stack.pop(1);
    }
    let socket = this(stack)?;
    let mark = arguments::text(stack, 2)?;
    if mark.is_empty() {
        return refuse(stack, "pattern is empty");
    }
    let mark = Rc::new(Mark::new(mark, inclusive));
    object::push(stack, &UNTIL, Rc::new(Until { socket, mark }));
    ONE
}

fn read_until(stack: &Stack) -> Called {
    if stack.top() > 2 {
        return fail(format!(
            "expecting 0 or 1 argument, but seen {}",
            stack.top() - 1
        ));
    }
    let until: Rc<Until> = object::get(stack, 1, "reader")?;
    let most = match stack.kind(2) {
        Kind::None => None,
        _ => Some(arguments::number(stack, 2)?).filter(|n| *n >= 1.0),
    };
    let socket = Rc::clone(&until.socket);
    if socket.to_read().is_err() {
        return refuse(stack, "closed");
    }
    let wire = match ready(stack, &socket)? {
        Ok(wire) => wire,
        Err(called) => return called,
    };
    if until.mark.reached.take() {
        return answer(stack, vec![Value::Nil, Value::Nil, Value::Nil]);
    }
    let mark = Rc::clone(&until.mark);
    take(
        stack,
        socket,
        wire,
        Wanted::Until(mark, most.map(|n| n as usize)),
    )
}
