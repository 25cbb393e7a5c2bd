//! What the setters of a block can reach besides their own struct: the build as a whole, the names
//! of variables, the engine that owns the block.

use std::any::{Any, TypeId};
use std::cell::{RefCell, RefMut};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use base::Span;

use crate::block_confs::RowId;
use crate::diagnostic::{Diagnostic, render_diagnostic};
use crate::directive_contexts::{Contexts, SERVER};
use crate::expression::{Expression, ExpressionPart};
use crate::file_source::FileSource;
use crate::known_blocks::BlockSource;
use crate::refused::RefusedDirectives;
use crate::system_needs::{PathUse, SystemNeeds, literal_folder};
use crate::table::DirectiveRows;
use crate::tree::{BlockPlace, SourceMap};
use crate::variable::{VariableNames, VariableRegistry};

/// The maximum number of messages shown. A mistake in a file that is included everywhere can cause
/// thousands.
pub const MAX_SHOWN: usize = 200;

/// One build of a configuration, from tree to structs.
pub struct ConfigurationBuild {
    /// The base of most relative paths. It is private, so that each use must declare the kind of
    /// access: see [`crate::system_needs`].
    prefix: PathBuf,
    /// The base of temporary directories that the configuration does not name.
    pub temporary: PathBuf,
    /// The access log if the configuration names none.
    pub access_log: PathBuf,
    /// The directory of the configuration file: the base of included files, certificates and
    /// password files.
    conf_prefix: PathBuf,
    needs: RefCell<SystemNeeds>,
    /// Reads the files. Everything that belongs to the configuration must be read through this: the
    /// worker gets a recording.
    pub files: Box<dyn FileSource>,
    /// The texts that spans point into.
    pub sources: SourceMap,
    /// Registries that several modules use: zones, log formats, caches.
    pub shared: TypeMap,
    /// What is only of use while this reading lasts: [`BlockContext::momentary`].
    pub momentary: TypeMap,
    /// A line has done what a reload cannot take over: [`BlockContext::shared`]. Looked at after each server.
    pub must_read_all: bool,
    /// The same, wherever the line is: [`DirectiveLine::must_read_all`](crate::DirectiveLine::must_read_all).
    pub must_always_read_all: bool,
    /// The `server` blocks of `http` that were parsed.
    pub blocks: HashMap<BlockPlace, BlockSource>,
    /// Names of directives that the configuration must not have: `refuse_directives`.
    pub refused: RefusedDirectives,
    /// All messages so far.
    pub diagnostics: Vec<Diagnostic>,
    /// What the program calls itself in messages: `weir` or `nginx`.
    pub program: String,
    /// Every table in the program, for suggestions and for telling "not allowed here" from
    /// "unknown".
    pub tables: Vec<&'static dyn DirectiveRows>,
}

impl ConfigurationBuild {
    /// An empty build. Its name is `weir`, and its base of temporary directories the prefix.
    pub fn new(
        prefix: PathBuf,
        conf_prefix: PathBuf,
        files: Box<dyn FileSource>,
        sources: SourceMap,
    ) -> ConfigurationBuild {
        ConfigurationBuild {
            temporary: prefix.clone(),
            access_log: prefix.join("logs/access.log"),
            prefix,
            conf_prefix,
            needs: RefCell::default(),
            files,
            sources,
            shared: TypeMap::default(),
            momentary: TypeMap::default(),
            must_read_all: false,
            must_always_read_all: false,
            blocks: HashMap::new(),
            refused: RefusedDirectives::default(),
            diagnostics: Vec::new(),
            program: "weir".to_owned(),
            tables: Vec::new(),
        }
    }

    /// Records a message.
    pub fn report(&mut self, diagnostic: Diagnostic) {
        self.diagnostics.push(diagnostic);
    }

    /// Records the message of a failure, if it is one.
    pub fn report_error(&mut self, result: Result<(), Diagnostic>) {
        if let Err(diagnostic) = result {
            self.report(diagnostic);
        }
    }

