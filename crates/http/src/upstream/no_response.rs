//! The absence of a response: its reasons, and the status for the client.

use std::ops::BitOr;

/// Reasons for trying another server or for serving a stale object: the parameters of `…_next_upstream` and
/// `…_cache_use_stale`. The same type says what a directive permits and why a try failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetryReasons(u32);

impl RetryReasons {
    /// The parameters of the directives; parameter `i` is bit `i`.
    pub const WORDS: &'static [&'static str] = &[
        "error",
        "timeout",
        "invalid_header",
        "non_idempotent",
        "http_500",
        "http_502",
        "http_503",
        "http_504",
        "http_403",
        "http_404",
        "http_429",
        "updating",
        "off",
    ];
    /// No reason: the failure says nothing about a server.
    pub const NONE: RetryReasons = RetryReasons(0);
    /// A connection could not be made, or broke.
    pub const ERROR: RetryReasons = RetryReasons(1);
    /// The server took too long.
    pub const TIMEOUT: RetryReasons = RetryReasons(1 << 1);
    /// The head of the response is invalid.
    pub const INVALID_HEADER: RetryReasons = RetryReasons(1 << 2);
    /// Some of a request that must not be repeated has been sent.
    pub const NON_IDEMPOTENT: RetryReasons = RetryReasons(1 << 3);
    /// The status is 404.
    pub const HTTP_404: RetryReasons = RetryReasons(1 << 9);
    /// A stale object is being renewed.
    pub const UPDATING: RetryReasons = RetryReasons(1 << 11);
    /// Never, whatever else the directive lists.
    pub const OFF: RetryReasons = RetryReasons(1 << 12);

    /// The reason for a status; `None` if the directives have no parameter for it.
    pub fn of_status(status: u16) -> Option<RetryReasons> {
        let bit = match status {
            500 => 4,
            502 => 5,
            503 => 6,
            504 => 7,
            403 => 8,
            404 => 9,
            429 => 10,
            _ => return None,
        };
        Some(RetryReasons(1 << bit))
    }

    /// The bits of [`RetryReasons::WORDS`], for the directive that sets them.
    pub fn bits_mut(&mut self) -> &mut u32 {
        &mut self.0
    }

    /// Whether there is no reason.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether a directive with this value lists all of `reasons`.
    pub fn permits_all(self, reasons: RetryReasons) -> bool {
        self.0 & Self::OFF.0 == 0 && self.0 & reasons.0 == reasons.0
    }

    /// Whether a directive with this value lists any of `reasons`.
    pub fn permits_any(self, reasons: RetryReasons) -> bool {
        self.0 & Self::OFF.0 == 0 && self.0 & reasons.0 != 0
    }
}

impl BitOr for RetryReasons {
    type Output = RetryReasons;

    fn bitor(self, other: RetryReasons) -> RetryReasons {
        RetryReasons(self.0 | other.0)
    }
}

/// There is no response, and the client gets this status. The cause has been logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoResponse {
    /// The status to answer with.
    pub status: u16,
    /// What the servers did wrong; empty if no server is to blame.
    pub reasons: RetryReasons,
}

impl NoResponse {
    /// No response, for a cause that is no server's.
    pub fn new(status: u16) -> NoResponse {
        NoResponse {
            status,
            reasons: RetryReasons::NONE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_the_word_of_its_number() {
        for status in 100..600 {
            let word = format!("http_{status}");
            let bit = RetryReasons::WORDS.iter().position(|known| *known == word);
            let reasons = RetryReasons::of_status(status);
            assert_eq!(reasons, bit.map(|bit| RetryReasons(1 << bit)), "{status}");
        }
    }

    #[test]
    fn constants_are_their_words() {
        for (reasons, word) in [
            (RetryReasons::ERROR, "error"),
            (RetryReasons::TIMEOUT, "timeout"),
            (RetryReasons::INVALID_HEADER, "invalid_header"),
            (RetryReasons::NON_IDEMPOTENT, "non_idempotent"),
            (RetryReasons::HTTP_404, "http_404"),
            (RetryReasons::UPDATING, "updating"),
            (RetryReasons::OFF, "off"),
        ] {
            let bit = RetryReasons::WORDS.iter().position(|known| *known == word);
            assert_eq!(Some(reasons), bit.map(|bit| RetryReasons(1 << bit)));
        }
    }

    #[test]
    fn off_counts_more_than_other_words() {
        let both = RetryReasons::ERROR | RetryReasons::OFF;
        assert!(!both.permits_all(RetryReasons::ERROR));
        assert!(!both.permits_any(RetryReasons::ERROR));
        let twice = RetryReasons::ERROR | RetryReasons::NON_IDEMPOTENT;
        assert!(!RetryReasons::ERROR.permits_all(twice));
        assert!(RetryReasons::ERROR.permits_any(twice));
    }
}
