//! `sticky`: session persistence.

use std::collections::HashMap;
use std::time::Duration;

use bstr::{BString, ByteSlice};
use conf::{Diagnostic, DirectiveLine, DirectiveWord, Expression, parse};
use net::upstream::{CookieAttributes, StickyLearn, StickyMethod, StickySettings, is_same_site};

use crate::shared::limit_req_sync::SyncWords;
use crate::shared::upstream_block::GroupDraft;

/// The minimum size of a zone of sessions: eight pages.
const SMALLEST_ZONE: u64 = 8 * 4096;

/// The default `timeout` of `learn`, after which an unused session is forgotten.
const SESSION_TIMEOUT: Duration = Duration::from_secs(600);

/// The zones of sessions, each with the position of the directive that uses it.
#[derive(Default)]
struct StickyZones(HashMap<BString, BString>);

/// Reads a `sticky` directive.
pub(super) fn read(draft: &mut GroupDraft, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    let sticky = match line.text(0).as_bytes() {
        b"cookie" => cookie(line)?,
        b"route" => StickySettings {
            lookup: variables(line, 1)?,
            // The variables are compared with the `route` of the servers.
            method: StickyMethod::Route,
        },
        b"learn" => learn(line)?,
        _ => return Err(unknown(line, 0)),
    };
    draft.sticky = Some(sticky);
    Ok(())
}

/// The error for an unknown parameter.
fn unknown(line: &DirectiveLine, i: usize) -> Diagnostic {
    line.error_at(i, format!("unknown parameter \"{}\"", line.text(i)))
}

/// Reads the arguments from `first` on, each of which is a variable.
fn variables(line: &mut DirectiveLine, first: usize) -> Result<Vec<Expression>, Diagnostic> {
    (first..line.args().len())
        .map(|i| {
            line.variable_name(i)?;
            line.expression(i)
        })
        .collect()
}

/// `sticky cookie`.
fn cookie(line: &mut DirectiveLine) -> Result<StickySettings, Diagnostic> {
    let name = line.text(1);
    // The name comes from the configuration, so this is a mistake and not an absent cookie.
    if name.is_empty() {
        return Err(line.directive_error_at(1, "empty cookie name"));
    }
    let mut attributes = CookieAttributes {
        name: name.into(),
        ..CookieAttributes::default()
    };
    for i in 2..line.args().len() {
        cookie_attribute(&mut attributes, line, i)?;
    }
    // The client is recognised by the cookie that it sends back.
    let variable = format!("$cookie_{name}");
    let lookup = line.expression_of(line.arg(1), variable.as_bytes())?;
    Ok(StickySettings {
        lookup: vec![lookup],
        method: StickyMethod::Cookie(Box::new(attributes)),
    })
}

/// Reads one attribute, which must not be repeated.
fn cookie_attribute(
    attributes: &mut CookieAttributes,
    line: &mut DirectiveLine,
    i: usize,
) -> Result<(), Diagnostic> {
    let word = line.arg(i);
    let (name, value) = match word.text.split_once_str(b"=") {
        Some((name, value)) => (name, Some(value)),
        None => (word.text.as_bytes(), None),
    };
    let name = name.to_str().unwrap_or_default();
    // Attributes with a value and without one are different words.
    let known = match (name, value.is_some()) {
        ("domain", true) => attributes.domain.is_some(),
        ("path", true) => attributes.path.is_some(),
        ("expires", true) => attributes.expires.is_some(),
        ("samesite", true) => attributes.same_site.is_some(),
        ("httponly", false) => attributes.http_only,
        ("secure", false) => attributes.secure,
        _ => return Err(unknown(line, i)),
    };
    if known {
        return Err(line.directive_error_at(i, &format!("parameter \"{name}\" is duplicate")));
    }
    let value = value.unwrap_or_default();
    if matches!(name, "domain" | "path") && value.is_empty() {
        return Err(line.directive_error_at(i, &format!("no value for \"{name}\"")));
    }
    match name {
        "domain" => attributes.domain = Some(line.expression_of(word, value)?),
        "path" => attributes.path = Some(value.into()),
        "expires" => attributes.expires = Some(expires(line, i, value)?),
        "samesite" => attributes.same_site = Some(same_site(line, i, word, value)?),
        "httponly" => attributes.http_only = true,
        _ => attributes.secure = true,
    }
    Ok(())
}

/// Reads the value of `expires`; `max` is the far future.
fn expires(line: &DirectiveLine, i: usize, value: &[u8]) -> Result<Duration, Diagnostic> {
    // As with `expires` and `userid_expires`.
    if value == b"max" {
        return Ok(Duration::MAX);
    }
    parse::seconds(value)
        .ok_or_else(|| line.directive_error_at(i, "invalid \"expires\" parameter value"))
}

