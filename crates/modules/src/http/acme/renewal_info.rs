//! When an authority wants certificates to be renewed (ACME Renewal Information, RFC 9773).
//!
//! An authority that supports this is queried about each certificate, as often as it asks for,
//! within limits. A random moment of the window that it suggests replaces our own date. That way an
//! authority that has to revoke certificates can have them renewed first, and can spread its load.
//!
//! It may also be wrong, or lie. So no date is later than five sixths of a certificate's life,
//! nothing is hurried more than once a day, and an answer that makes no sense counts as none.

use std::sync::Arc;
use std::time::{Duration, Instant};

use host::error_log::LogLevel;
use instant_acme::Error;

use super::client::AcmeAccess;
use super::credential;
use super::order::{CertificateOrder, CertificateRenewer, DueTime, ORDER_TIMEOUT};

/// The limits for the interval between queries, whatever the authority says (section 4.3.2).
const MIN_QUERY_INTERVAL: Duration = Duration::from_secs(60);
const MAX_QUERY_INTERVAL: Duration = Duration::from_secs(24 * 3600);
/// The interval after a failed query (section 4.3.3), and if the authority does not name one.
pub(super) const AFTER_FAILURE: Duration = Duration::from_secs(6 * 3600);
/// How often the authority can make us renew earlier than planned. Without a limit, a broken
/// authority could keep us ordering until its own rate limits strike.
const MIN_HURRY_INTERVAL: Duration = Duration::from_secs(24 * 3600);
/// The last sixth of a certificate's life is out of the authority's reach: there must be time left
/// for failed attempts.
const RESERVE: u64 = 6;
/// The maximum length of an explanation in the log, in characters.
const MAX_EXPLANATION: usize = 200;

/// What is known about the renewal of one certificate.
#[derive(Clone, Default)]
pub(super) struct RenewalAdvice {
    /// The window that the authority suggested, in seconds since the epoch.
    window: Option<(i64, i64)>,
    /// The moment picked in it, in milliseconds since the epoch.
    moment_ms: Option<u64>,
    /// When to query again; `None`: now.
    next_query: Option<Instant>,
    /// When the authority last made us renew earlier than planned.
    hurried_at: Option<Instant>,
}

impl RenewalAdvice {
    /// Resets everything that concerned the previous certificate. The limit on hurrying stays,
    /// since it is about the authority.
    pub(super) fn reset(&mut self) {
        *self = RenewalAdvice {
            hurried_at: self.hurried_at,
            ..RenewalAdvice::default()
        };
    }

    /// Whether the authority has suggested a window.
    pub(super) fn is_given(&self) -> bool {
        self.window.is_some()
    }

    /// Records that the authority has made us renew early.
    pub(super) fn note_hurry(&mut self) {
        self.hurried_at = Some(rt::now());
    }

    /// How long until the next query.
    pub(super) fn next_query_in(&self) -> Duration {
        self.next_query.map_or(Duration::ZERO, |ask| {
            ask.saturating_duration_since(rt::now())
        })
    }

    /// When to renew, given our own date `own`; both in milliseconds since the epoch.
    pub(super) fn renewal_date(&self, own: u64) -> u64 {
        let Some(at) = self.moment_ms else { return own };
        // A later date than our own does no harm: `pick` has limited it already.
        if at >= own {
            return at;
        }
        let rest = self.hurried_at.map_or(Duration::ZERO, |hastened| {
            MIN_HURRY_INTERVAL.saturating_sub(rt::now().saturating_duration_since(hastened))
        });
        let soonest = match rest.is_zero() {
            true => 0,
            false => rt::wall_millis().saturating_add(rest.as_millis() as u64),
        };
        at.max(soonest).min(own)
    }
}

/// Picks a moment in a window for a certificate that is valid in the given span, all in seconds
/// since the epoch. `None`: the window is empty or inverted.
fn pick_moment(window: (i64, i64), (from, until): (u64, u64), chance: f64) -> Option<u64> {
    let (start, end) = window;
    let width = end.checked_sub(start).filter(|width| *width > 0)?;
    let latest = until - until.checked_sub(from)? / RESERVE;
    let at = start.saturating_add((width as f64 * chance) as i64);
    // A window in the past means now.
    Some(u64::try_from(at).unwrap_or(0).min(latest))
}

impl CertificateRenewer {
    /// How long until the next query about any certificate we have.
    pub(super) fn next_query_in(&self) -> Duration {
        let there = self
            .orders
            .iter()
            .filter(|wanted| self.state.issued(&wanted.id).is_some());
        there
            .map(|wanted| self.state.advice(&wanted.id).next_query_in())
            .min()
            .unwrap_or(Duration::MAX)
    }

    /// A due time with the authority's suggestion taken into account.
    pub(super) fn with_advice(&self, wanted: &CertificateOrder, due: DueTime) -> DueTime {
        match due {
            DueTime::Wall(own) => DueTime::Wall(self.state.advice(&wanted.id).renewal_date(own)),
            // Retries after a failure follow their own schedule.
            DueTime::At(_) => due,
        }
    }

