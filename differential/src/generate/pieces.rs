//! What several areas are made of: fields of requests, heads of responses, contents.

use crate::case::{Act, Body, Content, File, Protocol, Request, Upstream};
use crate::random::Dice;

/// The fields that ask for a part, for another coding, or only for what is new. The date is that of every file.
const FIELDS: &[(&str, &str)] = &[
    ("Range", "bytes=0-4"),
    ("Range", "bytes=-3"),
    ("Range", "bytes=5-"),
    ("Range", "bytes=0-0,-1"),
    ("Range", "bytes=2-3,0-1"),
    ("Range", "bytes=99999-"),
    ("Range", "bytes=4-2"),
    ("Range", "bytes=0-1,4-5,8-9"),
    ("Range", "bytes=0-99999"),
    ("Range", "lines=1-2"),
    ("Range", "bytes= 0 - 4"),
    ("Range", "bytes=0-4,"),
    ("Range", "bytes=-0"),
    ("Range", "bytes=0-1,99999-"),
    ("Range", "Bytes=1-2"),
    ("If-Range", "Sun, 09 Sep 2001 01:46:40 GMT"),
    ("If-Range", "Sun, 09 Sep 2001 01:46:41 GMT"),
    ("If-Range", "\"x\""),
    ("If-Modified-Since", "Sun, 09 Sep 2001 01:46:40 GMT"),
    ("If-Modified-Since", "Sun, 09 Sep 2001 01:46:41 GMT"),
    ("If-Modified-Since", "Sun, 09 Sep 2001 01:46:39 GMT"),
    ("If-Modified-Since", "never"),
    ("If-None-Match", "*"),
    ("If-None-Match", "\"x\""),
    ("If-None-Match", "W/\"x\", \"y\""),
    ("If-Match", "*"),
    ("If-Match", "\"x\""),
    ("If-Unmodified-Since", "Sun, 09 Sep 2001 01:46:40 GMT"),
    ("If-Unmodified-Since", "Sun, 09 Sep 2001 01:46:39 GMT"),
    ("Accept-Encoding", "gzip"),
    ("Accept-Encoding", "gzip;q=0"),
    ("Accept-Encoding", "deflate, gzip;q=0.5"),
    ("Accept-Encoding", "*"),
    ("Accept-Encoding", "gzip;q=0.001"),
    ("Accept-Encoding", "identity"),
    ("Via", "1.1 proxy"),
    ("Cookie", "a=1; b=2"),
    ("Cookie", "A=2;a=3"),
    ("X-A", "1"),
    ("X-A", "a b"),
    ("Referer", "http://www.example.org/x"),
    ("User-Agent", "Mozilla/5.0"),
    ("Connection", "close"),
    ("Connection", "keep-alive"),
    ("X-Forwarded-For", "10.0.0.1, 10.0.0.2"),
    ("Authorization", "Basic YTpi"),
    ("Cache-Control", "no-cache"),
    ("Pragma", "no-cache"),
    ("Accept", "text/html"),
    ("Accept-Language", "de"),
];

/// A request with up to `most` fields of these.
pub(super) fn request(dice: &mut Dice, target: &str, most: usize) -> Request {
    let method = dice.word(&["GET", "GET", "GET", "GET", "HEAD", "POST", "OPTIONS"]);
    let mut request = Request::new(method, target);
    if dice.chance(1, 10) {
        request.version = "HTTP/1.0".to_owned();
    }
    for _ in 0..dice.below(most + 1) {
        let (name, value) = dice.pick(FIELDS);
        if request.fields.iter().all(|(known, _)| known != name) {
            request = request.with(name, value);
        }
    }
    if method == "POST" {
        request.body = body(dice);
    }
    request
}

/// Content of a request.
pub(super) fn body(dice: &mut Dice) -> Body {
    let content = |dice: &mut Dice| Content::repeated("content ", *dice.pick(&[1, 3, 200, 3000]));
    match dice.below(5) {
        0 => Body::None,
        1 | 2 => Body::Length(content(dice)),
        3 => Body::Chunked(vec![content(dice), Content::new("b")], Vec::new()),
        _ => Body::Chunked(
            vec![content(dice)],
            vec![("X-Trailer".to_owned(), "t".to_owned())],
        ),
    }
}

/// A file with a text.
pub(super) fn file(path: &str, text: impl AsRef<[u8]>) -> File {
    File {
        path: path.to_owned(),
        content: Content::new(text),
    }
}

