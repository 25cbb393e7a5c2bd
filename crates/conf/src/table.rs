//! Directives as rows of a table: the only place with the facts about a directive.
//!
//! ```
//! use conf::*;
//! # use weir_conf as conf;
//! #[derive(Clone, Default)]
//! struct Conf {
//!     enable: bool,
//!     level: i64,
//!     types: Vec<BString>,
//! }
//!
//! static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::new(&[
//!     Directive {
//!         name: "squeeze",
//!         syntax: "on | off",
//!         default: Some("off"),
//!         contexts: HTTP_SERVER_LOCATION,
//!         since: "0.1",
//!         doc: "Whether responses are squeezed.",
//!         set: Setter::Flag(|c| &mut c.enable),
//!     },
//!     Directive {
//!         name: "squeeze_level",
//!         syntax: "number",
//!         default: Some("1"),
//!         contexts: HTTP_SERVER_LOCATION,
//!         since: "0.1",
//!         doc: "How hard, from 1 to 9.",
//!         set: Setter::Number(|c| &mut c.level, 1, 9),
//!     },
//!     Directive {
//!         name: "squeeze_types",
//!         syntax: "type ...",
//!         default: None,
//!         contexts: HTTP_SERVER_LOCATION,
//!         since: "0.1",
//!         doc: "What is squeezed.",
//!         set: Setter::Custom(Arity::at_least(1), RepeatRule::Fresh(|c| c.types.clear()), |c, line| {
//!             c.types.extend(line.args().iter().map(|word| word.text.clone()));
//!             Ok(())
//!         }),
//!     },
//! ]);
//! ```
//!
//! A row never sees another module's struct, except for [`Setter::Deferred`], which opens a block
//! and gets all structs of the block around it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base::BString;

use crate::block_confs::{AnyConf, BlockConfs, downcast, downcast_mut};
use crate::block_context::BlockContext;
use crate::diagnostic::Diagnostic;
use crate::directive_contexts::{Contexts, SERVER};
use crate::directive_line::DirectiveLine;
use crate::expression::Expression;
use crate::system_needs::PathUse;

/// One directive.
pub struct Directive<C: 'static> {
    /// The name as it is written.
    pub name: &'static str,
    /// What follows the name, without `;`: `on | off`, `number size`, `name { ... }`.
    pub syntax: &'static str,
    /// The parameters that have the same effect as leaving the directive out; they are passed to
    /// `set`. `None` if there are none: then the struct's `Default` applies.
    pub default: Option<&'static str>,
    /// Where it may stand.
    pub contexts: Contexts,
    /// The version of Weir in which it appeared.
    pub since: &'static str,
    /// A description for the reference, in Markdown.
    pub doc: &'static str,
    /// How the words change the struct.
    pub set: Setter<C>,
}

impl<C: 'static> Directive<C> {
    /// These rows for other contexts: `http` and `stream` have some directives in common.
    pub const fn in_contexts<const COUNT: usize>(
        mut rows: [Directive<C>; COUNT],
        contexts: Contexts,
    ) -> [Directive<C>; COUNT] {
        // A `for` loop calls a trait, which a constant cannot.
        let mut at = 0;
        while at < COUNT {
            rows[at].contexts = contexts;
            at += 1;
        }
        rows
    }
}

