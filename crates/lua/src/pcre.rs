//! PCRE2 through its C interface. `ngx.re` exposes what the wrapper that the rest of the server
//! uses does not offer: the DFA algorithm (flag `d`), duplicate group names, unchecked UTF, a match
//! limit, and PCRE2's error numbers.
//!
//! What makes the `unsafe` here sound: a [`CompiledRegex`] belongs to one thread and owns what it was
//! made from; the result of a match is read only until the same program matches again.

use std::cell::{Cell, RefCell};
use std::ptr;
use std::rc::Rc;

use pcre2_sys as ffi;

/// How to compile and run a pattern: the flags of `ngx.re`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RegexOptions {
    /// PCRE2's compile options.
    pub(crate) bits: u32,
    /// `d`: the DFA algorithm, which finds the longest match and captures no groups.
    pub(crate) dfa: bool,
    /// `D`: groups may share a name; the captures under it are then a list.
    pub(crate) duplicate_names: bool,
    /// `o`: cache the compiled pattern.
    pub(crate) compile_once: bool,
    /// `j`: compile the pattern to machine code.
    pub(crate) jit: bool,
}

/// Reads flags; the error is the index of the first letter that is not one.
pub(crate) fn parse_options(letters: &[u8]) -> Result<RegexOptions, usize> {
    let mut options = RegexOptions::default();
    for (at, letter) in letters.iter().enumerate() {
        match letter {
            b'a' => options.bits |= ffi::PCRE2_ANCHORED,
            b'D' => {
                options.bits |= ffi::PCRE2_DUPNAMES;
                options.duplicate_names = true;
            }
            b'd' => options.dfa = true,
            b'i' => options.bits |= ffi::PCRE2_CASELESS,
            b'J' => {
                options.bits |= ffi::PCRE2_ALT_BSUX
                    | ffi::PCRE2_ALLOW_EMPTY_CLASS
                    | ffi::PCRE2_MATCH_UNSET_BACKREF;
            }
            b'j' => options.jit = true,
            b'm' => options.bits |= ffi::PCRE2_MULTILINE,
            b'o' => options.compile_once = true,
            b's' => options.bits |= ffi::PCRE2_DOTALL,
            b'u' => options.bits |= ffi::PCRE2_UTF,
            // lua-nginx-module passes PCRE_NO_UTF8_CHECK, which makes PCRE read outside the subject
            // if that is not UTF-8. Invalid sequences match nothing instead.
            b'U' => options.bits |= ffi::PCRE2_UTF | ffi::PCRE2_MATCH_INVALID_UTF,
            b'x' => options.bits |= ffi::PCRE2_EXTENDED,
            _ => return Err(at),
        }
    }
    if options.dfa {
        // `pcre2_dfa_match` does not support MATCH_INVALID_UTF: invalid text is an error there.
        options.bits &= !ffi::PCRE2_MATCH_INVALID_UTF;
    }
    Ok(options)
}

/// What the patterns of one VM share: the match limit, and the stack of JIT-compiled code.
pub(crate) struct MatchContext {
    context: *mut ffi::pcre2_match_context_8,
    jit_stack: Cell<*mut ffi::pcre2_jit_stack_8>,
    /// A match limit is set.
    has_match_limit: bool,
    /// A pattern has been cached. Its JIT code uses the stack, which must not be replaced any more.
    pub(crate) has_cached: Cell<bool>,
    /// Scratch memory of the DFA algorithm.
    workspace: RefCell<Vec<i32>>,
}

/// The size of the JIT stack in bytes: PCRE2's own 32 KB is too small for long subjects with nested
/// groups.
const JIT_STACK: usize = 1 << 20;

/// The initial size of the JIT stack, in bytes; it grows.
const MIN_JIT_STACK: usize = 32 << 10;

/// The largest JIT stack that a script may ask for, in bytes.
const MAX_JIT_STACK: usize = 64 << 20;

/// The size of the DFA workspace, in integers.
const WORKSPACE: usize = 1000;

// SAFETY, for every block below: pointers come from PCRE2, were checked where it may give back
// none, and are freed once, by `Drop` of what owns them; lengths are those of slices that live over
// the call.
// JUSTIFICATION: it is the interface of a library in C.
impl MatchContext {
    pub(crate) fn new(limit: u32) -> Rc<MatchContext> {
        // SAFETY: see above.
        let context = unsafe { ffi::pcre2_match_context_create_8(ptr::null_mut()) };
        let matcher = MatchContext {
            context,
            jit_stack: Cell::new(ptr::null_mut()),
            has_match_limit: limit > 0,
            has_cached: Cell::new(false),
            workspace: RefCell::default(),
        };
        if limit > 0 && !context.is_null() {
            // SAFETY: see above.
            unsafe { ffi::pcre2_set_match_limit_8(context, limit) };
        }
        Rc::new(matcher)
    }

