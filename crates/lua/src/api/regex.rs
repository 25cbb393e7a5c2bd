//! `ngx.re`: regular expressions by PCRE2.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bstr::ByteSlice;
use pcre2::bytes::{CaptureLocations, Regex, RegexBuilder};

use super::arguments::{bytes, optional_number, optional_text, text};
use super::{Called, Functions};
use crate::luajit::object::{self, Class, Shape};
use crate::luajit::stack::Kind;
use crate::luajit::{Answer, Failure, Stack, Value, fail};
use crate::scope;

pub(super) const FUNCTIONS: Functions = &[("match", match_), ("find", find)];

pub(super) const CORE: Functions = &[
    ("re_begin", begin),
    ("re_next", next),
    ("re_replace", replace),
];

/// A compiled pattern.
pub(crate) struct Pattern {
    program: Regex,
    names: Vec<(usize, String)>,
    /// Several groups may have one name, which then stands for a list.
    duplicates: bool,
    locations: RefCell<CaptureLocations>,
}

/// Memory for the machine code's stack, in bytes: long subjects with nested groups need more than PCRE2's own.
const JIT_STACK: usize = 1 << 20;

/// The letters that options are.
const OPTIONS: &[u8] = b"aDimsxuUjodJ";

/// Compiles a pattern; the options are letters, as in nginx's Lua.
fn compile(pattern: &[u8], options: &[u8]) -> Result<Pattern, String> {
    let mut builder = RegexBuilder::new();
    builder
        .jit_if_available(true)
        .max_jit_stack_size(Some(JIT_STACK));
    let (mut anchored, mut duplicates) = (false, false);
    for option in options {
        match option {
            b'a' => anchored = true,
            b'D' => duplicates = true,
            b'i' => drop(builder.caseless(true)),
            b'm' => drop(builder.multi_line(true)),
            b's' => drop(builder.dotall(true)),
            b'x' => drop(builder.extended(true)),
            b'u' | b'U' => drop(builder.utf(true)),
            // Machine code and the cache are not asked for but always had; `d` is a match by another algorithm. Others were
            // refused.
            _ => {}
        }
    }
    let mut source = String::new();
    if duplicates {
        source.push_str("(?J)");
    }
    let text = conf::regex::as_utf8(pattern);
    match anchored {
        true => source.push_str(&format!("\\G(?:{text})")),
        false => source.push_str(&text),
    }
    let program = builder.build(&source).map_err(|error| {
        let text = error.to_string();
        // What PCRE2 says stands behind the crate's own words.
        let said = text
            .strip_prefix("PCRE2: ")
            .and_then(|text| text.split_once(": "));
        let what = said.map_or(&*text, |(_, what)| what);
        format!("pcre_compile() failed: {what} in \"{}\"", pattern.as_bstr())
    })?;
    let names = program
        .capture_names()
        .iter()
        .enumerate()
        .filter_map(|(group, name)| Some((group, name.clone()?)))
        .collect();
    let locations = RefCell::new(program.capture_locations());
    Ok(Pattern {
        program,
        names,
        duplicates,
        locations,
    })
}

/// The pattern of arguments 2 and 3, compiled or from the machine's cache.
fn pattern(stack: &Stack) -> Result<Result<Rc<Pattern>, String>, Failure> {
    let source = bytes(stack, 2)?;
    let options = match stack.is_nil(3) {
        true => &b""[..],
        false => bytes(stack, 3)?,
    };
    if let Some(at) = options.find_not_byteset(OPTIONS) {
        return fail(format!(
            "unknown flag \"{}\" (flags \"{}\")",
            options[at..=at].as_bstr(),
            options.as_bstr()
        ));
    }
    scope::with(|scope| {
        let cache = &scope.vm.patterns;
        let mut key = Vec::with_capacity(source.len() + options.len() + 1);
        key.extend_from_slice(options);
        key.push(b'/');
        key.extend_from_slice(source);
        if let Some(known) = cache.borrow_mut().get(&key) {
            return Ok(Rc::clone(known));
        }
        let made = Rc::new(compile(source, options)?);
        if options.contains(&b'o') {
            cache.borrow_mut().insert(key, Rc::clone(&made));
        }
        Ok(made)
    })
}

fn failed(stack: &Stack, message: String) -> Called {
    super::output::answer(stack, Value::failure(message))
}