/// How the words of a directive change the struct `C` of their block.
///
/// All but `Bits`, `Custom`, `Block` and `Deferred` are refused a second time in the same block
/// (`"x" directive is duplicate`).
pub enum Setter<C: 'static> {
    /// `on` or `off`.
    Flag(fn(&mut C) -> &mut bool),
    /// A whole number within bounds, both included.
    Number(fn(&mut C) -> &mut i64, i64, i64),
    /// A size in bytes: `4096`, `8k`, `1m`.
    Size(fn(&mut C) -> &mut u64),
    /// A length or position in a file: a size, or `1g`.
    Offset(fn(&mut C) -> &mut i64),
    /// A number of buffers and the size of each: `8 4k`. Neither may be zero.
    Buffers(fn(&mut C) -> &mut BufferSizes),
    /// A time with millisecond precision: `60s`, `500ms`.
    Millis(fn(&mut C) -> &mut Duration),
    /// A time in whole seconds: `30d`, `1y`.
    Seconds(fn(&mut C) -> &mut Duration),
    /// A text.
    Text(fn(&mut C) -> &mut BString),
    /// A path, relative to the prefix, and what is done with it.
    Path(PathUse, fn(&mut C) -> &mut PathBuf),
    /// A text with variables.
    Value(fn(&mut C) -> &mut Expression),
    /// A text with variables, which may be missing.
    OptionalValue(fn(&mut C) -> &mut Option<Expression>),
    /// One of these words; the setter gets its position.
    Word(&'static [&'static str], fn(&mut C, usize)),
    /// Any of these words; word `i` sets bit `i`. The first in a block replaces what was inherited,
    /// more add.
    Bits(&'static [&'static str], fn(&mut C) -> &mut u32),
    /// Anything else.
    Custom(
        Arity,
        RepeatRule<C>,
        fn(&mut C, &mut DirectiveLine) -> Result<(), Diagnostic>,
    ),
    /// Has braces. The setter reads `line.node.block`: rows of data by [`DirectiveLine::entries`],
    /// directives by [`crate::dispatch()`] with confs of its own. Runs in file order among the
    /// other rows.
    Block(
        Arity,
        RepeatRule<C>,
        fn(&mut C, &mut DirectiveLine) -> Result<(), Diagnostic>,
    ),
    /// Has braces with directives that inherit from this block (`server`, `location`, `if`). Runs
    /// after every other row of the block and after [`DirectiveTable::finish`], in file order; `line.index`
    /// tells where it stood. It gets all structs of the block, from which it makes the child's: see
    /// [`BlockConfs::child`].
    Deferred(
        Arity,
        fn(&mut DirectiveLine, &mut BlockConfs) -> Result<(), Diagnostic>,
    ),
    /// Accepted without effect; the text says why, for the reference.
    Ignored(Arity, &'static str),
}

/// How many words may follow the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arity {
    /// The minimum.
    pub min: u8,
    /// The maximum; 255 means any number.
    pub max: u8,
}

impl Arity {
    /// No word.
    pub const NONE: Arity = Arity::exactly(0);
    /// One word.
    pub const ONE: Arity = Arity::exactly(1);
    /// Any number of words, none too.
    pub const ANY: Arity = Arity::at_least(0);

    /// Exactly `n` words.
    pub const fn exactly(n: u8) -> Arity {
        Arity { min: n, max: n }
    }

    /// From `min` to `max` words, both included.
    pub const fn between(min: u8, max: u8) -> Arity {
        Arity { min, max }
    }

    /// `min` words or more.
    pub const fn at_least(min: u8) -> Arity {
        Arity { min, max: u8::MAX }
    }

    /// Whether this number of words is permitted.
    pub fn accepts(self, words: usize) -> bool {
        words >= usize::from(self.min) && (self.max == u8::MAX || words <= usize::from(self.max))
    }
}

/// The meaning of a second use in the same block.
pub enum RepeatRule<C: 'static> {
    /// An error: `"x" directive is duplicate`.
    Once,
    /// Another value, added to the inherited ones.
    Many,
    /// Another value, but the first one in a block calls this, which removes the inherited ones
    /// (`add_header`, `index`).
    Fresh(fn(&mut C)),
}

/// A number of buffers and the size of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BufferSizes {
    /// How many.
    pub count: u32,
    /// Bytes of each.
    pub size: u64,
}

/// Runs after the rows of a block: derives values, checks combinations. `parent` is the struct of
/// the block around it, which is complete.
pub type FinishBlock<C> =
    fn(&mut C, parent: Option<&C>, &mut BlockContext) -> Result<(), Diagnostic>;

/// The directives of one module for one kind of block, and how its struct is inherited.
///
/// A block without a directive of the table shares the struct of the block around it, so that a
/// module costs nothing in ten thousand locations that do not use it. The first directive gives the
/// block a struct of its own.
///
/// With `.finish(…)` or `.inherit(…)` after it, name the type:
/// `DirectiveTable::<Conf>::new(&[…]).finish(…)`, because a method call hides from the compiler which type
/// the rows are for.
pub struct DirectiveTable<C: 'static> {
    rows: &'static [Directive<C>],
    finish: Option<FinishBlock<C>>,
    /// Whether it has something to do in a block that shares its struct with the block around it.
    finishes_shared: fn(&mut BlockContext) -> bool,
    /// Whether what it makes of a struct that is shared follows from that struct alone.
    finishes_alike: bool,
    inherit: Option<InheritRule<C>>,
}