    /// Replaces the JIT stack; `false` if there is no memory for it.
    pub(crate) fn set_jit_stack(&self, size: usize) -> bool {
        let size = size.clamp(MIN_JIT_STACK, MAX_JIT_STACK);
        // SAFETY: see above.
        let new = unsafe { ffi::pcre2_jit_stack_create_8(MIN_JIT_STACK, size, ptr::null_mut()) };
        if new.is_null() || self.context.is_null() {
            return false;
        }
        let old = self.jit_stack.replace(new);
        // SAFETY: the new stack lives until this is called again or the matcher ends; nothing
        // matches meanwhile.
        unsafe {
            ffi::pcre2_jit_stack_assign_8(self.context, None, new.cast());
            ffi::pcre2_jit_stack_free_8(old);
        }
        true
    }
}

impl Drop for MatchContext {
    fn drop(&mut self) {
        // SAFETY: see above; both calls take what is null.
        unsafe {
            ffi::pcre2_match_context_free_8(self.context);
            ffi::pcre2_jit_stack_free_8(self.jit_stack.get());
        }
    }
}

/// Why a pattern could not be compiled.
pub(crate) struct CompileError {
    /// PCRE2's message.
    pub(crate) text: Vec<u8>,
    /// The offset in the pattern.
    pub(crate) at: usize,
}

/// A compiled pattern and the memory for its matches.
pub(crate) struct CompiledRegex {
    code: *mut ffi::pcre2_code_8,
    match_data: *mut ffi::pcre2_match_data_8,
    match_context: Rc<MatchContext>,
    /// As the script has it, for a report of a match that held the loop.
    pattern: Box<[u8]>,
    /// The number of groups, not counting the whole match; 0 with the DFA algorithm.
    pub(crate) groups: usize,
    /// The named groups, in the order of PCRE2's table. A name may be there more than once.
    pub(crate) names: Vec<(usize, Vec<u8>)>,
    pub(crate) options: RegexOptions,
}

impl CompiledRegex {
    pub(crate) fn compile(
        pattern: &[u8],
        options: RegexOptions,
        matcher: &Rc<MatchContext>,
    ) -> Result<CompiledRegex, CompileError> {
        let (mut error, mut at) = (0, 0);
        // SAFETY: see above; the error and its place are written to variables that live.
        let code = unsafe {
            ffi::pcre2_compile_8(
                pattern.as_ptr(),
                pattern.len(),
                options.bits,
                &raw mut error,
                &raw mut at,
                ptr::null_mut(),
            )
        };
        if code.is_null() {
            return Err(CompileError {
                text: error_message(error),
                at: at.min(pattern.len()),
            });
        }
        // JIT code counts its steps differently, so a limit would not mean the same: with one, only
        // patterns that ask for JIT (`j`) get it.
        if options.jit || options.compile_once && !matcher.has_match_limit {
            if matcher.jit_stack.get().is_null() {
                matcher.set_jit_stack(JIT_STACK);
            }
            // SAFETY: see above. What cannot be translated is interpreted.
            unsafe { ffi::pcre2_jit_compile_8(code, ffi::PCRE2_JIT_COMPLETE) };
        }
        // SAFETY: see above.
        let found = unsafe {
            match options.dfa {
                true => ffi::pcre2_match_data_create_8(1, ptr::null_mut()),
                false => ffi::pcre2_match_data_create_from_pattern_8(code, ptr::null_mut()),
            }
        };
        let mut program = CompiledRegex {
            code,
            match_data: found,
            match_context: Rc::clone(matcher),
            pattern: pattern.into(),
            groups: 0,
            names: Vec::new(),
            options,
        };
        if !options.dfa {
            program.groups = program.info(ffi::PCRE2_INFO_CAPTURECOUNT);
        }
        program.names = program.read_names();
        Ok(program)
    }

    /// A number that PCRE2 tells about the pattern.
    fn info(&self, what: u32) -> usize {
        let mut value = 0_u32;
        // SAFETY: see above; each of the facts asked for here is an `uint32_t`.
        unsafe { ffi::pcre2_pattern_info_8(self.code, what, (&raw mut value).cast()) };
        value as usize
    }

    /// The table of named groups. An entry is the group's number in two bytes, big-endian, then the
    /// name, which ends with a zero.
    fn read_names(&self) -> Vec<(usize, Vec<u8>)> {
        let (count, size) = (
            self.info(ffi::PCRE2_INFO_NAMECOUNT),
            self.info(ffi::PCRE2_INFO_NAMEENTRYSIZE),
        );
        let mut table: *const u8 = ptr::null();
        // SAFETY: see above; this fact is a pointer.
        unsafe {
            ffi::pcre2_pattern_info_8(
                self.code,
                ffi::PCRE2_INFO_NAMETABLE,
                (&raw mut table).cast(),
            );
        }
        if table.is_null() || count == 0 || size < 3 {
            return Vec::new();
        }
        // SAFETY: the table has `count` entries of `size` bytes each, and lives as long as the
        // code.
        let table = unsafe { std::slice::from_raw_parts(table, count * size) };
        table
            .chunks_exact(size)
            .map(|entry| {
                let group = usize::from(u16::from_be_bytes([entry[0], entry[1]]));
                let name = entry[2..].split(|byte| *byte == 0).next();
                (group, name.unwrap_or_default().to_vec())
            })
            .collect()
    }

