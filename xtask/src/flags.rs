//! `--name value` and `--name` on the command line of a task.

use std::str::FromStr;

/// The arguments that no question has taken yet.
#[derive(Debug)]
pub(crate) struct Flags {
    rest: Vec<String>,
}

impl Flags {
    pub(crate) fn new(arguments: impl Iterator<Item = String>) -> Self {
        Self {
            rest: arguments.collect(),
        }
    }

    /// Takes a flag without a value.
    pub(crate) fn has(&mut self, name: &str) -> bool {
        let before = self.rest.len();
        self.rest.retain(|word| word != name);
        self.rest.len() < before
    }

    /// Takes `name VALUE`, or gives the default.
    pub(crate) fn value<T: FromStr>(&mut self, name: &str, default: T) -> Result<T, String> {
        let Some(at) = self.rest.iter().position(|word| word == name) else {
            return Ok(default);
        };
        if at + 1 == self.rest.len() {
            return Err(format!("{name} needs a value"));
        }
        let text = self.rest.remove(at + 1);
        self.rest.remove(at);
        text.parse()
            .map_err(|_| format!("{name} cannot be {text:?}"))
    }

    /// Refuses what nobody asked for.
    pub(crate) fn finish(&self) -> Result<(), String> {
        match self.rest.first() {
            Some(word) => Err(format!("unknown flag {word:?}")),
            None => Ok(()),
        }
    }
}
