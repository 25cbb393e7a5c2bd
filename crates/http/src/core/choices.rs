//! Settings that are one of a few words.

/// What `server_tokens` shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServerTokens {
    /// Name and version.
    #[default]
    On,
    /// The name.
    Off,
    /// Name, version and build.
    Build,
}

/// When a connection is read before it is closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lingering {
    /// Never.
    Off,
    /// When the client may still be sending.
    #[default]
    On,
    /// Always.
    Always,
}

/// Whether request content goes to a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyInFile {
    /// Only what does not fit into memory.
    #[default]
    Off,
    /// Always, and the file stays.
    On,
    /// Always, and the file goes with the request.
    Clean,
}

/// How `If-Modified-Since` is compared with the response's time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IfModifiedSince {
    /// Not at all: the response always counts as modified.
    Off,
    /// Not modified when the times are equal.
    #[default]
    Exact,
    /// Not modified when the response is not younger.
    Before,
}
