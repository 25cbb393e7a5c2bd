//! `proxy_redirect`, `proxy_cookie_domain`, `proxy_cookie_path`, `proxy_cookie_flags`: replacements
//! in response fields.

use bstr::{BString, ByteSlice};
use conf::{CapturingPattern, Diagnostic, DirectiveLine, Expression};
use http::Request;

use super::Conf;
use super::url::ProxyPass;

/// A list of replacements, of which the first that matches applies.
pub(super) type ReplaceRules = Vec<ReplaceRule>;

/// One replacement.
#[derive(Clone)]
pub(super) struct ReplaceRule {
    pattern: RulePattern,
    replacement: Expression,
}

/// What a rule matches.
#[derive(Clone)]
enum RulePattern {
    /// A literal prefix; for domains, the whole domain.
    Plain(Expression),
    Regex(CapturingPattern),
}

/// `proxy_redirect`.
#[derive(Clone, Default)]
pub(super) enum RedirectRules {
    /// Replaces the URL of `proxy_pass` by the location's path.
    #[default]
    Default,
    Off,
    // Lines in order; `None` is `default` among them.
    List(Vec<Option<ReplaceRule>>),
}

/// The flags for the cookies that a pattern matches.
#[derive(Clone)]
pub(super) struct CookieFlags {
    pattern: RulePattern,
    /// May be variables, so their words are only known per response.
    flags: Vec<Expression>,
}

/// Reads `proxy_redirect`.
pub(super) fn proxy_redirect(conf: &mut Conf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    // `off` must be alone in its block.
    if matches!(conf.redirects, RedirectRules::Off) {
        return Err(line.directive_error("is duplicate"));
    }
    let word = line.text(0);
    let rule = match line.args().len() {
        // `off` after other lines is as contradictory as lines after `off`.
        1 if word == "off" && line.is_repeated() => {
            return Err(line.directive_error("is duplicate"));
        }
        1 if word == "off" => {
            conf.redirects = RedirectRules::Off;
            return Ok(());
        }
        1 if word != "default" => return Err(line.invalid_parameter(0)),
        1 => match &conf.pass {
            Some(ProxyPass::Constant { .. }) => None,
            // The URL to replace is not known when the configuration is read, so nginx refuses this
            // too.
            Some(ProxyPass::Variable(_)) => {
                return Err(line.error("\"proxy_redirect default\" cannot be used with \"proxy_pass\" directive with variables"));
            }
            // Lines are read in order, so a `proxy_pass` further down is not known yet. nginx requires the same
            // order.
            None => {
                return Err(line.error("\"proxy_redirect default\" should be placed after the \"proxy_pass\" directive"));
            }
        },
        _ => Some(ReplaceRule {
            pattern: pattern(line, CaseMatching::AsWritten)?,
            replacement: line.expression(1)?,
        }),
    };
    match &mut conf.redirects {
        RedirectRules::List(list) => list.push(rule),
        other => *other = RedirectRules::List(vec![rule]),
    }
    Ok(())
}

/// Whether a `~` pattern is case-sensitive; `~*` never is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CaseMatching {
    AsWritten,
    Ignored,
}

/// Reads the pattern in word 0.
fn pattern(line: &mut DirectiveLine, case: CaseMatching) -> Result<RulePattern, Diagnostic> {
    let word = line.text(0);
    if case == CaseMatching::AsWritten
        && let Some(text) = word.strip_prefix(b"~*")
    {
        return Ok(RulePattern::Regex(CapturingPattern::compile(
            line, 0, text, true,
        )?));
    }
    match word.strip_prefix(b"~") {
        Some(text) => Ok(RulePattern::Regex(CapturingPattern::compile(
            line,
            0,
            text,
            case == CaseMatching::Ignored,
        )?)),
        None => Ok(RulePattern::Plain(line.expression(0)?)),
    }
}

/// Whether the line is `off`, which must be alone in its block. `is_empty`: the block has no rules so far, so that a line before
/// this one was `off`.
fn is_off(line: &DirectiveLine, is_empty: bool) -> Result<bool, Diagnostic> {
    let is_alone = line.args().len() == 1;
    if is_alone && line.text(0) != "off" {
        return Err(line.invalid_parameter(0));
    }
    match line.is_repeated() && (is_alone || is_empty) {
        true => Err(line.directive_error("is duplicate")),
        false => Ok(is_alone),
    }
}

/// Reads `proxy_cookie_domain`.
pub(super) fn proxy_cookie_domain(
    conf: &mut Conf,
    line: &mut DirectiveLine,
) -> Result<(), Diagnostic> {
    if is_off(line, conf.cookie_domains.is_empty())? {
        return Ok(());
    }
    let is_regex = line.text(0).starts_with(b"~");
    // A leading dot has no meaning (RFC 6265, section 5.2.3).
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
        // Domains are case-insensitive, so regular expressions for them are too.
        true => pattern(line, CaseMatching::Ignored)?,
        false => RulePattern::Plain(line.expression_of(line.arg(0), &domain)?),
    };
    let replacement = line.expression_of(line.arg(1), &value)?;
    conf.cookie_domains.push(ReplaceRule {
        pattern,
        replacement,
    });
    Ok(())
}

