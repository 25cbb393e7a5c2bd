//! The filter over lists of patterns never leaves out one that matches.

use weir_conf::{PatternFilter, Regex};

/// Pieces of patterns, of syntax that the parser knows and of syntax that it does not.
const ATOMS: &[&str] = &[
    "a",
    "b",
    "ab",
    "Ba",
    "/",
    r"\.",
    "x1",
    "[ab]",
    r"\b",
    ".",
    r"\d",
    r"\w",
    "^",
    "$",
    "[^a]",
    "[a-b]",
    "[]a]",
    "[a-]",
    "[ab/.x1]",
    r"[\]a]",
    "[[:alpha:]]",
    r"[\d.]",
    r"\x61",
    r"\x2",
    r"\x{62}",
    r"\1",
    r"\12",
    r"\K",
    r"\Qa.\E",
    "(?i)",
    "(?-i)",
    "(?s)",
    "(?x) ",
    "(?#a)",
    "(?=a)",
    "(?!b)",
    "(?<=a)",
    "(?<!b)",
    r"\A",
    r"\z",
    r"\R",
    r"\h",
    "{",
    "}",
    "]",
    "a{2}",
    "a{,2}",
    "é",
    r"\/",
    "-",
    "(?=a|bb)",
    "(?<n>a)",
    "(?P<m>b)",
    "(?|a|(b))",
    "(?>ab)",
    "(?1)",
    "(?:)",
    "|",
    "a|b",
    "()",
];
/// How many of the first ones are plain: of patterns with others the parser knows little, and there is not much to compare.
const PLAIN: usize = 10;
const QUANTIFIERS: &[&str] = &[
    "", "", "", "", "?", "*", "+", "+?", "{2}", "{0,1}", "{1,}", "??", "*+", "{1}", "{0}", "{2,3}?",
];
const LETTERS: &[u8] = b"aAbB/.x1- \n2\xc3\xa9";

/// A generator of numbers, the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound
    }

    fn one_of<'t>(&mut self, texts: &[&'t str]) -> &'t str {
        texts[self.below(texts.len())]
    }

    fn pattern(&mut self, depth: usize) -> String {
        let mut text = String::new();
        for _ in 0..=self.below(4) {
            match self.below(8) {
                0 | 1 if depth > 0 => {
                    let open = self.one_of(&["(", "(", "(?:", "(?i:", "(?=", "(?!", "(?>"]);
                    let other = self.one_of(&["", "|"]);
                    let (one, two) = (self.pattern(depth - 1), self.pattern(depth - 1));
                    text.push_str(&format!("{open}{one}{other}{two})"));
                }
                2 if depth > 0 => {
                    let (one, two) = (self.pattern(depth - 1), self.pattern(depth - 1));
                    text.push_str(&format!("{one}|{two}"));
                }
                _ => {
                    let known = if self.below(4) == 0 {
                        ATOMS.len()
                    } else {
                        PLAIN
                    };
                    text.push_str(self.one_of(&ATOMS[..known]));
                }
            }
            text.push_str(self.one_of(QUANTIFIERS));
        }
        text
    }

    fn subject(&mut self) -> Vec<u8> {
        let length = self.below(14);
        (0..length)
            .map(|_| LETTERS[self.below(LETTERS.len())])
            .collect()
    }
}

/// How many matches there were, and how many candidates.
fn compare(patterns: &[Regex], subjects: &[Vec<u8>]) -> (usize, usize) {
    let filter = PatternFilter::new(patterns.iter());
    let (mut matches, mut tried) = (0, 0);
    for subject in subjects {
        let candidates: Vec<usize> = filter.candidates(subject).collect();
        assert!(candidates.is_sorted(), "{candidates:?}");
        for (place, pattern) in patterns.iter().enumerate() {
            if pattern.is_match(subject) {
                matches += 1;
                let shown = String::from_utf8_lossy(subject);
                assert!(candidates.contains(&place), "{pattern:?} matches {shown:?}");
            }
        }
        tried += candidates.len();
    }
    (matches, tried)
}

#[test]
fn no_pattern_that_matches_is_left_out() {
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let (mut matches, mut tried, mut count) = (0, 0, 0);
    for _ in 0..1500 {
        let mut patterns = Vec::new();
        while patterns.len() < 6 {
            let pattern = numbers.pattern(3);
            let caseless = numbers.below(2) == 0;
            patterns.extend(Regex::new(pattern.as_bytes(), caseless));
        }
        let subjects: Vec<Vec<u8>> = (0..40).map(|_| numbers.subject()).collect();
        let (more, candidates) = compare(&patterns, &subjects);
        matches += more;
        tried += candidates;
        count += patterns.len() * subjects.len();
    }
    // Neither is the comparison empty, nor the filter.
    assert!(matches > 50_000, "{matches} of {count}");
    assert!(tried < count * 4 / 5, "{tried} of {count}");
}

/// Lists in the shapes that sites use: names of robots, prefixes, suffixes.
#[test]
fn lists_as_they_are_published() {
    let mut numbers = Numbers(7);
    let word = |numbers: &mut Numbers| -> String {
        (0..3 + numbers.below(6))
            .map(|_| char::from(b'a' + numbers.below(26) as u8))
            .collect()
    };
    let words: Vec<String> = (0..1500).map(|_| word(&mut numbers)).collect();
    for shape in [
        r"(?:\b)W(?:\b|)",
        r"^/W/(.*)\.(php|asp)$",
        "W",
        r"\.(W|css)(\?.*)?$",
        r"^(?i)W[-_ ]?bot",
        r"^(.+\.)?W\.(com|net)$",
    ] {
        let patterns: Vec<Regex> = words
            .iter()
            .map(|word| Regex::new(shape.replace('W', word).as_bytes(), true).unwrap())
            .collect();
        let subjects: Vec<Vec<u8>> = (0..60)
            .map(|_| {
                let (one, two) = (numbers.below(1500), numbers.below(1500));
                let between =
                    numbers.one_of(&["/", ".", " bot/", "_bot ", "x.php", ".com", "/a.php"]);
                let head = numbers.one_of(&["/", "", "Mozilla/5.0 ", "www."]);
                format!("{head}{}{between}{}", words[one].to_uppercase(), words[two]).into_bytes()
            })
            .collect();
        let (matches, tried) = compare(&patterns, &subjects);
        assert!(
            tried >= matches && tried < 60 * 15,
            "{shape}: {matches} of {tried}"
        );
    }
}
