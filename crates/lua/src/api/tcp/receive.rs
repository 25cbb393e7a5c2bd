//! `receive`, `receiveany`, `receiveuntil` and `peek`: a line, a number of bytes, everything,
//! whatever there is, or up to a delimiter. `ngx.pipe` reads with the same patterns.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use bstr::ByteSlice as _;

use super::super::called::answer;
use super::super::cosocket_transport::CosocketTransport;
use super::super::{ONE, arguments, wait};
use super::socket::SocketBusyGuard;
use super::{CallResult, TcpCosocket, error_text, refuse, send, this_socket};
use crate::chunk::ScriptKind as Script;
use crate::luajit::object::{self, ObjectClass, ObjectShape};
use crate::luajit::stack::LuaType;
use crate::luajit::{LuaStack, LuaValue, fail};
use crate::operation::{ResumeValues, YieldOperation};
use crate::scope;

/// How much unread data a socket buffers, in bytes.
const MAX_INPUT: usize = 64 << 20;

/// How much one read takes at most, in bytes.
const READ_SIZE: usize = 64 * 1024;

/// What to read.
#[derive(Clone)]
pub(in crate::api) enum ReadPattern {
    /// Up to a line feed, which is not returned.
    Line,
    /// Up to the end of the connection.
    All,
    /// This many bytes.
    Exactly(usize),
    /// What there is, at most this many bytes.
    Any(usize),
    /// This many bytes, which remain unread.
    Peek(usize),
    /// Up to a delimiter, at most this many bytes at a time.
    Until(Rc<ReadDelimiter>, Option<usize>),
}

/// A delimiter to read up to, and the state of the search.
pub(in crate::api) struct ReadDelimiter {
    /// The delimiter.
    text: Vec<u8>,
    /// The failure table of the Knuth–Morris–Pratt search: for each prefix, the length of its
    /// longest proper prefix that is also its suffix. With it each byte is looked at once, however
    /// the data is split and however the delimiter repeats itself.
    borders: Vec<usize>,
    /// The delimiter is part of the result.
    inclusive: bool,
    /// It was reached: the next call returns nil, then reading continues behind it.
    reached: Cell<bool>,
}

impl ReadPattern {
    /// Takes the data out of the input if it is complete. `scanned` is how much of the input was
    /// searched before, so that slow data does not cost quadratic time.
    pub(in crate::api) fn take(
        &self,
        input: &mut Vec<u8>,
        scanned: &mut usize,
    ) -> Option<ResumeValues> {
        match self {
            ReadPattern::Line => {
                let from = std::mem::replace(scanned, input.len());
                let end = from + input.get(from..)?.find_byte(b'\n')?;
                let mut line: Vec<u8> = input.drain(..=end).collect();
                line.pop();
                // lua-nginx-module drops every carriage return of the line, not only the last.
                line.retain(|byte| *byte != b'\r');
                Some(vec![LuaValue::Bytes(line)])
            }
            ReadPattern::All => None,
            ReadPattern::Exactly(n) => {
                (input.len() >= *n).then(|| vec![LuaValue::Bytes(input.drain(..*n).collect())])
            }
            ReadPattern::Peek(n) => (input.len() >= *n).then(|| vec![LuaValue::text(&input[..*n])]),
            ReadPattern::Any(most) => {
                let n = input.len().min(*most);
                (n > 0).then(|| vec![LuaValue::Bytes(input.drain(..n).collect())])
            }
            ReadPattern::Until(mark, None) => mark.find(input, scanned),
            ReadPattern::Until(mark, Some(most)) => mark.find_within(input, *most),
        }
    }

    /// What there is of it when no more comes: the "partial" result of an error.
    pub(in crate::api) fn partial(&self, input: &mut Vec<u8>) -> Vec<u8> {
        match self {
            ReadPattern::Until(mark, _) => {
                // What may be the start of the delimiter stays: it is not known yet whether it is
                // data.
                let keep = mark.beginning_at_end_of(input);
                let sure = input.len() - keep;
                input.drain(..sure).collect()
            }
            _ => std::mem::take(input),
        }
    }

    /// The result at the end of the connection.
    pub(in crate::api) fn at_end(&self, input: &mut Vec<u8>) -> ResumeValues {
        if let ReadPattern::Peek(_) = self {
            return LuaValue::failure("closed");
        }
        let rest = self.partial(input);
        match self {
            ReadPattern::All => vec![LuaValue::Bytes(rest)],
            _ => vec![
                LuaValue::Nil,
                LuaValue::text("closed"),
                LuaValue::Bytes(rest),
            ],
        }
    }
}

impl ReadDelimiter {
    /// Computes the failure table.
    fn new(text: Vec<u8>, inclusive: bool) -> ReadDelimiter {
        let mut borders = vec![0; text.len() + 1];
        let mut border = 0;
        for at in 1..text.len() {
            while border > 0 && text[border] != text[at] {
                border = borders[border];
            }
            border += usize::from(text[border] == text[at]);
            borders[at + 1] = border;
        }
        ReadDelimiter {
            text,
            borders,
            inclusive,
            reached: Cell::new(false),
        }
    }

