//! The names of variables: who defines them, who uses them, and the numbers that stand for them at
//! run time.
//!
//! A variable that some expression uses gets a number, its [`VarId`], counted from 0, so a
//! request's cache is an array of that size. A name may be used before it is defined, because `map`
//! may come after the server that uses its variable; whether every used name is defined is known at
//! the end ([`VariableRegistry::finish`]).
//!
//! Names are compared without regard to case. `R` is what has the variable: a request or a session.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;

use base::{BString, ByteSlice, Span};

use crate::diagnostic::{Diagnostic, DiagnosticPlace};
use crate::spelling::nearest_name;

/// The number of a variable that is used somewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VarId(pub u32);

/// Gives values to an expression. Values are appended; the result says whether there is one.
pub trait VariableScope {
    /// Appends the value of a variable.
    fn variable(&mut self, id: VarId, out: &mut Vec<u8>) -> bool;

    /// Appends what group `n` (1 to 9) of the latest regular expression matched.
    fn capture(&mut self, n: usize, out: &mut Vec<u8>) -> bool;
}

/// Gives numbers to names while expressions are read.
pub trait VariableNames: Any {
    /// The number of a name, defined or not. The place is shown if it never gets defined.
    fn id(&mut self, name: &[u8], span: Option<Span>) -> VarId;

    /// From here on names need not exist, until this is called with `false`: they may never be
    /// used.
    fn set_tentative(&mut self, _: bool) {}

    /// A tentative name is used after all, so it must exist.
    fn require(&mut self, _: VarId) {}

    /// The number of a variable that the configuration sets: [`VariableRegistry::settable_id`]. `None` where no
    /// variable exists.
    fn slot_of(&mut self, _: &str) -> Option<Result<VarId, String>> {
        None
    }
}

/// A variable of a module: one row.
pub struct Variable<R: 'static> {
    /// The name; of a family, the part that all its names start with (`arg_`).
    pub name: &'static str,
    /// How the value is found.
    pub get: VariableGet<R>,
    /// The effect of `set`, for variables that have one (`$args`, `$limit_rate`).
    pub set: Option<fn(&mut R, &[u8])>,
    /// Whether the value stays the same for a request, so that it is computed once.
    pub cache: bool,
    /// Whether the configuration may define or set it again, as nginx permits for some.
    pub changeable: bool,
    /// Whether the value has several lines by design, such as a certificate, so that its line
    /// breaks are no client's.
    pub lines: bool,
    /// What it is, for the reference.
    pub doc: &'static str,
}

impl<R: 'static> Variable<R> {
    /// A variable that is computed once.
    pub const fn new(
        name: &'static str,
        get: fn(&mut R, &mut Vec<u8>) -> bool,
        doc: &'static str,
    ) -> Variable<R> {
        Variable {
            name,
            get: VariableGet::Plain(get),
            set: None,
            cache: true,
            changeable: false,
            lines: false,
            doc,
        }
    }

    /// A family of variables: `get` receives what follows `name`.
    pub const fn prefix(
        name: &'static str,
        get: fn(&mut R, &str, &mut Vec<u8>) -> bool,
        doc: &'static str,
    ) -> Variable<R> {
        Variable {
            name,
            get: VariableGet::Prefix(get),
            set: None,
            cache: true,
            changeable: false,
            lines: false,
            doc,
        }
    }

    /// Has several lines by design.
    pub const fn with_lines(mut self) -> Variable<R> {
        self.lines = true;
        self
    }

    /// Computed at every use, because the value changes while the request is served.
    pub const fn volatile(mut self) -> Variable<R> {
        self.cache = false;
        self
    }

    /// Can be set.
    pub const fn settable(mut self, set: fn(&mut R, &[u8])) -> Variable<R> {
        self.set = Some(set);
        self
    }
}

/// A closure that appends a value and says whether there is one.
pub type DynamicGet<R> = dyn Fn(&mut R, &mut Vec<u8>) -> bool + Send + Sync;

/// How a value is found. The functions append it and say whether there is one.
pub enum VariableGet<R: 'static> {
    /// By a function.
    Plain(fn(&mut R, &mut Vec<u8>) -> bool),
    /// By a function of the rest of the name.
    Prefix(fn(&mut R, &str, &mut Vec<u8>) -> bool),
    /// By a closure that the configuration made (`map`, `geo`, `split_clients`).
    Dynamic(Arc<DynamicGet<R>>),
    /// It has a value only if `set` or a named capture gives it one.
    Slot,
}

