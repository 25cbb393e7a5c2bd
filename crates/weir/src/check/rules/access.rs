//! Access control that does not do what it seems to.
//!
//! The rules compare what a block seems to promise with nginx's order: `return` comes before access
//! control, the first matching `allow` or `deny` decides, and only the rules of the selected
//! location apply. Places that only local programs can reach are not reported.

use base::ByteSlice as _;
use conf::DirectiveNode;

use super::{CheckRule, RuleDanger, RuleHit};
use crate::check::value::{client_variable, names};
use crate::check::view::{
    DirectiveView, LocationMatch, directives, first, inherited, is_guarded, is_local, locate,
    matches_of, named, word,
};

pub(super) const RULES: &[CheckRule] = &[
    CheckRule {
        name: "allow-without-deny",
        danger: RuleDanger::Attack,
        at: &["allow"],
        why: "clients that match no rule are allowed, so a list of \"allow\" lines alone denies access to no one; the \
              rules of a block also replace all those of the outer blocks",
        write: "add \"deny all;\" after the last \"allow\"",
        bad: "server { location /admin/ { allow 10.0.0.0/8; } }",
        good: "server { location /admin/ { allow 10.0.0.0/8; deny all; } location / { allow all; } }",
        find: allow_without_deny,
    },
    CheckRule {
        name: "deny-after-allow-all",
        danger: RuleDanger::Attack,
        at: &["deny"],
        why: "the first matching rule decides, and \"allow all\" matches every client",
        write: "put the \"deny\" lines first, or remove the \"allow all\" before them",
        bad: "server { location / { allow all; deny 192.0.2.0/24; } }",
        good: "server { location / { deny 192.0.2.0/24; allow all; } }",
        find: deny_after_allow_all,
    },
    CheckRule {
        name: "return-before-access",
        danger: RuleDanger::Attack,
        at: &["return"],
        why: "\"return\" responds in the rewrite phase, before access rules are checked",
        write: "use \"try_files\" with a file, or move the \"return\" to a named location that \"try_files\" redirects to",
        bad: "server { location /status { allow 10.0.0.0/8; deny all; return 200 secret; } }",
        good: "server { location /status { allow 10.0.0.0/8; deny all; try_files /none @status; }
                        location @status { return 200 secret; } location /x { deny all; return 404; } }",
        find: return_before_access,
    },
    CheckRule {
        name: "auth-basic-without-users",
        danger: RuleDanger::Attack,
        at: &["auth_basic"],
        why: "without a user file no password is required, as in nginx",
        write: "add \"auth_basic_user_file\" with the path of the file",
        bad: "server { location /admin/ { auth_basic staff; } }",
        good: "auth_basic_user_file users; server { auth_basic off; location /admin/ { auth_basic staff; } }",
        find: auth_basic_without_users,
    },
    CheckRule {
        name: "access-by-prefix-only",
        danger: RuleDanger::Attack,
        at: &["location"],
        why: "a location with a regular expression takes precedence over a prefix location, and only the access rules \
              of the selected location apply",
        write: "put \"^~\" before the prefix, and nest the other location in it",
        bad: "server { root site; location /private/ { deny all; } location ~ \\.jpg$ { expires 1d; } }",
        good: "server { root site; location ^~ /private/ { deny all; location ~ \\.jpg$ { expires 1d; } }
                        location ~ \\.jpg$ { expires 1d; } }",
        find: access_by_prefix_only,
    },
    CheckRule {
        name: "real-ip-from-anyone",
        danger: RuleDanger::Attack,
        at: &["set_real_ip_from"],
        why: "any client can claim any address, and so evade \"allow\" rules, limits and logs",
        write: "list only the addresses of your own proxies",
        bad: "set_real_ip_from 0.0.0.0/0; server { listen 80; }",
        good: "set_real_ip_from 10.0.0.0/8; server { listen 80; }",
        find: real_ip_from_anybody,
    },
    CheckRule {
        name: "limit-key-from-client",
        danger: RuleDanger::Attack,
        at: &["limit_req_zone", "limit_conn_zone"],
        why: "a client that sends a different value each time is never limited: proxies append to this header, and its \
              beginning is controlled by the client",
        write: "use $binary_remote_addr as the key, with \"set_real_ip_from\" for the proxies in front",
        bad: "limit_req_zone $http_x_forwarded_for zone=a:1m rate=1r/s;",
        good: "limit_req_zone $binary_remote_addr zone=a:1m rate=1r/s; limit_req_zone $http_x_key zone=b:1m rate=1r/s;",
        find: limit_by_what_clients_say,
    },
    CheckRule {
        name: "client-certificate-unchecked",
        danger: RuleDanger::Attack,
        at: &["ssl_verify_client"],
        why: "clients without a certificate, or with an untrusted one, are served like all others, because nothing \
              checks $ssl_client_verify",
        write: "use \"ssl_verify_client on;\", or an \"if\" that rejects requests unless $ssl_client_verify is SUCCESS",
        bad: "server { ssl_verify_client optional; }",
        good: "server { ssl_verify_client optional; if ($ssl_client_verify != SUCCESS) { return 403; } }",
        find: certificate_not_looked_at,
    },
    CheckRule {
        name: "secure-link-without-secret",
        danger: RuleDanger::Attack,
        at: &["secure_link_md5"],
        why: "clients know everything that the hash is made of, so they can create valid links themselves",
        write: "add a long random secret to the value",
        bad: "server { location / { secure_link_md5 \"$secure_link_expires$uri\"; } }",
        good: "server { location / { secure_link_md5 \"$secure_link_expires$uri Zm9vYmFy\"; } }",
        find: secure_link_without_secret,
    },
    CheckRule {
        name: "unprotected-writes",
        danger: RuleDanger::Attack,
        at: &["dav_methods", "cache_purge", "tunnel_pass"],
        why: "anyone who can reach the server can use it",
        write: "restrict it with \"allow\" and \"deny all\", \"auth_basic\" or \"limit_except\"",
        bad: "server { listen 80; location /files/ { dav_methods PUT DELETE; } }",
        good: "server { listen 80; location /files/ { dav_methods PUT; limit_except GET { deny all; } } dav_methods off; }",
        find: open_to_changes,
    },
    CheckRule {
        name: "public-status",
        danger: RuleDanger::Risk,
        at: &["stub_status", "weir_status"],
        why: "it tells anyone how busy the server is, and with what",
        write: "add \"allow 127.0.0.1; deny all;\", or move it to a server that listens on 127.0.0.1",
        bad: "server { listen 80; location /status { stub_status; } }",
        good: "server { listen 80; location /status { stub_status; allow 127.0.0.1; deny all; } }
               server { listen 127.0.0.1:81; location /status { stub_status; } }",
        find: status_for_everybody,
    },
];

