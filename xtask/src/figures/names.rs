//! How well the names of types tell them apart: how many share a name, how many have a single word.

use std::collections::HashMap;

use crate::rust::file::RustFile;
use crate::rust::types;

use super::percent;

/// Names that belong to the shape of a module: each has one, and is read beside its table.
const EXEMPT: &[&str] = &["Conf"];

/// A type with how many there are of its name.
pub(crate) struct Named {
    pub(crate) path: String,
    pub(crate) line: usize,
    pub(crate) kind: &'static str,
    pub(crate) name: String,
    /// The types of this name, this one included.
    pub(crate) namesakes: usize,
    pub(crate) is_one_word: bool,
}

/// The names of some types in numbers.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Crowd {
    pub(crate) count: usize,
    /// Types whose name another one has too.
    pub(crate) shared: usize,
    pub(crate) one_word: usize,
}

impl Crowd {
    fn add(&mut self, named: &Named) {
        self.count += 1;
        self.shared += usize::from(named.namesakes > 1);
        self.one_word += usize::from(named.is_one_word);
    }

    pub(crate) fn shared_percent(self) -> String {
        percent(self.shared, self.count)
    }

    pub(crate) fn one_word_percent(self) -> String {
        percent(self.one_word, self.count)
    }
}

/// All types of the product, without those that are exempt.
pub(crate) struct TypeNames {
    pub(crate) types: Vec<Named>,
    pub(crate) all: Crowd,
    pub(crate) crates: HashMap<String, Crowd>,
}

impl TypeNames {
    pub(crate) fn of(files: &[&RustFile]) -> Self {
        let mut types: Vec<Named> = files.iter().flat_map(|file| named(file)).collect();
        let mut namesakes: HashMap<String, usize> = HashMap::new();
        for found in &types {
            *namesakes.entry(found.name.clone()).or_default() += 1;
        }
        let mut names = Self {
            types: Vec::new(),
            all: Crowd::default(),
            crates: HashMap::new(),
        };
        for found in &mut types {
            found.namesakes = namesakes[&found.name];
            names.all.add(found);
            let name = found.path.split('/').nth(1).unwrap_or_default();
            names.crates.entry(name.to_owned()).or_default().add(found);
        }
        names.types = types;
        names
    }
}

fn named(file: &RustFile) -> Vec<Named> {
    let found = types::of(file).into_iter();
    found
        .filter(|found| !EXEMPT.contains(&found.name.as_str()))
        .map(|found| Named {
            path: file.path.clone(),
            line: found.line,
            kind: found.kind,
            is_one_word: types::word_count(&found.name) == 1,
            name: found.name,
            namesakes: 1,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_in_two_files_is_counted_for_both() {
        let file = |name, text| RustFile::new(&format!("crates/{name}/src/lib.rs"), text);
        let files = [
            file("a", "struct Place;\nstruct Conf;\n"),
            file("b", "enum Place {}\nstruct CacheZone;\n"),
        ];
        let names = TypeNames::of(&files.iter().collect::<Vec<_>>());
        assert_eq!(
            (names.all.count, names.all.shared, names.all.one_word),
            (3, 2, 2)
        );
        assert_eq!(names.crates["b"].shared, 1);
    }
}
