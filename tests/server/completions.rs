//! `weir completions`: the scripts, in the shells that this machine has. nginx has no such command.

use std::path::Path;
use std::process::Command;

use weir_tests::{Site, run, skip_on_oracle, whole};

const WHY: &str = "nginx has no completions";

/// A site with the script of a shell, and with something to complete paths with.
fn scripted(shell: &str) -> Site {
    let finished = run(&["completions", shell]);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    whole("")
        .file("html/script", finished.stdout)
        .file("html/my dir/x", "")
        .file("html/site.conf", "")
}

/// What a shell prints for a text of commands; `None` where there is no such shell.
fn shell(name: &str, site: &Site, text: &str) -> Option<String> {
    let is_there = |folder: &str| Path::new(folder).join(name).exists();
    if !["/bin", "/usr/bin", "/usr/local/bin"]
        .iter()
        .any(|folder| is_there(folder))
    {
        println!("skipped: no {name}");
        return None;
    }
    let output = Command::new(name)
        .args(["-c", text])
        .current_dir(site.path("html"))
        .env("HOME", site.path("html"))
        .output()
        .expect("it is there");
    assert!(
        output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The words before the cursor, and what they are completed with.
const CASES: &[(&[&str], &[&str])] = &[
    (&["se"], &["serve"]),
    (&["-s", "re"], &["reload", "reopen"]),
    (&["-c", "si"], &["site.conf"]),
    (&["serve", "--pa"], &["--password"]),
    (&["serve", "my"], &["my dir"]),
    (&["serve", "--port", "80", "my"], &["my dir"]),
    (&["serve", "--port", ""], &[]),
    (&["init", "sta"], &["static"]),
    (&["init", "static", "si"], &["site.conf"]),
    (&["cache", "s"], &["show", "stat"]),
    (&["cache", "ls", "my"], &["my dir"]),
    (&["help", "proxy_pass_h"], &["proxy_pass_header"]),
    (&["check", "--explain", "alias"], &["alias-traversal"]),
    (&["upgrade", "-c", "si"], &["site.conf"]),
    (&["completions", ""], &["bash", "fish", "zsh"]),
];

fn compare(text: &str) {
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), CASES.len(), "{text}");
    for ((words, expected), line) in CASES.iter().zip(lines) {
        let mut found: Vec<&str> = line
            .split('\t')
            .filter(|word| !word.is_empty())
            .map(|word| word.trim_end_matches('/'))
            .collect();
        found.sort_unstable();
        assert_eq!(&found, expected, "{words:?}");
    }
}

#[test]
fn bash_completes() {
    if skip_on_oracle(WHY) {
        return;
    }
    let mut text = String::from("source ./script\n");
    for (words, _) in CASES {
        let words: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
        text.push_str(&format!(
            "COMP_WORDS=(weir {}); COMP_CWORD={}; _weir; printf '%s\\t' \"${{COMPREPLY[@]}}\"; echo\n",
            words.join(" "),
            words.len()
        ));
    }
    if let Some(found) = shell("bash", &scripted("bash"), &text) {
        compare(&found);
    }
}

#[test]
fn fish_completes() {
    if skip_on_oracle(WHY) {
        return;
    }
    let mut text = String::from("source ./script\n");
    for (words, _) in CASES {
        let line = words.join(" ");
        text.push_str(&format!(
            "printf '%s\\t' (complete -C 'weir {line}' | string split -f1 \\t); echo\n"
        ));
    }
    if let Some(found) = shell("fish", &scripted("fish"), &text) {
        compare(&found);
    }
}

/// zsh completes at a prompt only, so that its script is parsed here, and registers itself.
#[test]
fn zsh_takes_its_script() {
    if skip_on_oracle(WHY) {
        return;
    }
    let text = "autoload -U compinit; compinit -u -D; source ./script; echo $_comps[weir]";
    if let Some(found) = shell("zsh", &scripted("zsh"), text) {
        assert_eq!(found.trim(), "_weir");
    }
    let script = run(&["completions", "zsh"]).stdout;
    for part in ["'serve:", "--password'[", "'1:argument:(static spa"] {
        assert!(script.contains(part), "{part} in {script}");
    }
}
