//! `ngx.re`: regular expressions by PCRE2, as lua-resty-core has them.
//!
//! `match` and `find` are complete here; `gmatch`, `sub`, `gsub` and `split` are written in Lua on
//! top of an iterator. Error messages still say `pcre_exec`, because scripts compare them.

use std::cell::Cell;
use std::rc::Rc;

use bstr::ByteSlice;

use super::arguments::anything;
use super::template::{self, TemplatePart};
use super::{CallResult, NativeTable};
use crate::luajit::object::{self, ObjectClass, ObjectShape};
use crate::luajit::stack::LuaType;
use crate::luajit::{LuaError, LuaStack, LuaValue, NativeReturn, fail};
use crate::pcre::{self, CompiledRegex, RegexOptions};
use crate::scope;

pub(super) const FUNCTIONS: NativeTable = &[("match", match_), ("find", find)];

pub(super) const CORE: NativeTable = &[
    ("re_begin", gmatch_begin),
    ("re_next", gmatch_next),
    ("re_at", match_at),
    ("re_replace", replace),
    ("re_stack_size", set_stack_size),
    ("re_cache_is_empty", cache_is_empty),
];

/// A compiled pattern as the VM caches it.
pub(crate) type LuaRegex = CompiledRegex;

/// The longest error message about a pattern, in bytes; it shows the pattern.
const MAX_MESSAGE: usize = 255;

/// The error message of a pattern that does not compile.
fn compile_error(pattern: &[u8], fault: &pcre::CompileError) -> Vec<u8> {
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
    // lua-resty-core passes it as a C string, which ends at a zero.
    let end = text.find_byte(0).unwrap_or(text.len());
    text.truncate(end.min(MAX_MESSAGE));
    text
}

/// The flags in argument `at`, parsed and as written. What is not a string raises the error that
/// lua-resty-core's Lua code would.
fn options(stack: &LuaStack, at: i32) -> Result<(RegexOptions, &[u8]), LuaError> {
    let letters = match stack.type_at(at) {
        LuaType::Nil | LuaType::None => &b""[..],
        LuaType::Boolean if !stack.boolean(at) => b"",
        // lua-resty-core asks for the length only, so an empty table means no flags.
        LuaType::Table if stack.length(at) == 0 => b"",
        LuaType::String => stack.bytes(at).unwrap_or_default(),
        LuaType::Table => return fail("bad argument #1 to 'byte' (string expected, got table)"),
        kind => {
            let kind = kind.name();
            return fail(format!(
                "attempt to get length of local 'opts' (a {kind} value)"
            ));
        }
    };
    match pcre::parse_options(letters) {
        Ok(options) => Ok((options, letters)),
        Err(bad) => fail(format!(
            "unknown flag \"{}\" (flags \"{}\")",
            letters[bad..=bad].as_bstr(),
            letters.as_bstr()
        )),
    }
}

/// The pattern in argument 2, compiled, or from the cache with flag `o`. The inner error is
/// returned to the script, the outer one raised.
fn pattern(stack: &LuaStack, at: i32) -> Result<Result<Rc<LuaRegex>, Vec<u8>>, LuaError> {
    let (options, letters) = options(stack, at)?;
    let source = match stack.type_at(2) {
        LuaType::String => stack.bytes(2).unwrap_or_default(),
        LuaType::Number => return no_pattern("get length of", LuaType::Number),
        kind if options.compile_once => return no_pattern("concatenate", kind),
        kind => return no_pattern("get length of", kind),
    };
    scope::with(|scope| {
        let vm = &scope.vm;
        // Without flag `o` nothing is kept: scripts that build patterns from input must not fill
        // the cache.
        if !options.compile_once {
            let made = CompiledRegex::compile(source, options, &vm.matcher);
            return made
                .map(Rc::new)
                .map_err(|fault| compile_error(source, &fault));
        }
        // The same pattern with other flags is another program.
        let mut key = Vec::with_capacity(source.len() + letters.len() + 1);
        key.extend_from_slice(letters);
        key.push(b'/');
        key.extend_from_slice(source);
        if let Some(known) = vm.patterns.borrow_mut().get(&key) {
            return Ok(Rc::clone(known));
        }
        let made = CompiledRegex::compile(source, options, &vm.matcher);
        let made = Rc::new(made.map_err(|fault| compile_error(source, &fault))?);
        vm.matcher.has_cached.set(true);
        vm.patterns.borrow_mut().insert(key, Rc::clone(&made));
        Ok(made)
    })
}

