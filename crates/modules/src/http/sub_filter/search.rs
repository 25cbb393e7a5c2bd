//! Looks for several texts at once, in whatever letter case.
//!
//! All texts are compared by their first bytes, as many as the shortest has. A window of that length slides over the
//! content; the byte at its end says how far it may move before any text can fit (Horspool), so that most of the
//! content is never looked at. Where it cannot move, the texts are compared one after the other.

use bstr::BString;

/// What is looked for.
#[derive(Clone, Debug)]
pub(super) struct Search {
    /// In the order in which they win.
    texts: Vec<Text>,
    /// The length of the shortest text, at least 1.
    window: usize,
    /// How far the window moves, by the byte at its end; 0 where a text may fit. In lower case.
    shifts: Box<[u16; 256]>,
}

/// A text that is looked for.
#[derive(Clone, Debug)]
pub(super) struct Text {
    /// In lower case.
    text: Vec<u8>,
    /// Which pair it belongs to.
    pub(super) pair: usize,
}

/// What was found first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The text of a pair.
    Text {
        /// Where it begins.
        start: usize,
        /// Where it ends.
        end: usize,
        /// The pair.
        pair: usize,
    },
    /// From here to the end of the content stands what may be the beginning of a text.
    Beginning(usize),
    /// No text, and no beginning of one.
    Nothing,
}

enum Fit {
    Whole,
    Beginning,
    None,
}

impl Search {
    /// A search for texts, each with the number of its pair. They are not empty, and there is at least one.
    pub(super) fn new(texts: Vec<(usize, BString)>) -> Search {
        let texts: Vec<Text> = texts
            .into_iter()
            .map(|(pair, text)| Text {
                text: text.to_ascii_lowercase(),
                pair,
            })
            .collect();
        let window = texts
            .iter()
            .map(|text| text.text.len())
            .min()
            .unwrap_or(1)
            .clamp(1, u16::MAX.into());
        // The bound above makes it fit.
        let mut shifts = Box::new([window as u16; 256]);
        for text in &texts {
            for (index, &byte) in text.text.iter().take(window).enumerate() {
                let shift = &mut shifts[usize::from(byte)];
                *shift = (*shift).min((window - 1 - index) as u16);
            }
        }
        Search {
            texts,
            window,
            shifts,
        }
    }

    /// The texts that are looked for.
    pub(super) fn texts(&self) -> impl Iterator<Item = &Text> {
        self.texts.iter()
    }

    /// What comes first in `content` from `from` on, of the pairs that are wanted. At the end of all content no
    /// beginning of a text counts any more.
    pub(super) fn find(
        &self,
        content: &[u8],
        from: usize,
        is_end: bool,
        wanted: impl Fn(usize) -> bool,
    ) -> Found {
        let mut start = from;
        while let Some(&last) = content.get(start + self.window - 1) {
            let shift = self.shifts[usize::from(last.to_ascii_lowercase())];
            if shift > 0 {
                start += usize::from(shift);
                continue;
            }
            if let Some(found) = self.at(content, start, is_end, &wanted) {
                return found;
            }
            start += 1;
        }
        if is_end {
            return Found::Nothing;
        }
        // Fewer bytes than the window are left: only a beginning can stand there.
        (start..content.len())
            .find_map(|start| self.at(content, start, is_end, &wanted))
            .unwrap_or(Found::Nothing)
    }

    fn at(
        &self,
        content: &[u8],
        start: usize,
        is_end: bool,
        wanted: impl Fn(usize) -> bool,
    ) -> Option<Found> {
        let rest = &content[start..];
        for Text { text, pair } in &self.texts {
            match fit(text, rest) {
                Fit::Whole if wanted(*pair) => {
                    return Some(Found::Text {
                        start,
                        end: start + text.len(),
                        pair: *pair,
                    });
                }
                Fit::Beginning if !is_end && wanted(*pair) => return Some(Found::Beginning(start)),
                Fit::Whole | Fit::Beginning | Fit::None => {}
            }
        }
        None
    }
}

