//! A response of HTTP/1, taken apart as RFC 9112, section 6.3, says where its content ends.
//!
//! A response that is none is told, and never a reason to stop: what is compared may be broken.

use crate::case::fill::find;

/// A response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Response {
    /// The first line: `HTTP/1.1 200 OK`. Nothing for HTTP/0.9.
    pub line: String,
    /// The status; 9 for HTTP/0.9.
    pub status: u16,
    /// The fields, in their order.
    pub fields: Vec<(String, String)>,
    /// The content, with its chunks joined.
    pub body: Vec<u8>,
    /// How the content's end is told.
    pub framing: Framing,
    /// The fields behind the chunks.
    pub trailers: Vec<(String, String)>,
    /// True when the connection ended before the content did.
    pub cut: bool,
}

/// How the end of the content is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Framing {
    /// There is no content.
    #[default]
    Empty,
    /// By its length.
    Length,
    /// In chunks.
    Chunked,
    /// By the end of the connection.
    Close,
    /// By the end of a stream of HTTP/2.
    Stream,
}

impl Response {
    /// The value of the first field of this name.
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut of_name = self
            .fields
            .iter()
            .filter(|(field, _)| field.eq_ignore_ascii_case(name));
        of_name.next().map(|(_, value)| value.as_str())
    }

    /// True when the connection is to be closed after it.
    pub fn closes(&self) -> bool {
        let connection = self.field("Connection").unwrap_or_default();
        let old = !self.line.starts_with("HTTP/1.1");
        self.framing == Framing::Close
            || connection.eq_ignore_ascii_case("close")
            || (old && !connection.eq_ignore_ascii_case("keep-alive"))
    }

    /// True for a response after which the real one follows.
    pub fn is_interim(&self) -> bool {
        (100..200).contains(&self.status) && self.status != 101
    }
}

/// What was found at the front of some bytes.
#[derive(Debug)]
pub enum Parsed {
    /// More is needed.
    Incomplete,
    /// A response, and the number of its bytes.
    Done(Box<Response>, usize),
    /// No response: why.
    Broken(String),
}

/// Takes a response to `method` from the front of `bytes`; `closed` when no more will come.
pub fn parse(bytes: &[u8], method: &str, closed: bool) -> Parsed {
    if !bytes.is_empty() && !bytes.starts_with(&b"HTTP/"[..bytes.len().min(5)]) {
        return match closed {
            true => Parsed::Done(
                Box::new(Response {
                    status: 9,
                    framing: Framing::Close,
                    body: bytes.to_vec(),
                    ..Response::default()
                }),
                bytes.len(),
            ),
            false => Parsed::Incomplete,
        };
    }
    let Some(end) = find(bytes, b"\r\n\r\n") else {
        return match closed && !bytes.is_empty() {
            true => Parsed::Broken("the head is cut".to_owned()),
            false => Parsed::Incomplete,
        };
    };
    let mut response = match head(&bytes[..end]) {
        Ok(response) => response,
        Err(why) => return Parsed::Broken(why),
    };
    let rest = &bytes[end + 4..];
    match content(&mut response, rest, method, closed) {
        Ok(Some(used)) => Parsed::Done(Box::new(response), end + 4 + used),
        Ok(None) if closed => {
            response.cut = true;
            Parsed::Done(Box::new(response), bytes.len())
        }
        Ok(None) => Parsed::Incomplete,
        Err(why) => Parsed::Broken(why),
    }
}

fn head(bytes: &[u8]) -> Result<Response, String> {
    let text: String = bytes.iter().map(|&byte| char::from(byte)).collect();
    let mut lines = text.split("\r\n");
    let line = lines.next().unwrap_or_default().to_owned();
    let status = line.split(' ').nth(1).and_then(|code| code.parse().ok());
    let status = status.ok_or_else(|| format!("no status line: {line:?}"))?;
    let mut fields = Vec::new();
    for line in lines {
        let (name, value) = line
            .split_once(':')
            .ok_or_else(|| format!("no field: {line:?}"))?;
        fields.push((name.to_owned(), value.trim().to_owned()));
    }
    Ok(Response {
        line,
        status,
        fields,
        ..Response::default()
    })
}

/// Fills in the content and says how long it was on the wire.
fn content(
    response: &mut Response,
    rest: &[u8],
    method: &str,
    closed: bool,
) -> Result<Option<usize>, String> {
    let bodiless =
        method == "HEAD" || response.status < 200 || [204, 304].contains(&response.status);
    if bodiless {
        return Ok(Some(0));
    }
    let coding = response.field("Transfer-Encoding").unwrap_or_default();
    if coding.eq_ignore_ascii_case("chunked") {
        response.framing = Framing::Chunked;
        return chunks(response, rest);
    }
    if let Some(length) = response.field("Content-Length") {
        let length: usize = length
            .parse()
            .map_err(|_| format!("no length: {length:?}"))?;
        response.framing = Framing::Length;
        response.body = rest[..length.min(rest.len())].to_vec();
        return Ok((rest.len() >= length).then_some(length));
    }
    response.framing = Framing::Close;
    response.body = rest.to_vec();
    Ok(closed.then_some(rest.len()))
}

fn chunks(response: &mut Response, rest: &[u8]) -> Result<Option<usize>, String> {
    let mut at = 0;
    loop {
        let Some(line) = find(&rest[at..], b"\r\n") else {
            return Ok(None);
        };
        let text = String::from_utf8_lossy(&rest[at..at + line]).into_owned();
        let size = usize::from_str_radix(text.trim(), 16)
            .map_err(|_| format!("no size of a chunk: {text:?}"))?;
        at += line + 2;
        if size == 0 {
            return Ok(trailers(response, &rest[at..])?.map(|used| at + used));
        }
        let end = at.saturating_add(size);
        let data = &rest[at.min(rest.len())..end.min(rest.len())];
        response.body.extend_from_slice(data);
        match rest.get(end..end + 2) {
            Some(b"\r\n") => at = end + 2,
            Some(other) => return Err(format!("a chunk ends in {other:?}")),
            None => return Ok(None),
        }
    }
}

fn trailers(response: &mut Response, rest: &[u8]) -> Result<Option<usize>, String> {
    let mut at = 0;
    while let Some(line) = find(&rest[at..], b"\r\n") {
        let text = String::from_utf8_lossy(&rest[at..at + line]).into_owned();
        at += line + 2;
        if text.is_empty() {
            return Ok(Some(at));
        }
        let (name, value) = text
            .split_once(':')
            .ok_or_else(|| format!("no trailer: {text:?}"))?;
        response
            .trailers
            .push((name.to_owned(), value.trim().to_owned()));
    }
    Ok(None)
}
