//! `limit_rate` and `limit_rate_after`: how fast a response may be sent, whatever protocol sends it.

use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::http_site::HttpSite;
use crate::request::Request;

/// Allows `rate` bytes a second after `free` bytes, the head included. The first second's bytes may leave at once; the
/// next ones follow from half a second later on. On average a response then takes as long as from nginx, which counts
/// whole seconds.
pub(crate) struct RateLimit {
    rate: u64,
    free: u64,
    begun: Instant,
    sent: u64,
}

impl RateLimit {
    /// The limit on this response, if there is one.
    pub(crate) fn of_request(request: &mut Request, site: &Rc<HttpSite>) -> Option<RateLimit> {
        let delivery = &site.location(request.location).core.delivery;
        let rate = rate_of(request, site);
        // A subrequest's content leaves as part of the client's response, which is limited as a whole.
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

    /// Counts bytes that were sent.
    pub(crate) fn add_sent(&mut self, bytes: u64) {
        self.sent += bytes;
    }

    /// How many bytes may be sent now, or how long to wait for the next ones.
    pub(crate) fn allowance(&self, now: Instant) -> Result<u64, Duration> {
        let passed = now.saturating_duration_since(self.begun).as_secs_f64();
        let allowed = self
            .free
            .saturating_add((self.rate as f64 * (passed + HEAD_START).max(1.0)) as u64);
        match allowed.checked_sub(self.sent) {
            // At most a second's worth at a time, however long the client made us wait: nothing is caught up in a
            // burst. The free bytes may leave at once.
            Some(bytes) if bytes > 0 => Ok(bytes
                .min(self.rate.max(1))
                .max(self.free.saturating_sub(self.sent))),
            _ => {
                // Waits for a tenth of a second's worth, or one byte if that is less: waking for single bytes would
                // cost a packet each.
                let wanted = self.sent + (self.rate / 10).max(1);
                let at = (wanted.saturating_sub(self.free)) as f64 / self.rate as f64 - HEAD_START;
                let wait = Duration::from_secs_f64(at.max(0.0)).saturating_sub(now - self.begun);
                // Rounding may give zero, and a wait of nothing would spin.
                Err(wait.max(Duration::from_millis(1)))
            }
        }
    }
}

/// How far ahead of an even rate a response may be once the first second's bytes have left, in seconds.
const HEAD_START: f64 = 0.5;

/// Whether `limit_rate` may apply to this response. A rate with variables counts as one, without evaluating it.
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

/// The rate that was set for this response, or that of its location.
pub(crate) fn rate_of(request: &mut Request, site: &Rc<HttpSite>) -> u64 {
    let delivery = &site.location(request.location).core.delivery;
    match request.delivery.limit_rate {
        Some(rate) => rate,
        None => size_value(request, &delivery.limit_rate),
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
