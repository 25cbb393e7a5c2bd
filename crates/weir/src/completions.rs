//! `weir completions SHELL`: a script that completes weir's command line.
//!
//! The scripts contain the rows of [`crate::commands`] and the names of all directives, and do not run
//! the binary, so completing costs no process. A script fits the version that printed it.

use std::fmt::Write as _;

use crate::commands::{self, CommandRow, OptionRow, ValueKind, WordList};

/// A shell that has completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CompletionShell {
    Bash,
    Zsh,
    Fish,
}

impl CompletionShell {
    /// The shell with this name.
    pub(crate) fn of(name: &str) -> Option<CompletionShell> {
        match name {
            "bash" => Some(CompletionShell::Bash),
            "zsh" => Some(CompletionShell::Zsh),
            "fish" => Some(CompletionShell::Fish),
            _ => None,
        }
    }
}

/// The script for a shell.
pub(crate) fn script(shell: CompletionShell) -> String {
    match shell {
        CompletionShell::Bash => bash(),
        CompletionShell::Zsh => zsh(),
        CompletionShell::Fish => fish(),
    }
}

fn shown_commands() -> impl Iterator<Item = &'static CommandRow> {
    commands::COMMANDS.iter().filter(|row| row.is_shown())
}

/// The options that may stand where no command does.
fn first_options() -> impl Iterator<Item = &'static OptionRow> {
    commands::NGINX_OPTIONS.iter().chain(commands::OWN_OPTIONS)
}

/// A text between single quotes, for all three shells: fish has `\'` within quotes, and the others
/// have not, so a quote becomes what it looks like.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "’"))
}

/// The words of a list, separated by spaces.
fn listed(list: WordList) -> String {
    let words = match list {
        WordList::Kinds => crate::init::kinds(),
        WordList::Rules => crate::check::rule_names(),
        WordList::Directives => crate::reference::directive_names(),
    };
    words.join(" ")
}

/// `_weir` completes by case distinctions: on the command and the word before, which may be an option
/// with a value; then on the number of the argument.
fn bash() -> String {
    let mut values = String::new();
    let mut options = String::new();
    let mut arguments = String::new();
    let no_command = ("", first_options().collect::<Vec<_>>());
    let rows = shown_commands().map(|row| (row.name, row.options.iter().collect()));
    for (name, rows) in std::iter::once(no_command).chain(rows) {
        let spellings: Vec<String> = rows.iter().flat_map(|option| option.spellings()).collect();
        let help = if name.is_empty() { "" } else { " --help" };
        let _ = writeln!(
            options,
            "            {name:?}) words='{}{help}' ;;",
            spellings.join(" ")
        );
        for option in rows {
            let Some(value) = &option.value else { continue };
            let patterns: Vec<String> = option
                .spellings()
                .iter()
                .map(|word| format!("{name}:{word}"))
                .collect();
            let _ = writeln!(
                values,
                "        {}) {} return 0 ;;",
                patterns.join("|"),
                bash_value(value.kind)
            );
        }
    }
    for row in shown_commands() {
        for (at, kind) in row.arguments.iter().enumerate() {
            let _ = writeln!(
                arguments,
                "        {}:{}) {} ;;",
                row.name,
                at + 1,
                bash_value(*kind)
            );
        }
    }
    let names: Vec<&str> = shown_commands().map(|row| row.name).collect();
    BASH.replace("@VALUES@", values.trim_end())
        .replace("@OPTIONS@", options.trim_end())
        .replace("@ARGUMENTS@", arguments.trim_end())
        .replace("@COMMANDS@", &names.join(" "))
}

/// What fills `COMPREPLY` with a value.
fn bash_value(kind: ValueKind) -> String {
    match kind {
        ValueKind::Free => String::new(),
        ValueKind::File => "_weir_paths -f;".to_owned(),
        ValueKind::Directory => "_weir_paths -d;".to_owned(),
        ValueKind::Words(words) => format!("_weir_words '{}';", words.join(" ")),
        ValueKind::List(list) => format!("_weir_words '{}';", listed(list)),
    }
}

const BASH: &str = include_str!("completions/weir.bash");

