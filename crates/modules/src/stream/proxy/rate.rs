//! `proxy_upload_rate` and `proxy_download_rate`: how fast one side is read.
//!
//! As in nginx the budget is counted in whole seconds of the clock, beginning with the one that the session began in.

use std::time::Duration;

use ::stream::Session;
use conf::{Diagnostic, Expression, Line, parse};

/// The pace of one direction.
pub(super) struct Pace {
    /// Bytes per second; 0 is without limit.
    rate: u64,
    began: u64,
    /// Set while nothing may be read.
    timer: rt::Timer,
}

/// Reads the value of the directive.
pub(super) fn read(line: &mut Line) -> Result<Expression, Diagnostic> {
    let expression = line.expression(0)?;
    if expression.constant().is_some() {
        line.size(0)?;
    }
    Ok(expression)
}

impl Pace {
    /// The pace of a session that begins now.
    pub(super) fn new(session: &mut Session, rate: &Expression) -> Pace {
        let text = session.value(rate);
        Pace {
            rate: parse::size(&text).unwrap_or(0),
            began: seconds(),
            timer: rt::Timer::new(),
        }
    }

    /// Whether there is no limit.
    pub(super) fn is_unlimited(&self) -> bool {
        self.rate == 0
    }

    /// Whether nothing may be read now; the task is woken when it may.
    pub(super) fn waits(&self, context: &mut std::task::Context<'_>) -> bool {
        if !self.timer.is_set() {
            return false;
        }
        if self.timer.poll_expired(context).is_pending() {
            return true;
        }
        self.timer.clear();
        false
    }

    /// How much may be read now, when `received` bytes were; 0: nothing yet.
    pub(super) fn allows(&self, received: u64) -> usize {
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

    /// So much was read: the next read waits as long as that takes.
    pub(super) fn spend(&self, bytes: usize) {
        if self.rate == 0 {
            return;
        }
        let delay = (bytes as u64).saturating_mul(1000) / self.rate;
        if delay > 0 {
            self.timer.set(Duration::from_millis(delay));
        }
    }

    /// Whether it holds back a read.
    pub(super) fn is_delayed(&self) -> bool {
        self.timer.is_set()
    }
}

fn seconds() -> u64 {
    rt::wall_millis() / 1000
}
