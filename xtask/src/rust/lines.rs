//! Lines of Rust, each split into code and comment. Comments go and the contents of strings become blanks, so that a
//! search for a word finds the word and nothing that only looks like it; columns stay where they were.

/// One line of a file.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    /// The code, with blanks in place of what strings contain.
    pub(crate) code: String,
    /// The comment, without its slashes.
    pub(crate) comment: Option<Comment>,
    /// Inside a string that began on a line before.
    continues_string: bool,
}

/// What a line says to people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Comment {
    /// `///` or `//!`.
    pub(crate) is_doc: bool,
    pub(crate) text: String,
}

impl Line {
    pub(crate) fn has_code(&self) -> bool {
        self.continues_string || !self.code.trim().is_empty()
    }

    /// A comment and nothing else.
    pub(crate) fn is_comment(&self) -> bool {
        !self.has_code() && self.comment.is_some()
    }

    /// A comment for the reader of the code, on a line of its own or behind code.
    pub(crate) fn has_inline_comment(&self) -> bool {
        self.comment.as_ref().is_some_and(|comment| !comment.is_doc)
    }
}

/// What the reader is inside of between two characters.
#[derive(Clone, Copy)]
enum Inside {
    Code,
    LineComment,
    /// With the depth: block comments nest.
    BlockComment(usize),
    Text,
    /// With the number of `#` that end it.
    RawText(usize),
}

/// Splits a file into its lines.
pub(crate) fn split(text: &str) -> Vec<Line> {
    let mut splitter = Splitter {
        chars: text.chars().collect(),
        at: 0,
        inside: Inside::Code,
        line: Line::default(),
        lines: Vec::new(),
    };
    while splitter.at < splitter.chars.len() {
        splitter.step();
    }
    if !text.is_empty() && !text.ends_with('\n') {
        splitter.end_line();
    }
    splitter.lines
}

struct Splitter {
    chars: Vec<char>,
    at: usize,
    inside: Inside,
    line: Line,
    lines: Vec<Line>,
}

impl Splitter {
    fn step(&mut self) {
        let char = self.chars[self.at];
        if char == '\n' {
            self.at += 1;
            return self.end_line();
        }
        match self.inside {
            Inside::Code => self.code(char),
            Inside::LineComment => self.say(1),
            Inside::BlockComment(depth) => self.block_comment(depth),
            Inside::Text => self.text(char),
            Inside::RawText(hashes) => self.raw_text(char, hashes),
        }
    }

    fn end_line(&mut self) {
        if let Inside::LineComment = self.inside {
            self.inside = Inside::Code;
        }
        self.lines.push(std::mem::take(&mut self.line));
        match self.inside {
            Inside::Text | Inside::RawText(_) => self.line.continues_string = true,
            Inside::BlockComment(_) => self.begin_comment(false),
            Inside::Code | Inside::LineComment => {}
        }
    }

    fn code(&mut self, char: char) {
        if self.sees("//") {
            let is_doc = self.sees("//!") || (self.sees("///") && !self.sees("////"));
            self.begin_comment(is_doc);
            self.inside = Inside::LineComment;
            self.at += if is_doc { 3 } else { 2 };
        } else if self.sees("/*") {
            self.begin_comment(self.sees("/**") || self.sees("/*!"));
            self.inside = Inside::BlockComment(1);
            self.at += 2;
        } else if char == '"' {
            self.inside = Inside::Text;
            self.keep(1);
        } else if let Some(length) = self.raw_text_begins() {
            self.inside = Inside::RawText(length - 2);
            self.keep(length);
        } else if char == '\'' {
            let length = self.character_length();
            self.keep(1);
            self.blank(length.saturating_sub(1));
        } else {
            // Up to the next character that may begin something else.
            let rest = self.chars[self.at + 1..].iter();
            let plain = rest.take_while(|char| !['/', '"', 'r', '\'', '\n'].contains(char));
            self.keep(1 + plain.count());
        }
    }

    fn block_comment(&mut self, depth: usize) {
        if self.sees("/*") {
            self.inside = Inside::BlockComment(depth + 1);
            self.say(2);
        } else if self.sees("*/") {
            self.inside = if depth == 1 {
                Inside::Code
            } else {
                Inside::BlockComment(depth - 1)
            };
            self.at += 2;
        } else {
            self.say(1);
        }
    }

