//! Cache-Control (RFC 9111 section 5.2) of requests and responses, with the extensions of
//! RFC 5861 (stale-while-revalidate, stale-if-error) and RFC 8246 (immutable).

/// The directives of all Cache-Control fields. Unknown ones are ignored, as the RFC demands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheControl {
    /// `no-cache`, with a list of fields, too: then this means more than the directive says, which
    /// is safe.
    pub no_cache: bool,
    /// `no-store`
    pub no_store: bool,
    /// `private`, with a list of fields, too.
    pub private: bool,
    /// `no-cache` without a list: it covers the whole response.
    pub no_cache_whole: bool,
    /// `private` without a list: it covers the whole response.
    pub private_whole: bool,
    /// `public`
    pub public: bool,
    /// `must-revalidate`
    pub must_revalidate: bool,
    /// `proxy-revalidate`
    pub proxy_revalidate: bool,
    /// `must-understand`
    pub must_understand: bool,
    /// `no-transform`
    pub no_transform: bool,
    /// `immutable`
    pub immutable: bool,
    /// `only-if-cached`
    pub only_if_cached: bool,
    /// `max-age`
    pub max_age: DeltaSeconds,
    /// `s-maxage`
    pub s_maxage: DeltaSeconds,
    /// `stale-while-revalidate`
    pub stale_while_revalidate: DeltaSeconds,
    /// `stale-if-error`
    pub stale_if_error: DeltaSeconds,
    /// `max-stale`; without a value any staleness is accepted, so it is the maximum.
    pub max_stale: DeltaSeconds,
    /// `min-fresh`
    pub min_fresh: DeltaSeconds,
}

/// The number of seconds of a directive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeltaSeconds {
    /// The directive is missing.
    #[default]
    Absent,
    /// Seconds; a larger number is [`DeltaSeconds::MAX`] (RFC 9111 section 1.2.2).
    Seconds(u32),
    /// The directive has no valid number: the response is to be treated as stale (RFC 9111, section
    /// 4.2.1).
    Invalid,
}

impl DeltaSeconds {
    /// 2^31: the RFC has larger numbers taken for this.
    pub const MAX: u32 = 1 << 31;

    /// The seconds, if the directive has a valid number.
    pub fn seconds(self) -> Option<u32> {
        match self {
            DeltaSeconds::Seconds(seconds) => Some(seconds),
            DeltaSeconds::Absent | DeltaSeconds::Invalid => None,
        }
    }

    /// Parses an argument. It may be quoted: senders must not do so, but recipients should accept
    /// it (RFC 9111, section 5.2).
    fn parse(value: &[u8]) -> DeltaSeconds {
        let digits = value
            .strip_prefix(b"\"")
            .and_then(|v| v.strip_suffix(b"\""))
            .unwrap_or(value);
        if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
            return DeltaSeconds::Invalid;
        }
        let value = digits.iter().try_fold(0u32, |value, digit| {
            value
                .checked_mul(10)?
                .checked_add(u32::from(digit - b'0'))
                .filter(|&value| value <= DeltaSeconds::MAX)
        });
        DeltaSeconds::Seconds(value.unwrap_or(DeltaSeconds::MAX))
    }

    /// If a directive occurs twice the shorter time wins, and an invalid one is the shortest:
    /// serving less is the safe side.
    fn merge(&mut self, other: DeltaSeconds) {
        *self = match (*self, other) {
            (DeltaSeconds::Absent, other) => other,
            (DeltaSeconds::Seconds(a), DeltaSeconds::Seconds(b)) => DeltaSeconds::Seconds(a.min(b)),
            (DeltaSeconds::Invalid, _) | (_, DeltaSeconds::Invalid) => DeltaSeconds::Invalid,
            (age @ DeltaSeconds::Seconds(_), DeltaSeconds::Absent) => age,
        };
    }
}

impl CacheControl {
    /// Parses the values of all Cache-Control fields of a message.
    pub fn parse<'a>(values: impl Iterator<Item = &'a [u8]>) -> CacheControl {
        let mut control = CacheControl::default();
        for value in values {
            for (directive, argument) in directives(value) {
                control.apply(directive, argument);
            }
        }
        control
    }

    /// Applies one directive, whatever field it comes from.
    pub(crate) fn apply(&mut self, directive: &[u8], argument: Option<&[u8]>) {
        // No known directive is longer; this avoids an allocation for each.
        let mut name = [0; 24];
        let Some(name) = name.get_mut(..directive.len()) else {
            return;
        };
        name.copy_from_slice(directive);
        name.make_ascii_lowercase();
        let age = || DeltaSeconds::parse(argument.unwrap_or_default());
        match &*name {
            b"no-cache" => {
                self.no_cache = true;
                self.no_cache_whole |= !is_list(argument);
            }
            b"no-store" => self.no_store = true,
            b"private" => {
                self.private = true;
                self.private_whole |= !is_list(argument);
            }
            b"public" => self.public = true,
            b"must-revalidate" => self.must_revalidate = true,
            b"proxy-revalidate" => self.proxy_revalidate = true,
            b"must-understand" => self.must_understand = true,
            b"no-transform" => self.no_transform = true,
            b"immutable" => self.immutable = true,
            b"only-if-cached" => self.only_if_cached = true,
            b"max-age" => self.max_age.merge(age()),
            b"s-maxage" => self.s_maxage.merge(age()),
            b"stale-while-revalidate" => self.stale_while_revalidate.merge(age()),
            b"stale-if-error" => self.stale_if_error.merge(age()),
            b"max-stale" if argument.is_none() => self
                .max_stale
                .merge(DeltaSeconds::Seconds(DeltaSeconds::MAX)),
            b"max-stale" => self.max_stale.merge(age()),
            b"min-fresh" => self.min_fresh.merge(age()),
            _ => {}
        }
    }
}

