//! The signs that are forgotten most often: the `;` after a directive, and the `}` of a block.
//!
//! nginx notices where the text stops making sense, which may be a line or a whole file later.
//! People write one directive per line and indent blocks, so the lines tell where the sign is
//! missing. This is only used for texts that are invalid anyway, and then it is both reported and
//! acted upon: with the brace in its place the user is spared the errors that would follow from its
//! absence.

use base::Span;

use crate::lexer::{Lexer, StatementEnd};
use crate::lua;
use crate::source_map::SourceMap;
use crate::tree::{BlockContent, DirectiveNode};

/// A directive that was read as parameters of the one before it, whose `;` is missing.
#[derive(Clone, Copy)]
pub(crate) struct SwallowedDirective {
    /// The place of the `;`: after the word that should have been the last one.
    pub(crate) missing: Span,
    /// The argument that is the second directive's name.
    at: usize,
}

impl SwallowedDirective {
    /// The two directives, as if the `;` were there.
    pub(crate) fn split(&self, node: &DirectiveNode) -> (DirectiveNode, DirectiveNode) {
        let (first, rest) = node.args.split_at(self.at.min(node.args.len()));
        let head = Span {
            end: self.missing.end,
            ..node.head
        };
        let first = DirectiveNode {
            name: node.name.clone(),
            args: first.into(),
            block: BlockContent::None,
            head,
            span: head,
        };
        let mut words = rest.iter().cloned();
        let name = words.next().unwrap_or_else(|| node.name.clone());
        let from = |span: Span| Span {
            start: name.span.start,
            ..span
        };
        let rest = DirectiveNode {
            head: from(node.head),
            span: from(node.span),
            args: words.collect(),
            block: node.block.clone(),
            name,
        };
        (first, rest)
    }
}

/// Finds a directive among the words of another one: a later word starts a line, and is the name of
/// a directive that is allowed here.
pub(crate) fn swallowed_directive(
    node: &DirectiveNode,
    sources: &SourceMap,
    is_directive: impl Fn(&str) -> bool,
) -> Option<SwallowedDirective> {
    // Most directives are on one line, and cost no more than this check.
    if !sources.text(node.head)?.contains(&b'\n') {
        return None;
    }
    let mut before = &node.name;
    for (at, word) in node.args.iter().enumerate() {
        let begins_line = || {
            let (line, start) = sources.line(word.span)?;
            let indent = line.get(..word.span.start as usize - start)?;
            Some(indent.iter().all(u8::is_ascii_whitespace))
        };
        let is_name = || std::str::from_utf8(&word.text).is_ok_and(&is_directive);
        if !word.quoted && begins_line()? && is_name() {
            return Some(SwallowedDirective {
                missing: after(before.span, before.quoted),
                at,
            });
        }
        before = word;
    }
    None
}

/// The place right after a word, its closing quote included.
pub(crate) fn after(word: Span, quoted: bool) -> Span {
    let end = word.end + u32::from(quoted);
    Span {
        start: end,
        end,
        ..word
    }
}

/// A missing brace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MissingBrace {
    /// The block that it should close.
    pub(crate) head: Span,
    /// The offset before which it belongs.
    pub(crate) before: usize,
}

/// A block that is open while braces are counted.
struct UnclosedBrace {
    head: Span,
    /// Its indentation; `None` if something precedes it on its line.
    indent: Option<usize>,
    /// The indentation of the first directive in it.
    inner: Option<usize>,
}

impl UnclosedBrace {
    /// The inner indentation, if it is deeper than the block's: only then does the depth of a line
    /// mean anything.
    fn outer_indent(&self) -> Option<usize> {
        self.indent
            .filter(|indent| self.inner.is_some_and(|inner| inner > *indent))
    }
}

