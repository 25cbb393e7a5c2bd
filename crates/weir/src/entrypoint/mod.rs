//! `weir entrypoint COMMAND …`: the first process of a container, with the contract of nginx's official image.
//!
//! ```text
//! COMMAND is a server    the files of /docker-entrypoint.d in natural order: *.envsh is sourced, *.sh is executed, if they
//!                        are executable; then COMMAND in the place of this process
//! COMMAND is another     at once, in the place of this process: a shell, a debugger
//! COMMAND is a step      a file of the image in that directory, whose interpreter is this program: see `steps`
//! ```
//!
//! Shell scripts need a shell, and an image without one has none to run. What the official image does by scripts of its own
//! (templates, IPv6, the number of workers) is done here, so that the slim image does it, too.

mod steps;
mod templates;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::terminal;

/// Where a derived image puts its scripts.
const SCRIPTS: &str = "/docker-entrypoint.d";
/// What the official image starts, and derived images name.
const FILE: &str = "/docker-entrypoint.sh";
/// What runs before these commands, by the last part of their path.
const SERVERS: &[&str] = &["nginx", "nginx-debug", "weir"];
/// The first line of the image's own steps.
const STEP_INTERPRETER: &str = "#!/usr/sbin/weir entrypoint";
/// More directories in each other than this are a circle of links.
const MAX_DEPTH: usize = 16;

/// The environment, which scripts change, for those that come after them and for the server.
pub(super) type Environment = BTreeMap<OsString, OsString>;

/// Who says it, and whether anything is to be said.
pub(super) struct EntrypointLog {
    name: String,
    quiet: bool,
}

impl EntrypointLog {
    /// `NGINX_ENTRYPOINT_QUIET_LOGS` silences everything but errors.
    fn new(name: &Path, environment: &Environment) -> EntrypointLog {
        EntrypointLog {
            name: name.display().to_string(),
            quiet: is_set(environment, "NGINX_ENTRYPOINT_QUIET_LOGS"),
        }
    }

    /// What an operator may want to know.
    pub(super) fn info(&self, text: &str) {
        if !self.quiet {
            terminal::report_line(format_args!("{}: {text}", self.name));
        }
    }

    /// What an operator must know.
    fn error(&self, text: &str) {
        terminal::report_line(format_args!("{}: {text}", self.name));
    }
}

/// Runs the command; returns only if that is impossible.
pub(crate) fn run(arguments: &[OsString]) -> i32 {
    let environment: Environment = std::env::vars_os().collect();
    // The file of this name runs this program, which gets its path as the first argument then.
    let arguments = match arguments {
        [first, rest @ ..] if first == FILE => rest,
        all => all,
    };
    let Some(command) = arguments.first() else {
        terminal::report_line(format_args!(
            "weir: usage: weir entrypoint COMMAND [ARG ...]"
        ));
        return 1;
    };
    let command_path = Path::new(command);
    if is_step(command_path) {
        let name = command_path.file_name().unwrap_or_default();
        let log = EntrypointLog::new(Path::new(name), &environment);
        return match steps::run(name, &environment, &log) {
            Ok(_) => 0,
            Err(problem) => {
                log.error(&problem);
                1
            }
        };
    }
    let log = EntrypointLog::new(Path::new(FILE), &environment);
    // A shell or a debugger in a container must start at once, even if the configuration of the server is what is broken:
    // then a user is looking for the reason.
    let is_server = |name: &OsStr| SERVERS.iter().any(|server| name == *server);
    let environment = match command_path.file_name().is_some_and(is_server) {
        false => environment,
        true => match prepare(environment, &log) {
            Ok(environment) => environment,
            Err(problem) => {
                log.error(&problem);
                return 1;
            }
        },
    };
    // Gives an error or nothing: this process has become the other program.
    let error = Command::new(command)
        .args(&arguments[1..])
        .env_clear()
        .envs(&environment)
        .exec();
    log.error(&format!("{}: {error}", command.display()));
    match error.kind() {
        std::io::ErrorKind::NotFound => 127,
        _ => 126,
    }
}

/// Runs the scripts. The first one that fails ends the container.
fn prepare(mut environment: Environment, log: &EntrypointLog) -> Result<Environment, String> {
    let scripts = find_files(Path::new(SCRIPTS));
    // Also when the directory is missing: an image may have removed all steps, and wants the server as it is.
    if scripts.is_empty() {
        log.info(&format!(
            "No files found in {SCRIPTS}/, skipping configuration"
        ));
        return Ok(environment);
    }
    log.info(&format!("Configuring from {SCRIPTS}/"));
    for script in scripts {
        let kind = script.extension().and_then(OsStr::to_str);
        let kind = match kind {
            Some("sh" | "envsh") if !is_executable(&script) => {
                log.info(&format!("Ignoring {}, not executable", script.display()));
                continue;
            }
            Some(kind @ ("sh" | "envsh")) => kind,
            _ => {
                log.info(&format!("Ignoring {}", script.display()));
                continue;
            }
        };
        // A program cannot change the environment of the one that started it, so there are two kinds: what is sourced can.
        // Both end the container if they fail: a server with half of its configuration would be taken for healthy.
        if kind == "sh" {
            log.info(&format!("Launching {}", script.display()));
            launch(&script, &environment)?;
        } else {
            log.info(&format!("Sourcing {}", script.display()));
            environment = source(&script, environment, log)?;
        }
    }
    log.info("Configuration complete; ready for start up");
    Ok(environment)
}

/// Runs a script as a program, whatever its interpreter.
fn launch(script: &Path, environment: &Environment) -> Result<(), String> {
    let status = Command::new(script)
        .env_clear()
        .envs(environment)
        .status()
        .map_err(|error| format!("{}: {error}", script.display()))?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("{}: {status}", script.display())),
    }
}

