//! How a request moves through the phases, and how its response gets to the client: what handlers, filters and protocols
//! tell each other about it.

use bstr::BString;
use proto::message::ResponseFraming;

/// How a request moves through the phases: where it goes, and for whose sake.
///
/// The flags are independent of each other: each is set by a different step, and all of their combinations occur.
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
///
/// The flags are independent of each other: two are about the head, one about its time, one about content, and one about
/// the request that is answered.
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
    /// How HTTP/1 frames the content; `None` before it has written the head, and in versions that frame it themselves.
    pub framing: Option<ResponseFraming>,
    /// The client sent the request before it had the response to the one before.
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
    /// What follows the head belongs to another protocol, and ends with the connection or stream.
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
