//! A regular expression of the configuration, with the variables that its named groups set.

use crate::{Diagnostic, Level, Line, Regex, VarId};

/// A pattern.
#[derive(Clone, Debug)]
pub struct Pattern {
    /// The compiled expression.
    pub regex: Regex,
    /// Variables and the groups that they take their values from.
    pub variables: Vec<(VarId, usize)>,
}

impl Pattern {
    /// Compiles word `index` of a directive, or the part `text` of it, and defines the variables of
    /// its named groups, which requests or sessions of type `S` have.
    ///
    /// # Errors
    ///
    /// At the word, when it is no regular expression or a group's name cannot be a variable's.
    pub fn compile<S: 'static>(
        line: &mut Line,
        index: usize,
        text: &[u8],
        caseless: bool,
    ) -> Result<Pattern, Diagnostic> {
        let regex = line.regex(index, text, caseless)?;
        Pattern::of::<S>(line.level, regex).map_err(|message| line.error_at(index, message))
    }

    /// The same for an expression that is compiled. The error is a message.
    pub fn of<S: 'static>(level: &mut Level, regex: Regex) -> Result<Pattern, String> {
        level.build.needs().executable_memory = true;
        let mut variables = Vec::new();
        for (group, name) in regex.names() {
            if let Some(registry) = level.registry::<S>() {
                variables.push((registry.slot(name)?, *group));
            }
        }
        Ok(Pattern { regex, variables })
    }
}

impl AsRef<Regex> for Pattern {
    fn as_ref(&self) -> &Regex {
        &self.regex
    }
}
