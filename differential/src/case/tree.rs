//! Configuration as a tree: what a generator writes as text, what a reduction cuts, what is printed again.
//!
//! The words stay as they were written, with their quotes, so that printing gives back what was read. It is a reader of
//! its own: the machine must not judge Weir by Weir's parser.

use std::fmt::Write as _;

/// One directive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The name and the arguments, with the quotes that they were written in.
    pub words: Vec<String>,
    /// What stands in braces.
    pub block: Option<Block>,
}

/// What stands in braces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Block {
    /// Directives, or the rows of a `map`.
    Directives(Vec<Node>),
    /// Code in Lua, as it was written.
    Code(String),
}

impl Node {
    /// The directive's name.
    pub fn name(&self) -> &str {
        self.words.first().map_or("", String::as_str)
    }

    /// The directives in its braces.
    pub fn children(&self) -> &[Node] {
        match &self.block {
            Some(Block::Directives(nodes)) => nodes,
            _ => &[],
        }
    }

    /// The directives in its braces, to be changed; `None` where it has no such braces.
    pub fn children_mut(&mut self) -> Option<&mut Vec<Node>> {
        match &mut self.block {
            Some(Block::Directives(nodes)) => Some(nodes),
            _ => None,
        }
    }
}

/// All names of directives in these trees, each once, in order.
pub fn names(nodes: &[Node]) -> Vec<String> {
    fn gather(nodes: &[Node], found: &mut Vec<String>) {
        for node in nodes {
            if !found.iter().any(|name| name == node.name()) {
                found.push(node.name().to_owned());
            }
            gather(node.children(), found);
        }
    }
    let mut found = Vec::new();
    gather(nodes, &mut found);
    found.sort();
    found
}

/// Prints trees as a configuration, a directive a line.
pub fn print(nodes: &[Node], depth: usize, out: &mut String) {
    for node in nodes {
        let indent = "    ".repeat(depth);
        let _ = write!(out, "{indent}{}", node.words.join(" "));
        match &node.block {
            None => out.push_str(";\n"),
            Some(Block::Code(code)) => {
                let _ = writeln!(out, " {{{code}}}");
            }
            Some(Block::Directives(children)) => {
                out.push_str(" {\n");
                print(children, depth + 1, out);
                let _ = writeln!(out, "{indent}}}");
            }
        }
    }
}

/// Reads a configuration. The error says what is wrong with it, for who wrote the generator or the file.
pub fn parse(text: &str) -> Result<Vec<Node>, String> {
    let mut reader = Reader { text, at: 0 };
    let nodes = reader.nodes(0)?;
    Ok(nodes)
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl Reader<'_> {
    fn nodes(&mut self, depth: usize) -> Result<Vec<Node>, String> {
        let mut nodes = Vec::new();
        let mut words: Vec<String> = Vec::new();
        loop {
            self.skip_space();
            match self.peek() {
                None if depth == 0 && words.is_empty() => return Ok(nodes),
                None => return Err(format!("it ends within {words:?}")),
                Some('}') if depth > 0 && words.is_empty() => {
                    self.at += 1;
                    return Ok(nodes);
                }
                Some('}') => return Err(format!("a brace closes after {words:?}")),
                Some(';') => {
                    self.at += 1;
                    nodes.push(Node {
                        words: std::mem::take(&mut words),
                        block: None,
                    });
                }
                Some('{') => {
                    self.at += 1;
                    let block = self.block(&words, depth)?;
                    nodes.push(Node {
                        words: std::mem::take(&mut words),
                        block: Some(block),
                    });
                }
                Some(_) => words.push(self.word()?),
            }
        }
    }

    fn block(&mut self, words: &[String], depth: usize) -> Result<Block, String> {
        let is_code = words
            .first()
            .is_some_and(|name| name.ends_with("_by_lua_block"));
        if is_code {
            return self.code().map(Block::Code);
        }
        if depth > 20 {
            return Err("braces are more than 20 deep".to_owned());
        }
        self.nodes(depth + 1).map(Block::Directives)
    }

    /// Code in Lua up to its brace. Only braces and quoted strings are told apart: what generators write has no brace in a
    /// comment or in a long bracket.
    fn code(&mut self) -> Result<String, String> {
        let start = self.at;
        let mut depth = 0usize;
        while let Some(next) = self.next() {
            match next {
                '{' => depth += 1,
                '}' if depth == 0 => return Ok(self.text[start..self.at - 1].to_owned()),
                '}' => depth -= 1,
                '"' | '\'' => self.quoted(next)?,
                _ => {}
            }
        }
        Err("code does not end".to_owned())
    }

    fn word(&mut self) -> Result<String, String> {
        let start = self.at;
        if let Some(quote @ ('"' | '\'')) = self.peek() {
            self.at += 1;
            self.quoted(quote)?;
            return Ok(self.text[start..self.at].to_owned());
        }
        while let Some(next) = self.peek() {
            let is_variable = next == '{' && self.text[..self.at].ends_with('$');
            if next.is_whitespace() || next == ';' || (next == '{' && !is_variable) {
                break;
            }
            self.next();
            if next == '\\' {
                self.next();
            }
        }
        Ok(self.text[start..self.at].to_owned())
    }

    /// Goes behind the closing quote.
    fn quoted(&mut self, quote: char) -> Result<(), String> {
        while let Some(next) = self.next() {
            if next == '\\' {
                self.next();
            } else if next == quote {
                return Ok(());
            }
        }
        Err(format!("a {quote} is not closed"))
    }

    fn skip_space(&mut self) {
        while let Some(next) = self.peek() {
            if next == '#' {
                while self.peek().is_some_and(|next| next != '\n') {
                    self.next();
                }
            } else if next.is_whitespace() {
                self.next();
            } else {
                return;
            }
        }
    }

    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let next = self.peek()?;
        self.at += next.len_utf8();
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_what_was_read() {
        let text = "a;\nserver {\n    if ($a ~ \"x{2};\" ) {\n        return 200 'b \\' c';\n    }\n    set $b ${a}c;\n    content_by_lua_block { local t = {\"}\"} }\n}\n";
        let nodes = parse(text).expect("it is a configuration");
        let mut out = String::new();
        print(&nodes, 0, &mut out);
        assert_eq!(out, text);
        assert_eq!(
            names(&nodes),
            ["a", "content_by_lua_block", "if", "return", "server", "set"]
        );
    }

    #[test]
    fn what_is_cut_is_an_error() {
        for text in ["a", "a {", "a }", "\"a", "a_by_lua_block {", "}"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
