//! The commands and configurations of the README, the guide and `weir --help`, run as they stand there. A command of a kind
//! that is not known here fails the test, so that each new one is thought about.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use weir_tests::{Port, Signal, run, server_path, skip_on_oracle, until, whole};

const WHY: &str = "they are commands of Weir";

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The README and the pages of the guide.
fn pages() -> Vec<(String, String)> {
    let guide = fs::read_dir(project().join("docs/guide")).expect("the guide is there");
    let mut paths: Vec<PathBuf> = guide.flatten().map(|entry| entry.path()).collect();
    paths.push(project().join("README.md"));
    paths.sort();
    let page = |path: PathBuf| {
        (
            path.display().to_string(),
            fs::read_to_string(path).expect("text"),
        )
    };
    paths.into_iter().map(page).collect()
}

/// The blocks of one language in a page.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut block: Option<String> = None;
    for line in page.lines() {
        match (&mut block, line.strip_prefix("```")) {
            (Some(_), Some(_)) => found.extend(block.take()),
            (Some(text), None) => text.extend([line, "\n"]),
            // A file's name may follow; one that is broken on purpose is not read.
            (None, Some(name)) if name == language || name == format!("{language} site.conf") => {
                block = Some(String::new());
            }
            (None, _) => {}
        }
    }
    found
}

/// The words of a command, without what a comment says.
fn words(line: &str) -> Vec<String> {
    let line = line.split(" #").next().unwrap_or_default();
    let mut words = Vec::new();
    for (index, part) in line.split('\'').enumerate() {
        match index % 2 {
            0 => words.extend(part.split_whitespace().map(str::to_owned)),
            _ => words.push(part.to_owned()),
        }
    }
    words
}

/// Copies a folder.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("the site's folder is writable");
    for entry in fs::read_dir(from).expect("it is there").flatten() {
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        match path.is_dir() {
            true => copy(&path, &target),
            false => drop(fs::copy(&path, &target).expect("it can be copied")),
        }
    }
}

/// Starts a server of a command, waits until it listens, and stops it.
fn serves(arguments: &[String], folder: &Path, port: u16) {
    let log = fs::File::create(folder.join("said")).expect("the folder is writable");
    let child = Command::new(std::path::absolute(server_path()).expect("a path"))
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn();
    let mut child = Guard(child.expect("the binary runs"));
    let listens = || std::net::TcpStream::connect(("127.0.0.1", port)).ok();
    let said = || fs::read_to_string(folder.join("said")).unwrap_or_default();
    assert!(
        until(listens).is_some(),
        "{arguments:?} does not listen: {}",
        said()
    );
    let pid = rustix::process::Pid::from_child(&child.0);
    rustix::process::kill_process(pid, Signal::TERM).expect("it lives");
    let status = until(|| child.0.try_wait().expect("our own child"));
    assert!(
        status.is_some_and(|status| status.success()),
        "{arguments:?}: {}",
        said()
    );
}

struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        // It has mostly ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a command in a copy of the examples. False if it is none that is known here.
fn runs(line: &str) -> bool {
    let mut words = words(line);
    if words.is_empty() {
        return true;
    }
    if line.starts_with("cargo run --release -- ") {
        words.splice(0..4, ["weir".to_owned()]);
    }
    let command = words.remove(0);
    let is_weir = command == "weir" || command == "target/release/weir";
    let system = words.iter().any(|word| word.starts_with("/etc/"));
    let first = words.first().map(String::as_str).unwrap_or_default();
    let of_system = [
        "apt",
        "systemctl",
        "journalctl",
        "kill",
        "cat",
        "old=$(cat",
        "docker",
        "helm",
        "kubectl",
        "skopeo",
    ];
    if of_system.contains(&command.as_str()) {
        // They change the machine that the packages are installed on.
        return true;
    }
    if command == "cargo" || is_weir && (system || words.is_empty()) {
        // Builds, and what needs a system's own configuration.
        return true;
    }
    if command.starts_with("packaging/") {
        // Works on an image, which is not here.
        return project().join(&command).is_file();
    }
    if !is_weir {
        return false;
    }
    let port = Port::take();
    let number = port.number();
    let site = whole("");
    let folder = site.path("");
    copy(&project().join("examples"), &folder.join("examples"));
    copy(&project().join("examples/site"), &folder.join("public"));
    fs::write(
        folder.join("server.conf"),
        format!("events {{}} http {{ server {{ listen 127.0.0.1:{number}; }} }}"),
    )
    .expect("the folder is writable");
    let example = folder.join("examples/static.conf");
    let text = fs::read_to_string(&example).expect("the example is there");
    fs::write(&example, text.replace("8080", &number.to_string())).expect("a copy");
    drop(port);
    match first {
        "serve" | "proxy" => {
            // Elsewhere a port may be taken, and others may listen.
            let at = words.iter().position(|word| word == "--port");
            match at {
                Some(at) => words[at + 1] = number.to_string(),
                None => words.extend(["--port".to_owned(), number.to_string()]),
            }
            if words.iter().any(|word| word.starts_with("https:")) && !trusts() {
                words.push("--insecure".to_owned());
            }
            words.retain(|word| word != "--open");
            serves(&words, &folder, number);
            true
        }
        // Where the script goes is the shell's.
        "completions" => in_folder(&words[..2.min(words.len())], &folder).0,
        "help" | "init" | "--version" | "--help" | "-t" | "-h" => {
            let finished = in_folder(&words, &folder);
            assert!(finished.0, "{line}: {}", finished.1);
            true
        }
        // Nothing serves here; the filter is judged before that is found out.
        "tail" | "top" => {
            words.truncate(
                words
                    .iter()
                    .position(|word| word == ">")
                    .unwrap_or(words.len()),
            );
            words.extend(["--pid".to_owned(), "nowhere.pid".to_owned()]);
            let said = in_folder(&words, &folder).1;
            assert!(said.contains("no server is running"), "{line}: {said}");
            true
        }
        "fmt" => {
            fs::write(folder.join("nginx.conf"), "events {}").expect("the folder is writable");
            let end = words.iter().position(|word| word == "<");
            words.truncate(end.unwrap_or(words.len()));
            let laid_out = in_folder(&["fmt".to_owned(), "nginx.conf".to_owned()], &folder);
            let finished = in_folder(&words, &folder);
            assert!(laid_out.0 && finished.0, "{line}: {}", finished.1);
            true
        }
        // Which of the guide's addresses a server has is not the question; its options are.
        "explain" => {
            fs::copy(folder.join("server.conf"), folder.join("site.conf")).expect("it is there");
            if !words.iter().any(|word| word == "-c") {
                words.extend(["-c".to_owned(), "site.conf".to_owned()]);
            }
            let said = in_folder(&words, &folder).1;
            assert!(!said.contains("option"), "{line}: {said}");
            true
        }
        // What it finds, and on which port, is not the same everywhere.
        "check" | "-s" | "upgrade" | "cache" => true,
        "-p" | "-c" if words.iter().any(|word| word == "daemon off;") => {
            serves(&words, &folder, number);
            true
        }
        _ => false,
    }
}

