//! SETTINGS (RFC 9113, section 6.5; RFC 8441; RFC 9218): what an endpoint tells its peer about
//! itself.

use super::error::ConnectionError;
use super::frame::{MAX_FRAME_SIZE_DEFAULT, MAX_FRAME_SIZE_MAX};
use super::window::FlowControlWindow;

/// Identifiers of settings.
pub mod id {
    /// The size of the dynamic table of the sender's decoder, in bytes.
    pub const HEADER_TABLE_SIZE: u16 = 0x1;
    /// Whether the sender accepts pushed streams.
    pub const ENABLE_PUSH: u16 = 0x2;
    /// The number of streams that the peer may have open.
    pub const MAX_CONCURRENT_STREAMS: u16 = 0x3;
    /// The initial window of streams, in bytes.
    pub const INITIAL_WINDOW_SIZE: u16 = 0x4;
    /// The largest payload of a frame that the sender accepts, in bytes.
    pub const MAX_FRAME_SIZE: u16 = 0x5;
    /// The largest header list that the sender accepts, in bytes.
    pub const MAX_HEADER_LIST_SIZE: u16 = 0x6;
    /// The sender supports extended CONNECT (RFC 8441).
    pub const ENABLE_CONNECT_PROTOCOL: u16 = 0x8;
    /// The sender ignores the priorities of RFC 7540 (RFC 9218).
    pub const NO_RFC7540_PRIORITIES: u16 = 0x9;
}

/// A peer's settings. [`H2Settings::default`] are those before it has sent any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct H2Settings {
    /// The size of the dynamic table of the peer's decoder, in bytes.
    pub header_table_size: u32,
    /// Whether the peer accepts pushed streams.
    pub enable_push: bool,
    /// The number of streams that we may have open; `None` if the peer set no limit.
    pub max_concurrent_streams: Option<u32>,
    /// The initial window of streams, in bytes; at most [`FlowControlWindow::MAX`].
    pub initial_window_size: u32,
    /// The largest payload of a frame that the peer accepts, in bytes; from 2^14 to 2^24-1.
    pub max_frame_size: u32,
    /// The largest header list that the peer accepts, in bytes; `None` if it set no limit.
    pub max_header_list_size: Option<u32>,
    /// Whether the peer supports extended CONNECT (RFC 8441).
    pub enable_connect_protocol: bool,
    /// Whether the peer ignores the priorities of RFC 7540.
    pub no_rfc7540_priorities: bool,
}

impl Default for H2Settings {
    fn default() -> H2Settings {
        H2Settings {
            header_table_size: 4096,
            enable_push: true,
            max_concurrent_streams: None,
            initial_window_size: FlowControlWindow::DEFAULT,
            max_frame_size: MAX_FRAME_SIZE_DEFAULT,
            max_header_list_size: None,
            enable_connect_protocol: false,
            no_rfc7540_priorities: false,
        }
    }
}

impl H2Settings {
    /// Applies the payload of a SETTINGS frame, whose length the reader has checked. Unknown
    /// settings are ignored.
    pub fn apply(&mut self, payload: &[u8]) -> Result<(), ConnectionError> {
        for (id, value) in pairs(payload) {
            self.set(id, value)?;
        }
        Ok(())
    }

    /// Applies one setting.
    pub fn set(&mut self, id: u16, value: u32) -> Result<(), ConnectionError> {
        match id {
            id::HEADER_TABLE_SIZE => self.header_table_size = value,
            id::ENABLE_PUSH => {
                self.enable_push = flag(value, "SETTINGS frame with incorrect ENABLE_PUSH")?;
            }
            id::MAX_CONCURRENT_STREAMS => self.max_concurrent_streams = Some(value),
            id::INITIAL_WINDOW_SIZE if value > FlowControlWindow::MAX => {
                return Err(ConnectionError::flow_control(
                    "SETTINGS frame with incorrect INITIAL_WINDOW_SIZE value",
                ));
            }
            id::INITIAL_WINDOW_SIZE => self.initial_window_size = value,
            id::MAX_FRAME_SIZE => {
                if !(MAX_FRAME_SIZE_DEFAULT..=MAX_FRAME_SIZE_MAX).contains(&value) {
                    return Err(ConnectionError::protocol(
                        "SETTINGS frame with incorrect MAX_FRAME_SIZE value",
                    ));
                }
                self.max_frame_size = value;
            }
            id::MAX_HEADER_LIST_SIZE => self.max_header_list_size = Some(value),
            id::ENABLE_CONNECT_PROTOCOL => {
                self.enable_connect_protocol = flag(
                    value,
                    "SETTINGS frame with incorrect ENABLE_CONNECT_PROTOCOL",
                )?;
            }
            id::NO_RFC7540_PRIORITIES => {
                self.no_rfc7540_priorities =
                    flag(value, "SETTINGS frame with incorrect NO_RFC7540_PRIORITIES")?;
            }
            _ => {}
        }
        Ok(())
    }
}

fn flag(value: u32, what: &'static str) -> Result<bool, ConnectionError> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(ConnectionError::protocol(what)),
    }
}

/// Identifiers and values of a SETTINGS payload, in order.
pub fn pairs(payload: &[u8]) -> impl Iterator<Item = (u16, u32)> + '_ {
    let (settings, _) = payload.as_chunks::<6>();
    settings
        .iter()
        .map(|&[a, b, c, d, e, f]| (u16::from_be_bytes([a, b]), u32::from_be_bytes([c, d, e, f])))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(pairs: &[(u16, u32)]) -> Vec<u8> {
        let mut out = Vec::new();
        for (id, value) in pairs {
            out.extend_from_slice(&id.to_be_bytes());
            out.extend_from_slice(&value.to_be_bytes());
        }
        out
    }

    #[test]
    fn values_are_taken_in_order() {
        let mut settings = H2Settings::default();
        let bytes = payload(&[(4, 1), (4, 7), (3, 100), (0xaaaa, 5), (5, 16384), (8, 1)]);
        settings.apply(&bytes).expect("all of them are allowed");
        assert_eq!(settings.initial_window_size, 7);
        assert_eq!(settings.max_concurrent_streams, Some(100));
        assert!(settings.enable_connect_protocol);
    }

    #[test]
    fn values_out_of_bounds_are_refused() {
        for (id, value) in [
            (2, 2),
            (4, 1 << 31),
            (5, 16383),
            (5, 1 << 24),
            (8, 2),
            (9, 2),
        ] {
            let mut settings = H2Settings::default();
            assert!(settings.apply(&payload(&[(id, value)])).is_err());
        }
    }
}
