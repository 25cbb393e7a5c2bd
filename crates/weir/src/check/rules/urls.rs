//! Where requests and visitors are sent when clients can influence it.
//!
//! The host of a URL ends at the first `/`, `?` or `#`. What clients control before that selects
//! the server; after it, only a path. What a variable can contain is known from
//! [`super::super::value`], so a capture that matches no dot or slash is no finding.

use base::{BStr, ByteSlice as _};
use conf::DirectiveNode;

use super::{CheckRule, RuleDanger, RuleHit};
use crate::check::value::{ValuePart, value_parts};
use crate::check::view::{
    CheckedTree, DirectiveView, LocationMatch, directives, first, inherited, matches_of, named,
    word,
};

pub(super) const RULES: &[CheckRule] = &[
    CheckRule {
        name: "upstream-from-client",
        danger: RuleDanger::Attack,
        at: &[
            "proxy_pass",
            "grpc_pass",
            "fastcgi_pass",
            "uwsgi_pass",
            "scgi_pass",
            "memcached_pass",
        ],
        why: "clients control which host the server connects to, including local addresses and cloud metadata services \
              (SSRF)",
        write: "use a \"map\" from client input to the names of your upstreams, with a default, or put a slash between \
                the host and the variable",
        bad: "server { location / { proxy_pass http://$arg_host; } }",
        good: "map $arg_host $known { default a.test; b b.test; } server { location / { proxy_pass http://$known$request_uri; } }",
        find: upstream_by_client,
    },
    CheckRule {
        name: "open-redirect",
        danger: RuleDanger::Attack,
        at: &["return", "rewrite"],
        why: "a link to your site can lead anywhere, under your name (open redirect)",
        write: "put a slash after the host, before any variable",
        bad: "server { location ~ ^/old(.*)$ { return 301 https://new.test$1; } }",
        good: "server { location ~ ^/old(/.*)$ { return 301 https://new.test$1; } location / { return 301 https://$host$request_uri; }
               if ($host ~ ^www\\.(.+)$) { return 301 https://$1$request_uri; } }",
        find: redirect_by_client,
    },
    CheckRule {
        name: "pass-traversal",
        danger: RuleDanger::Attack,
        at: &["proxy_pass"],
        why: "the location is cut off the path, and the rest is appended to the path of the upstream: of \"/x../\" the \
              two dots remain and escape from it",
        write: "add a trailing slash to the location",
        bad: "server { location /x { proxy_pass http://a/public/; } }",
        good: "server { location /x/ { proxy_pass http://a/public/; } location /y { proxy_pass http://a/; } }",
        find: pass_traversal,
    },
    CheckRule {
        name: "line-breaks",
        danger: RuleDanger::Risk,
        at: &[
            "return",
            "rewrite",
            "add_header",
            "add_trailer",
            "proxy_set_header",
            "proxy_pass",
            "error_page",
        ],
        why: "the variable is the decoded path. A line break in it (\"%0d%0a\") starts a new header or a new request \
              with nginx; Weir replaces it with a space or rejects the request, and the value is wrong",
        write: "use $request_uri instead of $uri, or a group that matches no line breaks, such as \"[^/\\s]+\"",
        bad: "server { location / { return 301 https://new.test$uri; } }",
        good: "server { location / { return 301 https://new.test$request_uri; } location = /t { return 200 $uri; } }",
        find: line_ends,
    },
    CheckRule {
        name: "public-resolver",
        danger: RuleDanger::Risk,
        at: &["resolver"],
        why: "DNS responses cross the public network unauthenticated, and decide which host gets the requests",
        write: "use a resolver in your own network, or \"proxy_ssl_verify on\"",
        bad: "resolver 8.8.8.8; server { location / { set $a b.test; proxy_pass http://$a; } }",
        good: "resolver 127.0.0.53; server { location / { set $a b.test; proxy_pass http://$a; } }
               server { resolver 8.8.8.8; ssl_stapling on; }",
        find: resolver_of_strangers,
    },
];

/// The part of an address that clients control.
struct ChosenHost<'p> {
    name: &'p str,
    /// Whether it is appended to a host of the operator's: `example.com$x` reaches
    /// `example.com.attacker.test`.
    is_added: bool,
}

