//! `proxy_redirect`, `proxy_cookie_domain`, `proxy_cookie_path`, `proxy_cookie_flags`: what is replaced in fields.

use bstr::{BString, ByteSlice};
use conf::{Diagnostic, Expression, Line, Pattern};
use http::Request;

use super::Conf;
use super::url::Pass;

/// A list of replacements; the first whose pattern fits counts.
pub(super) type Rules = Vec<Rule>;

/// One replacement.
#[derive(Clone)]
pub(super) struct Rule {
    pattern: Text,
    replacement: Expression,
}

/// What a rule looks for.
#[derive(Clone)]
enum Text {
    /// This text at the beginning; for domains, all of it.
    Plain(Expression),
    Regex(Pattern),
}

/// `proxy_redirect`.
#[derive(Clone, Default)]
pub(super) enum Redirects {
    /// The URL of `proxy_pass` becomes the location's path.
    #[default]
    Default,
    Off,
    List(Vec<Option<Rule>>),
}

/// `proxy_cookie_flags` of one cookie.
#[derive(Clone)]
pub(super) struct CookieFlags {
    pattern: Text,
    flags: Vec<Expression>,
}

/// The setter of `proxy_redirect`.
pub(super) fn redirect(conf: &mut Conf, line: &mut Line) -> Result<(), Diagnostic> {
    if matches!(conf.redirects, Redirects::Off) {
        return Err(line.directive_error("is duplicate"));
    }
    let word = line.text(0);
    let rule = match line.args().len() {
        1 if word == "off" && line.is_repeated() => {
            return Err(line.directive_error("is duplicate"));
        }
        1 if word == "off" => {
            conf.redirects = Redirects::Off;
            return Ok(());
        }
        1 if word != "default" => return Err(line.invalid_parameter(0)),
        1 => match &conf.pass {
            Some(Pass::Constant { .. }) => None,
            Some(Pass::Variable(_)) => {
                return Err(line.error("\"proxy_redirect default\" cannot be used with \"proxy_pass\" directive with variables"));
            }
            None => {
                return Err(line.error("\"proxy_redirect default\" should be placed after the \"proxy_pass\" directive"));
            }
        },
        _ => Some(Rule {
            pattern: pattern(line, Case::AsWritten)?,
            replacement: line.expression(1)?,
        }),
    };
    match &mut conf.redirects {
        Redirects::List(list) => list.push(rule),
        other => *other = Redirects::List(vec![rule]),
    }
    Ok(())
}

/// How a `~` pattern compares; `~*` never looks at case.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Case {
    AsWritten,
    Ignored,
}

fn pattern(line: &mut Line, case: Case) -> Result<Text, Diagnostic> {
    let word = line.text(0);
    if case == Case::AsWritten
        && let Some(text) = word.strip_prefix(b"~*")
    {
        return Ok(Text::Regex(Pattern::compile::<Request>(
            line, 0, text, true,
        )?));
    }
    match word.strip_prefix(b"~") {
        Some(text) => Ok(Text::Regex(Pattern::compile::<Request>(
            line,
            0,
            text,
            case == Case::Ignored,
        )?)),
        None => Ok(Text::Plain(line.expression(0)?)),
    }
}

/// Whether a line is `off`, alone in its block.
fn is_off(line: &Line) -> Result<bool, Diagnostic> {
    match line.args().len() {
        1 if line.text(0) != "off" => Err(line.invalid_parameter(0)),
        1 if line.is_repeated() => Err(line.directive_error("is duplicate")),
        1 => Ok(true),
        _ => Ok(false),
    }
}

/// The setter of `proxy_cookie_domain`.
pub(super) fn cookie_domain(conf: &mut Conf, line: &mut Line) -> Result<(), Diagnostic> {
    if is_off(line)? {
        return Ok(());
    }
    let is_regex = line.text(0).starts_with(b"~");
    // A leading dot says nothing (RFC 6265, section 5.2.3).
    let without_dot = |i: usize| {
        line.arg(i)
            .text
            .strip_prefix(b".")
            .unwrap_or(&line.arg(i).text)
            .to_vec()
    };
    let (domain, value) = (
        without_dot(0),
        if is_regex {
            line.arg(1).text.to_vec()
        } else {
            without_dot(1)
        },
    );
    let pattern = match is_regex {
        true => pattern(line, Case::Ignored)?,
        false => Text::Plain(line.expression_of(line.arg(0), &domain)?),
    };
    let replacement = line.expression_of(line.arg(1), &value)?;
    conf.cookie_domains.push(Rule {
        pattern,
        replacement,
    });
    Ok(())
}

