//! The `Connection` field (RFC 9110, section 7.6.1).
//!
//! Its names are options of the connection, or fields that must not be forwarded. A client may name
//! any field; but servers behind the proxy rely on `Host` or `Cookie`, and must not lose them that
//! way. So naming those is an error.

use crate::fields::Fields;
use crate::known_fields::KnownField;

/// More names than this are an error, since each is compared with each field.
pub const MOST_NAMES: usize = 64;

/// The fields that a message's `Connection` fields name.
#[derive(Clone, Copy, Debug)]
pub struct NominatedFields<'a> {
    fields: &'a Fields,
    /// The number of names besides the usual options; mostly zero.
    count: usize,
}

impl<'a> NominatedFields<'a> {
    /// Inspects the `Connection` fields.
    #[inline]
    pub fn from_fields(fields: &'a Fields) -> NominatedFields<'a> {
        let count = match fields.has(KnownField::Connection) {
            false => 0,
            true => names(fields).count(),
        };
        NominatedFields { fields, count }
    }

    /// Whether no field is named.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether more are named than there is a use for.
    pub fn are_too_many(&self) -> bool {
        self.count > MOST_NAMES
    }

    /// Whether a field of this name must not be forwarded. `Upgrade` is never among them: it is an
    /// option with a meaning of its own.
    #[inline]
    pub fn has(&self, name: &[u8]) -> bool {
        self.count > 0 && names(self.fields).any(|named| named.eq_ignore_ascii_case(name))
    }

    /// The first name that a request must not contain.
    pub fn forbidden_name(&self) -> Option<&'a [u8]> {
        match self.count {
            0 => None,
            _ => names(self.fields).find(|name| is_forbidden(name)),
        }
    }

    /// All names, in lower case.
    pub fn to_names(self) -> Vec<Vec<u8>> {
        names(self.fields)
            .take(MOST_NAMES)
            .map(<[u8]>::to_ascii_lowercase)
            .collect()
    }
}

/// The names without the usual options.
fn names(fields: &Fields) -> impl Iterator<Item = &[u8]> {
    let values = fields.all_known(KnownField::Connection);
    let words = values.flat_map(|value| value.split(|&byte| byte == b','));
    words.map(<[u8]>::trim_ascii).filter(|word| {
        const OPTIONS: [&[u8]; 3] = [b"keep-alive", b"close", b"upgrade"];
        !word.is_empty()
            && !OPTIONS
                .iter()
                .any(|option| word.eq_ignore_ascii_case(option))
    })
}

/// The fields by which servers tell who asks, for what, and on whose behalf.
fn is_forbidden(name: &[u8]) -> bool {
    const PREFIX: &[u8] = b"X-Forwarded-";
    matches!(
        KnownField::from_name(name),
        KnownField::Host | KnownField::Cookie | KnownField::Forwarded
    ) || name
        .get(..PREFIX.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(PREFIX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(values: &[&str]) -> Fields {
        let mut fields = Fields::new();
        for value in values {
            fields.push(b"Connection", value.as_bytes());
        }
        fields
    }

    #[test]
    fn names_are_told_from_options() {
        for usual in [
            &[][..],
            &["close"],
            &["Keep-Alive, Upgrade"],
            &[" , "],
            &[""],
        ] {
            assert!(
                NominatedFields::from_fields(&fields(usual)).is_empty(),
                "{usual:?}"
            );
        }
        let fields = fields(&["close, X-One ,", "x-two\t,TE"]);
        let named = NominatedFields::from_fields(&fields);
        assert!(named.has(b"x-one") && named.has(b"X-TWO") && named.has(b"te"));
        assert!(!named.has(b"close") && !named.has(b"x-on"));
        assert_eq!(named.to_names(), [&b"x-one"[..], b"x-two", b"te"]);
        assert_eq!(named.forbidden_name(), None);
    }

    #[test]
    fn what_a_request_must_not_name() {
        for bad in [
            "host",
            "close, COOKIE",
            "Forwarded",
            "x-forwarded-for",
            "X-Forwarded-",
        ] {
            assert!(
                NominatedFields::from_fields(&fields(&[bad]))
                    .forbidden_name()
                    .is_some(),
                "{bad}"
            );
        }
        for good in ["hosts", "x-forwarded", "via", "cookie2", "authorization"] {
            assert_eq!(
                NominatedFields::from_fields(&fields(&[good])).forbidden_name(),
                None,
                "{good}"
            );
        }
    }

    #[test]
    fn there_is_a_bound() {
        let names = |count| vec!["x"; count].join(",");
        assert!(!NominatedFields::from_fields(&fields(&[&names(MOST_NAMES)])).are_too_many());
        assert!(NominatedFields::from_fields(&fields(&[&names(MOST_NAMES + 1)])).are_too_many());
    }
}
