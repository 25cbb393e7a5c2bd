//! The `Cache-Status` field: what a cache did with a request (RFC 9211).

/// What a cache did with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheStatus<'a> {
    /// The cache's name: a token or, with other characters, a string.
    pub name: &'a str,
    /// Whether the origin was asked.
    pub outcome: CacheOutcome,
    /// The remaining freshness in seconds; negative for a stale response.
    pub ttl_s: Option<i64>,
    /// Additional information, implementation-specific.
    pub detail: Option<&'a str>,
}

/// Whether the origin was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheOutcome {
    /// No: the response came from the cache.
    Hit,
    /// Yes.
    Forwarded {
        /// Why it was asked.
        why: ForwardReason,
        /// The status of its response.
        status: Option<u16>,
        /// Whether the response is stored.
        stored: bool,
        /// Whether it is the response to another client's request, which this one has waited for.
        collapsed: bool,
    },
}

/// Why a request was forwarded (RFC 9211 section 2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardReason {
    /// The cache was told not to handle the request.
    Bypass,
    /// The method is not cached.
    Method,
    /// Nothing is stored for the URL.
    UriMiss,
    /// Only other variants are stored for the URL.
    VaryMiss,
    /// The stored response is stale.
    Stale,
    /// The client asked for it.
    Request,
    /// Only a part of the response is stored.
    Partial,
}

impl ForwardReason {
    fn word(self) -> &'static str {
        match self {
            ForwardReason::Bypass => "bypass",
            ForwardReason::Method => "method",
            ForwardReason::UriMiss => "uri-miss",
            ForwardReason::VaryMiss => "vary-miss",
            ForwardReason::Stale => "stale",
            ForwardReason::Request => "request",
            ForwardReason::Partial => "partial",
        }
    }
}

impl CacheStatus<'_> {
    /// Appends the field's value.
    pub fn write(&self, out: &mut Vec<u8>) {
        write_token_or_string(self.name, out);
        match self.outcome {
            CacheOutcome::Hit => out.extend_from_slice(b"; hit"),
            CacheOutcome::Forwarded {
                why,
                status,
                stored,
                collapsed,
            } => {
                out.extend_from_slice(b"; fwd=");
                out.extend_from_slice(why.word().as_bytes());
                if let Some(status) = status {
                    out.extend_from_slice(format!("; fwd-status={status}").as_bytes());
                }
                if stored {
                    out.extend_from_slice(b"; stored");
                }
                if collapsed {
                    out.extend_from_slice(b"; collapsed");
                }
            }
        }
        if let Some(ttl) = self.ttl_s {
            out.extend_from_slice(format!("; ttl={ttl}").as_bytes());
        }
        if let Some(detail) = self.detail {
            out.extend_from_slice(b"; detail=");
            write_token_or_string(detail, out);
        }
    }
}

fn write_token_or_string(text: &str, out: &mut Vec<u8>) {
    let is_token = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '*')
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&b));
    if is_token {
        out.extend_from_slice(text.as_bytes());
        return;
    }
    out.push(b'"');
    for byte in text.bytes().filter(|b| matches!(b, 0x20..=0x7e)) {
        if matches!(byte, b'"' | b'\\') {
            out.push(b'\\');
        }
        out.push(byte);
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(status: CacheStatus<'_>) -> String {
        let mut out = Vec::new();
        status.write(&mut out);
        String::from_utf8_lossy(&out).into_owned()
    }

    #[test]
    fn it_reads_as_the_rfc_has_it() {
        let hit = CacheStatus {
            name: "weir",
            outcome: CacheOutcome::Hit,
            ttl_s: Some(376),
            detail: None,
        };
        assert_eq!(text(hit), "weir; hit; ttl=376");
        let miss = CacheStatus {
            name: "node 1\"",
            outcome: CacheOutcome::Forwarded {
                why: ForwardReason::UriMiss,
                status: Some(200),
                stored: true,
                collapsed: true,
            },
            ttl_s: Some(-2),
            detail: Some("set-cookie"),
        };
        assert_eq!(
            text(miss),
            "\"node 1\\\"\"; fwd=uri-miss; fwd-status=200; stored; collapsed; ttl=-2; detail=set-cookie"
        );
    }
}
