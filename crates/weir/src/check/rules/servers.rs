//! Which server has a request, and what its upstream is told of it.

use base::ByteSlice as _;
use conf::Node;

use super::{Danger, Found, Rule};
use crate::check::view::{View, first, named, word};

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "no-default-server",
        danger: Danger::Risk,
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
    Rule {
        name: "host-by-client",
        danger: Danger::Risk,
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

/// The address of a `listen`; 80 on all without one.
fn addresses(server: &Node) -> Vec<&[u8]> {
    let listens: Vec<&[u8]> = named(server.block.nodes(), "listen").map(first).collect();
    match listens.is_empty() {
        true => vec![b"80"],
        false => listens,
    }
}

fn marks_default(server: &Node, address: &[u8]) -> bool {
    named(server.block.nodes(), "listen").any(|node| {
        first(node) == address
            && node
                .args
                .iter()
                .any(|word| word.is("default_server") || word.is("default"))
    })
}

/// Names that no site has: such a server is there for what is left.
fn is_catch_all(server: &Node) -> bool {
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

fn no_default_server(view: &View, found: &mut Vec<Found>) {
    let [http] = view.around else {
        return;
    };
    if !view.is_in("http") || is_catch_all(view.node) {
        return;
    }
    for address in addresses(view.node) {
        let servers = || {
            named(http.block.nodes(), "server")
                .filter(|server| addresses(server).contains(&address))
        };
        let is_first = servers()
            .next()
            .is_some_and(|server| std::ptr::eq(server, view.node));
        if !is_first {
            continue;
        }
        let marked = servers().any(|server| marks_default(server, address) || is_catch_all(server));
        let others = servers()
            .skip(1)
            .any(|server| !is_same_site(server, view.node));
        if others && !marked {
            let name = named(view.node.block.nodes(), "server_name")
                .next()
                .map_or(&b""[..], first);
            let text = format!(
                "requests to \"{}\" for any other name get the site \"{}\", the first of that address",
                address.as_bstr(),
                name.as_bstr()
            );
            return found.push(Found::new(view.node.name.span, text));
        }
    }
}

/// Do both have the same registered name, such as with and without "www."?
fn is_same_site(one: &Node, other: &Node) -> bool {
    let site = |server: &Node| {
        let name = named(server.block.nodes(), "server_name")
            .next()
            .map(first)
            .unwrap_or_default();
        let labels: Vec<&[u8]> = name.split(|byte| *byte == b'.').collect();
        labels[labels.len().saturating_sub(2)..].concat()
    };
    site(one) == site(other)
}

fn host_by_client(view: &View, found: &mut Vec<Found>) {
    let is_host =
        first(view.node).eq_ignore_ascii_case(b"host") && word(view.node, 1) == b"$http_host";
    let Some(server) = view.block("server").filter(|_| is_host) else {
        return;
    };
    // Where any name comes in, the application has to look at it anyway.
    let chosen = named(view.around[0].block.nodes(), "server").any(|other| {
        addresses(server)
            .iter()
            .any(|address| marks_default(other, address))
            && !std::ptr::eq(other, server)
    });
    if chosen && !is_catch_all(server) {
        let text = "clients control the host name that the upstream sees";
        found.push(Found::new(view.node.args[1].span, text));
    }
}