    /// The data before the delimiter, if that is there.
    fn find(&self, input: &mut Vec<u8>, scanned: &mut usize) -> Option<ResumeValues> {
        // The delimiter may have been cut by the end of the last read.
        let from = scanned.saturating_sub(self.text.len() - 1);
        *scanned = input.len();
        let at = from + input.get(from..)?.find(&self.text)?;
        Some(self.up_to(input, at))
    }

    /// Takes the data up to the delimiter at `at`, and the delimiter.
    fn up_to(&self, input: &mut Vec<u8>, at: usize) -> ResumeValues {
        let mut data: Vec<u8> = input.drain(..at + self.text.len()).collect();
        if !self.inclusive {
            data.truncate(at);
        }
        vec![LuaValue::Bytes(data)]
    }

    /// At least `most` bytes of the data before the delimiter, if they are there. There may be a
    /// few more, where they looked like its beginning, as in lua-nginx-module.
    fn find_within(&self, input: &mut Vec<u8>, most: usize) -> Option<ResumeValues> {
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
        (sure >= most).then(|| vec![LuaValue::Bytes(input.drain(..sure).collect())])
    }

    /// How many bytes at the end may belong to the delimiter.
    fn beginning_at_end_of(&self, input: &[u8]) -> usize {
        let longest = input.len().min(self.text.len() - 1);
        (1..=longest)
            .rev()
            .find(|n| input.ends_with(&self.text[..*n]))
            .unwrap_or(0)
    }
}

/// `sock:receive(size | "*a" | "*l")`.
pub(super) fn receive(stack: &LuaStack) -> CallResult {
    let top = stack.top();
    if !(1..=2).contains(&top) {
        return fail(format!(
            "expecting 1 or 2 arguments (including the object), but got {top}"
        ));
    }
    let socket = this_socket(stack)?;
    let wire = match transport_to_read(stack, &socket)? {
        Ok(wire) => wire,
        Err(called) => return called,
    };
    let wanted = match (stack.type_at(2), stack.number(2)) {
        (LuaType::None, _) => ReadPattern::Line,
        (_, Some(n)) if n.trunc() < 0.0 => return Err(stack.bad_argument(2, "bad number argument")),
        (_, Some(n)) => ReadPattern::Exactly(n as usize),
        (LuaType::String, None) => match arguments::bytes(stack, 2)? {
            b"*l" => ReadPattern::Line,
            b"*a" => ReadPattern::All,
            [b'*', _] => return Err(stack.bad_argument(2, "bad pattern argument")),
            other => {
                let message = format!("bad pattern argument: {}", other.as_bstr());
                return Err(stack.bad_argument(2, &message));
            }
        },
        _ => return Err(stack.bad_argument(2, "bad argument")),
    };
    // No byte has to be awaited.
    if matches!(wanted, ReadPattern::Exactly(0)) {
        stack.push_bytes("");
        return ONE;
    }
    take(stack, socket, wire, wanted)
}

/// `sock:receiveany(max)`.
pub(super) fn receive_any(stack: &LuaStack) -> CallResult {
    if stack.top() != 2 {
        return fail(format!(
            "expecting 2 arguments (including the object), but got {}",
            stack.top()
        ));
    }
    let socket = this_socket(stack)?;
    let wire = match transport_to_read(stack, &socket)? {
        Ok(wire) => wire,
        Err(called) => return called,
    };
    match stack.number(2) {
        Some(most) if most >= 1.0 => take(stack, socket, wire, ReadPattern::Any(most as usize)),
        _ => Err(stack.bad_argument(2, "bad max argument")),
    }
}

/// `sock:peek(size)`, in preread scripts: the bytes stay for the next reader.
pub(super) fn peek(stack: &LuaStack) -> CallResult {
    let socket = this_socket(stack)?;
    let n = arguments::number(stack, 2)?;
    if n < 1.0 {
        return fail("bad number argument");
    }
    if scope::with(|scope| scope.kind != Script::Preread)? {
        return fail("API disabled in the current context: only preread_by_lua* may peek");
    }
    match transport_to_read(stack, &socket)? {
        Ok(wire) => take(stack, socket, wire, ReadPattern::Peek(n as usize)),
        Err(called) => called,
    }
}

/// The connection, if a read may start; otherwise what is returned to the script.
fn transport_to_read(
    stack: &LuaStack,
    socket: &Rc<TcpCosocket>,
) -> Result<Result<CosocketTransport, CallResult>, crate::luajit::LuaError> {
    socket.check_closed_with_owner()?;
    let wire = match socket.readable() {
        Ok(wire) => wire,
        Err(message) => {
            send::closed(socket, "receive")?;
            return Ok(Err(refuse(stack, message)));
        }
    };
    socket.check_owner()?;
    Ok(match socket.check_not_busy(true, false) {
        Ok(()) => Ok(wire),
        Err(message) => Err(refuse(stack, message)),
    })
}