    /// Whether a message so far forbids using the configuration.
    pub fn has_errors(&self) -> bool {
        self.diagnostics
            .iter()
            .any(|diagnostic| diagnostic.severity.is_fatal())
    }

    /// The messages as text, in the order of places; the first [`MAX_SHOWN`] of them.
    pub fn render(&mut self, colour: bool) -> String {
        self.sources.sort(&mut self.diagnostics);
        let shown = self.diagnostics.iter().take(MAX_SHOWN);
        let mut out: String = shown
            .map(|message| render_diagnostic(message, &self.sources, &self.program, colour))
            .collect();
        if let Some(more) = self.diagnostics.len().checked_sub(MAX_SHOWN + 1) {
            out += &format!(
                "{}: {} more messages are not shown\n",
                self.program,
                more + 1
            );
        }
        out
    }

    /// A path of the configuration, and what it is for; a relative one counts from the prefix.
    pub fn in_prefix(&self, path_use: PathUse, path: impl AsRef<Path>) -> PathBuf {
        let path = self.prefix.join(path);
        self.needs.borrow_mut().add(path_use, path.clone());
        path
    }

    /// A path of the configuration, and what it is for; a relative one counts from the directory of
    /// the configuration file.
    pub fn in_conf_prefix(&self, path_use: PathUse, path: impl AsRef<Path>) -> PathBuf {
        let path = self.conf_prefix.join(path);
        self.needs.borrow_mut().add(path_use, path.clone());
        path
    }

    /// The log of requests, when the configuration names none.
    pub fn default_access_log(&self) -> PathBuf {
        let path = self.access_log.clone();
        self.needs.borrow_mut().add(PathUse::Opened, path.clone());
        path
    }

    /// A folder for temporary files that the configuration does not name.
    pub fn in_temporary(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = self.temporary.join(path);
        self.needs.borrow_mut().add(PathUse::Write, path.clone());
        path
    }

    /// The prefix, for a path that is known only while serving: `text` with its variables filled
    /// in.
    pub fn prefix_for(&self, path_use: PathUse, text: &[u8]) -> PathBuf {
        let folder = literal_folder(text, &self.prefix);
        self.needs.borrow_mut().add(path_use, folder);
        self.prefix.clone()
    }

    /// The same, of the directory of the configuration file.
    pub fn conf_prefix_for(&self, path_use: PathUse, text: &[u8]) -> PathBuf {
        let folder = literal_folder(text, &self.conf_prefix);
        self.needs.borrow_mut().add(path_use, folder);
        self.conf_prefix.clone()
    }

    /// What is needed while serving, of all that has been read so far; also to add what is no path.
    pub fn needs(&self) -> RefMut<'_, SystemNeeds> {
        self.needs.borrow_mut()
    }
}

/// One value of each type.
#[derive(Default)]
pub struct TypeMap {
    values: HashMap<TypeId, Box<dyn Any>>,
}

impl TypeMap {
    /// The value of type `T`, made by `Default` at first use.
    pub fn get_or_default<T: Default + Any>(&mut self) -> &mut T {
        let value = self
            .values
            .entry(TypeId::of::<T>())
            .or_insert_with(|| Box::new(T::default()));
        value
            .downcast_mut()
            .expect("the value under a type's id is of that type")
    }

    /// The value of type `T`, if there is one.
    pub fn get<T: Any>(&self) -> Option<&T> {
        self.values.get(&TypeId::of::<T>())?.downcast_ref()
    }

    /// Puts a value in, in place of the former one.
    pub fn insert<T: Any>(&mut self, value: T) {
        self.values.insert(TypeId::of::<T>(), Box::new(value));
    }

    /// Takes the value of type `T` out: what an engine does when the build is complete.
    pub fn take<T: Any>(&mut self) -> Option<T> {
        self.values
            .remove(&TypeId::of::<T>())?
            .downcast()
            .ok()
            .map(|value| *value)
    }
}

