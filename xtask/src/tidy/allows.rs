//! A lint that is switched off says why.

use super::Finding;
use super::source::Source;

const MARKS: &[&str] = &["#[allow(", "#![allow(", "#[expect(", "#![expect("];

/// The reason stands in the attribute, behind it, or in a comment above it.
pub(super) fn have_a_reason(source: &Source, findings: &mut Vec<Finding>) {
    let lines = &source.rust.lines;
    for (i, line) in lines.iter().enumerate() {
        let is_allow = MARKS.iter().any(|mark| line.code.contains(mark));
        if !is_allow {
            continue;
        }
        let ends = lines[i..].iter().position(|line| line.code.contains(']'));
        let attribute = &lines[i..=i + ends.unwrap_or_default()];
        let inside = attribute
            .iter()
            .any(|line| line.code.contains("reason =") || line.has_inline_comment());
        let above = i
            .checked_sub(1)
            .is_some_and(|before| lines[before].is_comment() && lines[before].has_inline_comment());
        if !inside && !above {
            let place = format!("{}:{}", source.path, i + 1);
            findings.push(Finding::new(
                place,
                "say why, with `reason = \"…\"` in the attribute, or mend what the lint is about",
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finds(text: &str) -> usize {
        let mut findings = Vec::new();
        have_a_reason(
            &Source::new("crates/x/src/a.rs", text.to_owned()),
            &mut findings,
        );
        findings.len()
    }

    #[test]
    fn a_reason_may_stand_in_three_places() {
        assert_eq!(finds("/// A.\n#[allow(dead_code)]\nfn a() {}\n"), 1);
        assert_eq!(
            finds("#[allow(\n    dead_code,\n    reason = \"b\"\n)]\nfn a() {}\n"),
            0
        );
        assert_eq!(finds("#[allow(dead_code)] // b\nfn a() {}\n"), 0);
        assert_eq!(finds("// b\n#[allow(dead_code)]\nfn a() {}\n"), 0);
        assert_eq!(finds("let a = \"#[allow(dead_code)]\";\n"), 0);
    }
}
