//! Why a connection is over.

use std::fmt;

use quinn_proto::ConnectionError;

/// Why a connection is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuicClosed {
    /// This side has closed it.
    Here,
    /// The peer has closed it, with a code of the application.
    ByApplication(u64),
    /// The peer has closed it, or broken the protocol: a code of RFC 9000, section 20.1, and words for the log.
    ByTransport(u64, String),
    /// Nothing was heard of the peer for too long.
    TimedOut,
    /// The peer has lost the connection (a stateless reset).
    Reset,
    /// Nobody listens at the server's port.
    Unreachable,
}

impl fmt::Display for QuicClosed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QuicClosed::Here => f.write_str("quic connection closed"),
            QuicClosed::ByApplication(code) => {
                write!(f, "client closed the quic connection with code {code:#x}")
            }
            QuicClosed::ByTransport(code, words) => {
                write!(f, "quic connection failed with code {code:#x}: {words}")
            }
            QuicClosed::TimedOut => f.write_str("quic connection timed out"),
            QuicClosed::Reset => f.write_str("client has lost the quic connection"),
            QuicClosed::Unreachable => f.write_str("quic connection refused"),
        }
    }
}

impl QuicClosed {
    pub(super) fn of(error: &ConnectionError) -> QuicClosed {
        match error {
            ConnectionError::ApplicationClosed(close) => {
                QuicClosed::ByApplication(close.error_code.into_inner())
            }
            // What a peer sends must not put control characters into a log.
            ConnectionError::ConnectionClosed(close) => {
                let words = format!("closed by the client: {}", close.reason.escape_ascii());
                QuicClosed::ByTransport(close.error_code.into(), words)
            }
            ConnectionError::TransportError(error) => {
                QuicClosed::ByTransport(error.code.into(), error.reason.clone())
            }
            ConnectionError::VersionMismatch | ConnectionError::CidsExhausted => {
                QuicClosed::ByTransport(0, error.to_string())
            }
            ConnectionError::TimedOut => QuicClosed::TimedOut,
            ConnectionError::Reset => QuicClosed::Reset,
            ConnectionError::LocallyClosed => QuicClosed::Here,
        }
    }
}