/// Another way to make a block's struct than cloning the outer one.
#[derive(Clone, Copy)]
struct InheritRule<C: 'static> {
    make: fn(&C) -> C,
    shares: fn(&C) -> bool,
}

impl<C: 'static> DirectiveTable<C> {
    /// A table of these rows.
    pub const fn new(rows: &'static [Directive<C>]) -> DirectiveTable<C> {
        DirectiveTable {
            rows,
            finish: None,
            finishes_shared: |_| true,
            finishes_alike: false,
            inherit: None,
        }
    }

    /// With a function to run when a block's own rows have been applied, before its child blocks.
    /// It runs in every block, which therefore has a struct of its own; [`DirectiveTable::finish_changed`]
    /// is cheaper.
    pub const fn finish(mut self, finish: FinishBlock<C>) -> DirectiveTable<C> {
        self.finish = Some(finish);
        self
    }

    /// With a function to run in blocks that have directives of this table, in outermost blocks and
    /// in servers. For what follows from the struct alone: elsewhere the finished struct of the
    /// block around it counts. Servers that inherit the same struct share what it makes of it.
    pub const fn finish_changed(mut self, finish: FinishBlock<C>) -> DirectiveTable<C> {
        self.finishes_alike = true;
        self.finish_changed_or(|level| level.context == SERVER, finish)
    }

    /// With a function to run in outermost blocks, in blocks that have directives of this table,
    /// and wherever `or` says.
    pub const fn finish_changed_or(
        mut self,
        or: fn(&mut BlockContext) -> bool,
        finish: FinishBlock<C>,
    ) -> DirectiveTable<C> {
        self.finishes_shared = or;
        self.finish(finish)
    }

    /// With another way to make a child's struct than cloning the parent's: for what is not
    /// inherited. `shares` tells whether the parent's struct serves a child that has no directive
    /// of the table.
    pub const fn inherit(mut self, make: fn(&C) -> C, shares: fn(&C) -> bool) -> DirectiveTable<C> {
        self.inherit = Some(InheritRule { make, shares });
        self
    }

    /// The rows.
    pub fn rows(&self) -> &'static [Directive<C>] {
        self.rows
    }
}

/// What kind of setter a row has, without its functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetterKind {
    /// `on` or `off`.
    Flag,
    /// A number within bounds.
    Number(i64, i64),
    /// A size.
    Size,
    /// A length or position in a file.
    Offset,
    /// A number and a size.
    Buffers,
    /// A time in milliseconds.
    Millis,
    /// A time in seconds.
    Seconds,
    /// A text.
    Text,
    /// A path.
    Path,
    /// A text with variables.
    Value,
    /// One of these words.
    Word(&'static [&'static str]),
    /// Any of these words.
    Bits(&'static [&'static str]),
    /// A setter of its own.
    Custom,
    /// Braces, read by the module.
    Block,
    /// Braces, inheriting.
    Deferred,
    /// Without effect; why.
    Ignored(&'static str),
}

impl SetterKind {
    /// Whether the directive has braces.
    pub fn has_braces(self) -> bool {
        matches!(self, SetterKind::Block | SetterKind::Deferred)
    }
}

/// A row as data.
#[derive(Clone, Copy, Debug)]
pub struct RowInfo {
    /// See [`Directive::name`].
    pub name: &'static str,
    /// See [`Directive::syntax`].
    pub syntax: &'static str,
    /// See [`Directive::default`].
    pub default: Option<&'static str>,
    /// See [`Directive::contexts`].
    pub contexts: Contexts,
    /// See [`Directive::since`].
    pub since: &'static str,
    /// See [`Directive::doc`].
    pub doc: &'static str,
    /// How many words it takes.
    pub arity: Arity,
    /// What kind of setter it has.
    pub kind: SetterKind,
}

