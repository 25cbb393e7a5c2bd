//! What clients can put into a value with variables.
//!
//! This follows variables to where their values come from: `set`, `map`, captures, and the request
//! itself.
//!
//! ```text
//! $uri                                 the client's, from "/" on, with any byte but NUL
//! $1 of  location ~ ^/(\w+)/           the client's, letters, digits and "_" only
//! $1 of  if ($host ~ ^(.+)\.test$)     the client's, but a part of the host it has asked for
//! $x of  map $arg_a $x { b c.test; }   fixed: the client only chooses
//! ```

use base::ByteSlice as _;
use conf::DirectiveNode;

use super::byte_set::{ByteSet, CaptureGroup, ValueReach, group};
use super::view::{DirectiveView, LocationMatch, condition, first, matches_of, word};

/// A piece of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ValuePart {
    Text(Vec<u8>),
    /// A variable that clients do not control, or about which nothing is known.
    Fixed,
    /// A variable whose value clients choose.
    Client {
        name: String,
        reach: ValueReach,
    },
}

/// The depth to which variables that refer to variables are followed. `set` and `map` may form
/// cycles.
const MAX_DEPTH: usize = 6;

/// The pieces of a value at this place.
pub(super) fn value_parts(view: &DirectiveView, text: &[u8]) -> Vec<ValuePart> {
    let mut parts = Vec::new();
    expand(view, text, None, 0, &mut parts);
    parts
}

/// A variable, or the text between variables.
enum ValueToken<'t> {
    Text(&'t [u8]),
    Variable(&'t [u8]),
}

/// Splits a value like nginx: `$name`, `${name}`, and `$1` to `$9`, which have one digit.
fn tokens(text: &[u8]) -> Vec<ValueToken<'_>> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find_byte(b'$') {
        if at > 0 {
            tokens.push(ValueToken::Text(&rest[..at]));
        }
        rest = &rest[at + 1..];
        let braced = rest.first() == Some(&b'{');
        rest = &rest[usize::from(braced)..];
        let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
        // `$10` is `$1` and a zero.
        let length = match rest.first() {
            Some(b'1'..=b'9') => 1,
            _ => rest.iter().take_while(|byte| is_name(byte)).count(),
        };
        tokens.push(ValueToken::Variable(&rest[..length]));
        rest = &rest[length..];
        if braced {
            rest = rest.strip_prefix(b"}").unwrap_or(rest);
        }
    }
    if !rest.is_empty() {
        tokens.push(ValueToken::Text(rest));
    }
    tokens
}

/// The names of the variables in a text.
pub(super) fn names(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    tokens(text).into_iter().filter_map(|token| match token {
        ValueToken::Text(_) => None,
        ValueToken::Variable(name) => Some(name),
    })
}

/// A regular expression, and what its subject can contain.
#[derive(Clone, Copy)]
struct MatchedPattern<'t> {
    /// The pattern.
    pattern: &'t [u8],
    /// What its subject can contain.
    subject: ValueReach,
}

/// Appends the pieces of `text`. `matched` is the expression that its captures belong to.
fn expand(
    view: &DirectiveView,
    text: &[u8],
    matched: Option<MatchedPattern>,
    depth: usize,
    parts: &mut Vec<ValuePart>,
) {
    for token in tokens(text) {
        match token {
            ValueToken::Text(text) => parts.push(ValuePart::Text(text.to_vec())),
            ValueToken::Variable(b"is_args") => parts.push(ValuePart::Text(b"?".to_vec())),
            // A variable that is tested counts as limited to harmless values.
            ValueToken::Variable(name) if depth >= MAX_DEPTH || is_tested(view, name) => {
                parts.push(ValuePart::Fixed);
            }
            ValueToken::Variable(name) => variable(view, name, matched, depth, parts),
        }
    }
}

