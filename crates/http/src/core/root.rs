//! `root` and `alias`: where a location's files are.

use bstr::{BStr, ByteSlice};
use conf::{Diagnostic, DirectiveLine, Expression};

use super::blocks::{self, PresentLocation};

/// The place of a location's files.
#[derive(Clone, Debug, Default)]
pub struct LocationRoot {
    /// The directory, or the replacement of an alias.
    pub path: Expression,
    /// How it is combined with the request's path.
    pub kind: RootKind,
}

/// How a location's directory is combined with a request's path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RootKind {
    /// `root`: the whole path is appended.
    #[default]
    Root,
    /// `alias`: this many bytes of the path, those of the location, are removed first.
    Alias(usize),
    /// `alias` in a location with a regular expression: the value is the complete file name.
    Whole,
}

impl LocationRoot {
    /// That of `root`.
    pub(super) fn of_root(line: &mut DirectiveLine) -> Result<LocationRoot, Diagnostic> {
        let text = line.arg(0).text.clone();
        if line.level.seen_directive("alias").is_some() {
            return Err(line.error(
                "\"root\" directive is duplicate, \"alias\" directive was specified earlier",
            ));
        }
        // Without the slash at the end, because the request's path begins with one.
        let trimmed = text.trim_end_with(|byte| byte == '/').as_bstr();
        // Nothing is left of `/`, which is not the empty path below the prefix.
        let is_whole = trimmed.is_empty() && !text.is_empty();
        let path = match file_expression(line, if is_whole { text.as_bstr() } else { trimmed })? {
            _ if is_whole => Expression::literal(b""),
            path => path,
        };
        Ok(LocationRoot {
            path,
            kind: RootKind::Root,
        })
    }

    /// That of `alias`.
    pub(super) fn of_alias(line: &mut DirectiveLine) -> Result<LocationRoot, Diagnostic> {
        if line.level.seen_directive("root").is_some() {
            return Err(line.error(
                "\"alias\" directive is duplicate, \"root\" directive was specified earlier",
            ));
        }
        let kind = match blocks::present_location(line) {
            PresentLocation::Named => {
                return Err(
                    line.error("the \"alias\" directive cannot be used inside the named location")
                );
            }
            // A prefix is removed by its length. A regular expression has no fixed length, so the value must be the
            // whole file name.
            PresentLocation::Regex => RootKind::Whole,
            PresentLocation::Prefix(length) => RootKind::Alias(length),
        };
        let text = line.arg(0).text.clone();
        let path = file_expression(line, text.as_bstr())?;
        Ok(LocationRoot { path, kind })
    }
}

/// A path that may contain variables. One without is made absolute while the configuration is read.
fn file_expression(line: &mut DirectiveLine, text: &BStr) -> Result<Expression, Diagnostic> {
    let word = line.arg(0);
    let expression = line.expression_of(word, text)?;
    match expression.constant() {
        Some(constant) => {
            let path = conf::parse::path(constant);
            let path = line.level.build.in_prefix(conf::PathUse::Root, path);
            Ok(Expression::literal(path.as_os_str().as_encoded_bytes()))
        }
        None => {
            // With variables, the prefix is added per request. Here it is only noted that files below the prefix are
            // accessed.
            line.level.build.prefix_for(conf::PathUse::Root, text);
            Ok(expression)
        }
    }
}