/// The variable by which clients control the host of a URL, if there is one. `own` are the
/// variables that may be the host.
///
/// It walks the parts up to the first byte that ends the host (`/`, `?` or `#`); from then on
/// nothing can change it.
fn client_chosen_host<'p>(parts: &'p [ValuePart], own: &[&str]) -> Option<ChosenHost<'p>> {
    let (mut in_host, mut has_host) = (false, false);
    for (index, part) in parts.iter().enumerate() {
        match part {
            ValuePart::Text(text) if !in_host => {
                let Some(at) = text.find("://") else {
                    // A path on this server, or a scheme that a variable holds.
                    if text.starts_with(b"/") || text.starts_with(b"unix:") {
                        return None;
                    }
                    // A host without a scheme, as for FastCGI.
                    has_host = true;
                    in_host = true;
                    continue;
                };
                let host = &text[at + 3..];
                if host.iter().any(|byte| b"/?#".contains(byte)) || host.starts_with(b"unix:") {
                    return None;
                }
                in_host = true;
                has_host = !host.is_empty();
            }
            ValuePart::Text(text) => {
                if text.iter().any(|byte| b"/?#".contains(byte)) {
                    return None;
                }
                has_host = true;
            }
            ValuePart::Fixed if !in_host && index > 0 => return None,
            // At the beginning it may be a scheme, or a whole address.
            ValuePart::Fixed if is_scheme(parts, index) => {}
            ValuePart::Fixed => (in_host, has_host) = (true, true),
            ValuePart::Client { name, .. } => match client_part(parts, index, own, has_host) {
                HostEffect::Nothing => {}
                HostEffect::Host => (in_host, has_host) = (true, true),
                HostEffect::Decides => {
                    let is_added = has_host;
                    return Some(ChosenHost { name, is_added });
                }
                HostEffect::Ends => return None,
            },
        }
    }
    None
}

/// The effect of a variable that clients control on the host of a URL.
enum HostEffect {
    /// None: it is not in the host, or not yet.
    Nothing,
    /// It is part of the host without selecting it.
    Host,
    /// It selects the host.
    Decides,
    /// The host ends before it.
    Ends,
}

/// The effect of the part at `index`. `has_host` tells whether a part of the host precedes it.
fn client_part(parts: &[ValuePart], index: usize, own: &[&str], has_host: bool) -> HostEffect {
    let ValuePart::Client { name, reach } = &parts[index] else {
        return HostEffect::Nothing;
    };
    if own.contains(&name.as_str()) || reach.is_host && own.contains(&"host") {
        return HostEffect::Host;
    }
    if is_scheme(parts, index) && !reach.bytes.has(b'/') {
        return HostEffect::Nothing;
    }
    if !reach.first.is_empty() && reach.first.is_within(b"/?#") {
        return match reach.empty {
            true => HostEffect::Nothing,
            false => HostEffect::Ends,
        };
    }
    // After a host a dot makes it another name, and `@` makes it the user's name.
    let decides = match has_host {
        true => reach.first.intersects(b".@") || reach.bytes.intersects(b"@/"),
        false => reach.bytes.intersects(b"./"),
    };
    match decides && !is_limited(parts, index) {
        true => HostEffect::Decides,
        false => HostEffect::Host,
    }
}

/// Whether `://` follows: then the part is the scheme.
fn is_scheme(parts: &[ValuePart], index: usize) -> bool {
    matches!(parts.get(index + 1), Some(ValuePart::Text(text)) if text.starts_with(b"://"))
}

/// Whether the client controls only a label below a domain of the operator's.
fn is_limited(parts: &[ValuePart], index: usize) -> bool {
    let ValuePart::Client { reach, .. } = &parts[index] else {
        return true;
    };
    let domain = match parts.get(index + 1) {
        Some(ValuePart::Text(text)) => {
            let end = text.iter().position(|byte| b"/:?#".contains(byte));
            let host = &text[..end.unwrap_or(text.len())];
            host.starts_with(b".") && host.iter().any(u8::is_ascii_alphabetic)
        }
        Some(ValuePart::Fixed | ValuePart::Client { .. }) | None => false,
    };
    domain && !reach.bytes.intersects(b"/?#\\")
}

