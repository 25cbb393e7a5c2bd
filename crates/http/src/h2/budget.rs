//! What a client may cost without being worth it.
//!
//! Every kind of frame is legitimate now and then, and cheap to send. A client that lives on them (floods of PING,
//! SETTINGS or empty frames, streams that are opened and reset, windows that open byte by byte) makes the server work for
//! nothing. So such frames have a price, what a client really uses earns it something back, and so does time. A client
//! whose account is empty is told to calm down, and its connection ends.
//!
//! Before that others must not notice it. A client that is new, or whose account has been drawn upon, has the rank of the
//! patient ([`rt::Rank`]), with all of its streams: everybody else has his turn first, and such clients together have a
//! bounded part of a turn.

use std::time::{Duration, Instant};

use proto::h2::ConnectionError;

/// What an account holds at first, and at most: enough for a browser that gives up all requests of a page at once.
const FULL: u32 = 4000;

/// An account with less than this has been drawn upon.
const LOW: u32 = FULL / 4 * 3;

/// Requests that come to their end before a client is trusted.
pub(super) const KNOWN_AFTER: u32 = 8;

/// Bytes of content, from the client or to it, before it is trusted.
pub(super) const KNOWN_AFTER_BYTES: u64 = 64 * 1024;

/// What brings one back: two hundred a second.
const TIME_OF_ONE: Duration = Duration::from_millis(5);

/// What a request that came to its end brings.
pub(super) const SERVED: u32 = 20;

/// What frames cost.
pub(super) mod price {
    /// PING, PRIORITY, PRIORITY_UPDATE, an unknown frame, a frame for a stream that is gone.
    pub(in crate::h2) const FRAME: u32 = 2;
    /// SETTINGS: it may touch every stream, and wants an answer.
    pub(in crate::h2) const SETTINGS: u32 = 20;
    /// DATA without content that does not end its stream.
    pub(in crate::h2) const EMPTY: u32 = 4;
    /// A window that opens by so little that a frame is mostly its head.
    pub(in crate::h2) const SMALL_WINDOW: u32 = 2;
    /// A stream that the client gave up, was refused, or got wrong: work may have begun for it.
    pub(in crate::h2) const STREAM: u32 = 25;
    /// A header block in pieces, each piece.
    pub(in crate::h2) const PIECE: u32 = 4;
}

/// An account.
#[derive(Debug)]
pub(super) struct Budget {
    left: u32,
    counted: Instant,
}

impl Budget {
    /// A full one.
    pub(super) fn new(now: Instant) -> Budget {
        Budget {
            left: FULL,
            counted: now,
        }
    }

    /// Takes a price from it. The error ends the connection.
    pub(super) fn spend(&mut self, price: u32, now: Instant) -> Result<(), ConnectionError> {
        if self.left < price {
            self.count_time(now);
        }
        match self.left.checked_sub(price) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(ConnectionError::calm("http2 flood detected")),
        }
    }

    /// Whether more than a quarter of it was spent lately.
    pub(super) fn is_low(&mut self, now: Instant) -> bool {
        if self.left < LOW {
            self.count_time(now);
        }
        self.left < LOW
    }

    /// Puts something back.
    pub(super) fn earn(&mut self, amount: u32) {
        self.left = self.left.saturating_add(amount).min(FULL);
    }

    fn count_time(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.counted);
        let earned = passed.as_millis() / TIME_OF_ONE.as_millis();
        match u32::try_from(earned) {
            Ok(earned) if earned < FULL => {
                // What is left over of the time counts at the next look, or frequent looks would bring nothing.
                self.counted += TIME_OF_ONE * earned;
                self.earn(earned);
            }
            _ => {
                self.counted = now;
                self.left = FULL;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_spent_and_comes_back_with_time_and_with_requests() {
        let begun = Instant::now();
        let mut budget = Budget::new(begun);
        for _ in 0..FULL / 2 {
            assert!(budget.spend(2, begun).is_ok());
        }
        assert!(budget.spend(1, begun).is_err());
        budget.earn(5);
        assert!(budget.spend(5, begun).is_ok());
        let later = begun + Duration::from_secs(1);
        assert!(budget.spend(200, later).is_ok());
        assert!(budget.spend(1, later).is_err());
        assert!(
            budget
                .spend(FULL, later + Duration::from_secs(1_000_000))
                .is_ok()
        );
    }

    #[test]
    fn a_client_that_spends_little_for_long_is_not_low() {
        let begun = Instant::now();
        let mut budget = Budget::new(begun);
        let mut now = begun;
        // A ping every ten seconds, for hours.
        for _ in 0..FULL {
            now += Duration::from_secs(10);
            assert!(budget.spend(price::FRAME, now).is_ok());
        }
        assert!(!budget.is_low(now));
        for _ in 0..FULL / 2 {
            assert!(budget.spend(1, now).is_ok());
        }
        assert!(budget.is_low(now));
        // Frequent looks lose nothing of the time.
        for _ in 0..6000 {
            now += Duration::from_millis(1);
            budget.is_low(now);
        }
        assert!(!budget.is_low(now));
    }
}
