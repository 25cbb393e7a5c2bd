//! The priority of a response (RFC 9218): its urgency, and whether it is incremental.

/// The priority that a client has given a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponsePriority {
    /// From 0, the most urgent, to 7.
    pub urgency: u8,
    /// Whether parts of it are useful: then responses of the same urgency share the connection.
    pub incremental: bool,
}

impl Default for ResponsePriority {
    fn default() -> ResponsePriority {
        ResponsePriority {
            urgency: 3,
            incremental: false,
        }
    }
}

impl ResponsePriority {
    /// Parses a Priority field or the payload of PRIORITY_UPDATE: a dictionary of structured fields
    /// with the members `u` and `i`. Anything else is ignored, and the last of several wins.
    pub fn parse(value: &[u8]) -> ResponsePriority {
        let mut priority = ResponsePriority::default();
        for member in value.split(|&b| b == b',') {
            let member = member.split(|&b| b == b';').next().unwrap_or_default();
            match member.trim_ascii() {
                [b'u', b'=', digit @ b'0'..=b'7'] => priority.urgency = digit - b'0',
                b"i" | b"i=?1" => priority.incremental = true,
                b"i=?0" => priority.incremental = false,
                _ => {}
            }
        }
        priority
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_found_and_nonsense_is_not() {
        let of = |text: &[u8]| {
            let ResponsePriority {
                urgency,
                incremental,
            } = ResponsePriority::parse(text);
            (urgency, incremental)
        };
        assert_eq!(of(b""), (3, false));
        assert_eq!(of(b"u=0, i"), (0, true));
        assert_eq!(of(b"i=?0,u=7"), (7, false));
        assert_eq!(of(b" u=5;x=1 ,\ti;y"), (5, true));
        assert_eq!(of(b"u=8, i=1"), (3, false));
        assert_eq!(of(b"u=1, u=2"), (2, false));
        assert_eq!(of(b"u=-1,u=12,uu=1,,,"), (3, false));
    }
}
