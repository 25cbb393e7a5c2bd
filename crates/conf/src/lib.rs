//! The language of `nginx.conf`: text to tree, tree to filled configuration structs, values with
//! variables, and messages that show the line.
//!
//! It knows no directive. A module describes its directives as rows of a [`Table`]; an engine
//! (http, stream, the server itself) creates the structs of its blocks as [`Confs`] and has
//! [`dispatch()`] apply a block's nodes to them. Everything else here serves those two: [`tree`]
//! reads files, [`mod@parse`] reads values, [`Expression`] is a text with variables, [`Registry`]
//! knows their names, [`Diagnostic`] is a message.
//!
//! It opens no file itself ([`Files`] does), and keeps nothing at run time but what the structs
//! hold.
#![forbid(unsafe_code)]

pub mod address;
pub mod conf_set;
pub mod confs;
pub mod contexts;
pub mod describe;
pub mod diagnostic;
pub mod dispatch;
pub mod expression;
mod forgotten;
mod former;
pub mod glob;
pub mod known;
pub mod level;
mod lexer;
pub mod line;
mod lua;
pub mod needs;
pub mod parse;
pub mod pattern;
pub mod regex;
pub mod source;
mod sources;
pub mod spelling;
pub mod table;
pub mod tree;
pub mod variable;
pub mod variable_values;

pub use address::{Address, Cidr, Host};
pub use base::{BStr, BString, FileId, Span};
pub use conf_set::{ConfSet, ConfSets};
pub use confs::{AnyConf, Confs, TableSet};
pub use contexts::*;
pub use diagnostic::{Diagnostic, Place, Severity, render};
pub use dispatch::dispatch;
pub use expression::{Expression, Part};
pub use level::{Build, Level, TypeMap};
pub use line::Line;
pub use needs::{Access, Needs};
pub use pattern::Pattern;
pub use regex::{Captures, Regex};
pub use source::{Disk, Files, Recorder, Snapshot};
pub use table::{Arity, Buffers, Directive, Kind, Repeat, RowInfo, Rows, Setter, Table};
pub use tree::{Block, Node, SourceMap, Tree, Word, parse, parse_tolerant};
pub use variable::{
    Definition, Get, Names, NoVariables, Registry, Scope, VarId, Variable, Variables,
};
pub use variable_values::{Captured, VariableCycle, VariableValues};
