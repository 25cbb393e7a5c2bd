//! The phases of a session, and the handlers that run in them.

use crate::session::Session;

/// The phases of a session, in the order in which they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// The connection stands, and a PROXY protocol header was read. Handlers may change who the client is (`realip`).
    PostAccept,
    /// Limits: who is refused here costs nothing more.
    Preaccess,
    /// Who may come in.
    Access,
    /// What can be learned from the first bytes, before it is decided what becomes of the session.
    Preread,
    /// The server's one handler.
    Content,
    /// The session is over. Handlers can not change anything any more.
    Log,
}

/// How many phases there are.
pub(crate) const PHASES: usize = 6;

impl From<Phase> for usize {
    fn from(phase: Phase) -> usize {
        phase as usize
    }
}

/// Runs in a phase. It must not block.
///
/// It answers at once with [`Step::Now`], which costs no allocation, or hands back a future.
pub type Handler = for<'a> fn(&'a mut Session) -> Step<'a>;

/// What a handler says.
pub type Step<'a> = base::phases::Step<'a, Outcome>;

/// How a handler ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Not my business: the next handler of the phase.
    Declined,
    /// The phase is over.
    Ok,
    /// The session is over, with this status.
    Status(u16),
}

/// The statuses of a session. They are those of HTTP that mean the same.
pub mod status {
    /// It went well, or as well as the two ends wanted.
    pub const OK: u16 = 200;
    /// The client sent what can not be understood: its PROXY protocol header.
    pub const BAD_REQUEST: u16 = 400;
    /// The client may not come in.
    pub const FORBIDDEN: u16 = 403;
    /// It can not be served as it is configured.
    pub const INTERNAL_SERVER_ERROR: u16 = 500;
    /// No upstream server could be reached.
    pub const BAD_GATEWAY: u16 = 502;
    /// A limit is reached.
    pub const SERVICE_UNAVAILABLE: u16 = 503;
}
