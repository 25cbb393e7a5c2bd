//! The version of HTTP that a message is written in.

/// A protocol version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MessageVersion {
    /// 0 for HTTP/0.9, else 1; 2 and 3 come from other codecs.
    pub major: u8,
    /// Up to three digits are read, as in nginx.
    pub minor: u16,
}

impl MessageVersion {
    /// A request line without a version.
    pub const HTTP_09: MessageVersion = MessageVersion { major: 0, minor: 9 };
    /// HTTP/1.0
    pub const HTTP_10: MessageVersion = MessageVersion { major: 1, minor: 0 };
    /// HTTP/1.1
    pub const HTTP_11: MessageVersion = MessageVersion { major: 1, minor: 1 };
    /// HTTP/2
    pub const HTTP_2: MessageVersion = MessageVersion { major: 2, minor: 0 };
    /// HTTP/3
    pub const HTTP_3: MessageVersion = MessageVersion { major: 3, minor: 0 };
}
