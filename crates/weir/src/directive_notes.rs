//! What the reference and `weir help` have beside the rows: examples of directives, and what nginx does differently.
//!
//! A note is text in one of the files of `notes/`:
//!
//! ```text
//! #: limit_req_zone limit_req      the directives that it belongs to
//! #: nginx: Removes two entries.   what nginx does differently; several lines are one paragraph
//! #: http: limit_req_zone …;       for the test only: what the example needs around it, in a block of this name
//! location / { ... }               the example
//! ```
//!
//! They are not in the rows because an example is about several directives, and the rows of upstream protocols are written once
//! for all of them: an example of `proxy_cache_lock` is one of `fastcgi_cache_lock` with another prefix. Where two modules have
//! a name, the page is written in front of it: `upstream:server`, or `stream:listen` for all pages of that engine; `name+` is for
//! both engines. Each example is tested by the integration tests (`examples.rs`).

use conf::RowInfo;
use conf::describe::{WIDTH, wrap_text};

use crate::reference::ReferencePage;

/// The files, in no order that matters.
const FILES: &[&str] = &[
    include_str!("notes/core.conf"),
    include_str!("notes/http.conf"),
    include_str!("notes/upstream.conf"),
    include_str!("notes/content.conf"),
    include_str!("notes/access.conf"),
    include_str!("notes/observe.conf"),
    include_str!("notes/lua.conf"),
    include_str!("notes/set_misc.conf"),
    include_str!("notes/stream.conf"),
];

/// The protocols whose rows are `proxy`'s under another prefix.
const FAMILIES: &[&str] = &["fastcgi_", "scgi_", "uwsgi_", "grpc_", "memcached_"];

/// What begins a line that is not part of an example.
const MARK: &str = "#:";

/// The note of a directive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DirectiveNote {
    /// What nginx does differently; may be empty.
    pub(crate) difference: String,
    /// Lines of a configuration; may be empty.
    pub(crate) example: String,
}

/// The note of a directive on a page of the reference.
pub(crate) fn of(name: &str, page: &ReferencePage) -> Option<DirectiveNote> {
    let qualified = find(&format!("{}:{name}", page.name));
    if qualified.is_some() {
        return qualified;
    }
    if page.is_stream() {
        let of_both = || find(&format!("{name}+"));
        let of_one = || find(name).filter(|_| !has_http_row(name));
        return find(&format!("stream:{name}"))
            .or_else(of_both)
            .or_else(of_one);
    }
    find(name)
        .or_else(|| find(&format!("{name}+")))
        .or_else(|| of_family(name))
}

/// The note of the same directive of `proxy`.
fn of_family(name: &str) -> Option<DirectiveNote> {
    let (prefix, rest) = FAMILIES
        .iter()
        .find_map(|prefix| Some((*prefix, name.strip_prefix(prefix)?)))?;
    let note = find(&format!("proxy_{rest}"))?;
    let (plain, secure) = match prefix {
        "grpc_" => ("_pass grpc://", "_pass grpcs://"),
        "uwsgi_" => ("_pass ", "_pass suwsgi://"),
        _ => ("_pass ", "_pass "),
    };
    Some(DirectiveNote {
        difference: note.difference.replace("proxy_", prefix),
        example: note
            .example
            .replace("proxy_", prefix)
            .replace("_pass http://", plain)
            .replace("_pass https://", secure),
    })
}

/// A directive that both engines have is not explained to one with an example of the other.
fn has_http_row(name: &str) -> bool {
    crate::reference::pages()
        .iter()
        .filter(|page| !page.is_stream())
        .flat_map(|page| conf::describe::rows(page.tables.iter().copied()))
        .any(|row| row.name == name)
}

fn find(name: &str) -> Option<DirectiveNote> {
    FILES
        .iter()
        .flat_map(|text| sections(text))
        .find(|(names, _)| names.split(' ').any(|known| known == name))
        .map(|(_, note)| note)
}

