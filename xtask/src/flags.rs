//! `--name value` and `--name` on the command line of a task.

use std::str::FromStr;

/// The arguments that no question has taken yet.
#[derive(Debug)]
pub struct Flags {
    rest: Vec<String>,
}

impl Flags {
    /// All arguments, none of them taken yet.
    pub fn new(arguments: impl Iterator<Item = String>) -> Self {
        Self {
            rest: arguments.collect(),
        }
    }

    /// Takes a flag without a value.
    pub fn has(&mut self, name: &str) -> bool {
        let before = self.rest.len();
        self.rest.retain(|word| word != name);
        self.rest.len() < before
    }

    /// Takes `name VALUE`, or gives the default.
    pub fn value<T: FromStr>(&mut self, name: &str, default: T) -> Result<T, String> {
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

    /// Takes all that is left, for another program.
    pub fn take_rest(&mut self) -> Vec<String> {
        std::mem::take(&mut self.rest)
    }

    /// Refuses what nobody asked for.
    pub fn finish(&self) -> Result<(), String> {
        match self.rest.first() {
            Some(word) => Err(format!("unknown flag {word:?}")),
            None => Ok(()),
        }
    }
}
