//! Rows of `upstream` blocks that are the same in http and in stream.

use conf::{Arity, Contexts, Directive, RepeatRule, Setter};
use net::resolver::Resolver;
use net::upstream::LeastConn;

use super::upstream_block::{self, GroupDraft};

/// A row of the block.
const fn row(
    name: &'static str,
    syntax: &'static str,
    doc: &'static str,
    contexts: Contexts,
    set: Setter<GroupDraft>,
) -> Directive<GroupDraft> {
    Directive {
        name,
        syntax,
        default: None,
        contexts,
        since: "0.1",
        doc,
        set,
    }
}

/// `zone`. In nginx the state is only shared between workers with this directive.
pub(crate) const fn zone(contexts: Contexts) -> Directive<GroupDraft> {
    row(
        "zone",
        "name [size]",
        "A name for `api` to show. The state of a group is always shared by all event loops and kept across reloads.",
        contexts,
        Setter::Custom(Arity::between(1, 2), RepeatRule::Once, |draft, line| {
            upstream_block::read_zone(draft, line)
        }),
    )
}

/// `state`.
pub(crate) const fn state(contexts: Contexts) -> Directive<GroupDraft> {
    Directive {
        name: "state",
        syntax: "file",
        default: None,
        contexts,
        since: "0.2",
        doc: "Keeps the servers of the group in a file instead of in `server` lines: what `api` adds, changes and removes \
              is written there, and is there after a reload or a restart. The file need not exist at first. The worker's \
              user must be able to write to its folder.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, upstream_block::read_state),
    }
}

/// `hash`: the same mapping as nginx's, so that keys stay where they are after a migration.
pub(crate) const fn hash(contexts: Contexts) -> Directive<GroupDraft> {
    row(
        "hash",
        "key [consistent]",
        "Chooses the server by a hash of the key. With `consistent` (ketama), adding or removing a server moves only the \
         keys of that server. The mapping of keys to servers is nginx's.",
        contexts,
        Setter::Custom(
            Arity::between(1, 2),
            RepeatRule::Once,
            upstream_block::read_hash,
        ),
    )
}

/// `least_conn`.
pub(crate) const fn least_conn(contexts: Contexts, doc: &'static str) -> Directive<GroupDraft> {
    row(
        "least_conn",
        "",
        doc,
        contexts,
        Setter::Custom(Arity::NONE, RepeatRule::Once, |draft, line| {
            upstream_block::set_method(draft, line, LeastConn);
            Ok(())
        }),
    )
}

/// `resolver`. `server … resolve` needs neither this nor a zone: without one, the system's servers
/// are asked.
pub(crate) const fn resolver(contexts: Contexts, doc: &'static str) -> Directive<GroupDraft> {
    row(
        "resolver",
        "address ... [valid=time] [ipv4=on|off] [ipv6=on|off] [status_zone=zone]",
        doc,
        contexts,
        Setter::Custom(Arity::at_least(1), RepeatRule::Once, |draft, line| {
            draft.resolver = Some(Resolver::from_line(line)?);
            Ok(())
        }),
    )
}

/// `resolver_timeout`.
pub(crate) const fn resolver_timeout(
    contexts: Contexts,
    doc: &'static str,
) -> Directive<GroupDraft> {
    row(
        "resolver_timeout",
        "time",
        doc,
        contexts,
        Setter::Millis(|draft| &mut draft.resolver_timeout),
    )
}
