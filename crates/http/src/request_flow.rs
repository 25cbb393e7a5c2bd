//! How a request moves through the phases, and how its response reaches the client: flags by which handlers, filters
//! and protocols tell each other about it.

use bstr::BString;
use proto::message::ResponseFraming;

/// How a request moves through the phases: where it goes, and for whose sake.
///
/// The flags are independent of each other: each is set by a different step, and all of their combinations occur.
#[derive(Default)]
pub struct RequestFlow {
    /// Where the next pass through the phases begins.
    pub entry: PhaseEntry,
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
    /// What it is served for.
    pub purpose: RequestPurpose,
}

/// What a request is served for. Only the client's own request gets as far as `post_action`, and only a copy of one is
/// made to be waited for by nothing, so that it cannot be both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequestPurpose {
    /// The client's response, or a part of it.
    #[default]
    Response,
    /// Its effects: the response was sent, and `post_action` names this path.
    PostAction,
    /// Its effects too, beside the response: a mirrored request, a fetch for the cache. The client may leave.
    Background,
    /// The answer to another member of a cluster, which serves its own client with it: what is stored, without what the
    /// location makes of it for clients.
    Member,
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

/// How the response gets to the client, and what becomes of the connection. Handlers and filters set it; the protocol
/// reads it.
///
/// The flags are independent of each other: two are about the head, one about its time, one about content, and one
/// about the request that is answered.
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
    /// How HTTP/1 frames the content; `None` before it has written the head, and in versions that frame it themselves.
    pub framing: Option<ResponseFraming>,
    /// The request was pipelined: it arrived before the response to the previous one had been sent.
    pub pipelined: bool,
    after: AfterResponse,
}

/// What becomes of the connection after a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AfterResponse {
    /// It takes the next request, as far as the protocol, the client and the configuration have it so.
    #[default]
    KeepAlive,
    /// It must close. Streams of a shared connection just end.
    Close,
    /// After the head the connection, or stream, carries another protocol until it ends (101, or RFC 8441).
    Upgraded,
    /// It must close, and before that there is to be no response at all.
    Silent,
}

impl ResponseDelivery {
    /// What becomes of the connection.
    pub fn after_response(&self) -> AfterResponse {
        self.after
    }

    /// Has the connection close after the response. What is stricter than that stays: a tunnel lasts as long as its
    /// connection anyway.
    pub fn close(&mut self) {
        if self.after == AfterResponse::KeepAlive {
            self.after = AfterResponse::Close;
        }
    }

    /// Lets another protocol follow the head.
    pub fn upgrade(&mut self) {
        self.after = AfterResponse::Upgraded;
    }

    /// Has the connection close without a response.
    pub fn end_silently(&mut self) {
        self.after = AfterResponse::Silent;
    }

    /// Whether the connection must close, whatever the protocol and the client would like.
    pub fn must_close(&self) -> bool {
        matches!(self.after, AfterResponse::Close | AfterResponse::Silent)
    }

    /// Whether another protocol follows the head.
    pub fn is_upgraded(&self) -> bool {
        self.after == AfterResponse::Upgraded
    }

    /// Whether there is to be no response.
    pub fn is_silent(&self) -> bool {
        self.after == AfterResponse::Silent
    }
}

/// Internal redirects and rewrites that a request may make, together; nginx's bound. A configuration whose redirects
/// lead in a circle ends with a 500.
pub const MAX_JUMPS: u8 = 10;

/// Where a pass through the phases begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PhaseEntry {
    /// At the server's phases.
    #[default]
    Server,
    /// At the rewrites of a location that is chosen already.
    Location,
    /// At the content phase of a location that is chosen already: for a copy of a request that had come this far.
    Content,
}
