//! Status codes and their reason phrases: those of nginx. Where nginx has none there is none here.

/// Status codes with their phrases. Clients must ignore the phrase (RFC 9112, section 4), so a
/// missing one costs nothing; interim responses have theirs because that is all they consist of.
const PHRASES: [(u16, &str); 41] = [
    (100, "Continue"),
    (101, "Switching Protocols"),
    (102, "Processing"),
    (103, "Early Hints"),
    (200, "OK"),
    (201, "Created"),
    (202, "Accepted"),
    (204, "No Content"),
    (206, "Partial Content"),
    (301, "Moved Permanently"),
    (302, "Moved Temporarily"),
    (303, "See Other"),
    (304, "Not Modified"),
    (307, "Temporary Redirect"),
    (308, "Permanent Redirect"),
    (400, "Bad Request"),
    (401, "Unauthorized"),
    (402, "Payment Required"),
    (403, "Forbidden"),
    (404, "Not Found"),
    (405, "Not Allowed"),
    (406, "Not Acceptable"),
    (407, "Proxy Authentication Required"),
    (408, "Request Time-out"),
    (409, "Conflict"),
    (410, "Gone"),
    (411, "Length Required"),
    (412, "Precondition Failed"),
    (413, "Request Entity Too Large"),
    (414, "Request-URI Too Large"),
    (415, "Unsupported Media Type"),
    (416, "Requested Range Not Satisfiable"),
    (421, "Misdirected Request"),
    (429, "Too Many Requests"),
    (500, "Internal Server Error"),
    (501, "Not Implemented"),
    (502, "Bad Gateway"),
    (503, "Service Temporarily Unavailable"),
    (504, "Gateway Time-out"),
    (505, "HTTP Version Not Supported"),
    (507, "Insufficient Storage"),
];

/// The reason phrase of a status; empty if there is none.
pub fn reason(status: u16) -> &'static str {
    match PHRASES.binary_search_by_key(&status, |(code, _)| *code) {
        Ok(index) => PHRASES[index].1,
        Err(_) => "",
    }
}

/// Whether a response with this status has no content, whatever its fields say (RFC 9110, section
/// 6.4.1).
pub fn is_bodyless(status: u16) -> bool {
    matches!(status, 100..=199 | 204 | 304)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_order_and_found() {
        assert!(PHRASES.windows(2).all(|pair| pair[0].0 < pair[1].0));
        for (status, phrase) in PHRASES {
            assert_eq!(reason(status), phrase);
        }
        for status in [0, 99, 299, 300, 494, 511, 599, 999] {
            assert_eq!(reason(status), "");
        }
        assert!(is_bodyless(304) && is_bodyless(101) && !is_bodyless(200) && !is_bodyless(205));
    }
}