/// The host of an upstream that clients control.
fn upstream_by_client(view: &DirectiveView, found: &mut Vec<RuleHit>) {
    let text = first(view.node);
    let parts = value_parts(view, text);
    // The other directives take a host without a scheme.
    let is_url = matches!(view.node.name.text.as_slice(), b"proxy_pass" | b"grpc_pass")
        && view.is_in("http");
    // If only the server's names get here, `$host` is one of them.
    let own: &[&str] = match view
        .block("server")
        .is_some_and(|server| has_only_names(view, server))
    {
        true => &["host"],
        false => &[],
    };
    let Some(chosen) = client_chosen_host(&parts, own) else {
        return;
    };
    let whole = matches!(parts[..], [ValuePart::Client { .. }]);
    if view.is_guarded() || (is_url && whole && is_internal(view)) {
        return;
    }
    let name = chosen.name;
    let text = match chosen.is_added {
        true => {
            format!("clients control the upstream: ${name} is appended to its host without a slash")
        }
        false => format!("clients control the upstream through ${name}"),
    };
    found.push(RuleHit::new(view.node.args[0].span, text));
}

/// Whether requests for other names go to another server.
fn has_only_names<'t>(view: &DirectiveView<'_, 't>, server: &'t DirectiveNode) -> bool {
    let lines = view.site.lines(server, "server_name");
    let names = || lines.iter().flat_map(|node| &node.args);
    let any = |name: &BStr| matches!(name.as_bytes(), b"_" | b"" | b"*") || name.starts_with(b"~");
    let answers_to_all = |listen: &DirectiveNode| {
        let default = view.site.default_server(first(listen));
        default.is_none_or(|default| std::ptr::eq(default, server))
    };
    let own = view.site.lines(server, "listen");
    names().next().is_some()
        && !names().any(|word| any(word.as_bstr()))
        && !own.is_empty()
        && !own.into_iter().any(answers_to_all)
}

/// Whether clients can only get here by an internal redirect.
fn is_internal(view: &DirectiveView) -> bool {
    view.around
        .iter()
        .any(|block| !view.site.lines(block, "internal").is_empty())
}

/// The URL to which a `return` or a redirecting `rewrite` sends visitors.
fn target<'v>(view: &'v DirectiveView) -> Option<&'v [u8]> {
    let node = view.node;
    if node.name.is("rewrite") {
        let redirects = matches!(word(node, 2), b"redirect" | b"permanent")
            || word(node, 1).starts_with(b"http://")
            || word(node, 1).starts_with(b"https://");
        return redirects.then(|| word(node, 1));
    }
    match node.args.len() {
        1 => Some(first(node)).filter(|text| !text.iter().all(u8::is_ascii_digit)),
        _ => {
            matches!(first(node), b"301" | b"302" | b"303" | b"307" | b"308").then(|| word(node, 1))
        }
    }
}

/// The host of a redirect that clients control.
fn redirect_by_client(view: &DirectiveView, found: &mut Vec<RuleHit>) {
    let Some(text) = target(view).filter(|_| view.is_in("http")) else {
        return;
    };
    let parts = value_parts(view, text);
    let begins_with_url = match parts.first() {
        Some(ValuePart::Text(text)) => text.find("://").is_some(),
        // A capture may contain the scheme, if the expression asks for one.
        Some(ValuePart::Client { name, .. }) => {
            name.starts_with("arg_") && parts.len() == 1 || parts.len() > 1
        }
        Some(ValuePart::Fixed) => true,
        None => false,
    };
    // A visitor may be sent to the host that was requested.
    let own = [
        "host",
        "http_host",
        "ssl_server_name",
        "http_x_forwarded_host",
        "http_x_forwarded_proto",
    ];
    let Some(chosen) =
        client_chosen_host(&parts, &own).filter(|_| begins_with_url && !view.is_guarded())
    else {
        return;
    };
    let text = match chosen.is_added {
        true => format!(
            "redirects can lead to any site: ${} is appended to the host without a slash",
            chosen.name
        ),
        false => format!("redirects can lead to any site through ${}", chosen.name),
    };
    let span = view.node.args.get(1).unwrap_or(&view.node.args[0]).span;
    found.push(RuleHit::new(span, text));
}

