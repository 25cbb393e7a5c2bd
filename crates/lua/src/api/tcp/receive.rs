//! `receive`, `receiveany`, `receiveuntil` and `peek`: a line, a number of bytes, everything,
//! whatever there is, or up to a delimiter. `ngx.pipe` reads with the same patterns.

use std::cell::Cell;
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
    /// Up to a delimiter; with a number in pieces of that size. A piece is longer by what looked like the beginning of
    /// the delimiter and was not, and the last one is shorter.
    Until(Rc<ReadDelimiter>, Option<usize>),
}

/// A delimiter to read up to, and the state of the search.
pub(in crate::api) struct ReadDelimiter {
    /// The delimiter.
    text: Vec<u8>,
    /// The failure table of the Knuth–Morris–Pratt search: for each prefix, the length of its
    /// longest proper prefix that is also its suffix. With it the time is linear in the data,
    /// however the delimiter repeats itself.
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
            ReadPattern::Until(delimiter, None) => delimiter.find(input, scanned),
            ReadPattern::Until(delimiter, Some(most)) => {
                delimiter.find_within(input, scanned, *most)
            }
        }
    }

    /// Takes what there is of it when no more comes: the "partial" result of an error.
    pub(in crate::api) fn partial(&self, input: &mut Vec<u8>) -> Vec<u8> {
        match self {
            ReadPattern::Until(delimiter, _) => {
                // What may be the beginning of the delimiter is not returned: after a timeout the next
                // call needs it to recognize the delimiter. As in lua-nginx-module, that is so at the end
                // of the connection too, where these bytes are lost.
                let keep = delimiter.beginning_at_end_of(input);
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
            // The end is what was waited for, and no error. So the socket stays readable, and as in
            // lua-nginx-module another `receive("*a")` returns an empty string.
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

    /// At least `least` bytes of the data before the delimiter, or all of it. There may be a few
    /// more, where they looked like the delimiter's beginning, as in lua-nginx-module.
    fn find_within(
        &self,
        input: &mut Vec<u8>,
        scanned: &mut usize,
        least: usize,
    ) -> Option<ResumeValues> {
        let known = std::mem::replace(scanned, input.len());
        // How much of the delimiter had been seen before `known` follows from the bytes there, of which
        // the delimiter without its last byte is the most that matters.
        let from = known.saturating_sub(self.text.len() - 1);
        let mut seen = 0;
        for at in from..input.len() {
            let byte = input[at];
            while seen > 0 && self.text[seen] != byte {
                seen = self.borders[seen];
            }
            seen += usize::from(self.text[seen] == byte);
            if seen == self.text.len() {
                self.reached.set(true);
                return Some(self.up_to(input, at + 1 - seen));
            }
            // Before `known` the count is still too low, and there were too few bytes anyway.
            let data = at + 1 - seen;
            if at >= known && data >= least {
                return Some(vec![LuaValue::Bytes(input.drain(..data).collect())]);
            }
        }
        None
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
    let transport = match transport_to_read(stack, &socket)? {
        Ok(transport) => transport,
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
    reply_or_wait(stack, socket, transport, wanted)
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
    let transport = match transport_to_read(stack, &socket)? {
        Ok(transport) => transport,
        Err(called) => return called,
    };
    match stack.number(2) {
        Some(most) if most >= 1.0 => {
            reply_or_wait(stack, socket, transport, ReadPattern::Any(most as usize))
        }
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
        Ok(transport) => reply_or_wait(stack, socket, transport, ReadPattern::Peek(n as usize)),
        Err(called) => called,
    }
}

/// The connection, if a read may start; otherwise what is returned to the script.
fn transport_to_read(
    stack: &LuaStack,
    socket: &Rc<TcpCosocket>,
) -> Result<Result<CosocketTransport, CallResult>, crate::luajit::LuaError> {
    socket.check_closed_with_owner()?;
    let transport = match socket.readable() {
        Ok(transport) => transport,
        Err(message) => {
            send::closed(socket, "receive")?;
            return Ok(Err(refuse(stack, message)));
        }
    };
    socket.check_owner()?;
    Ok(match socket.check_not_busy(true, false) {
        Ok(()) => Ok(transport),
        Err(message) => Err(refuse(stack, message)),
    })
}

/// Returns the data if it is buffered, else waits for it.
fn reply_or_wait(
    stack: &LuaStack,
    socket: Rc<TcpCosocket>,
    transport: CosocketTransport,
    wanted: ReadPattern,
) -> CallResult {
    let mut scanned = 0;
    if let Some(reply) = wanted.take(&mut socket.input.borrow_mut(), &mut scanned) {
        return answer(stack, reply);
    }
    let busy = SocketBusyGuard::new(&socket, |socket| &socket.reading);
    wait(YieldOperation::task(async move {
        let reply = read_reply(&socket, &transport, &wanted, scanned).await;
        busy.over();
        reply
    }))
}

/// Reads until the pattern is satisfied, and returns what the script gets. The timeout applies to each
/// read, as in lua-nginx-module.
async fn read_reply(
    socket: &TcpCosocket,
    transport: &CosocketTransport,
    wanted: &ReadPattern,
    mut scanned: usize,
) -> ResumeValues {
    let mut buffer = Vec::new();
    loop {
        buffer.clear();
        let time: Duration = socket.read_timeout.get();
        let read = rt::timeout(time, transport.read(&mut buffer, READ_SIZE)).await;
        // Borrowed after the wait: meanwhile other coroutines may close the socket, which empties the input.
        let mut input = socket.input.borrow_mut();
        match read {
            // `peek` takes nothing, so there is no partial result either.
            Err(_) if matches!(wanted, ReadPattern::Peek(_)) => {
                return LuaValue::failure("timeout");
            }
            // A timeout does not close the connection: the script may read again.
            Err(_) => return with_partial("timeout", wanted.partial(&mut input)),
            Ok(Ok(0)) => {
                let reply = wanted.at_end(&mut input);
                // `All` has found what it wanted, and what `Peek` has seen is still to be read. For all
                // others the end is an error, after which the socket cannot be read any more.
                if !matches!(wanted, ReadPattern::All | ReadPattern::Peek(_)) {
                    input.clear();
                    // Only this direction: the server may have shut down its side alone.
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
                    if let ReadPattern::Peek(_) = wanted {
                        return LuaValue::failure("too much data");
                    }
                    // All of it, even what may be a delimiter's beginning: the script is not expected to
                    // go on reading.
                    return with_partial("too much data", std::mem::take(&mut input));
                }
            }
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
    delimiter: Rc<ReadDelimiter>,
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
    let delimiter = arguments::text(stack, 2)?;
    if delimiter.is_empty() {
        return refuse(stack, "pattern is empty");
    }
    let delimiter = Rc::new(ReadDelimiter::new(delimiter, inclusive));
    object::push(
        stack,
        &UNTIL,
        Rc::new(DelimiterReader { socket, delimiter }),
    );
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
    socket.check_closed_with_owner()?;
    if socket.readable().is_err() {
        return refuse(stack, "closed");
    }
    let transport = match transport_to_read(stack, &socket)? {
        Ok(transport) => transport,
        Err(called) => return called,
    };
    // A read in pieces reached the delimiter with its last piece. This call is the documented end of the
    // iteration, and the next one begins anew.
    if until.delimiter.reached.take() {
        return answer(stack, vec![LuaValue::Nil, LuaValue::Nil, LuaValue::Nil]);
    }
    let delimiter = Rc::clone(&until.delimiter);
    reply_or_wait(
        stack,
        socket,
        transport,
        ReadPattern::Until(delimiter, most.map(|n| n as usize)),
    )
}
