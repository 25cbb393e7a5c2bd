//! The section of `docs/compat.md` that is written from the rules.

use std::fmt::Write as _;
use std::fs;

use super::{CHANGES, LUA_CHANGES, Reason, choices};

const BEGIN: &str =
    "<!-- Written by `cargo xtask docs` from differential/src/known; edit the rules there. -->\n";
const END: &str = "<!-- End of what is written from the rules. -->\n";
const PAGE: &str = "docs/compat.md";

/// The section, in Markdown.
pub fn page() -> String {
    let mut out = String::from(BEGIN);
    for rule in choices() {
        let why = match rule.reason {
            Reason::Rfc(why) => format!("({why})"),
            Reason::Safety(why) => format!("(safety: {why})"),
            Reason::Changed(why) => format!("(nginx changed: {why})"),
            Reason::Chance(why) => format!("(unspecified: {why})"),
            Reason::Open(why) => format!("(open: {why})"),
        };
        let _ = writeln!(out, "- `{}`: {} {why}", rule.name, rule.text);
    }
    out.push_str("\nOlder versions of nginx differ from the one that Weir follows in these points, as far as the machine has seen:\n\n");
    for rule in CHANGES.iter().chain(LUA_CHANGES) {
        let version = rule
            .before
            .map_or(String::new(), |version| format!(" before {version}"));
        let _ = writeln!(out, "- `{}`{version}: {}", rule.name, rule.text);
    }
    out.push_str(END);
    out
}

/// Puts the section into the page; with `check` it only compares.
pub fn write_page(check: bool) -> Result<(), String> {
    let text = fs::read_to_string(PAGE).map_err(|error| format!("{PAGE}: {error}"))?;
    let begin = text
        .find(BEGIN)
        .ok_or_else(|| format!("{PAGE} has no line {BEGIN}"))?;
    let end = text
        .find(END)
        .ok_or_else(|| format!("{PAGE} has no line {END}"))?
        + END.len();
    let Some((before, after)) = text.get(..begin).zip(text.get(end..)) else {
        return Err(format!("{PAGE}: the section ends before it begins"));
    };
    let wanted = format!("{before}{}{after}", page());
    if wanted == text {
        println!("{PAGE}: as the rules say");
        return Ok(());
    }
    if check {
        return Err(format!(
            "{PAGE} is not what the rules say; run `cargo xtask docs` and commit"
        ));
    }
    fs::write(PAGE, wanted).map_err(|error| format!("{PAGE}: {error}"))?;
    println!("{PAGE}: written");
    Ok(())
}
