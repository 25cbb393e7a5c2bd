//! The version of HTTP that a message is written in.

/// A protocol version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// 0 for HTTP/0.9, else 1; 2 and 3 come from other codecs.
    pub major: u8,
    /// Up to three digits are read, as in nginx.
    pub minor: u16,
}

impl Version {
    /// A request line without a version.
    pub const HTTP_09: Version = Version { major: 0, minor: 9 };
    /// HTTP/1.0
    pub const HTTP_10: Version = Version { major: 1, minor: 0 };
    /// HTTP/1.1
    pub const HTTP_11: Version = Version { major: 1, minor: 1 };
    /// HTTP/2
    pub const HTTP_2: Version = Version { major: 2, minor: 0 };
    /// HTTP/3
    pub const HTTP_3: Version = Version { major: 3, minor: 0 };
}
