//! The state that the parts of one page share: variables, blocks, and the captures of the last
//! regular expression.
//!
//! A page is the client's request with everything that it includes, so a variable set in one file
//! is seen in the next. The state lives with the request ([`Request::shared`]) and its size is
//! bounded.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use bstr::{BStr, BString, ByteSlice};
use bytes::Bytes;
use conf::{Captures, Regex, VariableScope};
use http::Request;

use crate::shared::transform::LoopTurn;

/// The maximum size of the variables and blocks of one page, in bytes.
const MAX_BYTES: usize = 1024 * 1024;

/// The number of compiled regular expressions that each event loop keeps: pages use the same ones
/// over and over.
const KEPT_EXPRESSIONS: usize = 64;

/// The state shared by a request and all that it includes.
#[derive(Default)]
pub(super) struct SsiPage {
    state: RefCell<PageState>,
    /// The page's share of a turn of the event loop.
    turn: RefCell<LoopTurn>,
}

/// The state behind a cell: parts of a page run in turn on one loop, never at the same time.
#[derive(Default)]
struct PageState {
    variables: Vec<(BString, BString)>,
    /// Finished blocks, for `stub`.
    blocks: Vec<(BString, Bytes)>,
    /// The groups of the last match, for `$0` to `$9`.
    captured: Vec<Option<BString>>,
    /// The size of all values and blocks that were ever stored. Replaced values still count.
    bytes: usize,
}

/// The state of the page that a request belongs to.
pub(super) fn page_of(request: &Request) -> Rc<SsiPage> {
    request.shared()
}

impl SsiPage {
    /// Whether other connections should have their turn of the event loop before the page's next
    /// step. All parts of a page share one turn: otherwise a page with many includes would get a
    /// turn for each.
    pub(super) fn is_turn_over(&self) -> bool {
        self.turn.borrow_mut().is_over()
    }

    /// Sets a variable. The error is for the log.
    pub(super) fn set(&self, name: &BStr, value: BString) -> Result<(), String> {
        let name: BString = name.to_ascii_lowercase().into();
        let mut inside = self.state.borrow_mut();
        inside.charge(name.as_bstr(), value.len())?;
        match inside
            .variables
            .iter_mut()
            .find(|(known, _)| *known == name)
        {
            Some((_, old)) => *old = value,
            None => inside.variables.push((name, value)),
        }
        Ok(())
    }

    /// Makes sure that a variable exists, with an empty value if need be.
    pub(super) fn declare(&self, name: &BStr) -> Result<(), String> {
        match self.get(name) {
            Some(_) => Ok(()),
            None => self.set(name, BString::default()),
        }
    }

    /// The value of a variable or of a capture.
    fn get(&self, name: &BStr) -> Option<BString> {
        let inside = self.state.borrow();
        if let [digit @ b'0'..=b'9'] = name.as_bytes()
            && let Some(group) = inside.captured.get(usize::from(digit - b'0'))
        {
            return group.clone();
        }
        let found = inside
            .variables
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.clone())
    }

    /// Stores a block.
    pub(super) fn keep_block(&self, name: BString, content: Vec<u8>) -> Result<(), String> {
        let mut inside = self.state.borrow_mut();
        inside.charge(name.as_bstr(), content.len())?;
        inside.blocks.push((name, content.into()));
        Ok(())
    }

    /// The first block with a name.
    pub(super) fn block(&self, name: &BStr) -> Option<Bytes> {
        let inside = self.state.borrow();
        let found = inside.blocks.iter().find(|(known, _)| known == name);
        found.map(|(_, content)| content.clone())
    }

    /// Matches a text; its groups are then `$0` to `$9`, and named groups are variables.
    pub(super) fn matches(&self, pattern: &BStr, text: &BStr) -> Result<bool, String> {
        let regex = compiled(pattern)?;
        let mut groups = Captures::new();
        if !regex.captures(text, &mut groups) {
            return Ok(false);
        }
        let captured = (0..10.min(groups.len()))
            .map(|n| groups.text(n, text).map(BString::from))
            .collect();
        self.state.borrow_mut().captured = captured;
        for (group, name) in regex.names() {
            let value = groups.text(*group, text).unwrap_or_default();
            self.set(BStr::new(name), value.into())?;
        }
        Ok(true)
    }
}

