//! Directives that a configuration must not have.
//!
//! A program that writes the configuration from what other people ask for, such as an ingress controller, can have holes
//! through which they add lines of their own. A line at the top, which they cannot take back, names what the program itself
//! never writes.

use base::ByteSlice;

use crate::spelling::nearest_name;
use crate::tree::DirectiveNode;

/// The directive that names them.
pub const REFUSE_DIRECTIVES: &str = "refuse_directives";

/// The names that `refuse_directives` lines have.
#[derive(Clone, Debug, Default)]
pub struct RefusedDirectives(Vec<String>);

impl RefusedDirectives {
    /// Those of the main context's lines, wherever they are in it.
    pub fn of(nodes: &[DirectiveNode]) -> RefusedDirectives {
        let lines = nodes
            .iter()
            .filter(|node| node.name.text == REFUSE_DIRECTIVES);
        let names = lines.flat_map(|node| &*node.args);
        RefusedDirectives(
            names
                .map(|name| name.text.to_str_lossy().into_owned())
                .collect(),
        )
    }

    /// Whether a directive is one of them.
    pub fn contains(&self, name: &str) -> bool {
        self.0.iter().any(|refused| is_named(name, refused))
    }
}

/// Whether `refused`, which may begin with `*`, means this directive. The directive that refuses is never meant.
fn is_named(name: &str, refused: &str) -> bool {
    let is_named = match refused.strip_prefix('*') {
        Some(end) => name.ends_with(end),
        None => name == refused,
    };
    is_named && name != REFUSE_DIRECTIVES
}

/// An error for a name that no directive has: a typing error would let pass what was meant.
pub fn check_refused<'a>(
    refused: &str,
    known: impl Iterator<Item = &'a str> + Clone,
) -> Result<(), String> {
    if known.clone().any(|name| is_named(name, refused)) {
        return Ok(());
    }
    Err(match nearest_name(refused, known) {
        Some(near) => format!("no directive is named \"{refused}\"; did you mean \"{near}\"?"),
        None => format!("no directive is named \"{refused}\""),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_endings() {
        let refused = RefusedDirectives(vec!["root".to_owned(), "*_by_lua_block".to_owned()]);
        for (name, expected) in [
            ("root", true),
            ("server_root", false),
            ("content_by_lua_block", true),
            ("content_by_lua_file", false),
        ] {
            assert_eq!(refused.contains(name), expected, "{name}");
        }
        assert!(!RefusedDirectives(vec!["*".to_owned()]).contains(REFUSE_DIRECTIVES));
        let known = ["root", "alias"].into_iter();
        assert_eq!(check_refused("alias", known.clone()), Ok(()));
        let expected = "no directive is named \"rooot\"; did you mean \"root\"?";
        assert_eq!(check_refused("rooot", known), Err(expected.to_owned()));
    }
}
