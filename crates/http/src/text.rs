//! Small writers and readers of text that several parts of the engine need.

use std::net::IpAddr;

use bstr::{BStr, BString, ByteSlice};

/// The digits of the largest number.
const MAX_DIGITS: usize = 20;

/// `00` to `99`.
const PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[b'0'; 2]; 100];
    let mut n = 0;
    while n < 100 {
        pairs[n] = [b'0' + n as u8 / 10, b'0' + n as u8 % 10];
        n += 1;
    }
    pairs
};

/// Appends a number in decimal. No allocation, no formatting machinery: every response has two or three of these.
pub fn write_number(number: u64, out: &mut Vec<u8>) {
    let mut digits = [0; MAX_DIGITS];
    let mut at = MAX_DIGITS;
    let mut rest = number;
    // Two at a time: half the divisions.
    while rest >= 100 {
        at -= 2;
        digits[at..at + 2].copy_from_slice(&PAIRS[(rest % 100) as usize]);
        rest /= 100;
    }
    let first = PAIRS[rest as usize];
    if rest >= 10 {
        at -= 1;
        digits[at] = first[1];
        at -= 1;
        digits[at] = first[0];
    } else {
        at -= 1;
        digits[at] = first[1];
    }
    out.extend_from_slice(&digits[at..]);
}

/// The address of a client without its port, as `$remote_addr` shows it.
pub fn of_client(ip: Option<IpAddr>) -> BString {
    match ip {
        None => "unix:".into(),
        Some(IpAddr::V6(ip)) => ip.to_string().into(),
        // Every connection has one: the formatting machinery takes 1,300 instructions for it.
        Some(IpAddr::V4(ip)) => {
            let mut text = Vec::with_capacity("255.255.255.255".len());
            for (index, octet) in ip.octets().into_iter().enumerate() {
                if index > 0 {
                    text.push(b'.');
                }
                write_number(u64::from(octet), &mut text);
            }
            text.into()
        }
    }
}

/// Appends a number with zeros in front, so that it has at least `width` digits.
pub fn write_padded(number: u64, width: usize, out: &mut Vec<u8>) {
    let mut enough = 1_u64;
    for _ in 1..width {
        enough = enough.saturating_mul(10);
        if number < enough {
            out.push(b'0');
        }
    }
    write_number(number, out);
}

/// Appends milliseconds as seconds with three places: `12.034`.
pub fn write_seconds(millis: u64, out: &mut Vec<u8>) {
    write_number(millis / 1000, out);
    out.push(b'.');
    write_padded(millis % 1000, 3, out);
}

/// Appends bytes as lower case hexadecimal digits.
pub fn write_hex(bytes: &[u8], out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in bytes {
        out.extend_from_slice(&[
            DIGITS[usize::from(byte >> 4)],
            DIGITS[usize::from(byte & 15)],
        ]);
    }
}

/// Appends text for HTML and XML, content and quoted attributes alike.
pub fn write_html(text: &[u8], out: &mut Vec<u8>) {
    for &byte in text {
        match byte {
            b'<' => out.extend_from_slice(b"&lt;"),
            b'>' => out.extend_from_slice(b"&gt;"),
            b'&' => out.extend_from_slice(b"&amp;"),
            b'"' => out.extend_from_slice(b"&quot;"),
            other => out.push(other),
        }
    }
}

/// Whether a `User-Agent` says that it is an Internet Explorer.
pub fn is_msie(agent: &BStr) -> bool {
    // The version's first digit, the dot and another one follow. Operas have called themselves so too.
    let found = agent.find(b"MSIE ").is_some_and(|at| at + 7 < agent.len());
    found && !agent.contains_str("Opera")
}

/// Whether a `User-Agent` is an Internet Explorer up to 6 without its last service pack: the browsers that
/// `keepalive_disable msie6` and `gzip_disable msie6` mean.
pub fn is_msie6(agent: &BStr) -> bool {
    let Some(at) = agent.find("MSIE ") else {
        return false;
    };
    match agent.get(at + 5..at + 7) {
        Some(b"4." | b"5.") => true,
        Some(b"6.") => !agent.contains_str("SV1"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).expect("only ASCII is written")
    }

    #[test]
    fn numbers_of_every_length() {
        for number in (0..20)
            .map(|n| 10_u64.pow(n))
            .flat_map(|n| [n - 1, n, n + 1])
            .chain([0, u64::MAX])
        {
            assert_eq!(written(|out| write_number(number, out)), number.to_string());
        }
    }

    #[test]
    fn padding_is_for_short_numbers_only() {
        assert_eq!(written(|out| write_padded(0, 3, out)), "000");
        assert_eq!(written(|out| write_padded(9, 3, out)), "009");
        assert_eq!(written(|out| write_padded(99, 3, out)), "099");
        assert_eq!(written(|out| write_padded(1234, 3, out)), "1234");
        assert_eq!(written(|out| write_seconds(12_034, out)), "12.034");
    }

    #[test]
    fn the_browsers_that_are_meant() {
        assert!(is_msie6(
            "Mozilla/4.0 (compatible; MSIE 5.5; Windows NT 5.0)".into()
        ));
        assert!(is_msie6(
            "Mozilla/4.0 (compatible; MSIE 6.0; Windows NT 5.1)".into()
        ));
        assert!(!is_msie6(
            "Mozilla/4.0 (compatible; MSIE 6.0; Windows NT 5.1; SV1)".into()
        ));
        assert!(!is_msie6(
            "Mozilla/4.0 (compatible; MSIE 7.0; Windows NT 5.1)".into()
        ));
        assert!(!is_msie6("MSIE ".into()));
    }
}
