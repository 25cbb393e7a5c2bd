//! `rewrite`: another path, or a redirect, for paths that an expression matches.

use ::http::{Outcome, Request};
use bstr::{BString, ByteSlice};
use conf::{Diagnostic, Expression, Line, Pattern};
use proto::uri::unescape_redirect;
use rt::error_log::Level;

use super::script::{Quoting, is_absolute, quoted};

/// The directive as data.
#[derive(Clone, Debug)]
pub(super) struct Rewrite {
    pattern: Pattern,
    target: Target,
    /// Whether the request's arguments are added.
    adds_args: bool,
    then: Then,
}

#[derive(Clone, Debug)]
enum Target {
    /// A path, and what stands after a question mark.
    Path {
        path: Expression,
        args: Option<Expression>,
    },
    /// An address for the client; whether it has arguments of its own.
    Redirect {
        status: u16,
        address: Expression,
        has_args: bool,
    },
}

/// How a script goes on when the path was replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// With the next command.
    Next,
    /// With the choice of a location (`last`).
    Last,
    /// In this location (`break`).
    Break,
}

/// What a rewrite did.
pub(super) enum Replaced {
    /// The expression does not match.
    Not,
    /// The path is another one.
    Path,
    /// The request is answered.
    Answer(Outcome),
}

impl Rewrite {
    pub(super) fn read(line: &mut Line) -> Result<Rewrite, Diagnostic> {
        let replacement = line.text(1);
        if replacement.is_empty() {
            return Err(line.error("empty replacement"));
        }
        let pattern = Pattern::compile::<Request>(line, 0, line.text(0), false)?;
        let (text, adds_args) = match replacement.strip_suffix(b"?") {
            Some(text) => (text, false),
            None => (replacement.as_bytes(), true),
        };
        let (mut redirect, mut then) = (is_absolute(text).then_some(302), Then::Next);
        match line.get(2).map(|word| word.text.as_slice()) {
            None => {}
            Some(b"last") => then = Then::Last,
            Some(b"break") => then = Then::Break,
            Some(b"redirect") => redirect = Some(302),
            Some(b"permanent") => redirect = Some(301),
            Some(_) => return Err(line.invalid_parameter(2)),
        }
        let word = line.arg(1);
        let target = match redirect {
            Some(status) => {
                let has_args = text.contains(&b'?');
                Target::Redirect {
                    status,
                    address: line.expression_of(word, text)?,
                    has_args,
                }
            }
            None => {
                // The name of a variable can not hold a question mark, so that the first one is a literal.
                let (path, args) = match text.split_once_str("?") {
                    Some((path, args)) => (path, Some(line.expression_of(word, args)?)),
                    None => (text, None),
                };
                Target::Path {
                    path: line.expression_of(word, path)?,
                    args,
                }
            }
        };
        Ok(Rewrite {
            pattern,
            target,
            adds_args,
            then,
        })
    }

    /// Whether the script ends when the path was replaced.
    pub(super) fn is_last(&self) -> bool {
        self.then != Then::Next
    }

    pub(super) fn run(&self, request: &mut Request, log: bool) -> Replaced {
        let path = request.uri.path.clone();
        let matches = request.matches(&self.pattern, &path);
        if log {
            let verb = if matches { "matches" } else { "does not match" };
            request.log(
                Level::Notice,
                format_args!("\"{}\" {verb} \"{path}\"", self.pattern.regex.pattern()),
            );
        }
        if !matches {
            request.captured.clear();
            return Replaced::Not;
        }
        request.uri.original = false;
        request.flow.internal = true;
        match &self.target {
            Target::Redirect {
                status,
                address,
                has_args,
            } => {
                let address = self.address(request, address, *has_args);
                if log {
                    request.log(
                        Level::Notice,
                        format_args!("rewritten redirect: \"{address}\""),
                    );
                }
                request.out.location = Some(address);
                Replaced::Answer(Outcome::Status(*status))
            }
            Target::Path { path, args } => self.replace(request, path, args.as_ref(), log),
        }
    }

    fn address(&self, request: &mut Request, address: &Expression, has_args: bool) -> BString {
        let escaped = quoted(request, address, Quoting::Escaped);
        // What was escaped for the sake of the address's structure, and need not be, is shown as itself.
        let mut address = Vec::with_capacity(escaped.len());
        unescape_redirect(&escaped, &mut address);
        if self.adds_args && !request.uri.args.is_empty() {
            address.push(if has_args { b'&' } else { b'?' });
            address.extend_from_slice(&request.uri.args);
        }
        address.into()
    }

    fn replace(
        &self,
        request: &mut Request,
        path: &Expression,
        args: Option<&Expression>,
        log: bool,
    ) -> Replaced {
        let path = request.value(path);
        match args {
            Some(args) => {
                let mut args = quoted(request, args, Quoting::Escaped);
                if self.adds_args && !request.uri.args.is_empty() {
                    args.push(b'&');
                    args.extend_from_slice(&request.uri.args);
                }
                request.uri.args = args;
            }
            None if !self.adds_args => request.uri.args.clear(),
            None => {}
        }
        if log {
            let args = &request.uri.args;
            request.log(
                Level::Notice,
                format_args!("rewritten data: \"{path}\", args: \"{args}\""),
            );
        }
        if path.is_empty() {
            request.error(format_args!("the rewritten URI has a zero length"));
            return Replaced::Answer(Outcome::Status(500));
        }
        request.uri.path = path;
        if self.then == Then::Break {
            request.flow.uri_changed = false;
            request.flow.rewritten = true;
        } else {
            request.flow.uri_changed = true;
        }
        Replaced::Path
    }
}
