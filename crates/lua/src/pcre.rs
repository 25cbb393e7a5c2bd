//! PCRE2 by its own interface: scripts may ask for what the wrapper that the rest of the server uses does not have (the
//! algorithm of option `d`, names that several groups have, UTF that is not checked, a limit of steps), and see the numbers
//! of its errors.
//!
//! The rules that make the `unsafe` here sound: a [`Program`] belongs to one thread and owns what it was made from; what a
//! match wrote is read only while nothing else matches with the same program.

use std::cell::{Cell, RefCell};
use std::ptr;
use std::rc::Rc;

use pcre2_sys as ffi;

/// How a pattern is to be read and matched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// PCRE2's own bits.
    pub(crate) bits: u32,
    /// Match by the algorithm that finds the longest match and no groups.
    pub(crate) dfa: bool,
    /// Several groups of one name make a list of those that matched.
    pub(crate) duplicates: bool,
    /// Keep the compiled pattern.
    pub(crate) keep: bool,
    /// Translate it to machine code.
    pub(crate) jit: bool,
}

/// The letters of options; the first that is none.
pub(crate) fn options(letters: &[u8]) -> Result<Options, usize> {
    let mut options = Options::default();
    for (at, letter) in letters.iter().enumerate() {
        match letter {
            b'a' => options.bits |= ffi::PCRE2_ANCHORED,
            b'D' => {
                options.bits |= ffi::PCRE2_DUPNAMES;
                options.duplicates = true;
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
            b'o' => options.keep = true,
            b's' => options.bits |= ffi::PCRE2_DOTALL,
            b'u' => options.bits |= ffi::PCRE2_UTF,
            // Not to check at all, as nginx's Lua does, means to read outside of a subject that is no UTF-8.
            b'U' => options.bits |= ffi::PCRE2_UTF | ffi::PCRE2_MATCH_INVALID_UTF,
            b'x' => options.bits |= ffi::PCRE2_EXTENDED,
            _ => return Err(at),
        }
    }
    if options.dfa {
        // The other algorithm knows only text that was checked.
        options.bits &= !ffi::PCRE2_MATCH_INVALID_UTF;
    }
    Ok(options)
}

/// What compiled patterns of one machine share: the limit of steps, and memory for the stack of machine code.
pub(crate) struct Matcher {
    context: *mut ffi::pcre2_match_context_8,
    stack: Cell<*mut ffi::pcre2_jit_stack_8>,
    limited: bool,
    /// A compiled pattern has been kept.
    pub(crate) has_kept: Cell<bool>,
    /// Where the other algorithm writes while it matches.
    workspace: RefCell<Vec<i32>>,
}

/// Memory for the machine code's stack, in bytes: long subjects with nested groups need more than PCRE2's own.
const JIT_STACK: usize = 1 << 20;

/// The least that such a stack has, in bytes.
const MIN_JIT_STACK: usize = 32 << 10;

/// The most that a script may ask for, in bytes.
const MAX_JIT_STACK: usize = 64 << 20;

/// How many numbers the other algorithm may keep.
const WORKSPACE: usize = 1000;

// SAFETY, for every block below: pointers come from PCRE2, were checked where it may give back none, and are freed once, by
// `Drop` of what owns them; lengths are those of slices that live over the call.
// JUSTIFICATION: it is the interface of a library in C.
impl Matcher {
    pub(crate) fn new(limit: u32) -> Rc<Matcher> {
        // SAFETY: see above.
        let context = unsafe { ffi::pcre2_match_context_create_8(ptr::null_mut()) };
        let matcher = Matcher {
            context,
            stack: Cell::new(ptr::null_mut()),
            limited: limit > 0,
            has_kept: Cell::new(false),
            workspace: RefCell::default(),
        };
        if limit > 0 && !context.is_null() {
            // SAFETY: see above.
            unsafe { ffi::pcre2_set_match_limit_8(context, limit) };
        }
        Rc::new(matcher)
    }

    /// Gives machine code a stack of this size; `false` when there is no memory for it.
    pub(crate) fn set_stack(&self, size: usize) -> bool {
        let size = size.clamp(MIN_JIT_STACK, MAX_JIT_STACK);
        // SAFETY: see above.
        let new = unsafe { ffi::pcre2_jit_stack_create_8(MIN_JIT_STACK, size, ptr::null_mut()) };
        if new.is_null() || self.context.is_null() {
            return false;
        }
        let old = self.stack.replace(new);
        // SAFETY: the new stack lives until this is called again or the matcher ends; nothing matches meanwhile.
        unsafe {
            ffi::pcre2_jit_stack_assign_8(self.context, None, new.cast());
            ffi::pcre2_jit_stack_free_8(old);
        }
        true
    }
}

impl Drop for Matcher {
    fn drop(&mut self) {
        // SAFETY: see above; both calls take what is null.
        unsafe {
            ffi::pcre2_match_context_free_8(self.context);
            ffi::pcre2_jit_stack_free_8(self.stack.get());
        }
    }
}

/// Why a pattern could not be compiled.
pub(crate) struct Fault {
    pub(crate) text: Vec<u8>,
    /// Where in the pattern.
    pub(crate) at: usize,
}

/// A compiled pattern.
pub(crate) struct Program {
    code: *mut ffi::pcre2_code_8,
    found: *mut ffi::pcre2_match_data_8,
    matcher: Rc<Matcher>,
    /// How many groups it has, without the whole; none with the algorithm that finds none.
    pub(crate) groups: usize,
    /// The names of groups, in the order of PCRE2's table.
    pub(crate) names: Vec<(usize, Vec<u8>)>,
    pub(crate) options: Options,
}

impl Program {
    pub(crate) fn compile(
        pattern: &[u8],
        options: Options,
        matcher: &Rc<Matcher>,
    ) -> Result<Program, Fault> {
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
            return Err(Fault {
                text: message(error),
                at: at.min(pattern.len()),
            });
        }
        // With a limit only what asks for machine code gets it: it counts steps in another way.
        if options.jit || options.keep && !matcher.limited {
            if matcher.stack.get().is_null() {
                matcher.set_stack(JIT_STACK);
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
        let mut program = Program {
            code,
            found,
            matcher: Rc::clone(matcher),
            groups: 0,
            names: Vec::new(),
            options,
        };
        if !options.dfa {
            program.groups = program.fact(ffi::PCRE2_INFO_CAPTURECOUNT);
        }
        program.names = program.read_names();
        Ok(program)
    }

    /// A number that PCRE2 knows of the pattern.
    fn fact(&self, what: u32) -> usize {
        let mut value = 0_u32;
        // SAFETY: see above; each of the facts asked for here is an `uint32_t`.
        unsafe { ffi::pcre2_pattern_info_8(self.code, what, (&raw mut value).cast()) };
        value as usize
    }

    fn read_names(&self) -> Vec<(usize, Vec<u8>)> {
        let (count, size) = (
            self.fact(ffi::PCRE2_INFO_NAMECOUNT),
            self.fact(ffi::PCRE2_INFO_NAMEENTRYSIZE),
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
        // SAFETY: the table has `count` entries of `size` bytes each, and lives as long as the code.
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

    /// Matches from `start` on; then the groups can be asked for. `false` when nothing matches, or the number of an error.
    pub(crate) fn find(&self, subject: &[u8], start: usize) -> Result<bool, i32> {
        if self.found.is_null() {
            return Err(ffi::PCRE2_ERROR_NOMEMORY);
        }
        let context = self.matcher.context;
        // SAFETY: see above; where to begin may be anywhere, PCRE2 looks at it first.
        let outcome = unsafe {
            match self.options.dfa {
                true => {
                    let mut space = self.matcher.workspace.borrow_mut();
                    space.resize(WORKSPACE, 0);
                    ffi::pcre2_dfa_match_8(
                        self.code,
                        subject.as_ptr(),
                        subject.len(),
                        start,
                        0,
                        self.found,
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
                    self.found,
                    context,
                ),
            }
        };
        match outcome {
            ffi::PCRE2_ERROR_NOMATCH => Ok(false),
            error if error < 0 => Err(error),
            _ => Ok(true),
        }
    }

    /// Where a group of the last match is in its subject; `None` for one that took no part.
    pub(crate) fn group(&self, n: usize) -> Option<(usize, usize)> {
        if n > self.groups {
            return None;
        }
        // SAFETY: the data of a match has a pair for each group, all written by the match that came before.
        let (from, to) = unsafe {
            let pairs = ffi::pcre2_get_ovector_pointer_8(self.found);
            (*pairs.add(2 * n), *pairs.add(2 * n + 1))
        };
        // `\K` can begin a match behind its end.
        (to != usize::MAX && from != usize::MAX).then(|| (from.min(to), to))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: see above; both calls take what is null.
        unsafe {
            ffi::pcre2_match_data_free_8(self.found);
            ffi::pcre2_code_free_8(self.code);
        }
    }
}

/// PCRE2's words for the number of an error.
fn message(error: i32) -> Vec<u8> {
    let mut text = [0_u8; 256];
    // SAFETY: the text is written to a buffer of this length, and ends with a zero.
    unsafe { ffi::pcre2_get_error_message_8(error, text.as_mut_ptr(), text.len()) };
    let text = text.split(|byte| *byte == 0).next();
    text.unwrap_or_default().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(pattern: &str, letters: &str) -> Program {
        let options = options(letters.as_bytes()).expect("letters");
        Program::compile(pattern.as_bytes(), options, &Matcher::new(0)).unwrap_or_else(|fault| {
            panic!("{} at {}", String::from_utf8_lossy(&fault.text), fault.at)
        })
    }

    #[test]
    fn groups_names_and_what_took_no_part() {
        let program = program("(?<b>x)|(?<a>y)", "");
        assert_eq!(program.find(b"-y", 0), Ok(true));
        assert_eq!(program.group(0), Some((1, 2)));
        assert_eq!(program.group(1), None);
        assert_eq!(program.group(2), Some((1, 2)));
        assert_eq!(program.group(3), None);
        assert_eq!(program.names, [(2, b"a".to_vec()), (1, b"b".to_vec())]);
    }

    #[test]
    fn the_other_algorithm_finds_the_longest() {
        let program = program("a|ab|(abc)", "d");
        assert_eq!(program.find(b"abcd", 0), Ok(true));
        assert_eq!(program.group(0), Some((0, 3)));
        assert_eq!(program.group(1), None);
    }

    #[test]
    fn text_that_is_no_utf_8_is_an_error_or_does_not_match() {
        assert_eq!(program(".", "u").find(b"\xe4\xbd", 0), Err(-3));
        assert_eq!(program(".", "U").find(b"\xe4\xbd", 0), Ok(false));
        assert_eq!(program(".", "du").find(b"\xe4\xbd", 0), Err(-3));
        assert_eq!(
            program("a", "").find(b"a", 2),
            Err(ffi::PCRE2_ERROR_BADOFFSET)
        );
    }

    #[test]
    fn steps_are_limited() {
        let options = options(b"").expect("letters");
        let Ok(program) = Program::compile(b"(a+)+$", options, &Matcher::new(100)) else {
            panic!("it compiles");
        };
        assert_eq!(
            program.find(b"aaaaaaaaaaaaaaaaaaaaaab", 0),
            Err(ffi::PCRE2_ERROR_MATCHLIMIT)
        );
    }
}
