//! Replies of Redis (RESP2). The crate `redis-protocol` decodes them; before that, [`ReplyScanner`] finds where one ends.
//!
//! Found first, because the crate begins again from the first byte whenever a reply is not whole yet, which takes a time
//! that grows with the square of its length, and because it descends into arrays by recursion, without a limit.

use bstr::ByteSlice;
use redis_protocol::resp2::decode::decode;
use redis_protocol::resp2::types::OwnedFrame;

/// A reply.
pub type RedisReply = OwnedFrame;

/// The longest reply, in bytes. The longest that is asked for is a batch of a journal's entries.
pub(super) const REPLY_MAX: usize = 32 << 20;

/// The longest line in a reply, in bytes.
const LINE_MAX: usize = 64 * 1024;

/// How deep arrays may be nested. Those of a stream's entries are four deep.
const DEPTH_MAX: usize = 16;

/// Finds the end of a reply that arrives in pieces.
#[derive(Default)]
pub(super) struct ReplyScanner {
    /// Everything before this has been looked at.
    at: usize,
    /// How many elements are missing in each array that is open.
    missing: Vec<usize>,
}

/// A reply that is none, or that is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InvalidReply;

impl ReplyScanner {
    /// The length of the reply at the beginning of `input`; `None` if it is not whole yet. The next call gets the same
    /// bytes and more.
    pub(super) fn find_end(&mut self, input: &[u8]) -> Result<Option<usize>, InvalidReply> {
        loop {
            let rest = input.get(self.at..).unwrap_or_default();
            let Some(length) = rest.find(b"\r\n") else {
                return match rest.len() > LINE_MAX {
                    true => Err(InvalidReply),
                    false => Ok(None),
                };
            };
            let (kind, line) = rest[..length].split_first().ok_or(InvalidReply)?;
            let mut end = self.at + length + 2;
            match kind {
                b'+' | b'-' | b':' => {}
                b'$' => match number(line)? {
                    // A null.
                    None => {}
                    Some(content) if content > REPLY_MAX => return Err(InvalidReply),
                    Some(content) => {
                        end += content + 2;
                        if input.len() < end {
                            return Ok(None);
                        }
                        if !input[..end].ends_with(b"\r\n") {
                            return Err(InvalidReply);
                        }
                    }
                },
                b'*' => match number(line)? {
                    None | Some(0) => {}
                    Some(count) => {
                        if self.missing.len() == DEPTH_MAX || count > REPLY_MAX {
                            return Err(InvalidReply);
                        }
                        self.missing.push(count);
                        self.at = end;
                        continue;
                    }
                },
                _ => return Err(InvalidReply),
            }
            self.at = end;
            if self.close_arrays() {
                return Ok(Some(end));
            }
        }
    }

    /// Counts one element as complete, and the arrays that it completes. Whether that was the reply.
    fn close_arrays(&mut self) -> bool {
        while let Some(missing) = self.missing.last_mut() {
            *missing -= 1;
            if *missing > 0 {
                return false;
            }
            self.missing.pop();
        }
        true
    }
}

/// A length; `None` for that of a null.
fn number(text: &[u8]) -> Result<Option<usize>, InvalidReply> {
    if text == b"-1" {
        return Ok(None);
    }
    let text = text.to_str().map_err(|_| InvalidReply)?;
    text.parse().map(Some).map_err(|_| InvalidReply)
}

/// Decodes a whole reply.
pub(super) fn read_reply(bytes: &[u8]) -> Result<RedisReply, InvalidReply> {
    match decode(bytes) {
        Ok(Some((reply, used))) if used == bytes.len() => Ok(reply),
        _ => Err(InvalidReply),
    }
}

/// The bytes of a text; `None` for other replies.
pub fn text_of(reply: &RedisReply) -> Option<&[u8]> {
    match reply {
        OwnedFrame::SimpleString(text) | OwnedFrame::BulkString(text) => Some(text),
        _ => None,
    }
}

/// The elements of an array; none for other replies.
pub fn elements_of(reply: &RedisReply) -> &[RedisReply] {
    match reply {
        OwnedFrame::Array(elements) => elements,
        _ => &[],
    }
}

/// A number, as such or as text.
pub fn number_of(reply: &RedisReply) -> Option<i64> {
    match reply {
        OwnedFrame::Integer(number) => Some(*number),
        other => text_of(other)?.to_str().ok()?.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_found_however_it_is_cut() {
        let replies: [&[u8]; 7] = [
            b"+OK\r\n",
            b":-3\r\n",
            b"$-1\r\n",
            b"*-1\r\n",
            b"$5\r\na\r\nbc\r\n",
            b"*0\r\n",
            b"*2\r\n*2\r\n$1\r\na\r\n*1\r\n:1\r\n$0\r\n\r\n",
        ];
        for reply in replies {
            let more = [reply, b"+NEXT\r\n"].concat();
            for cut in 0..reply.len() {
                let mut scanner = ReplyScanner::default();
                assert_eq!(
                    scanner.find_end(&reply[..cut]),
                    Ok(None),
                    "{}",
                    reply.as_bstr()
                );
                assert_eq!(scanner.find_end(&more), Ok(Some(reply.len())));
            }
            assert!(read_reply(reply).is_ok(), "{}", reply.as_bstr());
        }
    }

    #[test]
    fn what_is_no_reply_is_refused() {
        let deep = b"*1\r\n".repeat(DEPTH_MAX + 1);
        let replies: [&[u8]; 8] = [
            b"HTTP/1.1 400 Bad Request\r\n",
            b"\r\n",
            b"$x\r\n",
            b"$-2\r\n",
            b"*99999999999\r\n",
            b"$99999999999\r\n",
            b"$1\r\nabc\r\n",
            &deep,
        ];
        for reply in replies {
            let found = ReplyScanner::default().find_end(reply);
            assert_eq!(found, Err(InvalidReply), "{}", reply.as_bstr());
        }
        let endless = vec![b'+'; LINE_MAX + 1];
        assert_eq!(
            ReplyScanner::default().find_end(&endless),
            Err(InvalidReply)
        );
    }

    /// All short texts of the bytes that mean something: nothing panics, and what is found can be decoded or is refused.
    #[test]
    fn no_short_text_panics() {
        let signs = b"*$:+-10\r\n";
        let mut text = [0_u8; 7];
        for number in 0..9_usize.pow(7) {
            let mut left = number;
            for byte in &mut text {
                *byte = signs[left % 9];
                left /= 9;
            }
            if let Ok(Some(end)) = ReplyScanner::default().find_end(&text) {
                let _ = read_reply(&text[..end]);
            }
        }
    }
}
