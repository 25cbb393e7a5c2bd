//! Documentation from tables: the reference pages, the help of a directive, the compatibility list,
//! and the dictionary for a fuzzer. All of it comes from the rows, so it cannot disagree with the
//! parser.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use crate::directive_contexts::Contexts;
use crate::nginx_directives;
use crate::table::{DirectiveRows, RowInfo, SetterKind};
use crate::variable::{Variable, VariableGet};

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
pub fn rows<'a>(tables: impl IntoIterator<Item = &'a dyn DirectiveRows>) -> Vec<RowInfo> {
    tables
        .into_iter()
        .flat_map(|table| (0..table.len()).map(move |row| table.info(row)))
        .collect()
}

/// The reference page of a module, in Markdown. `more` has what belongs below the description of a
/// directive and is not in its row, such as an example; empty if there is nothing.
pub fn reference_page(
    title: &str,
    introduction: &str,
    directives: &[RowInfo],
    variables: &[VariableInfo],
    more: &dyn Fn(&RowInfo) -> String,
) -> String {
    let mut out = format!("# {title}\n\n{}\n", introduction.trim());
    if !directives.is_empty() {
        out.push_str("\n## Directives\n");
    }
    for info in directives {
        let _ = write!(out, "\n### `{}`\n\n", info.name);
        write_facts(&mut out, info);
        let _ = writeln!(out, "\n{}", info.doc.trim());
        if let SetterKind::Ignored(why) = info.kind {
            let _ = writeln!(out, "\nAccepted without effect: {why}");
        }
        out.push_str(&more(info));
    }
    if !variables.is_empty() {
        out.push_str("\n## Variables\n\n");
    }
    for variable in variables {
        let _ = writeln!(
            out,
            "- `{}`: {}",
            variable.shown_name(),
            variable.doc.trim()
        );
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

/// The text of `weir help NAME`; `None` if neither Weir nor nginx has such a directive.
pub fn directive_help(name: &str, rows: &[RowInfo]) -> Option<String> {
    let ours: Vec<String> = rows
        .iter()
        .filter(|row| row.name == name)
        .map(help_of)
        .collect();
    if !ours.is_empty() {
        return Some(ours.join("\n"));
    }
    let known = nginx_directives::find(name)?;
    let contexts = known.contexts.replace(',', ", ");
    Some(format!(
        "{}\n  context: {contexts}\n\nnginx 1.31 has it; Weir does not support it yet.\n",
        known.syntax_line()
    ))
}

fn help_of(info: &RowInfo) -> String {
    let mut out = format!("{}\n", syntax_line(info));
    let _ = writeln!(out, "  default: {}", info.default.unwrap_or("none"));
    let _ = writeln!(out, "  context: {}", info.contexts.text());
    let _ = writeln!(out, "  since:   {}", info.since);
    let _ = writeln!(out, "\n{}", wrap_text(info.doc, "", WIDTH));
    if let SetterKind::Ignored(why) = info.kind {
        let _ = writeln!(out, "\nAccepted without effect: {why}");
    }
    out
}

/// The columns of help: a terminal has 80.
pub const WIDTH: usize = 78;

/// Wraps a text at `width` columns where possible, each line after `indent`. Double spaces remain.
pub fn wrap_text(text: &str, indent: &str, width: usize) -> String {
    let mut out = String::new();
    let mut column = 0;
    let mut gap = 0;
    for word in text.trim().split(' ') {
        if word.is_empty() {
            gap += 1;
            continue;
        }
        let length = word.chars().count();
        if column == 0 || column + gap + length > width {
            out.push_str(if column == 0 { "" } else { "\n" });
            out.push_str(indent);
            column = indent.len();
        } else {
            out.extend(std::iter::repeat_n(' ', gap));
            column += gap;
        }
        out.push_str(word);
        column += length;
        gap = 1;
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
            family: matches!(row.get, VariableGet::Prefix(_)),
            doc: row.doc,
        }
    }

    /// `$name`, or `$name_*`.
    pub fn shown_name(&self) -> String {
        format!("${}{}", self.name, if self.family { "*" } else { "" })
    }
}

/// How Weir supports a directive of nginx.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectiveSupport {
    /// It works wherever nginx allows it.
    Yes,
    /// It works, but not in these contexts.
    NotIn(Contexts),
    /// It is accepted without effect, for this reason.
    Ignored(&'static str),
    /// Not yet.
    No,
}

/// All directives of nginx, with the support that these rows give them.
pub fn compatibility(rows: &[RowInfo]) -> BTreeMap<&'static str, DirectiveSupport> {
    let mut wanted: BTreeMap<&'static str, Contexts> = BTreeMap::new();
    for known in nginx_directives::all() {
        let contexts = wanted.entry(known.name).or_insert(Contexts::NONE);
        *contexts = contexts.or(known.allowed_contexts());
    }
    // The parser itself handles this one, so it is in no table.
    wanted.remove("include");
    wanted
        .into_iter()
        .map(|(name, contexts)| (name, support(name, contexts, rows)))
        .collect()
}

fn support(name: &str, wanted: Contexts, rows: &[RowInfo]) -> DirectiveSupport {
    let mut had = Contexts::NONE;
    let mut ignored = None;
    for row in rows.iter().filter(|row| row.name == name) {
        had = had.or(row.contexts);
        if let SetterKind::Ignored(why) = row.kind {
            ignored = Some(why);
        }
    }
    match (had == Contexts::NONE, ignored) {
        (true, _) => DirectiveSupport::No,
        (false, Some(why)) => DirectiveSupport::Ignored(why),
        (false, None) if had.contains(wanted) => DirectiveSupport::Yes,
        (false, None) => DirectiveSupport::NotIn(wanted.without(had)),
    }
}