fn is_all(node: &DirectiveNode) -> bool {
    first(node) == b"all"
}

/// Reported once, at the last `allow` of the block.
fn allow_without_deny(view: &DirectiveView, found: &mut Vec<RuleHit>) {
    let allows: Vec<&DirectiveNode> = named(view.here(), "allow").collect();
    let is_last = allows
        .last()
        .is_some_and(|last| std::ptr::eq(*last, view.node));
    let denies = named(view.here(), "deny").next().is_some();
    // With `satisfy any` a client that is not allowed is asked for a password.
    let any = view
        .nearest("satisfy")
        .is_some_and(|node| first(node) == b"any");
    let local = view.is_local();
    if is_last && !denies && !any && !local && !allows.iter().any(|node| is_all(node)) {
        let text = "\"allow\" without \"deny\" denies access to no one";
        found.push(RuleHit::new(view.node.head, text));
    }
}

/// Rules are checked in their order, so nothing after `allow all` matters.
fn deny_after_allow_all(view: &DirectiveView, found: &mut Vec<RuleHit>) {
    let mut before = view.here().iter();
    let mut before = before
        .by_ref()
        .take_while(|node| !std::ptr::eq(*node, view.node));
    if before.any(|node| node.name.is("allow") && is_all(node)) {
        let text = "\"deny\" after \"allow all\" has no effect";
        found.push(RuleHit::new(view.node.head, text));
    }
}

