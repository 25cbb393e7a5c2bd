//! `ngx.re`: regular expressions by PCRE2, in the words of lua-resty-core.

use std::cell::Cell;
use std::rc::Rc;

use bstr::ByteSlice;

use super::arguments::anything;
use super::template::{self, Part};
use super::{Called, Functions};
use crate::luajit::object::{self, Class, Shape};
use crate::luajit::stack::Kind;
use crate::luajit::{Answer, Failure, Stack, Value, fail};
use crate::pcre::{self, Options, Program};
use crate::scope;

pub(super) const FUNCTIONS: Functions = &[("match", match_), ("find", find)];

pub(super) const CORE: Functions = &[
    ("re_begin", begin),
    ("re_next", next),
    ("re_at", at),
    ("re_replace", replace),
    ("re_stack_size", set_stack_size),
    ("re_cache_is_empty", cache_is_empty),
];

/// A compiled pattern.
pub(crate) type Pattern = Program;

/// The longest message about a pattern, in bytes; it shows the pattern.
const MAX_MESSAGE: usize = 255;

/// What compiling says that failed.
fn message(pattern: &[u8], fault: &pcre::Fault) -> Vec<u8> {
    let mut text = b"pcre2_compile() failed: ".to_vec();
    text.extend_from_slice(&fault.text);
    text.extend_from_slice(b" in \"");
    text.extend_from_slice(pattern);
    text.push(b'"');
    if fault.at < pattern.len() {
        text.extend_from_slice(b" at \"");
        text.extend_from_slice(&pattern[fault.at..]);
        text.push(b'"');
    }
    // A message is a text of C.
    let end = text.find_byte(0).unwrap_or(text.len());
    text.truncate(end.min(MAX_MESSAGE));
    text
}

/// The options at `at` and their letters.
fn options(stack: &Stack, at: i32) -> Result<(Options, &[u8]), Failure> {
    let letters = match stack.kind(at) {
        Kind::Nil | Kind::None => &b""[..],
        Kind::Boolean if !stack.boolean(at) => b"",
        Kind::Table if stack.length(at) == 0 => b"",
        Kind::String => stack.bytes(at).unwrap_or_default(),
        Kind::Table => return fail("bad argument #1 to 'byte' (string expected, got table)"),
        kind => {
            let kind = kind.name();
            return fail(format!(
                "attempt to get length of local 'opts' (a {kind} value)"
            ));
        }
    };
    match pcre::options(letters) {
        Ok(options) => Ok((options, letters)),
        Err(bad) => fail(format!(
            "unknown flag \"{}\" (flags \"{}\")",
            letters[bad..=bad].as_bstr(),
            letters.as_bstr()
        )),
    }
}

/// The pattern of argument 2 with options in argument `at`, compiled or from the machine's cache.
fn pattern(stack: &Stack, at: i32) -> Result<Result<Rc<Pattern>, Vec<u8>>, Failure> {
    let (options, letters) = options(stack, at)?;
    let source = match stack.kind(2) {
        Kind::String => stack.bytes(2).unwrap_or_default(),
        Kind::Number => return no_pattern("get length of", Kind::Number),
        kind if options.keep => return no_pattern("concatenate", kind),
        kind => return no_pattern("get length of", kind),
    };
    scope::with(|scope| {
        let vm = &scope.vm;
        if !options.keep {
            let made = Program::compile(source, options, &vm.matcher);
            return made.map(Rc::new).map_err(|fault| message(source, &fault));
        }
        let mut key = Vec::with_capacity(source.len() + letters.len() + 1);
        key.extend_from_slice(letters);
        key.push(b'/');
        key.extend_from_slice(source);
        if let Some(known) = vm.patterns.borrow_mut().get(&key) {
            return Ok(Rc::clone(known));
        }
        let made = Program::compile(source, options, &vm.matcher);
        let made = Rc::new(made.map_err(|fault| message(source, &fault))?);
        vm.matcher.has_kept.set(true);
        vm.patterns.borrow_mut().insert(key, Rc::clone(&made));
        Ok(made)
    })
}

fn no_pattern<T>(what: &str, kind: Kind) -> Result<T, Failure> {
    let kind = match kind {
        Kind::None => Kind::Nil,
        kind => kind,
    };
    let kind = kind.name();
    fail(format!("attempt to {what} local 'regex' (a {kind} value)"))
}

fn failed(stack: &Stack, message: impl Into<Vec<u8>>) -> Called {
    super::output::answer(stack, Value::failure(message.into()))
}

fn not_matched(error: i32) -> String {
    format!("pcre_exec() failed: {error}")
}

/// What functions with two results say that could not do it.
fn nothing_and(stack: &Stack, message: impl AsRef<[u8]>) -> Called {
    stack.push_nil();
    stack.push_nil();
    stack.push_bytes(message);
    Ok(Answer::Values(3))
}

