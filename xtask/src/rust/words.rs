//! Words in code whose strings and comments are blanks.

/// Whether a byte belongs to a name.
pub(crate) fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Where a word stands as a whole word.
pub(crate) fn places<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let bytes = code.as_bytes();
    code.match_indices(word)
        .map(|(at, _)| at)
        .filter(move |&at| {
            let before = at.checked_sub(1).map(|at| bytes[at]);
            let after = bytes.get(at + word.len()).copied();
            let goes_on_before =
                word.bytes().next().is_some_and(is_word) && before.is_some_and(is_word);
            let goes_on_after =
                word.bytes().last().is_some_and(is_word) && after.is_some_and(is_word);
            !goes_on_before && !goes_on_after
        })
}

pub(crate) fn has(code: &str, word: &str) -> bool {
    places(code, word).next().is_some()
}

/// The name that begins the text; empty when none does.
pub(crate) fn leading(text: &str) -> &str {
    let end = text.bytes().position(|byte| !is_word(byte));
    &text[..end.unwrap_or(text.len())]
}

/// The place behind the bracket that closes the one at `open`.
pub(crate) fn after_closing(code: &[u8], open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, byte) in code.iter().enumerate().skip(open) {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
    }
    code.len()
}

/// The end of an item whose text begins at `from`: behind its `;`, or behind the block that closes it.
pub(crate) fn item_end(code: &[u8], from: usize) -> usize {
    let mut at = from;
    while at < code.len() {
        match code[at] {
            b';' => return at + 1,
            b'{' => return after_closing(code, at),
            b'(' | b'[' => at = after_closing(code, at),
            _ => at += 1,
        }
    }
    code.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_word_is_not_the_word() {
        assert_eq!(
            places("Arc<MyArc, Arc>", "Arc").collect::<Vec<_>>(),
            [0, 11]
        );
        assert!(has("x.unwrap()", ".unwrap()"));
        assert!(!has("fnord x", "fn"));
    }

    #[test]
    fn an_item_ends_with_its_block_or_its_semicolon() {
        assert_eq!(item_end(b"static A: [u8; 2] = [1, 2]; b", 0), 27);
        assert_eq!(item_end(b"fn a(b: [u8; 2]) { c; } d", 0), 23);
    }
}
