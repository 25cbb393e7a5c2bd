//! Cache control for some caches only (RFC 9213): `CDN-Cache-Control` and its like.

use super::structured::{MemberValue, dictionary};
use crate::cache_control::CacheControl;
use crate::fields::Fields;

/// The first of the `targeted` fields that is well-formed and not empty. Cache-Control and Expires
/// are ignored then (section 2.2).
pub fn targeted_cache_control(response: &Fields, targeted: &[Box<[u8]>]) -> Option<CacheControl> {
    targeted.iter().find_map(|name| {
        let lines: Vec<&[u8]> = response.all(name).collect();
        match lines[..] {
            [] => None,
            [line] => parse(line),
            _ => parse(&lines.join(&b", "[..])),
        }
    })
}

/// Parses a structured dictionary as cache control. Directives with a value of the wrong type are
/// ignored.
fn parse(text: &[u8]) -> Option<CacheControl> {
    let mut control = CacheControl::default();
    let mut is_empty = true;
    dictionary(text, |name, value| {
        is_empty = false;
        match value {
            MemberValue::True if !takes_seconds(name) => control.apply(name, None),
            MemberValue::Integer(seconds) if takes_seconds(name) && seconds >= 0 => {
                control.apply(name, Some(seconds.to_string().as_bytes()));
            }
            MemberValue::True | MemberValue::Integer(_) | MemberValue::Other => {}
        }
    })
    .ok()?;
    (!is_empty).then_some(control)
}

fn takes_seconds(name: &[u8]) -> bool {
    matches!(
        name,
        b"max-age" | b"s-maxage" | b"stale-while-revalidate" | b"stale-if-error"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache_control::DeltaSeconds;

    fn of(fields: &[(&str, &str)]) -> Option<CacheControl> {
        let mut response = Fields::new();
        for (name, value) in fields {
            response.push(name.as_bytes(), value.as_bytes());
        }
        let names: [Box<[u8]>; 2] = [
            (*b"weir-cache-control").into(),
            (*b"cdn-cache-control").into(),
        ];
        targeted_cache_control(&response, &names)
    }

    #[test]
    fn the_first_that_is_sound_is_taken() {
        let found = of(&[
            ("CDN-Cache-Control", "max-age=5, private"),
            ("Weir-Cache-Control", "max-age=7"),
        ]);
        assert_eq!(found.map(|c| c.max_age), Some(DeltaSeconds::Seconds(7)));
        let found = of(&[
            ("CDN-Cache-Control", "max-age=5"),
            ("CDN-Cache-Control", "no-store"),
            ("Weir-Cache-Control", "max-age =7"),
        ]);
        assert_eq!(
            found.map(|c| (c.max_age, c.no_store)),
            Some((DeltaSeconds::Seconds(5), true))
        );
        assert_eq!(
            of(&[("Weir-Cache-Control", ""), ("Cache-Control", "max-age=1")]),
            None
        );
    }

    #[test]
    fn wrong_types_are_passed_over() {
        let found = of(&[(
            "cdn-cache-control",
            "max-age=\"10\", no-store=5, private=?0",
        )]);
        assert_eq!(found, Some(CacheControl::default()));
        let found = of(&[(
            "cdn-cache-control",
            "max-age=99999999999, stale-if-error=-1",
        )]);
        assert_eq!(
            found.map(|c| (c.max_age, c.stale_if_error)),
            Some((
                DeltaSeconds::Seconds(DeltaSeconds::MAX),
                DeltaSeconds::Absent
            ))
        );
    }
}