/// The setter of `proxy_cookie_path`.
pub(super) fn cookie_path(conf: &mut Conf, line: &mut Line) -> Result<(), Diagnostic> {
    if is_off(line)? {
        return Ok(());
    }
    let rule = Rule {
        pattern: pattern(line, Case::AsWritten)?,
        replacement: line.expression(1)?,
    };
    conf.cookie_paths.push(rule);
    Ok(())
}

/// The setter of `proxy_cookie_flags`.
pub(super) fn cookie_flags(conf: &mut Conf, line: &mut Line) -> Result<(), Diagnostic> {
    if is_off(line)? {
        return Ok(());
    }
    let pattern = pattern(line, Case::Ignored)?;
    let flags = (1..line.args().len())
        .map(|i| line.expression(i))
        .collect::<Result<_, _>>()?;
    conf.cookie_flags.push(CookieFlags { pattern, flags });
    Ok(())
}

/// Appends what a redirect target becomes. `false`: it stays as it is.
pub(super) fn map_location(
    request: &mut Request,
    conf: &Conf,
    value: &[u8],
    out: &mut Vec<u8>,
) -> bool {
    match &conf.redirects {
        Redirects::Off => false,
        Redirects::Default => map_default(conf, value, out),
        Redirects::List(list) => list.iter().any(|rule| match rule {
            None => map_default(conf, value, out),
            Some(rule) => rule.map_beginning(request, value, out),
        }),
    }
}

/// The same for the URL in a `Refresh` field.
pub(super) fn map_refresh(
    request: &mut Request,
    conf: &Conf,
    value: &[u8],
    out: &mut Vec<u8>,
) -> bool {
    let lower = value.to_ascii_lowercase();
    let Some(at) = lower.find(b"url=") else {
        return false;
    };
    let start = at + 4;
    out.extend_from_slice(&value[..start]);
    if map_location(request, conf, &value[start..], out) {
        return true;
    }
    out.clear();
    false
}

fn map_default(conf: &Conf, value: &[u8], out: &mut Vec<u8>) -> bool {
    let Some(Pass::Constant {
        address,
        url,
        location,
        ..
    }) = &conf.pass
    else {
        return false;
    };
    let Some(rest) = value.strip_prefix(url.as_slice()) else {
        return false;
    };
    if !address.uri.is_empty() {
        out.extend_from_slice(location);
        out.extend_from_slice(rest);
        return true;
    }
    let Some(rest) = rest.strip_prefix(b"/") else {
        return false;
    };
    out.push(b'/');
    out.extend_from_slice(rest);
    true
}

impl Rule {
    /// Replaces the beginning of `value`, or what the pattern stands for: all of it.
    fn map_beginning(&self, request: &mut Request, value: &[u8], out: &mut Vec<u8>) -> bool {
        let rest = match &self.pattern {
            Text::Plain(text) => {
                let text = request.value(text);
                let Some(rest) = value.strip_prefix(text.as_slice()) else {
                    return false;
                };
                rest
            }
            Text::Regex(pattern) => {
                if !request.matches(pattern, value) {
                    return false;
                }
                &[]
            }
        };
        self.replacement.eval(request, out);
        out.extend_from_slice(rest);
        true
    }

    /// Replaces a whole domain.
    fn map_whole(&self, request: &mut Request, value: &[u8]) -> Option<BString> {
        let (dot, bare) = match value.strip_prefix(b".") {
            Some(bare) => (true, bare),
            None => (false, value),
        };
        match &self.pattern {
            Text::Plain(text) => {
                if !request.value(text).eq_ignore_ascii_case(bare) {
                    return None;
                }
                let mut out = if dot { b".".to_vec() } else { Vec::new() };
                self.replacement.eval(request, &mut out);
                Some(out.into())
            }
            Text::Regex(pattern) => {
                if !request.matches(pattern, value) {
                    return None;
                }
                Some(request.value(&self.replacement))
            }
        }
    }
}

/// The path that a cookie's path becomes.
pub(super) fn map_path(request: &mut Request, rules: &[Rule], value: &[u8]) -> Option<BString> {
    let mut out = Vec::new();
    rules
        .iter()
        .any(|rule| rule.map_beginning(request, value, &mut out))
        .then(|| out.into())
}

/// The domain that a cookie's domain becomes.
pub(super) fn map_domain(request: &mut Request, rules: &[Rule], value: &[u8]) -> Option<BString> {
    rules.iter().find_map(|rule| rule.map_whole(request, value))
}

/// The flags for a cookie of this name.
pub(super) fn flags_of(request: &mut Request, rules: &[CookieFlags], name: &[u8]) -> Vec<BString> {
    for rule in rules {
        let fits = match &rule.pattern {
            Text::Plain(text) => request.value(text).eq_ignore_ascii_case(name),
            Text::Regex(pattern) => request.matches(pattern, name),
        };
        if fits {
            return rule.flags.iter().map(|flag| request.value(flag)).collect();
        }
    }
    Vec::new()
}