impl PageState {
    /// Accounts for a value of this size; the error says that the page has used up its memory.
    fn charge(&mut self, name: &BStr, bytes: usize) -> Result<(), String> {
        self.bytes += name.len() + bytes;
        if self.bytes > MAX_BYTES {
            return Err(format!(
                "\"{name}\" is too large: SSI variables and blocks have more than {MAX_BYTES} bytes"
            ));
        }
        Ok(())
    }
}

/// The compiled form of a regular expression, from this event loop's cache.
fn compiled(pattern: &BStr) -> Result<Arc<Regex>, String> {
    type Expressions = base::lru::Lru<BString, Arc<Regex>>;
    rt::local! {
        static EXPRESSIONS: RefCell<Expressions> = RefCell::new(Expressions::new(KEPT_EXPRESSIONS));
    }
    EXPRESSIONS.with_borrow_mut(|expressions| {
        if let Some(regex) = expressions.get(pattern) {
            return Ok(Arc::clone(regex));
        }
        let regex = Arc::new(Regex::new(pattern, false)?);
        expressions.insert(pattern.to_owned(), Arc::clone(&regex));
        Ok(regex)
    })
}

/// The value of a variable: the page's own or, failing that, the request's.
pub(super) fn variable(request: &mut Request, name: &BStr) -> Option<BString> {
    if let Some(value) = page_of(request).get(name) {
        return Some(value);
    }
    let name = name.to_str().ok()?.to_ascii_lowercase();
    let site = Rc::clone(&request.site);
    let mut value = Vec::new();
    let found = match site.variables.id(&name) {
        Some(id) => request.variable(id, &mut value),
        None => site.variables.find(&name)?.value(request, &mut value),
    };
    found.then(|| value.into())
}

/// Replaces the variables in a text. A backslash removes the meaning of a dollar sign, a quote and
/// another backslash.
pub(super) fn evaluate(request: &mut Request, text: &BStr) -> Result<BString, String> {
    let mut out = BString::default();
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        match byte {
            b'\\' => {
                let Some((&next, after)) = rest.split_first() else {
                    break;
                };
                rest = after;
                // Before any other character, the backslash is an ordinary one.
                if !matches!(next, b'\\' | b'\'' | b'"' | b'$') {
                    out.push(b'\\');
                }
                out.push(next);
            }
            b'$' => {
                let (name, after) = name(text, rest)?;
                rest = after;
                if let Some(value) = variable(request, name) {
                    out.extend_from_slice(&value);
                }
            }
            other => out.push(other),
        }
    }
    Ok(out)
}

/// Splits off the name of a variable, with or without braces, from the start of `rest`.
fn name<'t>(text: &BStr, rest: &'t [u8]) -> Result<(&'t BStr, &'t [u8]), String> {
    let (in_brackets, rest) = match rest.strip_prefix(b"{") {
        Some(rest) => (true, rest),
        None => (false, rest),
    };
    let length = rest
        .iter()
        .take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_')
        .count();
    let (name, mut rest) = rest.split_at(length);
    let name = name.as_bstr();
    if in_brackets {
        rest = rest
            .strip_prefix(b"}")
            .ok_or_else(|| format!("the closing bracket in \"{name}\" variable is missing"))?;
    }
    if name.is_empty() {
        return Err(format!("invalid variable name in \"{text}\""));
    }
    Ok((name, rest))
}

/// Replaces the variables in a path. A relative path is resolved against the directory of the
/// current path.
pub(super) fn evaluate_path(request: &mut Request, text: &BStr) -> Result<BString, String> {
    let path = evaluate(request, text)?;
    if path.starts_with(b"/") {
        return Ok(path);
    }
    let own = &request.uri.path;
    let folder = own.rfind_byte(b'/').map_or(0, |slash| slash + 1);
    Ok([&own[..folder], &path].concat().into())
}