    fn text(&mut self, char: char) {
        match char {
            '"' => {
                self.inside = Inside::Code;
                self.keep(1);
            }
            // A backslash before the end of the line keeps the line's end for `step`.
            '\\' if self.chars.get(self.at + 1) != Some(&'\n') => self.blank(2),
            _ => self.blank(1),
        }
    }

    fn raw_text(&mut self, char: char, hashes: usize) {
        let ends = char == '"'
            && (1..=hashes).all(|offset| self.chars.get(self.at + offset) == Some(&'#'));
        if ends {
            self.inside = Inside::Code;
            self.keep(1 + hashes);
        } else {
            self.blank(1);
        }
    }

    /// The length of `r"`, `r#"` and so on, when one begins here. A `b` or `c` before it is code like any other.
    fn raw_text_begins(&self) -> Option<usize> {
        let before = self.at.checked_sub(1).map(|at| self.chars[at]);
        let in_word = before.is_some_and(|char| {
            (char.is_alphanumeric() && char != 'b' && char != 'c') || char == '_'
        });
        if self.chars[self.at] != 'r' || in_word {
            return None;
        }
        let rest = &self.chars[self.at + 1..];
        let hashes = rest.iter().take_while(|char| **char == '#').count();
        (rest.get(hashes) == Some(&'"')).then_some(hashes + 2)
    }

    /// The length of a character in quotes; 1 for the quote of a lifetime.
    fn character_length(&self) -> usize {
        let rest = &self.chars[self.at + 1..];
        if rest.first() == Some(&'\\') {
            let end = rest.iter().skip(2).position(|char| *char == '\'');
            return end.map_or(1, |end| end + 4);
        }
        if rest.get(1) == Some(&'\'') { 3 } else { 1 }
    }

    fn sees(&self, text: &str) -> bool {
        let mut ahead = self.chars[self.at..].iter();
        text.chars().all(|char| ahead.next() == Some(&char))
    }

    fn begin_comment(&mut self, is_doc: bool) {
        let text = String::new();
        self.line.comment = Some(Comment { is_doc, text });
    }

    fn say(&mut self, count: usize) {
        let said = self.chars[self.at..].iter().take(count);
        if let Some(comment) = &mut self.line.comment {
            comment.text.extend(said);
        }
        self.at += count;
    }

    fn keep(&mut self, count: usize) {
        let kept = self.chars[self.at..].iter().take(count);
        self.line.code.extend(kept);
        self.at += count;
    }

    fn blank(&mut self, count: usize) {
        self.line.code.extend(std::iter::repeat_n(' ', count));
        self.at += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codes(text: &str) -> Vec<String> {
        split(text).into_iter().map(|line| line.code).collect()
    }

    #[test]
    fn comments_go_and_strings_become_blanks() {
        assert_eq!(codes("a(\"b // c\"); // d\n"), ["a(\"      \"); "]);
        assert_eq!(codes("a /* b\n c */ d"), ["a ", " d"]);
        assert_eq!(codes("r#\"a\"b\"# c"), ["r#\"   \"# c"]);
        assert_eq!(codes("br\"\\\" c"), ["br\" \" c"]);
        assert_eq!(codes("\"a\\\"b\" c"), ["\"    \" c"]);
    }

    #[test]
    fn a_lifetime_is_no_character() {
        assert_eq!(
            codes("<'a>('\"', '\\'', '\\u{1}')"),
            ["<'a>('  , '   , '      )"]
        );
        assert_eq!(codes("&'static str, \"x\""), ["&'static str, \" \""]);
    }

    #[test]
    fn a_line_is_code_or_comment_or_both() {
        let lines = split("/// doc\n// why\nlet a; // b\n\n\"x\n\n y\"");
        let kinds: Vec<_> = lines
            .iter()
            .map(|line| {
                (
                    line.has_code(),
                    line.is_comment(),
                    line.has_inline_comment(),
                )
            })
            .collect();
        assert_eq!(
            kinds,
            [
                (false, true, false),
                (false, true, true),
                (true, false, true),
                (false, false, false),
                (true, false, false),
                (true, false, false),
                (true, false, false)
            ]
        );
    }
}
