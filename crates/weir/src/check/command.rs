//! `weir check`: all findings, as text or as JSON. The exit code tells scripts whether there were
//! any.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::IsTerminal as _;

use conf::{Diagnostic, SourceMap};
use lexopt::prelude::*;

use super::{CheckFinding, RuleDanger, rules};
use crate::arguments::NginxOptions;
use crate::command_hints::unexpected;
use crate::commands;
use crate::json::member;
use crate::terminal;

/// The parsed command line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CheckArguments {
    /// Where the configuration is.
    pub(crate) options: NginxOptions,
    json: bool,
    /// The rule to explain; then nothing is checked.
    explain: Option<String>,
}

/// The names of the rules, and `all`, which `--explain` takes, too.
pub(crate) fn rule_names() -> Vec<&'static str> {
    let names = rules::all().map(|rule| rule.name);
    names.chain(["all"]).collect()
}

/// Reads the arguments after `check`.
pub(crate) fn parse(mut parser: lexopt::Parser) -> Result<CheckArguments, String> {
    let mut options = NginxOptions {
        test: true,
        ..NginxOptions::default()
    };
    let mut json = false;
    let mut explain = None;
    while let Some(argument) = parser.next().map_err(|error| error.to_string())? {
        match argument {
            Long("json") => json = true,
            Long("explain") => {
                explain = Some(value(&mut parser)?.to_string_lossy().into_owned());
            }
            Short('c') => options.configuration = Some(value(&mut parser)?.into()),
            Short('p') => options.prefix = Some(value(&mut parser)?.into()),
            Short('g') => {
                options.globals = Some(value(&mut parser)?.to_string_lossy().into_owned())
            }
            other => return Err(unexpected(&commands::CHECK, other)),
        }
    }
    Ok(CheckArguments {
        options,
        json,
        explain,
    })
}

fn value(parser: &mut lexopt::Parser) -> Result<OsString, String> {
    parser.value().map_err(|error| error.to_string())
}

/// Explains the rule that `--explain` names, if there is one. Returns the exit code.
pub(crate) fn explain(check: &CheckArguments) -> Option<i32> {
    let name = check.explain.as_deref()?;
    let mut known = false;
    for rule in rules::all().filter(|rule| rule.name == name || name == "all") {
        known = true;
        terminal::print_line(format_args!(
            "{} ({}): {}",
            rule.name,
            rule.danger.name(),
            rule.why
        ));
        if name != "all" {
            terminal::print_line(format_args!("\nfix: {}", rule.write));
            terminal::print_line(format_args!("\n  found:      {}", on_one_line(rule.bad)));
            terminal::print_line(format_args!("  not found:  {}", on_one_line(rule.good)));
        }
    }
    if known {
        return Some(0);
    }
    terminal::report_line(format_args!("weir: unknown rule \"{name}\""));
    if let Some(near) = conf::spelling::nearest_name(name, rule_names()) {
        terminal::report_line(format_args!("  did you mean \"{near}\"?"));
    }
    terminal::report_line(format_args!(
        "  \"weir check --explain all\" lists the rules"
    ));
    Some(2)
}

fn on_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Prints the findings, and the errors if the configuration is invalid. Returns the exit code.
pub(crate) fn run(
    check: &CheckArguments,
    errors: &[Diagnostic],
    findings: &[CheckFinding],
    sources: &SourceMap,
    program: &str,
) -> i32 {
    match check.json {
        true => terminal::print_line(format_args!("{}", json(errors, findings, sources))),
        false => text(errors, findings, sources, program),
    }
    match (errors.is_empty(), findings.is_empty()) {
        (false, _) => 2,
        (true, false) => 1,
        (true, true) => 0,
    }
}

/// The findings as text, in the format of the configuration's error messages.
fn text(errors: &[Diagnostic], findings: &[CheckFinding], sources: &SourceMap, program: &str) {
    // NO_COLOR (no-color.org) is respected.
    let colour = |terminal: bool| terminal && std::env::var_os("NO_COLOR").is_none();
    for error in errors {
        let colour = colour(std::io::stderr().is_terminal());
        terminal::report_text(format_args!(
            "{}",
            conf::render_diagnostic(error, sources, program, colour)
        ));
    }
    let mut out = String::new();
    for finding in findings {
        let colour = colour(std::io::stdout().is_terminal());
        let text = conf::render_diagnostic(
            &finding.diagnostic(),
            sources,
            finding.rule.danger.name(),
            colour,
        );
        // The danger replaces the program's name; the level would only repeat it.
        let text = text
            .replacen(": [warn]", ":", 1)
            .replacen(": [notice]", ":", 1);
        let _ = writeln!(out, "{text}");
    }
    let attacks = findings
        .iter()
        .filter(|finding| finding.rule.danger == RuleDanger::Attack)
        .count();
    let file = sources
        .unique_files()
        .first()
        .map(|file| file.path.display());
    let _ = match (findings.len(), file) {
        // What has errors was not all examined.
        (0, _) if !errors.is_empty() => Ok(()),
        (0, Some(file)) => writeln!(out, "nothing found in {file}"),
        (0, None) => writeln!(out, "nothing found"),
        (1, _) => writeln!(out, "1 finding, {attacks} exploitable"),
        (count, _) => writeln!(out, "{count} findings, {attacks} exploitable"),
    };
    terminal::print_text(format_args!("{out}"));
}

/// The findings as JSON. The format is part of the interface: programs read it.
fn json(errors: &[Diagnostic], findings: &[CheckFinding], sources: &SourceMap) -> String {
    let mut out = String::from("{\n  \"errors\": [");
    for (index, error) in errors.iter().enumerate() {
        out.push_str(if index == 0 { "\n    {" } else { ",\n    {" });
        member(&mut out, "message", &error.message, "");
        place(&mut out, error, sources);
        out.push('}');
    }
    out.push_str("],\n  \"findings\": [");
    for (index, finding) in findings.iter().enumerate() {
        out.push_str(if index == 0 { "\n    {" } else { ",\n    {" });
        let rule = finding.rule;
        member(&mut out, "rule", rule.name, "");
        member(&mut out, "danger", rule.danger.name(), ", ");
        member(&mut out, "message", &finding.found.what, ", ");
        place(&mut out, &finding.diagnostic(), sources);
        member(&mut out, "why", rule.why, ", ");
        member(&mut out, "write", rule.write, ", ");
        out.push('}');
    }
    out.push_str("]\n}");
    out
}

/// The place: file, line and column, both from 1, and the text.
fn place(out: &mut String, diagnostic: &Diagnostic, sources: &SourceMap) {
    let Some(span) = diagnostic.span else {
        return;
    };
    if let Some(source) = sources.get(span.file) {
        member(out, "file", &source.path.to_string_lossy(), ", ");
    }
    if let Some((line, column)) = sources.line_column(span) {
        let _ = write!(out, ", \"line\": {line}, \"column\": {column}");
    }
    // The text of an error may contain a key (`data:…`), and JSON is kept and passed on. Findings
    // are at directives that have none.
    if let Some(text) = sources
        .text(span)
        .filter(|text| !text.windows(5).any(|part| part == b"data:"))
    {
        member(out, "text", &text.to_string(), ", ");
    }
}