/// Appends the pieces of a variable's value. What is assigned unconditionally in one place is
/// expanded; of several possible values only the union is known.
fn variable(
    view: &DirectiveView,
    name: &[u8],
    matched: Option<MatchedPattern>,
    depth: usize,
    parts: &mut Vec<ValuePart>,
) {
    let client = |reach: ValueReach| ValuePart::Client {
        name: name.to_str_lossy().into_owned(),
        reach,
    };
    if let [digit @ b'1'..=b'9'] = name {
        let number = CaptureGroup::Number(usize::from(digit - b'0'));
        // A row of a `map` brings its own expression; anywhere else the last match counts.
        let matched = matched.or_else(|| latest_match(view));
        let reach = matched.and_then(|matched| matched.group(number));
        return parts.push(reach.map_or(ValuePart::Fixed, client));
    }
    // Before the assignments: the request's own variables cannot be set.
    if let Some(reach) = client_variable(name) {
        return parts.push(client(reach));
    }
    let values = assigned(view, name);
    // One assignment: its text can be followed piece by piece.
    if let [value] = values[..] {
        return expand(view, value, None, depth + 1, parts);
    }
    let mut alternatives: Vec<Vec<ValuePart>> = values
        .iter()
        .map(|value| {
            let mut inside = Vec::new();
            expand(view, value, None, depth + 1, &mut inside);
            inside
        })
        .collect();
    alternatives.extend(mapped(view, name, depth));
    if let Some(reach) = named_group(view, name) {
        alternatives.push(vec![client(reach)]);
    }
    parts.push(reach_of(&alternatives).map_or(ValuePart::Fixed, client));
}

/// What clients can put into one of several values; `None` if nothing.
fn reach_of(alternatives: &[Vec<ValuePart>]) -> Option<ValueReach> {
    let mut all: Option<ValueReach> = None;
    for parts in alternatives {
        let whole = match &parts[..] {
            [ValuePart::Client { reach, .. }] => Some(*reach),
            [first, ..] => union_of(parts).map(|reach| ValueReach {
                // What a value begins with decides about open redirects and paths, so fixed text at its beginning
                // counts.
                first: match first {
                    ValuePart::Text(text) => ByteSet::of(&text[..1]),
                    ValuePart::Fixed | ValuePart::Client { .. } => reach.bytes,
                },
                empty: false,
                ..reach
            }),
            [] => None,
        };
        all = match (all, whole) {
            (Some(one), Some(other)) => Some(one.either(other)),
            (one, other) => one.or(other),
        };
    }
    all
}

/// What clients can put into these pieces together.
fn union_of(parts: &[ValuePart]) -> Option<ValueReach> {
    parts
        .iter()
        .filter_map(|part| match part {
            ValuePart::Client { reach, .. } => Some(*reach),
            ValuePart::Text(_) | ValuePart::Fixed => None,
        })
        .reduce(ValueReach::either)
}

impl MatchedPattern<'_> {
    /// What a group matches, limited to what the subject can contain.
    fn group(&self, wanted: CaptureGroup) -> Option<ValueReach> {
        let subject = self.subject;
        group(self.pattern, wanted).map(|reach| ValueReach {
            is_host: subject.is_host,
            ..reach.within(subject.bytes)
        })
    }
}

/// The bytes that a header can contain: neither line breaks nor NUL, which the parser rejects.
fn line() -> ByteSet {
    ByteSet::of(b"\r\n\0").not()
}

/// A normalised path, with its escapes decoded: line breaks are possible.
fn decoded() -> ValueReach {
    ValueReach {
        bytes: ByteSet::of(b"\0").not(),
        first: ByteSet::of(b"/"),
        empty: false,
        is_host: false,
    }
}

/// The host that the client has requested.
fn host(bytes: ByteSet) -> ValueReach {
    ValueReach {
        bytes,
        first: bytes,
        empty: true,
        is_host: true,
    }
}

