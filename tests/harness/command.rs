//! The server's command line: runs that end by themselves, such as `-t`.

use std::ffi::OsStr;
use std::process::{Command, Output, Stdio};

use crate::binary;

/// What a finished run left: its exit code and what it said.
#[derive(Debug)]
pub struct Finished {
    /// The exit code; -1 when a signal ended it.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error, with the program's name at the start of lines as `weir`.
    pub stderr: String,
}

/// Runs the server under test with these arguments and waits for its end.
pub fn run<S: AsRef<OsStr>>(arguments: &[S]) -> Finished {
    finish(Command::new(binary::path()).args(arguments))
}

/// Runs a command that ends by itself.
pub(crate) fn finish(command: &mut Command) -> Finished {
    let output = command
        .stdin(Stdio::null())
        .env_remove("RUST_LOG")
        .output()
        .expect("the server binary can be executed");
    Finished::from(output)
}

/// Runs a shell script that sees mounts of its own; `$SERVER` is the server under test. `None` where that is not allowed.
pub fn run_with_mounts(script: &str) -> Option<Finished> {
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args([
            "--mount",
            "--propagation",
            "private",
            "--",
            "/bin/sh",
            "-ec",
        ]);
        command
    };
    let allowed = unshare().arg("mount -t tmpfs tmpfs /mnt").output();
    if !allowed.is_ok_and(|output| output.status.success()) {
        println!("skipped: no mounts of our own are allowed here");
        return None;
    }
    Some(finish(unshare().arg(script).env("SERVER", binary::path())))
}

/// Runs the server under test through a symlink of this name, and returns its exit code and both
/// its outputs, unchanged.
pub fn run_as(name: &str, arguments: &[&str]) -> (i32, String) {
    let folder = std::env::temp_dir().join(format!("weir-test-name-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("the temporary folder is writable");
    let link = folder.join(name);
    let _ = std::fs::remove_file(&link);
    std::os::unix::fs::symlink(binary::path(), &link).expect("the temporary folder is writable");
    let output = Command::new(&link)
        .args(arguments)
        .stdin(Stdio::null())
        .output();
    let _ = std::fs::remove_dir_all(&folder);
    let output = output.expect("the server binary can be executed");
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.code().unwrap_or(-1),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

impl From<Output> for Finished {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: own_name(&String::from_utf8_lossy(&output.stderr)),
        }
    }
}

impl Finished {
    /// The first line of standard error.
    pub fn first_line(&self) -> &str {
        self.stderr.lines().next().unwrap_or_default()
    }
}

/// `nginx: [emerg] …` as `weir: [emerg] …`: the messages are the same but for the name.
fn own_name(text: &str) -> String {
    let rename = |line: &str| match line.strip_prefix("nginx: ") {
        Some(rest) => format!("weir: {rest}"),
        None => line.to_owned(),
    };
    text.lines().map(rename).collect::<Vec<_>>().join("\n")
}
