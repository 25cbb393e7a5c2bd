//! Whether a client's hello comes with early data (RFC 8446, section 4.2.10), and of which session.
//!
//! rustls does not tell it before it has answered, and then it is too late to choose how much of such data is skipped.
//!
//! ```text
//! message     01 len len len  03 vv  random[32]  session<1>  suites<2>  compression<1>  extensions<2>
//! extension   type type len len  …
//!   42        early data: empty
//!   41        sessions to resume:  identities<2>  binders<2>;   identity:  name<2>  age[4]
//! ```

const RECORD_HEADER: usize = 5;
const EARLY_DATA: u16 = 42;
const PRE_SHARED_KEY: u16 = 41;

/// The name of the session that the early data is of: the first one that the hello names. `None`: there is no early
/// data, or the hello is broken, which is for others to say. `records` are those that the hello came in, and perhaps
/// more.
pub(super) fn early_offer(records: &[u8]) -> Option<Vec<u8>> {
    let message = message(records);
    let mut rest = Cursor(message.get(4..)?);
    rest.take(2 + 32)?;
    rest.sized(1)?;
    rest.sized(2)?;
    rest.sized(1)?;
    let mut extensions = rest.sized(2)?;
    let (mut early, mut session) = (false, None);
    while !extensions.0.is_empty() {
        let kind = extensions.number(2)?;
        let mut content = extensions.sized(2)?;
        if kind == usize::from(EARLY_DATA) {
            early = true;
        } else if kind == usize::from(PRE_SHARED_KEY) {
            session = Some(content.sized(2)?.sized(2)?.0.to_vec());
        }
    }
    session.filter(|_| early)
}

/// The first message, put together from its records.
fn message(mut records: &[u8]) -> Vec<u8> {
    let mut message = Vec::new();
    while let Some(&[22, 3, _, high, low]) = records.first_chunk::<RECORD_HEADER>() {
        let end = RECORD_HEADER + usize::from(u16::from_be_bytes([high, low]));
        let Some(content) = records.get(RECORD_HEADER..end) else {
            break;
        };
        message.extend_from_slice(content);
        records = &records[end..];
    }
    message
}

/// Bytes that are still to be read.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    /// A number of one or two bytes.
    fn number(&mut self, bytes: usize) -> Option<usize> {
        let taken = self.take(bytes)?;
        Some(
            taken
                .iter()
                .fold(0, |sum, byte| sum << 8 | usize::from(*byte)),
        )
    }

    /// Bytes after their length, which has one byte or two.
    fn sized(&mut self, bytes: usize) -> Option<Cursor<'a>> {
        let length = self.number(bytes)?;
        self.take(length).map(Cursor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sized(content: &[u8]) -> Vec<u8> {
        [&(content.len() as u16).to_be_bytes()[..], content].concat()
    }

    fn hello(extensions: &[(u16, &[u8])]) -> Vec<u8> {
        let all = extensions
            .iter()
            .flat_map(|(kind, content)| [&kind.to_be_bytes()[..], &sized(content)].concat());
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.extend([2, 1, 2, 0, 2, 0x13, 1, 1, 0]);
        body.extend(sized(&all.collect::<Vec<u8>>()));
        let length = (body.len() as u32).to_be_bytes();
        [&[1][..], &length[1..], &body].concat()
    }

    fn records(message: &[u8], size: usize) -> Vec<u8> {
        let record = |piece: &[u8]| [&[22, 3, 1][..], &sized(piece)].concat();
        message.chunks(size).flat_map(record).collect()
    }

    #[test]
    fn the_session_of_early_data_is_found_however_the_hello_is_cut() {
        let keys = [
            sized(&[&sized(b"name")[..], &[0; 4]].concat()),
            sized(b"\x01b"),
        ]
        .concat();
        let with = hello(&[(10, &[0, 2, 0, 29]), (42, b""), (41, &keys)]);
        let without = hello(&[(10, &[0, 2, 0, 29]), (41, &keys)]);
        for size in 1..=with.len() {
            let mut wire = records(&with, size);
            wire.extend(b"\x17\x03\x03\0\x05early");
            assert_eq!(early_offer(&wire), Some(b"name".to_vec()), "{size}");
            assert_eq!(early_offer(&records(&without, size)), None);
        }
    }

    #[test]
    fn a_hello_that_lies_about_lengths_offers_something_or_nothing() {
        let keys = [
            sized(&[&sized(b"name")[..], &[0; 4]].concat()),
            sized(b"\x01b"),
        ]
        .concat();
        let whole = hello(&[(42, b""), (41, &keys)]);
        for at in 0..whole.len() {
            for byte in [0, 1, 0x7f, 0xff] {
                let mut broken = whole.clone();
                broken[at] = byte;
                // Which, depends on the byte; it must not matter to anything.
                let _ = early_offer(&records(&broken, 7));
            }
            assert_eq!(early_offer(&records(&whole[..at], 999)), None, "{at}");
        }
    }
}