    /// Matches from `start` on; afterwards the groups can be asked for. `false` if nothing matches;
    /// the error is PCRE2's number.
    pub(crate) fn exec(&self, subject: &[u8], start: usize) -> Result<bool, i32> {
        if self.match_data.is_null() {
            return Err(ffi::PCRE2_ERROR_NOMEMORY);
        }
        let context = self.match_context.context;
        let was_late = rt::slow_turn::loop_is_late();
        // SAFETY: see above; where to begin may be anywhere, PCRE2 looks at it first.
        let outcome = unsafe {
            match self.options.dfa {
                // The option `d`: the longest match, and no captures but the whole.
                true => {
                    let mut space = self.match_context.workspace.borrow_mut();
                    space.resize(WORKSPACE, 0);
                    ffi::pcre2_dfa_match_8(
                        self.code,
                        subject.as_ptr(),
                        subject.len(),
                        start,
                        0,
                        self.match_data,
                        context,
                        space.as_mut_ptr(),
                        space.len(),
                    )
                }
                false => ffi::pcre2_match_8(
                    self.code,
                    subject.as_ptr(),
                    subject.len(),
                    start,
                    0,
                    self.match_data,
                    context,
                ),
            }
        };
        if rt::slow_turn::loop_is_late() && !was_late {
            let pattern = || format!("pattern \"{}\"", bstr::BStr::new(&self.pattern));
            rt::suspect(rt::slow_turn::SuspectKind::Part, pattern);
        }
        match outcome {
            ffi::PCRE2_ERROR_NOMATCH => Ok(false),
            error if error < 0 => Err(error),
            _ => Ok(true),
        }
    }

    /// The place of a group of the last match in its subject; `None` if it took no part.
    pub(crate) fn group(&self, n: usize) -> Option<(usize, usize)> {
        if n > self.groups {
            return None;
        }
        // SAFETY: the data of a match has a pair for each group, all written by the match that came
        // before.
        let (from, to) = unsafe {
            let pairs = ffi::pcre2_get_ovector_pointer_8(self.match_data);
            (*pairs.add(2 * n), *pairs.add(2 * n + 1))
        };
        // `\K` in a lookahead can put the start of a match behind its end.
        (to != usize::MAX && from != usize::MAX).then(|| (from.min(to), to))
    }
}

impl Drop for CompiledRegex {
    fn drop(&mut self) {
        // SAFETY: see above; both calls take what is null.
        unsafe {
            ffi::pcre2_match_data_free_8(self.match_data);
            ffi::pcre2_code_free_8(self.code);
        }
    }
}

/// PCRE2's message for an error number.
fn error_message(error: i32) -> Vec<u8> {
    let mut text = [0_u8; 256];
    // SAFETY: the text is written to a buffer of this length, and ends with a zero.
    unsafe { ffi::pcre2_get_error_message_8(error, text.as_mut_ptr(), text.len()) };
    let text = text.split(|byte| *byte == 0).next();
    text.unwrap_or_default().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(pattern: &str, letters: &str) -> CompiledRegex {
        let options = parse_options(letters.as_bytes()).expect("letters");
        CompiledRegex::compile(pattern.as_bytes(), options, &MatchContext::new(0)).unwrap_or_else(
            |fault| panic!("{} at {}", String::from_utf8_lossy(&fault.text), fault.at),
        )
    }

    #[test]
    fn groups_names_and_what_took_no_part() {
        let program = program("(?<b>x)|(?<a>y)", "");
        assert_eq!(program.exec(b"-y", 0), Ok(true));
        assert_eq!(program.group(0), Some((1, 2)));
        assert_eq!(program.group(1), None);
        assert_eq!(program.group(2), Some((1, 2)));
        assert_eq!(program.group(3), None);
        assert_eq!(program.names, [(2, b"a".to_vec()), (1, b"b".to_vec())]);
    }

    #[test]
    fn the_other_algorithm_finds_the_longest() {
        let program = program("a|ab|(abc)", "d");
        assert_eq!(program.exec(b"abcd", 0), Ok(true));
        assert_eq!(program.group(0), Some((0, 3)));
        assert_eq!(program.group(1), None);
    }

    #[test]
    fn text_that_is_no_utf_8_is_an_error_or_does_not_match() {
        assert_eq!(program(".", "u").exec(b"\xe4\xbd", 0), Err(-3));
        assert_eq!(program(".", "U").exec(b"\xe4\xbd", 0), Ok(false));
        assert_eq!(program(".", "du").exec(b"\xe4\xbd", 0), Err(-3));
        assert_eq!(
            program("a", "").exec(b"a", 2),
            Err(ffi::PCRE2_ERROR_BADOFFSET)
        );
    }

    #[test]
    fn steps_are_limited() {
        let options = parse_options(b"").expect("letters");
        let Ok(program) = CompiledRegex::compile(b"(a+)+$", options, &MatchContext::new(100))
        else {
            panic!("it compiles");
        };
        assert_eq!(
            program.exec(b"aaaaaaaaaaaaaaaaaaaaaab", 0),
            Err(ffi::PCRE2_ERROR_MATCHLIMIT)
        );
    }
}