impl<R> Clone for VariableGet<R> {
    fn clone(&self) -> Self {
        match self {
            VariableGet::Plain(get) => VariableGet::Plain(*get),
            VariableGet::Prefix(get) => VariableGet::Prefix(*get),
            VariableGet::Dynamic(get) => VariableGet::Dynamic(get.clone()),
            VariableGet::Slot => VariableGet::Slot,
        }
    }
}

/// A variable as it is used at run time.
pub struct VariableDefinition<R: 'static> {
    /// The whole name.
    pub name: Arc<str>,
    /// How the value is found.
    pub get: VariableGet<R>,
    /// What `set` does besides remembering the value.
    pub set: Option<fn(&mut R, &[u8])>,
    /// Whether the value may be kept for the request.
    pub cache: bool,
    /// Whether the value has several lines by design.
    pub lines: bool,
    /// Whether the configuration may define or set it again.
    changeable: bool,
    /// Length of the family's part of the name.
    prefix_len: usize,
}

impl<R> Clone for VariableDefinition<R> {
    fn clone(&self) -> Self {
        VariableDefinition {
            name: self.name.clone(),
            get: self.get.clone(),
            ..*self
        }
    }
}

impl<R: 'static> VariableDefinition<R> {
    /// A variable made by the configuration: cached, and a later definition replaces it.
    pub fn new(get: VariableGet<R>) -> VariableDefinition<R> {
        VariableDefinition {
            name: "".into(),
            get,
            set: None,
            cache: true,
            lines: false,
            changeable: true,
            prefix_len: 0,
        }
    }

    /// A variable made by the configuration from a closure.
    pub fn dynamic(
        get: impl Fn(&mut R, &mut Vec<u8>) -> bool + Send + Sync + 'static,
    ) -> VariableDefinition<R> {
        VariableDefinition::new(VariableGet::Dynamic(Arc::new(get)))
    }

    /// Computed at every use.
    pub fn volatile(mut self) -> VariableDefinition<R> {
        self.cache = false;
        self
    }

    fn of_row(row: &Variable<R>, name: &str) -> VariableDefinition<R> {
        let (get, set, cache) = (row.get.clone(), row.set, row.cache);
        let changeable = row.changeable || set.is_some();
        VariableDefinition {
            name: name.into(),
            get,
            set,
            cache,
            lines: row.lines,
            changeable,
            prefix_len: row.name.len(),
        }
    }

    /// Whether it may be set: by the configuration, or by a script while a request is served.
    pub fn is_changeable(&self) -> bool {
        self.changeable
    }

    /// Appends the value; the result says whether there is one.
    pub fn value(&self, of: &mut R, out: &mut Vec<u8>) -> bool {
        match &self.get {
            VariableGet::Plain(get) => get(of, out),
            VariableGet::Prefix(get) => get(of, &self.name[self.prefix_len..], out),
            VariableGet::Dynamic(get) => get(of, out),
            VariableGet::Slot => false,
        }
    }
}

/// The variables of an engine while a configuration is built.
pub struct VariableRegistry<R: 'static> {
    /// By name in lower case.
    known: HashMap<Arc<str>, VariableDefinition<R>>,
    families: Vec<&'static Variable<R>>,
    used: Vec<UsedVariable>,
    ids: HashMap<Arc<str>, VarId>,
    /// Names that are used now need not exist.
    tentative: bool,
    texts: MultilineTexts,
    /// What the current server uses, while it is read.
    record: Option<VariableUses>,
}

/// The variables that a server uses, to be noted again when a reload takes it over.
#[derive(Clone, Debug, Default)]
pub struct VariableUses {
    /// Each variable, and whether it must exist.
    ids: Vec<(VarId, bool)>,
    /// Those that the server sets.
    settable: Vec<Arc<str>>,
    /// Multi-line texts that it assigns.
    texts: Vec<(Arc<str>, BString)>,
    /// It has defined a variable, or asked which ones are defined: both depend on other servers.
    is_special: bool,
}

impl VariableUses {
    /// Whether it can be taken over.
    pub fn can_be_repeated(&self) -> bool {
        !self.is_special
    }