/// Fills the table at `table` with the groups of the last match.
fn fill(pattern: &Pattern, stack: &Stack, table: i32, subject: &[u8]) {
    let push = |n: usize| match pattern.group(n) {
        Some((from, to)) => stack.push_bytes(&subject[from..to]),
        None => stack.push_boolean(false),
    };
    for n in 0..=pattern.groups {
        push(n);
        stack.set_element(table, n);
    }
    if pattern.groups == 0 {
        // The other algorithm has names, and no groups for them.
        return;
    }
    for (n, name) in &pattern.names {
        if pattern.options.duplicates {
            add_to_list(pattern, stack, table, subject, (*n, name));
            continue;
        }
        push(*n);
        stack.set(table, name);
    }
}

/// Adds a group to the list of its name, if it took part.
fn add_to_list(
    pattern: &Pattern,
    stack: &Stack,
    table: i32,
    subject: &[u8],
    (n, name): (usize, &[u8]),
) {
    let Some((from, to)) = pattern.group(n) else {
        return;
    };
    if stack.field(table, name) != Kind::Table {
        stack.pop(1);
        stack.push_table(1, 0);
        stack.push_copy(-1);
        stack.set(table, name);
    }
    stack.push_bytes(&subject[from..to]);
    stack.set_element(-2, stack.length(-2) + 1);
    stack.pop(1);
}

/// Where to begin: `ctx.pos` of argument 4, counted from 0.
fn start(stack: &Stack) -> Result<usize, Failure> {
    if !stack.boolean(4) {
        return Ok(0);
    }
    if stack.kind(4) != Kind::Table {
        let kind = stack.kind(4).name();
        return fail(format!("attempt to index local 'ctx' (a {kind} value)"));
    }
    stack.field(4, "pos");
    let position = stack.number(-1).unwrap_or(1.0);
    stack.pop(1);
    Ok((position.max(1.0) as usize) - 1)
}

fn remember(stack: &Stack, end: usize) {
    if stack.kind(4) == Kind::Table {
        stack.push_number((end + 1) as f64);
        stack.set(4, "pos");
    }
}

/// The subject: any value as text. It stands where no other argument does.
fn subject(stack: &Stack) -> &[u8] {
    let stands = stack.kind(1) == Kind::String;
    if !stands {
        let text = match stack.kind(1) {
            Kind::Boolean | Kind::Nil | Kind::None => stack.text(1).unwrap_or_default(),
            _ => anything(stack, 1),
        };
        stack.push_bytes(text);
    }
    let at = if stands { 1 } else { stack.top() };
    stack.bytes(at).unwrap_or_default()
}

fn match_(stack: &Stack) -> Called {
    stack.set_top(5);
    let subject = subject(stack);
    let pattern = match pattern(stack, 3)? {
        Ok(pattern) => pattern,
        Err(message) => return failed(stack, message),
    };
    match pattern.find(subject, start(stack)?) {
        Err(error) => failed(stack, not_matched(error)),
        Ok(false) => {
            stack.push_nil();
            super::ONE
        }
        Ok(true) => {
            if let Some((_, end)) = pattern.group(0) {
                remember(stack, end);
            }
            match (stack.boolean(5), stack.kind(5)) {
                (false, _) => stack.push_table(pattern.groups, pattern.names.len() + 1),
                (true, Kind::Table) => stack.push_copy(5),
                (true, kind) => {
                    let kind = kind.name();
                    return fail(format!("attempt to index local 'res' (a {kind} value)"));
                }
            }
            let table = stack.top();
            fill(&pattern, stack, table, subject);
            super::ONE
        }
    }
}

fn find(stack: &Stack) -> Called {
    stack.set_top(5);
    let subject = subject(stack);
    let pattern = match pattern(stack, 3)? {
        Ok(pattern) => pattern,
        Err(message) => return nothing_and(stack, message),
    };
    match pattern.find(subject, start(stack)?) {
        Ok(true) => {}
        Ok(false) => {
            stack.push_nil();
            return super::ONE;
        }
        Err(error) => return nothing_and(stack, not_matched(error)),
    }
    if let Some((_, end)) = pattern.group(0) {
        remember(stack, end);
    }
    let nth = match (stack.boolean(5), stack.number(5)) {
        (false, _) => 0,
        (true, Some(nth)) => nth.max(0.0) as usize,
        (true, None) => {
            let kind = stack.kind(5).name();
            return fail(format!("attempt to compare number with {kind}"));
        }
    };
    if nth > pattern.groups {
        return nothing_and(stack, "nth out of bound");
    }
    match pattern.group(nth) {
        Some((from, to)) => {
            stack.push_number((from + 1) as f64);
            stack.push_number(to as f64);
        }
        None => {
            stack.push_nil();
            stack.push_nil();
        }
    }
    Ok(Answer::Values(2))
}

/// Matches one after the other.
struct Matches {
    pattern: Rc<Pattern>,
    subject: Vec<u8>,
    /// Where the next is looked for; none at the end.
    position: Cell<Option<usize>>,
}

static MATCHES: Class = Class {
    name: "weir.matches",
    shape: Shape::Userdata,
    methods: &[],
};

impl Matches {
    fn new(pattern: Rc<Pattern>, subject: &[u8]) -> Matches {
        Matches {
            pattern,
            subject: subject.to_vec(),
            position: Cell::new(Some(0)),
        }
    }

