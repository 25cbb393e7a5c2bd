//! The program's help: `-h`, `--help`, `weir help NAME`.
//!
//! Commands and options come from the rows in [`commands`], directives and variables from their
//! tables, so the help cannot disagree with what the parser accepts.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::process::{Command, Stdio};

use conf::describe::{self, WIDTH};

use crate::arguments::HelpArguments;
use crate::commands::{self, CommandRow, OptionRow};
use crate::directive_notes;
use crate::identity::ProgramIdentity;
use crate::reference;
use crate::status_help;
use crate::terminal;

/// The text of `-h` and `-?`, after the version line: nginx's options in nginx's order.
pub(crate) fn options_text(identity: ProgramIdentity) -> String {
    let program = identity.program();
    let defaults = |letter| match (letter, identity) {
        ('p', _) => " (default: /etc/nginx)",
        ('e', _) => " (default: /var/log/nginx/error.log)",
        ('c', ProgramIdentity::Weir) => {
            " (default: /etc/weir/weir.conf, else /etc/nginx/nginx.conf)"
        }
        ('c', ProgramIdentity::Nginx) => " (default: /etc/nginx/nginx.conf)",
        _ => "",
    };
    let line = |row: &OptionRow| {
        let letter = row.short.unwrap_or_default();
        let value = row.value.as_ref().map_or("", |value| value.shown);
        let head = match letter {
            'h' => "-?,-h".to_owned(),
            _ => format!("-{letter} {value}"),
        };
        format!("  {head:<13} : {}{}\n", row.about, defaults(letter))
    };
    let options: String = commands::NGINX_OPTIONS.iter().map(line).collect();
    let subcommands = match identity {
        ProgramIdentity::Weir => "\nSee \"weir --help\" for Weir's own commands.\n\n",
        ProgramIdentity::Nginx => "\n",
    };
    format!(
        "Usage: {program} [-?hvVtTq] [-s signal] [-p prefix]
             [-e filename] [-c filename] [-g directives]

Options:
{options}{subcommands}"
    )
}

