//! Small text functions that several parts of the engine share.

use bstr::{BStr, ByteSlice};

/// Appends text escaped for HTML and XML, for content and quoted attributes alike.
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

/// Whether a `User-Agent` is Internet Explorer, by nginx's rule.
pub fn is_msie(agent: &BStr) -> bool {
    // A version must follow: its first digit, a dot and another digit. Old versions of Opera claimed to be Internet
    // Explorer, too.
    let found = agent.find(b"MSIE ").is_some_and(|at| at + 7 < agent.len());
    found && !agent.contains_str("Opera")
}

/// Whether a `User-Agent` is Internet Explorer up to version 6 without its last service pack: the browsers that
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
