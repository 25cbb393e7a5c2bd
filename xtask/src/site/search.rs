//! What the search of the site looks through: the words of each section, as a script, because a page that is opened from a disk
//! may load scripts and nothing else.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use super::files::SourceFile;
use super::markdown::RenderedPage;

/// The words that a section is found by, at most: a changelog has thousands below one heading.
const WORDS: usize = 3000;

/// `const SECTIONS = [[page, anchor, title, text], …];`
pub(crate) fn index(sources: &[SourceFile], pages: &BTreeMap<&Path, RenderedPage>) -> String {
    let mut out = String::from("const SECTIONS = [\n");
    for source in sources {
        let page = &pages[source.path.as_path()];
        for section in &page.sections {
            // The first heading is the page itself.
            let anchor = if section.level == 1 {
                ""
            } else {
                &section.anchor
            };
            let words: Vec<&str> = section.text.split_whitespace().collect();
            let text: String = words.join(" ").chars().take(WORDS).collect();
            let _ = writeln!(
                out,
                "[{},{},{},{}],",
                quoted(&source.place),
                quoted(anchor),
                quoted(&section.title),
                quoted(&text)
            );
        }
    }
    out + "];\n"
}

/// A string of JavaScript. `<` is escaped, so that it ends no element wherever it is put.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '<' => out.push_str("\\u003c"),
            letter if letter.is_control() => out.push(' '),
            letter => out.push(letter),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_string_cannot_end_early() {
        assert_eq!(quoted("a\"\\</script>"), "\"a\\\"\\\\\\u003c/script>\"");
    }
}
