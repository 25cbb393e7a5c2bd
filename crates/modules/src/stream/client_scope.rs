//! Stream sessions as seen by the code shared with http.

use ::stream::session::StreamSession;
use bstr::BString;
use conf::CapturingPattern;

use crate::shared::ClientScope;

impl ClientScope for StreamSession {
    fn matches(&mut self, pattern: &CapturingPattern, subject: &[u8]) -> bool {
        StreamSession::matches(self, pattern, subject)
    }

    fn forwarded_for(&self) -> Vec<BString> {
        // There are no headers in stream.
        Vec::new()
    }
}