/// One block while it is being applied.
pub struct BlockContext<'b> {
    /// The build.
    pub build: &'b mut ConfigurationBuild,
    /// The variables that exist in this block.
    pub names: &'b mut (dyn VariableNames + 'static),
    /// The engine's own data during the build; only its own rows know the type.
    pub engine: &'b mut (dyn Any + 'static),
    /// The kind of this block.
    pub context: Contexts,
    /// The rows used in this block. A list, because most blocks use one or two.
    pub(crate) seen: Vec<SeenDirective>,
}

/// A row that was used in a block.
pub(crate) struct SeenDirective {
    pub(crate) row: RowId,
    pub(crate) name: &'static str,
    /// The place of its first use.
    pub(crate) head: Span,
}

impl<'b> BlockContext<'b> {
    /// In a server, asks for the variables of what it has or inherits to exist
    /// ([`DirectiveLine::expression_if_inherited`](crate::DirectiveLine::expression_if_inherited)).
    pub fn require_defined<'a>(&mut self, values: impl Iterator<Item = &'a Expression>) {
        if self.context != SERVER {
            return;
        }
        for part in values.flat_map(Expression::parts) {
            if let ExpressionPart::Variable(id) = part {
                self.names.require(id);
            }
        }
    }

    /// The level of an outermost block.
    pub fn new(
        build: &'b mut ConfigurationBuild,
        names: &'b mut (dyn VariableNames + 'static),
        engine: &'b mut (dyn Any + 'static),
        context: Contexts,
    ) -> BlockContext<'b> {
        BlockContext {
            build,
            names,
            engine,
            context,
            seen: Vec::new(),
        }
    }

    /// The level of a block inside this one, under the same engine.
    pub fn inner_block(&mut self, context: Contexts) -> BlockContext<'_> {
        BlockContext::new(self.build, self.names, self.engine, context)
    }

    /// What the engine keeps while it builds. Panics if the engine keeps something of another type:
    /// a row was listed under an engine it was not written for.
    pub fn engine<T: Any>(&mut self) -> &mut T {
        self.engine
            .downcast_mut()
            .expect("a row stands under the engine it was written for")
    }

    /// The registry of variables of requests of type `R`; `None` if variables are for another kind
    /// here.
    pub fn registry<R: 'static>(&mut self) -> Option<&mut VariableRegistry<R>> {
        (self.names as &mut dyn Any).downcast_mut()
    }

    /// The registry that modules share under type `T`, made by `Default` at first use.
    ///
    /// A reload takes over servers that have not changed, without applying their lines again. What those lines have left in
    /// a registry would be missing. So a configuration in which a server uses this is read anew as a whole; a registry for
    /// which there is a better answer is reached by [`BlockContext::lasting`] or [`BlockContext::momentary`].
    pub fn shared<T: Default + Any>(&mut self) -> &mut T {
        self.build.must_read_all = true;
        self.build.shared.get_or_default()
    }

    /// As [`BlockContext::shared`], for a registry that reloads take over: as long as nothing but servers changes, it stays,
    /// with all that servers have put in, and servers that stay keep what they have taken from it. So an entry must mean
    /// the same for every server, and do no harm once no server uses it.
    pub fn lasting<T: Default + Any>(&mut self) -> &mut T {
        self.build.shared.get_or_default()
    }

    /// As [`BlockContext::shared`], for a registry that only saves work within one reading. At a reload, it begins empty,
    /// and lacks what servers that stay have put in. What a server takes from it must not depend on other servers, and
    /// must be noted as read ([`DirectiveLine::files`](crate::DirectiveLine::files)) if it comes from a file.
    pub fn momentary<T: Default + Any>(&mut self) -> &mut T {
        self.build.momentary.get_or_default()
    }

    /// The place of the first directive with this name in this block; `None` if its value is
    /// inherited or the default.
    pub fn seen_directive(&self, name: &str) -> Option<Span> {
        let first = self.seen.iter().find(|seen| seen.name == name);
        first.map(|seen| seen.head)
    }

    /// Records a message.
    pub fn report(&mut self, diagnostic: Diagnostic) {
        self.build.report(diagnostic);
    }
}
