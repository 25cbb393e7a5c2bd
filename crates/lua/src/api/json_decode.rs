//! `cjson.decode`: JSON read straight into Lua's tables.
//!
//! A long text, such as the list of a cluster's services, is read in parts: between them Lua code runs, where the script
//! can be suspended so that the loop serves others.
//!
//! As lua-cjson this accepts strings that are not UTF-8, and control characters in them. Unlike it, it takes only numbers
//! as RFC 8259 has them.

use std::cell::RefCell;
use std::rc::Rc;

use super::arguments::bytes;
use super::{CallResult, NativeTable};
use crate::luajit::object::{self, ObjectClass, ObjectShape};
use crate::luajit::{LuaError, LuaStack, NativeReturn, fail};

pub(super) const CORE: NativeTable = &[("json_decode", decode), ("json_decode_part", decode_part)];

/// How deep arrays and objects may be nested; lua-cjson's default.
const MAX_DEPTH: usize = 1000;

/// How many values are read in a part: well below a millisecond.
const PART: usize = 2048;

static READER: ObjectClass = ObjectClass {
    name: "weir.json_reader",
    shape: ObjectShape::Userdata,
    methods: &[],
};

/// An array or object whose end was not read yet. Its table is on Lua's stack; on an object's follows the name of the
/// value that comes next.
enum OpenJson {
    /// With this many elements so far.
    List(usize),
    Object,
}

/// How far a text was read.
#[derive(Default)]
struct JsonReader {
    at: usize,
    open: Vec<OpenJson>,
    /// The string that is read, if it has escapes.
    text: Vec<u8>,
}

/// `json_decode(text)`.
fn decode(stack: &LuaStack) -> CallResult {
    let text = bytes(stack, 1)?;
    JsonReader::default().read(stack, text, usize::MAX)?;
    super::ONE
}

/// `json_decode_part(text, reader, open)`: the value; or nil, a reader, and what is on its stack, for the next call; or
/// nil, nil, nil and the error.
fn decode_part(stack: &LuaStack) -> CallResult {
    let text = bytes(stack, 1)?;
    stack.set_top(3);
    let reader = match stack.is_nil(2) {
        true => Rc::new(RefCell::new(JsonReader::default())),
        false => object::get::<RefCell<JsonReader>>(stack, 2, "reader")?,
    };
    if !stack.is_nil(3) {
        for n in 1..=stack.length(3) {
            stack.element(3, n);
        }
    }
    let outcome = reader.borrow_mut().read(stack, text, PART);
    match outcome {
        Ok(true) => return super::ONE,
        Ok(false) => {
            let count = usize::try_from(stack.top() - 3).unwrap_or(0);
            stack.push_table(count, 0);
            stack.insert(4);
            for n in (1..=count).rev() {
                stack.set_element(4, n);
            }
            stack.push_nil();
            object::push(stack, &READER, reader);
            stack.push_copy(4);
            return Ok(NativeReturn::Values(3));
        }
        Err(problem) => {
            stack.set_top(0);
            (0..3).for_each(|_| stack.push_nil());
            stack.push_bytes(problem.0);
        }
    }
    Ok(NativeReturn::Values(4))
}

