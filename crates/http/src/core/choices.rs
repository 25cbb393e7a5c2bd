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
pub enum LingeringClose {
    /// Never.
    Off,
    /// If the client may still be sending.
    #[default]
    On,
    /// Always.
    Always,
}

/// Whether request bodies are written to files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyInFile {
    /// Only if they do not fit into memory.
    #[default]
    Off,
    /// Always, and the file is kept.
    On,
    /// Always, and the file is removed after the request.
    Clean,
}

/// How `If-Modified-Since` is compared with the response's time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IfModifiedSince {
    /// Not at all: the response always counts as modified.
    Off,
    /// Not modified if the times are equal. This is nginx's default: a file that was replaced by an older one has
    /// changed.
    #[default]
    Exact,
    /// Not modified if the response is not newer, as RFC 9110, section 13.1.3 defines it.
    Before,
}
