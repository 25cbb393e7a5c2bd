//! No other runtime is compiled into the binary, whatever a library would like.

use std::time::Duration;

use xtask::shell;

use super::Finding;
use super::source::Source;

const RUNTIMES: &[&str] = &[
    "async-std",
    "async-io",
    "smol",
    "mio",
    "actix-rt",
    "glommio",
    "monoio",
];

/// `instant-acme` names tokio's timer for a way of waiting that we do not use; the timer alone has no runtime.
const TIMER_ONLY: (&str, &[&str]) = ("tokio", &["default", "time"]);

pub(super) fn is_ours_alone(_: &[Source], findings: &mut Vec<Finding>) {
    let mut tree = shell::cargo();
    tree.args([
        "tree",
        "--locked",
        "--package",
        "weir",
        "--edges",
        "normal",
        "--prefix",
        "none",
        "--format",
        "{p} {f}",
    ]);
    match shell::output(&mut tree, Duration::from_secs(120)) {
        Ok(tree) => check(&tree, findings),
        Err(problem) => findings.push(Finding::new(
            "Cargo.lock",
            format!("`cargo tree` must work: {problem}"),
        )),
    }
}

/// Lines like `name v1.2.3 feature,other`.
fn check(tree: &str, findings: &mut Vec<Finding>) {
    let mut names: Vec<&str> = tree.lines().filter(|line| is_runtime(line)).collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        let remedy = format!(
            "`{name}` is compiled into weir: switch off the feature that needs a runtime (`cargo tree -i` shows whose), or take another library"
        );
        findings.push(Finding::new("Cargo.lock", remedy));
    }
}

fn is_runtime(line: &str) -> bool {
    let mut words = line.split_whitespace();
    let name = words.next().unwrap_or_default();
    // Behind the version, and behind the path that a crate of ours has.
    let features = words.next_back().unwrap_or_default().split(',');
    let (timer, allowed) = TIMER_ONLY;
    RUNTIMES.contains(&name)
        || (name == timer
            && features
                .clone()
                .any(|feature| !feature.starts_with('v') && !allowed.contains(&feature)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_is_no_runtime() {
        let found = |tree: &str| {
            let mut findings = Vec::new();
            check(tree, &mut findings);
            findings.len()
        };
        assert_eq!(
            found("weir v0.1.0 (/x)\ntokio v1.54.1 default,time\nbytes v1.1.0\n"),
            0
        );
        assert_eq!(found("tokio v1.54.1\n"), 0);
        assert_eq!(found("tokio v1.54.1 rt,time\ntokio v1.54.1 rt,time\n"), 1);
        assert_eq!(found("smol v2.0.0\n"), 1);
    }
}
