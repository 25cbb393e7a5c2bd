//! The password of `weir serve --password`: where it comes from, and how it stays out of the process
//! list.
//!
//! Every user of a machine can read the arguments of all processes. A password among them is moved to
//! the environment, which only its owner can read, by executing the binary again: the process and its
//! id stay the same. It remains visible for the moment until then, and in the shell's history;
//! the other ways have neither.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead as _, IsTerminal as _, Read as _};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use crate::terminal;

/// The environment variable that has the password.
pub(crate) const VARIABLE: &str = "WEIR_PASSWORD";

/// The longest password that is read from standard input.
const MAX_LENGTH: u64 = 1024;

/// A user and a password.
pub(crate) struct UserCredentials {
    pub(crate) user: String,
    pub(crate) password: Vec<u8>,
}

/// Executes the binary again if the option's value has a password, with the user alone in its place.
/// Returns only if there is nothing to hide, or if it could not be hidden.
pub(crate) fn hide_from_process_list(option: &str) {
    let Some((user, password)) = option.split_once(':') else {
        return;
    };
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let executed = std::env::current_exe().map(|binary| {
        let mut command = Command::new(binary);
        command.env(VARIABLE, password);
        if let Some(name) = arguments.first() {
            command.arg0(name);
        }
        command.args(without_password(&arguments, option, user).iter().skip(1));
        // It returns only if it fails.
        command.exec()
    });
    let (Ok(error) | Err(error)) = executed;
    terminal::report_line(format_args!(
        "weir: other users of this machine can see the password in the process list ({error})"
    ));
}

/// The command line with the user in the place of user and password.
fn without_password(arguments: &[OsString], option: &str, user: &str) -> Vec<OsString> {
    let mut replaced: Vec<OsString> = Vec::with_capacity(arguments.len());
    for argument in arguments {
        let follows = replaced.last().is_some_and(|word| word == "--password");
        let text = argument.to_string_lossy();
        replaced.push(match text.strip_prefix("--password=") {
            Some(value) if value == option => format!("--password={user}").into(),
            None if follows && text == option => OsStr::new(user).to_owned(),
            Some(_) | None => argument.clone(),
        });
    }
    replaced
}

/// The credentials for the value of `--password`: the password is in it, in the environment, or on
/// standard input.
pub(crate) fn read_credentials(option: &str) -> Result<UserCredentials, String> {
    if let Some((user, password)) = option.split_once(':') {
        return checked(user, password.as_bytes().to_vec());
    }
    match std::env::var_os(VARIABLE) {
        Some(password) => checked(option, password.into_vec()),
        None => checked(option, read_input(option)?),
    }
}

fn checked(user: &str, password: Vec<u8>) -> Result<UserCredentials, String> {
    if password.is_empty() {
        return Err(format!(
            "no password for the user \"{user}\": set {VARIABLE}, or give it on standard input"
        ));
    }
    let user = user.to_owned();
    Ok(UserCredentials { user, password })
}

/// The first line of standard input. A terminal asks for it, and does not show what is typed.
fn read_input(user: &str) -> Result<Vec<u8>, String> {
    let input = std::io::stdin();
    let is_terminal = input.is_terminal();
    if is_terminal {
        terminal::report_text(format_args!("Password for {user}: "));
        set_echo("-echo")?;
    }
    let mut line = Vec::new();
    let read = input.lock().take(MAX_LENGTH).read_until(b'\n', &mut line);
    if is_terminal {
        set_echo("echo")?;
        terminal::report_line(format_args!(""));
    }
    read.map_err(|error| format!("the password cannot be read: {error}"))?;
    while line
        .last()
        .is_some_and(|byte| matches!(byte, b'\n' | b'\r'))
    {
        line.pop();
    }
    Ok(line)
}

/// Whether the terminal shows what is typed.
fn set_echo(mode: &str) -> Result<(), String> {
    let done = Command::new("stty")
        .arg(mode)
        .stderr(Stdio::null())
        .status();
    match done.is_ok_and(|status| status.success()) {
        true => Ok(()),
        false => Err(format!(
            "the terminal cannot hide a password; set {VARIABLE}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_option_is_replaced() {
        let replaced = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            without_password(&words, "me:a:b", "me")
        };
        assert_eq!(
            replaced(&["weir", "serve", "me:a:b", "--password", "me:a:b"]),
            ["weir", "serve", "me:a:b", "--password", "me"]
        );
        assert_eq!(
            replaced(&["weir", "--password=me:a:b"]),
            ["weir", "--password=me"]
        );
    }
}
