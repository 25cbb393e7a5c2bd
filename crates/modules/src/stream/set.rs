//! `set` in stream: assigns a value to a variable before limits and access rules are applied.
//!
//! ```nginx
//! server {
//!     listen     5432;
//!     set        $backend db;
//!     proxy_pass $backend;
//! }
//! ```

use ::stream::{SessionOutcome, SessionStep, StreamModule, StreamPhase, StreamSession};
use conf::{
    Arity, Diagnostic, Directive, DirectiveLine, DirectiveTable, Expression, RepeatRule,
    STREAM_SERVER, Setter, VarId, VariableDefinition,
};

pub(crate) static MODULE: StreamModule = StreamModule {
    name: "set",
    doc: "Sets variables.",
    server: &DIRECTIVES,
    phases: &[(StreamPhase::Preaccess, run)],
    enabled: |server| !server.confs.get::<Conf>().commands.is_empty(),
    ..StreamModule::EMPTY
};

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::new(&[Directive {
    name: "set",
    syntax: "$variable value",
    default: None,
    contexts: STREAM_SERVER,
    since: "0.1",
    doc: "Sets a variable to a value, which may contain variables.",
    set: Setter::Custom(Arity::exactly(2), RepeatRule::Many, set),
}]);

#[derive(Clone, Default)]
struct Conf {
    commands: Vec<(VarId, Expression)>,
}

/// Reads `set`.
fn set(conf: &mut Conf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    let name = line.variable_name(0)?;
    let registry = line
        .level
        .registry::<StreamSession>()
        .expect("stream's rows stand in stream");
    // A variable that is defined otherwise, such as by a `map`, keeps that definition until it is
    // set; one that only `set` defines is empty until then.
    let variable = if registry.is_defined(name) {
        registry.settable_id(name)
    } else {
        registry.define(
            name,
            VariableDefinition::dynamic(|_: &mut StreamSession, _: &mut Vec<u8>| true),
        )
    };
    let variable = variable.map_err(|message| line.error_at(0, message))?;
    conf.commands.push((variable, line.expression(1)?));
    Ok(())
}

/// The phase handler. The values are evaluated in file order, so one may use those before it.
fn run(session: &mut StreamSession) -> SessionStep<'_> {
    let conf = session.conf::<Conf>();
    for (variable, value) in &conf.commands {
        let value = session.value(value);
        session.set_variable(*variable, &value);
    }
    SessionOutcome::Declined.into()
}
