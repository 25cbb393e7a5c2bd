//! The answer of `weir explain`: text for an operator, JSON for programs.
//!
//! The text has one line for each step, with the place at its end, so that a reader can follow either column. What a value
//! contains is made visible: it may come from the URL, and must not command the terminal.
//!
//! The JSON is one object. Members that do not concern a request are left out; programs must expect new ones:
//!
//! ```text
//! method, url           the question
//! address               name, why, file, line: where the client connects
//! server                the same: the virtual server
//! location              the same: where the request ended
//! steps                 in their order, each with
//!   step                its kind: location, rewrite, set, if, return, try_files, access, cache, header, …
//!   result              applies, passes, not run
//!   text                in words of the configuration
//!   file, line          the directive; absent for a default
//! cache                 zone, key, use (lookup, bypass, invalidate, purge, none), no_cache
//! upstream              name, scheme, method, peer, file, line
//!   servers             server, addresses, file, line
//!   request             name and value of each field; a line without a name is the request line
//!   body_length         bytes that follow
//! response              status, file, location, type, headers: only if it is the server's own
//! log                   the lines that the server would write
//! depends_on            what was not run, and what the rest therefore depends on; empty for certainty
//! live                  what the running server says
//! ```

use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};

use host::error_log::LogLevel;
use http::explain::{
    ExplainQuestion, ExplainedCacheUse, ExplainedChoice, ExplainedPlace, ExplainedStep,
    Explanation, StepResult,
};

use super::live::LiveAnswer;
use super::shown;
use crate::json::{member, string};
use crate::terminal;

/// What was asked.
pub(super) struct ExplainedRequest<'a> {
    /// The request.
    pub(super) question: &'a ExplainQuestion,
    /// The URL as the user wrote it.
    pub(super) url: &'a str,
    /// The directory of the configuration, which is left out of the names of its files.
    pub(super) folder: PathBuf,
    /// What the server would log.
    pub(super) lines: Vec<(LogLevel, String)>,
}

/// Where places begin, if the text before them is not longer.
const PLACE_COLUMN: usize = 72;

/// The width of the column with the kinds of steps.
const KIND_WIDTH: usize = 12;

/// A page of lines, each with a place at its end.
struct ReportPage {
    /// All lines so far; written at once, so that a pager shows whole pages.
    out: String,
    /// Only for terminals: a file or a pipe gets no escape sequences.
    colour: bool,
    /// What is left out of the names of files.
    folder: PathBuf,
}

/// How a line looks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LineLook {
    /// The heads of parts.
    Bold,
    /// What decides.
    Plain,
    /// What was considered.
    Dim,
    /// What only the running server knows.
    Open,
}

impl LineLook {
    /// The sequences of SGR (ECMA-48, section 8.3.117).
    fn start(self) -> &'static str {
        match self {
            LineLook::Bold => "\x1b[1m",
            LineLook::Plain => "",
            LineLook::Dim => "\x1b[2m",
            LineLook::Open => "\x1b[33m",
        }
    }
}

impl ReportPage {
    /// A line: a sign, a kind, a text, a place.
    fn line(
        &mut self,
        (sign, kind): (&str, &str),
        text: &str,
        place: Option<&ExplainedPlace>,
        look: LineLook,
    ) {
        let line = match kind.chars().count() > KIND_WIDTH {
            true => format!("{sign} {kind} {text}"),
            false => format!("{sign} {kind:<KIND_WIDTH$} {text}"),
        };
        let line = line.trim_end();
        let place = place.map(|place| self.place(place));
        let blanks = match place {
            Some(_) => (PLACE_COLUMN.saturating_sub(line.chars().count())).max(2),
            None => 0,
        };
        let place = place.unwrap_or_default();
        let _ = match self.colour {
            true => writeln!(
                self.out,
                "{}{line}\x1b[0m{:blanks$}\x1b[36m{place}\x1b[0m",
                look.start(),
                ""
            ),
            false => writeln!(self.out, "{line}{:blanks$}{place}", ""),
        };
    }

