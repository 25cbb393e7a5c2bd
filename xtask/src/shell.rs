//! Running other programs with a bound on their time, and finding our way in the project.

use std::io::{BufRead as _, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::Outcome;

/// Makes the project's folder the current one, so that tasks work from anywhere below it.
pub fn enter_project() -> Outcome {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let project = manifest.parent().expect("xtask lies in the project");
    std::env::set_current_dir(project).map_err(|error| format!("{}: {error}", project.display()))
}

/// The folder where Cargo puts what it builds.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from)
}

/// Cargo itself, the one that runs us.
pub fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Runs a program with its output on the terminal; an exit code other than 0 is an error.
pub fn run(command: &mut Command, limit: Duration) -> Outcome {
    println!("+ {}", shown(command));
    let mut child = command
        .stdin(Stdio::null())
        .spawn()
        .map_err(|error| format!("{}: {error}", shown(command)))?;
    let status = wait(&mut child, limit)?;
    if status {
        Ok(())
    } else {
        Err(format!("failed: {}", shown(command)))
    }
}

/// Runs a program with its output on the terminal and shows `look` each line of it; whether the exit code was 0.
pub fn watch(
    command: &mut Command,
    limit: Duration,
    look: &mut dyn FnMut(&str),
) -> Result<bool, String> {
    lines(command, limit, &mut |line| {
        println!("{line}");
        look(line);
    })
}

/// Runs a program and gives `look` each line of its output, which is not shown otherwise; whether the exit code was 0.
pub fn lines(
    command: &mut Command,
    limit: Duration,
    look: &mut dyn FnMut(&str),
) -> Result<bool, String> {
    println!("+ {}", shown(command));
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{}: {error}", shown(command)))?;
    let output = child.stdout.take();
    std::thread::scope(|scope| {
        // Its end is the end of the lines, also when its time is over.
        let ended = scope.spawn(|| wait(&mut child, limit));
        for line in output
            .into_iter()
            .flat_map(|pipe| BufReader::new(pipe).lines())
        {
            look(&line.unwrap_or_default());
        }
        ended
            .join()
            .unwrap_or_else(|_| Err("nobody waits for it".to_owned()))
    })
}

/// Runs a program quietly and gives its output; an exit code other than 0 is an error that says
/// what the program said.
pub fn output(command: &mut Command, limit: Duration) -> Result<String, String> {
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.map_err(|error| format!("{}: {error}", shown(command)))?;
    // Standard error is short in all our uses, so reading one after the other cannot block.
    let mut text = String::new();
    let mut errors = String::new();
    let reads = child
        .stdout
        .take()
        .map_or(Ok(0), |mut pipe| pipe.read_to_string(&mut text))
        .and_then(|_| {
            child
                .stderr
                .take()
                .map_or(Ok(0), |mut pipe| pipe.read_to_string(&mut errors))
        });
    reads.map_err(|error| format!("{}: {error}", shown(command)))?;
    if wait(&mut child, limit)? {
        Ok(text)
    } else {
        Err(format!("{}: {}{}", shown(command), text, errors))
    }
}

/// Runs a program and says only whether it succeeded.
pub fn succeeds(command: &mut Command) -> bool {
    let output: Result<Output, _> = command.stdin(Stdio::null()).output();
    output.is_ok_and(|output| output.status.success())
}

/// True when a program of this name is in the path, or where Debian puts servers.
pub fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    match program.strip_suffix('*') {
        None => folders
            .into_iter()
            .any(|folder| folder.join(program).is_file()),
        Some(start) => folders
            .into_iter()
            .any(|folder| has_name_with(&folder, start)),
    }
}

fn has_name_with(folder: &Path, start: &str) -> bool {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .into_iter()
        .any(|entry| entry.file_name().to_string_lossy().starts_with(start))
}

/// Waits for a child of ours; kills it when its time is over. Whether its exit code was 0.
pub fn wait(child: &mut Child, limit: Duration) -> Result<bool, String> {
    let deadline = Instant::now() + limit;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status.success()),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(20)),
            Ok(None) => {
                // It may end by itself between the two calls; then there is nothing to kill.
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("not done within {limit:?}"));
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words
        .map(|word| word.to_string_lossy().into_owned())
        .collect::<Vec<_>>()
        .join(" ")
}

/// True when this process runs as root.
pub fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    line.and_then(|line| line.split_whitespace().nth(1))
        .is_some_and(|uid| uid == "0")
}
