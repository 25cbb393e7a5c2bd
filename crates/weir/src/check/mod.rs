//! `weir check`, and the warnings of `-t`: what in a configuration an attacker can use, and what makes sites leak.
//!
//! A rule is a row: its name, why it matters, what to write instead, an example of each, and a function that looks
//! at one directive of the tree. It sees words, not what modules make of them, so that also a configuration can be
//! checked that cannot run on this machine. A rule that is not sure says nothing: what cries for nothing is switched
//! off. That no rule cries at its own good example, and each at its bad one and nowhere else in it, is a test.
//!
//! ```text
//! command   weir check: arguments, text, JSON
//! rules     the rows, a file for each subject
//! view      a directive and the blocks around it: what is inherited, which location has a path
//! value     what clients can make of a text with variables
//! bytes     what a group of a regular expression can match
//! ```

mod bytes;
mod command;
mod rules;
mod value;
mod view;

use std::collections::HashSet;
use std::path::Path;

use base::Span;
use conf::{Block, Diagnostic, Node, Severity, SourceMap};

pub(crate) use command::{Check, USAGE, explain, parse, run};
use view::{Site, View};

/// What a finding means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Danger {
    /// Somebody can use it from outside, now: `-t` says it too.
    Attack,
    /// It leaks, or will, with something that is not in the configuration.
    Risk,
}

impl Danger {
    fn name(self) -> &'static str {
        match self {
            Danger::Attack => "attack",
            Danger::Risk => "risk",
        }
    }
}

/// What is looked for.
pub(crate) struct Rule {
    /// Its name, which a comment may name too: see [`is_meant`].
    name: &'static str,
    danger: Danger,
    /// The directives that it looks at.
    at: &'static [&'static str],
    /// Why it matters: one sentence or two.
    why: &'static str,
    /// What to write.
    write: &'static str,
    /// What stands in `http { … }` or, if it says so, at the top, with the finding; and without it.
    bad: &'static str,
    good: &'static str,
    find: fn(&View, &mut Vec<Found>),
}

/// What a rule has found: where, and in a few words what.
pub(crate) struct Found {
    span: Span,
    what: String,
}

impl Found {
    fn new(span: Span, what: impl Into<String>) -> Found {
        Found {
            span,
            what: what.into(),
        }
    }
}

/// Something found, with the rule that found it.
pub(crate) struct Finding {
    rule: &'static Rule,
    found: Found,
}

impl Finding {
    fn diagnostic(&self) -> Diagnostic {
        let severity = match self.rule.danger {
            Danger::Attack => Severity::Warn,
            Danger::Risk => Severity::Notice,
        };
        let Rule {
            name, why, write, ..
        } = self.rule;
        Diagnostic::new(severity, self.found.what.clone(), self.found.span)
            .note(format!("{name}: {why}"))
            .note(format!("fix: {write}"))
    }
}

/// Findings of a configuration at which one gives up to look for more.
const MAX_FINDINGS: usize = 10_000;

/// Looks at the whole tree. The order is that of the text.
pub(crate) fn findings(nodes: &[Node], sources: &SourceMap, prefix: &Path) -> Vec<Finding> {
    found_by(|_| true, nodes, sources, prefix)
}

/// The same by some of the rules.
fn found_by(
    wanted: impl Fn(&Rule) -> bool,
    nodes: &[Node],
    sources: &SourceMap,
    prefix: &Path,
) -> Vec<Finding> {
    let site = Site::new(nodes, sources, prefix);
    let mut findings = Vec::new();
    visit(&site, &mut Vec::new(), nodes, &wanted, &mut findings);
    let mut seen = HashSet::new();
    findings.retain(|finding: &Finding| {
        let span = finding.found.span;
        // A file that is included twice has each finding once.
        let place = (sources.place(span), span.start, finding.rule.name);
        seen.insert(place) && !is_meant(finding, sources)
    });
    findings
}

fn visit<'t>(
    site: &Site<'t>,
    around: &mut Vec<&'t Node>,
    nodes: &'t [Node],
    wanted: &dyn Fn(&Rule) -> bool,
    findings: &mut Vec<Finding>,
) {
    for node in nodes {
        let name = node.name.text.as_slice();
        let view = View { site, around, node };
        let looks = |rule: &&Rule| wanted(rule) && rule.at.iter().any(|at| at.as_bytes() == name);
        for rule in rules::all().filter(looks) {
            let mut found = Vec::new();
            if findings.len() < MAX_FINDINGS {
                (rule.find)(&view, &mut found);
            }
            findings.extend(found.into_iter().map(|found| Finding { rule, found }));
        }
        if let Block::Nodes(inside) = &node.block {
            around.push(node);
            visit(site, around, inside, wanted, findings);
            around.pop();
        }
    }
}

/// What a comment begins with that says of a rule that its findings are meant to be there: at the end of the line, or
/// on the line above it.
const MEANT: &str = "weir check: allow ";

/// Is there such a comment for it?
fn is_meant(finding: &Finding, sources: &SourceMap) -> bool {
    let span = finding.found.span;
    let Some((line, start)) = sources.line(span) else {
        return false;
    };
    let above = start.checked_sub(1).and_then(|end| {
        let at = end as u32;
        sources.line(Span::new(span.file, at, at))
    });
    let names = |line: &[u8]| {
        let text = String::from_utf8_lossy(line);
        let comment = text.split_once('#').map_or("", |(_, comment)| comment);
        comment.split_once(MEANT).is_some_and(|(_, names)| {
            let mut names = names.split([',', ' ']).map(str::trim);
            names.any(|name| name == finding.rule.name)
        })
    };
    let only_comment = |line: &[u8]| line.trim_ascii_start().starts_with(b"#");
    names(line) || above.is_some_and(|(line, _)| only_comment(line) && names(line))
}

/// What `-t` says more: the findings that an attacker can use.
pub(crate) fn warnings(nodes: &[Node], sources: &SourceMap, prefix: &Path) -> Vec<Diagnostic> {
    let attacks = |rule: &Rule| rule.danger == Danger::Attack;
    found_by(attacks, nodes, sources, prefix)
        .iter()
        .map(Finding::diagnostic)
        .collect()
}

#[cfg(test)]
mod tests;