/// Whether an argument names fields. An empty list counts as none: then the directive is about the
/// whole response.
fn is_list(argument: Option<&[u8]>) -> bool {
    argument.is_some_and(|argument| {
        argument
            .iter()
            .any(|b| !matches!(b, b'"' | b',' | b' ' | b'\t'))
    })
}

/// The directives of one field line, with their arguments including quotes.
pub(crate) fn directives(value: &[u8]) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
    let mut rest = value;
    std::iter::from_fn(move || {
        let (directive, argument, after) = next_directive(rest)?;
        rest = after;
        Some((directive, argument))
    })
}

/// A directive's name, its argument, and the rest of the list.
type CacheDirective<'a> = (&'a [u8], Option<&'a [u8]>, &'a [u8]);

/// The next directive. An argument may be quoted and contain commas then.
fn next_directive(list: &[u8]) -> Option<CacheDirective<'_>> {
    let start = list
        .iter()
        .position(|b| !matches!(b, b' ' | b'\t' | b','))?;
    let list = &list[start..];
    let name_end = list
        .iter()
        .position(|b| matches!(b, b',' | b'='))
        .unwrap_or(list.len());
    let name = list[..name_end].trim_ascii();
    if list.get(name_end) != Some(&b'=') {
        return Some((name, None, &list[name_end..]));
    }
    let argument = list[name_end + 1..].trim_ascii_start();
    let quoted_end = match argument.split_first() {
        Some((b'"', rest)) => {
            memchr::memchr(b'"', rest).map_or(argument.len(), |length| length + 2)
        }
        _ => 0,
    };
    let length = memchr::memchr(b',', &argument[quoted_end..])
        .map_or(argument.len(), |length| quoted_end + length);
    Some((
        name,
        Some(argument[..length].trim_ascii_end()),
        &argument[length..],
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(values: &[&str]) -> CacheControl {
        CacheControl::parse(values.iter().map(|value| value.as_bytes()))
    }

    #[test]
    fn directives_are_read_from_all_fields() {
        let control = parse(&[
            "Public, max-age=60 ,S-MaxAge = 120",
            "immutable,, stale-if-error=\"5\"",
        ]);
        let expected = CacheControl {
            public: true,
            immutable: true,
            max_age: DeltaSeconds::Seconds(60),
            s_maxage: DeltaSeconds::Seconds(120),
            stale_if_error: DeltaSeconds::Seconds(5),
            ..CacheControl::default()
        };
        assert_eq!(control, expected);
        let control = parse(&["private=\"set-cookie, max-age=5\", no-cache=x"]);
        assert!(control.private && control.no_cache && control.max_age == DeltaSeconds::Absent);
        assert_eq!(
            parse(&[
                "",
                " , ,",
                "x-private",
                "no-storex",
                "=5",
                "a-name-that-is-longer-than-any-we-know"
            ]),
            CacheControl::default()
        );
    }

    #[test]
    fn doubtful_ages_are_short() {
        assert_eq!(parse(&["max-age"]).max_age, DeltaSeconds::Invalid);
        assert_eq!(parse(&["max-age="]).max_age, DeltaSeconds::Invalid);
        assert_eq!(parse(&["max-age=-1"]).max_age, DeltaSeconds::Invalid);
        assert_eq!(parse(&["max-age=1.5"]).max_age, DeltaSeconds::Invalid);
        assert_eq!(
            parse(&["max-age=60, max-age=30"]).max_age,
            DeltaSeconds::Seconds(30)
        );
        assert_eq!(
            parse(&["max-age=60, max-age=x"]).max_age,
            DeltaSeconds::Invalid
        );
        assert_eq!(
            parse(&["max-age=2147483648"]).max_age,
            DeltaSeconds::Seconds(DeltaSeconds::MAX)
        );
        assert_eq!(
            parse(&["max-age=99999999999999999999"]).max_age,
            DeltaSeconds::Seconds(DeltaSeconds::MAX)
        );
        assert_eq!(
            parse(&["max-stale"]).max_stale,
            DeltaSeconds::Seconds(DeltaSeconds::MAX)
        );
        assert_eq!(parse(&["max-stale=3"]).max_stale.seconds(), Some(3));
        assert_eq!(parse(&["max-age=\"6"]).max_age, DeltaSeconds::Invalid);
    }
}
