//! A stream session as the shared mechanisms see it.

use std::fmt;
use std::net::IpAddr;

use ::stream::session::{Pattern, Session as StreamSession};
use bstr::BString;
use conf::{Level, Regex};
use rt::error_log;

use crate::shared::Session;

impl Session for StreamSession {
    type Pattern = Pattern;

    fn pattern(level: &mut Level, regex: Regex) -> Result<Pattern, String> {
        let mut variables = Vec::new();
        for (group, name) in regex.names() {
            let registry = level
                .registry::<StreamSession>()
                .expect("stream's rows stand in stream");
            variables.push((registry.slot(name)?, *group));
        }
        Ok(Pattern { regex, variables })
    }

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
