//! The web server's side of the uwsgi protocol: the beginning of a request.
//!
//! ```text
//! byte   0          1 2            3
//!        modifier1  size of vars   modifier2   vars: (length, name, length, value) …   content
//!                   little-endian                     two bytes each, little-endian
//! ```
//!
//! The response is a CGI response, with or without a status line, ended by closing the connection.

/// The variables of one request, whose size the format limits.
#[derive(Clone, Debug, Default)]
pub struct UwsgiVars {
    bytes: Vec<u8>,
    /// The size that everything added would need.
    size: usize,
}

impl UwsgiVars {
    /// The largest size that the header can express.
    pub const MAX_SIZE: usize = 0xffff;

    /// Without variables.
    pub fn new() -> UwsgiVars {
        UwsgiVars::default()
    }

    /// Adds a name with its value.
    pub fn push(&mut self, name: &[u8], value: &[u8]) {
        self.size = self.size.saturating_add(4 + name.len() + value.len());
        if self.size > Self::MAX_SIZE {
            return;
        }
        for text in [name, value] {
            self.bytes
                .extend_from_slice(&(text.len() as u16).to_le_bytes());
            self.bytes.extend_from_slice(text);
        }
    }

    /// Adds raw bytes (`uwsgi_string`).
    pub fn push_raw(&mut self, bytes: &[u8]) {
        self.size = self.size.saturating_add(bytes.len());
        if self.size <= Self::MAX_SIZE {
            self.bytes.extend_from_slice(bytes);
        }
    }

    /// Appends the header of a request. The error is the size if it exceeds [`UwsgiVars::MAX_SIZE`].
    pub fn write_head(&self, modifier1: u8, modifier2: u8, out: &mut Vec<u8>) -> Result<(), usize> {
        let [low, high] = u16::try_from(self.size)
            .map_err(|_| self.size)?
            .to_le_bytes();
        out.extend_from_slice(&[modifier1, low, high, modifier2]);
        out.extend_from_slice(&self.bytes);
        Ok(())
    }
}

/// The variables of a head that [`UwsgiVars::write_head`] has written, to show them.
pub fn read_params(head: &[u8]) -> Vec<(&[u8], &[u8])> {
    let mut rest = head.get(4..).unwrap_or_default();
    let mut params = Vec::new();
    while let Some((name, after)) = read_text(rest)
        && let Some((value, after)) = read_text(after)
    {
        params.push((name, value));
        rest = after;
    }
    params
}

/// A text with its length in front, and what follows it.
fn read_text(list: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = list.split_first_chunk::<2>()?;
    rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_has_both_modifiers_and_all_vars() {
        let (mut vars, mut out) = (UwsgiVars::new(), Vec::new());
        vars.push(b"AB", b"c");
        vars.push_raw(b"x");
        assert_eq!(vars.write_head(5, 6, &mut out), Ok(()));
        assert_eq!(out, b"\x05\x08\x00\x06\x02\x00AB\x01\x00cx");
    }

    #[test]
    fn the_size_has_a_bound() {
        let value = vec![b'v'; UwsgiVars::MAX_SIZE - 4];
        let (mut vars, mut out) = (UwsgiVars::new(), Vec::new());
        vars.push(b"", &value);
        assert_eq!(vars.write_head(0, 0, &mut out), Ok(()));
        assert_eq!(out.len(), 4 + UwsgiVars::MAX_SIZE);
        vars.push(b"", b"");
        assert_eq!(
            vars.write_head(0, 0, &mut out),
            Err(UwsgiVars::MAX_SIZE + 4)
        );
    }
}
