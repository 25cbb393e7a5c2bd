//! `weir man PAGE`: the manual pages weir(8) and weir.conf(5), for the packages.
//!
//! Commands, options and directives come from the same tables as the help. What only a manual page says (files, signals, exit
//! codes) is text in `man/`, with `@MARKS@` where the tables go. The pages are written in man(7), which every `man` reads.

use std::fmt::Write as _;

use conf::describe;

use crate::commands::{self, CommandRow, OptionRow};
use crate::directive_notes;
use crate::reference::{self, ReferencePage};
use crate::terminal;

/// The names of the pages.
pub(crate) const PAGES: [&str; 2] = ["weir.8", "weir.conf.5"];

/// Prints a page. Returns the exit code.
pub(crate) fn print(name: &str) -> i32 {
    let text = match name {
        "weir.8" => PROGRAM
            .replace("@OPTIONS@", &options(commands::NGINX_OPTIONS))
            .replace("@COMMANDS@", &all_commands())
            .replace("@SYNOPSIS@", &synopsis()),
        "weir.conf.5" => FILE.replace("@DIRECTIVES@", &all_directives()),
        _ => {
            let pages = PAGES.join(" and ");
            terminal::report_line(format_args!(
                "weir: no manual page \"{name}\"; there are {pages}"
            ));
            return 1;
        }
    };
    let text = text.replace("@VERSION@", env!("CARGO_PKG_VERSION"));
    terminal::print_text(format_args!("{text}"));
    0
}

const PROGRAM: &str = include_str!("man/weir.8");
const FILE: &str = include_str!("man/weir.conf.5");

/// A text of ours as man(7) wants it: what it would take for a request is escaped.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    let line = |line: &str| match line.starts_with(['.', '\'']) {
        true => format!("\\&{line}"),
        false => line.to_owned(),
    };
    let lines: Vec<String> = text.lines().map(line).collect();
    lines.join("\n")
}

/// A text in Markdown: code becomes bold, a link its text.
fn formatted(text: &str) -> String {
    let mut out = String::new();
    for (index, part) in text.split('`').enumerate() {
        match index % 2 {
            0 => out.push_str(&escaped(&without_links(part))),
            _ => {
                let _ = write!(out, "\\fB{}\\fR", escaped(part));
            }
        }
    }
    out.replace("**", "")
}

/// `[text](address)` is `text`.
fn without_links(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('[') {
        let link = after
            .split_once("](")
            .filter(|(label, _)| !label.contains(']'))
            .and_then(|(label, after)| Some((label, after.split_once(')')?.1)));
        match link {
            Some((label, after)) => {
                out.extend([before, label]);
                rest = after;
            }
            None => {
                out.extend([before, "["]);
                rest = after;
            }
        }
    }
    out + rest
}

/// The usage lines of all commands.
fn synopsis() -> String {
    let mut out = String::new();
    for row in shown_commands() {
        for line in row.usage.iter().filter(|line| !line.starts_with('-')) {
            let (name, rest) = line.split_once(' ').unwrap_or((line, ""));
            let _ = writeln!(out, ".br\n.B weir {name}\n{}", escaped(rest));
        }
    }
    // An empty line is a line on the page.
    out.replace("\n\n", "\n")
}

fn shown_commands() -> impl Iterator<Item = &'static CommandRow> {
    commands::COMMANDS.iter().filter(|row| row.is_shown())
}

/// Options, each with its description.
fn options(rows: &[OptionRow]) -> String {
    let mut out = String::new();
    for row in rows {
        let spellings: Vec<String> = row
            .spellings()
            .iter()
            .map(|spelling| format!("\\fB{}\\fR", escaped(spelling)))
            .collect();
        let value = row.value.as_ref().map_or(String::new(), |value| {
            format!(" \\fI{}\\fR", escaped(value.shown))
        });
        let _ = writeln!(
            out,
            ".TP\n{}{value}\n{}",
            spellings.join(", "),
            escaped(row.about)
        );
    }
    out
}

/// All commands with their options. Their texts are laid out for a terminal, and stay as they are.
fn all_commands() -> String {
    let mut out = String::new();
    for row in shown_commands().filter(|row| !row.usage[0].starts_with('-')) {
        let _ = writeln!(
            out,
            ".SS \"weir {}\"\n{}.",
            row.name,
            escaped(&sentence(row.summary))
        );
        out.push_str(&paragraph(row.about));
        out.push_str(&options(row.options));
        out.push_str(&paragraph(row.notes));
    }
    out
}

/// A summary with a capital letter.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string());
    first.unwrap_or_default() + letters.as_str()
}

/// Lines as they are.
fn paragraph(text: &str) -> String {
    match text.trim_end() {
        "" => String::new(),
        text => format!(".PP\n.nf\n{}\n.fi\n", escaped(text)),
    }
}

/// All directives by module, with their variables.
fn all_directives() -> String {
    let mut out = String::new();
    for page in reference::pages() {
        let rows = describe::rows(page.tables.iter().copied());
        if rows.is_empty() && page.variables.is_empty() {
            continue;
        }
        let _ = writeln!(
            out,
            ".SH {}\n{}",
            page.name.to_uppercase(),
            formatted(page.about)
        );
        for row in rows {
            let _ = writeln!(
                out,
                ".SS \"{}\"",
                escaped(&describe::syntax_line(&row)).replace('"', "\\(dq")
            );
            let default = row.default.unwrap_or("none");
            let _ = writeln!(
                out,
                "Default: {}. Context: {}.\n.PP\n{}",
                escaped(default),
                row.contexts.text(),
                formatted(row.doc)
            );
            if let conf::SetterKind::Ignored(why) = row.kind {
                let _ = writeln!(out, "Accepted without effect: {}", formatted(why));
            }
            out.push_str(&example(&page, row.name));
        }
        out.push_str(&variables(&page));
    }
    out
}

fn example(page: &ReferencePage, name: &str) -> String {
    let note = directive_notes::of(name, page).unwrap_or_default();
    if note.example.is_empty() {
        return String::new();
    }
    format!(".PP\n.RS\n.nf\n{}\n.fi\n.RE\n", escaped(&note.example))
}

fn variables(page: &ReferencePage) -> String {
    let mut out = String::new();
    for variable in &page.variables {
        let (name, doc) = (escaped(&variable.shown_name()), formatted(variable.doc));
        let _ = writeln!(out, ".TP\n.B {name}\n{doc}");
    }
    match out.is_empty() {
        true => out,
        false => format!(".SS Variables\n{out}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped() {
        assert_eq!(
            escaped(".git and\n'x' \\d -t"),
            "\\&.git and\n\\&'x' \\ed \\-t"
        );
        assert_eq!(
            formatted("See `a-b` and [there](x.md)."),
            "See \\fBa\\-b\\fR and there."
        );
        assert_eq!(without_links("[cookie [flag …]]"), "[cookie [flag …]]");
    }
}
