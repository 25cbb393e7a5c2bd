//! A regular expression of the configuration together with the variables that its named groups set.

use conf::{Diagnostic, Line, Regex, VarId};

use crate::request::Request;

/// A pattern.
#[derive(Clone, Debug)]
pub struct Pattern {
    /// The compiled expression.
    pub regex: Regex,
    /// Variables and the groups that they take their values from.
    pub variables: Vec<(VarId, usize)>,
}

impl Pattern {
    /// Compiles word `index` of a directive, or the part `text` of it, and defines the variables of its named groups.
    pub fn compile(
        line: &mut Line,
        index: usize,
        text: &[u8],
        caseless: bool,
    ) -> Result<Pattern, Diagnostic> {
        let regex = line.regex(index, text, caseless)?;
        let mut variables = Vec::new();
        for (group, name) in regex.names() {
            let Some(registry) = line.level.registry::<Request>() else {
                continue;
            };
            let variable = registry
                .slot(name)
                .map_err(|message| line.error_at(index, message))?;
            variables.push((variable, *group));
        }
        Ok(Pattern { regex, variables })
    }
}

impl AsRef<Regex> for Pattern {
    fn as_ref(&self) -> &Regex {
        &self.regex
    }
}
