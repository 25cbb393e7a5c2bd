//! What clients can make of a text with variables.

use base::ByteSlice as _;
use conf::Node;

use super::bytes::{Bytes, Group, Reach, group};
use super::view::{Matches, View, condition, first, matches_of, named, word};

/// A piece of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Text(Vec<u8>),
    /// Of a variable whose value clients do not decide, or of which nothing is known.
    Fixed,
    /// Of a variable that is what a client says.
    Client {
        name: String,
        reach: Reach,
    },
}

/// Variables that lead to variables, followed so far.
const MAX_DEPTH: usize = 6;
/// Rows of a `map` with variables in their values that are followed.
const MAX_ROWS: usize = 16;

/// The pieces of a text that stands at this place.
pub(super) fn parts(view: &View, text: &[u8]) -> Vec<Part> {
    let mut parts = Vec::new();
    expand(view, text, None, 0, &mut parts);
    parts
}

/// Names and plain text of a text with variables.
enum Token<'t> {
    Text(&'t [u8]),
    Variable(&'t [u8]),
}

fn tokens(text: &[u8]) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find_byte(b'$') {
        if at > 0 {
            tokens.push(Token::Text(&rest[..at]));
        }
        rest = &rest[at + 1..];
        let braced = rest.first() == Some(&b'{');
        rest = &rest[usize::from(braced)..];
        let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
        let length = match rest.first() {
            Some(b'1'..=b'9') => 1,
            _ => rest.iter().take_while(|byte| is_name(byte)).count(),
        };
        tokens.push(Token::Variable(&rest[..length]));
        rest = &rest[length..];
        if braced {
            rest = rest.strip_prefix(b"}").unwrap_or(rest);
        }
    }
    if !rest.is_empty() {
        tokens.push(Token::Text(rest));
    }
    tokens
}

/// The names of the variables in a text.
pub(super) fn names(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    tokens(text).into_iter().filter_map(|token| match token {
        Token::Text(_) => None,
        Token::Variable(name) => Some(name),
    })
}

/// An expression, and what it is matched with.
#[derive(Clone, Copy)]
struct Matched<'t> {
    pattern: &'t [u8],
    subject: Reach,
}

fn expand(view: &View, text: &[u8], matched: Option<Matched>, depth: usize, parts: &mut Vec<Part>) {
    for token in tokens(text) {
        match token {
            Token::Text(text) => parts.push(Part::Text(text.to_vec())),
            Token::Variable(b"is_args") => parts.push(Part::Text(b"?".to_vec())),
            Token::Variable(name) if depth >= MAX_DEPTH || is_tested(view, name) => {
                parts.push(Part::Fixed);
            }
            Token::Variable(name) => variable(view, name, matched, depth, parts),
        }
    }
}

fn variable(
    view: &View,
    name: &[u8],
    matched: Option<Matched>,
    depth: usize,
    parts: &mut Vec<Part>,
) {
    let client = |reach: Reach| Part::Client {
        name: name.to_str_lossy().into_owned(),
        reach,
    };
    if let [digit @ b'1'..=b'9'] = name {
        let number = Group::Number(usize::from(digit - b'0'));
        let matched = matched.or_else(|| latest_match(view));
        let reach = matched.and_then(|matched| matched.group(number));
        return parts.push(reach.map_or(Part::Fixed, client));
    }
    if let Some(reach) = by_nature(name) {
        return parts.push(client(reach));
    }
    let values = assigned(view, name);
    if let [value] = values[..] {
        return expand(view, value, None, depth + 1, parts);
    }
    let mut alternatives: Vec<Vec<Part>> = values
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
    parts.push(reach_of(&alternatives).map_or(Part::Fixed, client));
}

