//! The setters of `location`, `if` and `limit_except`: blocks of settings that a request can be in.

use std::sync::Arc;

use bstr::{BStr, BString, ByteSlice};
use conf::{
    BlockConfs, CapturingPattern, Contexts, Diagnostic, DirectiveLine, LIMIT_EXCEPT, LOCATION,
    LOCATION_IF, SERVER, SERVER_IF, dispatch,
};
use proto::message::Method;

use super::builder::{HttpBuilder, LOCATION_GROUP, close, open};
use crate::core::LocationConf;
use crate::core::blocks::PresentLocation;
use crate::http_site::{LocationId, LocationKind};

/// The setter of `location`.
pub fn location(line: &mut DirectiveLine, parents: &mut BlockConfs) -> Result<(), Diagnostic> {
    let (kind, name) = parse_location(line)?;
    check_place(line, &kind, name.as_bstr())?;
    let mut confs = parents.child(LOCATION_GROUP);
    // Before the block's own lines are applied: what a nested location does not inherit (`proxy_pass`, say) must be
    // gone before a line sets it anew.
    for module in line.level.engine::<HttpBuilder>().modules {
        (module.nested)(&mut confs);
    }
    confs.change_if(LocationConf::has_own_part, LocationConf::enter_child);
    let id = open(line, name.clone(), kind.clone(), None);
    dispatch(
        line.node.block.nodes(),
        &mut confs,
        Some(parents),
        &mut line.level.inner_block(LOCATION),
    );
    let tree = close(line, &mut confs);
    let builder = line.level.engine::<HttpBuilder>();
    if let Some(location) = &mut builder.locations[id.index as usize] {
        location.tree = (!tree.is_empty()).then(|| Box::new(tree));
    }
    match kind {
        // Named locations belong to the server, the others to the block around them.
        LocationKind::Named => {
            builder.named_ids.insert(name.clone(), id);
            builder.named.push((name, id));
        }
        kind => {
            let frame = builder
                .open
                .last_mut()
                .expect("a location stands in a server or location");
            if let Some(list) = list_of(&kind) {
                frame.child_ids[list].insert(name.clone(), id);
            }
            frame.children.push((name, kind, id));
        }
    }
    Ok(())
}

/// The setter of `limit_except`.
pub fn limit_except(line: &mut DirectiveLine, parents: &mut BlockConfs) -> Result<(), Diagnostic> {
    let open = &line.level.engine::<HttpBuilder>().open;
    if open
        .last()
        .is_some_and(|frame| frame.limit_except.is_some())
    {
        return Err(line.directive_error("is duplicate"));
    }
    let mut allowed = 0;
    for (index, word) in line.args().iter().enumerate() {
        let method = Method::from_bytes(&word.text);
        // nginx's list of methods does not have these.
        if matches!(method, Method::Other | Method::Connect | Method::Trace) {
            return Err(line.error_at(index, format!("invalid method \"{}\"", word.text)));
        }
        allowed |= method.bit();
        // As in nginx, allowing GET allows HEAD.
        if method == Method::Get {
            allowed |= Method::Head.bit();
        }
    }
    let id = block(line, parents, LIMIT_EXCEPT);
    let frame = line
        .level
        .engine::<HttpBuilder>()
        .open
        .last_mut()
        .expect("limit_except stands in a location");
    frame.limit_except = Some((allowed, id));
    Ok(())
}

/// Reads the block of an `if`, for the module whose directive it is. The block becomes a pseudo location that a request
/// enters if the condition is true.
pub fn read_if_block(line: &mut DirectiveLine, parents: &mut BlockConfs) -> LocationId {
    let context = if line.level.context == SERVER {
        SERVER_IF
    } else {
        LOCATION_IF
    };
    block(line, parents, context)
}

/// Reads a block without a path of its own (`if`, `limit_except`) as a pseudo location.
fn block(line: &mut DirectiveLine, parents: &mut BlockConfs, context: Contexts) -> LocationId {
    let mut confs = parents.child(LOCATION_GROUP);
    let frame = line
        .level
        .engine::<HttpBuilder>()
        .open
        .last()
        .expect("the block stands in a server or location");
    let (name, kind) = (frame.name.clone(), frame.kind.clone());
    // An `if` block keeps the location's content handler. In `limit_except` nginx chooses it anew, so it has to be
    // named again.
    let answer = frame.answer.filter(|_| context != LIMIT_EXCEPT);
    // The kind of a regular expression stays: `alias` and `proxy_pass` behave differently in one, and in its `if`
    // blocks.
    let kind = if let LocationKind::Regex(_) = kind {
        kind
    } else {
        LocationKind::Unnamed
    };
    let id = open(line, name, kind, answer);
    dispatch(
        line.node.block.nodes(),
        &mut confs,
        Some(parents),
        &mut line.level.inner_block(context),
    );
    close(line, &mut confs);
    let builder = line.level.engine::<HttpBuilder>();
    if let Some(outer) = builder.open.last_mut() {
        outer.rewriters.append(&mut builder.rewriters);
    }
    id
}

