//! `expires`: how long a response can be cached.

use conf::{Diagnostic, DirectiveLine, Expression};
use http::Request;
use proto::KnownField;

/// The `expires` directive.
#[derive(Clone, Debug, Default)]
pub(super) enum ExpiresRule {
    /// Nothing is added.
    #[default]
    Off,
    /// Known from the configuration.
    Fixed(ExpiryTime),
    /// Evaluated per request; `modified` counts from the last modification.
    Variable { value: Expression, modified: bool },
}

/// When a response becomes stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExpiryTime {
    /// It always is: `epoch`.
    Epoch,
    /// In ten years.
    Max,
    /// This many seconds after the request.
    Access(i64),
    /// This many seconds after the last modification.
    Modified(i64),
    /// At this second of the day, local time.
    Daily(i64),
}

const DAY: i64 = 24 * 60 * 60;
/// `expires max`, as in nginx.
const TEN_YEARS: i64 = 315_360_000;

impl PartialEq for ExpiresRule {
    /// Only compared with `Off`, to see whether there is anything to do.
    fn eq(&self, other: &ExpiresRule) -> bool {
        matches!((self, other), (ExpiresRule::Off, ExpiresRule::Off))
    }
}

impl ExpiresRule {
    /// Reads the directive. Constant values are parsed now, so that mistakes show at start.
    pub(super) fn read(line: &mut DirectiveLine) -> Result<ExpiresRule, Diagnostic> {
        let modified = line.args().len() == 2;
        if modified && line.text(0) != "modified" {
            return Err(line.directive_error_at(0, "invalid value"));
        }
        let index = usize::from(modified);
        let value = line.expression(index)?;
        match value.constant() {
            None => Ok(ExpiresRule::Variable { value, modified }),
            Some(text) => match parse(text, modified) {
                Ok(None) => Ok(ExpiresRule::Off),
                Ok(Some(when)) => Ok(ExpiresRule::Fixed(when)),
                Err(what) => Err(line.directive_error_at(index, what)),
            },
        }
    }

    /// Sets the fields, replacing those of the response: two different lifetimes would leave it to
    /// each cache which one to believe.
    pub(super) fn apply(&self, request: &mut Request) {
        let when = match self {
            ExpiresRule::Off => return,
            ExpiresRule::Fixed(when) => *when,
            ExpiresRule::Variable { value, modified } => {
                let text = request.value(value);
                match parse(&text, *modified) {
                    Ok(Some(when)) => when,
                    // An invalid value at this point comes from the client or the backend; adding
                    // nothing is the safe reading.
                    Ok(None) | Err(_) => return,
                }
            }
        };
        let now = i64::try_from(rt::wall_millis() / 1000).unwrap_or(i64::MAX);
        let (expires, age) = when.resolve(now, request.out.last_modified);
        let out = &mut request.out;
        let fields = &mut out.fields;
        fields.remove_known(KnownField::Expires);
        fields.remove_known(KnownField::CacheControl);
        // `more_clear_headers Expires` has removed the field on purpose.
        if !out.omitted.expires {
            fields.push_known_with(KnownField::Expires, |text| {
                proto::date::write_http(expires, text)
            });
        }
        fields.push_known_with(KnownField::CacheControl, |text| match age {
            None => text.extend_from_slice(b"no-cache"),
            Some(age) => {
                text.extend_from_slice(b"max-age=");
                base::text::write_number(age, text);
            }
        });
    }
}

impl ExpiryTime {
    /// The time for `Expires`, and `max-age`; `None` for what is stale already.
    fn resolve(self, now: i64, last_modified: Option<i64>) -> (i64, Option<u64>) {
        let aged = |at: i64, told: i64| {
            // A negative time in the directive means `no-cache`, even if it is not in the past.
            let age = at - now;
            (at, u64::try_from(age).ok().filter(|_| told >= 0))
        };
        match (self, last_modified) {
            // nginx's constants: one second after the epoch, and shortly before 32-bit time ends.
            (ExpiryTime::Epoch, _) => (1, None),
            (ExpiryTime::Max, _) => (2_145_916_555, Some(TEN_YEARS as u64)),
            // Zero seconds after the last modification would be in the past; what is meant is
            // "revalidate each time".
            (ExpiryTime::Access(0) | ExpiryTime::Modified(0), _) => (now, Some(0)),
            (ExpiryTime::Modified(seconds), Some(modified)) => aged(modified + seconds, seconds),
            (ExpiryTime::Access(seconds) | ExpiryTime::Modified(seconds), _) => {
                aged(now + seconds, seconds)
            }
            (ExpiryTime::Daily(second), _) => aged(next_time(now, second), second),
        }
    }
}

