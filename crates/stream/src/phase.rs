//! The phases of a session, and the handlers that run in them.

use crate::session::StreamSession;

/// The phases of a session, in the order in which they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StreamPhase {
    /// The connection is accepted, and its PROXY protocol header was read. Handlers may change the address of the
    /// client (`realip`), which all later phases judge.
    PostAccept,
    /// Limits. They come before access, as in nginx.
    Preaccess,
    /// Whether the client may come in.
    Access,
    /// Handlers look at the first bytes, before it is decided what becomes of the session.
    Preread,
    /// The one handler that serves the session.
    Content,
    /// The session is over. Handlers cannot change anything any more.
    Log,
}

/// How many phases there are.
pub(crate) const PHASES: usize = 6;

impl From<StreamPhase> for usize {
    fn from(phase: StreamPhase) -> usize {
        phase as usize
    }
}

/// A handler of a phase. It must not block.
///
/// It answers at once with [`PhaseStep::Now`](base::phases::PhaseStep::Now), which costs no allocation, or returns a
/// future.
pub type StreamHandler = for<'a> fn(&'a mut StreamSession) -> SessionStep<'a>;

/// The answer of a handler.
pub type SessionStep<'a> = base::phases::PhaseStep<'a, SessionOutcome>;

/// How a handler ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionOutcome {
    /// It leaves the decision to the next handler of the phase.
    Declined,
    /// It has decided: the rest of the phase is skipped.
    Ok,
    /// The session is over, with this status.
    Status(u16),
}

/// The statuses of a session. They are those of HTTP that mean the same.
pub mod status {
    /// Both ends have had what they wanted, or the client left.
    pub const OK: u16 = 200;
    /// What the client sent cannot be understood: its PROXY protocol header, or its first bytes.
    pub const BAD_REQUEST: u16 = 400;
    /// Access is denied.
    pub const FORBIDDEN: u16 = 403;
    /// The session cannot be served as it is configured.
    pub const INTERNAL_SERVER_ERROR: u16 = 500;
    /// No upstream server could be reached.
    pub const BAD_GATEWAY: u16 = 502;
    /// A limit is reached.
    pub const SERVICE_UNAVAILABLE: u16 = 503;
}
