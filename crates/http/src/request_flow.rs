//! How a request moves through the phases, and how its response reaches the client: flags by which handlers, filters
//! and protocols tell each other about it.

use bstr::BString;

/// How a request moves through the phases: where the next pass begins, and on whose behalf.
#[derive(Default)]
pub struct RequestFlow {
    /// Where the next pass through the phases begins.
    pub entry: Entry,
    /// Internal redirects so far, and rewrites after which the location was chosen again. Bounded by [`MAX_JUMPS`].
    pub jumps: u8,
    /// Whether an internal redirect or a subrequest led here, so that `internal` locations are open to it.
    pub internal: bool,
    /// A rewrite changed the path: the location is chosen again at the end of the rewrite phase.
    pub uri_changed: bool,
    /// Rewrites changed the path after the location was chosen, so that `alias` cannot be applied. It outlives a new
    /// choice of the location, unlike `uri_changed`.
    pub rewritten: bool,
    /// The file is below the `alias` of a regular expression: the path is added to it. nginx's name.
    pub add_uri_to_alias: bool,
    /// Whether an error is answered with a page.
    pub error_pages: ErrorPages,
    /// The status that the response must have, whatever status its handler gives it: `error_page 404 =200 …`.
    pub forced_status: Option<u16>,
    /// The client left before it had sent its content. Nothing can be sent, and the connection has no next request.
    pub abandoned: bool,
    /// The response has been sent, and `post_action` runs for its side effects: what it answers is dropped.
    pub post_action: bool,
    /// The client does not wait for this response (`mirror`, a fetch for the cache), and may leave.
    pub background: bool,
}

/// Whether an error is answered with a page of `error_page`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ErrorPages {
    /// As the configuration says.
    #[default]
    Served,
    /// A page is being made. An error on the way gets the built-in page: otherwise pages could lead to pages without
    /// end.
    BeingMade,
    /// No page at all, not even the built-in one: the code that made this subrequest shows something else.
    Withheld,
}

/// How the response is sent, and what happens to the connection afterwards. Handlers and filters set it; the protocol
/// reads it.
#[derive(Default)]
pub struct ResponseDelivery {
    /// The response is sent without its content, for HEAD (RFC 9110, section 9.3.2). Its `Content-Length` stays.
    pub header_only: bool,
    /// A filter looked at `Accept-Encoding` where `gzip_vary` is on. `Vary: Accept-Encoding` is added when the head is
    /// written, so that the built-in page of an error that came after the filter has it too.
    pub varies_by_encoding: bool,
    /// The fields of `add_header` have been added already: the page that replaces the response must not add them twice.
    pub has_added_fields: bool,
    /// The charset that the upstream server demands with `X-Accel-Charset`; it overrides the configuration.
    pub charset: Option<BString>,
    /// The head waits for the first piece of content, so that both leave in one packet: the upstream server's response
    /// is buffered, and both are known to come.
    pub head_waits: bool,
    /// Bytes per second; 0 is no limit. `None`: the location decides.
    pub limit_rate: Option<u64>,
    /// Bytes that are sent at full speed before `limit_rate` begins.
    pub limit_rate_after: Option<u64>,
    /// No response is sent: `return 444`.
    pub silent: bool,
    /// An HTTP/1 connection must close after this response. A stream of HTTP/2 just ends.
    pub close: bool,
    /// After the head the connection, or stream, carries another protocol until it ends (101, or RFC 8441).
    pub upgraded: bool,
    /// The content is sent in chunks, as HTTP/1 decided when it wrote the head. The log variables need to know.
    pub chunked: bool,
    /// The request was pipelined: it arrived before the response to the previous one had been sent.
    pub pipelined: bool,
}

/// Internal redirects and rewrites that a request may make, together; nginx's bound. A configuration whose redirects
/// lead in a circle ends with a 500.
pub const MAX_JUMPS: u8 = 10;

/// Where a pass through the phases begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Entry {
    /// At the server's phases.
    #[default]
    Server,
    /// At the rewrites of a location that is chosen already.
    Location,
    /// At the content phase of a location that is chosen already: for a copy of a request that had come this far.
    Content,
}
