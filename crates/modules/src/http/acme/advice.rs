//! When an authority wishes certificates to be renewed (ACME Renewal Information, RFC 9773).
//!
//! An authority that offers it is asked about each certificate, as often as it wants to be, within limits. A moment of the
//! window that it names, picked by chance, takes the place of our own date: so an authority that must revoke certificates
//! gets them renewed before, and can spread its load. It may also be wrong, or lie. So no date is later than five sixths of
//! a certificate's life, nothing is hastened more often than once a day, and what makes no sense counts as if nothing had
//! been said.

use std::sync::Arc;
use std::time::{Duration, Instant};

use instant_acme::Error;
use rt::error_log::Level;

use super::client::Access;
use super::credential;
use super::order::{Due, Keeper, ORDER_PATIENCE, Wanted};

/// How soon and how late the authority is asked again, whatever it says (section 4.3.2).
const SOONEST: Duration = Duration::from_secs(60);
const LATEST: Duration = Duration::from_secs(24 * 3600);
/// How long is waited after a question that failed (section 4.3.3), and when it does not say.
pub(super) const AFTER_FAILURE: Duration = Duration::from_secs(6 * 3600);
/// How often the authority may have a certificate renewed earlier than we would.
const HASTE: Duration = Duration::from_secs(24 * 3600);
/// The last part of a certificate's life, which it does not reach.
const RESERVE: u64 = 6;
/// Characters of an explanation that are logged.
const MAX_EXPLANATION: usize = 200;

/// What is known about the renewal of a certificate.
#[derive(Clone, Default)]
pub(super) struct Advice {
    /// The window that the authority has named, in seconds since 1970.
    window: Option<(i64, i64)>,
    /// The moment that was picked in it, in milliseconds since 1970.
    at: Option<u64>,
    /// When to ask again; `None`: now.
    ask: Option<Instant>,
    /// When the authority last made us renew earlier than we would have.
    hastened: Option<Instant>,
}

impl Advice {
    /// Forgets what concerned the certificate before.
    pub(super) fn renew(&mut self) {
        *self = Advice {
            hastened: self.hastened,
            ..Advice::default()
        };
    }

    /// Whether the authority has said something.
    pub(super) fn is_given(&self) -> bool {
        self.window.is_some()
    }

    /// Notes that the authority has made us hurry.
    pub(super) fn hasten(&mut self) {
        self.hastened = Some(rt::now());
    }

    /// How long until it is to be asked for.
    pub(super) fn ask_in(&self) -> Duration {
        self.ask.map_or(Duration::ZERO, |ask| {
            ask.saturating_duration_since(rt::now())
        })
    }

    /// When to renew what we would renew at `own`; both in milliseconds since 1970.
    pub(super) fn date(&self, own: u64) -> u64 {
        let Some(at) = self.at else { return own };
        if at >= own {
            return at;
        }
        let rest = self.hastened.map_or(Duration::ZERO, |hastened| {
            HASTE.saturating_sub(rt::now().saturating_duration_since(hastened))
        });
        let soonest = match rest.is_zero() {
            true => 0,
            false => rt::wall_millis().saturating_add(rest.as_millis() as u64),
        };
        at.max(soonest).min(own)
    }
}

/// A moment in a window, for a certificate that is good from and until then; all in seconds since 1970. `None`: the window
/// is none.
fn pick(window: (i64, i64), (from, until): (u64, u64), chance: f64) -> Option<u64> {
    let (start, end) = window;
    let width = end.checked_sub(start).filter(|width| *width > 0)?;
    let latest = until - until.checked_sub(from)? / RESERVE;
    let at = start.saturating_add((width as f64 * chance) as i64);
    // What is past is due now.
    Some(u64::try_from(at).unwrap_or(0).min(latest))
}

impl Keeper {
    /// How long until the authority is to be asked about a certificate; none that is not there.
    pub(super) fn ask_in(&self) -> Duration {
        let there = self
            .orders
            .iter()
            .filter(|wanted| self.state.issued(&wanted.what).is_some());
        there
            .map(|wanted| self.state.advice(&wanted.what).ask_in())
            .min()
            .unwrap_or(Duration::MAX)
    }

    /// When to do what is due, as the authority wishes.
    pub(super) fn advised(&self, wanted: &Wanted, due: Due) -> Due {
        match due {
            Due::Wall(own) => Due::Wall(self.state.advice(&wanted.what).date(own)),
            // A try that failed is made again by its own count.
            Due::At(_) => due,
        }
    }