    /// The file and the line as a reader of this configuration would name them.
    fn place(&self, place: &ExplainedPlace) -> String {
        if place.file.as_os_str().is_empty() {
            return "-g".to_owned();
        }
        let file = place.file.strip_prefix(&self.folder).unwrap_or(&place.file);
        format!("{}:{}", file.display(), place.line)
    }

    /// A choice with its reason, which is what the question is mostly about.
    fn choice(&mut self, kind: &str, choice: &ExplainedChoice) {
        let name = match choice.name.is_empty() {
            true => "\"\"".to_owned(),
            false => shown(&choice.name),
        };
        let text = format!("{name}  ({})", choice.why);
        self.line(("→", kind), &text, choice.place.as_ref(), LineLook::Plain);
    }

    /// The head of a part, with an empty line above it.
    fn head(&mut self, text: &str) {
        self.out.push('\n');
        let _ = match self.colour {
            true => writeln!(self.out, "{}{text}\x1b[0m", LineLook::Bold.start()),
            false => writeln!(self.out, "{text}"),
        };
    }
}

/// Prints the text: the steps in the order in which they happen, then what follows from them, part by part.
pub(super) fn print_text(
    request: &ExplainedRequest<'_>,
    explanation: &Explanation,
    live: Option<&LiveAnswer>,
) {
    // NO_COLOR (no-color.org) is respected.
    // A reader who has asked for no colour gets none, even in a terminal.
    let colour = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let mut page = ReportPage {
        out: String::new(),
        colour,
        folder: request.folder.clone(),
    };
    let first = format!("{} {}", shown(&request.question.method), request.url);
    page.head(&first);
    page.out.remove(0);
    page.choice("address", &explanation.address);
    page.choice("server", &explanation.server);
    for step in &explanation.steps {
        write_step(&mut page, step);
    }
    write_cache(&mut page, explanation);
    write_upstream(&mut page, explanation);
    write_response(&mut page, explanation);
    if !request.lines.is_empty() {
        page.head("log");
        for (level, line) in &request.lines {
            let text = base::text::visible_text(line).to_string();
            page.line((" ", level.word()), &text, None, LineLook::Plain);
        }
    }
    if let Some(live) = live {
        page.head("running server");
        for (name, value) in &live.facts {
            page.line((" ", name), value, None, LineLook::Plain);
        }
    }
    terminal::print_text(format_args!("{}", page.out));
}

/// The sign says at a glance what decided, what did not, and what is open; colours only repeat it.
fn write_step(page: &mut ReportPage, step: &ExplainedStep) {
    let (sign, look) = match step.result {
        StepResult::Applies => ("→", LineLook::Plain),
        StepResult::Passes => ("·", LineLook::Dim),
        StepResult::NotRun => ("?", LineLook::Open),
    };
    page.line(
        (sign, step.kind),
        &shown(&step.text),
        step.place.as_ref(),
        look,
    );
}

/// The key as it is looked up: with `weir cache show` an operator finds the object by it.
fn write_cache(page: &mut ReportPage, explanation: &Explanation) {
    let Some(cache) = &explanation.cache else {
        return;
    };
    page.head("cache");
    page.line((" ", "zone"), &shown(&cache.zone), None, LineLook::Plain);
    page.line((" ", "key"), &shown(&cache.key), None, LineLook::Plain);
    page.line(
        (" ", "use"),
        &cache_use(&cache.used_for),
        None,
        LineLook::Plain,
    );
}

/// What a request wants of the cache, in a word.
fn cache_use(used_for: &ExplainedCacheUse) -> String {
    match used_for {
        ExplainedCacheUse::LookUp => "lookup".to_owned(),
        ExplainedCacheUse::Bypass(line) => format!("bypass ({line})"),
        ExplainedCacheUse::Invalidate => "invalidate".to_owned(),
        ExplainedCacheUse::Purge => "purge".to_owned(),
        ExplainedCacheUse::Method => "none: not for this method".to_owned(),
    }
}

