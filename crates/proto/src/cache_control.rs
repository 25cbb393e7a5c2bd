//! Cache-Control (RFC 9111 section 5.2) of requests and responses, with the extensions of
//! RFC 5861 (stale-while-revalidate, stale-if-error) and RFC 8246 (immutable).

/// What Cache-Control fields say. Directives that are not known are passed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheControl {
    /// `no-cache`, also with a list of fields: then it means more than it says, which is safe.
    pub no_cache: bool,
    /// `no-store`
    pub no_store: bool,
    /// `private`, also with a list of fields.
    pub private: bool,
    /// `no-cache` without a list: it is about the whole response.
    pub no_cache_whole: bool,
    /// `private` without a list: it is about the whole response.
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
    pub max_age: Age,
    /// `s-maxage`
    pub s_maxage: Age,
    /// `stale-while-revalidate`
    pub stale_while_revalidate: Age,
    /// `stale-if-error`
    pub stale_if_error: Age,
    /// `max-stale`; without a value it is the largest there is.
    pub max_stale: Age,
    /// `min-fresh`
    pub min_fresh: Age,
}

/// A number of seconds in a directive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Age {
    /// The directive is not there.
    #[default]
    Absent,
    /// Seconds; a larger number is [`Age::MAX`] (RFC 9111 section 1.2.2).
    Seconds(u32),
    /// The directive is there without a number: treat the response as stale
    /// (RFC 9111 section 4.2.1).
    Invalid,
}

impl Age {
    /// 2^31: what the RFC asks a larger number to be taken for.
    pub const MAX: u32 = 1 << 31;

    /// The seconds, if there are any.
    pub fn seconds(self) -> Option<u32> {
        match self {
            Age::Seconds(seconds) => Some(seconds),
            Age::Absent | Age::Invalid => None,
        }
    }

    fn parse(value: &[u8]) -> Age {
        let digits = value
            .strip_prefix(b"\"")
            .and_then(|v| v.strip_suffix(b"\""))
            .unwrap_or(value);
        if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
            return Age::Invalid;
        }
        let value = digits.iter().try_fold(0u32, |value, digit| {
            value
                .checked_mul(10)?
                .checked_add(u32::from(digit - b'0'))
                .filter(|&value| value <= Age::MAX)
        });
        Age::Seconds(value.unwrap_or(Age::MAX))
    }

    /// Of a directive that stands twice the shorter wins; an invalid one is shorter than any.
    fn merge(&mut self, other: Age) {
        *self = match (*self, other) {
            (Age::Absent, other) => other,
            (Age::Seconds(a), Age::Seconds(b)) => Age::Seconds(a.min(b)),
            (Age::Invalid, _) | (_, Age::Invalid) => Age::Invalid,
            (age @ Age::Seconds(_), Age::Absent) => age,
        };
    }
}

impl CacheControl {
    /// Reads the values of all Cache-Control fields of a message.
    pub fn parse<'a>(values: impl Iterator<Item = &'a [u8]>) -> CacheControl {
        let mut control = CacheControl::default();
        for value in values {
            for (directive, argument) in directives(value) {
                control.apply(directive, argument);
            }
        }
        control
    }

    /// Applies one directive, whatever it was written in.
    pub(crate) fn apply(&mut self, directive: &[u8], argument: Option<&[u8]>) {
        let mut name = [0; 24];
        let Some(name) = name.get_mut(..directive.len()) else {
            return;
        };
        name.copy_from_slice(directive);
        name.make_ascii_lowercase();
        let age = || Age::parse(argument.unwrap_or_default());
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
            b"max-stale" if argument.is_none() => self.max_stale.merge(Age::Seconds(Age::MAX)),
            b"max-stale" => self.max_stale.merge(age()),
            b"min-fresh" => self.min_fresh.merge(age()),
            _ => {}
        }
    }
}

/// Whether an argument names fields. An empty list is taken for none: then the directive is about everything.
fn is_list(argument: Option<&[u8]>) -> bool {
    argument.is_some_and(|argument| {
        argument
            .iter()
            .any(|b| !matches!(b, b'"' | b',' | b' ' | b'\t'))
    })
}

/// The directives of one field line, with their arguments, quotes included.
pub(crate) fn directives(value: &[u8]) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
    let mut rest = value;
    std::iter::from_fn(move || {
        let (directive, argument, after) = next_directive(rest)?;
        rest = after;
        Some((directive, argument))
    })
}

/// A directive's name, its argument, and what follows it.
type Directive<'a> = (&'a [u8], Option<&'a [u8]>, &'a [u8]);

/// The next directive; an argument may be quoted and then hold commas.
fn next_directive(list: &[u8]) -> Option<Directive<'_>> {
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
            max_age: Age::Seconds(60),
            s_maxage: Age::Seconds(120),
            stale_if_error: Age::Seconds(5),
            ..CacheControl::default()
        };
        assert_eq!(control, expected);
        let control = parse(&["private=\"set-cookie, max-age=5\", no-cache=x"]);
        assert!(control.private && control.no_cache && control.max_age == Age::Absent);
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
        assert_eq!(parse(&["max-age"]).max_age, Age::Invalid);
        assert_eq!(parse(&["max-age="]).max_age, Age::Invalid);
        assert_eq!(parse(&["max-age=-1"]).max_age, Age::Invalid);
        assert_eq!(parse(&["max-age=1.5"]).max_age, Age::Invalid);
        assert_eq!(parse(&["max-age=60, max-age=30"]).max_age, Age::Seconds(30));
        assert_eq!(parse(&["max-age=60, max-age=x"]).max_age, Age::Invalid);
        assert_eq!(
            parse(&["max-age=2147483648"]).max_age,
            Age::Seconds(Age::MAX)
        );
        assert_eq!(
            parse(&["max-age=99999999999999999999"]).max_age,
            Age::Seconds(Age::MAX)
        );
        assert_eq!(parse(&["max-stale"]).max_stale, Age::Seconds(Age::MAX));
        assert_eq!(parse(&["max-stale=3"]).max_stale.seconds(), Some(3));
        assert_eq!(parse(&["max-age=\"6"]).max_age, Age::Invalid);
    }
}
