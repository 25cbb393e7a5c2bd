//! The functions of a file.

use super::file::RustFile;
use super::words;

/// A function with a body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Function {
    pub(crate) name: String,
    /// The line of its first word, from 1.
    pub(crate) line: usize,
    /// Lines from its name to its closing brace.
    pub(crate) lines: usize,
    /// Those of them that are more than a comment.
    pub(crate) lines_without_comments: usize,
    /// Its parameters, `self` left out.
    pub(crate) parameters: usize,
    /// How deep braces lie in each other in it; its own are the first.
    pub(crate) depth: usize,
}

/// The functions of the product in a file, from the top down.
pub(crate) fn of(file: &RustFile) -> Vec<Function> {
    let code = file.code.as_bytes();
    words::places(&file.code, "fn")
        .filter_map(|at| {
            let rest = &file.code[at + 2..];
            let name = words::leading(rest.trim_start());
            let named = at + 2 + (rest.len() - rest.trim_start().len());
            // `fn(u8)` is a type.
            let open = parameters_begin(code, named + name.len()).filter(|_| !name.is_empty())?;
            let closed = words::after_closing(code, open);
            let end = words::item_end(code, closed);
            let body = &file.code[closed..end];
            // What a trait asks for and does not give has none.
            if !body.contains('{') {
                return None;
            }
            let line = file.line_at(at);
            let lines = file.code[at..end].matches('\n').count() + 1;
            let own = &file.lines[line - 1..line - 1 + lines];
            let comments = own.iter().filter(|line| line.is_comment()).count();
            Some(Function {
                name: name.to_owned(),
                line,
                lines,
                lines_without_comments: lines - comments,
                parameters: count_parameters(&file.code[open + 1..closed.saturating_sub(1)]),
                depth: depth(body),
            })
        })
        .collect()
}

/// The opening bracket of the parameters, behind the type parameters that may stand before it.
fn parameters_begin(code: &[u8], from: usize) -> Option<usize> {
    let mut angles = 0_usize;
    for at in from..code.len() {
        match code[at] {
            b'<' => angles += 1,
            b'>' if code[at - 1] != b'-' => angles = angles.saturating_sub(1),
            b'(' if angles == 0 => return Some(at),
            b';' | b'{' | b'}' => return None,
            _ => {}
        }
    }
    None
}

fn count_parameters(list: &str) -> usize {
    let mut depth = 0_isize;
    let mut parts = vec![String::new()];
    let mut before = ' ';
    for char in list.chars() {
        match char {
            '(' | '[' | '{' | '<' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            '>' if before != '-' => depth -= 1,
            _ => {}
        }
        if char == ',' && depth == 0 {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push(char);
        }
        before = char;
    }
    let is_self = |part: &str| words::has(part.split(':').next().unwrap_or(part), "self");
    parts
        .iter()
        .filter(|part| !part.trim().is_empty() && !is_self(part))
        .count()
}

fn depth(body: &str) -> usize {
    let (mut depth, mut most) = (0_usize, 0);
    for byte in body.bytes() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        most = most.max(depth);
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<(String, usize, usize, usize)> {
        let functions = of(&RustFile::new("crates/x/src/a.rs", text));
        let facts = functions.into_iter();
        facts
            .map(|function| {
                (
                    function.name,
                    function.line,
                    function.lines,
                    function.parameters,
                )
            })
            .collect()
    }

    #[test]
    fn a_function_ends_with_its_body() {
        let text = "//! x\nfn one() {\n    if a {\n    }\n}\n\nimpl A {\n    pub(crate) async fn two(\n        a: u8,\n    ) -> [u8; 2] {\n        a\n    }\n    fn three(&self);\n}\n";
        assert_eq!(
            found(text),
            [("one".to_owned(), 2, 4, 0), ("two".to_owned(), 8, 5, 1)]
        );
    }

    #[test]
    fn types_with_commas_are_one_parameter() {
        let text = "fn a<F: Fn(u8) -> u8>(&mut self, b: Map<u8, u8>, c: fn(u8, u8) -> u8, d: F) {}";
        assert_eq!(found(text), [("a".to_owned(), 1, 1, 3)]);
    }
}