/// The group with its servers, and the head that one of them would get, in the order in which it is sent.
fn write_upstream(page: &mut ReportPage, explanation: &Explanation) {
    let Some(upstream) = &explanation.upstream else {
        return;
    };
    page.head("upstream");
    let method = match upstream.method.is_empty() {
        true => String::new(),
        false => format!("  ({})", shown(&upstream.method)),
    };
    let text = format!("{}{}{method}", upstream.scheme, shown(&upstream.name));
    page.line(
        ("→", "group"),
        &text,
        upstream.place.as_ref(),
        LineLook::Plain,
    );
    for server in &upstream.servers {
        let text = shown(&server.text);
        page.line((" ", ""), &text, server.place.as_ref(), LineLook::Plain);
    }
    if let Some(peer) = &upstream.peer {
        page.line(("→", "peer"), &shown(peer), None, LineLook::Plain);
    }
    for (index, (name, value)) in upstream.head.iter().enumerate() {
        let kind = if index == 0 { "request" } else { "" };
        let text = match name.is_empty() {
            true => shown(value),
            false => format!("{}: {}", shown(name), shown(value)),
        };
        page.line((" ", kind), &text, None, LineLook::Plain);
    }
}

/// The response, or who makes it: what is not the server's own is not guessed.
fn write_response(page: &mut ReportPage, explanation: &Explanation) {
    page.head("response");
    let location = &explanation.location;
    page.choice("location", location);
    let Some(response) = &explanation.response else {
        let text = match &explanation.upstream {
            Some(upstream) => format!("what {} answers", shown(&upstream.name)),
            None => "depends on what was not run".to_owned(),
        };
        page.line(("?", "status"), &text, None, LineLook::Open);
        return;
    };
    let status = match response.status {
        444 => "none: the connection is closed".to_owned(),
        status => status.to_string(),
    };
    page.line(("→", "status"), &status, None, LineLook::Plain);
    if let Some(file) = &response.file {
        let text = file.display().to_string();
        page.line(("→", "file"), &text, None, LineLook::Plain);
    }
    if let Some(redirect) = &response.redirect {
        page.line(("→", "to"), &shown(redirect), None, LineLook::Plain);
    }
    if !response.content_type.is_empty() {
        page.line(
            (" ", "type"),
            &shown(&response.content_type),
            None,
            LineLook::Plain,
        );
    }
    for (name, value) in &response.fields {
        let text = format!("{}: {}", shown(name), shown(value));
        page.line((" ", "header"), &text, None, LineLook::Plain);
    }
    for what in &explanation.depends_on {
        page.line(("?", "depends on"), &shown(what), None, LineLook::Open);
    }
}

/// Prints the JSON. The format is part of the interface: programs read it.
pub(super) fn print_json(
    request: &ExplainedRequest<'_>,
    explanation: &Explanation,
    live: Option<&LiveAnswer>,
) {
    let mut out = String::from("{");
    member(&mut out, "method", &shown(&request.question.method), "\n  ");
    member(&mut out, "url", request.url, ",\n  ");
    json_choice(&mut out, "address", &explanation.address);
    json_choice(&mut out, "server", &explanation.server);
    json_choice(&mut out, "location", &explanation.location);
    out.push_str(",\n  \"steps\": [");
    for (index, step) in explanation.steps.iter().enumerate() {
        out.push_str(if index == 0 { "\n    {" } else { ",\n    {" });
        member(&mut out, "step", step.kind, "");
        member(&mut out, "result", step.result.word(), ", ");
        member(&mut out, "text", &shown(&step.text), ", ");
        json_place(&mut out, step.place.as_ref());
        out.push('}');
    }
    out.push(']');
    json_cache(&mut out, explanation);
    json_upstream(&mut out, explanation);
    json_response(&mut out, explanation);
    let lines = request.lines.iter();
    let lines: Vec<String> = lines
        .map(|(level, line)| format!("[{}] {line}", level.word()))
        .collect();
    json_strings(&mut out, "log", lines.iter().map(String::as_str));
    let depends: Vec<String> = explanation
        .depends_on
        .iter()
        .map(|text| shown(text))
        .collect();
    json_strings(&mut out, "depends_on", depends.iter().map(String::as_str));
    if let Some(live) = live {
        out.push_str(",\n  \"live\": {");
        for (index, (name, value)) in live.facts.iter().enumerate() {
            member(&mut out, name, value, if index == 0 { "" } else { ", " });
        }
        out.push('}');
    }
    out.push_str("\n}");
    terminal::print_line(format_args!("{out}"));
}

