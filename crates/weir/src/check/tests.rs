//! Every rule with its own examples.

use std::path::Path;

use conf::FileSnapshot;

use super::{CheckFinding, findings, rules};

/// The names of the rules that find something in `http { … }` with this content.
fn names(text: &str) -> Vec<&'static str> {
    of_whole(&format!("http {{ {text}\n }}"))
}

fn of_whole(text: &str) -> Vec<&'static str> {
    let mut files = FileSnapshot::default();
    files.insert("/etc/x/nginx.conf", text);
    let (tree, errors) = conf::parse_tolerant(Path::new("/etc/x/nginx.conf"), &mut files, None);
    assert!(errors.is_empty(), "{errors:?} in {text}");
    let found = findings(&tree.nodes, &tree.sources, Path::new("/etc/x"));
    found
        .iter()
        .map(|finding: &CheckFinding| finding.rule.name)
        .collect()
}

#[test]
fn every_rule_finds_its_bad_example_and_nothing_in_the_good_one() {
    let mut wrong = Vec::new();
    for rule in rules::all() {
        let (bad, good) = (names(rule.bad), names(rule.good));
        if bad != [rule.name] || !good.is_empty() {
            wrong.push(format!("{}: {bad:?}, then {good:?}", rule.name));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Long blocks are looked up by name, and are indexed once.
#[test]
fn a_long_block_is_judged_like_a_short_one() {
    let filler = "tcp_nopush on; ".repeat(40);
    for rule in rules::all() {
        for example in [rule.bad, rule.good] {
            let longer = example
                .replace("server {", &format!("server {{ {filler}"))
                .replace("location / {", &format!("location / {{ {filler}"));
            let longer = format!("{filler} {longer} {filler}");
            assert_eq!(names(&longer), names(example), "{}", rule.name);
        }
    }
}

#[test]
fn names_are_unique_and_what_is_said_is_whole() {
    let mut names: Vec<&str> = rules::all().map(|rule| rule.name).collect();
    names.sort_unstable();
    let count = names.len();
    names.dedup();
    assert_eq!(names.len(), count);
    for rule in rules::all() {
        assert!(
            !rule.at.is_empty() && rule.why.len() > 20 && rule.write.len() > 10,
            "{}",
            rule.name
        );
    }
}
