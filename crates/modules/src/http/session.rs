//! An http request as the shared mechanisms see it.

use std::fmt;
use std::net::IpAddr;

use ::http::Request;
use ::http::pattern::Pattern;
use bstr::BString;
use conf::{Level, Regex};
use rt::error_log;

use crate::shared::Session;

impl Session for Request {
    type Pattern = Pattern;

    fn pattern(level: &mut Level, regex: Regex) -> Result<Pattern, String> {
        let mut variables = Vec::new();
        for (group, name) in regex.names() {
            let registry = level
                .registry::<Request>()
                .expect("http's rows stand in http");
            variables.push((registry.slot(name)?, *group));
        }
        Ok(Pattern { regex, variables })
    }

    fn matches(&mut self, pattern: &Pattern, subject: &[u8]) -> bool {
        Request::matches(self, pattern, subject)
    }

    fn client(&self) -> Option<IpAddr> {
        self.remote.address.ip()
    }

    fn forwarded_for(&self) -> Vec<BString> {
        self.head
            .wire
            .fields
            .all_known(proto::Known::XForwardedFor)
            .map(BString::from)
            .collect()
    }

    fn log(&self, level: error_log::Level, message: fmt::Arguments<'_>) {
        Request::log(self, level, message);
    }
}
