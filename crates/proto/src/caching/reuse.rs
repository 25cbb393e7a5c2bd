//! Whether a stored response may answer a request now (RFC 9111, sections 4.2.4 and 5.2.1; RFC
//! 5861).

use super::freshness::Freshness;
use crate::cache_control::CacheControl;
use crate::fields::Fields;
use crate::known_fields::KnownField;

/// When the operator permits stale responses (`*_cache_use_stale`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StaleRules {
    /// In place of an error; which ones is decided when one occurs.
    pub error: bool,
    /// While another request renews it.
    pub updating: bool,
}

/// How a stored response may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReuseDecision {
    /// Serve it.
    Fresh,
    /// It is stale: serve it at once, and renew it in the background.
    WhileRevalidate,
    /// Validate it first.
    Validate {
        /// If the origin fails in any way, it may be served: the origin permitted that
        /// (`stale-if-error`).
        on_any_error: bool,
        /// It may be served in place of the errors that the operator has listed.
        on_listed_error: bool,
        /// It may be served while another request validates it.
        while_updating: bool,
    },
}

/// The client's Cache-Control. It is considered only if the configuration says so: nginx ignores
/// it.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestControl {
    control: CacheControl,
}

impl RequestControl {
    /// Parses a request's Cache-Control. Without one, `Pragma: no-cache` means `Cache-Control:
    /// no-cache` (RFC 9111, section 5.4).
    pub fn parse(request: &Fields) -> RequestControl {
        let mut control = CacheControl::parse(request.all_known(KnownField::CacheControl));
        if !request.has(KnownField::CacheControl) {
            let pragma = CacheControl::parse(request.all_known(KnownField::Pragma));
            control.no_cache = pragma.no_cache;
        }
        RequestControl { control }
    }

    /// Whether the response must not be stored.
    pub fn no_store(&self) -> bool {
        self.control.no_store
    }

    /// Whether the client prefers a 504 to a response from the origin.
    pub fn only_if_cached(&self) -> bool {
        self.control.only_if_cached
    }

    /// Whether the client wants something newer than `stored`.
    fn wants_newer(&self, stored: &Freshness, now_ms: u64) -> bool {
        let control = &self.control;
        let too_old = control
            .max_age
            .seconds()
            .is_some_and(|most| stored.age_s(now_ms) > most || most == 0);
        let too_short = control
            .min_fresh
            .seconds()
            .is_some_and(|least| stored.ttl_s(now_ms) < i64::from(least));
        control.no_cache || control.no_store || too_old || too_short
    }

    /// Whether the client accepts a response that has been stale for this long.
    fn takes_stale(&self, stale_ms: u64) -> bool {
        self.control
            .max_stale
            .seconds()
            .is_some_and(|most| stale_ms <= u64::from(most) * 1000)
    }
}

/// Decides whether a stored response may be used.
pub fn decide_reuse(
    stored: &Freshness,
    now_ms: u64,
    rules: StaleRules,
    client: Option<&RequestControl>,
) -> ReuseDecision {
    let is_unwanted = client.is_some_and(|client| client.wants_newer(stored, now_ms));
    let is_fresh = now_ms < stored.fresh_until_ms && !stored.always_revalidate;
    if is_fresh && !is_unwanted {
        return ReuseDecision::Fresh;
    }
    let stale_ms = stored.stale_ms(now_ms);
    let within = |seconds: u32| stale_ms <= u64::from(seconds) * 1000;
    if !is_fresh && !is_unwanted {
        let is_taken = client.is_some_and(|client| client.takes_stale(stale_ms));
        // `max-stale` does not overrule the origin's `must-revalidate` (section 5.2.2.2).
        if is_taken && !stored.must_revalidate {
            return ReuseDecision::Fresh;
        }
        if stored.while_revalidate_s > 0 && within(stored.while_revalidate_s) {
            return ReuseDecision::WhileRevalidate;
        }
    }
    ReuseDecision::Validate {
        on_any_error: stored.if_error_s > 0 && within(stored.if_error_s),
        on_listed_error: rules.error && !stored.must_revalidate,
        while_updating: rules.updating && !stored.must_revalidate && !is_unwanted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caching::freshness::LifetimeSource;

    const STORED: Freshness = Freshness {
        received_ms: 100_000,
        initial_age_s: 5,
        fresh_until_ms: 110_000,
        source: LifetimeSource::CacheControl,
        while_revalidate_s: 0,
        if_error_s: 0,
        must_revalidate: false,
        always_revalidate: false,
    };
    const ALL: StaleRules = StaleRules {
        error: true,
        updating: true,
    };

    fn control(value: &str) -> RequestControl {
        let mut fields = Fields::new();
        fields.push(b"Cache-Control", value.as_bytes());
        RequestControl::parse(&fields)
    }

    fn validate(on_any_error: bool, on_listed_error: bool, while_updating: bool) -> ReuseDecision {
        ReuseDecision::Validate {
            on_any_error,
            on_listed_error,
            while_updating,
        }
    }

    #[test]
    fn time_decides() {
        let at = |now_ms, stored: Freshness| decide_reuse(&stored, now_ms, ALL, None);
        assert_eq!(at(109_999, STORED), ReuseDecision::Fresh);
        assert_eq!(at(110_000, STORED), validate(false, true, true));
        let kept = Freshness {
            while_revalidate_s: 3,
            if_error_s: 6,
            ..STORED
        };
        assert_eq!(at(113_000, kept), ReuseDecision::WhileRevalidate);
        assert_eq!(at(113_001, kept), validate(true, true, true));
        assert_eq!(at(116_001, kept), validate(false, true, true));
        let strict = Freshness {
            must_revalidate: true,
            ..STORED
        };
        assert_eq!(at(110_001, strict), validate(false, false, false));
        let asked_always = Freshness {
            always_revalidate: true,
            ..strict
        };
        assert_eq!(at(100_000, asked_always), validate(false, false, false));
    }

    #[test]
    fn clients_decide_where_they_may() {
        let ask = |now_ms, value: &str| {
            decide_reuse(
                &STORED,
                now_ms,
                StaleRules::default(),
                Some(&control(value)),
            )
        };
        let newer = validate(false, false, false);
        assert_eq!(ask(101_000, "max-age=6"), ReuseDecision::Fresh);
        assert_eq!(ask(102_000, "max-age=6"), newer);
        assert_eq!(ask(100_000, "max-age=0"), newer);
        assert_eq!(ask(100_000, "no-cache"), newer);
        assert_eq!(ask(100_000, "no-store"), newer);
        assert_eq!(ask(100_000, "min-fresh=10"), ReuseDecision::Fresh);
        assert_eq!(ask(100_001, "min-fresh=10"), newer);
        assert_eq!(ask(112_000, "max-stale=2"), ReuseDecision::Fresh);
        assert_eq!(ask(112_001, "max-stale=2"), newer);
        assert_eq!(ask(900_000, "max-stale"), ReuseDecision::Fresh);
        assert!(control("only-if-cached").only_if_cached());
        let mut pragma = Fields::new();
        pragma.push(b"Pragma", b"no-cache");
        let pragma = RequestControl::parse(&pragma);
        assert_eq!(
            decide_reuse(&STORED, 100_000, ALL, Some(&pragma)),
            validate(false, true, false)
        );
    }
}