/// Are there certificates on this system that an origin could be verified with?
fn trusts() -> bool {
    Path::new("/etc/ssl/certs/ca-certificates.crt").exists()
}

fn in_folder(words: &[String], folder: &Path) -> (bool, String) {
    let mut command = Command::new(std::path::absolute(server_path()).expect("a path"));
    let output = command
        .args(words)
        .current_dir(folder)
        .stdin(Stdio::null())
        .output();
    let output = output.expect("the binary runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.success(), said)
}

#[test]
fn every_command_of_the_guide_works() {
    if skip_on_oracle(WHY) {
        return;
    }
    let mut unknown = Vec::new();
    let mut count = 0;
    for (path, page) in pages() {
        for line in blocks(&page, "sh").iter().flat_map(|block| block.lines()) {
            count += 1;
            if !runs(line) {
                unknown.push(format!("{path}: {line}"));
            }
        }
    }
    assert!(
        unknown.is_empty(),
        "not run, say how in tests/server/guide.rs:\n{}",
        unknown.join("\n")
    );
    assert!(count > 10, "{count} commands were found");
}

#[test]
fn every_example_of_the_help_works() {
    if skip_on_oracle(WHY) {
        return;
    }
    let help = run(&["--help"]).stdout;
    let (_, examples) = help.split_once("Examples:\n").expect("it has examples");
    for line in examples.lines() {
        let site = whole("");
        let folder = site.path("");
        for (index, command) in line.split("&&").enumerate() {
            let words = words(command.trim());
            match words.get(1).map(String::as_str) {
                // They build on each other; the last would stay.
                Some("init" | "-t") => {
                    let mut words = words[1..].to_vec();
                    if words[0] == "-t" {
                        words.extend(["-g".to_owned(), "pid own.pid;".to_owned()]);
                    }
                    let (worked, said) = in_folder(&words, &folder);
                    // Port 80 is not everybody's.
                    assert!(worked || said.contains("bind()"), "{command}: {said}");
                }
                _ if index > 0 => {}
                _ => assert!(runs(command.trim()), "{command}"),
            }
        }
    }
}

/// What a block lacks when only it is looked at: files, other blocks, rights.
const OUTSIDE: [&str; 13] = [
    "open()",
    "opendir()",
    "mkdir()",
    "bind()",
    "cannot load",
    "no \"ssl_certificate",
    "is unknown",
    "unknown \"",
    "unknown cluster",
    "host not found",
    "zero size shared memory zone",
    "not found",
    "in upstream",
];

/// Is the block read without a complaint in one of the places where it may stand?
fn is_read(block: &str) -> Result<(), String> {
    const PLACES: [&str; 6] = [
        "%%BLOCK%%",
        "events {} %%BLOCK%%",
        "events {} http { %%BLOCK%% }",
        "events {} http { server { %%BLOCK%% } }",
        "events {} http { server { location / { %%BLOCK%% } } }",
        "events {} stream { %%BLOCK%% }",
    ];
    let mut least: Option<(usize, String)> = None;
    for place in PLACES {
        let said = whole(&place.replace("%%BLOCK%%", &format!("\n{block}\n")))
            .test()
            .stderr;
        let is_own = |line: &&str| {
            line.contains("[emerg]") && !OUTSIDE.iter().any(|outside| line.contains(outside))
        };
        let wrong: Vec<&str> = said.lines().filter(is_own).collect();
        if wrong.is_empty() {
            return Ok(());
        }
        if least.as_ref().is_none_or(|(count, _)| wrong.len() < *count) {
            least = Some((wrong.len(), wrong.join("\n")));
        }
    }
    Err(least.map_or_else(String::new, |(_, said)| said))
}

#[test]
fn every_configuration_of_the_guide_is_read() {
    if skip_on_oracle("some lines are Weir's own") {
        return;
    }
    let mut wrong = Vec::new();
    for (path, page) in pages() {
        for block in blocks(&page, "nginx") {
            if let Err(said) = is_read(&block) {
                wrong.push(format!("{path}:\n{block}\n{said}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