/// A member with a list of strings.
fn json_strings<'a>(out: &mut String, name: &str, texts: impl Iterator<Item = &'a str>) {
    let _ = write!(out, ",\n  \"{name}\": [");
    for (index, text) in texts.enumerate() {
        if index > 0 {
            out.push_str(", ");
        }
        string(out, text);
    }
    out.push(']');
}

/// The place as two members, which a program need not take apart.
fn json_place(out: &mut String, place: Option<&ExplainedPlace>) {
    if let Some(place) = place {
        member(out, "file", &path_text(&place.file), ", ");
        let _ = write!(out, ", \"line\": {}", place.line);
    }
}

/// A path as text: JSON knows no bytes, and no configuration of ours has such names.
fn path_text(path: &Path) -> String {
    path.display().to_string()
}

/// A member with what was chosen, why, and where it stands.
fn json_choice(out: &mut String, name: &str, choice: &ExplainedChoice) {
    let _ = write!(out, ",\n  \"{name}\": {{");
    member(out, "name", &shown(&choice.name), "");
    member(out, "why", &choice.why, ", ");
    json_place(out, choice.place.as_ref());
    out.push('}');
}

/// Left out without a cache, so that its presence says that there is one.
fn json_cache(out: &mut String, explanation: &Explanation) {
    let Some(cache) = &explanation.cache else {
        return;
    };
    out.push_str(",\n  \"cache\": {");
    member(out, "zone", &shown(&cache.zone), "");
    member(out, "key", &shown(&cache.key), ", ");
    member(out, "use", &cache_use(&cache.used_for), ", ");
    if let Some(line) = &cache.no_cache {
        member(out, "no_cache", line, ", ");
    }
    out.push('}');
}

/// Left out if no other server would be asked.
fn json_upstream(out: &mut String, explanation: &Explanation) {
    let Some(upstream) = &explanation.upstream else {
        return;
    };
    out.push_str(",\n  \"upstream\": {");
    member(out, "name", &shown(&upstream.name), "");
    member(out, "scheme", upstream.scheme, ", ");
    json_place(out, upstream.place.as_ref());
    if !upstream.method.is_empty() {
        member(out, "method", &shown(&upstream.method), ", ");
    }
    if let Some(peer) = &upstream.peer {
        member(out, "peer", &shown(peer), ", ");
    }
    out.push_str(", \"servers\": [");
    for (index, server) in upstream.servers.iter().enumerate() {
        out.push_str(if index == 0 { "{" } else { ", {" });
        member(out, "server", &shown(&server.text), "");
        out.push_str(", \"addresses\": [");
        for (index, address) in server.addresses.iter().enumerate() {
            if index > 0 {
                out.push_str(", ");
            }
            string(out, address);
        }
        out.push(']');
        json_place(out, server.place.as_ref());
        out.push('}');
    }
    out.push_str("], \"request\": [");
    for (index, (name, value)) in upstream.head.iter().enumerate() {
        out.push_str(if index == 0 { "{" } else { ", {" });
        member(out, "name", &shown(name), "");
        member(out, "value", &shown(value), ", ");
        out.push('}');
    }
    let _ = write!(out, "], \"body_length\": {}}}", upstream.body_length);
}

/// Left out if the response is not the server's own.
fn json_response(out: &mut String, explanation: &Explanation) {
    let Some(response) = &explanation.response else {
        return;
    };
    let _ = write!(out, ",\n  \"response\": {{\"status\": {}", response.status);
    if let Some(file) = &response.file {
        member(out, "file", &path_text(file), ", ");
    }
    if let Some(redirect) = &response.redirect {
        member(out, "location", &shown(redirect), ", ");
    }
    member(out, "type", &shown(&response.content_type), ", ");
    out.push_str(", \"headers\": [");
    for (index, (name, value)) in response.fields.iter().enumerate() {
        out.push_str(if index == 0 { "{" } else { ", {" });
        member(out, "name", &shown(name), "");
        member(out, "value", &shown(value), ", ");
        out.push('}');
    }
    out.push_str("]}");
}
