//! What can be known of Rust source without a compiler: lines by what they hold, functions, types, the files that a
//! file imports. Enough for rules and figures, because rustfmt has been over every file.
//!
//! What this is not: a parser. A macro that makes items, or a module inside a file, is read as the text it is.

pub(crate) mod file;
pub(crate) mod functions;
pub(crate) mod imports;
pub(crate) mod lines;
pub(crate) mod types;
pub(crate) mod words;
