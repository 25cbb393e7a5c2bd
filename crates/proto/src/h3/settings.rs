//! SETTINGS (RFC 9114, section 7.2.4; RFC 9204, section 5; RFC 9220; RFC 9297): what an endpoint tells its peer about
//! itself. Each setting occurs at most once, and the frame too.

use super::error::{H3Error, H3ErrorCode};
use super::varint;

/// Identifiers of settings.
pub mod id {
    /// The largest dynamic table of the sender's decoder, in bytes.
    pub const QPACK_MAX_TABLE_CAPACITY: u64 = 0x1;
    /// The largest field section that the sender accepts, in bytes.
    pub const MAX_FIELD_SECTION_SIZE: u64 = 0x6;
    /// How many streams may wait for entries of the table at a time.
    pub const QPACK_BLOCKED_STREAMS: u64 = 0x7;
    /// The sender supports extended CONNECT (RFC 9220).
    pub const ENABLE_CONNECT_PROTOCOL: u64 = 0x8;
    /// The sender accepts HTTP datagrams (RFC 9297).
    pub const H3_DATAGRAM: u64 = 0x33;
}

/// A peer's settings. [`H3Settings::default`] are those before it has sent any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct H3Settings {
    /// The largest dynamic table of the peer's decoder, in bytes.
    pub max_table_capacity: u64,
    /// The largest field section that the peer accepts, in bytes; `None` if it set no limit.
    pub max_field_section_size: Option<u64>,
    /// How many streams may wait for entries of its table at a time.
    pub blocked_streams: u64,
    /// Whether the peer supports extended CONNECT.
    pub enable_connect_protocol: bool,
    /// Whether the peer accepts HTTP datagrams.
    pub h3_datagram: bool,
}

impl H3Settings {
    /// Reads the payload of a SETTINGS frame. Unknown settings are ignored.
    pub fn parse(payload: &[u8]) -> Result<H3Settings, H3Error> {
        const CUT: H3Error = H3Error::connection(
            H3ErrorCode::FRAME_ERROR,
            "SETTINGS frame that ends inside a setting",
        );
        let mut settings = H3Settings::default();
        let mut seen = 0u64;
        let mut rest = payload;
        while !rest.is_empty() {
            let id = varint::read(&mut rest).ok_or(CUT)?;
            let value = varint::read(&mut rest).ok_or(CUT)?;
            // All settings with a meaning have small numbers.
            let bit = 1u64
                .checked_shl(u32::try_from(id).unwrap_or(u32::MAX))
                .unwrap_or(0);
            if seen & bit != 0 {
                return Err(fault("SETTINGS frame with a repeated setting"));
            }
            seen |= bit;
            settings.set(id, value)?;
        }
        Ok(settings)
    }

    fn set(&mut self, id: u64, value: u64) -> Result<(), H3Error> {
        match id {
            id::QPACK_MAX_TABLE_CAPACITY => self.max_table_capacity = value,
            id::MAX_FIELD_SECTION_SIZE => self.max_field_section_size = Some(value),
            id::QPACK_BLOCKED_STREAMS => self.blocked_streams = value,
            id::ENABLE_CONNECT_PROTOCOL => {
                self.enable_connect_protocol = flag(
                    value,
                    "SETTINGS frame with incorrect ENABLE_CONNECT_PROTOCOL",
                )?;
            }
            id::H3_DATAGRAM => {
                self.h3_datagram = flag(value, "SETTINGS frame with incorrect H3_DATAGRAM")?;
            }
            // Those of HTTP/2 (RFC 9114, section 7.2.4.1).
            0 | 2..=5 => return Err(fault("SETTINGS frame with a setting of HTTP/2")),
            _ => {}
        }
        Ok(())
    }
}

fn flag(value: u64, what: &'static str) -> Result<bool, H3Error> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(fault(what)),
    }
}

const fn fault(what: &'static str) -> H3Error {
    H3Error::connection(H3ErrorCode::SETTINGS_ERROR, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(pairs: &[(u64, u64)]) -> Vec<u8> {
        let mut out = Vec::new();
        for (id, value) in pairs {
            varint::write(*id, &mut out);
            varint::write(*value, &mut out);
        }
        out
    }

    #[test]
    fn values_are_taken() {
        let bytes = payload(&[(1, 4096), (7, 16), (8, 1), (0x21, 9), (0x33, 1), (0x40, 9)]);
        let settings = H3Settings::parse(&bytes).expect("all of them are allowed");
        let expected = H3Settings {
            max_table_capacity: 4096,
            max_field_section_size: None,
            blocked_streams: 16,
            enable_connect_protocol: true,
            h3_datagram: true,
        };
        assert_eq!(settings, expected);
        assert_eq!(H3Settings::parse(&[]), Ok(H3Settings::default()));
    }

    #[test]
    fn what_is_refused_and_how() {
        let code = |bytes: &[u8]| H3Settings::parse(bytes).map_err(|error| error.code);
        for (id, value) in [(0, 1), (2, 0), (3, 1), (4, 1), (5, 1), (8, 2), (0x33, 2)] {
            let result = code(&payload(&[(id, value)]));
            assert_eq!(result, Err(H3ErrorCode::SETTINGS_ERROR), "{id} {value}");
        }
        let twice = payload(&[(6, 1), (6, 1)]);
        assert_eq!(code(&twice), Err(H3ErrorCode::SETTINGS_ERROR));
        let bytes = payload(&[(6, 1000), (7, 1000)]);
        for cut in [1, 2, 4, 5] {
            assert_eq!(code(&bytes[..cut]), Err(H3ErrorCode::FRAME_ERROR), "{cut}");
        }
    }
}
