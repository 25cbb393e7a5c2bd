//! The program's help: `-h`, `--help`, `weir help DIRECTIVE`, and the reference pages.
//!
//! Commands and options come from the rows in [`commands`], directives and variables from their
//! tables, so the help cannot disagree with what the parser accepts.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use conf::describe::{self, DirectiveSupport, WIDTH};

use crate::commands::{self, CommandRow, OptionRow};
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

/// `weir help [DIRECTIVE]`. Returns the exit code.
pub(crate) fn help(name: Option<&str>) -> i32 {
    let Some(name) = name else {
        show_paged(&format!("{}\n{}", usage(), directive_list()));
        return 0;
    };
    let directives = reference::directives();
    if name == "tls" {
        terminal::print_text(format_args!("{TLS}"));
        return 0;
    }
    // Users paste whole lines of their files.
    let name = name.trim_end_matches(';');
    if let Some(variable) = name.strip_prefix('$') {
        return help_variable(variable);
    }
    if let Some(text) = name.parse().ok().and_then(status_help::of) {
        terminal::print_text(format_args!("{text}"));
        return 0;
    }
    if name == "include" {
        terminal::print_text(format_args!("{INCLUDE}"));
        return 0;
    }
    if let Some(text) = describe::directive_help(name, &directives) {
        terminal::print_text(format_args!("{text}"));
        return 0;
    }
    if name.parse::<u16>().is_ok() {
        terminal::report_line(format_args!("weir: no help for the status {name}"));
        return 1;
    }
    terminal::report_line(format_args!("weir: unknown directive \"{name}\""));
    let known = conf::nginx_directives::all().map(|known| known.name);
    if let Some(near) =
        conf::spelling::nearest_name(name, directives.iter().map(|row| row.name).chain(known))
    {
        terminal::report_line(format_args!("  did you mean \"{near}\"? weir help {near}"));
    }
    1
}

/// Prints a long text, through a pager if this is a terminal.
fn show_paged(text: &str) {
    let is_shown =
        std::io::stdout().is_terminal() && run_pager(text).is_ok_and(|status| status.success());
    if !is_shown {
        // A reader that closes the pipe has seen enough.
        let _ = std::io::stdout().write_all(text.as_bytes());
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
fn help_variable(name: &str) -> i32 {
    let mut found = false;
    for page in reference::pages() {
        let is_meant = |variable: &&describe::VariableInfo| match variable.family {
            true => name.starts_with(variable.name),
            false => name == variable.name,
        };
        for variable in page.variables.iter().filter(is_meant) {
            found = true;
            terminal::print_line(format_args!(
                "{}\n  module: {}\n",
                variable.shown_name(),
                page.name
            ));
            terminal::print_line(format_args!(
                "{}\n",
                describe::wrap_text(variable.doc, "", WIDTH)
            ));
        }
    }
    if !found {
        terminal::report_line(format_args!("weir: unknown variable \"${name}\""));
        if let Some(near) = conf::spelling::nearest_name(name, reference::variable_names()) {
            terminal::report_line(format_args!(
                "  did you mean \"${near}\"? weir help '${near}'"
            ));
        }
    }
    i32::from(!found)
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

/// Writes a reference page per module, and the list of nginx's directives, to `directory`. Returns
/// the exit code.
pub(crate) fn write_reference(directory: &Path) -> i32 {
    let written = std::fs::create_dir_all(directory).and_then(|()| {
        reference::pages().iter().try_for_each(|page| {
            let rows = describe::rows(page.tables.iter().copied());
            let text = describe::reference_page(&page.name, page.about, &rows, &page.variables);
            std::fs::write(
                directory.join(format!("{}.md", page.name.replace(['/', ' '], "-"))),
                text,
            )
        })?;
        std::fs::write(directory.join("README.md"), index())?;
        std::fs::write(directory.join("compatibility.md"), compatibility())
    });
    match written {
        Ok(()) => 0,
        Err(error) => {
            terminal::report_line(format_args!(
                "weir: could not write to {}: {error}",
                directory.display()
            ));
            1
        }
    }
}

/// The first line of each page: edits there would be lost.
const GENERATED: &str = "<!-- Written by `weir reference`; edit the rows in the source. -->\n";

fn index() -> String {
    let mut text = format!("{GENERATED}# Reference\n\n");
    for page in reference::pages() {
        let file = page.name.replace(['/', ' '], "-");
        let _ = writeln!(text, "- [{}]({file}.md): {}", page.name, page.about);
    }
    text.push_str(
        "- [compatibility](compatibility.md): how Weir treats each directive of nginx.\n",
    );
    text
}

/// The list of nginx's directives, with what Weir does about each. It is derived from the tables,
/// so it cannot be outdated.
fn compatibility() -> String {
    let support = describe::compatibility(&reference::directives());
    let done = support
        .values()
        .filter(|support| **support != DirectiveSupport::No)
        .count();
    let mut text = format!(
        "{GENERATED}# Compatibility with nginx 1.31\n\nWeir accepts {done} of nginx's {} directives.\n\n| directive | Weir |\n|---|---|\n",
        support.len()
    );
    for (name, support) in support {
        let what = match support {
            DirectiveSupport::Yes => "yes".to_owned(),
            DirectiveSupport::NotIn(contexts) => format!("yes, but not in: {}", contexts.text()),
            DirectiveSupport::Ignored(why) => format!("accepted without effect: {why}"),
            DirectiveSupport::No => "not yet".to_owned(),
        };
        let _ = writeln!(text, "| `{name}` | {what} |");
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