    fn use_id(&mut self, id: VarId, required: bool) {
        // Servers name few variables, most of them several times in a row.
        match self.ids.iter_mut().find(|(known, _)| *known == id) {
            Some((_, known)) => *known |= required,
            None => self.ids.push((id, required)),
        }
    }
}

/// The state of a registry before the first server was read.
pub struct VariableCheckpoint<R: 'static> {
    known: HashMap<Arc<str>, VariableDefinition<R>>,
    used: Vec<UsedVariable>,
    texts: MultilineTexts,
}

/// How many variables that are no longer used a registry may remember, besides as many as are used: each is an empty slot in
/// every request's cache.
const MAX_UNUSED: usize = 64;

/// The multi-line texts that the configuration assigns, by variable.
type MultilineTexts = HashMap<Arc<str>, Vec<BString>>;

#[derive(Clone)]
struct UsedVariable {
    name: Arc<str>,
    /// It is used in this configuration, and not only in one before a reload.
    in_use: bool,
    /// It must exist. A name that need not, and does not, is empty.
    required: bool,
    /// Where it was used first.
    span: Option<Span>,
}

impl<R> Default for VariableRegistry<R> {
    fn default() -> Self {
        VariableRegistry::new()
    }
}

impl<R: 'static> VariableRegistry<R> {
    /// A registry without variables.
    pub fn new() -> VariableRegistry<R> {
        VariableRegistry {
            known: HashMap::new(),
            families: Vec::new(),
            used: Vec::new(),
            ids: HashMap::new(),
            tentative: false,
            texts: HashMap::new(),
            record: None,
        }
    }

    /// The present state, to return to when the servers are read again.
    pub fn checkpoint(&self) -> VariableCheckpoint<R> {
        VariableCheckpoint {
            known: self.known.clone(),
            used: self.used.clone(),
            texts: self.texts.clone(),
        }
    }

    /// Returns to a checkpoint. Only numbers stay: servers that are taken over contain them.
    pub fn return_to(&mut self, checkpoint: &VariableCheckpoint<R>) {
        self.known.clone_from(&checkpoint.known);
        self.texts.clone_from(&checkpoint.texts);
        for (index, used) in self.used.iter_mut().enumerate() {
            match checkpoint.used.get(index) {
                Some(before) => used.clone_from(before),
                None => (used.in_use, used.required, used.span) = (false, false, None),
            }
        }
        self.tentative = false;
    }

    /// Begins to note what a server uses.
    pub fn start_recording(&mut self) {
        self.record = Some(VariableUses::default());
    }

    /// What was used since [`VariableRegistry::start_recording`].
    pub fn take_recording(&mut self) -> VariableUses {
        self.record.take().unwrap_or_default()
    }

    /// Notes what a server uses that is taken over.
    pub fn repeat(&mut self, uses: &VariableUses) {
        for &(id, required) in &uses.ids {
            let used = &mut self.used[id.0 as usize];
            used.in_use = true;
            used.required |= required;
        }
        for name in &uses.settable {
            self.define_slot(name.clone());
        }
        for (name, text) in &uses.texts {
            let texts = self.texts.entry(name.clone()).or_default();
            texts.push(text.clone());
        }
    }

    /// Whether enough variables are no longer used that numbers should be assigned anew.
    pub fn is_sparse(&self) -> bool {
        let unused = self.used.iter().filter(|used| !used.in_use).count();
        unused > MAX_UNUSED.max(self.used.len() / 2)
    }

    /// Adds the variables of a module.
    pub fn add(&mut self, rows: &'static [Variable<R>]) {
        for row in rows {
            match row.get {
                VariableGet::Prefix(_) => self.families.push(row),
                _ => {
                    let name: Arc<str> = row.name.into();
                    self.known
                        .insert(name.clone(), VariableDefinition::of_row(row, row.name));
                }
            }
        }
    }

    /// Defines a variable from the configuration. The error is a message in nginx's words: a
    /// module's variable cannot be replaced.
    pub fn define(
        &mut self,
        name: &str,
        mut definition: VariableDefinition<R>,
    ) -> Result<VarId, String> {
        let name = self.changeable_name(name)?;
        definition.name = name.clone();
        if let Some(record) = &mut self.record {
            record.is_special = true;
        }
        // A variable keeps its setter: `set $args` must still change the arguments.
        if let Some(former) = self.known.get(&name) {
            definition.set = definition.set.or(former.set);
        }
        self.known.insert(name.clone(), definition);
        Ok(self.id_of(name, None))
    }

    /// A variable that the configuration sets (`set`, a named capture). If it has another
    /// definition, too, that applies until it is set.
    pub fn settable_id(&mut self, name: &str) -> Result<VarId, String> {
        let name = self.changeable_name(name)?;
        if let Some(record) = &mut self.record
            && !record.settable.contains(&name)
        {
            record.settable.push(name.clone());
        }
        self.define_slot(name.clone());
        Ok(self.id_of(name, None))
    }

    fn define_slot(&mut self, name: Arc<str>) {
        let slot = |name: &Arc<str>| VariableDefinition {
            name: name.clone(),
            ..VariableDefinition::new(VariableGet::Slot)
        };
        let place = self.known.entry(name);
        place.or_insert_with_key(slot);
    }

    /// Notes a text that the configuration gives a variable. What matters are line ends in it,
    /// which then come from the configuration and not from a client: see [`VariableTable::is_written`].
    pub fn note_text(&mut self, name: &str, text: &[u8]) {
        if Self::is_noted(text) {
            let name: Arc<str> = name.to_ascii_lowercase().into();
            if let Some(record) = &mut self.record {
                record.texts.push((name.clone(), text.into()));
            }
            self.texts.entry(name).or_default().push(text.into());
        }
    }

    /// Whether a text has line ends, or what other protocols than HTTP end a text with.
    pub fn is_noted(text: &[u8]) -> bool {
        text.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0))
    }

    fn changeable_name(&self, name: &str) -> Result<Arc<str>, String> {
        if name.is_empty() {
            return Err("invalid variable name \"$\"".to_owned());
        }
        let lower: Arc<str> = name.to_ascii_lowercase().into();
        match self.known.get(&lower) {
            Some(known) if !known.changeable => Err(format!("the duplicate \"{name}\" variable")),
            _ => Ok(lower),
        }
    }

    fn id_of(&mut self, name: Arc<str>, span: Option<Span>) -> VarId {
        let id = self.number_of(name, span);
        if let Some(record) = &mut self.record {
            record.use_id(id, !self.tentative);
        }
        id
    }

    fn number_of(&mut self, name: Arc<str>, span: Option<Span>) -> VarId {
        if let Some(&id) = self.ids.get(&name) {
            let used = &mut self.used[id.0 as usize];
            used.in_use = true;
            if !self.tentative && !used.required {
                used.required = true;
                used.span = span;
            }
            return id;
        }
        let id = VarId(self.used.len() as u32);
        self.used.push(UsedVariable {
            name: name.clone(),
            in_use: true,
            required: !self.tentative,
            span,
        });
        self.ids.insert(name, id);
        id
    }

    /// Whether a name is defined so far, by itself or by a family.
    pub fn is_defined(&mut self, name: &str) -> bool {
        if let Some(record) = &mut self.record {
            record.is_special = true;
        }
        let name = name.to_ascii_lowercase();
        self.known.contains_key(&*name) || family(&self.families, &name).is_some()
    }

    /// The names that are defined so far, families with a `*` after them.
    pub fn names(&mut self) -> impl Iterator<Item = String> {
        if let Some(record) = &mut self.record {
            record.is_special = true;
        }
        let families = self.families.iter().map(|row| format!("{}*", row.name));
        self.known
            .keys()
            .map(|name| name.to_string())
            .chain(families)
    }

    /// Closes the registry: by now every name in use must be defined.
    pub fn finish(&self) -> Result<VariableTable<R>, Vec<Diagnostic>> {
        let mut definitions = Vec::with_capacity(self.used.len());
        let mut errors = Vec::new();
        for used in &self.used {
            match resolve(&self.known, &self.families, &used.name) {
                Some(definition) => definitions.push(definition),
                None if !used.required => definitions.push(VariableDefinition {
                    name: used.name.clone(),
                    ..VariableDefinition::new(VariableGet::Slot)
                }),
                None => errors.push(self.unknown(used)),
            }
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        let in_use = |id: &VarId| self.used[id.0 as usize].in_use;
        let ids = self.ids.iter().filter(|(_, id)| in_use(id));
        Ok(VariableTable {
            definitions,
            ids: ids.map(|(name, id)| (name.clone(), *id)).collect(),
            known: self.known.clone(),
            families: self.families.clone(),
            texts: self.texts.clone(),
        })
    }

    fn unknown(&self, used: &UsedVariable) -> Diagnostic {
        let error = Diagnostic::error(format!("unknown \"{}\" variable", used.name), used.span);
        let error = error.place(DiagnosticPlace::Unsaid);
        let candidates = self
            .known
            .keys()
            .map(|name| &**name)
            .chain(self.families.iter().map(|row| row.name));
        match nearest_name(&used.name, candidates) {
            Some(near) => error.note(format!("did you mean \"${near}\"?")),
            None => error,
        }
    }
}

