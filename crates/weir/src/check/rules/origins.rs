//! Lists of other sites that let in more sites than they name.

use base::ByteSlice as _;
use conf::Node;

use super::{Danger, Found, Rule};
use crate::check::view::{View, condition, first, word};

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "origin-pattern",
        danger: Danger::Attack,
        at: &["if", "map", "valid_referers"],
        why: "the expression is not anchored, or its dots match any character, so an attacker's site with a similar \
              name passes as yours",
        write: "put \"^https://\" and \"$\" around the expression, and \"\\.\" for each dot",
        bad: "server { if ($http_origin ~ example\\.com) { set $a b; } }",
        good: "server { if ($http_origin ~ ^https://(www\\.)?example\\.com$) { set $a b; }
               if ($http_referer ~ \"^https://example\\.com/\") { set $a b; } }",
        find: origin_pattern,
    },
    Rule {
        name: "any-origin-with-credentials",
        danger: Danger::Attack,
        at: &["add_header"],
        why: "any site that a visitor opens can read your site with the identity of that visitor",
        write: "use a \"map\" from $http_origin to the permitted origins, with an empty default",
        bad: "server { location / { add_header Access-Control-Allow-Origin $http_origin; add_header Access-Control-Allow-Credentials true; } }",
        good: "map $http_origin $may { default ''; https://a.test $http_origin; }
               server { location / { add_header Access-Control-Allow-Origin $may; add_header Access-Control-Allow-Credentials true; }
               location /x { add_header Access-Control-Allow-Origin $http_origin; } }",
        find: any_origin_with_credentials,
    },
];

/// A pattern, and what it is matched with.
struct Test<'t> {
    pattern: &'t [u8],
    caseless: bool,
    span: base::Span,
    subject: Subject,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Subject {
    /// `https://example.com`
    Origin,
    /// `https://example.com/path`
    Referer,
    /// The same without the scheme, as `valid_referers` sees it.
    Bare,
}

fn origin_pattern(view: &View, found: &mut Vec<Found>) {
    for test in tests(view) {
        for domain in domains(test.pattern) {
            let genuine = subject(&domain, test.subject);
            if !view
                .site
                .matches(test.pattern, test.caseless, genuine.as_bytes())
            {
                continue;
            }
            let attack = attackers(&domain)
                .into_iter()
                .map(|host| subject(&host, test.subject));
            let attack = attack.filter(|text| *text != genuine);
            let hit = attack.into_iter().find(|text| {
                view.site
                    .matches(test.pattern, test.caseless, text.as_bytes())
            });
            if let Some(hit) = hit {
                let text = format!("the expression for \"{domain}\" matches \"{hit}\" too");
                found.push(Found::new(test.span, text));
                break;
            }
        }
    }
}

/// The expressions that a directive matches with an origin or a referer.
fn tests<'t>(view: &View<'_, 't>) -> Vec<Test<'t>> {
    let node = view.node;
    let subject_of = |name: &[u8]| match name {
        b"$http_origin" => Some(Subject::Origin),
        b"$http_referer" => Some(Subject::Referer),
        _ => None,
    };
    match node.name.text.as_slice() {
        b"if" => {
            // What turns the named ones away lets in all others anyway.
            let [name, sign @ (b"~" | b"~*" | b"!~" | b"!~*"), pattern] = condition(node)[..]
            else {
                return Vec::new();
            };
            let refuses = node
                .block
                .nodes()
                .iter()
                .any(|inside| inside.name.is("return") && first(inside).starts_with(b"4"));
            let span = node.args.last().map_or(node.head, |word| word.span);
            let test = subject_of(name).filter(|_| !refuses || sign.starts_with(b"!"));
            test.map(|subject| Test {
                pattern,
                caseless: sign.ends_with(b"*"),
                span,
                subject,
            })
            .into_iter()
            .collect()
        }
        b"map" => {
            let Some(subject) = subject_of(first(node)) else {
                return Vec::new();
            };
            node.block
                .nodes()
                .iter()
                .filter_map(|row| map_row(row, subject))
                .collect()
        }
        _ => {
            let patterns = node.args.iter().filter_map(|word| {
                let pattern = word.text.strip_prefix(b"~")?;
                Some(Test {
                    pattern,
                    caseless: true,
                    span: word.span,
                    subject: Subject::Bare,
                })
            });
            patterns.collect()
        }
    }
}

/// A row that gives something to origins that match.
fn map_row(row: &Node, subject: Subject) -> Option<Test<'_>> {
    let key = row.name.text.as_slice();
    let caseless = key.starts_with(b"~*");
    let pattern = key.strip_prefix(b"~*").or(key.strip_prefix(b"~"))?;
    let gives = !matches!(word(row, 0), b"" | b"0");
    // A referer in a map is mostly a list of those that are not wanted.
    (gives && subject == Subject::Origin).then_some(Test {
        pattern,
        caseless,
        span: row.name.span,
        subject,
    })
}

/// The names of hosts that an expression has in it: labels with dots between, escaped or not.
fn domains(pattern: &[u8]) -> Vec<String> {
    let text = pattern
        .to_str_lossy()
        .replace("\\.", ".")
        .replace("[.]", ".")
        .replace("\\-", "-");
    let is_label = |char: char| char.is_ascii_alphanumeric() || char == '-' || char == '.';
    let names = text
        .split(|char: char| !is_label(char))
        .map(|name| name.trim_matches(['.', '-']));
    let is_name = |name: &&str| {
        let labels: Vec<&str> = name.split('.').collect();
        let last = labels.last().copied().unwrap_or_default();
        labels.len() > 1
            && labels.iter().all(|label| !label.is_empty())
            && last.len() > 1
            && last.chars().all(|char| char.is_ascii_alphabetic())
    };
    names.filter(is_name).map(str::to_owned).collect()
}

/// Names of hosts that somebody else can have.
fn attackers(domain: &str) -> Vec<String> {
    let mut names = vec![
        format!("{domain}.attacker.test"),
        format!("attacker-{domain}"),
    ];
    // A dot that stands for any sign, if it is not the one that a name needs.
    let last = domain.rfind('.').unwrap_or(0);
    if let Some(at) = domain[..last].rfind('.') {
        names.push(format!("{}x{}", &domain[..at], &domain[at + 1..]));
    }
    names
}

fn subject(host: &str, subject: Subject) -> String {
    match subject {
        Subject::Origin => format!("https://{host}"),
        Subject::Referer => format!("https://{host}/"),
        Subject::Bare => format!("{host}/"),
    }
}

fn any_origin_with_credentials(view: &View, found: &mut Vec<Found>) {
    let fields = view.inherited("add_header");
    let is = |node: &Node, name: &str| first(node).eq_ignore_ascii_case(name.as_bytes());
    let credentials = fields.iter().any(|node| {
        is(node, "access-control-allow-credentials") && word(node, 1).eq_ignore_ascii_case(b"true")
    });
    let any = is(view.node, "access-control-allow-origin") && word(view.node, 1) == b"$http_origin";
    let asks = |node: &Node| {
        node.name.is("if")
            && node
                .args
                .iter()
                .any(|word| word.text.contains_str("origin"))
    };
    let tested = view
        .around
        .iter()
        .any(|block| asks(block) || block.block.nodes().iter().any(asks));
    if any && credentials && !tested && !view.is_guarded() {
        let text = "any site can read this with the cookies of its visitors";
        found.push(Found::new(view.node.head, text));
    }
}
