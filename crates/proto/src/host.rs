//! The host of a request, from the Host field or the target: checked and normalised as nginx does.

/// A valid host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host<'a> {
    /// The name as sent, without port and without a final dot; not yet in lower case.
    pub name: &'a [u8],
    /// The port, if one with digits was given.
    pub port: Option<u16>,
}

/// The value is not a host: answer 400.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidHost;

impl Host<'_> {
    /// Appends the name in lower case: `$host`.
    pub fn write_lowercase(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(self.name);
        out[start..].make_ascii_lowercase();
    }
}

/// Splits and checks `host[:port]` (RFC 3986 section 3.2.2; a port may be empty).
pub fn parse(text: &[u8]) -> Result<Host<'_>, InvalidHost> {
    let _ = text;
    Err(InvalidHost)
}