/// A guard beside a `return` that responds with content.
fn return_before_access(view: &DirectiveView, found: &mut Vec<RuleHit>) {
    let guards = ["deny", "auth_basic", "auth_request"];
    let guard = guards
        .iter()
        .find(|name| named(view.here(), name).any(|node| first(node) != b"off"));
    // A redirect or an error reveals nothing.
    let tells = first(view.node).starts_with(b"2") && view.node.args.len() > 1;
    if let (Some(guard), true, false) = (guard, tells, view.block("if").is_some()) {
        let text = format!("\"return\" responds to every client, regardless of \"{guard}\"");
        found.push(RuleHit::new(view.node.head, text));
    }
}

/// `auth_basic` without any file that applies here or further inside.
fn auth_basic_without_users(view: &DirectiveView, found: &mut Vec<RuleHit>) {
    fn has_file(nodes: &[DirectiveNode]) -> bool {
        nodes
            .iter()
            .any(|node| node.name.is("auth_basic_user_file") || has_file(directives(node)))
    }
    // The file may be named in an inner block, where the protected files are.
    if first(view.node) != b"off"
        && view.nearest("auth_basic_user_file").is_none()
        && !has_file(view.here())
    {
        let text = "\"auth_basic\" without \"auth_basic_user_file\" requires no password";
        found.push(RuleHit::new(view.node.head, text));
    }
}

/// Names that locations with regular expressions are usually made for: the rule tries each below a
/// protected prefix.
const ENDS: [&str; 20] = [
    "index.php",
    "a.php",
    "a.html",
    "a.txt",
    "a.pdf",
    "a.jpg",
    "a.png",
    "a.gif",
    "a.svg",
    "a.mp4",
    "a.zip",
    "a.gz",
    "a.json",
    "a.xml",
    "a.js",
    "a.css",
    "a.ico",
    "a.py",
    "a.pl",
    "a.cgi",
];

/// Looks for a regular expression that takes paths away from a protected prefix location.
fn access_by_prefix_only(view: &DirectiveView, found: &mut Vec<RuleHit>) {
    let LocationMatch::Prefix(prefix, false) = matches_of(view.node) else {
        return;
    };
    let Some(server) = view.block("server") else {
        return;
    };
    let inside = [view.around, &[view.node]].concat();
    let own_guard = is_guarded(view.site, &[view.node]);
    // A location with a handler of its own, or another root, serves other content.
    let own_handler = view.node.block.nodes().iter().any(|node| {
        node.name.is("alias") || node.name.text.ends_with(b"_pass") || node.name.is("return")
    });
    if !own_guard || own_handler || prefix.len() < 2 || view.around.len() != 2 {
        return;
    }
    for end in ENDS {
        let slash = if prefix.ends_with(b"/") { "" } else { "/" };
        let path = [prefix, slash.as_bytes(), end.as_bytes()].concat();
        let chain = locate(view.site, server.block.nodes(), &path);
        let [other] = chain[..] else {
            continue;
        };
        let around = [view.around, &[other]].concat();
        let root = |around| {
            inherited(view.site, around, "root")
                .last()
                .map(|node| first(node).to_vec())
        };
        let refuses = named(other.block.nodes(), "return").next().is_some()
            || named(other.block.nodes(), "internal").next().is_some();
        if std::ptr::eq(other, view.node)
            || is_guarded(view.site, &around)
            || refuses
            || root(&around) != root(&inside)
        {
            continue;
        }
        // An upstream has other content than the files that are protected here.
        let elsewhere = other
            .block
            .nodes()
            .iter()
            .any(|node| node.name.text.ends_with(b"proxy_pass"));
        if elsewhere {
            continue;
        }
        let pattern = other.args.last().map_or(&b""[..], |word| &word.text);
        let text = format!(
            "the rules of \"location {}\" do not protect {}: \"location ~ {}\" takes precedence",
            prefix.as_bstr(),
            path.as_bstr(),
            pattern.as_bstr()
        );
        return found.push(RuleHit::new(view.node.head, text));
    }
}

