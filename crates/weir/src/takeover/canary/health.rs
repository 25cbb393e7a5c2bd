//! Whether a canary does worse than the server beside it: a judgement of counts, without a clock and without input.
//!
//! What the canary answered is known exactly, from a log of its own. What nginx answered is what its access logs have besides. Times
//! are in those logs only if their format has `$request_time`; otherwise pages that both servers are asked for are compared.

use std::collections::VecDeque;

/// How many looks back are judged: what was well for an hour must not hide what is wrong now.
const WINDOW: usize = 60;
/// With fewer answers of a kind a canary is not judged by it: one that fails is no share.
const FEW_ERRORS: u64 = 5;
/// With fewer requests a percentile says nothing.
const FEW_REQUESTS: u64 = 50;
/// With fewer pages from both servers a median says nothing.
const FEW_PROBES: usize = 10;
/// How many of the last pages are compared.
const PROBES: usize = 20;
/// Below this nobody notices a difference, and machines are noisy.
const UNNOTICED_MS: u64 = 50;

/// What one of the servers answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AnswerCounts {
    pub(super) requests: u64,
    /// Status 500 and above.
    pub(super) errors: u64,
    /// How many took less than 2, 4, 8, … ms; the last one has all others.
    times: [u64; 20],
}

impl AnswerCounts {
    /// Counts an answer.
    pub(super) fn add(&mut self, status: u16, milliseconds: Option<u64>) {
        self.requests += 1;
        self.errors += u64::from(status >= 500);
        if let Some(milliseconds) = milliseconds {
            let bucket = milliseconds.max(1).ilog2() as usize;
            self.times[bucket.min(self.times.len() - 1)] += 1;
        }
    }

    fn combine(&mut self, other: &AnswerCounts, by: impl Fn(u64, u64) -> u64) {
        self.requests = by(self.requests, other.requests);
        self.errors = by(self.errors, other.errors);
        for (one, other) in self.times.iter_mut().zip(other.times) {
            *one = by(*one, other);
        }
    }

    /// Both together.
    pub(super) fn sum(one: &AnswerCounts, other: &AnswerCounts) -> AnswerCounts {
        let mut sum = *one;
        sum.combine(other, u64::saturating_add);
        sum
    }

    /// Those of `all` that are not in `own`. Logs are written late, so that a part of them may seem to be missing.
    pub(super) fn besides(all: &AnswerCounts, own: &AnswerCounts) -> AnswerCounts {
        let mut rest = *all;
        rest.combine(own, u64::saturating_sub);
        rest
    }

    /// The share of errors in percent.
    pub(super) fn error_percent(&self) -> f64 {
        match self.requests {
            0 => 0.0,
            requests => self.errors as f64 * 100.0 / requests as f64,
        }
    }

    /// What nine of ten requests took at most, in milliseconds, to the next power of two. `None`: too few have a time.
    pub(super) fn ninth_decile_ms(&self) -> Option<u64> {
        let timed: u64 = self.times.iter().sum();
        if timed < FEW_REQUESTS {
            return None;
        }
        let mut below = 0;
        let bucket = self.times.iter().position(|count| {
            below += count;
            below * 10 >= timed * 9
        });
        bucket.map(|bucket| 2 << bucket)
    }
}

/// Where a canary is called back.
#[derive(Clone, Copy, Debug)]
pub(super) struct CanaryLimits {
    /// How much larger its share of errors may be, in percentage points.
    pub(super) more_errors: f64,
    /// How many times as long its responses may take.
    pub(super) slower: f64,
}

/// The last looks at both servers.
#[derive(Debug, Default)]
pub(super) struct CanaryHealth {
    looks: VecDeque<(AnswerCounts, AnswerCounts)>,
    /// How long the same page took from the canary and from nginx, in milliseconds.
    probes: VecDeque<(f64, f64)>,
}

impl CanaryHealth {
    /// Adds what the canary, and all servers together, have answered since the last look.
    pub(super) fn look(&mut self, canary: AnswerCounts, all: AnswerCounts) {
        if self.looks.len() == WINDOW {
            self.looks.pop_front();
        }
        self.looks.push_back((canary, all));
    }

    /// Adds a page that both were asked for.
    pub(super) fn probe(&mut self, canary_ms: f64, nginx_ms: f64) {
        if self.probes.len() == PROBES {
            self.probes.pop_front();
        }
        self.probes.push_back((canary_ms, nginx_ms));
    }