fn fit(text: &[u8], content: &[u8]) -> Fit {
    let common = text.len().min(content.len());
    // From the front, by bytes: most comparisons end at the first.
    let agrees = text[..common]
        .iter()
        .zip(&content[..common])
        .all(|(a, b)| *a == b.to_ascii_lowercase());
    match agrees {
        false => Fit::None,
        true if common == text.len() => Fit::Whole,
        true => Fit::Beginning,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(texts: &[&str]) -> Search {
        Search::new(
            texts
                .iter()
                .map(|text| BString::from(*text))
                .enumerate()
                .collect(),
        )
    }

    #[test]
    fn the_leftmost_wins_and_then_the_first() {
        let search = search(&["abc", "AB", "x"]);
        assert_eq!(
            search.find(b"--ABC", 0, false, |_| true),
            Found::Text {
                start: 2,
                end: 5,
                pair: 0
            }
        );
        assert_eq!(
            search.find(b"--abd", 0, false, |_| true),
            Found::Text {
                start: 2,
                end: 4,
                pair: 1
            }
        );
        assert_eq!(
            search.find(b"--abcx", 0, false, |pair| pair == 2),
            Found::Text {
                start: 5,
                end: 6,
                pair: 2
            }
        );
        assert_eq!(search.find(b"nothing", 0, false, |_| true), Found::Nothing);
    }

    #[test]
    fn beginnings_are_held_until_the_end() {
        let search = search(&["abcd"]);
        assert_eq!(
            search.find(b"xxabc", 0, false, |_| true),
            Found::Beginning(2)
        );
        assert_eq!(search.find(b"xxabc", 0, true, |_| true), Found::Nothing);
        assert_eq!(
            search.find(b"xxabcabcd", 0, false, |_| true),
            Found::Text {
                start: 5,
                end: 9,
                pair: 0
            }
        );
    }

    /// Every content of up to 7 signs of two, cut at every place, against the plainest way to search.
    #[test]
    fn cut_anywhere_the_same_is_found() {
        for texts in [&["aab"][..], &["ab", "aab"], &["b", "aaa"], &["abab", "ba"]] {
            let search = search(texts);
            for length in 1..=7_u32 {
                for bits in 0..1_u32 << length {
                    let content: Vec<u8> = (0..length)
                        .map(|i| if bits >> i & 1 == 0 { b'a' } else { b'b' })
                        .collect();
                    let whole = all(&search, &content, content.len());
                    assert_eq!(whole, plainly(texts, &content), "{texts:?} in {content:?}");
                    for cut in 0..content.len() {
                        assert_eq!(
                            all(&search, &content, cut),
                            whole,
                            "{texts:?} in {content:?} cut at {cut}"
                        );
                    }
                }
            }
        }
    }

    /// Where texts are found when the content comes in two pieces.
    fn all(search: &Search, content: &[u8], cut: usize) -> Vec<(usize, usize)> {
        let mut found = Vec::new();
        let mut at = 0;
        for (end, is_end) in [(cut, false), (content.len(), true)] {
            loop {
                match search.find(&content[..end], at, is_end, |_| true) {
                    Found::Text { start, end, pair } => {
                        found.push((start, pair));
                        at = end;
                    }
                    Found::Beginning(start) => {
                        at = start;
                        break;
                    }
                    Found::Nothing => {
                        at = end;
                        break;
                    }
                }
            }
        }
        found
    }

    fn plainly(texts: &[&str], content: &[u8]) -> Vec<(usize, usize)> {
        let mut found = Vec::new();
        let mut at = 0;
        while at < content.len() {
            match texts
                .iter()
                .position(|text| content[at..].starts_with(text.as_bytes()))
            {
                Some(pair) => {
                    found.push((at, pair));
                    at += texts[pair].len();
                }
                None => at += 1,
            }
        }
        found
    }
}
