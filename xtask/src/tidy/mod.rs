//! `tidy`: the project's rules that a compiler does not check, as code. Each message names its
//! remedy. A rule that cannot be checked does not belong into STYLE but into a review.

mod crates;
mod functions;
mod source;
mod text;

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

type FileRule = fn(&Source, &mut Vec<Finding>);
type ProjectRule = fn(&[Source], &mut Vec<Finding>);

/// Rules that look at one Rust file.
const FILE_RULES: &[FileRule] = &[
    text::begins_with_what_and_why,
    text::is_not_too_long,
    text::does_not_unwrap,
    text::says_what_is_to_do,
    text::justifies_unsafe,
    text::tests_do_not_sleep,
    text::tests_are_not_ignored_silently,
];

/// Rules that look at the whole project.
const PROJECT_RULES: &[ProjectRule] = &[
    crates::imports_point_down,
    crates::unsafe_is_forbidden_but_where_allowed,
    crates::dependencies_are_justified,
    functions::fit_a_screen,
    text::no_file_names_a_machine,
    text::every_test_file_is_listed,
    text::the_map_is_short,
];

pub(crate) fn run(flags: &mut Flags) -> Outcome {
    flags.finish()?;
    let sources = source::all()?;
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
        println!("{}: {}", finding.place, finding.remedy);
    }
    Err(format!("{} findings", findings.len()))
}
