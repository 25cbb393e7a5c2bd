//! The bytes of a ClientHello, for what rustls does not show of it.
//!
//! Whether early data follows (RFC 8446, section 4.2.10) must be known before the answer: later it is too late to
//! choose how much of it is skipped. An external store needs the session ID, and scripts look at extensions.
//!
//! ```text
//! message     01 len len len  03 vv  random[32]  session<1>  suites<2>  compression<1>  extensions<2>
//! extension   type type len len  …
//!   42        early data: empty
//!   41        sessions to resume:  identities<2>  binders<2>;   identity:  name<2>  age[4]
//!   35        a TLS 1.2 ticket; empty: the client would like one
//!   43        the versions that the client speaks: versions<1>
//! ```

use proto::tls_cursor::TlsCursor;

const RECORD_HEADER: usize = 5;
const EARLY_DATA: u16 = 42;
const PRE_SHARED_KEY: u16 = 41;
const TICKET: u16 = 35;
const SUPPORTED_VERSIONS: u16 = 43;

/// A ClientHello, joined from its records.
pub(super) struct RawHello(Vec<u8>);

impl RawHello {
    /// `records` contain the hello and possibly more.
    pub(super) fn new(records: &[u8]) -> RawHello {
        RawHello(message(records))
    }

    /// The client's random bytes; empty if the hello is malformed.
    pub(super) fn random(&self) -> &[u8] {
        // After the headers of the message (4 bytes) and the version.
        self.0.get(6..38).unwrap_or_default()
    }

    /// The session that the early data belongs to: the first one in the list (RFC 8446, section 4.2.10). `None` if
    /// there is no early data, or if the hello is malformed, which the handshake will report.
    pub(super) fn early_offer(&self) -> Option<Vec<u8>> {
        let known = self.extensions()?;
        let content = |wanted: u16| known.iter().find(|(kind, _)| *kind == wanted);
        content(EARLY_DATA)?;
        let mut keys = TlsCursor(content(PRE_SHARED_KEY)?.1);
        Some(keys.vector()?.vector()?.0.to_vec())
    }

    /// The extensions in their order; `None` if there are none or the hello is malformed.
    pub(super) fn extensions(&self) -> Option<Vec<(u16, &[u8])>> {
        let (_, mut rest) = self.session_and_rest()?;
        rest.vector()?;
        rest.short_vector()?;
        let mut left = rest.vector()?;
        let mut extensions = Vec::new();
        while !left.is_empty() {
            let kind = left.u16()?;
            extensions.push((kind, left.vector()?.0));
        }
        Some(extensions)
    }

    /// The content of an extension.
    pub(super) fn extension(&self, wanted: u16) -> Option<&[u8]> {
        let all = self.extensions()?;
        all.into_iter()
            .find_map(|(kind, content)| (kind == wanted).then_some(content))
    }

    /// Whether a version is in the `supported_versions` extension, which exists since TLS 1.3 (RFC 8446, section
    /// 4.2.1).
    pub(super) fn offers_version(&self, version: u16) -> bool {
        let versions = self
            .extension(SUPPORTED_VERSIONS)
            .and_then(|content| TlsCursor(content).short_vector());
        versions.is_some_and(|named| {
            let mut named = named.0.chunks_exact(2);
            named.any(|one| one == version.to_be_bytes())
        })
    }

    /// The session ID that the client wants to resume with TLS 1.2. Not with a ticket: that contains the session,
    /// and the ID is only a marker (RFC 5077, section 3.4).
    pub(super) fn session_id(&self) -> Option<&[u8]> {
        let (id, _) = self.session_and_rest()?;
        let ticket = self.extension(TICKET).unwrap_or_default();
        (!id.is_empty() && ticket.is_empty()).then_some(id)
    }

    fn session_and_rest(&self) -> Option<(&[u8], TlsCursor<'_>)> {
        let mut rest = TlsCursor(self.0.get(4..)?);
        rest.take(2 + 32)?;
        Some((rest.short_vector()?.0, rest))
    }
}

/// The first handshake message, joined from its records.
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
            assert_eq!(
                RawHello::new(&wire).early_offer(),
                Some(b"name".to_vec()),
                "{size}"
            );
            assert_eq!(RawHello::new(&records(&without, size)).early_offer(), None);
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
                let _ = RawHello::new(&records(&broken, 7)).early_offer();
            }
            let cut = RawHello::new(&records(&whole[..at], 999));
            assert_eq!(cut.early_offer(), None, "{at}");
        }
    }
}
