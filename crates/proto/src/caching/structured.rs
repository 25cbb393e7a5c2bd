//! Dictionaries of structured fields (RFC 9651, section 3.2), as far as caches need them: names
//! and, of the values, integers and `true`. Everything else is only checked for its syntax, because
//! a malformed field must be ignored as a whole.

/// The value of a dictionary's member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberValue {
    /// `name`, or `name=?1`
    True,
    /// `name=123`
    Integer(i64),
    /// Anything else.
    Other,
}

/// The text is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MalformedDictionary;

/// Parses a dictionary and passes each member to `member`, in order. A repeated member is passed
/// again: the last one counts. Whether the text is malformed is known only at the end, so the
/// caller must discard the members then.
pub fn dictionary<'a>(
    text: &'a [u8],
    mut member: impl FnMut(&'a [u8], MemberValue),
) -> Result<(), MalformedDictionary> {
    let mut text = DictionaryReader(text);
    text.spaces();
    if text.0.is_empty() {
        return Ok(());
    }
    loop {
        let name = text.key()?;
        let value = if text.accept(b'=') {
            text.item_or_inner_list()?
        } else {
            text.parameters()?;
            MemberValue::True
        };
        member(name, value);
        text.optional_whitespace();
        if text.0.is_empty() {
            return Ok(());
        }
        text.expect(b',')?;
        text.optional_whitespace();
        if text.0.is_empty() {
            return Err(MalformedDictionary);
        }
    }
}

/// A parser: the remaining text.
struct DictionaryReader<'a>(&'a [u8]);

impl<'a> DictionaryReader<'a> {
    fn peek(&self) -> Option<u8> {
        self.0.first().copied()
    }

    fn accept(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        if found {
            self.0 = &self.0[1..];
        }
        found
    }

    fn expect(&mut self, byte: u8) -> Result<(), MalformedDictionary> {
        if self.accept(byte) {
            Ok(())
        } else {
            Err(MalformedDictionary)
        }
    }

