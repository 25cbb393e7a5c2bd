//! Stream sessions as seen by the code shared with http.

use std::fmt;
use std::net::IpAddr;

use ::stream::session::Session as StreamSession;
use bstr::BString;
use conf::Pattern;
use host::error_log;

use crate::shared::ClientScope;

impl ClientScope for StreamSession {
    fn matches(&mut self, pattern: &Pattern, subject: &[u8]) -> bool {
        StreamSession::matches(self, pattern, subject)
    }

    fn client(&self) -> Option<IpAddr> {
        self.remote.address.ip()
    }

    fn forwarded_for(&self) -> Vec<BString> {
        // There are no headers in stream.
        Vec::new()
    }

    fn log(&self, level: error_log::Level, message: fmt::Arguments<'_>) {
        StreamSession::log(self, level, message);
    }
}