/// What clients can put into a variable that every request has; `None` for other variables.
pub(super) fn client_variable(name: &[u8]) -> Option<ValueReach> {
    let printable = ByteSet::range(b'!', b'~').or(ByteSet::range(0x80, 0xff));
    let of = |bytes: ByteSet| ValueReach {
        is_host: false,
        ..host(bytes)
    };
    let letters = ByteSet::range(b'a', b'z').or(ByteSet::range(b'0', b'9'));
    Some(match name {
        b"uri" | b"document_uri" => decoded(),
        b"request_uri" => ValueReach {
            bytes: printable,
            ..decoded()
        },
        // Sent as they are: the parser rejects control characters and blanks in a target.
        b"args" | b"query_string" => of(printable),
        b"host" => host(letters.or(ByteSet::of(b".-_:[]"))),
        b"http_host" => host(line().and(ByteSet::of(b"/").not())),
        b"ssl_server_name" => host(printable),
        b"ssl_preread_server_name" => of(printable),
        b"request_body" => of(ByteSet::ALL),
        _ if name.starts_with(b"arg_") => of(printable.and(ByteSet::of(b"&").not())),
        _ if name.starts_with(b"http_") => of(line()),
        _ if name.starts_with(b"cookie_") => of(line().and(ByteSet::of(b";").not())),
        _ => return None,
    })
}

/// Whether an `if` tests this variable and ends some requests, or encloses this place. Then the
/// configuration has a list of what is allowed, and that the list is complete is assumed.
fn is_tested(view: &DirectiveView, name: &[u8]) -> bool {
    let asks = |node: &&DirectiveNode| {
        node.name.is("if")
            && node
                .args
                .iter()
                .any(|word| names(&word.text).any(|found| found == name))
    };
    let ends = |node: &DirectiveNode| node.name.is("return") || node.name.is("rewrite");
    let blocks = || view.around.iter();
    blocks().any(asks)
        || blocks().any(|block| {
            let mut inside = view.site.lines(block, "if").into_iter();
            inside.any(|node| asks(&node) && node.block.nodes().iter().any(ends))
        })
}

/// The values that `set` assigns to a variable in the enclosing blocks and in their `if`s.
fn assigned<'t>(view: &DirectiveView<'_, 't>, name: &[u8]) -> Vec<&'t [u8]> {
    let mut values = Vec::new();
    let mut look = |block: &'t DirectiveNode| {
        let sets = view.site.lines(block, "set").into_iter();
        let ours = sets.filter(|node| first(node).strip_prefix(b"$") == Some(name));
        values.extend(ours.map(|node| word(node, 1)));
    };
    for block in view.around {
        look(block);
        // Whether an `if` was taken depends on the request, so its values are possible ones.
        view.site.lines(block, "if").into_iter().for_each(&mut look);
    }
    values
}

/// The values that `map` gives a variable.
fn mapped(view: &DirectiveView, name: &[u8], depth: usize) -> Vec<Vec<ValuePart>> {
    let mut values = Vec::new();
    let maps = view.site.maps.get(name).into_iter().flatten();
    for map in maps.filter(|map| map.name.is("map")) {
        let mut source = Vec::new();
        expand(view, first(map), None, depth + 1, &mut source);
        let subject = union_of(&source);
        // A value without variables is the operator's own.
        for row in view.site.variable_rows(map).iter() {
            let key = row.name.text.as_slice();
            let pattern = key.strip_prefix(b"~*").or(key.strip_prefix(b"~"));
            let matched = pattern.zip(subject);
            let matched = matched.map(|(pattern, subject)| MatchedPattern { pattern, subject });
            let mut inside = Vec::new();
            if let Some(value) = row.args.last() {
                expand_row(view, &value.text, matched, depth, &mut inside);
            }
            values.push(inside);
        }
    }
    values
}

