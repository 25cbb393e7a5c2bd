//! `worker_groups`: which directives mean something else when the event loops are divided among several processes.
//!
//! Memory is not shared between processes. What a directive keeps in memory, each group keeps for itself; `-t` says so
//! for every directive below that a configuration uses. The reasons are in
//! `docs/design/2026-11-23-worker-groups.md`, and what a user should know is in `docs/guide/worker-groups.md`.

use conf::{Diagnostic, DirectiveNode, Severity};

use crate::core_conf::CoreConf;

/// A directive that has another meaning with several groups.
struct ChangedDirective {
    /// Its name.
    name: &'static str,
    /// Only with a parameter that begins like this.
    parameter: &'static str,
    severity: Severity,
    text: &'static str,
}

const fn notice(
    name: &'static str,
    parameter: &'static str,
    text: &'static str,
) -> ChangedDirective {
    ChangedDirective {
        name,
        parameter,
        severity: Severity::Notice,
        text,
    }
}

/// A store has one writer, so that no group can read what another one is writing.
const CACHE: &str = "each group has a cache of its own below this path, with its part of the sizes: a response is \
                     fetched and stored once by each; a purge reaches all";
const LIMIT: &str = "each group counts for itself: a client with connections to several may have as many times the limit";
const PEERS: &str = "each group has its own state of the servers and its own idle connections; \"max_conns\" is divided";

/// In the order of the guide.
const CHANGED: [ChangedDirective; 14] = [
    notice("proxy_cache_path", "", CACHE),
    notice("fastcgi_cache_path", "", CACHE),
    notice("scgi_cache_path", "", CACHE),
    notice("uwsgi_cache_path", "", CACHE),
    notice("limit_req_zone", "", LIMIT),
    notice("limit_conn_zone", "", LIMIT),
    notice("zone", "", PEERS),
    notice(
        "health_check",
        "",
        "each group checks the servers: they see as many times the requests",
    ),
    notice(
        "sticky",
        "learn",
        "each group learns sessions for itself: a client whose connection goes to another group loses its server",
    ),
    notice(
        "lua_shared_dict",
        "",
        "each group has a dictionary of its own, which the others do not see",
    ),
    notice(
        "ssl_session_cache",
        "shared:",
        "each group has a cache of its own; sessions are resumed in all groups by tickets",
    ),
    notice(
        "ssl_ocsp_cache",
        "shared:",
        "each group has a cache of its own",
    ),
    ChangedDirective {
        name: "acme_issuer",
        parameter: "",
        severity: Severity::Emerg,
        text: "does not work with \"worker_groups\": a challenge could arrive at a group that did not ask for it",
    },
    notice(
        "stream",
        "",
        "UDP sockets without \"reuseport\" are read by one group",
    ),
];

/// What `-t` says about the directives of a configuration with this number of groups; once for each of them.
pub(crate) fn diagnostics(nodes: &[DirectiveNode], groups: usize) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    if groups > 1 {
        let mut said = [false; CHANGED.len()];
        look_at(nodes, groups, &mut said, &mut found);
    }
    found
}

fn look_at(
    nodes: &[DirectiveNode],
    groups: usize,
    said: &mut [bool; CHANGED.len()],
    found: &mut Vec<Diagnostic>,
) {
    for node in nodes {
        let is_meant = |changed: &ChangedDirective| {
            let begins = |word: &[u8]| word.starts_with(changed.parameter.as_bytes());
            node.name.text == changed.name
                && (changed.parameter.is_empty() || node.args.iter().any(|arg| begins(&arg.text)))
        };
        // A stream block matters only if it has a UDP socket.
        let has_udp = |nodes: &[DirectiveNode]| nodes.iter().any(is_udp);
        if let Some(at) = CHANGED.iter().position(is_meant)
            && !std::mem::replace(&mut said[at], true)
            && (CHANGED[at].name != "stream" || has_udp(node.block.nodes()))
        {
            let ChangedDirective { name, text, .. } = CHANGED[at];
            let text = format!("\"{name}\" with {groups} worker groups: {text}");
            let mut diagnostic = Diagnostic::warning(text, node.span);
            diagnostic.severity = CHANGED[at].severity;
            found.push(diagnostic);
        }
        look_at(node.block.nodes(), groups, said, found);
    }
}

/// Whether a `listen` for UDP that all loops share is below this node.
fn is_udp(node: &DirectiveNode) -> bool {
    let has = |word: &str| node.args.iter().any(|arg| arg.text == word);
    (node.name.text == "listen" && has("udp") && !has("reuseport"))
        || node.block.nodes().iter().any(is_udp)
}

impl CoreConf {
    /// The number of worker processes.
    pub(crate) fn groups(&self) -> usize {
        match self.master_process {
            true => self.worker_groups.max(1),
            // Nothing would start the others.
            false => 1,
        }
    }

    /// The number of event loops in all worker processes.
    pub(crate) fn loops(&self) -> usize {
        self.worker_processes.max(self.groups())
    }
}

/// The warning about a number of groups that does not have the effect that it seems to have.
pub(crate) fn warning(core: &CoreConf) -> Option<String> {
    if core.worker_groups > 1 && !core.master_process {
        return Some("\"worker_groups\" has no effect without \"master_process\"".to_owned());
    }
    let (loops, said) = (core.loops(), core.worker_processes);
    (loops > said).then(|| {
        format!(
            "each of {loops} \"worker_groups\" has an event loop: {loops} run instead of {said} \"worker_processes\""
        )
    })
}
