//! What the commands are called, and which parameters they take.

use bstr::{BStr, ByteSlice};

use super::scanner::Command;

/// A command that there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Include,
    Echo,
    Config,
    Set,
    If,
    Elif,
    Else,
    Endif,
    Block,
    Endblock,
}

/// A parameter, and whether the command makes no sense without it.
type Parameter = (&'static str, bool);

static COMMANDS: &[(&str, Kind, &[Parameter])] = &[
    (
        "include",
        Kind::Include,
        &[
            ("virtual", false),
            ("file", false),
            ("wait", false),
            ("set", false),
            ("stub", false),
        ],
    ),
    (
        "echo",
        Kind::Echo,
        &[("var", true), ("default", false), ("encoding", false)],
    ),
    (
        "config",
        Kind::Config,
        &[("errmsg", false), ("timefmt", false)],
    ),
    ("set", Kind::Set, &[("var", true), ("value", true)]),
    ("if", Kind::If, &[("expr", true)]),
    ("elif", Kind::Elif, &[("expr", true)]),
    ("else", Kind::Else, &[]),
    ("endif", Kind::Endif, &[]),
    ("block", Kind::Block, &[("name", true)]),
    ("endblock", Kind::Endblock, &[]),
];

/// The kind of a command; the error is for the log.
pub(super) fn kind(command: &Command) -> Result<Kind, String> {
    let known = COMMANDS.iter().find(|(name, ..)| command.name == *name);
    known
        .map(|&(_, kind, _)| kind)
        .ok_or_else(|| format!("invalid SSI command: \"{}\"", command.name))
}

/// Whether a command has the parameters that it must have, and no others; the error is for the log.
pub(super) fn check(command: &Command) -> Result<(), String> {
    let Command { name, parameters } = command;
    let known = COMMANDS
        .iter()
        .find(|(known, ..)| name == *known)
        .map_or(&[][..], |row| row.2);
    for (index, (key, _)) in parameters.iter().enumerate() {
        if parameters[..index]
            .iter()
            .any(|(earlier, _)| earlier == key)
        {
            return Err(format!(
                "duplicate \"{key}\" parameter in \"{name}\" SSI command"
            ));
        }
        if !known.iter().any(|(parameter, _)| key == *parameter) {
            return Err(format!(
                "invalid parameter name: \"{key}\" in \"{name}\" SSI command"
            ));
        }
    }
    match known
        .iter()
        .find(|(parameter, needed)| *needed && command.get(parameter).is_none())
    {
        Some((missing, _)) => Err(format!(
            "mandatory \"{missing}\" parameter is absent in \"{name}\" SSI command"
        )),
        None => Ok(()),
    }
}

impl Command {
    /// The value of a parameter.
    pub(super) fn get(&self, key: &str) -> Option<&BStr> {
        self.parameters
            .iter()
            .find(|(known, _)| known == key)
            .map(|(_, value)| value.as_bstr())
    }

    /// The value of a parameter that [`check`] found.
    pub(super) fn value(&self, key: &str) -> &BStr {
        self.get(key).unwrap_or_default()
    }
}
