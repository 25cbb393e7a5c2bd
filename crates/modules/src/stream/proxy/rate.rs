//! `proxy_upload_rate` and `proxy_download_rate`: limit the rate at which each side is read.
//!
//! As in nginx, the budget grows in whole seconds of the clock, starting with the one in which the
//! session began.

use std::time::Duration;

use ::stream::StreamSession;
use conf::{Diagnostic, DirectiveLine, Expression, parse};

/// The rate limit of one direction.
pub(super) struct RateLimiter {
    /// In bytes per second; 0 means no limit.
    rate: u64,
    /// The second in which the session began.
    began: u64,
    /// Set while reading is delayed.
    timer: rt::Timer,
}

/// Reads the value of a directive. Only a constant can be checked here.
pub(super) fn read(line: &mut DirectiveLine) -> Result<Expression, Diagnostic> {
    let expression = line.expression(0)?;
    if expression.constant().is_some() {
        line.size(0)?;
    }
    Ok(expression)
}

impl RateLimiter {
    /// The limit of a session that begins now. An invalid value of a variable means no limit.
    pub(super) fn new(session: &mut StreamSession, rate: &Expression) -> RateLimiter {
        let text = session.value(rate);
        RateLimiter {
            rate: parse::size(&text).unwrap_or(0),
            began: seconds(),
            timer: rt::Timer::new(),
        }
    }

    /// Whether there is no limit.
    pub(super) fn is_unlimited(&self) -> bool {
        self.rate == 0
    }

    /// Whether reading is delayed; if so, the task is woken when it may continue.
    pub(super) fn is_waiting(&self, context: &mut std::task::Context<'_>) -> bool {
        if !self.timer.is_set() {
            return false;
        }
        if self.timer.poll_expired(context).is_pending() {
            return true;
        }
        self.timer.clear();
        false
    }

    /// How many bytes may be read now, after `received` so far. 0: none yet, and the timer is set.
    pub(super) fn allowance(&self, received: u64) -> usize {
        if self.rate == 0 {
            return usize::MAX;
        }
        let budget = self
            .rate
            .saturating_mul(seconds().saturating_sub(self.began) + 1);
        match budget.checked_sub(received) {
            Some(left @ 1..) => usize::try_from(left).unwrap_or(usize::MAX),
            _ => {
                let over = received - budget;
                self.timer.set(Duration::from_millis(
                    over.saturating_mul(1000) / self.rate + 1,
                ));
                0
            }
        }
    }

    /// Delays the next read by the time that these bytes take at this rate, so that they are spread
    /// evenly over the second.
    pub(super) fn spend(&self, bytes: usize) {
        if self.rate == 0 {
            return;
        }
        let delay = (bytes as u64).saturating_mul(1000) / self.rate;
        if delay > 0 {
            self.timer.set(Duration::from_millis(delay));
        }
    }

    /// Whether a read is being delayed.
    pub(super) fn is_delayed(&self) -> bool {
        self.timer.is_set()
    }
}

/// The seconds of the wall clock.
fn seconds() -> u64 {
    rt::wall_millis() / 1000
}
