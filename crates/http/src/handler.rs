//! The phases that handlers run in, and what handlers and filters give back. Their own types are in
//! [`crate::http_site`], with what runs in a location.

/// The phases of a request, in the order in which they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HttpPhase {
    /// The head is complete. Handlers may still change the client's address (`realip`).
    PostRead,
    /// Rewrites of the server, before a location is chosen.
    ServerRewrite,
    /// Rewrites of the location; after a change of the path the location is chosen again.
    Rewrite,
    /// Limits: a request that is refused here causes no more work.
    Preaccess,
    /// Who may see this. `satisfy` combines the answers.
    Access,
    /// After access was granted and before content is made: `try_files`, `mirror`.
    Precontent,
    /// The first handler that does not decline answers.
    Content,
    /// The response has been sent. Handlers cannot change anything any more.
    Log,
    /// A part of a client's request has ended: a subrequest, or a fetch for the cache. Handlers finish at once.
    PartEnd,
}

/// How many phases there are.
pub(crate) const PHASES: usize = 9;

impl From<HttpPhase> for usize {
    fn from(phase: HttpPhase) -> usize {
        phase as usize
    }
}

/// The answer of a handler.
pub type HandlerStep<'a> = base::phases::PhaseStep<'a, HandlerOutcome>;

/// How a handler ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandlerOutcome {
    /// The handler does not apply: the next handler of the phase runs.
    Declined,
    /// The phase is over (in the access phase: this handler grants).
    Ok,
    /// `request.out` is the response.
    Respond,
    /// Respond with this status and the page that belongs to it.
    Status(u16),
    /// The request was redirected internally (see `Request::redirect`): start the next pass.
    Jump,
}

/// The verdict of a filter on a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterVerdict {
    /// On to the next filter.
    Pass,
    /// This response is not sent; the client gets this status with its page instead (412, 416).
    Status(u16),
}