/// What functions with two results say that could not do it.
fn nothing_and(stack: &Stack, message: impl AsRef<[u8]>) -> Called {
    stack.push_nil();
    stack.push_nil();
    stack.push_bytes(message);
    Ok(Answer::Values(3))
}

impl Pattern {
    /// Matches from `start` on; then the groups can be asked for.
    fn find(&self, subject: &[u8], start: usize) -> Result<bool, String> {
        let found = self
            .program
            .captures_read_at(&mut self.locations.borrow_mut(), subject, start);
        match found {
            Ok(found) => Ok(found.is_some()),
            Err(error) => Err(format!("pcre_exec() failed: {}", error.code())),
        }
    }

    fn group(&self, n: usize) -> Option<(usize, usize)> {
        self.locations.borrow().get(n)
    }

    fn groups(&self) -> usize {
        self.program.captures_len()
    }

    /// Fills the table at `table` with the groups of the last match.
    fn fill(&self, stack: &Stack, table: i32, subject: &[u8]) {
        let push = |n: usize| match self.group(n) {
            Some((from, to)) => stack.push_bytes(&subject[from..to]),
            None => stack.push_boolean(false),
        };
        for n in 0..self.groups() {
            push(n);
            stack.set_element(table, n);
        }
        if self.duplicates {
            return self.fill_lists(stack, table, subject);
        }
        for (n, name) in &self.names {
            // Of several groups of one name the one that matched counts.
            if self.group(*n).is_none() && stack.field(table, name) != Kind::Nil {
                stack.pop(1);
                continue;
            }
            if self.group(*n).is_none() {
                stack.pop(1);
            }
            push(*n);
            stack.set(table, name);
        }
    }
}

