//! The names of types that a file defines.

use super::file::RustFile;
use super::words;

/// A `struct`, `enum`, `trait`, `union` or `type` of the product.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TypeName {
    pub(crate) name: String,
    /// From 1.
    pub(crate) line: usize,
    pub(crate) kind: &'static str,
}

const KINDS: &[&str] = &["struct", "enum", "trait", "union", "type"];

/// The types of a file from the top down, without the associated types of traits.
pub(crate) fn of(file: &RustFile) -> Vec<TypeName> {
    file.production()
        .filter_map(|(line, text)| {
            let (kind, name) = defined(&text.code)?;
            Some(TypeName {
                name: name.to_owned(),
                line,
                kind,
            })
        })
        .collect()
}

fn defined(code: &str) -> Option<(&'static str, &str)> {
    let mut rest = code.trim_start();
    if let Some(behind) = rest.strip_prefix("pub") {
        rest = match behind.strip_prefix('(') {
            Some(path) => path.split_once(')')?.1,
            None => behind,
        };
    }
    rest = rest.trim_start();
    rest = rest.strip_prefix("unsafe ").unwrap_or(rest);
    let kind = KINDS.iter().find(|kind| {
        rest.strip_prefix(**kind)
            .is_some_and(|behind| behind.starts_with(' '))
    })?;
    let name = words::leading(rest[kind.len()..].trim_start());
    let is_associated = *kind == "type" && code.starts_with(' ');
    let is_name = name.starts_with(|char: char| char.is_ascii_uppercase());
    (is_name && !is_associated).then_some((kind, name))
}

/// How many words a name consists of: `CacheZone` has two.
pub(crate) fn word_count(name: &str) -> usize {
    name.bytes().filter(u8::is_ascii_uppercase).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_are_found_and_uses_are_not() {
        let text = "pub(crate) struct CacheZone<T>(T);\nenum A {}\nlet b: Struct;\n    type Item = u8;\ntype Outcome = u8;\npub unsafe trait Sound {}\n";
        let names: Vec<_> = of(&RustFile::new("crates/x/src/a.rs", text))
            .into_iter()
            .map(|found| (found.line, found.kind, found.name))
            .collect();
        assert_eq!(
            names,
            [
                (1, "struct", "CacheZone".to_owned()),
                (2, "enum", "A".to_owned()),
                (5, "type", "Outcome".to_owned()),
                (6, "trait", "Sound".to_owned())
            ]
        );
        assert_eq!(word_count("CacheZone"), 2);
    }
}