    /// Finds the next; its place.
    fn next(&self) -> Result<Option<(usize, usize)>, i32> {
        let Some(from) = self.position.take() else {
            return Ok(None);
        };
        if !self.pattern.find(&self.subject, from)? {
            return Ok(None);
        }
        let place = self.pattern.group(0);
        if let Some((start, end)) = place {
            // After nothing the search goes on one byte later, or it would find the same nothing.
            let next = if start == end { end + 1 } else { end };
            if start != end || next <= self.subject.len() {
                self.position.set(Some(next));
            }
        }
        Ok(place)
    }
}

fn begin(stack: &Stack) -> Called {
    stack.set_top(3);
    let subject = subject(stack);
    match pattern(stack, 3)? {
        Ok(pattern) => {
            let matches = Matches::new(pattern, subject);
            object::push(stack, &MATCHES, Rc::new(matches));
            super::ONE
        }
        Err(message) => failed(stack, message),
    }
}

fn next(stack: &Stack) -> Called {
    let matches = object::get::<Matches>(stack, 1, "matches")?;
    match matches.next() {
        Ok(Some((from, to))) => {
            let pattern = &matches.pattern;
            stack.push_table(pattern.groups, pattern.names.len() + 1);
            let table = stack.top();
            fill(pattern, stack, table, &matches.subject);
            stack.push_number((from + 1) as f64);
            stack.push_number(to as f64);
            Ok(Answer::Values(3))
        }
        Ok(None) => {
            stack.push_nil();
            super::ONE
        }
        Err(error) => failed(stack, not_matched(error)),
    }
}

/// The match from a place on, counted from 0: where it begins and ends, and its first group.
fn at(stack: &Stack) -> Called {
    let matches = object::get::<Matches>(stack, 1, "matches")?;
    let from = stack.number(2).unwrap_or(0.0).max(0.0) as usize;
    let pattern = &matches.pattern;
    match pattern.find(&matches.subject, from) {
        Ok(true) => {}
        Ok(false) => {
            stack.push_nil();
            return super::ONE;
        }
        Err(error) => {
            stack.push_nil();
            return nothing_and(stack, not_matched(error)).map(|_| Answer::Values(4));
        }
    }
    let (from, to) = pattern.group(0).unwrap_or_default();
    stack.push_number(from as f64);
    stack.push_number(to as f64);
    match pattern.group(1) {
        Some((from, to)) => stack.push_bytes(&matches.subject[from..to]),
        None => stack.push_nil(),
    }
    Ok(Answer::Values(3))
}

/// Replaces by a text with groups: subject, pattern, template, options, once.
fn replace(stack: &Stack) -> Called {
    stack.set_top(5);
    let once = stack.boolean(5);
    let template = stack.bytes(3).unwrap_or_default();
    let subject = subject(stack);
    let pattern = match pattern(stack, 4)? {
        Ok(pattern) => pattern,
        Err(message) => return nothing_and(stack, message),
    };
    let parts = match template::parts(template) {
        Ok(parts) => parts,
        Err(why) => {
            scope::with(|scope| {
                let text = format_args!("{}", why.as_bstr());
                match scope::with_request(|request| request.error(text)) {
                    Ok(()) => {}
                    Err(_) => scope.log.plain(rt::error_log::Level::Error, text),
                }
            })?;
            return nothing_and(stack, "failed to compile the replacement template");
        }
    };
    let matches = Matches::new(pattern, subject);
    let (mut out, mut last, mut count) = (Vec::new(), 0, 0);
    loop {
        let (from, to) = match matches.next() {
            Ok(Some(place)) => place,
            Ok(None) => break,
            Err(error) => return nothing_and(stack, not_matched(error)),
        };
        out.extend_from_slice(&matches.subject[last.min(from)..from]);
        for part in &parts {
            match part {
                Part::Text(text) => out.extend_from_slice(text),
                Part::Group(n) => {
                    if let Some((from, to)) = matches.pattern.group(*n) {
                        out.extend_from_slice(&matches.subject[from..to]);
                    }
                }
            }
        }
        last = to;
        count += 1;
        if once {
            break;
        }
    }
    out.extend_from_slice(&matches.subject[last..]);
    stack.push_bytes(&out);
    stack.push_number(f64::from(count));
    Ok(Answer::Values(2))
}

/// Sets the size of the stack of machine code: nothing, or why it cannot be set now.
fn set_stack_size(stack: &Stack) -> Called {
    let size = stack.number(1).unwrap_or(0.0) as usize;
    scope::with(|scope| {
        let matcher = &scope.vm.matcher;
        match matcher.has_kept.get() {
            true => stack.push_bytes(
                "changing jit stack size is not allowed when some regexs have already been compiled and cached",
            ),
            false if matcher.set_stack(size) => stack.push_nil(),
            false => stack.push_bytes("pcre jit stack allocation failed"),
        }
        super::ONE
    })?
}

fn cache_is_empty(stack: &Stack) -> Called {
    let has_kept = scope::with(|scope| scope.vm.matcher.has_kept.get())?;
    stack.push_boolean(!has_kept);
    super::ONE
}
