//! Requests as seen by the code shared with stream.

use std::fmt;
use std::net::IpAddr;

use ::http::Request;
use bstr::BString;
use conf::Pattern;
use host::error_log;

use crate::shared::ClientScope;

impl ClientScope for Request {
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
