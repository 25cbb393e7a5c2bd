//! `rewrite`: replaces a path that matches a regular expression, or redirects the client.

use ::http::{HandlerOutcome, Request};
use bstr::{BString, ByteSlice};
use conf::{CapturingPattern, Diagnostic, DirectiveLine, Expression, Regex};
use host::error_log::LogLevel;
use proto::uri::unescape_redirect;

use super::script::{CaptureEscaping, escaped_value, is_absolute};

/// A `rewrite` directive.
#[derive(Clone, Debug)]
pub(super) struct RewriteRule {
    pattern: CapturingPattern,
    target: RewriteTarget,
    /// Whether to append the arguments of the request: not if the replacement ends with `?`.
    adds_args: bool,
    after: AfterRewrite,
}

/// What a matching path is replaced with.
#[derive(Clone, Debug)]
enum RewriteTarget {
    /// An internal rewrite to a path and, after a question mark, arguments.
    Path {
        path: Expression,
        args: Option<Expression>,
    },
    /// A redirect of the client. `has_args` is whether the address has arguments of its own.
    Redirect {
        status: u16,
        address: Expression,
        has_args: bool,
    },
}

/// How the script continues after the path was replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AfterRewrite {
    /// With the next directive.
    Next,
    /// With a new search for a location (`last`).
    Last,
    /// With this location's handlers (`break`).
    Break,
}

/// The effect of a `rewrite`.
pub(super) enum RewriteResult {
    /// None: the regular expression does not match.
    NoMatch,
    /// The path was replaced.
    Path,
    /// The request ends with this outcome.
    Answer(HandlerOutcome),
}

impl RewriteRule {
    /// Parses a `rewrite` directive.
    pub(super) fn read(line: &mut DirectiveLine) -> Result<RewriteRule, Diagnostic> {
        let replacement = line.text(1);
        if replacement.is_empty() {
            return Err(line.error("empty replacement"));
        }
        let pattern = CapturingPattern::compile(line, 0, line.text(0), false)?;
        let (text, adds_args) = match replacement.strip_suffix(b"?") {
            Some(text) => (text, false),
            None => (replacement.as_bytes(), true),
        };
        // A replacement with a scheme cannot be served here, so it redirects even without a flag.
        let (mut redirect, mut then) = (is_absolute(text).then_some(302), AfterRewrite::Next);
        match line.get(2).map(|word| word.text.as_slice()) {
            None => {}
            Some(b"last") => then = AfterRewrite::Last,
            Some(b"break") => then = AfterRewrite::Break,
            Some(b"redirect") => redirect = Some(302),
            Some(b"permanent") => redirect = Some(301),
            Some(_) => return Err(line.invalid_parameter(2)),
        }
        let word = line.arg(1);
        let target = match redirect {
            Some(status) => {
                let has_args = text.contains(&b'?');
                RewriteTarget::Redirect {
                    status,
                    address: line.expression_of(word, text)?,
                    has_args,
                }
            }
            None => {
                // Names of variables contain no question mark, so the first one is literal text and
                // the two sides are valid expressions.
                let (path, args) = match text.split_once_str("?") {
                    Some((path, args)) => (path, Some(line.expression_of(word, args)?)),
                    None => (text, None),
                };
                RewriteTarget::Path {
                    path: line.expression_of(word, path)?,
                    args,
                }
            }
        };
        Ok(RewriteRule {
            pattern,
            target,
            adds_args,
            after: then,
        })
    }

    /// What the path is matched with.
    pub(super) fn regex(&self) -> &Regex {
        &self.pattern.regex
    }

    /// Whether the script ends after the path was replaced.
    pub(super) fn is_last(&self) -> bool {
        self.after != AfterRewrite::Next
    }

    /// Applies the directive to a request.
    pub(super) fn run(&self, request: &mut Request, log: bool) -> RewriteResult {
        let path = request.uri.path.clone();
        let matches = request.matches(&self.pattern, &path);
        if log {
            let verb = if matches { "matches" } else { "does not match" };
            request.log(
                LogLevel::Notice,
                format_args!("\"{}\" {verb} \"{path}\"", self.pattern.regex.pattern()),
            );
        }
        if !matches {
            // As in nginx, `$1` is empty after a match that failed, not that of an earlier one.
            request.captured.clear();
            return RewriteResult::NoMatch;
        }
        // As in nginx, a match makes the request internal, so that it may enter `internal`
        // locations, and the client's spelling of the URI is no longer used.
        request.uri.original = false;
        request.flow.internal = true;
        match &self.target {
            RewriteTarget::Redirect {
                status,
                address,
                has_args,
            } => {
                let address = self.address(request, address, *has_args);
                if log {
                    request.log(
                        LogLevel::Notice,
                        format_args!("rewritten redirect: \"{address}\""),
                    );
                }
                request.out.location = Some(address);
                RewriteResult::Answer(HandlerOutcome::Status(*status))
            }
            RewriteTarget::Path { path, args } => self.replace(request, path, args.as_ref(), log),
        }
    }

    /// Evaluates the address of a redirect.
    fn address(&self, request: &mut Request, address: &Expression, has_args: bool) -> BString {
        let escaped = escaped_value(request, address, CaptureEscaping::Escaped);
        // Captures were escaped so that they do not change the structure of the address; what needs
        // no escape there is shown as itself again, as in nginx.
        let mut address = Vec::with_capacity(escaped.len());
        unescape_redirect(&escaped, &mut address);
        if self.adds_args && !request.uri.args.is_empty() {
            address.push(if has_args { b'&' } else { b'?' });
            address.extend_from_slice(&request.uri.args);
        }
        address.into()
    }

    /// Replaces the path and the arguments.
    fn replace(
        &self,
        request: &mut Request,
        path: &Expression,
        args: Option<&Expression>,
        log: bool,
    ) -> RewriteResult {
        let path = request.value(path);
        match args {
            Some(args) => {
                let mut args = escaped_value(request, args, CaptureEscaping::Escaped);
                if self.adds_args && !request.uri.args.is_empty() {
                    args.push(b'&');
                    args.extend_from_slice(&request.uri.args);
                }
                request.uri.args = args;
            }
            // A replacement that ends with `?` asks for exactly this.
            None if !self.adds_args => request.uri.args.clear(),
            None => {}
        }
        if log {
            let args = &request.uri.args;
            request.log(
                LogLevel::Notice,
                format_args!("rewritten data: \"{path}\", args: \"{args}\""),
            );
        }
        // A path has at least a slash; nothing else in the server expects an empty one.
        if path.is_empty() {
            request.error(format_args!("the rewritten URI has a zero length"));
            return RewriteResult::Answer(HandlerOutcome::Status(500));
        }
        request.uri.path = path;
        // With `break` there is no new search for a location, so only the handlers of this one
        // learn of the new path.
        if self.after == AfterRewrite::Break {
            request.flow.uri_changed = false;
            request.flow.rewritten = true;
        } else {
            request.flow.uri_changed = true;
        }
        RewriteResult::Path
    }
}
