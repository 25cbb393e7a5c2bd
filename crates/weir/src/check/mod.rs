//! `weir check`, and the warnings of `-t`: what an attacker can use in a configuration, and what
//! makes sites leak.
//!
//! A rule is a row: its name, why it matters, what to write instead, an example of each, and a
//! function that looks at one directive of the tree. It sees the words of the configuration, not
//! what modules make of them, so a configuration that cannot run on this machine can be checked,
//! too. A rule in doubt says nothing: a checker with false alarms is switched off. A test asserts
//! that each rule finds its bad example, and no rule finds anything in a good one.
//!
//! ```text
//! command   weir check: arguments, text, JSON
//! rules     the rows, a file for each subject
//! view      a directive and the blocks around it: what is inherited, which location has a path
//! value     what clients can make of a text with variables
//! byte_set  what a group of a regular expression can match
//! ```

mod byte_set;
mod command;
mod rules;
mod value;
mod view;

use std::collections::{HashMap, HashSet};
use std::path::Path;

use base::Span;
use conf::{Diagnostic, DirectiveNode, Severity, SourceMap};

pub(crate) use command::{CheckArguments, explain, parse, rule_names, run};
use view::{CheckedTree, DirectiveView};

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RuleDanger {
    /// Exploitable from outside, as it stands: `-t` warns, too.
    Attack,
    /// A leak, or exploitable together with something that is not in the configuration.
    Risk,
}

impl RuleDanger {
    fn name(self) -> &'static str {
        match self {
            RuleDanger::Attack => "attack",
            RuleDanger::Risk => "risk",
        }
    }
}

/// A rule: the pattern it looks for, and its explanation.
pub(crate) struct CheckRule {
    /// Its name, with which a comment can accept its findings.
    name: &'static str,
    /// How bad its findings are.
    danger: RuleDanger,
    /// The directives that it looks at.
    at: &'static [&'static str],
    /// Why it matters, in one or two sentences.
    why: &'static str,
    /// What to write instead.
    write: &'static str,
    /// Examples with the finding and without it. They are the content of `http { … }` unless they
    /// begin at the top level.
    bad: &'static str,
    good: &'static str,
    /// Looks at one directive with one of these names.
    find: fn(&DirectiveView, &mut Vec<RuleHit>),
}

/// A rule's hit: where, and what in a few words.
pub(crate) struct RuleHit {
    /// What the message points to.
    span: Span,
    /// The first line of the message.
    what: String,
}

impl RuleHit {
    fn new(span: Span, what: impl Into<String>) -> RuleHit {
        RuleHit {
            span,
            what: what.into(),
        }
    }
}

/// A hit together with its rule.
pub(crate) struct CheckFinding {
    rule: &'static CheckRule,
    found: RuleHit,
}

impl CheckFinding {
    /// The finding as a message like those about errors.
    fn diagnostic(&self) -> Diagnostic {
        let severity = match self.rule.danger {
            RuleDanger::Attack => Severity::Warn,
            RuleDanger::Risk => Severity::Notice,
        };
        let CheckRule {
            name, why, write, ..
        } = self.rule;
        Diagnostic::new(severity, self.found.what.clone(), self.found.span)
            .note(format!("{name}: {why}"))
            .note(format!("fix: {write}"))
    }
}

/// Beyond this number no more findings are collected: a longer list would not be read, and files that are included
/// over and over multiply them.
const MAX_FINDINGS: usize = 10_000;

/// The findings of all rules, in the order of the text.
pub(crate) fn findings(
    nodes: &[DirectiveNode],
    sources: &SourceMap,
    prefix: &Path,
) -> Vec<CheckFinding> {
    found_by(|_| true, nodes, sources, prefix)
}

/// The findings of some of the rules.
fn found_by(
    wanted: impl Fn(&CheckRule) -> bool,
    nodes: &[DirectiveNode],
    sources: &SourceMap,
    prefix: &Path,
) -> Vec<CheckFinding> {
    let site = CheckedTree::new(nodes, sources, prefix);
    let mut rules: RulesByName = HashMap::new();
    for rule in rules::all().filter(|rule| wanted(rule)) {
        for name in rule.at {
            rules.entry(name.as_bytes()).or_default().push(rule);
        }
    }
    let mut findings = Vec::new();
    visit(&site, &mut Vec::new(), nodes, &rules, &mut findings);
    let mut seen = HashSet::new();
    findings.retain(|finding: &CheckFinding| {
        let span = finding.found.span;
        // A file that is included twice has each finding once.
        let place = (sources.place(span), span.start, finding.rule.name);
        seen.insert(place) && !is_allowed(finding, sources)
    });
    findings
}

/// Rules by the directives that they look at.
type RulesByName = HashMap<&'static [u8], Vec<&'static CheckRule>>;

/// Walks the tree. `around` are the blocks that enclose these nodes, from outside in.
fn visit<'t>(
    site: &CheckedTree<'t>,
    around: &mut Vec<&'t DirectiveNode>,
    nodes: &'t [DirectiveNode],
    rules: &RulesByName,
    findings: &mut Vec<CheckFinding>,
) {
    for node in nodes {
        let view = DirectiveView { site, around, node };
        let looking = rules.get(node.name.text.as_slice());
        for &rule in looking.into_iter().flatten() {
            let mut found = Vec::new();
            if findings.len() < MAX_FINDINGS {
                (rule.find)(&view, &mut found);
            }
            findings.extend(found.into_iter().map(|found| CheckFinding { rule, found }));
        }
        let inside = view::directives(node);
        if !inside.is_empty() {
            around.push(node);
            visit(site, around, inside, rules, findings);
            around.pop();
        }
    }
}

/// The beginning of a comment that accepts findings of a rule: at the end of the line, or on the
/// line above.
const ALLOW_COMMENT: &str = "weir check: allow ";

/// Whether such a comment accepts the finding.
fn is_allowed(finding: &CheckFinding, sources: &SourceMap) -> bool {
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
        comment.split_once(ALLOW_COMMENT).is_some_and(|(_, names)| {
            let mut names = names.split([',', ' ']).map(str::trim);
            names.any(|name| name == finding.rule.name)
        })
    };
    // A comment at the end of the line above belongs to that line.
    let only_comment = |line: &[u8]| line.trim_ascii_start().starts_with(b"#");
    names(line) || above.is_some_and(|(line, _)| only_comment(line) && names(line))
}

/// The warnings that `-t` adds: the exploitable findings.
pub(crate) fn warnings(
    nodes: &[DirectiveNode],
    sources: &SourceMap,
    prefix: &Path,
) -> Vec<Diagnostic> {
    let attacks = |rule: &CheckRule| rule.danger == RuleDanger::Attack;
    found_by(attacks, nodes, sources, prefix)
        .iter()
        .map(CheckFinding::diagnostic)
        .collect()
}

#[cfg(test)]
mod tests;