/// Like the traversal with `alias`, for the path of an upstream's URL.
fn pass_traversal(view: &DirectiveView, found: &mut Vec<RuleHit>) {
    let Some(LocationMatch::Prefix(prefix, _)) = view.around.last().map(|block| matches_of(block))
    else {
        return;
    };
    let url = first(view.node);
    let path = url.find("://").and_then(|at| {
        url[at + 3..]
            .find_byte(b'/')
            .map(|slash| &url[at + 3 + slash..])
    });
    let Some(path) =
        path.filter(|path| path.len() > 1 && path.ends_with(b"/") && !url.contains(&b'$'))
    else {
        return;
    };
    if !prefix.ends_with(b"/") && !view.is_guarded() && view.is_in("http") {
        let text = format!(
            "\"{}../\" escapes from \"{}\" of the upstream",
            prefix.as_bstr(),
            path.as_bstr()
        );
        found.push(RuleHit::new(view.node.args[0].span, text));
    }
}

/// A variable that may contain line breaks, in a value that becomes a header or a target.
fn line_ends(view: &DirectiveView, found: &mut Vec<RuleHit>) {
    if !view.is_in("http") {
        return;
    }
    let node = view.node;
    let text = match node.name.text.as_slice() {
        b"return" | b"rewrite" => target(view),
        b"proxy_pass" => Some(first(node)),
        b"error_page" => {
            let url = node.args.last().map(|word| word.text.as_slice());
            url.filter(|url| url.starts_with(b"http://") || url.starts_with(b"https://"))
        }
        _ => Some(word(node, 1)),
    };
    let Some(text) = text else {
        return;
    };
    for part in value_parts(view, text) {
        let ValuePart::Client { name, reach } = part else {
            continue;
        };
        // The captures of a rewrite's own expression are escaped in the redirect.
        let is_escaped = node.name.is("rewrite") && name.len() == 1;
        if reach.bytes.has(b'\n') && !is_escaped {
            let span = node
                .args
                .iter()
                .find(|word| word.text == text)
                .map_or(node.head, |word| word.span);
            let text = format!("${name} can contain line breaks");
            return found.push(RuleHit::new(span, text));
        }
    }
}

/// Public resolvers.
const PUBLIC: [&[u8]; 10] = [
    b"8.8.8.8",
    b"8.8.4.4",
    b"1.1.1.1",
    b"1.0.0.1",
    b"9.9.9.9",
    b"208.67.222.222",
    b"208.67.220.220",
    b"114.114.114.114",
    b"223.5.5.5",
    b"[2001:4860:4860::8888]",
];

/// A public resolver that decides about hosts. For `ssl_stapling` it would do: those responses are
/// signed.
fn resolver_of_strangers(view: &DirectiveView, found: &mut Vec<RuleHit>) {
    let public = view
        .node
        .args
        .iter()
        .find(|word| PUBLIC.contains(&word.text.as_slice()));
    let Some(public) = public else {
        return;
    };
    if asks(view.site, view.around, view.here()) {
        let text = format!("\"{}\" decides where requests go", public.text.as_bstr());
        found.push(RuleHit::new(public.span, text));
    }
}

/// Whether anything in a block has its host looked up at run time, by the resolver of that block.
fn asks<'t>(
    site: &CheckedTree<'t>,
    around: &[&'t DirectiveNode],
    nodes: &'t [DirectiveNode],
) -> bool {
    nodes.iter().any(|node| {
        let is_pass = ["proxy_pass", "fastcgi_pass", "grpc_pass"]
            .iter()
            .any(|name| node.name.is(name));
        let url = first(node);
        let host = url.find("://").map_or(url, |at| &url[at + 3..]);
        let verify = || inherited(site, around, "proxy_ssl_verify");
        let is_verified = || {
            url.starts_with(b"https") && verify().last().is_some_and(|node| first(node) == b"on")
        };
        let is_resolved = node.name.is("server") && node.args.iter().any(|word| word.is("resolve"));
        // A block with its own resolver does not ask this one.
        let has_own = named(node.block.nodes(), "resolver").next().is_some();
        (is_pass && host.starts_with(b"$") && !is_verified())
            || is_resolved
            || !has_own && asks(site, &[around, &[node]].concat(), directives(node))
    })
}
