//! Error codes (RFC 9113, section 7), and errors that end a connection.

use std::fmt;

/// An error code in RST_STREAM and GOAWAY. Undefined codes are kept as they are.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ErrorCode(pub u32);

impl ErrorCode {
    /// No error: a graceful end.
    pub const NO_ERROR: ErrorCode = ErrorCode(0x0);
    /// The peer violated the protocol in a way that has no code of its own.
    pub const PROTOCOL_ERROR: ErrorCode = ErrorCode(0x1);
    /// An internal error.
    pub const INTERNAL_ERROR: ErrorCode = ErrorCode(0x2);
    /// More was sent than the window allowed.
    pub const FLOW_CONTROL_ERROR: ErrorCode = ErrorCode(0x3);
    /// Settings were not acknowledged in time.
    pub const SETTINGS_TIMEOUT: ErrorCode = ErrorCode(0x4);
    /// A frame arrived for a stream that the peer had ended.
    pub const STREAM_CLOSED: ErrorCode = ErrorCode(0x5);
    /// A frame has an invalid size.
    pub const FRAME_SIZE_ERROR: ErrorCode = ErrorCode(0x6);
    /// The stream was refused before any processing, so it may be retried.
    pub const REFUSED_STREAM: ErrorCode = ErrorCode(0x7);
    /// The stream is no longer wanted.
    pub const CANCEL: ErrorCode = ErrorCode(0x8);
    /// A header block cannot be decompressed.
    pub const COMPRESSION_ERROR: ErrorCode = ErrorCode(0x9);
    /// The tunnel of a CONNECT request was reset.
    pub const CONNECT_ERROR: ErrorCode = ErrorCode(0xa);
    /// The peer causes excessive load.
    pub const ENHANCE_YOUR_CALM: ErrorCode = ErrorCode(0xb);
    /// The transport is not secure enough.
    pub const INADEQUATE_SECURITY: ErrorCode = ErrorCode(0xc);
    /// The request needs HTTP/1.1.
    pub const HTTP_1_1_REQUIRED: ErrorCode = ErrorCode(0xd);

    /// The name in the RFC; `None` for a code that it does not define.
    pub fn name(self) -> Option<&'static str> {
        const NAMES: [&str; 14] = [
            "NO_ERROR",
            "PROTOCOL_ERROR",
            "INTERNAL_ERROR",
            "FLOW_CONTROL_ERROR",
            "SETTINGS_TIMEOUT",
            "STREAM_CLOSED",
            "FRAME_SIZE_ERROR",
            "REFUSED_STREAM",
            "CANCEL",
            "COMPRESSION_ERROR",
            "CONNECT_ERROR",
            "ENHANCE_YOUR_CALM",
            "INADEQUATE_SECURITY",
            "HTTP_1_1_REQUIRED",
        ];
        NAMES.get(self.0 as usize).copied()
    }
}

impl fmt::Debug for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "{:#x}", self.0),
        }
    }
}

/// A violation by the peer that ends the connection: GOAWAY with this code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionError {
    /// The code for GOAWAY.
    pub code: ErrorCode,
    /// What the peer sent, for the log: it follows "client sent " or "upstream sent ".
    pub what: &'static str,
}

impl ConnectionError {
    /// PROTOCOL_ERROR.
    pub const fn protocol(what: &'static str) -> ConnectionError {
        ConnectionError {
            code: ErrorCode::PROTOCOL_ERROR,
            what,
        }
    }

    /// FRAME_SIZE_ERROR.
    pub const fn frame_size(what: &'static str) -> ConnectionError {
        ConnectionError {
            code: ErrorCode::FRAME_SIZE_ERROR,
            what,
        }
    }

    /// FLOW_CONTROL_ERROR.
    pub const fn flow_control(what: &'static str) -> ConnectionError {
        ConnectionError {
            code: ErrorCode::FLOW_CONTROL_ERROR,
            what,
        }
    }

    /// ENHANCE_YOUR_CALM.
    pub const fn enhance_your_calm(what: &'static str) -> ConnectionError {
        ConnectionError {
            code: ErrorCode::ENHANCE_YOUR_CALM,
            what,
        }
    }

    /// COMPRESSION_ERROR.
    pub const fn compression(what: &'static str) -> ConnectionError {
        ConnectionError {
            code: ErrorCode::COMPRESSION_ERROR,
            what,
        }
    }
}
