//! The names of commands and their parameters.

use bstr::{BStr, ByteSlice};

use super::scanner::SsiCommand;

/// The known commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SsiCommandKind {
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

/// The name of a parameter, and whether it is mandatory.
type SsiParameter = (&'static str, bool);

/// nginx's commands and their parameters.
static COMMANDS: &[(&str, SsiCommandKind, &[SsiParameter])] = &[
    (
        "include",
        SsiCommandKind::Include,
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
        SsiCommandKind::Echo,
        &[("var", true), ("default", false), ("encoding", false)],
    ),
    (
        "config",
        SsiCommandKind::Config,
        &[("errmsg", false), ("timefmt", false)],
    ),
    (
        "set",
        SsiCommandKind::Set,
        &[("var", true), ("value", true)],
    ),
    ("if", SsiCommandKind::If, &[("expr", true)]),
    ("elif", SsiCommandKind::Elif, &[("expr", true)]),
    ("else", SsiCommandKind::Else, &[]),
    ("endif", SsiCommandKind::Endif, &[]),
    ("block", SsiCommandKind::Block, &[("name", true)]),
    ("endblock", SsiCommandKind::Endblock, &[]),
];

/// Identifies a command; the error is for the log.
pub(super) fn kind(command: &SsiCommand) -> Result<SsiCommandKind, String> {
    let known = COMMANDS.iter().find(|(name, ..)| command.name == *name);
    known
        .map(|&(_, kind, _)| kind)
        .ok_or_else(|| format!("invalid SSI command: \"{}\"", command.name))
}

/// Checks that a command has all mandatory parameters, no unknown ones and none twice; the error is
/// for the log.
pub(super) fn check(command: &SsiCommand) -> Result<(), String> {
    let SsiCommand { name, parameters } = command;
    let known = COMMANDS
        .iter()
        .find(|(known, ..)| name == *known)
        .map_or(&[][..], |row| row.2);
    // In the order of the page, so that the first mistake is the one reported.
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

impl SsiCommand {
    /// The value of a parameter.
    pub(super) fn get(&self, key: &str) -> Option<&BStr> {
        self.parameters
            .iter()
            .find(|(known, _)| known == key)
            .map(|(_, value)| value.as_bstr())
    }

    /// The value of a parameter that is mandatory, as [`check`] has ensured.
    pub(super) fn value(&self, key: &str) -> &BStr {
        self.get(key).unwrap_or_default()
    }
}
