//! Tables as documentation: the reference pages, the help of a directive, the compatibility list, the words
//! for a fuzzer. All of it comes from the rows, so it cannot disagree with the parser.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use crate::contexts::Contexts;
use crate::known;
use crate::table::{Kind, RowInfo, Rows};
use crate::variable::{Get, Variable};

/// A directive as it is written: `NAME SYNTAX;`, or with braces.
pub fn syntax_line(info: &RowInfo) -> String {
    let space = if info.syntax.is_empty() { "" } else { " " };
    let end = match (info.kind.has_braces(), info.syntax.ends_with('}')) {
        (true, true) => "",
        (true, false) => " { ... }",
        (false, _) => ";",
    };
    format!("{}{space}{}{end}", info.name, info.syntax)
}

/// The rows of tables as data.
pub fn rows<'a>(tables: impl IntoIterator<Item = &'a dyn Rows>) -> Vec<RowInfo> {
    tables
        .into_iter()
        .flat_map(|table| (0..table.len()).map(move |row| table.info(row)))
        .collect()
}

/// The nearest of some names to a misspelt one, if one is near enough to be meant.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // A third of the letters may be wrong, but at least one and at most three.
    let bound = (name.chars().count() / 3).clamp(1, 3);
    let scored = candidates.into_iter().filter_map(|candidate| {
        let length_gap = candidate.len().abs_diff(name.len());
        if candidate == name || length_gap > bound {
            return None;
        }
        let distance = strsim::damerau_levenshtein(name, candidate);
        (distance <= bound).then_some((distance, candidate))
    });
    scored.min().map(|(_, candidate)| candidate)
}

/// The reference page of a module, in Markdown.
pub fn reference_page(
    title: &str,
    introduction: &str,
    directives: &[RowInfo],
    variables: &[VariableInfo],
) -> String {
    let mut out = format!("# {title}\n\n{}\n", introduction.trim());
    if !directives.is_empty() {
        out.push_str("\n## Directives\n");
    }
    for info in directives {
        let _ = write!(out, "\n### `{}`\n\n", info.name);
        write_facts(&mut out, info);
        let _ = writeln!(out, "\n{}", info.doc.trim());
        if let Kind::Ignored(why) = info.kind {
            let _ = writeln!(out, "\nAccepted without effect: {why}");
        }
    }
    if !variables.is_empty() {
        out.push_str("\n## Variables\n\n");
    }
    for variable in variables {
        let _ = writeln!(out, "- `{}`: {}", variable.shown(), variable.doc.trim());
    }
    out
}

fn write_facts(out: &mut String, info: &RowInfo) {
    let default = match info.default {
        Some(text) => format!("`{} {text};`", info.name),
        None => "—".to_owned(),
    };
    let _ = writeln!(out, "| | |\n|---|---|");
    let _ = writeln!(
        out,
        "| Syntax | `{}` |",
        syntax_line(info).replace('|', "\\|")
    );
    let _ = writeln!(out, "| Default | {} |", default.replace('|', "\\|"));
    let _ = writeln!(out, "| Context | {} |", info.contexts.text());
    let _ = writeln!(out, "| Since | {} |", info.since);
}

/// What `weir help NAME` prints, or `None` if neither Weir nor nginx has such a directive.
pub fn help(name: &str, rows: &[RowInfo]) -> Option<String> {
    let ours: Vec<String> = rows
        .iter()
        .filter(|row| row.name == name)
        .map(help_of)
        .collect();
    if !ours.is_empty() {
        return Some(ours.join("\n"));
    }
    let known = known::find(name)?;
    let contexts = known.contexts.replace(',', ", ");
    Some(format!(
        "{}\n  context: {contexts}\n\nKnown to nginx 1.31, not yet in Weir.\n",
        known.syntax_line()
    ))
}

fn help_of(info: &RowInfo) -> String {
    let mut out = format!("{}\n", syntax_line(info));
    let _ = writeln!(out, "  default: {}", info.default.unwrap_or("none"));
    let _ = writeln!(out, "  context: {}", info.contexts.text());
    let _ = writeln!(out, "  since:   {}", info.since);
    let _ = writeln!(out, "\n{}", info.doc.trim());
    if let Kind::Ignored(why) = info.kind {
        let _ = writeln!(out, "\nAccepted without effect: {why}");
    }
    out
}

/// A variable as data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VariableInfo {
    /// The name, or the start of the names of a family.
    pub name: &'static str,
    /// Whether it is a family.
    pub family: bool,
    /// What it is.
    pub doc: &'static str,
}

impl VariableInfo {
    /// A row as data.
    pub fn of<R>(row: &Variable<R>) -> VariableInfo {
        VariableInfo {
            name: row.name,
            family: matches!(row.get, Get::Prefix(_)),
            doc: row.doc,
        }
    }

    /// `$name`, or `$name_*`.
    pub fn shown(&self) -> String {
        format!("${}{}", self.name, if self.family { "*" } else { "" })
    }
}

/// What Weir does with a directive of nginx.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// It works wherever nginx allows it.
    Yes,
    /// It works, but not in these contexts.
    NotIn(Contexts),
    /// It is accepted; why it has no effect.
    Ignored(&'static str),
    /// Not yet.
    No,
}

/// Every directive of nginx, by name, with what these rows do with it.
pub fn compatibility(rows: &[RowInfo]) -> BTreeMap<&'static str, Support> {
    let mut wanted: BTreeMap<&'static str, Contexts> = BTreeMap::new();
    for known in known::all() {
        let contexts = wanted.entry(known.name).or_insert(Contexts::NONE);
        *contexts = contexts.or(known.places());
    }
    // The reader of files knows this one, so that no table does.
    wanted.remove("include");
    wanted
        .into_iter()
        .map(|(name, contexts)| (name, support(name, contexts, rows)))
        .collect()
}

fn support(name: &str, wanted: Contexts, rows: &[RowInfo]) -> Support {
    let mut had = Contexts::NONE;
    let mut ignored = None;
    for row in rows.iter().filter(|row| row.name == name) {
        had = had.or(row.contexts);
        if let Kind::Ignored(why) = row.kind {
            ignored = Some(why);
        }
    }
    match (had == Contexts::NONE, ignored) {
        (true, _) => Support::No,
        (false, Some(why)) => Support::Ignored(why),
        (false, None) if had.contains(wanted) => Support::Yes,
        (false, None) => Support::NotIn(wanted.without(had)),
    }
}

/// The words of the language for a fuzzer, one per line in libFuzzer's form: names, choices, variables, units.
pub fn fuzz_dictionary(rows: &[RowInfo], variables: &[VariableInfo]) -> String {
    let mut words: BTreeSet<String> = [
        "{", "}", ";", "${", "\\\"", "on", "off", "8k", "1m", "60s", "500ms",
    ]
    .map(String::from)
    .into();
    for row in rows {
        words.insert(row.name.to_owned());
        if let Kind::Word(choices) | Kind::Bits(choices) = row.kind {
            words.extend(choices.iter().map(|choice| (*choice).to_owned()));
        }
    }
    words.extend(
        variables
            .iter()
            .map(|variable| format!("${}", variable.name)),
    );
    words.iter().fold(String::new(), |mut out, word| {
        let _ = writeln!(out, "\"{word}\"");
        out
    })
}
