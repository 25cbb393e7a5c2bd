//! What the engine's own directives of http and of stream have in common: rows, and setters of rows that differ in
//! their texts only. `listen` is in [`crate::endpoint`], `server_name` in [`crate::server_name`], `resolver` in
//! [`crate::resolver`].

use conf::{Arity, Contexts, Diagnostic, Directive, DirectiveLine, RepeatRule, Setter};
use host::error_log::{ErrorLogTarget, LogFiles, Logger};

/// The sizes of nginx's hash tables. They have no effect, so nothing is kept of them.
#[derive(Clone, Debug, Default)]
pub struct HashSizes;

/// Their rows.
pub const fn hash_sizes(contexts: Contexts) -> [Directive<HashSizes>; 4] {
    const NAMES: &str = "Accepted; the table of server names sizes itself.";
    const VARIABLES: &str = "Accepted; the table of variables sizes itself.";
    [
        hash_size("server_names_hash_max_size", NAMES, contexts),
        hash_size("server_names_hash_bucket_size", NAMES, contexts),
        hash_size("variables_hash_max_size", VARIABLES, contexts),
        hash_size("variables_hash_bucket_size", VARIABLES, contexts),
    ]
}

const fn hash_size(
    name: &'static str,
    doc: &'static str,
    contexts: Contexts,
) -> Directive<HashSizes> {
    Directive {
        name,
        syntax: "size",
        default: None,
        contexts,
        since: "0.1",
        doc,
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, |_, line| {
            line.number(0, 0, i64::MAX).map(drop)
        }),
    }
}

/// Reads an `error_log` line: one more place that `log` writes to.
pub fn error_log(log: &mut Logger, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    let words: Vec<&[u8]> = line.args().iter().map(|word| &**word.text).collect();
    let prefix = line.level.build.in_prefix(conf::PathUse::Opened, "");
    let target = ErrorLogTarget::parse(&words, &prefix).map_err(|message| line.error(message))?;
    *log = log.with_target(target, line.lasting::<LogFiles>());
    Ok(())
}
