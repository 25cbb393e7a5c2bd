//! Headers that a block does not inherit because it has some of its own, and text that becomes
//! markup.
//!
//! In nginx the `add_header` or `proxy_set_header` lines of a block replace all inherited ones.
//! That is often meant, so only those headers are reported by which browsers protect visitors, or
//! which upstream servers trust.

use base::ByteSlice as _;
use conf::DirectiveNode;

use super::{CheckRule, RuleDanger, RuleHit};
use crate::check::value::{ValuePart, value_parts};
use crate::check::view::{DirectiveView, LocationMatch, first, matches_of, named, word};

pub(super) const RULES: &[CheckRule] = &[
    CheckRule {
        name: "add-header-replaces",
        danger: RuleDanger::Risk,
        at: &["location", "server"],
        why: "a block with an \"add_header\" of its own inherits none from the outer blocks, so these pages are less \
              protected than the others",
        write: "add \"add_header_inherit merge;\", or repeat the headers in this block",
        bad: "add_header X-Frame-Options DENY; server { location /x { add_header X-A b; } }",
        good: "add_header X-Frame-Options DENY; server { location /x { add_header X-A b; add_header X-Frame-Options DENY; }
               location /y { add_header_inherit merge; add_header X-A b; } location /z { expires 1d; } }",
        find: add_header_replaces,
    },
    CheckRule {
        name: "if-add-header-replaces",
        danger: RuleDanger::Risk,
        at: &["if"],
        why: "\"if\" is a block: with an \"add_header\" of its own it inherits none from the location, so these \
              responses are less protected than the others",
        write: "use a \"map\" whose variable is empty when the header is not wanted, and \"add_header\" with it \
                outside the \"if\": a header without a value is not sent",
        bad: "server { location / { add_header Content-Security-Policy x; if ($arg_a) { add_header X-A b; } } }",
        good: "server { location / { add_header Content-Security-Policy x; if ($arg_a) { set $b c; } add_header X-B $b; } }",
        find: if_add_header_replaces,
    },
    CheckRule {
        name: "proxy-set-header-replaces",
        danger: RuleDanger::Risk,
        at: &["location", "server"],
        why: "a block with a \"proxy_set_header\" of its own inherits none from the outer blocks, so the upstream gets \
              these headers as clients send them",
        write: "repeat the headers in this block",
        bad: "proxy_set_header X-Real-IP $remote_addr; server { location / { proxy_set_header X-A b; proxy_pass http://a; } }",
        good: "proxy_set_header X-Real-IP $remote_addr; server { location / { proxy_set_header X-A b; proxy_set_header X-Real-IP
               $remote_addr; proxy_pass http://a; } location /x { proxy_set_header X-A b; } }",
        find: proxy_set_header_replaces,
    },
    CheckRule {
        name: "multiline-header",
        danger: RuleDanger::Risk,
        at: &["add_header", "proxy_set_header"],
        why: "multi-line headers are no longer allowed: proxies and browsers reject the response, or see only the \
              first line",
        write: "put the value on one line",
        bad: "add_header Content-Security-Policy \"a;\n b\";",
        good: "add_header Content-Security-Policy \"a; b\";",
        find: field_of_several_lines,
    },
    CheckRule {
        name: "markup-from-client",
        danger: RuleDanger::Attack,
        at: &["return"],
        why: "the path of a link is inserted into the page verbatim, including scripts, which then run in the context of the site (cross-site scripting)",
        write: "add \"default_type text/plain;\" and \"types { }\" to this location, or remove the variable",
        bad: "server { location /hello { default_type text/html; return 200 \"hello $uri\"; } }",
        good: "server { location /hello { types { } default_type text/plain; return 200 \"hello $uri\"; }
               location = /uri { return 200 $uri; } location /a { default_type text/html; return 200 $request_uri; } }",
        find: markup_by_client,
    },
];

/// Response headers by which browsers protect visitors.
const PROTECTIVE: [&str; 11] = [
    "strict-transport-security",
    "content-security-policy",
    "x-frame-options",
    "x-content-type-options",
    "referrer-policy",
    "permissions-policy",
    "cross-origin-opener-policy",
    "cross-origin-embedder-policy",
    "cross-origin-resource-policy",
    "x-robots-tag",
    "clear-site-data",
];

/// The names of the headers, in lower case.
fn fields<'t>(nodes: impl Iterator<Item = &'t DirectiveNode>) -> Vec<String> {
    nodes
        .map(|node| first(node).to_str_lossy().to_lowercase())
        .collect()
}

/// The headers that a block does not inherit because it sets some of its own, and its first own
/// line.
fn lost<'t>(
    view: &DirectiveView<'_, 't>,
    directive: &str,
) -> Option<(&'t DirectiveNode, Vec<String>)> {
    let mut own = named(view.node.block.nodes(), directive);
    let begins = own.next()?;
    let own = fields(named(view.node.block.nodes(), directive));
    let outer = fields(view.inherited(directive).into_iter());
    let lost = outer.into_iter().filter(|name| !own.contains(name));
    Some((begins, lost.collect()))
}

