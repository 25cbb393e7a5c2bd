//! What a misspelt command line probably meant. Each hint begins with a line break, or is empty.

use conf::spelling::nearest_name;

use crate::commands::{self, CommandRow, OptionRow};

/// Words that other servers have commands or long options for, and the option that does the same.
const WORDS: &[(&str, &str)] = &[
    ("test", "-t"),
    ("validate", "-t"),
    ("configtest", "-t"),
    ("reload", "-s reload"),
    ("stop", "-s stop"),
    ("quit", "-s quit"),
    ("reopen", "-s reopen"),
    ("run", "-g 'daemon off;'"),
    ("start", "-g 'daemon off;'"),
    ("config", "-c FILE"),
    ("configuration", "-c FILE"),
    ("prefix", "-p PREFIX"),
    ("signal", "-s SIGNAL"),
    ("quiet", "-q"),
    ("dump", "-T"),
    ("error-log", "-e FILE"),
];

/// The hint for a word that is nearly one of these.
pub(crate) fn nearest_hint<'a>(
    word: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> String {
    nearest_name(word, candidates).map_or(String::new(), |near| {
        format!("\n  did you mean \"{near}\"?")
    })
}

/// The message for an argument that a command does not take.
pub(crate) fn unexpected(row: &CommandRow, argument: lexopt::Arg) -> String {
    let near = match argument {
        lexopt::Arg::Long(word) => {
            let longs = row.options.iter().filter_map(|option| option.long);
            nearest_name(word, longs)
                .map(|near| format!("--{near}"))
                .or_else(|| letter_of_word(row, word))
        }
        lexopt::Arg::Short(letter) => option_with_letter(row.options, letter),
        lexopt::Arg::Value(_) => None,
    };
    let near = near.map_or(String::new(), |near| {
        format!("\n  did you mean \"{near}\"?")
    });
    format!("{}{near}", argument.unexpected())
}

/// nginx's option for a long word, if the command takes it.
fn letter_of_word(row: &CommandRow, word: &str) -> Option<String> {
    let (_, option) = WORDS.iter().find(|(known, _)| *known == word)?;
    let letter = option.chars().nth(1);
    let is_taken = row
        .options
        .iter()
        .any(|option| option.long.is_none() && option.short == letter);
    is_taken.then(|| (*option).to_owned())
}

/// The only option that begins with this letter: in the other case, or as a long one.
fn option_with_letter(options: &[OptionRow], letter: char) -> Option<String> {
    let begins = |option: &&OptionRow| {
        let first = option
            .short
            .or(option.long.and_then(|word| word.chars().next()));
        first.is_some_and(|first| first.eq_ignore_ascii_case(&letter))
    };
    let mut found = options.iter().filter(begins);
    let only = found.next().filter(|_| found.next().is_none())?;
    only.spellings().pop()
}

/// The hint for an error in nginx's options.
pub(crate) fn nginx_option(error: &str) -> String {
    let word = error
        .strip_prefix("invalid option: \"")
        .and_then(|rest| rest.strip_suffix('"'));
    let Some(word) = word else {
        return String::new();
    };
    if let Some(signal) = word.strip_prefix("-s ") {
        let near = nearest_name(signal, commands::SIGNALS);
        let near = near.map_or(String::new(), |near| format!("did you mean \"{near}\"? "));
        let all = commands::SIGNALS.join(", ");
        return format!("\n  {near}-s takes {all}");
    }
    match word.strip_prefix("--") {
        Some(long) => long_option(long),
        None => letter_or_word(word),
    }
}

/// The hint for a long option before any command.
fn long_option(word: &str) -> String {
    let word = word.split('=').next().unwrap_or_default();
    let takers: Vec<String> = commands::COMMANDS
        .iter()
        .filter(|row| row.options.iter().any(|option| option.long == Some(word)))
        .map(|row| format!("\"weir {}\"", row.name))
        .collect();
    if let Some((_, option)) = WORDS.iter().find(|(known, _)| *known == word) {
        return format!("\n  did you mean \"{option}\"?");
    }
    if !takers.is_empty() {
        let takers = takers.join(" and ");
        return format!("\n  \"--{word}\" is an option of {takers}, and follows the command");
    }
    let own = commands::OWN_OPTIONS
        .iter()
        .filter_map(|option| option.long);
    if let Some(near) = nearest_name(word, own) {
        return format!("\n  did you mean \"--{near}\"?");
    }
    let near = nearest_name(word, WORDS.iter().map(|(known, _)| *known));
    let option = WORDS.iter().find(|(known, _)| Some(*known) == near);
    option.map_or(String::new(), |(_, option)| {
        format!("\n  did you mean \"{option}\"?")
    })
}

/// The hint for an unknown letter, or for a word among nginx's options.
fn letter_or_word(word: &str) -> String {
    let mut letters = word.chars();
    let near = match (letters.next(), letters.next()) {
        (Some(letter), None) => option_with_letter(commands::NGINX_OPTIONS, letter),
        _ => None,
    };
    match near {
        Some(near) => format!("\n  did you mean \"{near}\"?"),
        None if commands::find_command(word).is_some() => {
            format!("\n  a command comes first: weir {word}")
        }
        None => String::new(),
    }
}

/// The message for an unknown command, with a guess at what was meant.
pub(crate) fn unknown_command(word: &str) -> String {
    let hint = if std::path::Path::new(word).is_dir() {
        format!("\n  to serve this directory: weir serve {word}")
    } else if word.ends_with(".conf") {
        format!("\n  to run this configuration: weir -c {word}")
    } else {
        nearest_command(word)
    };
    format!("unknown command \"{word}\"{hint}\n  see \"weir --help\"")
}

fn nearest_command(word: &str) -> String {
    let option_for = |word: &str| WORDS.iter().find(|(known, _)| *known == word);
    if let Some((_, option)) = option_for(word) {
        return format!("\n  that is: weir {option}");
    }
    let names = commands::COMMANDS.iter().map(|row| row.name);
    let words = WORDS.iter().map(|(known, _)| *known);
    let Some(near) = nearest_name(word, names.chain(words)) else {
        return String::new();
    };
    match option_for(near) {
        Some((_, option)) => format!("\n  did you mean \"weir {option}\"?"),
        None => format!("\n  did you mean \"{near}\"?"),
    }
}
