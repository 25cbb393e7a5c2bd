//! Words and braces of a configuration, each with its place in the text.
//!
//! The text of a stranger is changed at single words only, so that its spaces, quotes and comments reach both servers
//! as they were written. This reader is a second one on purpose: Weir's own would hide its own mistakes.

use std::ops::Range;

/// One directive.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    /// The name and what follows it.
    pub(crate) words: Vec<Word>,
    /// The directives between its braces; `None` when it ends with `;` or its braces hold another language.
    pub(crate) block: Option<Vec<Node>>,
    /// From the name to the `;` or the closing brace, which is the last byte.
    pub(crate) span: Range<usize>,
    /// The place right after the opening brace.
    pub(crate) inside: usize,
}

/// One word, without its quotes.
#[derive(Debug, Clone)]
pub(crate) struct Word {
    pub(crate) text: String,
    /// Its place, quotes included.
    pub(crate) span: Range<usize>,
}

impl Node {
    /// The directive's name.
    pub(crate) fn name(&self) -> &str {
        self.words.first().map_or("", |word| &word.text)
    }

    /// The text of the word at `index`, the name being 0.
    pub(crate) fn word(&self, index: usize) -> &str {
        self.words.get(index).map_or("", |word| &word.text)
    }

    /// The words after the name.
    pub(crate) fn arguments(&self) -> &[Word] {
        self.words.get(1..).unwrap_or_default()
    }
}

/// Reads a text. What is wrong with it is left for the servers to say: here it only ends the reading with `None`.
pub(crate) fn parse(text: &str) -> Option<Vec<Node>> {
    let mut reader = Reader {
        bytes: text.as_bytes(),
        at: 0,
    };
    let nodes = reader.nodes(0)?;
    (reader.at >= text.len()).then_some(nodes)
}

/// Blocks within blocks; strangers have up to six.
const MAX_DEPTH: usize = 40;

struct Reader<'t> {
    bytes: &'t [u8],
    at: usize,
}

impl Reader<'_> {
    fn nodes(&mut self, depth: usize) -> Option<Vec<Node>> {
        let mut nodes = Vec::new();
        let mut words: Vec<Word> = Vec::new();
        loop {
            self.skip_space();
            let Some(&byte) = self.bytes.get(self.at) else {
                return (words.is_empty() && depth == 0).then_some(nodes);
            };
            match byte {
                b';' => {
                    self.at += 1;
                    let start = words.first()?.span.start;
                    nodes.push(Node {
                        words: std::mem::take(&mut words),
                        block: None,
                        span: start..self.at,
                        inside: self.at,
                    });
                }
                b'{' if depth < MAX_DEPTH => {
                    self.at += 1;
                    let node = self.block(std::mem::take(&mut words), depth)?;
                    nodes.push(node);
                }
                b'}' if words.is_empty() && depth > 0 => {
                    self.at += 1;
                    return Some(nodes);
                }
                b'{' | b'}' => return None,
                _ => words.push(self.word(byte)?),
            }
        }
    }

    fn block(&mut self, words: Vec<Word>, depth: usize) -> Option<Node> {
        let start = words.first()?.span.start;
        let inside = self.at;
        let is_script = words.first()?.text.ends_with("_by_lua_block");
        let block = if is_script {
            self.skip_script()?;
            None
        } else {
            Some(self.nodes(depth + 1)?)
        };
        Some(Node {
            words,
            block,
            span: start..self.at,
            inside,
        })
    }

    fn skip_space(&mut self) {
        while let Some(&byte) = self.bytes.get(self.at) {
            if byte == b'#' {
                while self.bytes.get(self.at).is_some_and(|&byte| byte != b'\n') {
                    self.at += 1;
                }
            } else if byte.is_ascii_whitespace() {
                self.at += 1;
            } else {
                return;
            }
        }
    }

    fn word(&mut self, first: u8) -> Option<Word> {
        let start = self.at;
        let quote = (first == b'"' || first == b'\'').then_some(first);
        self.at += usize::from(quote.is_some());
        let mut text = Vec::new();
        loop {
            let byte = *self.bytes.get(self.at)?;
            match (byte, quote) {
                (b'\\', _) => {
                    let next = *self.bytes.get(self.at + 1)?;
                    match next {
                        b'"' | b'\'' | b'\\' => text.push(next),
                        _ => text.extend_from_slice(&[byte, next]),
                    }
                    self.at += 2;
                    continue;
                }
                (_, Some(quote)) if byte == quote => {
                    self.at += 1;
                    break;
                }
                (b'{', None) if text.ends_with(b"$") => {}
                (b';' | b'{', None) => break,
                (_, None) if byte.is_ascii_whitespace() => break,
                _ => {}
            }
            text.push(byte);
            self.at += 1;
        }
        Some(Word {
            text: String::from_utf8_lossy(&text).into_owned(),
            span: start..self.at,
        })
    }

    /// Past the brace that ends a script; its strings and comments may have braces of their own.
    fn skip_script(&mut self) -> Option<()> {
        let mut depth = 1;
        while depth > 0 {
            let byte = *self.bytes.get(self.at)?;
            self.at += 1;
            match byte {
                b'{' => depth += 1,
                b'}' => depth -= 1,
                b'"' | b'\'' => {
                    while *self.bytes.get(self.at)? != byte {
                        self.at += 1 + usize::from(self.bytes[self.at] == b'\\');
                    }
                    self.at += 1;
                }
                b'-' if self.bytes.get(self.at) == Some(&b'-') => {
                    while *self.bytes.get(self.at)? != b'\n' {
                        self.at += 1;
                    }
                }
                _ => {}
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn words_braces_and_scripts_have_their_places() {
        let text = "a 'b c' ${d}; # e;\nf { g_by_lua_block { x = '}' } h \\{2,3\\}; }";
        let nodes = parse(text).expect("it is well-formed");
        assert_eq!(nodes[0].word(1), "b c");
        assert_eq!(nodes[0].word(2), "${d}");
        let inner = nodes[1].block.as_deref().unwrap_or_default();
        assert_eq!(inner.len(), 2);
        assert!(inner[0].block.is_none());
        assert_eq!(&text[nodes[1].span.clone()][..1], "f");
        assert!(parse("a { b; ").is_none());
    }
}