    fn take(&mut self, belongs: impl Fn(u8) -> bool) -> &'a [u8] {
        let length = self.0.iter().take_while(|&&b| belongs(b)).count();
        let (taken, rest) = self.0.split_at(length);
        self.0 = rest;
        taken
    }

    fn spaces(&mut self) {
        self.take(|b| b == b' ');
    }

    fn optional_whitespace(&mut self) {
        self.take(|b| matches!(b, b' ' | b'\t'));
    }

    /// A key. Lower case only: `MAX-AGE=5` is malformed.
    fn key(&mut self) -> Result<&'a [u8], MalformedDictionary> {
        if !self
            .peek()
            .is_some_and(|b| b.is_ascii_lowercase() || b == b'*')
        {
            return Err(MalformedDictionary);
        }
        Ok(self.take(|b| {
            b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'_' | b'-' | b'.' | b'*')
        }))
    }

    fn item_or_inner_list(&mut self) -> Result<MemberValue, MalformedDictionary> {
        let value = if self.accept(b'(') {
            self.inner_list()?;
            MemberValue::Other
        } else {
            self.bare_item()?
        };
        self.parameters()?;
        Ok(value)
    }

    fn inner_list(&mut self) -> Result<(), MalformedDictionary> {
        loop {
            self.spaces();
            if self.accept(b')') {
                return Ok(());
            }
            self.bare_item()?;
            self.parameters()?;
            if !matches!(self.peek(), Some(b' ' | b')')) {
                return Err(MalformedDictionary);
            }
        }
    }

    fn parameters(&mut self) -> Result<(), MalformedDictionary> {
        while self.accept(b';') {
            self.spaces();
            self.key()?;
            if self.accept(b'=') {
                self.bare_item()?;
            }
        }
        Ok(())
    }

    fn bare_item(&mut self) -> Result<MemberValue, MalformedDictionary> {
        match self.peek().ok_or(MalformedDictionary)? {
            b'-' | b'0'..=b'9' => self.number(),
            b'"' => self.string(),
            b':' => self.byte_sequence(),
            b'?' => self.boolean(),
            b'@' => {
                self.accept(b'@');
                match self.number()? {
                    MemberValue::Integer(_) => Ok(MemberValue::Other),
                    MemberValue::True | MemberValue::Other => Err(MalformedDictionary),
                }
            }
            b'%' => {
                self.accept(b'%');
                self.display_string()
            }
            b'*' | b'a'..=b'z' | b'A'..=b'Z' => {
                self.take(is_token);
                Ok(MemberValue::Other)
            }
            _ => Err(MalformedDictionary),
        }
    }

    /// An integer of at most 15 digits, or a decimal with at most 12 and a fraction of at most 3.
    fn number(&mut self) -> Result<MemberValue, MalformedDictionary> {
        let negative = self.accept(b'-');
        let digits = self.take(|b| b.is_ascii_digit());
        if digits.is_empty() || digits.len() > 15 {
            return Err(MalformedDictionary);
        }
        if self.accept(b'.') {
            let fraction = self.take(|b| b.is_ascii_digit()).len();
            return if digits.len() <= 12 && (1..=3).contains(&fraction) {
                Ok(MemberValue::Other)
            } else {
                Err(MalformedDictionary)
            };
        }
        let number = digits
            .iter()
            .fold(0, |number, digit| number * 10 + i64::from(digit - b'0'));
        Ok(MemberValue::Integer(if negative {
            -number
        } else {
            number
        }))
    }

    fn string(&mut self) -> Result<MemberValue, MalformedDictionary> {
        self.expect(b'"')?;
        loop {
            self.take(|b| matches!(b, 0x20..=0x7e) && !matches!(b, b'"' | b'\\'));
            if self.accept(b'"') {
                return Ok(MemberValue::Other);
            }
            self.expect(b'\\')?;
            if !self.accept(b'"') && !self.accept(b'\\') {
                return Err(MalformedDictionary);
            }
        }
    }

    fn display_string(&mut self) -> Result<MemberValue, MalformedDictionary> {
        self.expect(b'"')?;
        loop {
            self.take(|b| matches!(b, 0x20..=0x7e) && !matches!(b, b'"' | b'%'));
            if self.accept(b'"') {
                return Ok(MemberValue::Other);
            }
            self.expect(b'%')?;
            let (digits, rest) = self.0.split_at_checked(2).ok_or(MalformedDictionary)?;
            if !digits
                .iter()
                .all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
            {
                return Err(MalformedDictionary);
            }
            self.0 = rest;
        }
    }

    fn byte_sequence(&mut self) -> Result<MemberValue, MalformedDictionary> {
        self.expect(b':')?;
        self.take(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/' | b'='));
        self.expect(b':')?;
        Ok(MemberValue::Other)
    }

    fn boolean(&mut self) -> Result<MemberValue, MalformedDictionary> {
        self.expect(b'?')?;
        if self.accept(b'1') {
            return Ok(MemberValue::True);
        }
        self.expect(b'0')?;
        Ok(MemberValue::Other)
    }
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<String> {
        let mut members = Vec::new();
        dictionary(text.as_bytes(), |name, value| {
            members.push(format!("{}={value:?}", String::from_utf8_lossy(name)));
        })
        .ok()?;
        Some(members.join(" "))
    }

    #[test]
    fn members_are_found() {
        assert_eq!(read("").as_deref(), Some(""));
        assert_eq!(
            read("max-age=60 , foo;a=\"b,c\";d,\tb=?0, c=?1").as_deref(),
            Some("max-age=Integer(60) foo=True b=Other c=True")
        );
        for other in [
            "a=\"x\\\"y\"",
            "a=1.5",
            "a=Token/*",
            "a=:aGk=:",
            "a=(1 \"b\";q c)",
            "a=()",
            "a=@123",
            "a=%\"f%c3%bc\"",
        ] {
            assert_eq!(read(other).as_deref(), Some("a=Other"), "{other}");
        }
        assert_eq!(read("a=-5").as_deref(), Some("a=Integer(-5)"));
    }

    #[test]
    fn what_is_not_well_formed_is_nothing() {
        for bad in [
            "max-age=10000, &&&&&",
            "MaX-aGe=1",
            "max-age =1",
            "max-age= 1",
            "a,",
            ",a",
            "a b",
            "a=1.",
            "a=1.2345",
            "a=1234567890123456",
            "a=\"open",
            "a=\"\\n\"",
            "a=(1",
            "a=(1\"b\")",
            "a=:x",
            "a=?2",
            "a=@1.5",
            "a=%\"%C3\"",
            "a=",
            "a=1;",
            "a=1;=2",
        ] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