    /// Queries the authority about all certificates that are due for it.
    pub(super) async fn query_renewal_info(&self) {
        let due: Vec<&CertificateOrder> = self
            .orders
            .iter()
            .filter(|wanted| self.state.issued(&wanted.id).is_some())
            .filter(|wanted| self.state.advice(&wanted.id).next_query_in().is_zero())
            .collect();
        // Schedule the next query first, so that no outcome leads to queries without a pause.
        for wanted in &due {
            let wait = AFTER_FAILURE.mul_f64(1.0 + credential::random_fraction() / 4.0);
            self.schedule_query(wanted, wait);
        }
        // Creating an account just to ask would be out of proportion; the first order creates one.
        if self.issuer.account_key.is_none() && self.stored_account().await.is_none() {
            return;
        }
        let access = self.access();
        let asked = rt::timeout(ORDER_TIMEOUT, self.query_each(&due, &access)).await;
        let why = match asked {
            Ok(Ok(())) => return,
            Ok(Err(why)) => why,
            Err(_) => "timed out".to_owned(),
        };
        if let Some(asked) = access.rate_limited_for() {
            self.state.set_pause(&self.issuer.account_name(), asked);
        }
        self.log_no_renewal_info("certificates", &why);
    }

    /// Queries about each certificate in turn. An error ends the round, since it would concern the
    /// others as well.
    async fn query_each(
        &self,
        due: &[&CertificateOrder],
        access: &Arc<AcmeAccess>,
    ) -> Result<(), String> {
        let account = self.account(access).await.map_err(|failure| failure.why)?;
        for wanted in due {
            let Some(issued) = self.state.issued(&wanted.id) else {
                continue;
            };
            let facts = credential::certificate_identifier(&issued.certificate)
                .zip(credential::validity(&issued.certificate));
            let Some((identifier, life)) = facts else {
                continue;
            };
            let (info, wait) = match account.renewal_info(&identifier).await {
                Ok(told) => told,
                // The authority does not offer the extension. It may one day, so ask again at the
                // longest interval.
                Err(Error::Unsupported(_)) => {
                    due.iter()
                        .for_each(|wanted| self.schedule_query(wanted, MAX_QUERY_INTERVAL));
                    return Ok(());
                }
                // An error about this certificate only: the authority does not know it.
                Err(Error::Api(problem)) if access.rate_limited_for().is_none() => {
                    self.log_no_renewal_info(&wanted.names.join(", "), &problem.to_string());
                    continue;
                }
                Err(error) => return Err(error.to_string()),
            };
            let window = &info.suggested_window;
            let (start, end) = (window.start.unix_timestamp(), window.end.unix_timestamp());
            let Some(at) = pick_moment((start, end), life, credential::random_fraction()) else {
                self.log_no_renewal_info(&wanted.names.join(", "), "its window is empty");
                continue;
            };
            self.schedule_query(wanted, wait.clamp(MIN_QUERY_INTERVAL, MAX_QUERY_INTERVAL));
            let mut is_new = false;
            self.state.update_advice(&wanted.id, |advice| {
                // For the same window the moment stays. Picking anew at each query would, over many
                // queries, favour early moments.
                is_new = advice.window != Some((start, end));
                if is_new {
                    advice.window = Some((start, end));
                    advice.moment_ms = Some(at.saturating_mul(1000));
                }
            });
            if is_new {
                // Text of a peer in our log: printable characters only, and not too many.
                let why = info.explanation_url.unwrap_or_default();
                let why = why.chars().filter(char::is_ascii_graphic);
                let why: String = why.take(MAX_EXPLANATION).collect();
                let (issuer, names) = (&self.issuer.name, wanted.names.join(", "));
                let (start, end) = (window.start, window.end);
                self.log.log_plain(LogLevel::Notice, format_args!(
                    "acme: \"{issuer}\" suggests renewing the certificate for {names} between {start} and {end} {why}"
                ));
            }
        }
        Ok(())
    }

    /// Schedules the next query about a certificate.
    fn schedule_query(&self, wanted: &CertificateOrder, wait: Duration) {
        self.state.update_advice(&wanted.id, |advice| {
            advice.next_query = Some(rt::now() + wait)
        });
    }

    /// Logs that there is no suggestion. Only for information: our own dates apply then.
    fn log_no_renewal_info(&self, what: &str, why: &str) {
        let issuer = &self.issuer.name;
        self.log.log_plain(
            LogLevel::Info,
            format_args!("acme: \"{issuer}\" returned no renewal information for {what}: {why}"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_in_the_window_is_picked_but_never_one_that_is_too_late() {
        let life = (1000, 7000);
        assert_eq!(pick_moment((2000, 3000), life, 0.0), Some(2000));
        assert_eq!(pick_moment((2000, 3000), life, 0.5), Some(2500));
        assert_eq!(pick_moment((-9000, -8000), life, 0.5), Some(0));
        assert_eq!(pick_moment((8000, i64::MAX), life, 0.9), Some(6000));
        for window in [(3000, 3000), (3000, 2000), (i64::MIN, i64::MAX)] {
            assert_eq!(pick_moment(window, life, 0.5), None);
        }
    }

    #[test]
    fn an_early_date_is_granted_once_a_day() {
        let now = rt::wall_millis();
        let own = now + 90 * MIN_HURRY_INTERVAL.as_millis() as u64;
        let mut advice = RenewalAdvice::default();
        assert_eq!(advice.renewal_date(own), own);
        advice.moment_ms = Some(own + 5);
        assert_eq!(advice.renewal_date(own), own + 5);
        advice.moment_ms = Some(0);
        assert_eq!(advice.renewal_date(own), 0);
        advice.note_hurry();
        let next = advice.renewal_date(own);
        assert!(next > now + MIN_HURRY_INTERVAL.as_millis() as u64 / 2 && next < own);
        // Our own date still counts.
        assert_eq!(advice.renewal_date(now), now);
    }
}
