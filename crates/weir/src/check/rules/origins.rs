//! Lists of permitted sites that match more sites than intended. The expressions are not analysed:
//! they are tried with the site that they are meant for, and with similar names that an attacker
//! could register.

use base::ByteSlice as _;
use conf::DirectiveNode;

use super::{CheckRule, RuleDanger, RuleHit};
use crate::check::view::{DirectiveView, condition, first, word};

pub(super) const RULES: &[CheckRule] = &[
    CheckRule {
        name: "origin-pattern",
        danger: RuleDanger::Attack,
        at: &["if", "map", "valid_referers"],
        why: "the expression is not anchored, or its dots match any character, so an attacker's site with a similar \
              name passes as yours",
        write: "put \"^https://\" and \"$\" around the expression, and \"\\.\" for each dot",
        bad: "server { if ($http_origin ~ example\\.com) { set $a b; } }",
        good: "server { if ($http_origin ~ ^https://(www\\.)?example\\.com$) { set $a b; }
               if ($http_referer ~ \"^https://example\\.com/\") { set $a b; } }",
        find: origin_pattern,
    },
    CheckRule {
        name: "any-origin-with-credentials",
        danger: RuleDanger::Attack,
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

/// A regular expression, and the kind of text that it is matched with.
struct OriginTest<'t> {
    /// The regular expression.
    pattern: &'t [u8],
    caseless: bool,
    span: base::Span,
    /// What it is matched with.
    subject: TestSubject,
}

/// The kind of text that a pattern is matched with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TestSubject {
    /// `https://example.com`
    Origin,
    /// `https://example.com/path`
    Referer,
    /// `example.com/path`: `valid_referers` matches without the scheme.
    Bare,
}

/// Finds a pattern that matches its own site and an attacker's similar one.
fn origin_pattern(view: &DirectiveView, found: &mut Vec<RuleHit>) {
    for test in tests(view) {
        // The rule does not analyse the pattern but tries it, with names that an attacker could
        // register.
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
                found.push(RuleHit::new(test.span, text));
                break;
            }
        }
    }
}

/// The regular expressions of a directive that are matched with an origin or a referer.
fn tests<'t>(view: &DirectiveView<'_, 't>) -> Vec<OriginTest<'t>> {
    let node = view.node;
    let subject_of = |name: &[u8]| match name {
        b"$http_origin" => Some(TestSubject::Origin),
        b"$http_referer" => Some(TestSubject::Referer),
        _ => None,
    };
    match node.name.text.as_slice() {
        b"if" => {
            // An `if` that rejects the matching origins lets in all others anyway.
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
            test.map(|subject| OriginTest {
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
            if !node.block.may_contain(b"~") {
                return Vec::new();
            }
            node.block
                .nodes()
                .iter()
                .filter_map(|row| map_row(row, subject))
                .collect()
        }
        _ => {
            let patterns = node.args.iter().filter_map(|word| {
                let pattern = word.text.strip_prefix(b"~")?;
                Some(OriginTest {
                    pattern,
                    caseless: true,
                    span: word.span,
                    subject: TestSubject::Bare,
                })
            });
            patterns.collect()
        }
    }
}

/// A row of a `map` that gives something to matching origins.
fn map_row(row: &DirectiveNode, subject: TestSubject) -> Option<OriginTest<'_>> {
    let key = row.name.text.as_slice();
    let caseless = key.starts_with(b"~*");
    let pattern = key.strip_prefix(b"~*").or(key.strip_prefix(b"~"))?;
    let gives = !matches!(word(row, 0), b"" | b"0");
    // A `map` by referer is mostly a list of unwanted ones.
    (gives && subject == TestSubject::Origin).then_some(OriginTest {
        pattern,
        caseless,
        span: row.name.span,
        subject,
    })
}

/// The host names in an expression: labels with dots between them, escaped or not.
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

/// Similar names that an attacker could use.
fn attackers(domain: &str) -> Vec<String> {
    let mut names = vec![
        format!("{domain}.attacker.test"),
        format!("attacker-{domain}"),
    ];
    // An unescaped dot matches any character. The last one separates the top-level domain, which
    // the attacker's name needs, too.
    let last = domain.rfind('.').unwrap_or(0);
    if let Some(at) = domain[..last].rfind('.') {
        names.push(format!("{}x{}", &domain[..at], &domain[at + 1..]));
    }
    names
}

/// The text that a browser would send for a page of this host.
fn subject(host: &str, subject: TestSubject) -> String {
    match subject {
        TestSubject::Origin => format!("https://{host}"),
        TestSubject::Referer => format!("https://{host}/"),
        TestSubject::Bare => format!("{host}/"),
    }
}

/// The client's origin is returned, together with permission to send credentials, and no `if` tests
/// it.
fn any_origin_with_credentials(view: &DirectiveView, found: &mut Vec<RuleHit>) {
    let is = |node: &DirectiveNode, name: &str| first(node).eq_ignore_ascii_case(name.as_bytes());
    if !is(view.node, "access-control-allow-origin") || word(view.node, 1) != b"$http_origin" {
        return;
    }
    let credentials = view.inherited("add_header").iter().any(|node| {
        is(node, "access-control-allow-credentials") && word(node, 1).eq_ignore_ascii_case(b"true")
    });
    let asks = |node: &DirectiveNode| {
        node.name.is("if")
            && node
                .args
                .iter()
                .any(|word| word.text.contains_str("origin"))
    };
    let tested = view
        .around
        .iter()
        .any(|block| asks(block) || view.site.lines(block, "if").into_iter().any(asks));
    if credentials && !tested && !view.is_guarded() {
        let text = "any site can read this with the cookies of its visitors";
        found.push(RuleHit::new(view.node.head, text));
    }
}