/// The error that lua-resty-core's code would raise for an argument that is not a pattern.
fn no_pattern<T>(what: &str, kind: LuaType) -> Result<T, LuaError> {
    let kind = match kind {
        LuaType::None => LuaType::Nil,
        kind => kind,
    };
    let kind = kind.name();
    fail(format!("attempt to {what} local 'regex' (a {kind} value)"))
}

/// Returns nil and a message.
fn failed(stack: &LuaStack, message: impl Into<Vec<u8>>) -> CallResult {
    super::called::answer(stack, LuaValue::failure(message.into()))
}

/// The message for an error of the match itself, such as an exceeded limit.
fn not_matched(error: i32) -> String {
    format!("pcre_exec() failed: {error}")
}

/// Returns two nils and a message: functions with two results report errors as the third.
fn two_nils_and(stack: &LuaStack, message: impl AsRef<[u8]>) -> CallResult {
    stack.push_nil();
    stack.push_nil();
    stack.push_bytes(message);
    Ok(NativeReturn::Values(3))
}

/// Fills the table with the captures of the last match; `false` for one that took no part.
fn fill_captures(pattern: &LuaRegex, stack: &LuaStack, table: i32, subject: &[u8]) {
    let push = |n: usize| match pattern.group(n) {
        Some((from, to)) => stack.push_bytes(&subject[from..to]),
        None => stack.push_boolean(false),
    };
    for n in 0..=pattern.groups {
        push(n);
        stack.set_element(table, n);
    }
    if pattern.groups == 0 {
        // The DFA algorithm captures nothing that a name could refer to.
        return;
    }
    for (n, name) in &pattern.names {
        if pattern.options.duplicate_names {
            add_to_list(pattern, stack, table, subject, (*n, name));
            continue;
        }
        push(*n);
        stack.set(table, name);
    }
}

/// Appends a capture to the list of its name, if it took part.
fn add_to_list(
    pattern: &LuaRegex,
    stack: &LuaStack,
    table: i32,
    subject: &[u8],
    (n, name): (usize, &[u8]),
) {
    let Some((from, to)) = pattern.group(n) else {
        return;
    };
    if stack.field(table, name) != LuaType::Table {
        stack.pop(1);
        stack.push_table(1, 0);
        stack.push_copy(-1);
        stack.set(table, name);
    }
    stack.push_bytes(&subject[from..to]);
    stack.set_element(-2, stack.length(-2) + 1);
    stack.pop(1);
}

/// Where to start: `ctx.pos`, counted from 1 in Lua and from 0 here.
fn start_position(stack: &LuaStack) -> Result<usize, LuaError> {
    if !stack.boolean(4) {
        return Ok(0);
    }
    if stack.type_at(4) != LuaType::Table {
        let kind = stack.type_at(4).name();
        return fail(format!("attempt to index local 'ctx' (a {kind} value)"));
    }
    stack.field(4, "pos");
    let position = stack.number(-1).unwrap_or(1.0);
    stack.pop(1);
    Ok((position.max(1.0) as usize) - 1)
}

/// Sets `ctx.pos` behind the match, where the next call continues.
fn set_position(stack: &LuaStack, end: usize) {
    if stack.type_at(4) == LuaType::Table {
        stack.push_number((end + 1) as f64);
        stack.set(4, "pos");
    }
}

/// The subject as text, whatever type it has. A converted value is pushed, and lives on the stack.
fn subject(stack: &LuaStack) -> &[u8] {
    let stands = stack.type_at(1) == LuaType::String;
    if !stands {
        let text = match stack.type_at(1) {
            LuaType::Boolean | LuaType::Nil | LuaType::None => stack.text(1).unwrap_or_default(),
            _ => anything(stack, 1),
        };
        stack.push_bytes(text);
    }
    let at = if stands { 1 } else { stack.top() };
    stack.bytes(at).unwrap_or_default()
}

