//! What stands at a place of a text: the blocks around it, and the directive that is being written there. For editors.
//!
//! The text may be unfinished. It is read up to the place, as if the directive ended there, so that what is behind the place
//! does not matter.

use base::{BString, FileId};

use crate::lexer::{Lexer, StatementEnd};
use crate::lua;
use crate::tree::DirectiveWord;

/// A place in a text.
#[derive(Debug, Default)]
pub struct TextCursor {
    /// The blocks around it, outermost first: the words before their braces.
    pub blocks: Vec<Vec<DirectiveWord>>,
    /// The words of its directive, up to the place.
    pub words: Vec<DirectiveWord>,
    /// The last of them ends at the place.
    pub is_in_word: bool,
}

impl TextCursor {
    /// The names of the blocks.
    pub fn block_names(&self) -> impl Iterator<Item = &BString> {
        self.blocks
            .iter()
            .filter_map(|words| words.first().map(|word| &word.text))
    }
}

/// What stands at an offset; `None` in a comment, in a quoted text, or in Lua code.
pub fn cursor_at(text: &[u8], offset: usize) -> Option<TextCursor> {
    let mut before = text.get(..offset)?.to_vec();
    let is_in_word = !matches!(
        before.last(),
        None | Some(b' ' | b'\t' | b'\r' | b'\n' | b';' | b'{' | b'}')
    );
    before.push(b';');
    let mut cursor = TextCursor::default();
    let (mut words, mut errors) = (Vec::new(), Vec::new());
    let mut lexer = Lexer::new(&before, FileId(0), false);
    loop {
        let statement = lexer.statement(&mut words, &mut errors);
        let resolved: Vec<DirectiveWord> = words.iter().map(|word| lexer.resolve(*word)).collect();
        match statement.end {
            StatementEnd::Semicolon if lexer.position() as usize == before.len() => {
                cursor.words = resolved;
                cursor.is_in_word = is_in_word;
                return Some(cursor);
            }
            StatementEnd::Semicolon => {}
            StatementEnd::Open => {
                let is_lua = resolved
                    .first()
                    .is_some_and(|word| word.text.ends_with(b"_by_lua_block"));
                if is_lua {
                    let length = lua::block_length(lexer.rest()).ok()?;
                    lexer.skip(length + 1);
                    continue;
                }
                cursor.blocks.push(resolved);
            }
            StatementEnd::Close => {
                cursor.blocks.pop();
            }
            // The sign at the end was an empty directive's, which is an error, or part of a comment.
            StatementEnd::File => {
                let in_comment = is_in_comment(&before);
                let gave_up = lexer.gave_up();
                return (!in_comment && !gave_up).then_some(cursor);
            }
        }
    }
}

/// Whether the end of a text that has been read to its end is in a comment.
fn is_in_comment(text: &[u8]) -> bool {
    let line = text
        .rsplit(|byte| *byte == b'\n')
        .next()
        .unwrap_or_default();
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t' | b';' | b'{' | b'}');
    let starts = (0..line.len()).filter(|&at| line[at] == b'#');
    starts.into_iter().any(|at| at == 0 || blank(&line[at - 1]))
}

/// The directive around an offset, with the number of the word there, 0 for its name; `None` between directives.
pub fn word_at(text: &[u8], offset: usize) -> Option<(Vec<DirectiveWord>, usize)> {
    let (mut words, mut errors) = (Vec::new(), Vec::new());
    let mut lexer = Lexer::new(text, FileId(0), false);
    loop {
        let statement = lexer.statement(&mut words, &mut errors);
        let is_here = |word: &crate::lexer::PlacedWord| {
            (word.span.start as usize..=word.span.end as usize).contains(&offset)
        };
        if let Some(index) = words.iter().position(is_here) {
            let words = words.iter().map(|word| lexer.resolve(*word));
            return Some((words.collect(), index));
        }
        match statement.end {
            StatementEnd::File => return None,
            _ if lexer.position() as usize > offset => return None,
            StatementEnd::Open => {
                let name = words.first().map(|word| lexer.resolve(*word).text);
                if name.is_some_and(|name| name.ends_with(b"_by_lua_block")) {
                    let length = lua::block_length(lexer.rest()).ok()?;
                    lexer.skip(length + 1);
                }
            }
            StatementEnd::Semicolon | StatementEnd::Close => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Option<(Vec<String>, Vec<String>, bool)> {
        let cursor = cursor_at(text.as_bytes(), text.len())?;
        let blocks = cursor.block_names().map(ToString::to_string).collect();
        let words = cursor
            .words
            .iter()
            .map(|word| word.text.to_string())
            .collect();
        Some((blocks, words, cursor.is_in_word))
    }

    #[test]
    fn a_place_has_blocks_and_words() {
        let found = |blocks: &[&str], words: &[&str], inside| {
            let own = |list: &[&str]| list.iter().map(|word| (*word).to_owned()).collect();
            Some((own(blocks), own(words), inside))
        };
        assert_eq!(
            at("http { server { lis"),
            found(&["http", "server"], &["lis"], true)
        );
        assert_eq!(
            at("http { server { listen 80; } "),
            found(&["http"], &[], false)
        );
        assert_eq!(at("a b c"), found(&[], &["a", "b", "c"], true));
        assert_eq!(at("a b "), found(&[], &["a", "b"], false));
        assert_eq!(at("events {"), found(&["events"], &[], false));
        assert_eq!(at("a; # b"), None);
        assert_eq!(at("a 'b"), None);
        assert_eq!(at("x_by_lua_block { a "), None);
        assert_eq!(at("x_by_lua_block { } b"), found(&[], &["b"], true));
        assert_eq!(at(""), found(&[], &[], false));
    }

    #[test]
    fn the_word_at_a_place() {
        let text = b"http { a bc 'd e'; }";
        let word =
            |offset| word_at(text, offset).map(|(words, index)| words[index].text.to_string());
        assert_eq!(word(7).as_deref(), Some("a"));
        assert_eq!(word(10).as_deref(), Some("bc"));
        assert_eq!(word(14).as_deref(), Some("d e"));
        assert_eq!(word(0).as_deref(), Some("http"));
        assert_eq!(word(19), None);
    }
}