    /// Both servers over the last looks: the canary, and nginx.
    pub(super) fn sums(&self) -> (AnswerCounts, AnswerCounts) {
        let (mut canary, mut all) = (AnswerCounts::default(), AnswerCounts::default());
        for (one, both) in &self.looks {
            canary.combine(one, u64::saturating_add);
            all.combine(both, u64::saturating_add);
        }
        (canary, AnswerCounts::besides(&all, &canary))
    }

    /// Why the canary has to be called back, if it has.
    pub(super) fn complaint(&self, limits: CanaryLimits) -> Option<String> {
        let (canary, nginx) = self.sums();
        let (own, other) = (canary.error_percent(), nginx.error_percent());
        if canary.errors >= FEW_ERRORS && own > other + limits.more_errors {
            return Some(format!(
                "{own:.1} % of its responses were errors (5xx), and {other:.1} % of nginx's"
            ));
        }
        let is_slower = |own: f64, other: f64| own > other * limits.slower + UNNOTICED_MS as f64;
        if let Some((own, other)) = canary.ninth_decile_ms().zip(nginx.ninth_decile_ms())
            && is_slower(own as f64, other as f64)
        {
            return Some(format!(
                "nine of ten requests took up to {own} ms, and {other} ms from nginx"
            ));
        }
        let (own, other) = self.medians()?;
        is_slower(own, other).then(|| {
            format!("the same pages took {own:.0} ms, and {other:.0} ms from nginx (medians)")
        })
    }

    /// The medians of the pages that both were asked for.
    fn medians(&self) -> Option<(f64, f64)> {
        if self.probes.len() < FEW_PROBES {
            return None;
        }
        let median = |mut times: Vec<f64>| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        };
        let own = self.probes.iter().map(|(own, _)| *own).collect();
        let other = self.probes.iter().map(|(_, other)| *other).collect();
        Some((median(own), median(other)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: CanaryLimits = CanaryLimits {
        more_errors: 1.0,
        slower: 2.0,
    };

    fn counts(requests: u64, errors: u64, milliseconds: Option<u64>) -> AnswerCounts {
        let mut counts = AnswerCounts::default();
        for number in 0..requests {
            counts.add(if number < errors { 502 } else { 200 }, milliseconds);
        }
        counts
    }

    /// The complaint when nginx and the canary have answered this much.
    fn judged(canary: AnswerCounts, nginx: AnswerCounts) -> Option<String> {
        let mut all = canary;
        all.combine(&nginx, u64::saturating_add);
        let mut health = CanaryHealth::default();
        health.look(canary, all);
        health.complaint(LIMITS)
    }

    #[test]
    fn errors_are_judged_beside_those_of_nginx() {
        let well = counts(1000, 0, None);
        assert_eq!(judged(counts(100, 0, None), well), None);
        assert_eq!(judged(counts(4, 4, None), well), None, "too few");
        assert!(judged(counts(100, 5, None), well).is_some());
        // An application that fails anyway is not the canary's fault.
        assert_eq!(judged(counts(100, 50, None), counts(1000, 500, None)), None);
        assert!(judged(counts(100, 5, None), AnswerCounts::default()).is_some());
    }

    #[test]
    fn times_are_judged_by_logs_or_by_pages() {
        let slow = Some(700);
        assert!(judged(counts(100, 0, slow), counts(900, 0, Some(3))).is_some());
        assert_eq!(judged(counts(100, 0, slow), counts(900, 0, slow)), None);
        assert_eq!(
            judged(counts(9, 0, slow), counts(900, 0, Some(3))),
            None,
            "too few"
        );
        // A millisecond more is nothing, however many times as much it is.
        assert_eq!(
            judged(counts(100, 0, Some(20)), counts(900, 0, Some(1))),
            None
        );
        let mut health = CanaryHealth::default();
        for _ in 0..FEW_PROBES {
            assert_eq!(health.complaint(LIMITS), None);
            health.probe(180.0, 20.0);
        }
        assert!(
            health
                .complaint(LIMITS)
                .is_some_and(|why| why.contains("180 ms"))
        );
    }

    #[test]
    fn what_is_wrong_now_is_not_hidden_by_what_was_well() {
        let mut health = CanaryHealth::default();
        let well = counts(1000, 0, None);
        for _ in 0..1000 {
            health.look(well, well);
        }
        for _ in 0..2 {
            let bad = counts(1000, 900, None);
            health.look(bad, bad);
        }
        assert!(health.complaint(LIMITS).is_some());
    }
}
