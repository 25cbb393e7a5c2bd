//! Caches that hand one visitor's content to another. All visitors share a cache, so whatever a
//! response depends on has to be in the key, or has to keep the response out.

use base::ByteSlice as _;
use conf::DirectiveNode;

use super::{CheckRule, RuleDanger, RuleHit};
use crate::check::value::names;
use crate::check::view::{CheckedTree, DirectiveView, directives, first, inherited, named};

pub(super) const RULES: &[CheckRule] = &[
    CheckRule {
        name: "cached-cookies",
        danger: RuleDanger::Attack,
        at: &["proxy_ignore_headers", "fastcgi_ignore_headers", "uwsgi_ignore_headers", "scgi_ignore_headers"],
        why: "a response that sets a cookie is stored with it, so everyone gets the session of the first visitor",
        write: "add \"proxy_hide_header Set-Cookie;\", or \"proxy_no_cache\" and \"proxy_cache_bypass\" with the \
                session cookie",
        bad: "server { location / { proxy_cache a; proxy_cache_valid 1m; proxy_ignore_headers Set-Cookie; proxy_pass http://a; } }",
        good: "server { location / { proxy_cache a; proxy_ignore_headers Set-Cookie; proxy_hide_header Set-Cookie; proxy_pass http://a; }
               location /x { proxy_ignore_headers Set-Cookie; proxy_pass http://a; } }",
        find: cached_cookies,
    },
    CheckRule {
        name: "cache-key-without-host",
        danger: RuleDanger::Risk,
        at: &["proxy_cache_key", "fastcgi_cache_key", "uwsgi_cache_key", "scgi_cache_key"],
        why: "several sites share the cache, and the same path returns the same page for all of them",
        write: "add $host or $server_name to the key",
        bad: "proxy_cache_key $request_uri; server { server_name a.test; proxy_cache z; } server { listen 81; server_name b.test; proxy_cache z; }",
        good: "proxy_cache_key $host$request_uri; server { server_name a.test; proxy_cache z; } server { listen 81; server_name b.test; proxy_cache z; }",
        find: key_without_host,
    },
];

/// The prefix of a directive's family: `proxy_`, `fastcgi_`.
fn family(node: &DirectiveNode) -> String {
    let name = node.name.text.to_str_lossy();
    let end = name.find('_').map_or(0, |at| at + 1);
    name[..end].to_owned()
}

/// Whether caching is on in these blocks.
fn is_cached<'t>(site: &CheckedTree<'t>, around: &[&'t DirectiveNode], family: &str) -> bool {
    let cache = inherited(site, around, &format!("{family}cache"));
    cache.last().is_some_and(|node| first(node) != b"off")
}

/// Whether anything is cached in this block or within it.
fn caches_within<'t>(
    site: &CheckedTree<'t>,
    around: &[&'t DirectiveNode],
    nodes: &'t [DirectiveNode],
    family: &str,
) -> bool {
    fn within(nodes: &[DirectiveNode], directive: &[u8]) -> bool {
        nodes.iter().any(|node| {
            node.name.text == directive && first(node) != b"off"
                || within(directives(node), directive)
        })
    }
    is_cached(site, around, family) || within(nodes, format!("{family}cache").as_bytes())
}

/// Set-Cookie is ignored when deciding about storing, and neither removed nor part of a condition
/// or of the key.
fn cached_cookies(view: &DirectiveView, found: &mut Vec<RuleHit>) {
    let family = family(view.node);
    let ignores = view
        .node
        .args
        .iter()
        .any(|word| word.text.eq_ignore_ascii_case(b"set-cookie"));
    let hides = view.inherited(&format!("{family}hide_header"));
    let hides = hides
        .iter()
        .any(|node| first(node).eq_ignore_ascii_case(b"set-cookie"));
    // Any condition will do: what it tests is the operator's definition of what is not shared.
    let conditions = ["no_cache", "cache_bypass"]
        .iter()
        .any(|name| !view.inherited(&format!("{family}{name}")).is_empty());
    let key = view.nearest(&format!("{family}cache_key"));
    let by_visitor = key.is_some_and(|node| {
        first(node).contains_str("$cookie_") || first(node).contains_str("$http_cookie")
    });
    if ignores
        && !hides
        && !conditions
        && !by_visitor
        && caches_within(view.site, view.around, view.here(), &family)
    {
        let text = "the cookies of one visitor are cached for all";
        found.push(RuleHit::new(view.node.head, text));
    }
}

/// A key without host in front of several sites. Only the standard variables are judged.
fn key_without_host(view: &DirectiveView, found: &mut Vec<RuleHit>) {
    let family = family(view.node);
    let Some(http) = view.around.first() else {
        return;
    };
    let hosts: [&[u8]; 5] = [
        b"host",
        b"http_host",
        b"server_name",
        b"proxy_host",
        b"ssl_server_name",
    ];
    let by_nature = [
        &b"uri"[..],
        b"document_uri",
        b"request_uri",
        b"args",
        b"query_string",
        b"is_args",
        b"scheme",
        b"request_method",
    ];
    // A variable that the configuration defines may contain the host.
    if names(first(view.node)).any(|name| hosts.contains(&name) || !by_nature.contains(&name)) {
        return;
    }
    // A key within a server is about that one; one further out is about all.
    if view.block("server").is_some() {
        return;
    }
    let servers = named(http.block.nodes(), "server").filter(|server| {
        let around = [*http, *server];
        let own_key = named(server.block.nodes(), &format!("{family}cache_key"))
            .next()
            .is_some();
        !own_key && caches_within(view.site, &around, server.block.nodes(), &family)
    });
    let mut sites: Vec<&[u8]> = servers
        .flat_map(|server| named(server.block.nodes(), "server_name").take(1))
        .map(first)
        .collect();
    sites.sort_unstable();
    sites.dedup();
    if let [one, other, ..] = sites[..] {
        let text = format!(
            "\"{}\" and \"{}\" share cached pages",
            one.as_bstr(),
            other.as_bstr()
        );
        found.push(RuleHit::new(view.node.head, text));
    }
}
