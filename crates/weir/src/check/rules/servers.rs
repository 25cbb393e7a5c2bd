//! Which server gets a request, and what its upstream learns about it. nginx selects a server by
//! the address and then by the name; a request for any other name goes to the default server of the
//! address, which is the first one unless another is marked.

use base::ByteSlice as _;
use conf::DirectiveNode;

use super::{CheckRule, RuleDanger, RuleHit};
use crate::check::view::{AddressServers, DirectiveView, addresses, first, named, word};

pub(super) const RULES: &[CheckRule] = &[
    CheckRule {
        name: "no-default-server",
        danger: RuleDanger::Risk,
        at: &["server"],
        why: "requests for any other name get the first server of the address, which depends on the order of files: \
              sites can then be reached by address, and under names that others point to it",
        write: "add \"server { listen 80 default_server; return 444; }\", with \"ssl_reject_handshake on;\" for TLS, \
                or mark the intended server as \"default_server\"",
        bad: "server { listen 80; server_name a.test; } server { listen 80; server_name b.test; }",
        good: "server { listen 80; server_name _; } server { listen 80; server_name b.test; }
               server { listen 81; server_name a.test; } server { listen 82; server_name a.test; }
               server { listen 82 default_server; server_name b.test; }",
        find: no_default_server,
    },
    CheckRule {
        name: "host-from-client",
        danger: RuleDanger::Risk,
        at: &["proxy_set_header"],
        why: "$http_host is the header as the client sent it, even if the request line names another host, by which \
              the server was selected: applications use it to build links, such as for password resets",
        write: "use $host, or \"$host$is_request_port$request_port\" if the port is needed",
        bad: "server { listen 80; server_name a.test; location / { proxy_set_header Host $http_host; proxy_pass http://a; } }
              server { listen 80 default_server; return 444; }",
        good: "server { location / { proxy_set_header Host $host; proxy_pass http://a; } }
               server { server_name _; location / { proxy_set_header Host $http_host; proxy_pass http://a; } }",
        find: host_by_client,
    },
];

/// Whether the server has no site of its own but takes the remaining requests: it refuses them, or
/// has a name that is no site's.
fn is_catch_all(server: &DirectiveNode) -> bool {
    let mut names = named(server.block.nodes(), "server_name")
        .flat_map(|node| &node.args)
        .peekable();
    let refuses = server.block.nodes().iter().any(|node| {
        node.name.is("return") || node.name.is("ssl_reject_handshake") && first(node) == b"on"
    });
    refuses
        || names.peek().is_none()
        || names.any(|word| {
            let name = word.text.as_slice();
            matches!(name, b"_" | b"" | b"localhost" | b"*" | b"$hostname")
                || name.starts_with(b"~")
                || !name.contains(&b'.')
                || name
                    .iter()
                    .all(|byte| byte.is_ascii_digit() || *byte == b'.')
        })
}

/// Several sites on an address without a default server. Reported once, at the first server of the
/// address, which gets the stray requests.
fn no_default_server(view: &DirectiveView, found: &mut Vec<RuleHit>) {
    let [_] = view.around else {
        return;
    };
    if !view.is_in("http") || is_catch_all(view.node) {
        return;
    }
    for address in addresses(view.node) {
        let Some(AddressServers { all, defaults }) = view.site.servers_at(address) else {
            continue;
        };
        let [first_server, others @ ..] = &all[..] else {
            continue;
        };
        if !std::ptr::eq(*first_server, view.node) {
            continue;
        }
        let marked = !defaults.is_empty() || all.iter().any(|server| is_catch_all(server));
        let others = others.iter().any(|server| !is_same_site(server, view.node));
        if others && !marked {
            let name = named(view.node.block.nodes(), "server_name")
                .next()
                .map_or(&b""[..], first);
            let text = format!(
                "requests to \"{}\" for any other name get the site \"{}\", the first of that address",
                address.as_bstr(),
                name.as_bstr()
            );
            return found.push(RuleHit::new(view.node.name.span, text));
        }
    }
}

/// Whether both have the same registered name, as with and without `www.`. Then it matters little
/// which one gets a stray request.
fn is_same_site(one: &DirectiveNode, other: &DirectiveNode) -> bool {
    let site = |server: &DirectiveNode| {
        let name = named(server.block.nodes(), "server_name")
            .next()
            .map(first)
            .unwrap_or_default();
        let labels: Vec<&[u8]> = name.split(|byte| *byte == b'.').collect();
        labels[labels.len().saturating_sub(2)..].concat()
    };
    site(one) == site(other)
}

/// `$http_host` in a server that is selected by its name, so that the application could rely on it.
fn host_by_client(view: &DirectiveView, found: &mut Vec<RuleHit>) {
    let is_host =
        first(view.node).eq_ignore_ascii_case(b"host") && word(view.node, 1) == b"$http_host";
    let Some(server) = view.block("server").filter(|_| is_host) else {
        return;
    };
    // If this server accepts any name, the application has to check it anyway.
    let chosen = addresses(server).into_iter().any(|address| {
        let servers = view.site.servers_at(address);
        let mut defaults = servers.into_iter().flat_map(|servers| &servers.defaults);
        defaults.any(|default| !std::ptr::eq(*default, server))
    });
    if chosen && !is_catch_all(server) {
        let text = "clients control the host name that the upstream sees";
        found.push(RuleHit::new(view.node.args[1].span, text));
    }
}