/// Fields of a response that a server before it may act on.
pub(super) const RESPONSE_FIELDS: &[&str] = &[
    "X-A: 1",
    "X-A: 2",
    "Set-Cookie: a=b; Path=/; Domain=o.example",
    "Set-Cookie: c=d; path=/x/y; HttpOnly",
    "Cache-Control: max-age=60",
    "Cache-Control: no-store",
    "Cache-Control: private",
    "Expires: Thu, 01 Jan 2032 00:00:00 GMT",
    "Expires: Thu, 01 Jan 1970 00:00:00 GMT",
    "Last-Modified: Sun, 09 Sep 2001 01:46:40 GMT",
    "ETag: \"x\"",
    "ETag: W/\"x\"",
    "Vary: Accept-Encoding",
    "Vary: X-A",
    "Accept-Ranges: bytes",
    "Content-Encoding: gzip",
    "Content-Language: de",
    "Location: http://o.example/x",
    "Location: /y",
    "Refresh: 5; url=http://o.example/",
    "Server: behind",
    "Date: Sun, 09 Sep 2001 01:46:40 GMT",
    "X-Accel-Expires: 10",
    "X-Accel-Buffering: no",
    "X-Accel-Limit-Rate: 0",
    "X-Accel-Charset: koi8-r",
    "Connection: close",
    "Connection: keep-alive",
    "Keep-Alive: timeout=5",
    "WWW-Authenticate: Basic realm=\"x\"",
    "Link: </s.css>; rel=preload",
    "Content-Disposition: attachment",
    "X-Accel-Redirect: /inside/x.txt",
    "Content-Range: bytes 0-9/100",
    "Status: 404 Not Found",
    "X-Powered-By: php",
    "Content-Type: text/plain; charset=utf-8",
    "Upgrade: x",
    "Warning: 110 - x",
];

/// The statuses that servers behind answer with.
pub(super) const STATUSES: &[&str] = &[
    "200 OK",
    "200 OK",
    "200 OK",
    "200 OK",
    "404 Not Found",
    "302 Found",
    "500 Internal Server Error",
    "503 Service Unavailable",
    "206 Partial Content",
    "304 Not Modified",
    "204 No Content",
    "401 Unauthorized",
    "403 Forbidden",
    "201 Created",
    "200",
    "299 Odd",
    "301 Moved Permanently",
    "502 Bad Gateway",
    "416 Range",
    "412 Precondition Failed",
    "429 Too Many",
];

/// How an answer of a server behind can be broken.
fn broken(dice: &mut Dice) -> Vec<Act> {
    let text = dice.word(&[
        "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", "HTTP/1.1 200 OK\r\nX: y", "", "garbage\r\n\r\n", "HTTP/1.1 abc\r\n\r\n",
        "HTTP/1.1 200 OK\r\nno colon\r\n\r\nx", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc",
        "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\nabc", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcdef", "HTTP/1.1 200 OK\nX-A: 1\n\nabc",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na", "HTTP/1.0 200 OK\r\n\r\nold",
        "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na", "HTTP/1.1 200 OK\r\n: x\r\n\r\na",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n3\r\nabc\r\n0\r\n\r\n", "HTTP/1.1 101 Switching\r\n\r\n",
    ]);
    let end = if dice.chance(1, 5) {
        Act::Reset
    } else {
        Act::Close
    };
    vec![Act::Send(Content::new(text)), end]
}

/// A server behind that speaks HTTP/1.
pub(super) fn upstream(dice: &mut Dice, breaks: bool) -> Upstream {
    let answers = (0..dice.between(1, 3))
        .map(|_| answer(dice, breaks))
        .collect();
    Upstream {
        protocol: Protocol::Http,
        answers,
    }
}

fn answer(dice: &mut Dice, breaks: bool) -> Vec<Act> {
    if breaks && dice.chance(1, 6) {
        return broken(dice);
    }
    let status = dice.word(STATUSES);
    let mut head = format!("HTTP/1.{} {status}\r\n", dice.word(&["1", "1", "1", "0"]));
    for field in dice.some(RESPONSE_FIELDS, 4) {
        head.push_str(field);
        head.push_str("\r\n");
    }
    if dice.chance(3, 4) && !head.contains("Content-Type") {
        head.push_str("Content-Type: text/html\r\n");
    }
    if status.starts_with("304") || status.starts_with("204") {
        head.push_str("\r\n");
        return vec![Act::Send(Content::new(head))];
    }
    let times = *dice.pick(&[0, 1, 1, 2, 100, 1500]);
    let body = Content::repeated("<p>line</p>\n", times);
    let mut acts = match dice.below(3) {
        0 => {
            head.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
            vec![Act::Send(Content::new(head)), Act::Send(body)]
        }
        1 => {
            head.push_str("Transfer-Encoding: chunked\r\n\r\n");
            let mut content = Content::new(head);
            if !body.is_empty() {
                content = content
                    .and(format!("{:x}\r\n", body.len()), 1)
                    .and("<p>line</p>\n", times)
                    .and("\r\n", 1);
            }
            vec![Act::Send(content.and("0\r\n\r\n", 1))]
        }
        _ => {
            head.push_str("\r\n");
            vec![Act::Send(Content::new(head)), Act::Send(body), Act::Close]
        }
    };
    if dice.chance(1, 5) {
        acts.insert(1.min(acts.len()), Act::Pause(10));
    }
    acts
}
