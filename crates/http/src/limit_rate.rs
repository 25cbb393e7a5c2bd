//! `limit_rate` and `limit_rate_after`: how fast a response may be sent, whichever protocol sends it.

use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::request::Request;
use crate::site::Site;

/// `limit_rate`: after `free` bytes, `rate` bytes a second, the head's too. The first second's may come at once, and half a
/// second later the next ones follow: so a response takes as long as from nginx in the mean, which counts whole seconds.
pub(crate) struct RateLimit {
    rate: u64,
    free: u64,
    begun: Instant,
    sent: u64,
}

impl RateLimit {
    /// What holds the response back, if anything does.
    pub(crate) fn of(request: &mut Request, site: &Rc<Site>) -> Option<RateLimit> {
        let delivery = &site.location(request.location).core.delivery;
        let rate = match request.delivery.limit_rate {
            Some(rate) => rate,
            None => size_value(request, &delivery.limit_rate),
        };
        if rate == 0 || request.is_subrequest() {
            return None;
        }
        let free = match request.delivery.limit_rate_after {
            Some(bytes) => bytes,
            None => size_value(request, &delivery.limit_rate_after),
        };
        Some(RateLimit {
            rate,
            free,
            begun: rt::now(),
            sent: 0,
        })
    }

    /// So much was sent.
    pub(crate) fn paid(&mut self, bytes: u64) {
        self.sent += bytes;
    }

    /// How many bytes may be sent now, or how long to wait for the next ones.
    pub(crate) fn allowance(&self, now: Instant) -> Result<u64, Duration> {
        let passed = now.saturating_duration_since(self.begun).as_secs_f64();
        let allowed = self
            .free
            .saturating_add((self.rate as f64 * (passed + HEAD_START).max(1.0)) as u64);
        match allowed.checked_sub(self.sent) {
            Some(bytes) if bytes > 0 => Ok(bytes
                .min(self.rate.max(1))
                .max(self.free.saturating_sub(self.sent))),
            _ => {
                // Not for single bytes: for a tenth of a second's worth, or one byte when that is less.
                let wanted = self.sent + (self.rate / 10).max(1);
                let at = (wanted.saturating_sub(self.free)) as f64 / self.rate as f64 - HEAD_START;
                let wait = Duration::from_secs_f64(at.max(0.0)).saturating_sub(now - self.begun);
                Err(wait.max(Duration::from_millis(1)))
            }
        }
    }
}

/// How much later than even a paced response is once its first second's bytes are gone, in seconds below one.
const HEAD_START: f64 = 0.5;

/// Whether `limit_rate` may hold this response back.
pub(crate) fn is_paced(request: &mut Request) -> bool {
    match request.delivery.limit_rate {
        Some(rate) => rate > 0,
        None => {
            let rate = &request
                .site
                .location(request.location)
                .core
                .delivery
                .limit_rate;
            rate.constant().is_none_or(|text| *text != "0")
        }
    }
}

fn size_value(request: &mut Request, expression: &conf::Expression) -> u64 {
    match expression.constant() {
        Some(text) if *text == "0" => 0,
        Some(text) => base::units::parse_size(text).unwrap_or(0),
        None => base::units::parse_size(&request.value(expression)).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_lets_through_one_second_and_then_the_rate() {
        let begun = Instant::now();
        let mut pace = RateLimit {
            rate: 1000,
            free: 500,
            begun,
            sent: 0,
        };
        assert_eq!(pace.allowance(begun), Ok(1000));
        pace.sent = 1500;
        let wait = pace
            .allowance(begun)
            .expect_err("the first second's bytes are gone");
        assert!(
            wait >= Duration::from_millis(599) && wait <= Duration::from_millis(601),
            "{wait:?}"
        );
        let later = |millis| pace.allowance(begun + Duration::from_millis(millis));
        assert_eq!(later(600), Ok(100));
        assert_eq!(later(1500), Ok(1000));
    }
}
