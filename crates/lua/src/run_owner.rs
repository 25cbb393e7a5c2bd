//! For whom a script runs: a request, a session, or the server itself.

use ::stream::StreamSession;
use host::error_log::{LogLevel, Logger};
use http::Request;

/// What Lua code runs for.
pub(crate) enum RunOwner<'a> {
    /// For the server itself: a timer or an `init` script.
    Server,
    Request(&'a mut Request),
    Session(&'a mut StreamSession),
}

impl<'a> From<&'a mut Request> for RunOwner<'a> {
    fn from(request: &'a mut Request) -> RunOwner<'a> {
        RunOwner::Request(request)
    }
}

impl<'a> From<&'a mut StreamSession> for RunOwner<'a> {
    fn from(session: &'a mut StreamSession) -> RunOwner<'a> {
        RunOwner::Session(session)
    }
}

impl RunOwner<'_> {
    /// Lends the same reference again, for a shorter time.
    pub(crate) fn reborrow(&mut self) -> RunOwner<'_> {
        match self {
            RunOwner::Server => RunOwner::Server,
            RunOwner::Request(request) => RunOwner::Request(request),
            RunOwner::Session(session) => RunOwner::Session(session),
        }
    }

    /// Writes a line to the error log of the request or session, or to `log` where there is
    /// neither.
    pub(crate) fn log(&self, log: &Logger, level: LogLevel, message: std::fmt::Arguments<'_>) {
        match self {
            RunOwner::Server => log.log_plain(level, message),
            RunOwner::Request(request) => request.log(level, message),
            RunOwner::Session(session) => session.log(level, message),
        }
    }
}