/// `set_real_ip_from` with all addresses, unless the server is only reachable locally.
fn real_ip_from_anybody(view: &DirectiveView, found: &mut Vec<RuleHit>) {
    // In `http` it is harmless if every server listens locally only.
    let servers = |nodes: &[DirectiveNode]| {
        let mut servers = named(nodes, "server").peekable();
        servers.peek().is_some() && servers.all(is_local)
    };
    let local = view.is_local() || servers(view.here());
    if matches!(first(view.node), b"0.0.0.0/0" | b"::/0") && !local {
        let text = "every client is trusted to report its address";
        found.push(RuleHit::new(view.node.head, text));
    }
}

/// A limit whose key is the whole X-Forwarded-For. Other headers are left alone: an API key in one
/// may well be what is limited.
fn limit_by_what_clients_say(view: &DirectiveView, found: &mut Vec<RuleHit>) {
    if first(view.node) == b"$http_x_forwarded_for" {
        let text = "clients control the key by which they are limited";
        found.push(RuleHit::new(view.node.args[0].span, text));
    }
}

/// Optional client certificates, and nowhere a variable that tells whether one was valid.
fn certificate_not_looked_at(view: &DirectiveView, found: &mut Vec<RuleHit>) {
    let optional = matches!(first(view.node), b"optional" | b"optional_no_ca");
    if optional && !view.site.mentions(b"ssl_client_") {
        let text = "client certificates are requested but never checked";
        found.push(RuleHit::new(view.node.head, text));
    }
}

/// The secret is either literal text in the value or a variable that clients do not control.
fn secure_link_without_secret(view: &DirectiveView, found: &mut Vec<RuleHit>) {
    let text = first(view.node);
    let known = |name: &[u8]| {
        client_variable(name).is_some()
            || matches!(
                name,
                b"secure_link_expires" | b"remote_addr" | b"request_method" | b"scheme"
            )
    };
    let named: usize = names(text).map(|name| name.len() + 1).sum();
    let literal = text
        .iter()
        .filter(|byte| byte.is_ascii_alphanumeric())
        .count();
    let in_names = names(text)
        .flatten()
        .filter(|byte| byte.is_ascii_alphanumeric())
        .count();
    if named > 0 && names(text).all(known) && literal == in_names {
        let text = "the hash of links contains no secret";
        found.push(RuleHit::new(view.node.head, text));
    }
}

/// A directive that changes or opens something, without any access control.
fn open_to_changes(view: &DirectiveView, found: &mut Vec<RuleHit>) {
    let node = view.node;
    let except = named(view.here(), "limit_except").next().is_some();
    // `cache_purge` may have a condition, and a tunnel to a fixed address is a service like any
    // other.
    let harmless = match node.name.text.as_slice() {
        b"dav_methods" => first(node) == b"off",
        b"tunnel_pass" => {
            !node.args.is_empty() && names(first(node)).all(|name| client_variable(name).is_none())
        }
        _ => false,
    };
    if !harmless && !except && !view.is_guarded() && !view.is_local() {
        let text = match node.name.text.as_slice() {
            b"dav_methods" => "anyone can modify files here",
            b"tunnel_pass" => "anyone can connect to any address from here",
            _ => "anyone can purge the cache here",
        };
        found.push(RuleHit::new(node.head, text));
    }
}

/// Status pages without access control, unless the server listens locally.
fn status_for_everybody(view: &DirectiveView, found: &mut Vec<RuleHit>) {
    if !view.is_guarded() && !view.is_local() && word(view.node, 0) != b"off" {
        let name = view.node.name.text.as_bstr();
        found.push(RuleHit::new(
            view.node.head,
            format!("anyone can see \"{name}\""),
        ));
    }
}