impl<R: 'static> VariableNames for VariableRegistry<R> {
    fn id(&mut self, name: &[u8], span: Option<Span>) -> VarId {
        self.id_of(name.to_str_lossy().to_ascii_lowercase().into(), span)
    }

    fn set_tentative(&mut self, tentative: bool) {
        self.tentative = tentative;
    }

    fn require(&mut self, id: VarId) {
        self.used[id.0 as usize].required = true;
        if let Some(record) = &mut self.record {
            record.use_id(id, true);
        }
    }

    fn slot_of(&mut self, name: &str) -> Option<Result<VarId, String>> {
        Some(self.settable_id(name))
    }
}

/// The longest family that a name belongs to.
fn family<R>(families: &[&'static Variable<R>], name: &str) -> Option<&'static Variable<R>> {
    families
        .iter()
        .copied()
        .filter(|row| name.starts_with(row.name))
        .max_by_key(|row| row.name.len())
}

/// A name's own definition, else that of its family. A slot that belongs to a family has the
/// family's value until it is set: after `set $http_x …` in one location, `$http_x` is still the
/// header everywhere else.
fn resolve<R: 'static>(
    known: &HashMap<Arc<str>, VariableDefinition<R>>,
    families: &[&'static Variable<R>],
    name: &str,
) -> Option<VariableDefinition<R>> {
    let own = known.get(name);
    if let Some(own) = own
        && !matches!(own.get, VariableGet::Slot)
    {
        return Some(own.clone());
    }
    let by_family = family(families, name).map(|row| VariableDefinition::of_row(row, name));
    by_family.or_else(|| own.cloned())
}

/// The variables of a finished configuration.
pub struct VariableTable<R: 'static> {
    definitions: Vec<VariableDefinition<R>>,
    ids: HashMap<Arc<str>, VarId>,
    known: HashMap<Arc<str>, VariableDefinition<R>>,
    families: Vec<&'static Variable<R>>,
    texts: MultilineTexts,
}

impl<R: 'static> VariableTable<R> {
    /// Whether a value of several lines is one that the configuration itself gives this variable.
    pub fn is_written(&self, id: VarId, value: &[u8]) -> bool {
        let texts = self.texts.get(&self.get(id).name);
        texts.is_some_and(|texts| texts.iter().any(|text| text == value))
    }

    /// The variables in use whose values have several lines by design.
    pub fn with_lines(&self) -> impl Iterator<Item = VarId> + '_ {
        let all = self.definitions.iter().zip(0..);
        all.filter_map(|(definition, id)| definition.lines.then_some(VarId(id)))
    }

    /// How many variables are in use: the size of a request's cache.
    pub fn len(&self) -> usize {
        self.definitions.len()
    }

    /// Whether no variable is in use.
    pub fn is_empty(&self) -> bool {
        self.definitions.is_empty()
    }

    /// The variable with this number. Numbers come from the registry that these variables were made
    /// by.
    pub fn get(&self, id: VarId) -> &VariableDefinition<R> {
        &self.definitions[id.0 as usize]
    }

    /// The number of a name that the configuration uses; the name must be in lower case.
    pub fn id(&self, name: &str) -> Option<VarId> {
        self.ids.get(name).copied()
    }

    /// The definition of a name that comes up at run time only (scripts, server-side includes). If
    /// it has a number, use that instead, so that the cache is consulted.
    pub fn find(&self, name: &str) -> Option<VariableDefinition<R>> {
        resolve(&self.known, &self.families, name)
    }
}