impl Pattern {
    /// Fills the table at `table` with a list for each name of which a group has matched.
    fn fill_lists(&self, stack: &Stack, table: i32, subject: &[u8]) {
        for (n, name) in &self.names {
            let Some((from, to)) = self.group(*n) else {
                continue;
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
    }
}

/// Where to begin: `ctx.pos` of argument 4, counted from 0.
fn start(stack: &Stack) -> usize {
    if stack.kind(4) != Kind::Table {
        return 0;
    }
    stack.field(4, "pos");
    let position = stack.number(-1).unwrap_or(1.0);
    stack.pop(1);
    (position.max(1.0) as usize) - 1
}

fn remember(stack: &Stack, end: usize) {
    if stack.kind(4) == Kind::Table {
        stack.push_number((end + 1) as f64);
        stack.set(4, "pos");
    }
}

fn match_(stack: &Stack) -> Called {
    let subject = text(stack, 1)?;
    let pattern = match pattern(stack)? {
        Ok(pattern) => pattern,
        Err(message) => return failed(stack, message),
    };
    let from = start(stack);
    let found = match from <= subject.len() {
        true => pattern.find(&subject, from),
        false => Ok(false),
    };
    match found {
        Err(message) => failed(stack, message),
        Ok(false) => {
            stack.push_nil();
            super::ONE
        }
        Ok(true) => {
            if let Some((_, end)) = pattern.group(0) {
                remember(stack, end);
            }
            match stack.kind(5) {
                Kind::Table => stack.push_copy(5),
                _ => stack.push_table(pattern.groups(), pattern.names.len() + 1),
            }
            let table = stack.top();
            pattern.fill(stack, table, &subject);
            super::ONE
        }
    }
}

fn find(stack: &Stack) -> Called {
    let subject = bytes(stack, 1)?;
    let pattern = match pattern(stack)? {
        Ok(pattern) => pattern,
        Err(message) => return nothing_and(stack, message),
    };
    let nth = optional_number(stack, 5)?.unwrap_or(0.0) as usize;
    let from = start(stack);
    let found = match from <= subject.len() {
        true => pattern.find(subject, from),
        false => Ok(false),
    };
    match found {
        Ok(true) => {
            if let Some((_, end)) = pattern.group(0) {
                remember(stack, end);
            }
            match pattern.group(nth) {
                Some((from, to)) => {
                    stack.push_number((from + 1) as f64);
                    stack.push_number(to as f64);
                    Ok(Answer::Values(2))
                }
                None => {
                    stack.push_nil();
                    super::ONE
                }
            }
        }
        Ok(false) => {
            stack.push_nil();
            super::ONE
        }
        Err(message) => nothing_and(stack, message),
    }
}

/// Matches one after the other.
struct Matches {
    pattern: Rc<Pattern>,
    subject: Vec<u8>,
    position: Cell<usize>,
}

static MATCHES: Class = Class {
    name: "weir.matches",
    shape: Shape::Userdata,
    methods: &[],
};

impl Matches {
    /// Finds the next; its place.
    fn next(&self) -> Result<Option<(usize, usize)>, String> {
        let from = self.position.get();
        if from > self.subject.len() || !self.pattern.find(&self.subject, from)? {
            self.position.set(self.subject.len() + 1);
            return Ok(None);
        }
        let place = self.pattern.group(0);
        if let Some((start, end)) = place {
            // After nothing the search goes on one byte later, or it would find the same nothing.
            self.position.set(if start == end { end + 1 } else { end });
        }
        Ok(place)
    }
}

fn begin(stack: &Stack) -> Called {
    let subject = text(stack, 1)?;
    match pattern(stack)? {
        Ok(pattern) => {
            let matches = Matches {
                pattern,
                subject,
                position: Cell::new(0),
            };
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
            stack.push_table(pattern.groups(), pattern.names.len() + 1);
            let table = stack.top();
            pattern.fill(stack, table, &matches.subject);
            stack.push_number((from + 1) as f64);
            stack.push_number(to as f64);
            Ok(Answer::Values(3))
        }
        Ok(None) => {
            stack.push_nil();
            super::ONE
        }
        Err(message) => failed(stack, message),
    }
}

/// A part of a replacement.
enum Part {
    Text(Vec<u8>),
    Group(usize),
}

/// What a template consists of; `None` for one that is none.
fn parts(template: &[u8]) -> Option<Vec<Part>> {
    let mut parts = Vec::new();
    let mut text = Vec::new();
    let mut at = 0;
    while at < template.len() {
        if template[at] != b'$' {
            text.push(template[at]);
            at += 1;
            continue;
        }
        let (inside, after) = match template.get(at + 1) {
            Some(b'$') => {
                text.push(b'$');
                at += 2;
                continue;
            }
            Some(b'{') => match template[at..].find_byte(b'}') {
                Some(end) => (&template[at + 2..at + end], at + end + 1),
                None => return None,
            },
            _ => {
                let digits = template[at + 1..]
                    .iter()
                    .take_while(|byte| byte.is_ascii_digit())
                    .count();
                (&template[at + 1..at + 1 + digits], at + 1 + digits)
            }
        };
        // Groups have numbers only.
        if !inside.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let group = inside.to_str().ok()?.parse().ok()?;
        if !text.is_empty() {
            parts.push(Part::Text(std::mem::take(&mut text)));
        }
        parts.push(Part::Group(group));
        at = after;
    }
    if !text.is_empty() {
        parts.push(Part::Text(text));
    }
    Some(parts)
}

/// Replaces by a text with groups: subject, pattern, template, options, once.
fn replace(stack: &Stack) -> Called {
    let subject = text(stack, 1)?;
    let template = text(stack, 3)?;
    let options = optional_text(stack, 4)?;
    let once = stack.boolean(5);
    stack.set_top(2);
    match options {
        Some(options) => stack.push_bytes(options),
        None => stack.push_nil(),
    }
    let pattern = match pattern(stack)? {
        Ok(pattern) => pattern,
        Err(message) => return nothing_and(stack, message),
    };
    let Some(parts) = parts(&template) else {
        scope::with(|scope| {
            let text = format_args!(
                "lua: \"{}\" is no template for a replacement: \"$\" stands before the number of a group, which may \
                 have braces around it, or before another \"$\"",
                template.as_bstr()
            );
            match scope::with_request(|request| request.error(text)) {
                Ok(()) => {}
                Err(_) => scope.log.plain(rt::error_log::Level::Error, text),
            }
        })?;
        return nothing_and(stack, "failed to compile the replacement template");
    };
    let matches = Matches {
        pattern,
        subject,
        position: Cell::new(0),
    };
    let (mut out, mut last, mut count) = (Vec::new(), 0, 0);
    loop {
        let (from, to) = match matches.next() {
            Ok(Some(place)) => place,
            Ok(None) => break,
            Err(message) => return nothing_and(stack, message),
        };
        out.extend_from_slice(&matches.subject[last..from]);
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