/// A line of `weir --help`.
enum UsageLine {
    /// A command, in the words of its row.
    Command(&'static CommandRow),
    /// Options, and what they do.
    Options(&'static str, &'static str),
}

/// The paragraphs of `weir --help` that list commands.
const USAGE_GROUPS: &[(&str, &[UsageLine])] = &[
    (
        "Without a configuration file:",
        &[
            UsageLine::Command(&commands::SERVE),
            UsageLine::Command(&commands::PROXY),
        ],
    ),
    (
        "With a configuration file (same options as nginx, see `weir -h`):",
        &[
            UsageLine::Options("", "run /etc/weir/weir.conf, or else /etc/nginx/nginx.conf"),
            UsageLine::Options(
                "-c FILE",
                "run FILE; add -g 'daemon off;' to stay in the foreground",
            ),
            UsageLine::Options(
                "-t [-c FILE]",
                "test the configuration and report every error",
            ),
            UsageLine::Command(&commands::INIT),
            UsageLine::Command(&commands::CHECK),
            UsageLine::Command(&commands::EXPLAIN),
            UsageLine::Command(&commands::FMT),
            UsageLine::Command(&commands::LSP),
            UsageLine::Options("-s SIGNAL", "stop, quit, reopen or reload a running server"),
            UsageLine::Command(&commands::UPGRADE),
            UsageLine::Command(&commands::CACHE),
            UsageLine::Command(&commands::TAIL),
            UsageLine::Command(&commands::TOP),
        ],
    ),
    (
        "On a machine that runs nginx:",
        &[
            UsageLine::Command(&commands::SHADOW),
            UsageLine::Command(&commands::CANARY),
            UsageLine::Command(&commands::TAKEOVER),
            UsageLine::Command(&commands::UNIT),
        ],
    ),
    (
        "Help:",
        &[
            UsageLine::Command(&commands::HELP),
            UsageLine::Options("help tls", "about ciphers, protocols and certificates"),
            UsageLine::Options("COMMAND --help", "the options of one of these commands"),
            UsageLine::Command(&commands::COMPLETIONS),
            UsageLine::Options("--version", ""),
        ],
    ),
];

/// The text of `--help`.
pub(crate) fn usage() -> String {
    let mut text = String::from(
        "Weir is a web server and caching reverse proxy. It reads your existing nginx.conf.\n",
    );
    for (heading, lines) in USAGE_GROUPS {
        let parts = |line: &UsageLine| match line {
            UsageLine::Command(row) => (row.synopsis, row.summary),
            UsageLine::Options(synopsis, about) => (*synopsis, *about),
        };
        let lengths = lines.iter().map(|line| parts(line).0.len());
        let width = lengths.max().unwrap_or_default() + 2;
        let _ = writeln!(text, "\n{heading}");
        for line in *lines {
            let (synopsis, about) = parts(line);
            let line = format!("  weir {synopsis:<width$}{about}");
            let _ = writeln!(text, "{}", line.trim_end());
        }
    }
    text.push_str(EXAMPLES);
    text
}

/// The end of `weir --help`.
const EXAMPLES: &str = "
Examples:
  weir serve ./public --port 3000
  weir proxy https://example.org
  weir init proxy app.conf && weir -t -c app.conf && weir -c app.conf
";

/// The page of a command, if it has one.
pub(crate) fn usage_of(command: &str) -> Option<String> {
    match command {
        "help" | "version" => Some(usage()),
        _ => commands::find_command(command).map(CommandRow::page),
    }
}

/// `weir help tls`: background that is too long for a warning.
const TLS: &str = include_str!("help_tls.txt");

/// The only directive without a row: the parser itself handles it.
const INCLUDE: &str = "include file | mask;
  context: any
  since:   0.1

Includes another file, or all files that match a mask, at this point. A relative path is resolved against the
directory of the configuration file.
";

/// `weir help [NAME]`. Returns the exit code.
pub(crate) fn help(arguments: &HelpArguments) -> i32 {
    let Some(name) = arguments.name.as_deref() else {
        arguments.show(&format!("{}\n{}", usage(), directive_list()));
        return 0;
    };
    // Users paste whole lines of their files.
    let word = name.split_whitespace().next().unwrap_or_default();
    let name = word.trim_end_matches(';');
    match page_about(name) {
        Some(text) => {
            arguments.show(&text);
            0
        }
        None => {
            report_unknown(name);
            1
        }
    }
}

/// What there is about a name: a directive, a variable, a status, a command.
fn page_about(name: &str) -> Option<String> {
    if let Some(variable) = name.strip_prefix('$') {
        return variable_help(variable);
    }
    if let Some(text) = name.parse().ok().and_then(status_help::of) {
        return Some(text);
    }
    match name {
        "tls" => return Some(TLS.to_owned()),
        "include" => return Some(format!("{INCLUDE}{}", directive_notes::in_help(name))),
        _ => {}
    }
    let directive = describe::directive_help(name, &reference::directives());
    match directive {
        Some(text) => Some(format!("{text}{}", directive_notes::in_help(name))),
        None => commands::find_command(name)
            .filter(|row| row.is_shown())
            .and_then(|row| usage_of(row.name)),
    }
}

/// How many names are suggested for a misspelt one.
const SUGGESTIONS: usize = 3;

/// Says what is not known, and what was probably meant.
fn report_unknown(name: &str) {
    if name.parse::<u16>().is_ok() {
        terminal::report_line(format_args!("weir: no help for the status {name}"));
        return;
    }
    let variables = reference::variable_names();
    let kind = if name.starts_with('$') {
        "variable"
    } else {
        "directive"
    };
    terminal::report_line(format_args!("weir: unknown {kind} \"{name}\""));
    let bare = name.trim_start_matches('$');
    let rows = reference::directives();
    let nginx = conf::nginx_directives::all().map(|known| known.name);
    let directives: Vec<&str> = rows.iter().map(|row| row.name).chain(nginx).collect();
    let mut meant: Vec<String> = Vec::new();
    if kind == "directive" {
        let near = conf::spelling::nearest_names(bare, directives.iter().copied(), SUGGESTIONS);
        meant.extend(near.into_iter().map(str::to_owned));
    }
    // A variable is easily written without its dollar sign, which a shell takes for itself.
    let exact = variables.iter().copied().find(|known| *known == bare);
    let near = conf::spelling::nearest_names(bare, variables, SUGGESTIONS);
    if kind == "variable" || meant.is_empty() || exact.is_some() {
        let names = exact.into_iter().chain(near);
        meant.extend(names.map(|name| format!("'${name}'")));
    }
    meant.truncate(SUGGESTIONS);
    for name in &meant {
        let shown = name.trim_matches('\'');
        terminal::report_line(format_args!("  did you mean \"{shown}\"? weir help {name}"));
    }
    let mut within: Vec<&str> = directives;
    within.retain(|known| known.contains(bare));
    within.sort_unstable();
    within.dedup();
    if meant.is_empty() && bare.len() > 2 && !within.is_empty() {
        let names = describe::wrap_text(&within.join("  "), "  ", WIDTH);
        terminal::report_line(format_args!(
            "directives with \"{bare}\" in their names:\n{names}"
        ));
    }
}

impl HelpArguments {
    /// Prints a text, through a pager if this is a terminal and nothing forbids it.
    fn show(&self, text: &str) {
        let is_paged = !self.no_pager && std::io::stdout().is_terminal();
        if !is_paged || !run_pager(text).is_ok_and(|status| status.success()) {
            terminal::print_text(format_args!("{text}"));
        }
    }
}

/// Runs the pager as git and man do: `$PAGER`, or `less`. With `FRX` it exits by itself if the text
/// fits on the screen, and leaves the text there.
fn run_pager(text: &str) -> std::io::Result<std::process::ExitStatus> {
    let pager = std::env::var("PAGER")
        .ok()
        .filter(|pager| !pager.is_empty());
    let mut pager = Command::new("/bin/sh")
        .args(["-c", pager.as_deref().unwrap_or("less")])
        .env(
            "LESS",
            std::env::var_os("LESS").unwrap_or_else(|| "FRX".into()),
        )
        .stdin(Stdio::piped())
        .spawn()?;
    if let Some(mut input) = pager.stdin.take() {
        let _ = input.write_all(text.as_bytes());
    }
    pager.wait()
}

/// `weir help $NAME`: all variables with this name, or the family that it belongs to, such as
/// `$http_`.
fn variable_help(name: &str) -> Option<String> {
    let mut text = String::new();
    for page in reference::pages() {
        let is_meant = |variable: &&describe::VariableInfo| match variable.family {
            true => name.starts_with(variable.name),
            false => name == variable.name,
        };
        for variable in page.variables.iter().filter(is_meant) {
            let space = if text.is_empty() { "" } else { "\n" };
            let (name, module) = (variable.shown_name(), &page.name);
            let doc = describe::wrap_text(variable.doc, "", WIDTH);
            let _ = writeln!(text, "{space}{name}\n  module: {module}\n\n{doc}");
        }
    }
    (!text.is_empty()).then_some(text)
}

/// All directives by module. Modules without directives are left out.
fn directive_list() -> String {
    let mut text = String::from("Directives:\n");
    for page in reference::pages() {
        let rows = describe::rows(page.tables.iter().copied());
        let names: Vec<&str> = rows.iter().map(|row| row.name).collect();
        if !names.is_empty() {
            let names = describe::wrap_text(&names.join("  "), "  ", WIDTH);
            let _ = writeln!(text, "\n{}\n{names}", page.name);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_fits_a_terminal() {
        assert!(directive_list().lines().all(|line| line.len() <= 80));
    }
}