/// The location of the current line.
pub fn present_location(line: &mut DirectiveLine) -> PresentLocation {
    let builder = line.level.engine::<HttpBuilder>();
    match builder.open.last() {
        Some(frame) => match frame.kind {
            LocationKind::Regex(_) => PresentLocation::Regex,
            LocationKind::Named => PresentLocation::Named,
            _ => PresentLocation::Prefix(frame.name.len()),
        },
        None => PresentLocation::Prefix(0),
    }
}

/// The name of the location of the current line; empty outside of locations.
pub fn present_location_name(line: &mut DirectiveLine) -> BString {
    let builder = line.level.engine::<HttpBuilder>();
    builder
        .open
        .last()
        .map(|frame| frame.name.clone())
        .unwrap_or_default()
}

/// Parses the modifier and the name of a location. As in nginx the modifier may be a word of its own or the beginning
/// of the name.
fn parse_location(line: &mut DirectiveLine) -> Result<(LocationKind, BString), Diagnostic> {
    let first = line.text(0);
    if let Some(second) = line.get(1) {
        let name = second.text.clone();
        let kind = match first.as_bytes() {
            b"=" => LocationKind::Exact,
            b"^~" => LocationKind::Prefix { regexes: false },
            b"~" => regex_location(line, 1, &name, false)?,
            b"~*" => regex_location(line, 1, &name, true)?,
            _ => return Err(line.error_at(0, format!("invalid location modifier \"{first}\""))),
        };
        return Ok((kind, name));
    }
    let (kind, name): (LocationKind, &[u8]) = if let Some(rest) = first.strip_prefix(b"=") {
        (LocationKind::Exact, rest)
    } else if let Some(rest) = first.strip_prefix(b"^~") {
        (LocationKind::Prefix { regexes: false }, rest)
    } else if let Some(rest) = first.strip_prefix(b"~*") {
        (regex_location(line, 0, rest, true)?, rest)
    } else if let Some(rest) = first.strip_prefix(b"~") {
        (regex_location(line, 0, rest, false)?, rest)
    } else if first.starts_with(b"@") {
        (LocationKind::Named, first)
    } else {
        (LocationKind::Prefix { regexes: true }, first)
    };
    Ok((kind, name.into()))
}

fn regex_location(
    line: &mut DirectiveLine,
    index: usize,
    pattern: &[u8],
    caseless: bool,
) -> Result<LocationKind, Diagnostic> {
    Ok(LocationKind::Regex(Arc::new(CapturingPattern::compile(
        line, index, pattern, caseless,
    )?)))
}

/// The list in [`OpenBlock::child_ids`] of a location of this kind, of which there can be one for each text.
fn list_of(kind: &LocationKind) -> Option<usize> {
    match kind {
        LocationKind::Prefix { .. } => Some(0),
        LocationKind::Exact => Some(1),
        LocationKind::Regex(_) | LocationKind::Named | LocationKind::Unnamed => None,
    }
}

/// Checks nginx's rules for nested locations, and against duplicates.
fn check_place(
    line: &mut DirectiveLine,
    kind: &LocationKind,
    name: &BStr,
) -> Result<(), Diagnostic> {
    let builder = line.level.engine::<HttpBuilder>();
    let depth = builder.open.len();
    let frame = builder
        .open
        .last()
        .expect("a location stands in a server or location");
    let first = match kind {
        LocationKind::Named => builder.named_ids.get(name),
        kind => list_of(kind).and_then(|list| frame.child_ids[list].get(name)),
    };
    let first = first.copied();
    if let Some(first) = first {
        let first = builder.heads[first.index as usize];
        return Err(line.error_after(first, format!("duplicate location \"{name}\"")));
    }
    // Directly in a server every kind is allowed.
    if depth < 2 {
        return Ok(());
    }
    let (outer, outer_kind) = (frame.name.clone(), frame.kind.clone());
    match (&outer_kind, kind) {
        (LocationKind::Exact, _) => Err(line.error(format!(
            "location \"{name}\" cannot be inside the exact location \"{outer}\""
        ))),
        (LocationKind::Named, _) => Err(line.error(format!(
            "location \"{name}\" cannot be inside the named location \"{outer}\""
        ))),
        (_, LocationKind::Named) => Err(line.error(format!(
            "named location \"{name}\" can be on the server level only"
        ))),
        (LocationKind::Prefix { .. }, LocationKind::Exact | LocationKind::Prefix { .. })
            // No path could reach it: the outer location is chosen first. For regular expressions that cannot be
            // decided.
            if !name.starts_with(&outer) =>
        {
            Err(line.error(format!(
                "location \"{name}\" is outside location \"{outer}\""
            )))
        }
        _ => Ok(()),
    }
}