/// Reads `proxy_cookie_path`.
pub(super) fn proxy_cookie_path(
    conf: &mut Conf,
    line: &mut DirectiveLine,
) -> Result<(), Diagnostic> {
    if is_off(line, conf.cookie_paths.is_empty())? {
        return Ok(());
    }
    let rule = ReplaceRule {
        pattern: pattern(line, CaseMatching::AsWritten)?,
        replacement: line.expression(1)?,
    };
    conf.cookie_paths.push(rule);
    Ok(())
}

/// Reads `proxy_cookie_flags`.
pub(super) fn proxy_cookie_flags(
    conf: &mut Conf,
    line: &mut DirectiveLine,
) -> Result<(), Diagnostic> {
    if is_off(line, conf.cookie_flags.is_empty())? {
        return Ok(());
    }
    let pattern = pattern(line, CaseMatching::Ignored)?;
    let flags = (1..line.args().len())
        .map(|i| line.expression(i))
        .collect::<Result<_, _>>()?;
    conf.cookie_flags.push(CookieFlags { pattern, flags });
    Ok(())
}

/// Appends the rewritten `Location`. `false`: it stays unchanged.
pub(super) fn map_location(
    request: &mut Request,
    conf: &Conf,
    value: &[u8],
    out: &mut Vec<u8>,
) -> bool {
    match &conf.redirects {
        RedirectRules::Off => false,
        RedirectRules::Default => map_default(conf, value, out),
        RedirectRules::List(list) => list.iter().any(|rule| match rule {
            None => map_default(conf, value, out),
            Some(rule) => rule.replace_prefix(request, value, out),
        }),
    }
}

/// The same for the URL in `Refresh`, a field of browsers rather than of any RFC: `5;
/// url=http://…`.
pub(super) fn map_refresh(
    request: &mut Request,
    conf: &Conf,
    value: &[u8],
    out: &mut Vec<u8>,
) -> bool {
    // Browsers accept any case.
    let lower = value.to_ascii_lowercase();
    // Only a delay: there is no URL to rewrite.
    let Some(at) = lower.find(b"url=") else {
        return false;
    };
    let start = at + 4;
    out.extend_from_slice(&value[..start]);
    if map_location(request, conf, &value[start..], out) {
        return true;
    }
    // Nothing matched: the field is passed on as it is.
    out.clear();
    false
}

/// Replaces the URL of `proxy_pass` by the location's path.
fn map_default(conf: &Conf, value: &[u8], out: &mut Vec<u8>) -> bool {
    let Some(ProxyPass::Constant {
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
    // With a path, `proxy_pass` maps one path to another, and this undoes it. Without one, only the
    // host changes.
    if !address.uri.is_empty() {
        out.extend_from_slice(location);
        out.extend_from_slice(rest);
        return true;
    }
    // Not a path: `http://backend.example.org` must not match the rule for `http://backend`.
    let Some(rest) = rest.strip_prefix(b"/") else {
        return false;
    };
    out.push(b'/');
    out.extend_from_slice(rest);
    true
}

impl ReplaceRule {
    /// Replaces a literal prefix of `value`, or with a regular expression all of it, as in nginx.
    fn replace_prefix(&self, request: &mut Request, value: &[u8], out: &mut Vec<u8>) -> bool {
        let rest = match &self.pattern {
            RulePattern::Plain(text) => {
                let text = request.value(text);
                let Some(rest) = value.strip_prefix(text.as_slice()) else {
                    return false;
                };
                rest
            }
            RulePattern::Regex(pattern) => {
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
    fn replace_domain(&self, request: &mut Request, value: &[u8]) -> Option<BString> {
        // The dot of the server's field is kept, though it has no meaning.
        let (dot, bare) = match value.strip_prefix(b".") {
            Some(bare) => (true, bare),
            None => (false, value),
        };
        match &self.pattern {
            RulePattern::Plain(text) => {
                // As a whole: a suffix match would rewrite the cookies of sibling domains.
                if !request.value(text).eq_ignore_ascii_case(bare) {
                    return None;
                }
                let mut out = if dot { b".".to_vec() } else { Vec::new() };
                self.replacement.eval(request, &mut out);
                Some(out.into())
            }
            RulePattern::Regex(pattern) => {
                if !request.matches(pattern, value) {
                    return None;
                }
                // Without the field's dot: the regular expression has seen the whole value and decides about it.
                Some(request.value(&self.replacement))
            }
        }
    }
}

/// The rewritten path of a cookie.
pub(super) fn map_path(
    request: &mut Request,
    rules: &[ReplaceRule],
    value: &[u8],
) -> Option<BString> {
    let mut out = Vec::new();
    rules
        .iter()
        .any(|rule| rule.replace_prefix(request, value, &mut out))
        .then(|| out.into())
}

/// The rewritten domain of a cookie.
pub(super) fn map_domain(
    request: &mut Request,
    rules: &[ReplaceRule],
    value: &[u8],
) -> Option<BString> {
    rules
        .iter()
        .find_map(|rule| rule.replace_domain(request, value))
}

/// The flags for a cookie with this name.
pub(super) fn flags_for_cookie(
    request: &mut Request,
    rules: &[CookieFlags],
    name: &[u8],
) -> Vec<BString> {
    for rule in rules {
        // The first rule that matches decides, even if it sets no flags.
        let fits = match &rule.pattern {
            RulePattern::Plain(text) => request.value(text).eq_ignore_ascii_case(name),
            RulePattern::Regex(pattern) => request.matches(pattern, name),
        };
        if fits {
            return rule.flags.iter().map(|flag| request.value(flag)).collect();
        }
    }
    Vec::new()
}