/// Whether headers are inherited after all.
fn merges(view: &DirectiveView) -> bool {
    let own = named(view.node.block.nodes(), "add_header_inherit").last();
    own.or_else(|| view.nearest("add_header_inherit"))
        .is_some_and(|node| first(node) != b"on")
}

fn quoted(names: &[String]) -> String {
    let mut names = names.to_vec();
    names.dedup();
    names
        .iter()
        .map(|name| format!("\"{name}\""))
        .collect::<Vec<_>>()
        .join(", ")
}

/// Reports the protective headers that a block does not inherit.
fn find_lost_protection(view: &DirectiveView, what: &str, found: &mut Vec<RuleHit>) {
    let Some((begins, mut lost)) = lost(view, "add_header") else {
        return;
    };
    lost.retain(|name| PROTECTIVE.contains(&name.as_str()));
    // A redirect or an error shows no page that needs protection.
    let shows_nothing = view.node.block.nodes().iter().any(|node| {
        node.name.is("return") && !first(node).starts_with(b"2") || node.name.is("internal")
    });
    if !lost.is_empty() && !merges(view) && !shows_nothing {
        let text = format!("{what} has \"add_header\" and so loses {}", quoted(&lost));
        found.push(RuleHit::new(begins.head, text));
    }
}

fn add_header_replaces(view: &DirectiveView, found: &mut Vec<RuleHit>) {
    find_lost_protection(view, "this block", found);
}

fn if_add_header_replaces(view: &DirectiveView, found: &mut Vec<RuleHit>) {
    // A preflight response of CORS (204) shows no page.
    let empty = named(view.node.block.nodes(), "return").any(|node| first(node) == b"204");
    if !empty {
        find_lost_protection(view, "the \"if\"", found);
    }
}

/// Request headers that upstreams trust because the proxy sets them.
fn is_believed(name: &str) -> bool {
    let prefixes = [
        "x-forwarded-",
        "x-real-ip",
        "x-client-",
        "x-ssl-",
        "ssl-",
        "x-remote-",
        "remote-",
        "x-auth",
        "forwarded",
    ];
    prefixes.iter().any(|prefix| name.starts_with(prefix))
}

/// Reports the trusted headers that a block with `proxy_pass` no longer sets. Others are a matter
/// of taste.
fn proxy_set_header_replaces(view: &DirectiveView, found: &mut Vec<RuleHit>) {
    let passes = named(view.node.block.nodes(), "proxy_pass")
        .next()
        .is_some();
    let Some((begins, mut lost)) = lost(view, "proxy_set_header").filter(|_| passes) else {
        return;
    };
    lost.retain(|name| is_believed(name));
    if !lost.is_empty() && view.is_in("http") {
        let text = format!(
            "this block has \"proxy_set_header\" and so loses {}",
            quoted(&lost)
        );
        found.push(RuleHit::new(begins.head, text));
    }
}

/// A line break in a value. nginx sends it as it is; folded headers are obsolete (RFC 9112, section
/// 5.2).
fn field_of_several_lines(view: &DirectiveView, found: &mut Vec<RuleHit>) {
    if word(view.node, 1)
        .iter()
        .any(|byte| matches!(byte, b'\n' | b'\r'))
    {
        let text = format!(
            "the value of \"{}\" contains a line break",
            first(view.node).as_bstr()
        );
        found.push(RuleHit::new(view.node.head, text));
    }
}

/// A response with text of the client's that a browser takes for HTML.
fn markup_by_client(view: &DirectiveView, found: &mut Vec<RuleHit>) {
    let is_text =
        view.node.args.len() > 1 && matches!(first(view.node), b"200" | b"201" | b"202" | b"203");
    let Some(location) = view
        .around
        .last()
        .filter(|block| block.name.is("location") && is_text)
    else {
        return;
    };
    let html = view
        .nearest("default_type")
        .is_some_and(|node| first(node) == b"text/html");
    // If the type depends on the extension, a link can choose it.
    let types = view.inherited("types");
    let by_name = types.iter().all(|types| {
        types
            .block
            .nodes()
            .iter()
            .any(|row| row.name.is("text/html") || row.name.is("image/svg+xml"))
    });
    let any_name = matches!(matches_of(location), LocationMatch::Prefix(..));
    let fixed = matches!(matches_of(location), LocationMatch::Exact(_));
    if fixed || !(html || by_name && any_name) || has_type(view) {
        return;
    }
    for part in value_parts(view, word(view.node, 1)) {
        if let ValuePart::Client { name, reach } = part {
            // Browsers encode these characters in queries and in headers; only the decoded path has
            // them.
            if reach.bytes.has(b'<') && reach.bytes.has(b'\n') {
                let text = format!("${name} is inserted into the page verbatim");
                return found.push(RuleHit::new(view.node.args[1].span, text));
            }
        }
    }
}

/// Whether a header sets the type, or forbids browsers to guess it.
fn has_type(view: &DirectiveView) -> bool {
    let fields = view.inherited("add_header");
    let mut names = fields.iter().map(|node| first(node).to_ascii_lowercase());
    names.any(|name| matches!(name.as_slice(), b"content-type" | b"x-content-type-options"))
}