/// A table whose struct's type is unknown: what engines and the reference work with.
pub trait DirectiveRows: Sync {
    /// How many rows there are.
    fn len(&self) -> usize;

    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Row `row` as data.
    fn info(&self, row: usize) -> RowInfo;

    /// The struct of an outermost block, before defaults.
    fn create(&self) -> Arc<dyn AnyConf>;

    /// Whether the struct of the block around it serves a block that has no directive of the table.
    fn shares(&self, parent: &dyn AnyConf) -> bool;

    /// The struct of a block inside the block of `parent`.
    fn child(&self, parent: &dyn AnyConf) -> Arc<dyn AnyConf>;

    /// The same struct once more.
    fn copy(&self, conf: &dyn AnyConf) -> Arc<dyn AnyConf>;

    /// Applies a line to the struct by row `row`. Arity, braces and context have been checked.
    fn apply(
        &self,
        row: usize,
        conf: &mut dyn AnyConf,
        line: &mut DirectiveLine,
    ) -> Result<(), Diagnostic>;

    /// Runs a deferred row.
    fn apply_deferred(
        &self,
        row: usize,
        line: &mut DirectiveLine,
        confs: &mut BlockConfs,
    ) -> Result<(), Diagnostic>;

    /// Whether [`DirectiveRows::finish`] has something to do in this block. `is_shared`: the struct is still
    /// that of the block around it.
    fn finishes(&self, is_shared: bool, level: &mut BlockContext) -> bool;

    /// Whether what [`DirectiveRows::finish`] makes of a shared struct is the same in all blocks that share it.
    fn finishes_alike(&self) -> bool {
        false
    }

    /// Runs the table's finish function, if it has one.
    fn finish(
        &self,
        conf: &mut dyn AnyConf,
        parent: Option<&dyn AnyConf>,
        level: &mut BlockContext,
    ) -> Result<(), Diagnostic>;
}

impl<C: Clone + Default + Send + Sync + 'static> DirectiveRows for DirectiveTable<C> {
    fn len(&self) -> usize {
        self.rows.len()
    }

    fn info(&self, row: usize) -> RowInfo {
        let Directive {
            name,
            syntax,
            default,
            contexts,
            since,
            doc,
            ref set,
        } = self.rows[row];
        RowInfo {
            name,
            syntax,
            default,
            contexts,
            since,
            doc,
            arity: set.arity(),
            kind: set.kind(),
        }
    }

    fn create(&self) -> Arc<dyn AnyConf> {
        Arc::new(C::default())
    }

    fn shares(&self, parent: &dyn AnyConf) -> bool {
        let shares = self.inherit.as_ref().map(|inherit| inherit.shares);
        shares.is_none_or(|shares| shares(downcast(parent)))
    }

    fn child(&self, parent: &dyn AnyConf) -> Arc<dyn AnyConf> {
        match &self.inherit {
            Some(inherit) => Arc::new((inherit.make)(downcast(parent))),
            None => self.copy(parent),
        }
    }

    fn copy(&self, conf: &dyn AnyConf) -> Arc<dyn AnyConf> {
        Arc::new(downcast::<C>(conf).clone())
    }

    fn apply(
        &self,
        row: usize,
        conf: &mut dyn AnyConf,
        line: &mut DirectiveLine,
    ) -> Result<(), Diagnostic> {
        self.rows[row].set.apply(downcast_mut::<C>(conf), line)
    }

    fn apply_deferred(
        &self,
        row: usize,
        line: &mut DirectiveLine,
        confs: &mut BlockConfs,
    ) -> Result<(), Diagnostic> {
        match self.rows[row].set {
            Setter::Deferred(_, set) => set(line, confs),
            _ => Ok(()),
        }
    }

    fn finishes(&self, is_shared: bool, level: &mut BlockContext) -> bool {
        self.finish.is_some() && (!is_shared || (self.finishes_shared)(level))
    }

    fn finishes_alike(&self) -> bool {
        self.finishes_alike
    }

    fn finish(
        &self,
        conf: &mut dyn AnyConf,
        parent: Option<&dyn AnyConf>,
        level: &mut BlockContext,
    ) -> Result<(), Diagnostic> {
        match self.finish {
            Some(finish) => finish(downcast_mut::<C>(conf), parent.map(downcast::<C>), level),
            None => Ok(()),
        }
    }
}

