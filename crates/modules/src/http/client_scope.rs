//! Requests as seen by the code shared with stream.

use ::http::Request;
use bstr::BString;
use conf::CapturingPattern;

use crate::shared::ClientScope;

impl ClientScope for Request {
    fn matches(&mut self, pattern: &CapturingPattern, subject: &[u8]) -> bool {
        Request::matches(self, pattern, subject)
    }

    fn forwarded_for(&self) -> Vec<BString> {
        self.head
            .wire
            .fields
            .all_known(proto::KnownField::XForwardedFor)
            .map(BString::from)
            .collect()
    }
}