impl JsonReader {
    /// Reads up to `most` values. `true` when all was read; the value is on top of the stack then.
    fn read(&mut self, stack: &LuaStack, text: &[u8], most: usize) -> Result<bool, LuaError> {
        for _ in 0..most {
            if self.begin_value(stack, text)? && self.end_value(stack, text)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reads a value, or the beginning of one that has others in it; `true` if it is complete.
    fn begin_value(&mut self, stack: &LuaStack, text: &[u8]) -> Result<bool, LuaError> {
        match self.next(text) {
            Some(b'{') => return self.open(stack, text, OpenJson::Object, b'}'),
            Some(b'[') => return self.open(stack, text, OpenJson::List(0), b']'),
            Some(b'"') => self.string(stack, text)?,
            Some(b'-' | b'0'..=b'9') => self.number(stack, text)?,
            Some(b't') if self.word(text, b"true") => stack.push_boolean(true),
            Some(b'f') if self.word(text, b"false") => stack.push_boolean(false),
            // A table cannot hold nil: a null in an array would end it.
            Some(b'n') if self.word(text, b"null") => stack.push_light(std::ptr::null_mut()),
            _ => return self.expected(text, "value"),
        }
        Ok(true)
    }

    /// Puts the value on top where it belongs, and so each that is complete thereby; `true` if that was the last.
    fn end_value(&mut self, stack: &LuaStack, text: &[u8]) -> Result<bool, LuaError> {
        while let Some(open) = self.open.last_mut() {
            let (end, wanted) = match open {
                OpenJson::List(count) => {
                    *count += 1;
                    stack.set_element(-2, *count);
                    (b']', "comma or array end")
                }
                OpenJson::Object => {
                    stack.set_pair(-3);
                    (b'}', "comma or object end")
                }
            };
            let is_object = matches!(open, OpenJson::Object);
            match self.next(text) {
                Some(b',') => {
                    self.at += 1;
                    if is_object {
                        self.key(stack, text)?;
                    }
                    return Ok(false);
                }
                Some(byte) if byte == end => self.at += 1,
                _ => return self.expected(text, wanted),
            }
            self.open.pop();
        }
        match self.next(text) {
            None => Ok(true),
            Some(_) => self.expected(text, "the end"),
        }
    }

    /// Reads the beginning of an array or object; `true` if it is empty.
    fn open(
        &mut self,
        stack: &LuaStack,
        text: &[u8],
        open: OpenJson,
        end: u8,
    ) -> Result<bool, LuaError> {
        // A table, a name and a value, or what `set_element` needs.
        if self.open.len() >= MAX_DEPTH || !stack.reserve(8) {
            return fail(format!(
                "Found too many nested data structures ({}) at character {}",
                self.open.len() + 1,
                self.at + 1
            ));
        }
        self.at += 1;
        stack.push_table(0, 0);
        if self.next(text) == Some(end) {
            self.at += 1;
            return Ok(true);
        }
        let is_object = matches!(open, OpenJson::Object);
        self.open.push(open);
        if is_object {
            self.key(stack, text)?;
        }
        Ok(false)
    }

    /// Reads a name and the colon behind it.
    fn key(&mut self, stack: &LuaStack, text: &[u8]) -> Result<(), LuaError> {
        if self.next(text) != Some(b'"') {
            return self.expected(text, "object key string");
        }
        self.string(stack, text)?;
        if self.next(text) != Some(b':') {
            return self.expected(text, "colon");
        }
        self.at += 1;
        Ok(())
    }

    /// The next byte that is not white space.
    fn next(&mut self, text: &[u8]) -> Option<u8> {
        loop {
            match text.get(self.at) {
                Some(b' ' | b'\t' | b'\n' | b'\r') => self.at += 1,
                found => return found.copied(),
            }
        }
    }

    /// Skips a word if it is next.
    fn word(&mut self, text: &[u8], word: &[u8]) -> bool {
        let found = text[self.at..].starts_with(word);
        if found {
            self.at += word.len();
        }
        found
    }

    /// Reads a string.
    fn string(&mut self, stack: &LuaStack, text: &[u8]) -> Result<(), LuaError> {
        self.at += 1;
        self.text.clear();
        loop {
            let rest = &text[self.at..];
            let plain = rest
                .iter()
                .position(|byte| matches!(byte, b'"' | b'\\' | 0));
            let plain = plain.unwrap_or(rest.len());
            self.at += plain;
            match rest.get(plain) {
                Some(b'"') => {
                    self.at += 1;
                    if self.text.is_empty() {
                        stack.push_bytes(&rest[..plain]);
                    } else {
                        self.text.extend_from_slice(&rest[..plain]);
                        stack.push_bytes(&self.text);
                    }
                    return Ok(());
                }
                Some(b'\\') => {
                    self.text.extend_from_slice(&rest[..plain]);
                    self.escape(text)?;
                }
                _ => return self.problem("value", "unexpected end of string"),
            }
        }
    }

    /// Reads an escape (RFC 8259, section 7).
    fn escape(&mut self, text: &[u8]) -> Result<(), LuaError> {
        let byte = match text.get(self.at + 1) {
            Some(b'u') => return self.unicode_escape(text),
            Some(&byte @ (b'"' | b'\\' | b'/')) => byte,
            Some(b'b') => 0x08,
            Some(b'f') => 0x0c,
            Some(b'n') => b'\n',
            Some(b'r') => b'\r',
            Some(b't') => b'\t',
            _ => return self.problem("value", "invalid escape code"),
        };
        self.text.push(byte);
        self.at += 2;
        Ok(())
    }

    /// Reads `\uXXXX`, or two of them for a character beyond U+FFFF.
    fn unicode_escape(&mut self, text: &[u8]) -> Result<(), LuaError> {
        let unit = |at: usize| {
            let digits = text.get(at..at + 6)?.strip_prefix(b"\\u")?;
            let digits = digits.iter().all(u8::is_ascii_hexdigit).then_some(digits)?;
            u16::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()
        };
        let units = [unit(self.at), unit(self.at + 6)];
        let mut read = char::decode_utf16(units.into_iter().map_while(|unit| unit));
        let Some(Ok(found)) = read.next() else {
            return self.problem("value", "invalid unicode escape code");
        };
        let mut buffer = [0; 4];
        self.text
            .extend_from_slice(found.encode_utf8(&mut buffer).as_bytes());
        self.at += 6 * found.len_utf16();
        Ok(())
    }

    /// Reads a number (RFC 8259, section 6).
    fn number(&mut self, stack: &LuaStack, text: &[u8]) -> Result<(), LuaError> {
        let rest = &text[self.at..];
        let digits = |from: usize| {
            let rest = rest.get(from..).unwrap_or_default();
            rest.iter().take_while(|byte| byte.is_ascii_digit()).count()
        };
        let sign = usize::from(rest[0] == b'-');
        let whole = digits(sign);
        let mut end = sign + whole;
        let mut is_valid = whole == 1 || (whole > 1 && rest[sign] != b'0');
        let is_whole = !matches!(rest.get(end), Some(b'.' | b'e' | b'E'));
        if rest.get(end) == Some(&b'.') {
            let count = digits(end + 1);
            is_valid &= count > 0;
            end += 1 + count;
        }
        if let Some(b'e' | b'E') = rest.get(end) {
            let sign = usize::from(matches!(rest.get(end + 1), Some(b'+' | b'-')));
            let count = digits(end + 1 + sign);
            is_valid &= count > 0;
            end += 1 + sign + count;
        }
        if !is_valid {
            return self.problem("value", "invalid number");
        }
        // Up to 15 digits a double has every whole number.
        let value = if is_whole && whole <= 15 {
            let add = |sum: u64, byte: &u8| sum * 10 + u64::from(byte - b'0');
            let value = rest[sign..end].iter().fold(0, add) as f64;
            if sign == 1 { -value } else { value }
        } else {
            let text = str::from_utf8(&rest[..end]).unwrap_or_default();
            text.parse().unwrap_or_default()
        };
        stack.push_number(value);
        self.at += end;
        Ok(())
    }

    /// The error that something else comes next, in lua-cjson's words.
    fn expected<T>(&self, text: &[u8], what: &str) -> Result<T, LuaError> {
        let found = match text.get(self.at) {
            None => "T_END",
            Some(b'{') => "T_OBJ_BEGIN",
            Some(b'}') => "T_OBJ_END",
            Some(b'[') => "T_ARR_BEGIN",
            Some(b']') => "T_ARR_END",
            Some(b'"') => "T_STRING",
            Some(b':') => "T_COLON",
            Some(b',') => "T_COMMA",
            Some(b'-' | b'0'..=b'9') => "T_NUMBER",
            Some(_) => "invalid token",
        };
        self.problem(what, found)
    }

    fn problem<T>(&self, what: &str, found: &str) -> Result<T, LuaError> {
        let at = self.at + 1;
        fail(format!(
            "Expected {what} but found {found} at character {at}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::luajit::state::LuaState;

    /// The value of a text, read in parts of this many values, as JSON again.
    fn read(text: &[u8], most: usize) -> Result<String, String> {
        let state = LuaState::new(usize::MAX).expect("a state");
        let stack = state.stack();
        let mut reader = JsonReader::default();
        loop {
            match reader.read(&stack, text, most) {
                Ok(true) => break,
                Ok(false) => {}
                Err(problem) => return Err(String::from_utf8_lossy(&problem.0).into_owned()),
            }
        }
        assert_eq!(stack.top(), 1, "one value is left");
        let mut out = Vec::new();
        super::super::json::write(&stack, 1, 1, &mut out).expect("it was read");
        Ok(String::from_utf8_lossy(&out).into_owned())
    }

    #[test]
    fn values_are_read_in_parts_of_any_size() {
        for (text, expected) in [
            (
                r#" [ 1 , -2.5e1 , [ ] , [ [ true ] , null ] ] "#,
                "[1,-25,{},[[true],null]]",
            ),
            (
                r#"{"a":{"b":[{"c":"d"},false]}}"#,
                r#"{"a":{"b":[{"c":"d"},false]}}"#,
            ),
            (r#""\u00e9\ud83d\ude00\n\/""#, "\"é😀\\n\\/\""),
            ("123456789012345678", "1.2345678901235e+17"),
            ("-0", "-0"),
            (r#"{"a":1,"a":2}"#, r#"{"a":2}"#),
        ] {
            for most in [1, 2, 3, usize::MAX] {
                assert_eq!(
                    read(text.as_bytes(), most).as_deref(),
                    Ok(expected),
                    "{text} by {most}"
                );
            }
        }
        assert_eq!(
            read(b"\"\xff\x01\"", 1).as_deref(),
            Ok("\"\u{fffd}\\u0001\"")
        );
    }

    #[test]
    fn what_is_no_json_is_refused_with_its_place() {
        for (text, expected) in [
            ("", "value but found T_END at character 1"),
            ("{", "object key string but found T_END at character 2"),
            ("[1,]", "value but found T_ARR_END at character 4"),
            (
                "[1 2]",
                "comma or array end but found T_NUMBER at character 4",
            ),
            (r#"{"a" 1}"#, "colon but found T_NUMBER at character 6"),
            (
                r#"{"a":1,}"#,
                "object key string but found T_OBJ_END at character 8",
            ),
            (
                r#"{"a":1]"#,
                "comma or object end but found T_ARR_END at character 7",
            ),
            ("nul", "value but found invalid token at character 1"),
            ("1 {", "the end but found T_OBJ_BEGIN at character 3"),
            ("01", "value but found invalid number at character 1"),
            ("[1.]", "value but found invalid number at character 2"),
            ("1e", "value but found invalid number at character 1"),
            ("-", "value but found invalid number at character 1"),
            (
                r#""a"#,
                "value but found unexpected end of string at character 3",
            ),
            (
                r#""\x""#,
                "value but found invalid escape code at character 2",
            ),
            (
                r#""\ud83d""#,
                "value but found invalid unicode escape code at character 2",
            ),
            (
                r#""\u00g0""#,
                "value but found invalid unicode escape code at character 2",
            ),
        ] {
            let expected = format!("Expected {expected}");
            assert_eq!(
                read(text.as_bytes(), 2).err().as_deref(),
                Some(&*expected),
                "{text}"
            );
        }
        assert!(read("[".repeat(1001).as_bytes(), 7).is_err());
        let deep = ["[".repeat(1000), "]".repeat(1000)].concat();
        assert!(read(deep.as_bytes(), 7).is_ok());
    }
}
