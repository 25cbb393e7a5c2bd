//! The language of `nginx.conf`: text to tree, tree to filled configuration structs, values with
//! variables, and messages that show the line.
//!
//! It knows no directive. A module describes its directives as rows of a [`DirectiveTable`]; an engine
//! (http, stream, the server itself) creates the structs of its blocks as [`BlockConfs`] and has
//! [`dispatch()`] apply a block's nodes to them. Everything else here serves those two: [`tree`]
//! reads files, [`mod@parse`] reads values, [`Expression`] is a text with variables, [`VariableRegistry`]
//! knows their names, [`Diagnostic`] is a message.
//!
//! It opens no file itself ([`FileSource`] does), and keeps nothing at run time but what the structs
//! hold.
#![forbid(unsafe_code)]

pub mod address;
pub mod block_confs;
pub mod block_context;
pub mod conf_set;
pub mod cursor;
pub mod describe;
pub mod diagnostic;
pub mod directive_contexts;
pub mod directive_line;
pub mod dispatch;
pub mod expression;
pub mod file_source;
mod former_directives;
pub mod glob;
pub mod known_blocks;
pub mod layout;
mod lexer;
pub mod long_block;
mod lua;
mod missing_signs;
mod necessary_literals;
pub mod nginx_directives;
pub mod outside_hash;
pub mod parse;
pub mod pattern;
pub mod pattern_filter;
pub mod refused;
pub mod regex;
mod source_map;
pub mod spelling;
pub mod system_needs;
pub mod table;
pub mod tree;
pub mod variable;
pub mod variable_values;

pub use address::{AddressHost, Cidr, HostPort};
pub use base::{BStr, BString, FileId, Span};
pub use block_confs::{AnyConf, BlockConfs, TableSet};
pub use block_context::{BlockContext, ConfigurationBuild, TypeMap};
pub use conf_set::{ConfSet, ConfSets};
pub use diagnostic::{Diagnostic, DiagnosticPlace, Severity, render_diagnostic};
pub use directive_contexts::*;
pub use directive_line::DirectiveLine;
pub use dispatch::{dispatch, dispatch_blocks};
pub use expression::{Expression, ExpressionPart};
pub use file_source::{
    DiskFiles, FileRecorder, FileSnapshot, FileSource, FileUse, PresentFiles, TrackedFiles,
};
pub use known_blocks::{BlockSource, KnownBlocks};
pub use long_block::{BlockLines, LongBlock};
pub use pattern::CapturingPattern;
pub use pattern_filter::{CandidatePatterns, PatternFilter};
pub use refused::{REFUSE_DIRECTIVES, RefusedDirectives, check_refused};
pub use regex::{Captures, CompiledPatterns, Regex};
pub use system_needs::{PathUse, SystemNeeds};
pub use table::{
    Arity, BufferSizes, Directive, DirectiveRows, DirectiveTable, RepeatRule, RowInfo, Setter,
    SetterKind,
};
pub use tree::{
    BlockContent, ConfigurationTree, DirectiveNode, DirectiveWord, SourceMap, parse_tolerant,
    parse_tree,
};
pub use variable::{
    NoVariables, VarId, Variable, VariableCheckpoint, VariableDefinition, VariableGet,
    VariableNames, VariableRegistry, VariableScope, VariableTable, VariableUses,
};
pub use variable_values::{CapturedGroups, VariableCycle, VariableValues};