/// What clients can make of one of several texts; `None` if nothing.
fn reach_of(alternatives: &[Vec<Part>]) -> Option<Reach> {
    let mut all: Option<Reach> = None;
    for parts in alternatives {
        let whole = match &parts[..] {
            [Part::Client { reach, .. }] => Some(*reach),
            [first, ..] => united(parts).map(|reach| Reach {
                first: match first {
                    Part::Text(text) => Bytes::of(&text[..1]),
                    Part::Fixed | Part::Client { .. } => reach.bytes,
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

/// What clients can make of all these together.
fn united(parts: &[Part]) -> Option<Reach> {
    parts
        .iter()
        .filter_map(|part| match part {
            Part::Client { reach, .. } => Some(*reach),
            Part::Text(_) | Part::Fixed => None,
        })
        .reduce(Reach::either)
}

impl Matched<'_> {
    fn group(&self, wanted: Group) -> Option<Reach> {
        let subject = self.subject;
        group(self.pattern, wanted).map(|reach| Reach {
            is_host: subject.is_host,
            ..reach.within(subject.bytes)
        })
    }
}

/// What a request's line and fields can have: neither line ends nor NUL.
fn line() -> Bytes {
    Bytes::of(b"\r\n\0").not()
}

/// A path whose escapes are resolved.
fn decoded() -> Reach {
    Reach {
        bytes: Bytes::of(b"\0").not(),
        first: Bytes::of(b"/"),
        empty: false,
        is_host: false,
    }
}

/// The name that the client has come to.
fn host(bytes: Bytes) -> Reach {
    Reach {
        bytes,
        first: bytes,
        empty: true,
        is_host: true,
    }
}

/// What clients can make of a variable that every request has; `None` of others.
pub(super) fn by_nature(name: &[u8]) -> Option<Reach> {
    let printable = Bytes::range(b'!', b'~').or(Bytes::range(0x80, 0xff));
    let of = |bytes: Bytes| Reach {
        is_host: false,
        ..host(bytes)
    };
    let letters = Bytes::range(b'a', b'z').or(Bytes::range(b'0', b'9'));
    Some(match name {
        b"uri" | b"document_uri" => decoded(),
        b"request_uri" => Reach {
            bytes: printable,
            ..decoded()
        },
        b"args" | b"query_string" => of(printable),
        b"host" => host(letters.or(Bytes::of(b".-_:[]"))),
        b"http_host" => host(line().and(Bytes::of(b"/").not())),
        b"ssl_server_name" => host(printable),
        b"ssl_preread_server_name" => of(printable),
        b"request_body" => of(Bytes::ALL),
        _ if name.starts_with(b"arg_") => of(printable.and(Bytes::of(b"&").not())),
        _ if name.starts_with(b"http_") => of(line()),
        _ if name.starts_with(b"cookie_") => of(line().and(Bytes::of(b";").not())),
        _ => return None,
    })
}

/// Is the value of this variable looked at by an `if` around that sends some requests away, or is it the pattern of one
/// that this stands in? Then it is somebody's list of what is allowed.
fn is_tested(view: &View, name: &[u8]) -> bool {
    let asks = |node: &Node| {
        node.name.is("if")
            && node
                .args
                .iter()
                .any(|word| names(&word.text).any(|found| found == name))
    };
    let ends = |node: &Node| node.name.is("return") || node.name.is("rewrite");
    let blocks = || view.around.iter();
    blocks().any(|block| asks(block))
        || blocks().any(|block| {
            let mut inside = block.block.nodes().iter();
            inside.any(|node| asks(node) && node.block.nodes().iter().any(ends))
        })
}

/// The values that `set` gives to a variable in the blocks around, and in their `if`s.
fn assigned<'t>(view: &View<'_, 't>, name: &[u8]) -> Vec<&'t [u8]> {
    let mut values = Vec::new();
    let mut look = |nodes: &'t [Node]| {
        let sets = named(nodes, "set");
        let ours = sets.filter(|node| first(node).strip_prefix(b"$") == Some(name));
        values.extend(ours.map(|node| word(node, 1)));
    };
    for block in view.around {
        look(block.block.nodes());
        named(block.block.nodes(), "if").for_each(|inside| look(inside.block.nodes()));
    }
    values
}

/// What the rows of `map` give to a variable.
fn mapped(view: &View, name: &[u8], depth: usize) -> Vec<Vec<Part>> {
    let mut values = Vec::new();
    let maps = view.site.maps.get(name).into_iter().flatten();
    for map in maps.filter(|map| map.name.is("map")) {
        let mut source = Vec::new();
        expand(view, first(map), None, depth + 1, &mut source);
        let subject = united(&source);
        let mut rows = map.block.nodes().iter();
        let has_variables = |row: &&Node| {
            row.args
                .last()
                .is_some_and(|word| word.text.contains(&b'$'))
        };
        // What has none is the operator's own.
        for row in rows.by_ref().filter(has_variables).take(MAX_ROWS) {
            let key = row.name.text.as_slice();
            let pattern = key.strip_prefix(b"~*").or(key.strip_prefix(b"~"));
            let matched = pattern.zip(subject);
            let matched = matched.map(|(pattern, subject)| Matched { pattern, subject });
            let mut inside = Vec::new();
            if let Some(value) = row.args.last() {
                expand_row(view, &value.text, matched, depth, &mut inside);
            }
            values.push(inside);
        }
    }
    values
}

/// As [`expand`], with the named groups of the row's own expression.
fn expand_row(
    view: &View,
    text: &[u8],
    matched: Option<Matched>,
    depth: usize,
    parts: &mut Vec<Part>,
) {
    let Some(matched) = matched else {
        // A row without an expression has no groups.
        let has_groups = names(text).any(|name| matches!(name, [b'1'..=b'9']));
        return match has_groups {
            true => parts.push(Part::Fixed),
            false => expand(view, text, None, depth + 1, parts),
        };
    };
    match tokens(text)[..] {
        [Token::Variable(name)] => match matched.group(Group::Name(name)) {
            Some(reach) => parts.push(Part::Client {
                name: name.to_str_lossy().into_owned(),
                reach,
            }),
            None => expand(view, text, Some(matched), depth + 1, parts),
        },
        _ => expand(view, text, Some(matched), depth + 1, parts),
    }
}

/// The expression whose groups `$1` to `$9` are at this place; `None` where that depends.
fn latest_match<'t>(view: &View<'_, 't>) -> Option<Matched<'t>> {
    if view.node.name.is("rewrite") {
        return Some(Matched {
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
        if before.any(|node| node.name.is("rewrite") || matched_by_if(node).is_some()) {
            return None;
        }
        if block.name.is("location") {
            match matches_of(block) {
                Matches::Regex(pattern, _) => {
                    return Some(Matched {
                        pattern,
                        subject: decoded(),
                    });
                }
                Matches::Named => return None,
                Matches::Exact(_) | Matches::Prefix(..) => {}
            }
        }
    }
    None
}

/// The expression of an `if`.
fn matched_by_if(node: &Node) -> Option<Matched<'_>> {
    if !node.name.is("if") {
        return None;
    }
    let [subject, b"~" | b"~*", pattern] = condition(node)[..] else {
        return None;
    };
    let name = subject.strip_prefix(b"$")?;
    let subject = by_nature(name)?;
    Some(Matched { pattern, subject })
}

/// What a named group around this place can match.
fn named_group(view: &View, name: &[u8]) -> Option<Reach> {
    let of_path = |pattern| Matched {
        pattern,
        subject: decoded(),
    };
    let mut all = Vec::new();
    for block in view.around {
        if let (true, Matches::Regex(pattern, _)) = (block.name.is("location"), matches_of(block)) {
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
                let subject = by_nature(b"host");
                let matched = |pattern| {
                    Some(Matched {
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
        .filter_map(|matched| matched.group(Group::Name(name)));
    groups.reduce(Reach::either)
}
