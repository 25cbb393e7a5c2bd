//! How much work a client of HTTP/2 or HTTP/3 may cause without using its results.
//!
//! Every kind of frame is legitimate now and then, and cheap to send. A client that sends little else (floods of PING,
//! SETTINGS or empty frames, streams that are opened and reset, windows that open byte by byte) makes the server work
//! for nothing. Such frames therefore have a price. Completed requests earn credit, and so does time. A client without
//! credit gets ENHANCE_YOUR_CALM (RFC 9113, section 10.5) or H3_EXCESSIVE_LOAD (RFC 9114, section 10.5), and its
//! connection ends.
//!
//! Other clients must not notice it before that. A client that is new, or low on credit, runs in patient rank
//! ([`rt::TaskRank`]) with all of its streams: everything else goes first, and all such clients together get a bounded
//! part of an iteration of the loop.

use std::time::{Duration, Instant};

/// The credit of a new client, which is also the most that it can have: enough for a browser that cancels all requests
/// of a page at once.
const FULL: u32 = 4000;

/// Below this a client is low on credit.
const LOW: u32 = FULL / 4 * 3;

/// How many requests must complete before a client is trusted.
pub(crate) const KNOWN_AFTER: u32 = 8;

/// Or how much content must have passed, in either direction, in bytes.
pub(crate) const KNOWN_AFTER_BYTES: u64 = 64 * 1024;

/// How long it takes to earn one unit: two hundred a second.
const TIME_OF_ONE: Duration = Duration::from_millis(5);

/// What a completed request earns. Less than a reset stream costs, so that resetting every other one still runs into
/// the limit.
pub(crate) const SERVED: u32 = 20;

/// WINDOW_UPDATE frames with a smaller increment have a price, in bytes, unless they return small frames of ours.
pub(crate) const SMALL_WINDOW: u32 = 256;

/// What frames and streams cost.
pub(crate) mod price {
    /// PING, PRIORITY, PRIORITY_UPDATE, an unknown frame, a frame for a stream that is gone.
    pub(crate) const FRAME: u32 = 2;
    /// SETTINGS: it may change the window of every stream, and has to be acknowledged.
    pub(crate) const SETTINGS: u32 = 20;
    /// DATA without content that does not end its stream.
    pub(crate) const EMPTY: u32 = 4;
    /// WINDOW_UPDATE with so small an increment that the DATA frame it allows is mostly its head.
    pub(crate) const SMALL_WINDOW: u32 = 2;
    /// A stream that the client reset, that was refused or that was malformed: work may have begun for it.
    pub(crate) const STREAM: u32 = 25;
    /// A header block that needs CONTINUATION frames.
    pub(crate) const PIECE: u32 = 4;
    /// An instruction of QPACK: it may copy an entry of the table, however short it is itself.
    pub(crate) const INSTRUCTION: u32 = 1;
    /// A header block that has to wait for such instructions.
    pub(crate) const BLOCKED: u32 = 4;
}

/// The client has no credit left: its connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BudgetSpent;

/// A client's credit.
#[derive(Debug)]
pub(crate) struct ClientBudget {
    left: u32,
    counted: Instant,
}

impl ClientBudget {
    /// Full credit.
    pub(crate) fn new(now: Instant) -> ClientBudget {
        ClientBudget {
            left: FULL,
            counted: now,
        }
    }

    /// Charges a price. The error ends the connection.
    pub(crate) fn spend(&mut self, price: u32, now: Instant) -> Result<(), BudgetSpent> {
        // Time is credited only when it matters, so that a frame normally costs a subtraction.
        if self.left < price {
            self.count_time(now);
        }
        match self.left.checked_sub(price) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(BudgetSpent),
        }
    }

    /// Whether more than a quarter was spent recently.
    pub(crate) fn is_low(&mut self, now: Instant) -> bool {
        if self.left < LOW {
            self.count_time(now);
        }
        self.left < LOW
    }

    /// Credits an amount.
    pub(crate) fn earn(&mut self, amount: u32) {
        self.left = self.left.saturating_add(amount).min(FULL);
    }

    fn count_time(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.counted);
        let earned = passed.as_millis() / TIME_OF_ONE.as_millis();
        match u32::try_from(earned) {
            Ok(earned) if earned < FULL => {
                // The remainder of the time counts at the next look; otherwise frequent looks would never earn
                // anything.
                self.counted += TIME_OF_ONE * earned;
                self.earn(earned);
            }
            // After a long time the account is full, and the arithmetic of the first arm could overflow.
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
        let mut budget = ClientBudget::new(begun);
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
        let mut budget = ClientBudget::new(begun);
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
