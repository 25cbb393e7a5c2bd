//! A regular expression of the configuration, with the variables that its named groups set.

use crate::{BlockContext, Diagnostic, DirectiveLine, Regex, VarId};

/// A pattern.
#[derive(Clone, Debug)]
pub struct CapturingPattern {
    /// The compiled expression.
    pub regex: Regex,
    /// Variables and the groups that they take their values from.
    pub variables: Vec<(VarId, usize)>,
}

impl CapturingPattern {
    /// Compiles word `index` of a directive, or the part `text` of it, and defines the variables of
    /// its named groups.
    ///
    /// # Errors
    ///
    /// At the word, when it is no regular expression or a group's name cannot be a variable's.
    pub fn compile(
        line: &mut DirectiveLine,
        index: usize,
        text: &[u8],
        caseless: bool,
    ) -> Result<CapturingPattern, Diagnostic> {
        let regex = line.regex(index, text, caseless)?;
        CapturingPattern::of(line.level, regex).map_err(|message| line.error_at(index, message))
    }

    /// The same for an expression that is compiled. The error is a message.
    pub fn of(level: &mut BlockContext, regex: Regex) -> Result<CapturingPattern, String> {
        level.build.needs().executable_memory = true;
        let mut variables = Vec::new();
        for (group, name) in regex.names() {
            if let Some(variable) = level.names.slot_of(name) {
                variables.push((variable?, *group));
            }
        }
        Ok(CapturingPattern { regex, variables })
    }
}