/// The next time at which this second of the local day begins.
fn next_time(now: i64, second: i64) -> i64 {
    let offset = i64::from(rt::local_time(now.unsigned_abs()).offset);
    let today = now - (now + offset).rem_euclid(DAY);
    let at = today + second;
    if at > now { at } else { at + DAY }
}

/// Parses a value; `None`: `off`. The error completes `"expires" directive …`.
fn parse(text: &[u8], modified: bool) -> Result<Option<ExpiryTime>, &'static str> {
    if !modified {
        match text {
            b"epoch" => return Ok(Some(ExpiryTime::Epoch)),
            b"max" => return Ok(Some(ExpiryTime::Max)),
            b"off" => return Ok(None),
            _ => {}
        }
    }
    let (sign, digits) = match text.split_first() {
        Some((sign @ (b'@' | b'+' | b'-'), digits)) => (*sign, digits),
        _ => (b'+', text),
    };
    if sign == b'@' && modified {
        return Err("daily time cannot be used with \"modified\" parameter");
    }
    let time = base::units::parse_seconds(digits).ok_or("invalid value")?;
    let seconds = i64::try_from(time.as_secs()).map_err(|_| "invalid value")?;
    match sign {
        b'@' if seconds > DAY => Err("daily time value must be less than 24 hours"),
        b'@' => Ok(Some(ExpiryTime::Daily(seconds))),
        _ => {
            let seconds = if sign == b'-' { -seconds } else { seconds };
            Ok(Some(if modified {
                ExpiryTime::Modified(seconds)
            } else {
                ExpiryTime::Access(seconds)
            }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_in_nginx() {
        assert_eq!(parse(b"off", false), Ok(None));
        assert_eq!(parse(b"epoch", false), Ok(Some(ExpiryTime::Epoch)));
        assert_eq!(parse(b"1h30m", false), Ok(Some(ExpiryTime::Access(5400))));
        assert_eq!(parse(b"-1", true), Ok(Some(ExpiryTime::Modified(-1))));
        assert_eq!(
            parse(b"@15h30m", false),
            Ok(Some(ExpiryTime::Daily(55_800)))
        );
        assert!(parse(b"@25h", false).is_err() && parse(b"@1h", true).is_err());
        assert!(
            parse(b"max", true).is_err()
                && parse(b"", false).is_err()
                && parse(b"+-1", false).is_err()
        );
    }

    #[test]
    fn ages_count_from_where_they_should() {
        let now = 1_000_000;
        assert_eq!(
            ExpiryTime::Access(60).resolve(now, None),
            (now + 60, Some(60))
        );
        assert_eq!(ExpiryTime::Access(-1).resolve(now, None), (now - 1, None));
        assert_eq!(
            ExpiryTime::Modified(60).resolve(now, Some(now - 10)),
            (now + 50, Some(50))
        );
        assert_eq!(
            ExpiryTime::Modified(60).resolve(now, Some(now - 100)),
            (now - 40, None)
        );
        assert_eq!(
            ExpiryTime::Modified(60).resolve(now, None),
            (now + 60, Some(60))
        );
        assert_eq!(ExpiryTime::Access(0).resolve(now, Some(5)), (now, Some(0)));
        assert_eq!(ExpiryTime::Epoch.resolve(now, None).1, None);
        let (at, age) = ExpiryTime::Daily(3600).resolve(now, None);
        assert!(at > now && at <= now + DAY && age == Some((at - now) as u64));
    }
}
