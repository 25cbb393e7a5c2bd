//! `tidy`: the project's rules that a compiler does not check, as code. Each message names its remedy. `--ratchet`
//! also lowers the list of what is beyond a bound to what it is today.
//!
//! What is checked of `docs/style.md` and of `ARCHITECTURE.md` is said in `docs/style.md`.

mod allows;
mod ambient;
mod copies;
mod crates;
mod dependencies;
mod measures;
mod modules;
mod ratchet;
mod runtime;
mod source;
mod text;
mod words;

use std::fmt;

use xtask::Outcome;
use xtask::flags::Flags;

use source::Source;

/// A broken rule: where, and what to do about it.
#[derive(Debug)]
pub(crate) struct Finding {
    pub(crate) place: String,
    pub(crate) remedy: String,
}

impl Finding {
    fn new(place: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            place: place.into(),
            remedy: remedy.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.remedy)
    }
}

type FileRule = fn(&Source, &mut Vec<Finding>);
type ProjectRule = fn(&[Source], &mut Vec<Finding>);

/// Rules that look at one Rust file.
const FILE_RULES: &[FileRule] = &[
    text::begins_with_what_and_why,
    text::does_not_unwrap,
    ambient::time_and_chance_come_from_rt,
    allows::have_a_reason,
    text::says_what_is_to_do,
    text::justifies_unsafe,
    text::tests_do_not_sleep,
    text::tests_are_not_ignored_silently,
];

/// Rules that look at the whole project.
const PROJECT_RULES: &[ProjectRule] = &[
    crates::imports_point_down,
    crates::unsafe_is_forbidden_but_where_allowed,
    dependencies::are_justified,
    runtime::is_ours_alone,
    words::stay_where_they_belong,
    modules::do_not_import_each_other,
    modules::are_all_compiled,
    ratchet::nothing_gets_worse,
    text::no_file_names_a_machine,
    text::the_map_is_short,
    text::the_map_names_every_file,
];

pub(crate) fn run(flags: &mut Flags) -> Outcome {
    let tighten = flags.has("--ratchet");
    flags.finish()?;
    let sources = source::all()?;
    if tighten {
        ratchet::tighten(&sources)?;
    }
    let mut findings = Vec::new();
    for source in &sources {
        FILE_RULES
            .iter()
            .for_each(|rule| rule(source, &mut findings));
    }
    PROJECT_RULES
        .iter()
        .for_each(|rule| rule(&sources, &mut findings));
    if findings.is_empty() {
        println!("tidy: {} Rust files, all rules hold", sources.len());
        return Ok(());
    }
    for finding in &findings {
        println!("{finding}");
    }
    Err(format!("{} findings", findings.len()))
}
