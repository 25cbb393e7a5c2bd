//! A stream session as the shared mechanisms see it.

use std::fmt;
use std::net::IpAddr;

use ::stream::session::Session as StreamSession;
use bstr::BString;
use conf::Pattern;
use rt::error_log;

use crate::shared::Session;

impl Session for StreamSession {
    fn matches(&mut self, pattern: &Pattern, subject: &[u8]) -> bool {
        StreamSession::matches(self, pattern, subject)
    }

    fn client(&self) -> Option<IpAddr> {
        self.remote.address.ip()
    }

    fn forwarded_for(&self) -> Vec<BString> {
        Vec::new()
    }

    fn log(&self, level: error_log::Level, message: fmt::Arguments<'_>) {
        StreamSession::log(self, level, message);
    }
}
