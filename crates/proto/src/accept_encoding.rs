//! Accept-Encoding (RFC 9110, section 12.5.3): whether the client accepts a coding.

/// Whether the client named `gzip` with a weight above zero. This is nginx's test: `*` does not
/// count, and an invalid weight counts as zero.
pub fn accepts_gzip(value: &[u8]) -> bool {
    accepts(value, b"gzip")
}

/// Whether the client named `coding` with a weight above zero.
pub fn accepts(value: &[u8], coding: &[u8]) -> bool {
    weight(value, coding).is_some_and(|weight| weight > 0)
}

/// The weight of `coding` in thousandths, if the client named it. The first mention decides; an
/// invalid weight is zero.
pub fn weight(value: &[u8], coding: &[u8]) -> Option<u16> {
    value.split(|&b| b == b',').find_map(|item| {
        let mut parts = item.splitn(2, |&b| b == b';');
        let name = parts.next().unwrap_or_default().trim_ascii();
        name.eq_ignore_ascii_case(coding)
            .then(|| parts.next().map_or(1000, parse_weight))
    })
}

/// Parses `q=0.5` as thousandths. The RFC permits at most three decimals.
fn parse_weight(parameter: &[u8]) -> u16 {
    let parameter = parameter.trim_ascii();
    if parameter.is_empty() {
        return 1000;
    }
    let [b'q' | b'Q', b'=', whole @ (b'0' | b'1'), rest @ ..] = parameter else {
        return 0;
    };
    let decimals = match rest {
        [] => rest,
        [b'.', decimals @ ..] if decimals.len() <= 3 && decimals.iter().all(u8::is_ascii_digit) => {
            decimals
        }
        _ => return 0,
    };
    let mut weight = u16::from(whole - b'0') * 1000;
    for (digit, unit) in decimals.iter().zip([100, 10, 1]) {
        weight += u16::from(digit - b'0') * unit;
    }
    if weight > 1000 { 0 } else { weight }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_thousandths() {
        for (value, expected) in [
            ("gzip", Some(1000)),
            ("GZIP", Some(1000)),
            ("gzip, deflate", Some(1000)),
            ("deflate,gzip", Some(1000)),
            ("deflate , gzip ;q=0.5", Some(500)),
            ("gzip;q=1", Some(1000)),
            ("gzip; Q=1.000", Some(1000)),
            ("gzip;q=0.001", Some(1)),
            ("gzip;", Some(1000)),
            ("gzip;q=0", Some(0)),
            ("gzip;q=0.", Some(0)),
            ("gzip;q=0.000", Some(0)),
            ("gzip;q=0.0001", Some(0)),
            ("gzip;q=1.001", Some(0)),
            ("gzip;q=2", Some(0)),
            ("gzip;q=x", Some(0)),
            ("gzip;q", Some(0)),
            ("gzip;x=1", Some(0)),
            ("gzip;q=0.5;x", Some(0)),
            ("gzip;q=0, gzip", Some(0)),
            ("x-gzip", None),
            ("gzipx", None),
            ("gzip x", None),
            ("*", None),
            ("", None),
        ] {
            assert_eq!(weight(value.as_bytes(), b"gzip"), expected, "{value}");
        }
        assert!(
            accepts_gzip(b"br, gzip;q=0.1") && !accepts_gzip(b"gzip;q=0") && accepts(b"br", b"BR")
        );
    }
}
