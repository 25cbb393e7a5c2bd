//! What the parts of one page share: variables, blocks, and what the last regular expression matched.
//!
//! A page is the client's request with everything that it includes, so that a variable set in one file shows in the
//! next. It lives with the request ([`Request::shared`]), and is bounded.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use bstr::{BStr, BString, ByteSlice};
use bytes::Bytes;
use conf::{Captures, Regex, Scope};
use http::Request;

use crate::shared::transform::Turn;

/// How many bytes the variables and blocks of one page may have.
const MAX_BYTES: usize = 1024 * 1024;

/// Expressions that each loop keeps compiled; pages use the same ones over and over.
const KEPT_EXPRESSIONS: usize = 64;

/// The page of a request and of all that it includes.
#[derive(Default)]
pub(super) struct Page {
    inside: RefCell<Inside>,
    turn: RefCell<Turn>,
}

#[derive(Default)]
struct Inside {
    variables: Vec<(BString, BString)>,
    blocks: Vec<(BString, Bytes)>,
    captured: Vec<Option<BString>>,
    /// The bytes of all values and blocks that were ever kept.
    bytes: usize,
}

/// The page that a request belongs to.
pub(super) fn of(request: &Request) -> Rc<Page> {
    request.shared()
}

impl Page {
    /// Whether others should have their turn of the loop before the page's next step. All parts of a page count as one:
    /// each turn makes one step at least, but not one of every part.
    pub(super) fn is_turn_over(&self) -> bool {
        self.turn.borrow_mut().is_over()
    }

    /// Sets a variable. The error is for the log.
    pub(super) fn set(&self, name: &BStr, value: BString) -> Result<(), String> {
        let name: BString = name.to_ascii_lowercase().into();
        let mut inside = self.inside.borrow_mut();
        inside.pay(name.as_bstr(), value.len())?;
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

    /// Sees to it that a variable has a value, if an empty one.
    pub(super) fn declare(&self, name: &BStr) -> Result<(), String> {
        match self.get(name) {
            Some(_) => Ok(()),
            None => self.set(name, BString::default()),
        }
    }

    fn get(&self, name: &BStr) -> Option<BString> {
        let inside = self.inside.borrow();
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

    /// Keeps a block.
    pub(super) fn keep_block(&self, name: BString, content: Vec<u8>) -> Result<(), String> {
        let mut inside = self.inside.borrow_mut();
        inside.pay(name.as_bstr(), content.len())?;
        inside.blocks.push((name, content.into()));
        Ok(())
    }

    /// The block of this name that came first.
    pub(super) fn block(&self, name: &BStr) -> Option<Bytes> {
        let inside = self.inside.borrow();
        let found = inside.blocks.iter().find(|(known, _)| known == name);
        found.map(|(_, content)| content.clone())
    }

    /// Matches a text; groups are then `$0` to `$9`, named ones variables.
    pub(super) fn matches(&self, pattern: &BStr, text: &BStr) -> Result<bool, String> {
        let regex = compiled(pattern)?;
        let mut groups = Captures::new();
        if !regex.captures(text, &mut groups) {
            return Ok(false);
        }
        let captured = (0..10.min(groups.len()))
            .map(|n| groups.text(n, text).map(BString::from))
            .collect();
        self.inside.borrow_mut().captured = captured;
        for (group, name) in regex.names() {
            let value = groups.text(*group, text).unwrap_or_default();
            self.set(BStr::new(name), value.into())?;
        }
        Ok(true)
    }
}

impl Inside {
    fn pay(&mut self, name: &BStr, bytes: usize) -> Result<(), String> {
        self.bytes += name.len() + bytes;
        if self.bytes > MAX_BYTES {
            return Err(format!(
                "\"{name}\" is too large: SSI variables and blocks have more than {MAX_BYTES} bytes"
            ));
        }
        Ok(())
    }
}

fn compiled(pattern: &BStr) -> Result<Arc<Regex>, String> {
    type Expressions = base::lru::Lru<BString, Arc<Regex>>;
    thread_local! {
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

/// The value of a variable: the page's own, else the request's.
pub(super) fn variable(request: &mut Request, name: &BStr) -> Option<BString> {
    if let Some(value) = of(request).get(name) {
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

/// A text with its variables in place. A backslash takes away the meaning of a dollar, a quote and itself.
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

/// The name of the variable that `rest` begins with, and what follows it.
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

/// A path with its variables in place; one that does not begin with a slash counts from the present path's folder.
pub(super) fn evaluate_path(request: &mut Request, text: &BStr) -> Result<BString, String> {
    let path = evaluate(request, text)?;
    if path.starts_with(b"/") {
        return Ok(path);
    }
    let own = &request.uri.path;
    let folder = own.rfind_byte(b'/').map_or(0, |slash| slash + 1);
    Ok([&own[..folder], &path].concat().into())
}