/// Like [`expand`], with the named groups of the row's own expression.
fn expand_row(
    view: &DirectiveView,
    text: &[u8],
    matched: Option<MatchedPattern>,
    depth: usize,
    parts: &mut Vec<ValuePart>,
) {
    let Some(matched) = matched else {
        // A row without an expression has no captures of its own, so what `$1` is depends on the
        // request.
        let has_groups = names(text).any(|name| matches!(name, [b'1'..=b'9']));
        return match has_groups {
            true => parts.push(ValuePart::Fixed),
            false => expand(view, text, None, depth + 1, parts),
        };
    };
    match tokens(text)[..] {
        [ValueToken::Variable(name)] => match matched.group(CaptureGroup::Name(name)) {
            Some(reach) => parts.push(ValuePart::Client {
                name: name.to_str_lossy().into_owned(),
                reach,
            }),
            None => expand(view, text, Some(matched), depth + 1, parts),
        },
        _ => expand(view, text, Some(matched), depth + 1, parts),
    }
}

/// The expression that `$1` to `$9` refer to at this place; `None` if that depends on the request.
fn latest_match<'t>(view: &DirectiveView<'_, 't>) -> Option<MatchedPattern<'t>> {
    if view.node.name.is("rewrite") {
        return Some(MatchedPattern {
            pattern: first(view.node),
            subject: decoded(),
        });
    }
    for block in view.around.iter().rev() {
        if let Some(matched) = matched_by_if(block) {
            return Some(matched);
        }
        let before = || block.block.nodes().iter();
        let before = before().take_while(|node| node.span.start < view.node.span.start);
        let mut before = before.filter(|node| !std::ptr::eq(*node, view.node));
        // An earlier match in this block may have run or not.
        if before.any(|node| node.name.is("rewrite") || matched_by_if(node).is_some()) {
            return None;
        }
        if block.name.is("location") {
            match matches_of(block) {
                LocationMatch::Regex(pattern, _) => {
                    return Some(MatchedPattern {
                        pattern,
                        subject: decoded(),
                    });
                }
                // Entered by a redirect, after any match in any other location.
                LocationMatch::Named => return None,
                LocationMatch::Exact(_) | LocationMatch::Prefix(..) => {}
            }
        }
    }
    None
}

/// The expression in the condition of an `if`, and its subject.
fn matched_by_if(node: &DirectiveNode) -> Option<MatchedPattern<'_>> {
    if !node.name.is("if") {
        return None;
    }
    let [subject, b"~" | b"~*", pattern] = condition(node)[..] else {
        return None;
    };
    let name = subject.strip_prefix(b"$")?;
    // Captures of a subject that clients do not choose are of no interest.
    let subject = client_variable(name)?;
    Some(MatchedPattern { pattern, subject })
}

/// What a named group in the enclosing blocks can match.
fn named_group(view: &DirectiveView, name: &[u8]) -> Option<ValueReach> {
    let of_path = |pattern| MatchedPattern {
        pattern,
        subject: decoded(),
    };
    let mut all = Vec::new();
    for block in view.around {
        if let (true, LocationMatch::Regex(pattern, _)) =
            (block.name.is("location"), matches_of(block))
        {
            all.push(of_path(pattern));
        }
        all.extend(matched_by_if(block));
        for node in block.block.nodes() {
            all.extend(matched_by_if(node));
            if node.name.is("rewrite") {
                all.push(of_path(first(node)));
            } else if node.name.is("server_name") {
                let patterns = node
                    .args
                    .iter()
                    .filter_map(|word| word.text.strip_prefix(b"~"));
                let subject = client_variable(b"host");
                let matched = |pattern| {
                    Some(MatchedPattern {
                        pattern,
                        subject: subject?,
                    })
                };
                all.extend(patterns.filter_map(matched));
            }
        }
    }
    let groups = all
        .iter()
        .filter_map(|matched| matched.group(CaptureGroup::Name(name)));
    groups.reduce(ValueReach::either)
}
