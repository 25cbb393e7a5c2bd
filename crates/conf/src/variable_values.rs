//! What a request or session keeps of variables while it is served: the values that have been
//! computed or set, and the groups of the last match.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use crate::regex::{Captures, Regex};
use crate::variable::{VarId, VariableDefinition};

/// The groups of the last match of a regular expression, with the text that they point into.
#[derive(Clone, Default)]
pub struct CapturedGroups {
    subject: Vec<u8>,
    groups: Captures,
}

impl CapturedGroups {
    /// Matches a text. If the pattern does not match, the captures of an earlier match stay, as in
    /// nginx.
    pub fn matches(&mut self, regex: &Regex, subject: &[u8]) -> bool {
        let mut groups = Captures::new();
        if !regex.captures(subject, &mut groups) {
            return false;
        }
        self.groups = groups;
        self.subject.clear();
        self.subject.extend_from_slice(subject);
        true
    }

    /// The text of group `n`; 0 is the whole match.
    pub fn group(&self, n: usize) -> Option<&[u8]> {
        self.groups.text(n, &self.subject)
    }

    /// Appends the text of group `n`; the result says whether there is one.
    pub fn append(&self, n: usize, out: &mut Vec<u8>) -> bool {
        let text = self.group(n);
        out.extend_from_slice(text.unwrap_or_default());
        text.is_some()
    }

    /// Drops the match: there are no captures any more.
    pub fn clear(&mut self) {
        self.groups.clear();
    }

    /// The memory that it keeps for the next match, in bytes.
    pub fn memory(&self) -> usize {
        self.subject.capacity()
    }
}

/// The values of variables that have been computed or set, by the number of the variable.
#[derive(Default)]
pub struct VariableValues {
    slots: RefCell<Vec<ValueSlot>>,
    /// How many evaluations are nested at the moment: the value of one variable may name others.
    depth: Cell<u8>,
}

/// How deep evaluations may be nested before it must be a cycle; nginx's bound.
const MAX_VARIABLE_DEPTH: u8 = 100;

/// The value of a variable.
#[derive(Clone, Default)]
enum ValueSlot {
    #[default]
    Unset,
    NotFound,
    Value(Rc<[u8]>),
}

/// The value of this variable depends on itself.
#[derive(Clone, Debug)]
pub struct VariableCycle(Arc<str>);

impl fmt::Display for VariableCycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cycle while evaluating variable \"{}\"", self.0)
    }
}

impl VariableValues {
    /// Drops all values and keeps the memory.
    pub fn clear(&mut self) {
        self.slots.get_mut().clear();
    }

    /// Appends the value that is known; `Some(false)` if the variable is known to have none.
    fn append(&self, id: VarId, out: &mut Vec<u8>) -> Option<bool> {
        match self.slots.borrow().get(id.0 as usize)? {
            ValueSlot::Unset => None,
            ValueSlot::NotFound => Some(false),
            ValueSlot::Value(value) => {
                out.extend_from_slice(value);
                Some(true)
            }
        }
    }

    /// Sets a value; `None`: the variable has none.
    pub fn put(&self, id: VarId, value: Option<&[u8]>) {
        let mut slots = self.slots.borrow_mut();
        let index = id.0 as usize;
        if slots.len() <= index {
            slots.resize(index + 1, ValueSlot::Unset);
        }
        slots[index] = value.map_or(ValueSlot::NotFound, |bytes| ValueSlot::Value(bytes.into()));
    }

    /// A copy of the values, which changes independently from here on.
    pub fn copy(&self) -> VariableValues {
        VariableValues {
            slots: self.slots.clone(),
            depth: Cell::new(0),
        }
    }

    /// Drops a value, so that the variable is computed again.
    pub fn forget(&self, id: VarId) {
        if let Some(slot) = self.slots.borrow_mut().get_mut(id.0 as usize) {
            *slot = ValueSlot::Unset;
        }
    }
}

impl<R: 'static> VariableDefinition<R> {
    /// Appends the value of the variable with number `id`: the one that `values` of `of` knows, or
    /// a new one, which is kept if the variable is of that kind. The result says whether there is
    /// one.
    pub fn known_or_new_value(
        &self,
        id: VarId,
        of: &mut R,
        values: fn(&R) -> &VariableValues,
        out: &mut Vec<u8>,
    ) -> Result<bool, VariableCycle> {
        if let Some(found) = values(of).append(id, out) {
            return Ok(found);
        }
        let depth = values(of).depth.get();
        // A `map` may name itself through other variables: without a bound its evaluation would not end.
        if depth == MAX_VARIABLE_DEPTH {
            return Err(VariableCycle(Arc::clone(&self.name)));
        }
        values(of).depth.set(depth + 1);
        let start = out.len();
        let found = self.value(of, out);
        values(of).depth.set(depth);
        if self.cache {
            values(of).put(id, found.then(|| &out[start..]));
        }
        Ok(found)
    }
}