/// `ngx.re.match(subject, regex, options, ctx, res_table)`.
fn match_(stack: &LuaStack) -> CallResult {
    stack.set_top(5);
    let subject = subject(stack);
    let pattern = match pattern(stack, 3)? {
        Ok(pattern) => pattern,
        Err(message) => return failed(stack, message),
    };
    match pattern.exec(subject, start_position(stack)?) {
        Err(error) => failed(stack, not_matched(error)),
        Ok(false) => {
            stack.push_nil();
            super::ONE
        }
        Ok(true) => {
            if let Some((_, end)) = pattern.group(0) {
                set_position(stack, end);
            }
            match (stack.boolean(5), stack.type_at(5)) {
                (false, _) => stack.push_table(pattern.groups, pattern.names.len() + 1),
                (true, LuaType::Table) => stack.push_copy(5),
                // lua-resty-core indexes the argument, so this is LuaJIT's error.
                (true, kind) => {
                    let kind = kind.name();
                    return fail(format!("attempt to index local 'res' (a {kind} value)"));
                }
            }
            let table = stack.top();
            fill_captures(&pattern, stack, table, subject);
            super::ONE
        }
    }
}

/// `ngx.re.find(subject, regex, options, ctx, nth)`: where the match, or a capture, begins and
/// ends.
fn find(stack: &LuaStack) -> CallResult {
    stack.set_top(5);
    let subject = subject(stack);
    let pattern = match pattern(stack, 3)? {
        Ok(pattern) => pattern,
        Err(message) => return two_nils_and(stack, message),
    };
    match pattern.exec(subject, start_position(stack)?) {
        Ok(true) => {}
        Ok(false) => {
            stack.push_nil();
            return super::ONE;
        }
        Err(error) => return two_nils_and(stack, not_matched(error)),
    }
    if let Some((_, end)) = pattern.group(0) {
        set_position(stack, end);
    }
    // `false` and nil both mean the whole match.
    let nth = match (stack.boolean(5), stack.number(5)) {
        (false, _) => 0,
        (true, Some(nth)) => nth.max(0.0) as usize,
        (true, None) => {
            let kind = stack.type_at(5).name();
            return fail(format!("attempt to compare number with {kind}"));
        }
    };
    // Returned to the script and not raised, as by lua-resty-core.
    if nth > pattern.groups {
        return two_nils_and(stack, "nth out of bound");
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
    Ok(NativeReturn::Values(2))
}

/// Iterates over the matches in a subject.
struct MatchIterator {
    pattern: Rc<LuaRegex>,
    /// A copy: the script may drop its string between two matches.
    subject: Vec<u8>,
    /// Where the next search starts; `None` at the end.
    position: Cell<Option<usize>>,
}

static MATCHES: ObjectClass = ObjectClass {
    name: "weir.matches",
    shape: ObjectShape::Userdata,
    methods: &[],
};

impl MatchIterator {
    fn new(pattern: Rc<LuaRegex>, subject: &[u8]) -> MatchIterator {
        MatchIterator {
            pattern,
            subject: subject.to_vec(),
            position: Cell::new(Some(0)),
        }
    }

    /// Finds the next match; its start and end.
    fn next(&self) -> Result<Option<(usize, usize)>, i32> {
        let Some(from) = self.position.take() else {
            return Ok(None);
        };
        if !self.pattern.exec(&self.subject, from)? {
            return Ok(None);
        }
        let place = self.pattern.group(0);
        if let Some((start, end)) = place {
            // After an empty match the search continues one byte later, or it would find the same
            // one again.
            let next = if start == end { end + 1 } else { end };
            if start != end || next <= self.subject.len() {
                self.position.set(Some(next));
            }
        }
        Ok(place)
    }
}

/// Creates an iterator: subject, pattern, flags.
fn gmatch_begin(stack: &LuaStack) -> CallResult {
    stack.set_top(3);
    let subject = subject(stack);
    match pattern(stack, 3)? {
        Ok(pattern) => {
            let matches = MatchIterator::new(pattern, subject);
            object::push(stack, &MATCHES, Rc::new(matches));
            super::ONE
        }
        Err(message) => failed(stack, message),
    }
}

/// The iterator's next match: its captures, start and end; nil when there are no more.
fn gmatch_next(stack: &LuaStack) -> CallResult {
    let matches = object::get::<MatchIterator>(stack, 1, "matches")?;
    match matches.next() {
        Ok(Some((from, to))) => {
            let pattern = &matches.pattern;
            stack.push_table(pattern.groups, pattern.names.len() + 1);
            let table = stack.top();
            fill_captures(pattern, stack, table, &matches.subject);
            stack.push_number((from + 1) as f64);
            stack.push_number(to as f64);
            Ok(NativeReturn::Values(3))
        }
        Ok(None) => {
            stack.push_nil();
            super::ONE
        }
        Err(error) => failed(stack, not_matched(error)),
    }
}

/// For `split`: the first match from an offset on: start, end and first capture. Counted from 0.
fn match_at(stack: &LuaStack) -> CallResult {
    let matches = object::get::<MatchIterator>(stack, 1, "matches")?;
    let from = stack.number(2).unwrap_or(0.0).max(0.0) as usize;
    let pattern = &matches.pattern;
    match pattern.exec(&matches.subject, from) {
        Ok(true) => {}
        Ok(false) => {
            stack.push_nil();
            return super::ONE;
        }
        Err(error) => {
            stack.push_nil();
            return two_nils_and(stack, not_matched(error)).map(|_| NativeReturn::Values(4));
        }
    }
    let (from, to) = pattern.group(0).unwrap_or_default();
    stack.push_number(from as f64);
    stack.push_number(to as f64);
    match pattern.group(1) {
        Some((from, to)) => stack.push_bytes(&matches.subject[from..to]),
        None => stack.push_nil(),
    }
    Ok(NativeReturn::Values(3))
}

/// `ngx.re.sub` and `gsub` with a replacement string: subject, pattern, template, flags, once.
fn replace(stack: &LuaStack) -> CallResult {
    stack.set_top(5);
    let once = stack.boolean(5);
    let template = stack.bytes(3).unwrap_or_default();
    let subject = subject(stack);
    let pattern = match pattern(stack, 4)? {
        Ok(pattern) => pattern,
        Err(message) => return two_nils_and(stack, message),
    };
    let parts = match template::parse_template(template) {
        Ok(parts) => parts,
        Err(why) => {
            scope::with(|scope| {
                let text = format_args!("{}", why.as_bstr());
                match scope::with_request(|request| request.error(text)) {
                    Ok(()) => {}
                    Err(_) => scope.log.log_plain(host::error_log::LogLevel::Error, text),
                }
            })?;
            return two_nils_and(stack, "failed to compile the replacement template");
        }
    };
    let matches = MatchIterator::new(pattern, subject);
    let (mut out, mut last, mut count) = (Vec::new(), 0, 0);
    loop {
        let (from, to) = match matches.next() {
            Ok(Some(place)) => place,
            Ok(None) => break,
            Err(error) => return two_nils_and(stack, not_matched(error)),
        };
        out.extend_from_slice(&matches.subject[last.min(from)..from]);
        for part in &parts {
            match part {
                TemplatePart::Text(text) => out.extend_from_slice(text),
                TemplatePart::Group(n) => {
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
    Ok(NativeReturn::Values(2))
}

/// `ngx.re.opt("jit_stack_size", size)`: nil, or why it cannot be changed now.
fn set_stack_size(stack: &LuaStack) -> CallResult {
    let size = stack.number(1).unwrap_or(0.0) as usize;
    scope::with(|scope| {
        let matcher = &scope.vm.matcher;
        match matcher.has_cached.get() {
            true => stack.push_bytes(
                "changing jit stack size is not allowed when some regexs have already been compiled and cached",
            ),
            false if matcher.set_jit_stack(size) => stack.push_nil(),
            false => stack.push_bytes("pcre jit stack allocation failed"),
        }
        super::ONE
    })?
}

/// Whether no pattern has been cached yet.
fn cache_is_empty(stack: &LuaStack) -> CallResult {
    let has_kept = scope::with(|scope| scope.vm.matcher.has_cached.get())?;
    stack.push_boolean(!has_kept);
    super::ONE
}
