//! `weir fmt`: the same configuration with one layout.
//!
//! The lexer that reads configurations finds the words; between them there is nothing but white space and comments. Words
//! are written as they stand, quotes and escapes included; comments stay where they are; what is between the braces of a
//! `*_by_lua_block` is not touched. So the configuration cannot change, and [`is_same`] makes sure of it.
//!
//! ```text
//! a directive on a line of its own, 4 spaces for each block around it
//! one space between words; where a line ended between two words, it still ends, and the next is indented once more
//! at most one empty line, and none at the beginning or the end of a block
//! in `map`, `types` and the like, the second words of neighbouring lines begin in the same column
//! ```

use std::io;
use std::path::{Path, PathBuf};

use base::FileId;

use crate::diagnostic::Diagnostic;
use crate::file_source::FileSource;
use crate::lexer::{Lexer, PlacedWord, StatementEnd};
use crate::lua;
use crate::tree::{BlockContent, DirectiveNode, SourceMap, parse_tree};

/// The spaces for a block.
const INDENT: usize = 4;

/// Words longer than this do not move the column of their neighbours.
const MAX_COLUMN: usize = 40;

/// Blocks whose lines are the rows of a table.
const TABLES: [&[u8]; 6] = [
    b"types",
    b"map",
    b"geo",
    b"geoip2",
    b"split_clients",
    b"charset_map",
];

/// The text in the layout. A text that does not parse is refused with the parser's errors. Includes are not followed.
pub fn format_text(path: &Path, text: &[u8]) -> Result<Vec<u8>, (Vec<Diagnostic>, SourceMap)> {
    let before = parse_alone(path, text)?;
    let mut layout = TextLayout::new(text);
    layout.write_all();
    let after = parse_alone(path, &layout.out)?;
    if is_same(&before, &after) {
        return Ok(layout.out);
    }
    // Cannot happen as far as we know. If it does, a file that stays as it is harms nobody.
    let error = Diagnostic::error(
        "the layout would change the configuration",
        base::Span::NONE,
    );
    Err((vec![error], SourceMap::default()))
}

/// Whether two configurations have the same words in the same blocks.
fn is_same(one: &[DirectiveNode], other: &[DirectiveNode]) -> bool {
    let same_words = |a: &DirectiveNode, b: &DirectiveNode| {
        let mut words = a.args.iter().zip(&b.args);
        a.name.text == b.name.text
            && a.args.len() == b.args.len()
            && words.all(|(a, b)| a.text == b.text && a.quoted == b.quoted)
    };
    one.len() == other.len()
        && one.iter().zip(other).all(|(a, b)| {
            let blocks = match (&a.block, &b.block) {
                (BlockContent::Raw(a), BlockContent::Raw(b)) => a.text == b.text,
                (BlockContent::None, BlockContent::None) => true,
                (BlockContent::None, _) | (_, BlockContent::None) => false,
                (a, b) => is_same(a.nodes(), b.nodes()),
            };
            same_words(a, b) && blocks
        })
}

fn parse_alone(
    path: &Path,
    text: &[u8],
) -> Result<Vec<DirectiveNode>, (Vec<Diagnostic>, SourceMap)> {
    let mut files = LoneFile { path, text };
    Ok(parse_tree(path, &mut files, None)?.nodes)
}

/// A file whose includes are empty.
struct LoneFile<'a> {
    path: &'a Path,
    text: &'a [u8],
}

impl FileSource for LoneFile<'_> {
    fn read(&mut self, path: &Path) -> io::Result<Vec<u8>> {
        match path == self.path {
            true => Ok(self.text.to_vec()),
            false => Ok(Vec::new()),
        }
    }

    fn glob(&mut self, _: &Path) -> io::Result<Vec<PathBuf>> {
        Ok(Vec::new())
    }
}

/// A line of a table, until its column is known.
struct TableRow {
    first: Vec<u8>,
    rest: Vec<u8>,
}

