//! `weir reference DIR`: the pages of `docs/reference`, for `cargo xtask docs`.
//!
//! A page per module, the indexes of directives and of variables, and the list of nginx's directives. All of it is derived from
//! the tables and the notes, so it cannot be outdated.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use conf::describe::{self, DirectiveSupport};

use crate::directive_notes;
use crate::reference::{self, ReferencePage};
use crate::terminal;

/// The first line of each page: edits there would be lost.
const GENERATED: &str = "<!-- Written by `weir reference`; edit the rows in the source. -->\n";

/// Writes all pages to `directory`. Returns the exit code.
pub(crate) fn write_reference(directory: &Path) -> i32 {
    let written = std::fs::create_dir_all(directory).and_then(|()| {
        pages().iter().try_for_each(|page| {
            let rows = describe::rows(page.tables.iter().copied());
            let text =
                describe::reference_page(&page.name, page.about, &rows, &page.variables, &|row| {
                    directive_notes::in_reference(row, page)
                });
            std::fs::write(directory.join(page.file_name()), text)
        })?;
        std::fs::write(directory.join("README.md"), contents())?;
        std::fs::write(directory.join("directives.md"), directive_index())?;
        std::fs::write(directory.join("variables.md"), variable_index())?;
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

/// The pages that are written. Not that of the directive with which the tests' build blocks loops on purpose: the pages are those
/// of a release, whichever build writes them.
fn pages() -> Vec<ReferencePage> {
    let mut pages = reference::pages();
    pages.retain(|page| page.name != "debug_block");
    pages
}

fn contents() -> String {
    let mut text = format!(
        "{GENERATED}# Reference\n\n[All directives](directives.md), [all variables](variables.md), and \
         [how Weir treats each directive of nginx](compatibility.md). `weir help NAME` shows the same in a terminal.\n\n"
    );
    for page in pages() {
        let _ = writeln!(
            text,
            "- [{}]({}): {}",
            page.name,
            page.file_name(),
            page.about
        );
    }
    text
}

/// Where a name is described: the pages, each with a link to the heading.
type PlacesOfName = BTreeMap<String, Vec<String>>;

/// All directives with the modules that have them, by first letter.
fn directive_index() -> String {
    let mut places = PlacesOfName::new();
    for page in pages() {
        for row in describe::rows(page.tables.iter().copied()) {
            let link = format!("[{}]({}#{})", page.name, page.file_name(), row.name);
            let links = places.entry(row.name.to_owned()).or_default();
            // A module may have a directive in two of its blocks.
            if !links.contains(&link) {
                links.push(link);
            }
        }
    }
    index_page("Directives", "directives", &places)
}

/// All variables with the modules that have them, by first letter.
fn variable_index() -> String {
    let mut places = PlacesOfName::new();
    for page in pages() {
        for variable in &page.variables {
            let link = format!("[{}]({}#variables)", page.name, page.file_name());
            let links = places.entry(variable.shown_name()).or_default();
            if !links.contains(&link) {
                links.push(link);
            }
        }
    }
    index_page("Variables", "variables", &places)
}

fn index_page(title: &str, what: &str, places: &PlacesOfName) -> String {
    let mut text = format!("{GENERATED}# {title}\n\n{} {what}.\n", places.len());
    let mut letter = None;
    for (name, links) in places {
        let first = name.trim_start_matches('$').chars().next();
        if first != letter {
            letter = first;
            let heading = first.unwrap_or_default().to_ascii_uppercase();
            let _ = writeln!(text, "\n## {heading}\n");
        }
        let _ = writeln!(text, "- `{name}`: {}", links.join(", "));
    }
    text
}

/// The list of nginx's directives, with what Weir does about each.
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