    /// Asks about all certificates that are to be asked about.
    pub(super) async fn ask(&self) {
        let due: Vec<&Wanted> = self
            .orders
            .iter()
            .filter(|wanted| self.state.issued(&wanted.what).is_some())
            .filter(|wanted| self.state.advice(&wanted.what).ask_in().is_zero())
            .collect();
        // Whatever comes of it: nobody is asked without a pause.
        for wanted in &due {
            let wait = AFTER_FAILURE.mul_f64(1.0 + credential::chance() / 4.0);
            self.ask_again(wanted, wait);
        }
        // An account is not made for a question.
        if self.issuer.account_key.is_none() && self.kept_account().await.is_none() {
            return;
        }
        let access = self.access();
        let asked = rt::timeout(ORDER_PATIENCE, self.ask_about(&due, &access)).await;
        let why = match asked {
            Ok(Ok(())) => return,
            Ok(Err(why)) => why,
            Err(_) => "it takes too long".to_owned(),
        };
        if let Some(asked) = access.refused_for() {
            self.state.set_pause(&self.issuer.account_name(), asked);
        }
        self.tell_silence("certificates", &why);
    }

    async fn ask_about(&self, due: &[&Wanted], access: &Arc<Access>) -> Result<(), String> {
        let account = self.account(access).await.map_err(|failure| failure.why)?;
        for wanted in due {
            let Some(issued) = self.state.issued(&wanted.what) else {
                continue;
            };
            let facts = credential::identifier(&issued.certificate)
                .zip(credential::validity(&issued.certificate));
            let Some((identifier, life)) = facts else {
                continue;
            };
            let (info, wait) = match account.renewal_info(&identifier).await {
                Ok(told) => told,
                Err(Error::Unsupported(_)) => {
                    due.iter().for_each(|wanted| self.ask_again(wanted, LATEST));
                    return Ok(());
                }
                // It knows nothing of this one.
                Err(Error::Api(problem)) if access.refused_for().is_none() => {
                    self.tell_silence(&wanted.names.join(", "), &problem.to_string());
                    continue;
                }
                Err(error) => return Err(error.to_string()),
            };
            let window = &info.suggested_window;
            let (start, end) = (window.start.unix_timestamp(), window.end.unix_timestamp());
            let Some(at) = pick((start, end), life, credential::chance()) else {
                self.tell_silence(&wanted.names.join(", "), "its window has no width");
                continue;
            };
            self.ask_again(wanted, wait.clamp(SOONEST, LATEST));
            let mut is_new = false;
            self.state.advise(&wanted.what, |advice| {
                // The same window again: the moment in it stays, or many questions would make it an early one.
                is_new = advice.window != Some((start, end));
                if is_new {
                    advice.window = Some((start, end));
                    advice.at = Some(at.saturating_mul(1000));
                }
            });
            if is_new {
                let why = info.explanation_url.unwrap_or_default();
                let why = why.chars().filter(char::is_ascii_graphic);
                let why: String = why.take(MAX_EXPLANATION).collect();
                let (issuer, names) = (&self.issuer.name, wanted.names.join(", "));
                let (start, end) = (window.start, window.end);
                self.log.plain(Level::Notice, format_args!(
                    "acme: \"{issuer}\" suggests renewing the certificate for {names} between {start} and {end} {why}"
                ));
            }
        }
        Ok(())
    }

    fn ask_again(&self, wanted: &Wanted, wait: Duration) {
        self.state
            .advise(&wanted.what, |advice| advice.ask = Some(rt::now() + wait));
    }

    fn tell_silence(&self, what: &str, why: &str) {
        let issuer = &self.issuer.name;
        self.log.plain(
            Level::Info,
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
        assert_eq!(pick((2000, 3000), life, 0.0), Some(2000));
        assert_eq!(pick((2000, 3000), life, 0.5), Some(2500));
        assert_eq!(pick((-9000, -8000), life, 0.5), Some(0));
        assert_eq!(pick((8000, i64::MAX), life, 0.9), Some(6000));
        for window in [(3000, 3000), (3000, 2000), (i64::MIN, i64::MAX)] {
            assert_eq!(pick(window, life, 0.5), None);
        }
    }

    #[test]
    fn an_early_date_is_granted_once_a_day() {
        let now = rt::wall_millis();
        let own = now + 90 * HASTE.as_millis() as u64;
        let mut advice = Advice::default();
        assert_eq!(advice.date(own), own);
        advice.at = Some(own + 5);
        assert_eq!(advice.date(own), own + 5);
        advice.at = Some(0);
        assert_eq!(advice.date(own), 0);
        advice.hasten();
        let next = advice.date(own);
        assert!(next > now + HASTE.as_millis() as u64 / 2 && next < own);
        // Our own date still counts.
        assert_eq!(advice.date(now), now);
    }
}
