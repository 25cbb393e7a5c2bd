//! What is counted in files.

use crate::rust::file::RustFile;
use crate::rust::functions;
use crate::rust::words;

/// The numbers of some files.
#[derive(Default)]
pub(super) struct Count {
    pub(super) code: usize,
    /// Lines that are comment only.
    pub(super) comments: usize,
    /// Comments that are no documentation, by lines.
    pub(super) inline: usize,
    pub(super) functions: Functions,
    /// Lines of the product for each file.
    pub(super) files: Sizes,
    pub(super) public: usize,
    pub(super) undocumented: usize,
    pub(super) unsafes: usize,
    pub(super) unwraps: usize,
    pub(super) expects: usize,
    pub(super) panics: usize,
    pub(super) allows: usize,
    /// What is still to be done, by its own words.
    pub(super) marks: usize,
    pub(super) macros: usize,
    /// Types for shared or mutable ownership.
    pub(super) shared: usize,
    pub(super) poisons: usize,
}

/// The numbers of functions.
#[derive(Default)]
pub(super) struct Functions {
    pub(super) sizes: Sizes,
    pub(super) many_parameters: usize,
    pub(super) deep: usize,
    pub(super) one_word: usize,
}

/// Lengths in lines.
#[derive(Default)]
pub(super) struct Sizes {
    sizes: Vec<usize>,
}

impl Sizes {
    pub(super) fn len(&self) -> usize {
        self.sizes.len()
    }

    pub(super) fn above(&self, bound: usize) -> usize {
        self.sizes.iter().filter(|size| **size > bound).count()
    }

    /// How many are longer, with their share.
    pub(super) fn beyond(&self, bound: usize) -> String {
        let above = self.above(bound);
        let share = above as f64 * 100.0 / self.len().max(1) as f64;
        format!("{above} ({share:.2} %)")
    }

    /// The size that a given percentage does not exceed.
    pub(super) fn quantiles(&self, percents: &[usize]) -> String {
        let mut sizes = self.sizes.clone();
        sizes.sort_unstable();
        let last = sizes.len().saturating_sub(1);
        let at = |percent: &usize| {
            sizes
                .get((last * percent + 50) / 100)
                .copied()
                .unwrap_or_default()
        };
        let found: Vec<String> = percents
            .iter()
            .map(|percent| at(percent).to_string())
            .collect();
        found.join(" / ")
    }
}

const SHARED: &[&str] = &["Cell<", "RefCell<", "Rc<", "Arc<", "Mutex<", "RwLock<"];
const PANICS: &[&str] = &["panic!", "unreachable!", "todo!", "unimplemented!"];
const ITEMS: &[&str] = &[
    "fn", "struct", "enum", "trait", "union", "type", "const", "static",
];
const MORE_WORDS: &[&str] = &["async", "unsafe", "extern", "const"];

impl Count {
    pub(super) fn of(files: &[&RustFile]) -> Self {
        let mut count = Self::default();
        for file in files {
            count.add_lines(file);
            count.add_words(file);
            count.add_functions(file);
            count.add_public(file);
        }
        count
    }

    fn add_lines(&mut self, file: &RustFile) {
        let mut lines = 0;
        for (_, line) in file.production() {
            lines += 1;
            self.code += usize::from(line.has_code());
            self.comments += usize::from(line.is_comment());
            self.inline += usize::from(line.has_inline_comment());
            let comment = line
                .comment
                .as_ref()
                .map_or("", |comment| comment.text.as_str());
            let marks = [
                concat!("TO", "DO"),
                concat!("FIX", "ME"),
                concat!("XX", "X"),
            ];
            self.marks += usize::from(marks.iter().any(|mark| words::has(comment, mark)));
        }
        self.files.sizes.push(lines);
    }

    fn add_words(&mut self, file: &RustFile) {
        let code = &file.code;
        let all = |names: &[&str]| {
            names
                .iter()
                .map(|name| words::places(code, name).count())
                .sum::<usize>()
        };
        self.unsafes += all(&["unsafe"]);
        self.unwraps += all(&[".unwrap()"]);
        self.expects += all(&[".expect("]);
        self.panics += all(PANICS);
        self.allows += all(&["#[allow", "#![allow"]);
        self.macros += all(&["macro_rules!"]);
        self.shared += all(SHARED);
        self.poisons += all(&["PoisonError::into_inner"]);
    }

    fn add_functions(&mut self, file: &RustFile) {
        for function in functions::of(file) {
            self.functions.sizes.sizes.push(function.lines);
            self.functions.many_parameters += usize::from(function.parameters >= 5);
            self.functions.deep += usize::from(function.depth >= 5);
            self.functions.one_word += usize::from(!function.name.contains('_'));
        }
    }

    fn add_public(&mut self, file: &RustFile) {
        let mut is_documented = false;
        for (_, line) in file.production() {
            let code = line.code.trim();
            if is_public_item(code) {
                self.public += 1;
                self.undocumented += usize::from(!is_documented);
            }
            // Attributes may stand between an item and its documentation.
            let is_doc = line.comment.as_ref().is_some_and(|comment| comment.is_doc);
            is_documented =
                is_doc || (is_documented && (code.starts_with("#[") || line.is_comment()));
        }
    }
}

fn is_public_item(code: &str) -> bool {
    let Some(mut rest) = code.strip_prefix("pub ") else {
        return false;
    };
    loop {
        let word = words::leading(rest);
        let behind = rest[word.len()..].trim_start();
        let names_more = words::leading(behind);
        if MORE_WORDS.contains(&word)
            && (ITEMS.contains(&names_more)
                || MORE_WORDS.contains(&names_more)
                || behind.starts_with('"'))
        {
            rest = behind.trim_start_matches(['"', ' ']);
            continue;
        }
        return ITEMS.contains(&word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(text: &str) -> Count {
        Count::of(&[&RustFile::new("crates/x/src/a.rs", text)])
    }

    #[test]
    fn lines_are_told_apart() {
        let count = count("//! x\n\n// why\nfn a() {} // b\n");
        assert_eq!((count.code, count.comments, count.inline), (1, 2, 2));
    }

    #[test]
    fn public_items_want_documentation() {
        let count = count(
            "/// A.\n#[derive(Debug)]\npub struct A {\n    pub b: u8,\n}\npub async unsafe fn c() {}\npub(crate) fn d() {}\n",
        );
        assert_eq!((count.public, count.undocumented), (2, 1));
    }

    #[test]
    fn quantiles_are_sizes_that_exist() {
        let sizes = Sizes {
            sizes: (1..=101).collect(),
        };
        assert_eq!(sizes.quantiles(&[50, 90, 100]), "51 / 91 / 101");
        assert_eq!(sizes.beyond(100), "1 (0.99 %)");
    }
}
