//! Where a block of Lua text ends.
//!
//! The braces in a `…_by_lua_block` are Lua's, so those in its strings and comments do not count.
//! This parses just enough of Lua: quoted strings, long brackets, comments. Whether the code is
//! valid is left to Lua.

/// Something that was opened and never closed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UnclosedLua {
    pub(crate) message: &'static str,
    /// Where it was opened, counted from the start of the text.
    pub(crate) at: usize,
    /// How many bytes opened it.
    pub(crate) len: usize,
}

/// The number of bytes before the `}` that closes a block whose `{` has been read.
pub(crate) fn block_length(text: &[u8]) -> Result<usize, UnclosedLua> {
    let mut at = 0;
    let mut open: Vec<usize> = Vec::new();
    while let Some(&byte) = text.get(at) {
        match byte {
            b'{' => {
                open.push(at);
                at += 1;
            }
            b'}' => {
                if open.pop().is_none() {
                    return Ok(at);
                }
                at += 1;
            }
            b'"' | b'\'' => at = after_string(text, at),
            b'-' if text.get(at + 1) == Some(&b'-') => at = after_comment(text, at)?,
            b'[' => at = after_long_bracket(text, at)?.unwrap_or(at + 1),
            _ => at += 1,
        }
    }
    match open.last() {
        Some(&at) => Err(UnclosedLua {
            message: "unexpected end of file, expecting \"}\"",
            at,
            len: 1,
        }),
        None => Err(UnclosedLua {
            message: "unexpected end of file, expecting \"}\"",
            at: 0,
            len: 0,
        }),
    }
}

/// The position after a quoted string. An unescaped line feed ends it, too: Lua rejects such a
/// string, and its message about this line is better than one about the end of the file.
fn after_string(text: &[u8], start: usize) -> usize {
    let quote = text[start];
    let mut at = start + 1;
    while let Some(&byte) = text.get(at) {
        match byte {
            b'\\' => at += 2,
            b'\n' => return at,
            byte if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    text.len()
}

fn after_comment(text: &[u8], start: usize) -> Result<usize, UnclosedLua> {
    let body = start + 2;
    if let Some(after) = after_long_bracket(text, body)? {
        return Ok(after);
    }
    let line = &text[body..];
    Ok(body
        + line
            .iter()
            .position(|&byte| byte == b'\n')
            .unwrap_or(line.len()))
}

/// The position after the end of a long bracket (`[[`, `[=[`, …), if one starts here.
fn after_long_bracket(text: &[u8], start: usize) -> Result<Option<usize>, UnclosedLua> {
    let Some(rest) = text[start..].strip_prefix(b"[") else {
        return Ok(None);
    };
    let level = rest.iter().take_while(|&&byte| byte == b'=').count();
    if rest.get(level) != Some(&b'[') {
        return Ok(None);
    }
    let mut at = start + level + 2;
    while let Some(found) = text[at..].iter().position(|&byte| byte == b']') {
        at += found + 1;
        let after = &text[at..];
        if after.len() > level
            && after[..level].iter().all(|&byte| byte == b'=')
            && after[level] == b']'
        {
            return Ok(Some(at + level + 1));
        }
    }
    Err(UnclosedLua {
        message: "unexpected end of file, expecting a closing long bracket",
        at: start,
        len: level + 2,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_in_strings_and_comments_do_not_count() {
        for inside in [
            "",
            " ngx.say('hi') ",
            " local t = { a = { 1 } } ",
            " ngx.say(\"}\") ",
            " ngx.say('}\\'}') ",
            " -- }\n ",
            " --[[ } \n } ]] ",
            " --[==[ } ]] ]=] ]==] ",
            " local s = [[ } ]] ",
            " local s = [=[ } ]] ]=] ",
            " a[b[1]] = { } ",
            " local s = \"\\\\\" ",
            " local s = 'a\\\n}' ",
            " x = a - -1 ",
            " --[ }\n ",
        ] {
            let text = format!("{inside}}} rest }}");
            assert_eq!(block_length(text.as_bytes()), Ok(inside.len()), "{inside}");
        }
    }

    #[test]
    fn what_was_never_closed_is_named() {
        assert_eq!(block_length(b"if x then").unwrap_err().len, 0);
        assert_eq!(block_length(b"a {").unwrap_err().at, 2);
        assert_eq!(block_length(b"x = [==[ }").unwrap_err().len, 4);
        assert_eq!(block_length(b"--[[ }").unwrap_err().at, 2);
    }

    #[test]
    fn an_unfinished_string_ends_with_its_line() {
        assert_eq!(block_length(b"a = \"oops }\n}"), Ok(12));
    }
}
