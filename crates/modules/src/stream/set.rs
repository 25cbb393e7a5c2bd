//! `set` in stream: gives a variable a value before limits and access are judged.

use ::stream::{Module, Outcome, Phase, Session, Step};
use conf::{
    Arity, Definition, Diagnostic, Directive, Expression, Line, Repeat, STREAM_SERVER, Setter,
    Table, VarId,
};

pub(crate) static MODULE: Module = Module {
    name: "set",
    doc: "Sets variables.",
    server: &DIRECTIVES,
    phases: &[(Phase::Preaccess, run)],
    enabled: |server| !server.confs.get::<Conf>().commands.is_empty(),
    ..Module::EMPTY
};

static DIRECTIVES: Table<Conf> = Table::new(&[Directive {
    name: "set",
    syntax: "$variable value",
    default: None,
    contexts: STREAM_SERVER,
    since: "0.1",
    doc: "Sets a variable to a value, which may contain variables.",
    set: Setter::Custom(Arity::exactly(2), Repeat::Many, set),
}]);

#[derive(Clone, Default)]
struct Conf {
    commands: Vec<(VarId, Expression)>,
}

fn set(conf: &mut Conf, line: &mut Line) -> Result<(), Diagnostic> {
    let name = line.variable_name(0)?;
    let registry = line
        .level
        .registry::<Session>()
        .expect("stream's rows stand in stream");
    // What a map defines stays what it is wherever it is not set. What only `set` makes is empty until then.
    let variable = if registry.is_defined(name) {
        registry.slot(name)
    } else {
        registry.define(
            name,
            Definition::dynamic(|_: &mut Session, _: &mut Vec<u8>| true),
        )
    };
    let variable = variable.map_err(|message| line.error_at(0, message))?;
    conf.commands.push((variable, line.expression(1)?));
    Ok(())
}

fn run(session: &mut Session) -> Step<'_> {
    let conf = session.conf::<Conf>();
    for (variable, value) in &conf.commands {
        let value = session.value(value);
        session.set_variable(*variable, &value);
    }
    Outcome::Declined.into()
}
