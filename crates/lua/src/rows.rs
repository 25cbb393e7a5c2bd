//! What the tables of rows in `http` and in `stream` have in common: the spellings of a `*_by_lua` directive, and the
//! descriptions of those that both have.

use conf::{Arity, Contexts, Diagnostic, Directive, DirectiveLine, RepeatRule, Setter};

use crate::chunk::ScriptKind;

pub(crate) const CLIENT_HELLO: &str = "Code that runs when the TLS ClientHello has been read, before a server is \
                          chosen by SNI; it is taken from the default server of the address. `ngx.exit(ngx.ERROR)` \
                          aborts the handshake.";

pub(crate) const CERTIFICATE: &str = "Code that chooses the certificate of a TLS connection with `require \
                         \"ngx.ssl\"`. It runs for each handshake, including resumed ones, and may yield. \
                         `ngx.exit(ngx.ERROR)` aborts the handshake.";

pub(crate) const LOG: &str = "Code that runs in the log phase, after the response has been sent.";

/// A row for code in braces: `*_by_lua_block`. The rows for a string and for a file are the other
/// two spellings.
pub(crate) const fn block_row<C>(
    name: &'static str,
    contexts: Contexts,
    doc: &'static str,
    set: fn(&mut C, &mut DirectiveLine) -> Result<(), Diagnostic>,
) -> Directive<C> {
    Directive {
        name,
        syntax: "{ lua-code }",
        default: None,
        contexts,
        since: "0.1",
        doc,
        set: Setter::Block(Arity::NONE, RepeatRule::Once, set),
    }
}

/// A row for code in a string, `*_by_lua`, or in a file, `*_by_lua_file`.
pub(crate) const fn word_row<C>(
    name: &'static str,
    syntax: &'static str,
    contexts: Contexts,
    set: fn(&mut C, &mut DirectiveLine) -> Result<(), Diagnostic>,
) -> Directive<C> {
    Directive {
        name,
        syntax,
        default: None,
        contexts,
        since: "0.1",
        doc: "Like the directive with `_block`, but with the code in a string or, for `_file`, in a file.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, set),
    }
}

/// A row for a directive of lua-nginx-module that is accepted and means nothing here.
pub(crate) const fn ignored_row<C>(
    name: &'static str,
    contexts: Contexts,
    why: &'static str,
) -> Directive<C> {
    Directive {
        name,
        syntax: "value ...",
        default: None,
        contexts,
        since: "0.1",
        doc: "Accepted; has no effect.",
        set: Setter::Ignored(Arity::ANY, why),
    }
}

/// The kind of script that a directive takes, by its name: the setters of many rows are one
/// function.
pub(crate) fn kind_of(line: &DirectiveLine) -> ScriptKind {
    let name = line.name().to_string();
    // The three spellings of a directive differ in their ends only.
    let stem = name
        .strip_suffix("_block")
        .or_else(|| name.strip_suffix("_file"))
        .unwrap_or(&name);
    [
        ScriptKind::Init,
        ScriptKind::InitWorker,
        ScriptKind::ExitWorker,
        ScriptKind::ServerRewrite,
        ScriptKind::Rewrite,
        ScriptKind::Access,
        ScriptKind::Precontent,
        ScriptKind::Content,
        ScriptKind::HeaderFilter,
        ScriptKind::BodyFilter,
        ScriptKind::Balancer,
        ScriptKind::ClientHello,
        ScriptKind::Certificate,
        ScriptKind::SessionFetch,
        ScriptKind::SessionStore,
        ScriptKind::Preread,
        ScriptKind::Log,
    ]
    .into_iter()
    .find(|kind| kind.name() == stem)
    .unwrap_or(ScriptKind::Content)
}