impl<C> Setter<C> {
    fn arity(&self) -> Arity {
        match *self {
            Setter::Bits(..) => Arity::at_least(1),
            Setter::Buffers(_) => Arity::exactly(2),
            Setter::Custom(arity, ..) | Setter::Block(arity, ..) => arity,
            Setter::Deferred(arity, _) | Setter::Ignored(arity, _) => arity,
            Setter::Flag(_) | Setter::Number(..) | Setter::Size(_) | Setter::Offset(_) => {
                Arity::ONE
            }
            Setter::Millis(_) | Setter::Seconds(_) | Setter::Text(_) | Setter::Path(..) => {
                Arity::ONE
            }
            Setter::Value(_) | Setter::OptionalValue(_) | Setter::Word(..) => Arity::ONE,
        }
    }

    fn kind(&self) -> SetterKind {
        match *self {
            Setter::Flag(_) => SetterKind::Flag,
            Setter::Number(_, min, max) => SetterKind::Number(min, max),
            Setter::Size(_) => SetterKind::Size,
            Setter::Offset(_) => SetterKind::Offset,
            Setter::Buffers(_) => SetterKind::Buffers,
            Setter::Millis(_) => SetterKind::Millis,
            Setter::Seconds(_) => SetterKind::Seconds,
            Setter::Text(_) => SetterKind::Text,
            Setter::Path(..) => SetterKind::Path,
            Setter::Value(_) | Setter::OptionalValue(_) => SetterKind::Value,
            Setter::Word(words, _) => SetterKind::Word(words),
            Setter::Bits(words, _) => SetterKind::Bits(words),
            Setter::Custom(..) => SetterKind::Custom,
            Setter::Block(..) => SetterKind::Block,
            Setter::Deferred(..) => SetterKind::Deferred,
            Setter::Ignored(_, why) => SetterKind::Ignored(why),
        }
    }

    fn apply(&self, conf: &mut C, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
        self.prepare(conf, line)?;
        match *self {
            Setter::Flag(field) => *field(conf) = line.flag(0)?,
            Setter::Number(field, min, max) => *field(conf) = line.number(0, min, max)?,
            Setter::Size(field) => *field(conf) = line.size(0)?,
            Setter::Offset(field) => *field(conf) = line.offset(0)?,
            Setter::Buffers(field) => *field(conf) = line.buffers()?,
            Setter::Millis(field) => *field(conf) = line.millis(0)?,
            Setter::Seconds(field) => *field(conf) = line.seconds(0)?,
            Setter::Text(field) => *field(conf) = line.arg(0).text.clone(),
            Setter::Path(access, field) => *field(conf) = line.prefix_path(access, line.arg(0)),
            Setter::Value(field) => *field(conf) = line.expression(0)?,
            Setter::OptionalValue(field) => *field(conf) = Some(line.expression(0)?),
            Setter::Word(words, set) => set(conf, line.word(0, words)?),
            Setter::Bits(words, field) => *field(conf) = line.bits(words, *field(conf))?,
            Setter::Custom(_, _, set) | Setter::Block(_, _, set) => set(conf, line)?,
            Setter::Deferred(..) | Setter::Ignored(..) => {}
        }
        Ok(())
    }

    /// Rejects a second use, or removes inherited values, before the words are parsed.
    fn prepare(&self, conf: &mut C, line: &DirectiveLine) -> Result<(), Diagnostic> {
        match self {
            Setter::Custom(_, repeat, _) | Setter::Block(_, repeat, _) => match repeat {
                RepeatRule::Once => line.refuse_repetition(),
                RepeatRule::Fresh(clear) if !line.is_repeated() => {
                    clear(conf);
                    Ok(())
                }
                RepeatRule::Fresh(_) | RepeatRule::Many => Ok(()),
            },
            Setter::Bits(_, field) => {
                if !line.is_repeated() {
                    *field(conf) = 0;
                }
                Ok(())
            }
            Setter::Deferred(..) | Setter::Ignored(..) => Ok(()),
            _ => line.refuse_repetition(),
        }
    }
}