/// The text that is being written.
struct TextLayout<'t> {
    text: &'t [u8],
    out: Vec<u8>,
    depth: usize,
    /// Nothing has been written in the present block.
    just_opened: bool,
    /// An empty line precedes what comes next.
    blank: bool,
    /// For each open block, whether it is a table.
    tables: Vec<bool>,
    rows: Vec<TableRow>,
}

impl<'t> TextLayout<'t> {
    fn new(text: &'t [u8]) -> TextLayout<'t> {
        TextLayout {
            text,
            out: Vec::with_capacity(text.len()),
            depth: 0,
            just_opened: true,
            blank: false,
            tables: Vec::new(),
            rows: Vec::new(),
        }
    }

    fn write_all(&mut self) {
        // The text has been parsed: there are no errors any more.
        let (mut words, mut errors) = (Vec::new(), Vec::new());
        let mut lexer = Lexer::new(self.text, FileId(0), false);
        loop {
            let from = lexer.position();
            let statement = lexer.statement(&mut words, &mut errors);
            let start = match words.first() {
                Some(first) => raw_range(first).0,
                None => statement.span.start as usize,
            };
            self.gap(from as usize, start);
            match statement.end {
                StatementEnd::Semicolon => self.simple(&words, statement.span.end as usize),
                StatementEnd::Open => self.open(&words, statement.span.end as usize, &mut lexer),
                StatementEnd::Close => self.close(),
                StatementEnd::File => break,
            }
        }
        self.flush_rows();
        if !self.out.is_empty() {
            self.out.push(b'\n');
        }
    }

    /// Ends the line before, and begins one.
    fn begin_line(&mut self) {
        self.flush_rows();
        if !self.out.is_empty() {
            self.out.push(b'\n');
            if self.blank && !self.just_opened {
                self.out.push(b'\n');
            }
        }
        self.blank = false;
        self.just_opened = false;
        self.indent(self.depth);
    }

    fn indent(&mut self, depth: usize) {
        self.out.resize(self.out.len() + depth * INDENT, b' ');
    }

    /// What is between two statements: empty lines and comments. A comment behind a sign stays there.
    fn gap(&mut self, from: usize, to: usize) {
        let mut feeds = 0;
        let mut at = from;
        while at < to {
            match self.text[at] {
                b'\n' => feeds += 1,
                b'#' => {
                    let comment = comment_at(&self.text[at..to]);
                    at += comment.len();
                    let comment = comment.trim_ascii_end();
                    if feeds == 0 && from > 0 {
                        self.add_comment(comment);
                    } else {
                        self.blank |= feeds > 1;
                        self.begin_line();
                        self.out.extend_from_slice(comment);
                    }
                    feeds = 0;
                    continue;
                }
                _ => {}
            }
            at += 1;
        }
        self.blank |= feeds > 1;
    }

    /// Adds a comment to the present line.
    fn add_comment(&mut self, comment: &[u8]) {
        let line = match self.rows.last_mut() {
            Some(row) => &mut row.rest,
            None => &mut self.out,
        };
        line.push(b' ');
        line.extend_from_slice(comment);
        self.just_opened = false;
    }

    /// A directive without a block.
    fn simple(&mut self, words: &[PlacedWord], end: usize) {
        let is_table = self.tables.last() == Some(&true);
        if is_table && words.len() > 1 && self.is_one_line(words, end) {
            return self.row(words);
        }
        self.begin_line();
        self.words(words);
        self.before_sign(words, end);
        self.out.push(b';');
    }

    /// Whether there is nothing but blanks between the words.
    fn is_one_line(&self, words: &[PlacedWord], end: usize) -> bool {
        let ends = words.iter().map(|word| raw_range(word).1);
        let starts = words.iter().skip(1).map(|word| raw_range(word).0);
        let mut gaps = ends.zip(starts.chain([end - 1]));
        gaps.all(|(from, to)| {
            self.text[from..to]
                .iter()
                .all(|byte| matches!(byte, b' ' | b'\t'))
        })
    }

    /// A line of a table.
    fn row(&mut self, words: &[PlacedWord]) {
        // An empty line or the beginning of the block begins a group of its own.
        if self.blank || self.just_opened {
            self.begin_group();
        }
        let (start, end) = raw_range(&words[0]);
        let first = self.text[start..end].to_vec();
        let mut rest = Vec::new();
        for word in &words[1..] {
            let (start, end) = raw_range(word);
            if !rest.is_empty() {
                rest.push(b' ');
            }
            rest.extend_from_slice(&self.text[start..end]);
        }
        rest.push(b';');
        self.rows.push(TableRow { first, rest });
    }

    /// Writes the rows so far, and the empty line behind them.
    fn begin_group(&mut self) {
        self.flush_rows();
        if self.blank && !self.just_opened && !self.out.is_empty() {
            self.out.push(b'\n');
        }
        self.blank = false;
        self.just_opened = false;
    }

    fn flush_rows(&mut self) {
        let rows = std::mem::take(&mut self.rows);
        let widths = rows.iter().map(|row| width(&row.first));
        let column = widths
            .filter(|width| *width <= MAX_COLUMN)
            .max()
            .unwrap_or(0);
        for row in rows {
            if !self.out.is_empty() {
                self.out.push(b'\n');
            }
            self.indent(self.depth);
            self.out.extend_from_slice(&row.first);
            let blanks = column.saturating_sub(width(&row.first)) + 1;
            self.out.resize(self.out.len() + blanks, b' ');
            self.out.extend_from_slice(&row.rest);
        }
    }

    /// The words of a directive, with the line ends and comments between them.
    fn words(&mut self, words: &[PlacedWord]) {
        let mut before = None;
        for word in words {
            let (start, end) = raw_range(word);
            if let Some(before) = before {
                self.between(before, start);
            }
            self.out.extend_from_slice(&self.text[start..end]);
            before = Some(end);
        }
    }

    /// What is between two words. Nothing stays nothing: in `"b")` the parenthesis is a word.
    fn between(&mut self, from: usize, to: usize) {
        let gap = &self.text[from..to];
        if gap.is_empty() {
            return;
        }
        if !gap.iter().any(|byte| matches!(byte, b'\n' | b'#')) {
            return self.out.push(b' ');
        }
        self.inner_comments(from, to);
        self.out.push(b'\n');
        self.indent(self.depth + 1);
    }

    /// Comments within a directive: the first at the end of its line, each further one on its own.
    fn inner_comments(&mut self, from: usize, to: usize) {
        let (mut at, mut feeds) = (from, 0);
        while at < to {
            match self.text[at] {
                b'#' => {
                    let comment = comment_at(&self.text[at..to]);
                    at += comment.len();
                    match feeds {
                        0 => self.out.push(b' '),
                        _ => {
                            self.out.push(b'\n');
                            self.indent(self.depth + 1);
                        }
                    }
                    self.out.extend_from_slice(comment.trim_ascii_end());
                    feeds = 0;
                    continue;
                }
                b'\n' => feeds += 1,
                _ => {}
            }
            at += 1;
        }
    }

    /// What is between the last word and the sign: only a comment matters.
    fn before_sign(&mut self, words: &[PlacedWord], end: usize) {
        let last = words.last().map_or(end - 1, |word| raw_range(word).1);
        if self.text[last..end - 1].contains(&b'#') {
            self.inner_comments(last, end - 1);
            self.out.push(b'\n');
            self.indent(self.depth + 1);
        }
    }

    fn open(&mut self, words: &[PlacedWord], end: usize, lexer: &mut Lexer) {
        self.begin_line();
        self.words(words);
        self.before_sign(words, end);
        if self.out.last() != Some(&b' ') {
            self.out.push(b' ');
        }
        self.out.push(b'{');
        let name = words.first().map_or(&b""[..], |word| {
            &self.text[word.span.start as usize..word.span.end as usize]
        });
        if name.ends_with(b"_by_lua_block")
            && let Ok(length) = lua::block_length(lexer.rest())
        {
            self.out.extend_from_slice(&lexer.rest()[..length]);
            self.out.push(b'}');
            lexer.skip(length + 1);
            return;
        }
        self.tables.push(TABLES.contains(&name));
        self.depth += 1;
        self.just_opened = true;
    }

    fn close(&mut self) {
        self.flush_rows();
        self.tables.pop();
        self.depth = self.depth.saturating_sub(1);
        // `events {}` stays on its line.
        let is_empty = self.just_opened;
        self.blank = false;
        if !is_empty {
            self.begin_line();
        }
        self.just_opened = false;
        self.out.push(b'}');
    }
}

/// The bytes of a word in the text, quotes included.
fn raw_range(word: &PlacedWord) -> (usize, usize) {
    let quote = usize::from(word.quoted);
    (
        word.span.start as usize - quote,
        word.span.end as usize + quote,
    )
}

/// The comment that begins here, up to the end of its line.
fn comment_at(text: &[u8]) -> &[u8] {
    let end = text.iter().position(|byte| *byte == b'\n');
    &text[..end.unwrap_or(text.len())]
}

/// How many columns a word takes.
fn width(word: &[u8]) -> usize {
    String::from_utf8_lossy(word).chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn formatted(text: &str) -> String {
        let Ok(out) = format_text(Path::new("/c"), text.as_bytes()) else {
            panic!("not valid: {text}");
        };
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn one_layout_for_all() {
        for (text, expected) in [
            ("a  b;c d ;", "a b;\nc d;\n"),
            ("events{}", "events {}\n"),
            ("events {\n\n}", "events {}\n"),
            (
                "http{server{listen 80;}}",
                "http {\n    server {\n        listen 80;\n    }\n}\n",
            ),
            (
                "# one\n\n\n\na; # two\nb; #three  \n",
                "# one\n\na; # two\nb; #three\n",
            ),
            ("a {\n\n  b;\n\n}\n", "a {\n    b;\n}\n"),
            ("a { # x\n}", "a { # x\n}\n"),
            ("a b\n  c;", "a b\n    c;\n"),
            ("a b # why\n c # and\n ;", "a b # why\n    c # and\n    ;\n"),
            ("a 'b  c' \"d;\" ${e}f;", "a 'b  c' \"d;\" ${e}f;\n"),
            ("if ($a = \"b\") { c; }", "if ($a = \"b\") {\n    c;\n}\n"),
            (
                "map $a $b { default 1; ~^x\\;  2; # y\n\n longer 3; }",
                "map $a $b {\n    default 1;\n    ~^x\\;   2; # y\n\n    longer 3;\n}\n",
            ),
            (
                "types { text/html html  htm;\n a b; }",
                "types {\n    text/html html htm;\n    a         b;\n}\n",
            ),
            (
                "x_by_lua_block {\n  a =  {1}  -- }\n}\nb;",
                "x_by_lua_block {\n  a =  {1}  -- }\n}\nb;\n",
            ),
            ("", ""),
            ("# only\n", "# only\n"),
            ("a;\r\nb; # c\r\n", "a;\nb; # c\n"),
        ] {
            let once = formatted(text);
            assert_eq!(once, expected, "{text:?}");
            assert_eq!(formatted(&once), once, "{text:?} twice");
        }
    }

    #[test]
    fn what_does_not_parse_is_refused() {
        for text in ["a", "a {", "a }", "\"a;", "x_by_lua_block { \"", ";"] {
            assert!(
                format_text(Path::new("/c"), text.as_bytes()).is_err(),
                "{text}"
            );
        }
    }

    #[test]
    fn every_short_text_keeps_its_words_and_settles() {
        const SIGNS: &[u8] = b"a;{}# \n\"$\\";
        for number in 0..SIGNS.len().pow(5) {
            let mut rest = number;
            let text: Vec<u8> = (0..5)
                .map(|_| {
                    let sign = SIGNS[rest % SIGNS.len()];
                    rest /= SIGNS.len();
                    sign
                })
                .collect();
            if let Ok(once) = format_text(Path::new("/c"), &text) {
                let twice = format_text(Path::new("/c"), &once).ok();
                assert_eq!(Some(once), twice, "{:?}", String::from_utf8_lossy(&text));
            }
        }
    }
}
