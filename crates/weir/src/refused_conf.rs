//! `refuse_directives`: the row, and that its names are those of directives.

use conf::{
    Arity, Diagnostic, Directive, DirectiveLine, MAIN, REFUSE_DIRECTIVES, RepeatRule, Setter,
};

use crate::core_conf::CoreConf;

/// The row of the main context.
pub(crate) const ROW: Directive<CoreConf> = Directive {
    name: REFUSE_DIRECTIVES,
    syntax: "name ...",
    default: None,
    contexts: MAIN,
    since: "0.1",
    doc: "Directives that this configuration must not have, wherever and in whatever file they are; a name can begin with \
          `*`. For configurations that a program writes from what other people ask for, such as an ingress controller: \
          with `refuse_directives root alias *_by_lua_block;` at the top, a line that slipped in is an error, and the \
          former configuration stays in use.",
    set: Setter::Custom(Arity::at_least(1), RepeatRule::Many, check_refused),
};

/// The names were read before all other lines, so that they are only checked here: a name that no directive has would refuse
/// nothing, and its author would believe that it does.
fn check_refused(_: &mut CoreConf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    let tables = line.level.build.tables.iter();
    let rows = tables.flat_map(|table| (0..table.len()).map(|row| table.info(row).name));
    // nginx's directives that Weir has not are known, too: a list for nginx can be used as it is.
    let known: Vec<&str> = rows
        .chain(conf::nginx_directives::all().map(|known| known.name))
        .collect();
    for (n, name) in line.args().iter().enumerate() {
        let name = String::from_utf8_lossy(&name.text);
        conf::check_refused(&name, known.iter().copied())
            .map_err(|problem| line.error_at(n, problem))?;
    }
    Ok(())
}
