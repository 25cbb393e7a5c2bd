//! How a request moves through the phases, and how its response gets to the client: what handlers, filters and protocols
//! tell each other about it.

use bstr::BString;

/// How a request moves through the phases: where it goes, and for whose sake.
#[derive(Default)]
pub struct RequestFlow {
    /// Where the next pass begins.
    pub entry: Entry,
    /// Changes of place so far: internal redirects, and rewrites after which the location was chosen again.
    pub jumps: u8,
    /// Whether the request was sent here by the server itself, so that `internal` locations are open to it.
    pub internal: bool,
    /// A rewrite changed the path: the location must be chosen again.
    pub uri_changed: bool,
    /// Rewrites changed the path after the location was chosen, so that `alias` cannot be applied. It outlives a new
    /// choice of the location, unlike `uri_changed`.
    pub rewritten: bool,
    /// The file is below the `alias` of a regular expression: the path is added to it. nginx's name.
    pub add_uri_to_alias: bool,
    /// Whether an error is answered with a page.
    pub error_pages: ErrorPages,
    /// The status that the response must have, whatever its handler says.
    pub forced_status: Option<u16>,
    /// The client left before it had sent its content: there is nothing to follow.
    pub abandoned: bool,
    /// The response was sent, and `post_action` is served for its effects.
    pub post_action: bool,
    /// The response is not waited for, not even by the client: it may leave.
    pub background: bool,
}

/// Whether an error is answered with a page of `error_page`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ErrorPages {
    /// As the configuration says.
    #[default]
    Served,
    /// A page is being made: an error on the way gets the built-in one, or pages could follow pages for ever.
    BeingMade,
    /// Not even the built-in one: what made this subrequest has something else to show.
    Withheld,
}

/// How the response gets to the client, and what becomes of the connection. Handlers and filters set it; the protocol
/// reads it.
#[derive(Default)]
pub struct ResponseDelivery {
    /// A response without content, whatever it says: HEAD.
    pub header_only: bool,
    /// A filter looked at `Accept-Encoding` where `gzip_vary` is on: `Vary: Accept-Encoding` is added at the wire, also
    /// to the built-in page of an error that came after it.
    pub varies_by_encoding: bool,
    /// The fields of `add_header` are there, on a page that took the place of the response they were added to.
    pub has_added_fields: bool,
    /// The charset that an upstream's response asks for, whatever the configuration says: `X-Accel-Charset`.
    pub charset: Option<BString>,
    /// The head waits for the first content: both come from a server whose response is buffered.
    pub head_waits: bool,
    /// Bytes per second; 0 is no limit. `None`: the location decides.
    pub limit_rate: Option<u64>,
    /// Bytes that are sent at full speed before `limit_rate` begins.
    pub limit_rate_after: Option<u64>,
    /// There is to be no response at all.
    pub silent: bool,
    /// The connection must close after this response. Streams of a shared connection just end.
    pub close: bool,
    /// What follows the head belongs to another protocol, and ends with the connection or stream.
    pub upgraded: bool,
    /// The content is sent in chunks: HTTP/1 decided so.
    pub chunked: bool,
    /// The client sent the request before it had the response to the one before.
    pub pipelined: bool,
}

/// Changes of place that a request may make, internal redirects and rewrites together.
pub const MAX_JUMPS: u8 = 10;

/// Where a pass through the phases begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Entry {
    /// At the server's phases.
    #[default]
    Server,
    /// At the rewrites of a location that is chosen already.
    Location,
    /// At the content of a location that is chosen already: for the copy of a request that came so far.
    Content,
}
