//! Searches for several texts at once, ignoring case.
//!
//! A window as long as the shortest text slides over the content. The byte at its end tells how far
//! it can move before any text may match (Horspool's algorithm), so most of the content is never
//! looked at. Where it cannot move, the texts are compared one by one.

use bstr::BString;

/// A prepared search.
#[derive(Clone, Debug)]
pub(super) struct TextSearch {
    /// In order of preference.
    texts: Vec<SearchText>,
    /// The length of the shortest text, at least 1. Longer texts take part in the shifts with their
    /// first bytes only.
    window: usize,
    /// How far the window moves, by the byte at its end; 0 where a text may match. Indexed by lower
    /// case.
    shifts: Box<[u16; 256]>,
}

/// A text to search for.
#[derive(Clone, Debug)]
pub(super) struct SearchText {
    /// In lower case.
    text: Vec<u8>,
    /// The index of its pair.
    pub(super) pair: usize,
}

/// The first match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SearchResult {
    /// The text of a pair.
    Text {
        /// Where it begins.
        start: usize,
        /// Where it ends.
        end: usize,
        /// The pair.
        pair: usize,
    },
    /// From here on, the rest of the content may be the start of a text.
    Prefix(usize),
    /// No text, and no start of one.
    Nothing,
}

/// How a text compares with the content at some position.
enum TextFit {
    Whole,
    Prefix,
    None,
}

impl TextSearch {
    /// Prepares the search for texts, each with the index of its pair: at least one, none of them
    /// empty.
    pub(super) fn new(texts: Vec<(usize, BString)>) -> TextSearch {
        let texts: Vec<SearchText> = texts
            .into_iter()
            .map(|(pair, text)| SearchText {
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
        // The clamp above makes it fit.
        let mut shifts = Box::new([window as u16; 256]);
        for text in &texts {
            for (index, &byte) in text.text.iter().take(window).enumerate() {
                // The smallest shift of all texts: no match may be skipped.
                let shift = &mut shifts[usize::from(byte)];
                *shift = (*shift).min((window - 1 - index) as u16);
            }
        }
        TextSearch {
            texts,
            window,
            shifts,
        }
    }

    /// The texts to search for.
    pub(super) fn texts(&self) -> impl Iterator<Item = &SearchText> {
        self.texts.iter()
    }

    /// Finds the first match in `content` from `from` on, among the wanted pairs. At the end of all
    /// content, a mere start of a text no longer counts.
    pub(super) fn find(
        &self,
        content: &[u8],
        from: usize,
        is_end: bool,
        wanted: impl Fn(usize) -> bool,
    ) -> SearchResult {
        let mut start = from;
        while let Some(&last) = content.get(start + self.window - 1) {
            let shift = self.shifts[usize::from(last.to_ascii_lowercase())];
            if shift > 0 {
                start += usize::from(shift);
                continue;
            }
            if let Some(found) = self.match_at(content, start, is_end, &wanted) {
                return found;
            }
            start += 1;
        }
        // A longer text can no longer match, but shorter ones were compared at every position;
        // nginx sends this rest unsearched.
        if is_end {
            return SearchResult::Nothing;
        }
        // Fewer bytes are left than the window has, so only the start of a text can be here.
        (start..content.len())
            .find_map(|start| self.match_at(content, start, is_end, &wanted))
            .unwrap_or(SearchResult::Nothing)
    }

    /// The match at one position, in order of preference.
    fn match_at(
        &self,
        content: &[u8],
        start: usize,
        is_end: bool,
        wanted: impl Fn(usize) -> bool,
    ) -> Option<SearchResult> {
        let rest = &content[start..];
        for SearchText { text, pair } in &self.texts {
            match fit(text, rest) {
                TextFit::Whole if wanted(*pair) => {
                    return Some(SearchResult::Text {
                        start,
                        end: start + text.len(),
                        pair: *pair,
                    });
                }
                TextFit::Prefix if !is_end && wanted(*pair) => {
                    return Some(SearchResult::Prefix(start));
                }
                TextFit::Whole | TextFit::Prefix | TextFit::None => {}
            }
        }
        None
    }
}

/// Compares a text with the content, as far as that goes.
fn fit(text: &[u8], content: &[u8]) -> TextFit {
    let common = text.len().min(content.len());
    // Byte by byte from the front: most comparisons fail at the first.
    let agrees = text[..common]
        .iter()
        .zip(&content[..common])
        .all(|(a, b)| *a == b.to_ascii_lowercase());
    match agrees {
        false => TextFit::None,
        true if common == text.len() => TextFit::Whole,
        true => TextFit::Prefix,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(texts: &[&str]) -> TextSearch {
        TextSearch::new(
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
            SearchResult::Text {
                start: 2,
                end: 5,
                pair: 0
            }
        );
        assert_eq!(
            search.find(b"--abd", 0, false, |_| true),
            SearchResult::Text {
                start: 2,
                end: 4,
                pair: 1
            }
        );
        assert_eq!(
            search.find(b"--abcx", 0, false, |pair| pair == 2),
            SearchResult::Text {
                start: 5,
                end: 6,
                pair: 2
            }
        );
        assert_eq!(
            search.find(b"nothing", 0, false, |_| true),
            SearchResult::Nothing
        );
    }

    #[test]
    fn beginnings_are_held_until_the_end() {
        let search = search(&["abcd"]);
        assert_eq!(
            search.find(b"xxabc", 0, false, |_| true),
            SearchResult::Prefix(2)
        );
        assert_eq!(
            search.find(b"xxabc", 0, true, |_| true),
            SearchResult::Nothing
        );
        assert_eq!(
            search.find(b"xxabcabcd", 0, false, |_| true),
            SearchResult::Text {
                start: 5,
                end: 9,
                pair: 0
            }
        );
    }

    /// Compares with the simplest search: all contents of up to 7 of two characters, cut
    /// everywhere.
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
    fn all(search: &TextSearch, content: &[u8], cut: usize) -> Vec<(usize, usize)> {
        let mut found = Vec::new();
        let mut at = 0;
        for (end, is_end) in [(cut, false), (content.len(), true)] {
            loop {
                match search.find(&content[..end], at, is_end, |_| true) {
                    SearchResult::Text { start, end, pair } => {
                        found.push((start, pair));
                        at = end;
                    }
                    SearchResult::Prefix(start) => {
                        at = start;
                        break;
                    }
                    SearchResult::Nothing => {
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