/// A constant is checked at once; a variable can only be checked per response.
fn same_site(
    line: &mut DirectiveLine,
    i: usize,
    word: &DirectiveWord,
    value: &[u8],
) -> Result<Expression, Diagnostic> {
    let expression = line.expression_of(word, value)?;
    match expression.constant() {
        Some(text) if !is_same_site(text) => {
            Err(line.directive_error_at(i, "invalid \"samesite\" parameter value"))
        }
        _ => Ok(expression),
    }
}

/// `sticky learn`. `create` and `lookup` may be repeated: the first one that is not empty counts.
fn learn(line: &mut DirectiveLine) -> Result<StickySettings, Diagnostic> {
    let (mut create, mut lookup) = (Vec::new(), Vec::new());
    let mut zone: Option<(BString, u64)> = None;
    let mut timeout = None;
    let mut after_head = false;
    let mut sync = SyncWords::default();
    for i in 1..line.args().len() {
        let word = line.arg(i);
        let value = |name| parse::parameter(&word.text, name);
        if let Some(text) = value("zone") {
            if zone.is_some() {
                return Err(line.directive_error_at(i, "duplicate zone"));
            }
            zone = Some(session_zone(line, i, text)?);
        } else if let Some(text) = value("timeout") {
            if timeout.is_some() {
                return Err(line.directive_error_at(i, "duplicate timeout"));
            }
            let time = parse::millis(text).filter(|time| !time.is_zero());
            timeout = Some(time.ok_or_else(|| line.directive_error_at(i, "invalid timeout"))?);
        } else if let Some(text) = value("create") {
            create.push(variable(line, i, "create", text)?);
        } else if let Some(text) = value("lookup") {
            lookup.push(variable(line, i, "lookup", text)?);
        } else if word.is("header") {
            after_head = true;
        } else if word.is("sync") {
            // To ignore it would send clients of another member to another server.
            let error = line.error_at(i, "\"sync\" alone is not supported");
            let note = "members of a cluster share sessions by \"sync=redis cluster=name\"";
            return Err(error.note(note));
        } else if !sync.take(line, i)? {
            return Err(unknown(line, i));
        }
    }
    // Checked at the end, since the parameters come in any order.
    for (name, missing) in [
        ("lookup", lookup.is_empty()),
        ("create", create.is_empty()),
        ("zone", zone.is_none()),
    ] {
        if missing {
            return Err(line.directive_error(&format!("\"{name}\" parameter is not specified")));
        }
    }
    let sync = sync.finish(line)?;
    if let Some(sync) = &sync {
        if !sync.needs_redis() {
            return Err(
                line.error("\"sticky\" has no sync=share: sessions are shared by sync=redis")
            );
        }
        sync.note_need(line);
    }
    let shared = sync.map(|sync| sync.cluster().name().to_owned());
    let (zone, size) = zone.unwrap_or_default();
    let timeout = timeout.unwrap_or(SESSION_TIMEOUT);
    Ok(StickySettings {
        lookup,
        method: StickyMethod::Learn(StickyLearn {
            create,
            zone,
            size,
            timeout,
            after_head,
            shared,
        }),
    })
}

/// Reads the value of `create` or `lookup`.
fn variable(
    line: &mut DirectiveLine,
    i: usize,
    name: &str,
    value: &[u8],
) -> Result<Expression, Diagnostic> {
    if !value.starts_with(b"$") {
        return Err(
            line.directive_error_at(i, &format!("missing variable in the \"{name}\" parameter"))
        );
    }
    line.expression_of(line.arg(i), value)
}

/// Reads `name:size`. A zone belongs to a single group: the same session would mean different
/// servers in another.
fn session_zone(
    line: &mut DirectiveLine,
    i: usize,
    text: &[u8],
) -> Result<(BString, u64), Diagnostic> {
    let Some((name, size)) = text.split_once_str(b":") else {
        return Err(line.directive_error_at(i, "zone size is not specified"));
    };
    if name.is_empty() {
        return Err(line.directive_error_at(i, "zone name is not specified"));
    }
    let size = parse::size(size).ok_or_else(|| line.directive_error_at(i, "invalid zone size"))?;
    // A smaller zone would hold no useful number of sessions.
    if size < SMALLEST_ZONE {
        return Err(line.directive_error_at(i, "zone is too small"));
    }
    let place = line.sources().place(line.node.span).unwrap_or_default();
    // Names are of the whole configuration.
    // Names are unique in the whole configuration.
    if let Some(other) = line
        .shared::<StickyZones>()
        .0
        .insert(name.into(), place.into())
    {
        return Err(line.error_at(
            i,
            format!(
                "sticky zone \"{}\" is already used at {other}",
                name.as_bstr()
            ),
        ));
    }
    Ok((name.into(), size))
}