/// Names where no variable exists: outside http and stream. Each use is an error.
#[derive(Debug, Default)]
pub struct NoVariables {
    /// The errors.
    pub errors: Vec<Diagnostic>,
}

impl VariableNames for NoVariables {
    fn id(&mut self, name: &[u8], span: Option<Span>) -> VarId {
        let name = name.as_bstr();
        let error = Diagnostic::error(format!("unknown \"{name}\" variable"), span);
        self.errors
            .push(error.note("variables are not allowed here"));
        VarId(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Request {
        uri: &'static str,
        rate: usize,
    }

    static ROWS: &[Variable<Request>] = &[
        Variable::new("uri", uri, "The path."),
        Variable::new("rate", uri, "A limit.")
            .settable(|request, value| request.rate = value.len())
            .volatile(),
        Variable::prefix("http_", rest, "A header."),
        Variable::prefix("http_x_", |_, _, _| false, "A header that nobody sees."),
    ];

    fn uri(request: &mut Request, out: &mut Vec<u8>) -> bool {
        out.extend_from_slice(request.uri.as_bytes());
        true
    }

    fn rest(_: &mut Request, name: &str, out: &mut Vec<u8>) -> bool {
        out.extend_from_slice(name.as_bytes());
        true
    }

    fn registry() -> VariableRegistry<Request> {
        let mut names = VariableRegistry::new();
        names.add(ROWS);
        names
    }

    fn value(variables: &VariableTable<Request>, id: VarId) -> Option<String> {
        let mut out = Vec::new();
        let found = variables
            .get(id)
            .value(&mut Request { uri: "/a", rate: 0 }, &mut out);
        found.then(|| String::from_utf8(out).unwrap())
    }

    #[test]
    fn names_are_found_whatever_their_case() {
        let mut names = registry();
        let (uri, agent) = (names.id(b"URI", None), names.id(b"http_User_Agent", None));
        assert_eq!(names.id(b"uri", None), uri);
        let hidden = names.id(b"http_x_y", None);
        let variables = names.finish().unwrap();
        assert_eq!(variables.len(), 3);
        assert_eq!(value(&variables, uri).as_deref(), Some("/a"));
        assert_eq!(value(&variables, agent).as_deref(), Some("user_agent"));
        assert_eq!(value(&variables, hidden), None, "the longest family counts");
        assert!(
            variables.find("http_host").is_some(),
            "known though not used"
        );
        assert_eq!(variables.id("http_host"), None);
        assert!(variables.find("nothing").is_none());
    }

    #[test]
    fn a_name_may_be_used_before_it_is_defined() {
        let mut names = registry();
        let early = names.id(b"mapped", None);
        let id = names.define(
            "Mapped",
            VariableDefinition::dynamic(|_, out| {
                out.push(b'1');
                true
            }),
        );
        assert_eq!(id, Ok(early));
        // The last definition of a name counts, as with two `map` blocks.
        let again = names.define(
            "mapped",
            VariableDefinition::dynamic(|_, out| {
                out.push(b'2');
                true
            }),
        );
        assert_eq!(again, Ok(early));
        assert_eq!(value(&names.finish().unwrap(), early).as_deref(), Some("2"));
    }

    #[test]
    fn a_variable_of_a_module_stays_what_it_is() {
        let mut names = registry();
        assert_eq!(
            names.settable_id("uri"),
            Err("the duplicate \"uri\" variable".to_owned())
        );
        assert!(
            names
                .define("URI", VariableDefinition::new(VariableGet::Slot))
                .is_err()
        );
        assert_eq!(
            names.settable_id(""),
            Err("invalid variable name \"$\"".to_owned())
        );
        let rate = names.settable_id("rate").unwrap();
        let header = names.settable_id("http_a").unwrap();
        let mine = names.settable_id("mine").unwrap();
        let variables = names.finish().unwrap();
        assert!(variables.get(rate).set.is_some() && !variables.get(rate).cache);
        assert_eq!(
            value(&variables, header).as_deref(),
            Some("a"),
            "until it is set, it is the header"
        );
        assert_eq!(value(&variables, mine), None);
    }

    #[test]
    fn names_that_nobody_defined_are_errors() {
        let mut names = registry();
        names.id(b"url", None);
        names.id(b"completely_else", None);
        let errors = names.finish().err().unwrap();
        assert_eq!(errors[0].message, "unknown \"url\" variable");
        assert_eq!(errors[0].notes, ["did you mean \"$uri\"?"]);
        assert_eq!(errors[1].notes, Vec::<String>::new());
    }
}
