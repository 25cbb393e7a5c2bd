//! One HTTP/1 answer, taken apart as RFC 9112 section 6.3 says where its body ends.

/// A response with its fields in the order in which they came.
#[derive(Debug, Clone)]
pub struct Reply {
    /// `HTTP/1.1`; empty for an HTTP/0.9 answer.
    pub version: String,
    /// The status code; 9 for an HTTP/0.9 answer, which has none.
    pub status: u16,
    /// The reason phrase.
    pub reason: String,
    /// Names and values of the fields, as they came.
    pub fields: Vec<(String, String)>,
    /// The body, with the chunked coding undone.
    pub body: Vec<u8>,
    /// True when the body came in chunks.
    pub chunked: bool,
    /// True when the connection closed before the body was complete.
    pub cut: bool,
}

impl Reply {
    /// The value of the first field of this name, whatever its case; empty when there is none.
    pub fn field(&self, name: &str) -> &str {
        self.fields
            .iter()
            .find(|(field, _)| field.eq_ignore_ascii_case(name))
            .map_or("", |(_, value)| value)
    }

    /// The values of all fields of this name.
    pub fn all(&self, name: &str) -> Vec<&str> {
        let of_name = self
            .fields
            .iter()
            .filter(|(field, _)| field.eq_ignore_ascii_case(name));
        of_name.map(|(_, value)| value.as_str()).collect()
    }

    /// True when there is a field of this name.
    pub fn has(&self, name: &str) -> bool {
        self.fields
            .iter()
            .any(|(field, _)| field.eq_ignore_ascii_case(name))
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Fails unless the status is this one; returns itself for the next question.
    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{:?} {}", self.fields, self.text());
        self
    }
}

/// Takes one reply from the front of `bytes` and says how many bytes it had; `None` when it is
/// not complete and the connection is still open, or when nothing was sent at all.
pub(crate) fn parse(bytes: &[u8], method: &str, closed: bool) -> Option<(Reply, usize)> {
    if closed && !bytes.is_empty() && !bytes.starts_with(b"HTTP/") {
        return Some((simple(bytes), bytes.len()));
    }
    let head_end = find(bytes, b"\r\n\r\n")? + 4;
    let mut reply = head(&bytes[..head_end]);
    let rest = &bytes[head_end..];

    let bodiless =
        method == "HEAD" || reply.status < 200 || reply.status == 204 || reply.status == 304;
    let used = if bodiless {
        Some(0)
    } else if reply
        .field("Transfer-Encoding")
        .eq_ignore_ascii_case("chunked")
    {
        reply.chunked = true;
        dechunk(rest, &mut reply.body)
    } else if reply.has("Content-Length") {
        let length: usize = reply
            .field("Content-Length")
            .parse()
            .expect("a length is a number");
        reply
            .body
            .extend_from_slice(&rest[..length.min(rest.len())]);
        (rest.len() >= length).then_some(length)
    } else {
        closed.then(|| reply.body.extend_from_slice(rest))?;
        Some(rest.len())
    };
    match used {
        Some(used) => Some((reply, head_end + used)),
        None if closed => {
            reply.cut = true;
            Some((reply, bytes.len()))
        }
        None => None,
    }
}

fn simple(bytes: &[u8]) -> Reply {
    Reply {
        version: String::new(),
        status: 9,
        reason: String::new(),
        fields: Vec::new(),
        body: bytes.to_vec(),
        chunked: false,
        cut: false,
    }
}

fn head(bytes: &[u8]) -> Reply {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.split("\r\n");
    let mut start = lines.next().unwrap_or_default().splitn(3, ' ');
    let mut word = || start.next().unwrap_or_default().to_owned();
    let (version, status, reason) = (word(), word(), word());
    let fields = lines.take_while(|line| !line.is_empty()).map(|line| {
        let (name, value) = line
            .split_once(':')
            .unwrap_or_else(|| panic!("a field line has no colon: {line:?}"));
        (name.to_owned(), value.trim().to_owned())
    });
    Reply {
        version,
        status: status
            .parse()
            .unwrap_or_else(|_| panic!("no status in {text:?}")),
        reason,
        fields: fields.collect(),
        body: Vec::new(),
        chunked: false,
        cut: false,
    }
}

/// Appends the chunks' data to `body` and returns the length of the whole chunked body; `None`
/// when it is not complete.
fn dechunk(bytes: &[u8], body: &mut Vec<u8>) -> Option<usize> {
    body.clear();
    let mut at = 0;
    loop {
        let line = find(&bytes[at..], b"\r\n")?;
        let size = std::str::from_utf8(&bytes[at..at + line]).ok()?;
        let size = size.split(';').next().unwrap_or_default().trim();
        let size =
            usize::from_str_radix(size, 16).unwrap_or_else(|_| panic!("bad chunk size {size:?}"));
        at += line + 2;
        if size == 0 {
            let trailers = find(&bytes[at - 2..], b"\r\n\r\n")?;
            return Some(at - 2 + trailers + 4);
        }
        body.extend_from_slice(bytes.get(at..at + size)?);
        (bytes.get(at + size..at + size + 2)? == b"\r\n").then_some(())?;
        at += size + 2;
    }
}

fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    bytes
        .windows(needle.len())
        .position(|window| window == needle)
}
