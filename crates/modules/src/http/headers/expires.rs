//! `expires`: for how long a response may be kept.

use conf::{Diagnostic, Expression, Line};
use http::Request;
use proto::Known;

/// What the directive says.
#[derive(Clone, Debug, Default)]
pub(super) enum Expires {
    /// Nothing is added.
    #[default]
    Off,
    /// As known.
    Fixed(When),
    /// As the variables say at each request; `modified` counts from the last change.
    Variable { value: Expression, modified: bool },
}

/// When a response is stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// It always is.
    Epoch,
    /// In ten years.
    Max,
    /// So many seconds after the request.
    Access(i64),
    /// So many seconds after the last change.
    Modified(i64),
    /// At this second of the day, local time.
    Daily(i64),
}

const DAY: i64 = 24 * 60 * 60;
const TEN_YEARS: i64 = 315_360_000;

impl PartialEq for Expires {
    /// Only whether there is anything to do is ever asked.
    fn eq(&self, other: &Expires) -> bool {
        matches!((self, other), (Expires::Off, Expires::Off))
    }
}

impl Expires {
    pub(super) fn read(line: &mut Line) -> Result<Expires, Diagnostic> {
        let modified = line.args().len() == 2;
        if modified && line.text(0) != "modified" {
            return Err(line.directive_error_at(0, "invalid value"));
        }
        let index = usize::from(modified);
        let value = line.expression(index)?;
        match value.constant() {
            None => Ok(Expires::Variable { value, modified }),
            Some(text) => match parse(text, modified) {
                Ok(None) => Ok(Expires::Off),
                Ok(Some(when)) => Ok(Expires::Fixed(when)),
                Err(what) => Err(line.directive_error_at(index, what)),
            },
        }
    }

    /// Adds the fields.
    pub(super) fn apply(&self, request: &mut Request) {
        let when = match self {
            Expires::Off => return,
            Expires::Fixed(when) => *when,
            Expires::Variable { value, modified } => {
                let text = request.value(value);
                match parse(&text, *modified) {
                    Ok(Some(when)) => when,
                    // A value that is no time is the client's or the backend's doing: nothing is added.
                    Ok(None) | Err(_) => return,
                }
            }
        };
        let now = i64::try_from(rt::wall_millis() / 1000).unwrap_or(i64::MAX);
        let (expires, age) = when.resolve(now, request.out.last_modified);
        let out = &mut request.out;
        let fields = &mut out.fields;
        fields.remove_known(Known::Expires);
        fields.remove_known(Known::CacheControl);
        if !out.unsaid.expires {
            fields.push_known_with(Known::Expires, |text| {
                proto::date::write_http(expires, text)
            });
        }
        fields.push_known_with(Known::CacheControl, |text| match age {
            None => text.extend_from_slice(b"no-cache"),
            Some(age) => {
                text.extend_from_slice(b"max-age=");
                base::text::write_number(age, text);
            }
        });
    }
}

impl When {
    /// The time of `Expires`, and the `max-age`; `None` for what is stale already.
    fn resolve(self, now: i64, last_modified: Option<i64>) -> (i64, Option<u64>) {
        let aged = |at: i64, told: i64| {
            let age = at - now;
            (at, u64::try_from(age).ok().filter(|_| told >= 0))
        };
        match (self, last_modified) {
            // nginx's numbers: one second after the beginning of time, and shortly before its 32 bit end.
            (When::Epoch, _) => (1, None),
            (When::Max, _) => (2_145_916_555, Some(TEN_YEARS as u64)),
            // Zero seconds after the last change would be the past; what is meant is "ask again each time".
            (When::Access(0) | When::Modified(0), _) => (now, Some(0)),
            (When::Modified(seconds), Some(modified)) => aged(modified + seconds, seconds),
            (When::Access(seconds) | When::Modified(seconds), _) => aged(now + seconds, seconds),
            (When::Daily(second), _) => aged(next_time(now, second), second),
        }
    }
}

/// The next moment at which `second` of the local day begins.
fn next_time(now: i64, second: i64) -> i64 {
    let offset = i64::from(rt::error_log::local_time(now.unsigned_abs()).offset);
    let today = now - (now + offset).rem_euclid(DAY);
    let at = today + second;
    if at > now { at } else { at + DAY }
}

/// Reads a value; `None` is `off`. The error completes `"expires" directive …`.
fn parse(text: &[u8], modified: bool) -> Result<Option<When>, &'static str> {
    if !modified {
        match text {
            b"epoch" => return Ok(Some(When::Epoch)),
            b"max" => return Ok(Some(When::Max)),
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
        b'@' => Ok(Some(When::Daily(seconds))),
        _ => {
            let seconds = if sign == b'-' { -seconds } else { seconds };
            Ok(Some(if modified {
                When::Modified(seconds)
            } else {
                When::Access(seconds)
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
        assert_eq!(parse(b"epoch", false), Ok(Some(When::Epoch)));
        assert_eq!(parse(b"1h30m", false), Ok(Some(When::Access(5400))));
        assert_eq!(parse(b"-1", true), Ok(Some(When::Modified(-1))));
        assert_eq!(parse(b"@15h30m", false), Ok(Some(When::Daily(55_800))));
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
        assert_eq!(When::Access(60).resolve(now, None), (now + 60, Some(60)));
        assert_eq!(When::Access(-1).resolve(now, None), (now - 1, None));
        assert_eq!(
            When::Modified(60).resolve(now, Some(now - 10)),
            (now + 50, Some(50))
        );
        assert_eq!(
            When::Modified(60).resolve(now, Some(now - 100)),
            (now - 40, None)
        );
        assert_eq!(When::Modified(60).resolve(now, None), (now + 60, Some(60)));
        assert_eq!(When::Access(0).resolve(now, Some(5)), (now, Some(0)));
        assert_eq!(When::Epoch.resolve(now, None).1, None);
        let (at, age) = When::Daily(3600).resolve(now, None);
        assert!(at > now && at <= now + DAY && age == Some((at - now) as u64));
    }
}