/// Finds the missing braces of a file whose blocks do not all end, by the indentation of its lines.
/// Empty unless that explains exactly as many as are missing: a wrong guess would be worse than
/// none.
pub(crate) fn missing_braces(text: &[u8], file: base::FileId) -> Vec<MissingBrace> {
    let mut missing = Vec::new();
    let mut blocks: Vec<UnclosedBrace> = Vec::new();
    let mut lexer = Lexer::new(text, file, false);
    let mut words = Vec::new();
    loop {
        let statement = lexer.statement(&mut words, &mut Vec::new());
        if lexer.gave_up() || statement.end == StatementEnd::File {
            return match blocks.is_empty() {
                true => missing,
                false => Vec::new(),
            };
        }
        let start = statement.span.start as usize;
        let indent = indent_of(text, start);
        if statement.end == StatementEnd::Close {
            close(&mut blocks, indent, start, &mut missing);
            if blocks.pop().is_none() {
                return Vec::new();
            }
            continue;
        }
        // A line that is no deeper than the block's own is not in it.
        while let (Some(column), Some(block)) = (indent, blocks.last()) {
            if block.outer_indent().is_none_or(|outer| column > outer) {
                break;
            }
            missing.push(missing_in(&mut blocks, start));
        }
        if let Some(block) = blocks.last_mut() {
            block.inner = block.inner.or(indent);
        }
        if statement.end == StatementEnd::Open {
            let name = words.first().map(|name| lexer.resolve(*name));
            if name.is_some_and(|name| name.text.ends_with(b"_by_lua_block")) {
                let Ok(length) = lua::block_length(lexer.rest()) else {
                    return Vec::new();
                };
                lexer.skip(length + 1);
                continue;
            }
            blocks.push(UnclosedBrace {
                head: statement.span,
                indent,
                inner: None,
            });
        }
    }
}

/// Ends the blocks that a brace at this depth cannot belong to, because an outer block has exactly
/// this depth.
fn close(
    blocks: &mut Vec<UnclosedBrace>,
    indent: Option<usize>,
    at: usize,
    missing: &mut Vec<MissingBrace>,
) {
    let Some(column) = indent else {
        return;
    };
    let Some(meant) = blocks
        .iter()
        .rposition(|block| block.indent == Some(column))
    else {
        return;
    };
    while blocks.len() > meant + 1 && blocks[blocks.len() - 1].outer_indent().is_some() {
        missing.push(missing_in(blocks, at));
    }
}

/// Takes the innermost block, which is known to be open, off.
fn missing_in(blocks: &mut Vec<UnclosedBrace>, before: usize) -> MissingBrace {
    let head = blocks.pop().map_or(Span::NONE, |block| block.head);
    MissingBrace { head, before }
}

/// The column of what stands first on its line; `None` for anything else. A tab counts as eight.
fn indent_of(text: &[u8], at: usize) -> Option<usize> {
    let line = text[..at]
        .iter()
        .rposition(|&byte| byte == b'\n')
        .map_or(0, |feed| feed + 1);
    text[line..at]
        .iter()
        .try_fold(0, |column, byte| match byte {
            b' ' => Some(column + 1),
            b'\t' => Some(column / 8 * 8 + 8),
            _ => None,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The line of each block without an end, and the line before which the brace belongs.
    fn found(text: &str) -> Vec<(usize, usize)> {
        let line = |at: usize| text[..at].matches('\n').count() + 1;
        missing_braces(text.as_bytes(), base::FileId(0))
            .iter()
            .map(|brace| (line(brace.head.start as usize), line(brace.before)))
            .collect()
    }

    #[test]
    fn the_depth_of_lines_tells_which_brace_is_missing() {
        let sibling = "http {\n  server {\n    listen 80;\n  server {\n    listen 81;\n  }\n}\n";
        assert_eq!(found(sibling), [(2, 4)]);
        let before_end = "http {\n  server {\n    location / {\n      return 200;\n  }\n}\n";
        assert_eq!(found(before_end), [(3, 5)]);
        let tabs = "http {\n\tserver {\n\t\tlisten 80;\n}\n";
        assert_eq!(found(tabs), [(2, 4)]);
        let two = "http {\n  server {\n    location / {\n      return 200;\n}\n";
        assert_eq!(found(two), [(3, 5), (2, 5)]);
    }

    #[test]
    fn lines_without_depth_tell_nothing() {
        assert_eq!(found("http {\nserver {\nlisten 80;\nserver {\n}\n}\n"), []);
        assert_eq!(found("http { server { listen 80; }\n"), []);
        assert_eq!(found("http {\n  server {\n    listen 80;\n  }\n"), []);
        // In a text without a mistake nothing is asked, but the answer would be the same.
        assert_eq!(found("http {\n  server {\n    listen 80;\n  }\n}\n"), []);
    }

    #[test]
    fn quotes_comments_and_lua_do_not_count() {
        let text = "http {\n  # }\n  server {\n    set $a \"}\";\n    content_by_lua_block {\n x = {}\n }\n}\n";
        assert_eq!(found(text), [(3, 8)]);
    }
}