/// Returns the data if it is buffered, else waits for it.
fn take(
    stack: &LuaStack,
    socket: Rc<TcpCosocket>,
    wire: CosocketTransport,
    wanted: ReadPattern,
) -> CallResult {
    let mut scanned = 0;
    if let Some(reply) = wanted.take(&mut socket.input.borrow_mut(), &mut scanned) {
        return answer(stack, reply);
    }
    let busy = SocketBusyGuard::new(&socket, |socket| &socket.reading);
    wait(YieldOperation::task(async move {
        let reply = fill(&socket, &wire, &wanted, scanned).await;
        busy.over();
        reply
    }))
}

/// Reads until the pattern is satisfied. The timeout applies to each read, as in lua-nginx-module.
async fn fill(
    socket: &TcpCosocket,
    wire: &CosocketTransport,
    wanted: &ReadPattern,
    mut scanned: usize,
) -> ResumeValues {
    let mut buffer = Vec::new();
    loop {
        buffer.clear();
        let time: Duration = socket.read_timeout.get();
        let read = rt::timeout(time, wire.read(&mut buffer, READ_SIZE)).await;
        let mut input = socket.input.borrow_mut();
        match read {
            Err(_) if matches!(wanted, ReadPattern::Peek(_)) => {
                return LuaValue::failure("timeout");
            }
            // A timeout does not close the connection: the script may read again.
            Err(_) => return with_partial("timeout", wanted.partial(&mut input)),
            Ok(Ok(0)) => {
                let reply = wanted.at_end(&mut input);
                if !matches!(wanted, ReadPattern::All | ReadPattern::Peek(_)) {
                    input.clear();
                    // The other direction stays open: the server may have shut down only its side.
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
                // The pattern may never be satisfied, and a server must not fill the memory
                // meanwhile.
                if input.len() > MAX_INPUT {
                    return with_partial("too much data", std::mem::take(&mut input));
                }
            }
            Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(Err(error)) => {
                let partial = wanted.partial(&mut input);
                input.clear();
                socket.read_closed.set(true);
                return with_partial(&error_text(&error), partial);
            }
        }
    }
}

/// Returns nil, an error, and what there is.
fn with_partial(error: &str, partial: Vec<u8>) -> ResumeValues {
    vec![
        LuaValue::Nil,
        LuaValue::text(error),
        LuaValue::Bytes(partial),
    ]
}

/// The iterator of `receiveuntil`.
struct DelimiterReader {
    socket: Rc<TcpCosocket>,
    mark: Rc<ReadDelimiter>,
}

static UNTIL: ObjectClass = ObjectClass {
    name: "weir.socket.until",
    shape: ObjectShape::Userdata,
    methods: &[("read", read_until)],
};

/// `sock:receiveuntil(pattern, options)`: `sockets.lua` makes a function of the iterator.
pub(super) fn receive_until(stack: &LuaStack) -> CallResult {
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
            LuaType::Nil => {}
            LuaType::Boolean => inclusive = stack.boolean(-1),
            kind => {
                return fail(format!(
                    "bad \"inclusive\" option value type: {}",
                    kind.name()
                ));
            }
        }
        stack.pop(1);
    }
    let socket = this_socket(stack)?;
    let mark = arguments::text(stack, 2)?;
    if mark.is_empty() {
        return refuse(stack, "pattern is empty");
    }
    let mark = Rc::new(ReadDelimiter::new(mark, inclusive));
    object::push(stack, &UNTIL, Rc::new(DelimiterReader { socket, mark }));
    ONE
}

/// The iterator's call: reads up to the delimiter, or `size` bytes.
fn read_until(stack: &LuaStack) -> CallResult {
    if stack.top() > 2 {
        return fail(format!(
            "expecting 0 or 1 argument, but seen {}",
            stack.top() - 1
        ));
    }
    let until: Rc<DelimiterReader> = object::get(stack, 1, "reader")?;
    let most = match stack.type_at(2) {
        LuaType::None => None,
        _ => Some(arguments::number(stack, 2)?).filter(|n| *n >= 1.0),
    };
    let socket = Rc::clone(&until.socket);
    if socket.readable().is_err() {
        return refuse(stack, "closed");
    }
    let wire = match transport_to_read(stack, &socket)? {
        Ok(wire) => wire,
        Err(called) => return called,
    };
    // The last call reached the delimiter: this one is the documented end of the iteration, and the
    // next one begins anew.
    if until.mark.reached.take() {
        return answer(stack, vec![LuaValue::Nil, LuaValue::Nil, LuaValue::Nil]);
    }
    let mark = Rc::clone(&until.mark);
    take(
        stack,
        socket,
        wire,
        ReadPattern::Until(mark, most.map(|n| n as usize)),
    )
}