/// zsh's `_arguments` takes options and arguments as they are described in the help.
fn zsh() -> String {
    let mut cases = String::new();
    for row in shown_commands() {
        let mut specs: Vec<String> = row.options.iter().map(zsh_option).collect();
        specs.push("'--help[show the options]'".to_owned());
        for (at, kind) in row.arguments.iter().enumerate() {
            specs.push(format!("'{}:argument{}'", at + 1, zsh_value(*kind)));
        }
        let _ = writeln!(
            cases,
            "        {})\n            _arguments -s {} ;;",
            row.name,
            specs.join(" \\\n                ")
        );
    }
    let names: Vec<String> = shown_commands()
        .map(|row| quoted(&format!("{}:{}", row.name, row.summary)))
        .collect();
    let options: Vec<String> = first_options().map(zsh_option).collect();
    ZSH.replace("@COMMANDS@", &names.join("\n        "))
        .replace("@CASES@", cases.trim_end())
        .replace("@OPTIONS@", &options.join(" \\\n                "))
}

/// An option for `_arguments`; in the description brackets and colons would have a meaning.
fn zsh_option(option: &OptionRow) -> String {
    let about = option.about.replace('[', "(").replace(']', ")");
    let value = option.value.as_ref().map_or(String::new(), |value| {
        let shown = value.shown.replace(['[', ']'], "").replace(':', "-");
        format!(":{shown}{}", zsh_value(value.kind))
    });
    let rest = quoted(&format!("[{about}]{value}"));
    let spellings = option.spellings();
    match &spellings[..] {
        [one] => format!("{one}{rest}"),
        all => format!("'({})'{{{}}}{rest}", all.join(" "), all.join(",")),
    }
}

fn zsh_value(kind: ValueKind) -> String {
    match kind {
        // A space is an action that completes nothing.
        ValueKind::Free => ": ".to_owned(),
        ValueKind::File => ":_files".to_owned(),
        ValueKind::Directory => ":_files -/".to_owned(),
        ValueKind::Words(words) => format!(":({})", words.join(" ")),
        ValueKind::List(list) => format!(":({})", listed(list)),
    }
}

const ZSH: &str = include_str!("completions/weir.zsh");

/// fish has a line for each option, with the condition under which it is offered.
fn fish() -> String {
    let mut text = String::from(
        "# Completions of weir for fish, printed by: weir completions fish\ncomplete -c weir -f\n",
    );
    for option in first_options() {
        fish_option(&mut text, "__fish_use_subcommand", option);
    }
    for row in shown_commands() {
        let _ = writeln!(
            text,
            "complete -c weir -n __fish_use_subcommand -a {} -d {}",
            row.name,
            quoted(row.summary)
        );
    }
    for row in shown_commands() {
        let seen = format!("'__fish_seen_subcommand_from {}'", row.name);
        for option in row.options {
            fish_option(&mut text, &seen, option);
        }
        let _ = writeln!(
            text,
            "complete -c weir -n {seen} -l help -d 'show the options'"
        );
        for (at, kind) in row.arguments.iter().enumerate() {
            let count = "(count (commandline -opc | string match -v -- '-*'))";
            // A value of an option counts as an argument here, so an only argument is not counted.
            let here = match row.arguments.len() {
                1 => seen.clone(),
                _ => format!(
                    "'__fish_seen_subcommand_from {}; and test {} -eq {}'",
                    row.name,
                    count.replace('\'', "\""),
                    at + 2
                ),
            };
            let values = match kind {
                ValueKind::Free => continue,
                ValueKind::File => "-F".to_owned(),
                ValueKind::Directory => "-a '(__fish_complete_directories)'".to_owned(),
                ValueKind::Words(words) => format!("-a '{}'", words.join(" ")),
                ValueKind::List(list) => format!("-a '{}'", listed(*list)),
            };
            let _ = writeln!(text, "complete -c weir -n {here} {values}");
        }
    }
    text
}

fn fish_option(text: &mut String, condition: &str, option: &OptionRow) {
    let short = option
        .short
        .map_or(String::new(), |letter| format!(" -s {letter}"));
    let long = option
        .long
        .map_or(String::new(), |word| format!(" -l {word}"));
    let value = match option.value.as_ref().map(|value| value.kind) {
        None => String::new(),
        Some(ValueKind::Free) => " -x".to_owned(),
        Some(ValueKind::File) => " -r -F".to_owned(),
        Some(ValueKind::Directory) => " -x -a '(__fish_complete_directories)'".to_owned(),
        Some(ValueKind::Words(words)) => format!(" -x -a '{}'", words.join(" ")),
        Some(ValueKind::List(list)) => format!(" -x -a '{}'", listed(list)),
    };
    let _ = writeln!(
        text,
        "complete -c weir -n {condition}{short}{long}{value} -d {}",
        quoted(option.about)
    );
}