/// The words of the language for a fuzzer, one per line in libFuzzer's form: names, choices,
/// variables, units.
pub fn fuzz_dictionary(rows: &[RowInfo], variables: &[VariableInfo]) -> String {
    let mut words: BTreeSet<String> = [
        "{", "}", ";", "${", "\\\"", "on", "off", "8k", "1m", "60s", "500ms",
    ]
    .map(String::from)
    .into();
    for row in rows {
        words.insert(row.name.to_owned());
        if let SetterKind::Word(choices) | SetterKind::Bits(choices) = row.kind {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directive_contexts::{HTTP, HTTP_SERVER, HTTP_SERVER_LOCATION};
    use crate::table::{Arity, Directive, DirectiveTable, RepeatRule, Setter};

    #[derive(Clone, Default)]
    struct Conf {
        gzip: bool,
        level: i64,
    }

    static TABLE: DirectiveTable<Conf> = DirectiveTable::new(&[
        Directive {
            name: "gzip_vary",
            syntax: "on | off",
            default: Some("off"),
            contexts: HTTP_SERVER_LOCATION,
            since: "0.1",
            doc: "Whether to say `Vary`.",
            set: Setter::Flag(|c| &mut c.gzip),
        },
        Directive {
            name: "gzip_comp_level",
            syntax: "level",
            default: Some("1"),
            contexts: HTTP_SERVER,
            since: "0.1",
            doc: "How hard.",
            set: Setter::Number(|c| &mut c.level, 1, 9),
        },
        Directive {
            name: "server_names_hash_max_size",
            syntax: "size",
            default: None,
            contexts: HTTP,
            since: "0.1",
            doc: "Nothing.",
            set: Setter::Ignored(Arity::ONE, "the table sizes itself."),
        },
        Directive {
            name: "types",
            syntax: "{ ... }",
            default: None,
            contexts: HTTP_SERVER_LOCATION,
            since: "0.1",
            doc: "Which names mean which type.",
            set: Setter::Block(Arity::NONE, RepeatRule::Many, |_, _| Ok(())),
        },
    ]);

    fn all_rows() -> Vec<RowInfo> {
        rows([&TABLE as &dyn DirectiveRows])
    }

    #[test]
    fn help_for_ours_and_for_those_of_nginx() {
        let rows = all_rows();
        let help = |name: &str| directive_help(name, &rows);
        let expected = "gzip_vary on | off;\n  default: off\n  context: http, server, location\n  since:   0.1\n\nWhether to say `Vary`.\n";
        assert_eq!(help("gzip_vary").as_deref(), Some(expected));
        assert!(
            help("server_names_hash_max_size")
                .unwrap()
                .contains("without effect: the table")
        );
        assert!(help("types").unwrap().starts_with("types { ... }\n"));
        let missing = help("gzip").unwrap();
        assert!(
            missing.starts_with("gzip on | off;\n  context: http, server, location"),
            "{missing}"
        );
        assert!(missing.ends_with("does not support it yet.\n"));
        assert_eq!(help("nonsense"), None);
    }

    #[test]
    fn lines_are_as_wide_as_they_may_be() {
        for (text, expected) in [
            ("", ""),
            ("ab", "  ab"),
            ("abc  de f", "  abc\n  de f"),
            ("ab  cd ef", "  ab\n  cd ef"),
            ("a  b c", "  a  b\n  c"),
            ("abcdefghi j", "  abcdefghi\n  j"),
        ] {
            assert_eq!(wrap_text(text, "  ", 7), expected, "{text}");
        }
    }

    #[test]
    fn the_reference_page() {
        let variables = [VariableInfo {
            name: "arg_",
            family: true,
            doc: "An argument.",
        }];
        let more = |row: &RowInfo| format!("\nSee {}.\n", row.name);
        let page = reference_page(
            "gzip",
            "Smaller bodies.",
            &all_rows()[..1],
            &variables,
            &more,
        );
        let expected = "\
# gzip

Smaller bodies.

## Directives

### `gzip_vary`

| | |
|---|---|
| Syntax | `gzip_vary on \\| off;` |
| Default | `gzip_vary off;` |
| Context | http, server, location |
| Since | 0.1 |

Whether to say `Vary`.

See gzip_vary.

## Variables

- `$arg_*`: An argument.
";
        assert_eq!(page, expected);
    }

    #[test]
    fn compatibility_with_nginx() {
        let table = compatibility(&all_rows());
        assert_eq!(table["gzip_vary"], DirectiveSupport::Yes);
        assert_eq!(
            table["gzip_comp_level"],
            DirectiveSupport::NotIn(crate::directive_contexts::LOCATION)
        );
        assert_eq!(
            table["server_names_hash_max_size"],
            DirectiveSupport::Ignored("the table sizes itself.")
        );
        assert_eq!(table["gzip"], DirectiveSupport::No);
        assert_eq!(table.len(), 647, "nginx's 648 names without include");
    }

    #[test]
    fn the_dictionary_quotes_its_words() {
        let rows = all_rows();
        let dictionary = fuzz_dictionary(
            &rows,
            &[VariableInfo {
                name: "uri",
                family: false,
                doc: "",
            }],
        );
        for word in ["\"gzip_vary\"", "\"$uri\"", "\"{\"", "\"\\\"\""] {
            assert!(dictionary.lines().any(|line| line == word), "{word}");
        }
    }
}