/// Reads a script into a shell, and takes over the environment that it leaves. What it prints goes to standard error.
fn source(
    script: &Path,
    environment: Environment,
    log: &EntrypointLog,
) -> Result<Environment, String> {
    if is_step(script) {
        let name = script.file_name().unwrap_or_default();
        return Ok(match steps::run(name, &environment, log)? {
            Some(changed) => changed,
            None => environment,
        });
    }
    let output = Command::new("/bin/sh")
        .args(["-ec", r#". "$1" >&2; exec env -0"#, "sh"])
        .arg(script)
        .env_clear()
        .envs(&environment)
        .stderr(std::process::Stdio::inherit())
        .output()
        .map_err(|error| format!("/bin/sh for {}: {error}", script.display()))?;
    if !output.status.success() {
        return Err(format!("{}: {}", script.display(), output.status));
    }
    let mut changed = parse_environment(&output.stdout);
    // The shell's own, which were never asked for.
    for name in ["_", "PWD", "OLDPWD", "SHLVL"] {
        if !environment.contains_key(OsStr::new(name)) {
            changed.remove(OsStr::new(name));
        }
    }
    Ok(changed)
}

/// `NAME=VALUE`, each ended by a zero byte.
fn parse_environment(bytes: &[u8]) -> Environment {
    let pairs = bytes.split(|byte| *byte == 0).filter_map(|line| {
        let at = line.iter().position(|byte| *byte == b'=')?;
        let text = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
        Some((text(&line[..at]), text(&line[at + 1..])))
    });
    pairs.collect()
}

/// Whether a variable has a value that is not empty.
pub(super) fn is_set(environment: &Environment, name: &str) -> bool {
    !variable(environment, name).is_empty()
}

/// The value of a variable; empty if there is none.
pub(super) fn variable<'a>(environment: &'a Environment, name: &str) -> &'a OsStr {
    environment
        .get(OsStr::new(name))
        .map_or(OsStr::new(""), OsString::as_os_str)
}

/// The files below a directory, links followed, in natural order: `9-a` before `10-b`.
pub(super) fn find_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    add_files(folder, MAX_DEPTH, &mut found);
    found.sort_by(|one, other| {
        natural_order(one.as_os_str().as_bytes(), other.as_os_str().as_bytes())
    });
    found
}

/// Adds the files of a folder and those below it.
fn add_files(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        // Of what is behind a link.
        let Ok(facts) = std::fs::metadata(&path) else {
            continue;
        };
        if facts.is_file() {
            found.push(path);
        } else if facts.is_dir() && depth > 0 {
            add_files(&path, depth - 1, found);
        }
    }
}

/// Numbers in the text count by their value.
fn natural_order(one: &[u8], other: &[u8]) -> std::cmp::Ordering {
    let digits = |text: &[u8]| text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (mut left, mut right) = (one, other);
    loop {
        let (a, b) = (digits(left), digits(right));
        if a > 0 && b > 0 {
            let value = |text: &[u8]| {
                text.iter()
                    .position(|byte| *byte != b'0')
                    .unwrap_or(text.len())
            };
            let numbers = (&left[..a], &right[..b]);
            let numbers = (
                &numbers.0[value(numbers.0)..],
                &numbers.1[value(numbers.1)..],
            );
            // Without leading zeros the longer number is the greater one.
            let by_value = numbers
                .0
                .len()
                .cmp(&numbers.1.len())
                .then(numbers.0.cmp(numbers.1));
            if by_value.is_ne() {
                return by_value;
            }
            (left, right) = (&left[a..], &right[b..]);
            continue;
        }
        match (left.split_first(), right.split_first()) {
            (Some((x, rest)), Some((y, others))) if x == y => (left, right) = (rest, others),
            // Equal but for zeros in front of numbers: any order that is always the same.
            (None, None) => return one.cmp(other),
            (x, y) => return x.map(|(byte, _)| byte).cmp(&y.map(|(byte, _)| byte)),
        }
    }
}

/// Whether any execute bit is set: a script without that bit is reported and left out, as in the official image.
fn is_executable(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|facts| facts.permissions().mode() & 0o111 != 0)
}

/// Whether a file is one of the image's own, and not one that a derived image has put in its place.
fn is_step(path: &Path) -> bool {
    use std::io::Read as _;
    let mut start = vec![0; STEP_INTERPRETER.len() + 1];
    path.parent() == Some(Path::new(SCRIPTS))
        && std::fs::File::open(path)
            .and_then(|mut file| file.read_exact(&mut start))
            .is_ok()
        && start == format!("{STEP_INTERPRETER}\n").as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_count_by_their_value() {
        let mut names = ["30-x", "9-z", "10-b", "010-a", "9-a", "a", "10-b.sh", ""];
        names.sort_by(|one, other| natural_order(one.as_bytes(), other.as_bytes()));
        assert_eq!(
            names,
            ["", "9-a", "9-z", "010-a", "10-b", "10-b.sh", "30-x", "a"]
        );
    }

    #[test]
    fn an_environment_is_read() {
        let read = parse_environment(b"A=1\0B=x=y\nz\0C=\0broken\0");
        let text = |name| {
            read.get(OsStr::new(name))
                .map(|value| value.to_string_lossy())
        };
        assert_eq!(text("A").as_deref(), Some("1"));
        assert_eq!(text("B").as_deref(), Some("x=y\nz"));
        assert_eq!(text("C").as_deref(), Some(""));
        assert_eq!(read.len(), 3);
    }
}