/// The notes of a file, with the names in front of each. A line with a mark after an example begins the next one.
fn sections(text: &'static str) -> Vec<(&'static str, DirectiveNote)> {
    let mut found: Vec<(&str, DirectiveNote)> = Vec::new();
    let mut is_head = false;
    for line in text.lines() {
        let marked = line.strip_prefix(MARK).map(str::trim);
        match (marked, found.last_mut()) {
            (Some(marked), Some((_, note))) if is_head => {
                if let Some(text) = marked.strip_prefix("nginx: ") {
                    let space = if note.difference.is_empty() { "" } else { " " };
                    note.difference.extend([space, text]);
                }
            }
            (Some(names), _) => found.push((names, DirectiveNote::default())),
            (None, Some((_, note))) => note.example.extend([line, "\n"]),
            (None, None) => {}
        }
        is_head = marked.is_some();
    }
    for (_, note) in &mut found {
        note.example = note.example.trim().to_owned();
    }
    found
}

/// What the reference says below the description of a row.
pub(crate) fn in_reference(row: &RowInfo, page: &ReferencePage) -> String {
    let Some(note) = of(row.name, page) else {
        return String::new();
    };
    let mut text = String::new();
    if !note.difference.is_empty() {
        text += &format!("\n**In nginx**: {}\n", note.difference);
    }
    if !note.example.is_empty() {
        text += &format!("\n```nginx\n{}\n```\n", note.example);
    }
    text
}

/// What `weir help` says of a directive after its rows.
pub(crate) fn in_help(name: &str) -> String {
    let pages = crate::reference::pages();
    let has_it = |page: &&ReferencePage| {
        let rows = conf::describe::rows(page.tables.iter().copied());
        rows.iter().any(|row| row.name == name)
    };
    let note = match name {
        // The parser itself handles it, so it is on no page.
        "include" => find(name),
        _ => pages.iter().filter(has_it).find_map(|page| of(name, page)),
    };
    let Some(note) = note else {
        return String::new();
    };
    let mut text = String::new();
    if !note.difference.is_empty() {
        let difference = format!("In nginx: {}", note.difference);
        text += &format!("\n{}\n", wrap_text(&difference, "", WIDTH));
    }
    if !note.example.is_empty() {
        text += "\nExample:\n\n";
        for line in note.example.lines() {
            text += format!("  {line}").trim_end();
            text += "\n";
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_read() {
        let text = "#: one two\n#: nginx: Does\n#: nginx: less.\n#: http: map;\none 1;\n\n#: three\nthree;\n";
        let found = sections(text);
        let names: Vec<&str> = found.iter().map(|(names, _)| *names).collect();
        assert_eq!(names, ["one two", "three"]);
        assert_eq!(found[0].1.difference, "Does less.");
        assert_eq!(found[0].1.example, "one 1;");
        assert_eq!(found[1].1.example, "three;");
    }

    #[test]
    fn each_name_is_one_of_a_directive() {
        let rows = crate::reference::directives();
        for (names, _) in FILES.iter().flat_map(|text| sections(text)) {
            for name in names.split(' ') {
                let name = name.rsplit(':').next().unwrap_or(name);
                let name = name.trim_end_matches('+');
                let is_there = name == "include" || rows.iter().any(|row| row.name == name);
                assert!(is_there, "no directive {name}");
            }
        }
    }

    /// The notes of all directives, with their pages and rows.
    fn noted() -> Vec<(String, RowInfo, DirectiveNote)> {
        let mut found = Vec::new();
        for page in crate::reference::pages() {
            for row in conf::describe::rows(page.tables.iter().copied()) {
                let note = of(row.name, &page).unwrap_or_default();
                found.push((page.name.clone(), row, note));
            }
        }
        found
    }

    #[test]
    fn each_example_has_its_directive() {
        let mut without = Vec::new();
        for (page, row, note) in noted() {
            let word = |letter: char| !letter.is_ascii_alphanumeric() && letter != '_';
            let is_there = note.example.split(word).any(|word| word == row.name);
            if !note.example.is_empty() && !is_there {
                without.push(format!("{page}: {}", row.name));
            }
        }
        assert!(without.is_empty(), "{}", without.join("\n"));
    }

    /// What only Weir has cannot be looked up elsewhere.
    #[test]
    fn every_directive_that_nginx_does_not_have_has_an_example() {
        let mut without = Vec::new();
        for (page, row, note) in noted() {
            let is_known = conf::nginx_directives::find(row.name).is_some();
            let is_void = matches!(row.kind, conf::SetterKind::Ignored(_));
            // Only builds of the tests have it.
            let is_documented = row.name != "debug_block";
            if !is_known && !is_void && is_documented && note.example.is_empty() {
                without.push(format!("{page}: {}", row.name));
            }
        }
        assert!(without.is_empty(), "{}", without.join("\n"));
    }
}
