//! The length of functions: a ratchet. No function is longer than a bound, but for those in a
//! list that may shrink and never grow.

use std::fs;

use super::Finding;
use super::source::Source;

/// Longer than this needs an entry in the list; look again from 70 lines on.
const LINES: usize = 100;

/// The functions that are longer: `path function lines`, one a line. Remove a line when its
/// function has become short; add one only with a reason in the same change.
const RATCHET: &str = "xtask/long-functions.txt";

pub(super) fn fit_a_screen(sources: &[Source], findings: &mut Vec<Finding>) {
    let list = fs::read_to_string(RATCHET).unwrap_or_default();
    let allowed: Vec<Vec<&str>> = entries(&list)
        .map(|line| line.split_whitespace().collect())
        .collect();
    let mut seen = Vec::new();
    for source in sources {
        for (name, line, length) in functions(source) {
            if length <= LINES {
                continue;
            }
            let entry = allowed
                .iter()
                .find(|entry| entry[..2.min(entry.len())] == [source.path.as_str(), name.as_str()]);
            let bound = entry
                .and_then(|entry| entry.get(2))
                .and_then(|text| text.parse().ok())
                .unwrap_or(LINES);
            if length > bound {
                let remedy = format!(
                    "`{name}` has {length} lines, more than {bound}: split it (or, with a reason, see {RATCHET})"
                );
                findings.push(Finding::new(format!("{}:{line}", source.path), remedy));
            }
            seen.push((source.path.clone(), name));
        }
    }
    for entry in &allowed {
        let known = seen
            .iter()
            .any(|(path, name)| entry[..2.min(entry.len())] == [path.as_str(), name.as_str()]);
        if !known {
            findings.push(Finding::new(
                RATCHET,
                format!("`{}` is short now: remove its line", entry.join(" ")),
            ));
        }
    }
}

fn entries(list: &str) -> impl Iterator<Item = &str> {
    list.lines()
        .filter(|line| !line.trim().is_empty() && !line.starts_with('#'))
}

/// The functions of a file that are no tests: name, line, length. rustfmt puts the closing
/// brace of a function into the column of its first word, so that no parser is needed.
fn functions(source: &Source) -> Vec<(String, usize, usize)> {
    let lines: Vec<&str> = source.code().map(|(_, line)| line).collect();
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let Some(name) = function_name(line) else {
            continue;
        };
        let indent = line.len() - line.trim_start().len();
        let closing = format!("{}}}", " ".repeat(indent));
        let ends = |line: &&str| {
            **line == closing
                || (line.ends_with(';') && line.len() - line.trim_start().len() == indent)
        };
        let one_line = line.ends_with('}') || line.ends_with(';');
        let length = if one_line {
            1
        } else {
            lines[start + 1..]
                .iter()
                .position(ends)
                .map_or(1, |at| at + 2)
        };
        found.push((name.to_owned(), start + 1, length));
    }
    found
}

fn function_name(line: &str) -> Option<&str> {
    let mut rest = line.trim_start();
    for word in [
        "pub(crate) ",
        "pub(super) ",
        "pub ",
        "const ",
        "async ",
        "unsafe ",
        "extern \"C\" ",
    ] {
        rest = rest.strip_prefix(word).unwrap_or(rest);
    }
    let rest = rest.strip_prefix("fn ")?;
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_')?;
    Some(&rest[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_ends_where_its_column_closes() {
        let text = "//! x\nfn one() {\n    if a {\n    }\n}\n\nimpl A {\n    pub(crate) async fn two(\n        a: u8,\n    ) -> u8 {\n        a\n    }\n    fn three(&self);\n}\n";
        let source = Source::new("crates/x/src/a.rs", text.to_owned());
        let found = functions(&source);
        assert_eq!(
            found,
            [
                ("one".to_owned(), 2, 4),
                ("two".to_owned(), 8, 5),
                ("three".to_owned(), 13, 1)
            ]
        );
    }
}
