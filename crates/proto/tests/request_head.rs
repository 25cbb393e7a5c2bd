//! The request head parser against tables of good and bad heads, each in one piece and byte by
//! byte, and its limits at their bounds.
//!
//! The rows, and 24,000 mutations of them, were compared with nginx 1.31.5: same status, same
//! variables, but for two choices of ours. Tabs around a value are white space (RFC 9110
//! section 5.5), and spaces after the version are not part of `$server_protocol`.

use proto::KnownField;
use proto::h1::{HeadLimits, RequestParser, RequestProgress};
use proto::message::{
    InvalidHeaders, MessageVersion, Method, RejectKind, RejectedHead, RequestFraming, RequestHead,
    TargetForm, UnderscorePolicy,
};
use weir_proto as proto;

/// Parses `wire` in steps of `step` bytes.
fn parse(
    wire: &[u8],
    step: usize,
    limits: &HeadLimits,
) -> (Result<RequestProgress, RejectedHead>, RequestHead) {
    let (mut parser, mut head) = (RequestParser::new(), RequestHead::new());
    let mut end = 0;
    loop {
        end = (end + step).min(wire.len());
        let result = parser.parse(&wire[..end], limits, &mut head);
        if !matches!(result, Ok(RequestProgress::Partial)) || end == wire.len() {
            return (result, head);
        }
    }
}

fn complete(wire: &str) -> RequestHead {
    for step in [1, 2, 3, 7, wire.len()] {
        let (result, head) = parse(wire.as_bytes(), step, &HeadLimits::default());
        assert_eq!(
            result,
            Ok(RequestProgress::Complete(wire.len())),
            "{wire:?} in steps of {step}"
        );
        if step == wire.len() {
            return head;
        }
    }
    unreachable!("the last step is the whole")
}

/// The kind of reject, the same in whole and byte by byte; the last checks included.
fn rejected(wire: &[u8]) -> Option<RejectKind> {
    let look = |step| {
        let (result, head) = parse(wire, step, &HeadLimits::default());
        match result {
            Err(reject) => {
                assert!(!reject.log_line(&head).is_empty());
                assert!(reject.status() >= 400);
                Some(reject.kind)
            }
            Ok(RequestProgress::Complete(_)) => head.check(false).err().map(|reject| reject.kind),
            Ok(_) => None,
        }
    };
    let whole = look(wire.len());
    assert_eq!(
        look(1),
        whole,
        "{:?} byte by byte",
        String::from_utf8_lossy(wire)
    );
    whole
}

#[test]
fn an_ordinary_request_is_taken_apart() {
    let wire = "GET /a/b?c=d HTTP/1.1\r\nHost: Example.com\r\nuser-agent:x\r\nAccept:  */* \t\r\nEmpty:\r\nCookie: a=b\r\n\r\n";
    let head = complete(wire);
    assert_eq!(
        (head.method, head.version, head.form),
        (Method::Get, MessageVersion::HTTP_11, TargetForm::Origin)
    );
    assert_eq!(head.request_line(), b"GET /a/b?c=d HTTP/1.1");
    assert_eq!(head.method_text(), b"GET");
    assert_eq!(head.target(), b"/a/b?c=d");
    assert_eq!(head.protocol(), b"HTTP/1.1");
    assert_eq!((head.scheme(), head.authority()), (None, None));
    assert_eq!(head.size(), wire.len());
    let fields: Vec<_> = head.fields.iter().collect();
    let expected: [(&[u8], &[u8]); 5] = [
        (b"Host", b"Example.com"),
        (b"user-agent", b"x"),
        (b"Accept", b"*/*"),
        (b"Empty", b""),
        (b"Cookie", b"a=b"),
    ];
    assert_eq!(fields, expected);
    assert_eq!(
        head.fields.get_known(KnownField::UserAgent),
        Some(&b"x"[..])
    );
    assert_eq!(head.check(false), Ok(RequestFraming::None));
    assert!(head.wants_keep_alive());
}

#[test]
fn request_lines_are_tolerated_as_in_nginx() {
    for (line, target, version) in [
        ("GET / HTTP/1.1", "/", MessageVersion::HTTP_11),
        ("GET / HTTP/1.0", "/", MessageVersion::HTTP_10),
        ("GET   /   HTTP/1.1   ", "/", MessageVersion::HTTP_11),
        ("GET /a%zz HTTP/1.1", "/a%zz", MessageVersion::HTTP_11),
        (
            "GET /\u{e9}\"<>\\^`{|} HTTP/1.1",
            "/\u{e9}\"<>\\^`{|}",
            MessageVersion::HTTP_11,
        ),
        ("GET /?a b", "", MessageVersion::HTTP_11),
        ("GET /#f HTTP/1.1", "/#f", MessageVersion::HTTP_11),
        ("GET / HTTP/1.2", "/", MessageVersion { major: 1, minor: 2 }),
        ("GET / HTTP/1.01", "/", MessageVersion::HTTP_11),
        (
            "GET / HTTP/1.999",
            "/",
            MessageVersion {
                major: 1,
                minor: 999,
            },
        ),
        ("FOO-BAR_X / HTTP/1.0", "/", MessageVersion::HTTP_10),
        ("GET http://h HTTP/1.1", "/", MessageVersion::HTTP_11),
        ("GET http://h/ HTTP/1.1", "/", MessageVersion::HTTP_11),
        ("GET http://h?a HTTP/1.1", "?a", MessageVersion::HTTP_11),
        ("GET http://h:80 HTTP/1.1", "/", MessageVersion::HTTP_11),
        ("GET http://h: HTTP/1.1", "/", MessageVersion::HTTP_11),
        (
            "GET http://h:80?a#b HTTP/1.1",
            "?a#b",
            MessageVersion::HTTP_11,
        ),
        (
            "GET x+y.z-1://[::1]:80/p HTTP/1.1",
            "/p",
            MessageVersion::HTTP_11,
        ),
        ("GET http:///p HTTP/1.1", "/p", MessageVersion::HTTP_11),
        ("CONNECT h:443 HTTP/1.1", "/", MessageVersion::HTTP_11),
        (
            "CONNECT   [::1]:443   HTTP/1.1",
            "/",
            MessageVersion::HTTP_11,
        ),
    ] {
        let wire = format!("{line}\r\nHost: h\r\n\r\n");
        if target.is_empty() {
            assert_eq!(
                rejected(wire.as_bytes()),
                Some(RejectKind::InvalidRequest),
                "{line}"
            );
            continue;
        }
        let head = complete(&wire);
        assert_eq!(
            (head.target(), head.version),
            (target.as_bytes(), version),
            "{line}"
        );
        assert_eq!(head.request_line(), line.as_bytes());
    }
}

#[test]
fn authorities_come_from_absolute_and_connect_targets() {
    for (line, form, authority) in [
        (
            "GET http://Example.com:8080/x HTTP/1.1",
            TargetForm::Absolute,
            "Example.com:8080",
        ),
        ("GET http://[::1]?x HTTP/1.1", TargetForm::Absolute, "[::1]"),
        ("GET http://:80/ HTTP/1.1", TargetForm::Absolute, ":80"),
        ("GET http:/// HTTP/1.1", TargetForm::Absolute, ""),
        ("CONNECT a.b:1 HTTP/1.1", TargetForm::Authority, "a.b:1"),
    ] {
        let head = complete(&format!("{line}\r\nHost: h\r\n\r\n"));
        assert_eq!(
            (head.form, head.authority()),
            (form, Some(authority.as_bytes())),
            "{line}"
        );
    }
    assert_eq!(
        complete("GET hTTp://h/ HTTP/1.0\n\n").scheme(),
        Some(&b"hTTp"[..])
    );
}

#[test]
fn simple_requests_of_http_09_end_with_their_line() {
    for wire in [
        "GET /\r\n",
        "GET /\n",
        "GET /  \n",
        "\r\n\nGET /a?b\r\n",
        "GET http://h/\r\n",
        "GET http://h \r\n",
    ] {
        let head = complete(wire);
        assert_eq!(
            (head.version, head.protocol()),
            (MessageVersion::HTTP_09, &b""[..]),
            "{wire:?}"
        );
        assert_eq!(head.check(false), Ok(RequestFraming::None));
        assert!(!head.wants_keep_alive());
    }
    assert_eq!(
        rejected(b"POST /\r\n"),
        Some(RejectKind::InvalidHttp09Method)
    );
    assert_eq!(
        rejected(b"CONNECT h:80 \n"),
        Some(RejectKind::InvalidHttp09Method)
    );
    assert_eq!(
        rejected(b"GET http://h\r\n"),
        Some(RejectKind::InvalidRequest)
    );
}

#[test]
fn empty_lines_before_a_request_and_bare_lf_are_tolerated() {
    let head = complete("\r\n\n\r\r\nGET / HTTP/1.1\nHost: h\n\n");
    assert_eq!(head.size(), "GET / HTTP/1.1\nHost: h\n\n".len());
    let mut parser = RequestParser::new();
    assert_eq!(
        parser.parse(b"\r\n\r\n", &HeadLimits::default(), &mut RequestHead::new()),
        Ok(RequestProgress::Partial)
    );
    assert!(parser.is_blank());
}

#[test]
fn a_second_request_stays_in_the_buffer() {
    let one = "GET /1 HTTP/1.1\r\nHost: h\r\n\r\n";
    let wire = format!("{one}GET /2 HTTP/1.1\r\n");
    let (result, head) = parse(wire.as_bytes(), wire.len(), &HeadLimits::default());
    assert_eq!(result, Ok(RequestProgress::Complete(one.len())));
    assert_eq!(head.target(), b"/1");
}

/// What is wrong in the request line.
#[rustfmt::skip]
const BAD_REQUEST_LINES: [(&str, RejectKind); 88] = {
    use RejectKind::*;
    [
        (" GET / HTTP/1.1", InvalidMethod), ("get / HTTP/1.1", InvalidMethod), ("GeT / HTTP/1.1", InvalidMethod),
        ("GET", InvalidMethod), ("GET\t/ HTTP/1.1", InvalidMethod), ("G3T / HTTP/1.1", InvalidMethod),
        ("G:T / HTTP/1.1", InvalidMethod), ("\x16\x03\x01\x02", InvalidMethod), ("\0GET / HTTP/1.1", InvalidMethod),
        ("/ HTTP/1.1", InvalidMethod), ("é / HTTP/1.1", InvalidMethod), ("GET/ HTTP/1.1", InvalidMethod),
        ("GET\0 / HTTP/1.1", InvalidMethod), ("{} / HTTP/1.1", InvalidMethod), ("GET\r / HTTP/1.1", InvalidMethod),
        ("GET ", InvalidRequest), ("GET  ", InvalidRequest), ("GET \t/ HTTP/1.1", InvalidRequest),
        ("GET * HTTP/1.1", InvalidRequest), ("OPTIONS * HTTP/1.1", InvalidRequest), ("PRI * HTTP/2.0", InvalidRequest),
        ("GET ? HTTP/1.1", InvalidRequest), ("GET # HTTP/1.1", InvalidRequest), ("GET a HTTP/1.1", InvalidRequest),
        ("GET 1://h/ HTTP/1.1", InvalidRequest), ("GET \\ HTTP/1.1", InvalidRequest), ("GET é HTTP/1.1", InvalidRequest),
        ("GET http HTTP/1.1", InvalidRequest), ("GET http: HTTP/1.1", InvalidRequest), ("GET http:/ HTTP/1.1", InvalidRequest),
        ("GET http:x//h HTTP/1.1", InvalidRequest), ("GET http:/x/h HTTP/1.1", InvalidRequest), ("GET ht_tp://h/ HTTP/1.1", InvalidRequest),
        ("GET http://h_h/ HTTP/1.1", InvalidRequest), ("GET http://h@h/ HTTP/1.1", InvalidRequest), ("GET http://u:p@h/ HTTP/1.1", InvalidRequest),
        ("GET http://h#f HTTP/1.1", InvalidRequest), ("GET http://h\\ HTTP/1.1", InvalidRequest), ("GET http://%68/ HTTP/1.1", InvalidRequest),
        ("GET http://h:8x/ HTTP/1.1", InvalidRequest), ("GET http://h:80:80/ HTTP/1.1", InvalidRequest), ("GET http://h:80", InvalidRequest),
        ("GET http://[::1 HTTP/1.1", InvalidRequest), ("GET http://[::1]x/ HTTP/1.1", InvalidRequest), ("GET http://x[::1]/ HTTP/1.1", InvalidRequest),
        ("GET http://[/]/ HTTP/1.1", InvalidRequest), ("GET http://[%]/ HTTP/1.1", InvalidRequest), ("GET http://h\t/ HTTP/1.1", InvalidRequest),
        ("GET /\t HTTP/1.1", InvalidRequest), ("GET /\x01 HTTP/1.1", InvalidRequest), ("GET /\x1f HTTP/1.1", InvalidRequest),
        ("GET /\x7f HTTP/1.1", InvalidRequest), ("GET /\0 HTTP/1.1", InvalidRequest), ("GET /a\rb HTTP/1.1", InvalidRequest),
        ("GET /?\x02 HTTP/1.1", InvalidRequest), ("GET /#\x03 HTTP/1.1", InvalidRequest), ("GET / /", InvalidRequest),
        ("GET /a b HTTP/1.1", InvalidRequest), ("GET / h", InvalidRequest), ("GET / H", InvalidRequest),
        ("GET / HT", InvalidRequest), ("GET / HTT", InvalidRequest), ("GET / HTTP", InvalidRequest), ("GET / HTTP/", InvalidRequest),
        ("GET / http/1.1", InvalidRequest), ("GET / HTTP 1.1", InvalidRequest), ("GET / HTTP/x", InvalidRequest),
        ("GET / HTTP/0.9", InvalidRequest), ("GET / HTTP/1", InvalidRequest), ("GET / HTTP/1.", InvalidRequest),
        ("GET / HTTP/1x1", InvalidRequest), ("GET / HTTP/.1", InvalidRequest), ("GET / HTTP/1.x", InvalidRequest),
        ("GET / HTTP/1.1x", InvalidRequest), ("GET / HTTP/1.1 x", InvalidRequest), ("GET / HTTP/1.1\t", InvalidRequest),
        ("GET / HTTP/1.1\r", InvalidRequest), ("GET / HTTP/1.1000", InvalidRequest), ("GET / HTTP/-1.1", InvalidRequest),
        ("GET / HTTP/2.0", InvalidVersion), ("GET / HTTP/9", InvalidVersion), ("GET / HTTP/11.1", InvalidVersion), ("GET / HTTP/10", InvalidVersion),
        ("CONNECT / HTTP/1.1", InvalidRequest), ("CONNECT h HTTP/1.1", InvalidRequest), ("CONNECT h: HTTP/1.1", InvalidRequest),
        ("CONNECT h:80/ HTTP/1.1", InvalidRequest), ("CONNECT http://h:80 HTTP/1.1", InvalidRequest),
    ]
};

#[test]
fn malformed_request_lines_are_refused() {
    for (line, kind) in BAD_REQUEST_LINES {
        let wire = format!("{line}\r\nHost: h\r\n\r\n");
        assert_eq!(rejected(wire.as_bytes()), Some(kind), "{line:?}");
        let (_, head) = parse(wire.as_bytes(), wire.len(), &HeadLimits::default());
        let shown = line.split('\r').next().unwrap_or_default();
        assert!(
            head.request_line()
                .starts_with(shown.trim_start_matches('\n').as_bytes()),
            "{line:?}"
        );
    }
}

/// What is wrong in the header lines of a request that is otherwise good.
#[rustfmt::skip]
const BAD_FIELDS: [(&str, RejectKind); 68] = {
    use RejectKind::*;
    [
        (" A: b", InvalidFieldLine), ("\tA: b", InvalidFieldLine), (": b", InvalidFieldLine), (":", InvalidFieldLine),
        ("A : b", InvalidFieldLine), ("A\t: b", InvalidFieldLine), ("A b: c", InvalidFieldLine), ("A b", InvalidFieldLine),
        ("A\0: b", InvalidFieldLine), ("A\x01: b", InvalidFieldLine), ("A\x1f: b", InvalidFieldLine), ("A\x7f: b", InvalidFieldLine),
        ("\0", InvalidFieldLine), ("\x7f: b", InvalidFieldLine), ("A: b\0", InvalidFieldLine), ("A: \0", InvalidFieldLine),
        ("A:\0b", InvalidFieldLine), ("A: b \0", InvalidFieldLine), ("A: b\rc", InvalidFieldLine), ("A: \rb", InvalidFieldLine),
        ("A\rB: c", InvalidFieldLine), ("\rA: b", InvalidFieldLine), ("A: b\r\n c", InvalidFieldLine), ("A: b\r\n\tc", InvalidFieldLine),
        ("A: b\n\x0bc: d", InvalidFieldLine), ("A.B\0: c", InvalidFieldLine), ("<a b>: c", InvalidFieldLine), ("\r", InvalidFieldLine),
        ("A: b\r", InvalidFieldLine), ("A\r", InvalidFieldLine), ("A: \r\r", InvalidFieldLine),
        ("Connection: host", InvalidConnection), ("Connection: close\r\nConnection: a,X-Forwarded-By", InvalidConnection),
        ("Connection: cookie,forwarded", InvalidConnection),
        ("Host: a", DuplicateField(KnownField::Host)), ("host: a", DuplicateField(KnownField::Host)), ("HOST:", DuplicateField(KnownField::Host)),
        ("Content-Length: 1\r\nContent-Length: 1", DuplicateField(KnownField::ContentLength)),
        ("Content-Length: 1\r\ncontent-length: 2", DuplicateField(KnownField::ContentLength)),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", DuplicateField(KnownField::TransferEncoding)),
        ("If-Match: a\r\nIf-Match: b", DuplicateField(KnownField::IfMatch)),
        ("If-None-Match: a\r\nIf-None-Match: b", DuplicateField(KnownField::IfNoneMatch)),
        ("If-Modified-Since: a\r\nIf-Modified-Since: b", DuplicateField(KnownField::IfModifiedSince)),
        ("If-Unmodified-Since: a\r\nIf-Unmodified-Since: b", DuplicateField(KnownField::IfUnmodifiedSince)),
        ("If-Range: a\r\nIf-Range: b", DuplicateField(KnownField::IfRange)),
        ("Expect: a\r\nExpect: b", DuplicateField(KnownField::Expect)),
        ("Authorization: a\r\nAuthorization: b", DuplicateField(KnownField::Authorization)),
        ("Proxy-Authorization: a\r\nProxy-Authorization: b", DuplicateField(KnownField::ProxyAuthorization)),
        ("Content-Range: a\r\nContent-Range: b", DuplicateField(KnownField::ContentRange)),
        ("Content-Length:", InvalidContentLength), ("Content-Length", InvalidContentLength), ("Content-Length: x", InvalidContentLength),
        ("Content-Length: -1", InvalidContentLength), ("Content-Length: +1", InvalidContentLength), ("Content-Length: 1,1", InvalidContentLength),
        ("Content-Length: 0x1", InvalidContentLength), ("Content-Length: 1 1", InvalidContentLength), ("Content-Length: 9223372036854775808", InvalidContentLength),
        ("Transfer-Encoding: identity", UnknownTransferEncoding), ("Transfer-Encoding: gzip, chunked", UnknownTransferEncoding),
        ("Transfer-Encoding: chunked, chunked", UnknownTransferEncoding), ("Transfer-Encoding: chunked;q=1", UnknownTransferEncoding),
        ("Transfer-Encoding: xchunked", UnknownTransferEncoding), ("Transfer-Encoding: \x0bchunked", UnknownTransferEncoding),
        ("Transfer-Encoding:", UnknownTransferEncoding), ("Transfer-Encoding: \"chunked\"", UnknownTransferEncoding),
        ("Content-Length: 5\r\nTransfer-Encoding: chunked", LengthAndTransferEncoding), ("Transfer-Encoding: Chunked\r\nContent-Length: 0", LengthAndTransferEncoding),
    ]
};

#[test]
fn malformed_and_contradictory_fields_are_refused() {
    for (fields, kind) in BAD_FIELDS {
        let wire = format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n\r\n");
        assert_eq!(rejected(wire.as_bytes()), Some(kind), "{fields:?}");
    }
    assert_eq!(
        rejected(b"GET / HTTP/1.1\r\nA: b\r\n\r\n"),
        Some(RejectKind::MissingHost)
    );
    assert_eq!(rejected(b"GET / HTTP/1.0\r\n\r\n"), None);
    let chunked_10 = b"GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(
        rejected(chunked_10),
        Some(RejectKind::TransferEncodingInHttp10)
    );
    assert_eq!(
        rejected(b"TRACE / HTTP/1.1\r\nHost: h\r\n\r\n"),
        Some(RejectKind::TraceNotAllowed)
    );
    assert_eq!(
        rejected(b"CONNECT h:1 HTTP/1.1\r\nHost: h\r\n\r\n"),
        Some(RejectKind::ConnectNotAllowed)
    );
}

#[test]
fn connect_is_allowed_only_without_body_in_11() {
    let check = |wire: &str| complete(wire).check(true).map_err(|reject| reject.kind);
    assert_eq!(
        check("CONNECT h:1 HTTP/1.1\r\nHost: h\r\n\r\n"),
        Ok(RequestFraming::None)
    );
    assert_eq!(
        check("CONNECT h:1 HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n"),
        Ok(RequestFraming::Length(0))
    );
    assert_eq!(
        check("CONNECT h:1 HTTP/1.0\r\nHost: h\r\n\r\n"),
        Err(RejectKind::ConnectNotAllowed)
    );
    let body = "CONNECT h:1 HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\n";
    assert_eq!(check(body), Err(RejectKind::ConnectWithBody));
}

#[test]
fn good_fields_are_kept_as_sent() {
    for (line, name, value) in [
        ("A:b", "A", "b"),
        ("A:   b  c \t ", "A", "b  c"),
        ("A:\tb", "A", "b"),
        ("A:", "A", ""),
        ("A: ", "A", ""),
        ("A", "A", ""),
        ("A: :b:", "A", ":b:"),
        ("1-2: 3", "1-2", "3"),
        ("A: \u{e9}\u{1}\u{7f}", "A", "\u{e9}\u{1}\u{7f}"),
    ] {
        let head = complete(&format!("GET / HTTP/1.0\r\n{line}\r\n\r\n"));
        let fields: Vec<_> = head.fields.iter().collect();
        assert_eq!(fields, [(name.as_bytes(), value.as_bytes())], "{line:?}");
    }
}

#[test]
fn invalid_names_are_ignored_or_kept_as_configured() {
    let wire = b"GET / HTTP/1.0\r\na_b: 1\r\n_c: 2\r\nd.e: 3\r\n<f>: 4\r\n\xe9: 5\r\ng: 6\r\n\r\n";
    let names = |underscores_in_headers, invalid_headers| {
        let limits = HeadLimits {
            underscores_in_headers,
            invalid_headers,
            ..HeadLimits::default()
        };
        let (result, head) = parse(wire, 5, &limits);
        assert_eq!(result, Ok(RequestProgress::Complete(wire.len())));
        let names: Vec<_> = head
            .fields
            .iter()
            .map(|(name, _)| String::from_utf8_lossy(name).into_owned())
            .collect();
        (names.join(" "), head.ignored().count())
    };
    let kept = "a_b _c d.e <f> \u{fffd} g".to_string();
    assert_eq!(
        names(UnderscorePolicy::Invalid, InvalidHeaders::Ignored),
        ("g".to_string(), 5)
    );
    assert_eq!(
        names(UnderscorePolicy::Allowed, InvalidHeaders::Ignored),
        ("a_b _c g".to_string(), 3)
    );
    assert_eq!(
        names(UnderscorePolicy::Invalid, InvalidHeaders::Kept),
        (kept.clone(), 0)
    );
    assert_eq!(
        names(UnderscorePolicy::Allowed, InvalidHeaders::Kept),
        (kept, 0)
    );
    let (_, head) = parse(wire, 5, &HeadLimits::default());
    assert_eq!(head.ignored().next(), Some(&b"a_b: 1"[..]));
}

#[test]
fn an_ignored_name_is_never_taken_for_a_known_one() {
    let head =
        complete("GET / HTTP/1.0\r\nContent_Length: 5\r\nTransfer-Encoding.: chunked\r\n\r\n");
    assert_eq!(head.check(false), Ok(RequestFraming::None));
}

#[test]
fn ignored_lines_are_remembered_up_to_a_bound() {
    let wire = format!(
        "GET / HTTP/1.0\r\n{}\r\n",
        "a.b: c\r\n".repeat(RequestHead::MAX_IGNORED + 1)
    );
    assert_eq!(complete(&wire).ignored().count(), RequestHead::MAX_IGNORED);
}

fn small() -> HeadLimits {
    HeadLimits {
        client_header_buffer_size: 64,
        large_client_header_buffers: 2,
        large_client_header_buffer_size: 128,
        max_headers: 5,
        ..HeadLimits::default()
    }
}

/// The status for a request, in whole and byte by byte; 200 if it is complete.
fn limited(wire: &[u8], limits: &HeadLimits) -> u16 {
    let look = |step| match parse(wire, step, limits).0 {
        Ok(RequestProgress::Complete(_)) => 200,
        Ok(_) => 0,
        Err(reject) => reject.status(),
    };
    let whole = look(wire.len());
    assert_eq!(look(1), whole, "{:?}", String::from_utf8_lossy(wire));
    whole
}

#[test]
fn a_request_line_fits_into_a_large_buffer_or_is_too_long() {
    let request = |line: usize| {
        let path = "a".repeat(line - "GET / HTTP/1.0\r\n".len());
        format!("GET /{path} HTTP/1.0\r\n\r\n").into_bytes()
    };
    for (length, status) in [
        (64, 200),
        (65, 200),
        (127, 200),
        (128, 200),
        (129, 414),
        (1000, 414),
    ] {
        assert_eq!(limited(&request(length), &small()), status, "{length}");
    }
    // A large first buffer counts too.
    let limits = HeadLimits {
        client_header_buffer_size: 256,
        ..small()
    };
    for (length, status) in [(256, 200), (257, 414)] {
        assert_eq!(limited(&request(length), &limits), status, "{length}");
    }
    // An unfinished line is refused as soon as no buffer could hold it.
    assert_eq!(limited(&request(129)[..128], &small()), 414);
    assert_eq!(limited(&request(129)[..127], &small()), 0);
}

#[test]
fn a_header_line_fits_into_a_large_buffer_or_is_too_long() {
    let request = |line: usize| {
        let value = "b".repeat(line - "A: \r\n".len());
        format!("GET / HTTP/1.0\r\nA: {value}\r\n\r\n").into_bytes()
    };
    for (length, status) in [(46, 200), (47, 200), (126, 200), (128, 200), (129, 494)] {
        assert_eq!(limited(&request(length), &small()), status, "{length}");
    }
    let (result, head) = parse(&request(140), 1, &small());
    let line = result.expect_err("too long").log_line(&head);
    assert!(
        line.starts_with(b"client sent too long header line: \"A: bbb")
            && line.ends_with(b"b...\"")
    );
}

/// A TLS client on a plain port, or one that speaks another protocol, sends no line end and waits.
#[test]
fn what_can_never_become_a_request_is_refused_at_once() {
    for (wire, kind) in [
        (&b"\x16\x03\x01\x02\x00\x01"[..], RejectKind::InvalidMethod),
        (b"get", RejectKind::InvalidMethod),
        (b" ", RejectKind::InvalidMethod),
        (b"SSH-2.0", RejectKind::InvalidMethod),
        (b"GET /\x01", RejectKind::InvalidRequest),
        (b"GET /\x01 HTTP", RejectKind::InvalidRequest),
        (b"GET / HTTP/1.1\r\nA: b\0", RejectKind::InvalidFieldLine),
        (b"GET / HTTP/1.1\r\n A", RejectKind::InvalidFieldLine),
        (b"GET / HTTP/1.1\r\n:", RejectKind::InvalidFieldLine),
    ] {
        assert_eq!(
            rejected(wire),
            Some(kind),
            "{:?}",
            String::from_utf8_lossy(wire)
        );
    }
}

#[test]
fn an_abandoned_head_is_readable_as_far_as_it_came() {
    for (wire, line, host) in [
        (&b""[..], &b""[..], None),
        (b"\r\n", b"", None),
        (b"GET /a", b"GET /a", None),
        (b"GET /a HTTP/1.1\r\nHo", b"GET /a HTTP/1.1", None),
        (
            b"GET /a HTTP/1.1\r\nHost: h\r\nA",
            b"GET /a HTTP/1.1",
            Some(&b"h"[..]),
        ),
    ] {
        let (mut parser, mut head) = (RequestParser::new(), RequestHead::new());
        assert_eq!(
            parser.parse(wire, &HeadLimits::default(), &mut head),
            Ok(RequestProgress::Partial)
        );
        assert_eq!(
            (head.request_line(), head.fields.iter().count() <= 1),
            (&b""[..], true)
        );
        parser.abandon(wire, &mut head);
        assert_eq!(
            (head.request_line(), head.fields.get_known(KnownField::Host)),
            (line, host)
        );
    }
}

#[test]
fn all_large_buffers_together_are_a_limit() {
    let request = |lines: usize, length: usize| {
        let line = format!("A: {}\r\n", "b".repeat(length - 5));
        format!("GET / HTTP/1.0\r\n{}\r\n", line.repeat(lines)).into_bytes()
    };
    // 16 bytes of request line leave 48 in the first buffer; then two of 128.
    assert_eq!(limited(&request(2, 120), &small()), 200);
    assert_eq!(limited(&request(3, 120), &small()), 494);
    // The end of the head must fit as well.
    assert_eq!(limited(&request(2, 127), &small()), 494);
    assert_eq!(limited(&request(2, 128), &small()), 494);
    assert!(
        parse(&request(2, 128), 1, &small())
            .0
            .is_err_and(|reject| reject.lingers())
    );
}

#[test]
fn the_number_of_fields_is_limited() {
    let request =
        |count: usize| format!("GET / HTTP/1.0\r\n{}\r\n", "A: b\r\n".repeat(count)).into_bytes();
    assert_eq!(limited(&request(5), &small()), 200);
    assert_eq!(limited(&request(6), &small()), 494);
    // Ignored lines do not count.
    let ignored =
        b"GET / HTTP/1.0\r\na.b: c\r\na.b: c\r\nA: b\r\nA: b\r\nA: b\r\nA: b\r\nA: b\r\n\r\n";
    assert_eq!(limited(ignored, &small()), 200);
}

#[test]
fn the_parser_pauses_at_host_when_asked() {
    let wire = b"GET / HTTP/1.1\r\nA: b\r\nHost: example.com \r\nC_D: e\r\n\r\n";
    let mut limits = HeadLimits {
        pause_at_host: true,
        ..HeadLimits::default()
    };
    for step in [1, 10, wire.len()] {
        let (mut parser, mut head, mut end) = (RequestParser::new(), RequestHead::new(), 0);
        let host = loop {
            end = (end + step).min(wire.len());
            match parser.parse(&wire[..end], &limits, &mut head) {
                Ok(RequestProgress::Host(range)) => break range,
                result => assert_eq!(result, Ok(RequestProgress::Partial)),
            }
        };
        assert_eq!(&wire[host], b"example.com");
        limits.underscores_in_headers = UnderscorePolicy::Allowed;
        assert_eq!(
            parser.parse(wire, &limits, &mut head),
            Ok(RequestProgress::Complete(wire.len()))
        );
        assert_eq!(head.fields.get(b"c_d"), Some(&b"e"[..]));
    }
}

#[test]
fn keep_alive_is_what_version_and_connection_say() {
    for (head, keep) in [
        ("HTTP/1.1\r\nHost: h", true),
        ("HTTP/1.0\r\nHost: h", false),
        ("HTTP/1.0\r\nConnection: keep-alive", true),
        ("HTTP/1.0\r\nConnection: Keep-Alive, TE", true),
        ("HTTP/1.1\r\nHost: h\r\nConnection: close", false),
        ("HTTP/1.1\r\nHost: h\r\nConnection: TE , CLOSE", false),
        ("HTTP/1.1\r\nHost: h\r\nConnection: closed", true),
        ("HTTP/1.1\r\nHost: h\r\nConnection: upgrade", true),
        (
            "HTTP/1.1\r\nHost: h\r\nConnection: close\r\nConnection: keep-alive",
            true,
        ),
        (
            "HTTP/1.1\r\nHost: h\r\nConnection: keep-alive\r\nConnection: close",
            false,
        ),
    ] {
        assert_eq!(
            complete(&format!("GET / {head}\r\n\r\n")).wants_keep_alive(),
            keep,
            "{head}"
        );
    }
}

#[test]
fn rejects_are_logged_in_nginx_words() {
    let log = |wire: &str| {
        let (result, head) = parse(wire.as_bytes(), wire.len(), &HeadLimits::default());
        let reject = result.map_or_else(
            |reject| reject,
            |_| head.check(false).expect_err("a reject"),
        );
        String::from_utf8_lossy(&reject.log_line(&head)).into_owned()
    };
    let with = |fields: &str| log(&format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n\r\n"));
    assert_eq!(
        with("foo\x02: x"),
        "client sent invalid header line: \"foo\\x02...\""
    );
    assert_eq!(with(":x"), "client sent invalid header line: \"\\x3a...\"");
    assert_eq!(
        with("HOST: again"),
        "client sent duplicate host header: \"HOST: again\", previous value: \"Host: h\""
    );
    assert_eq!(
        with("Content-Length: 1\r\nContent-Length: 2"),
        "client sent duplicate header line: \"Content-Length: 2\", previous value: \"Content-Length: 1\""
    );
    assert_eq!(
        with("Transfer-Encoding: x"),
        "client sent unknown \"Transfer-Encoding\": \"x\""
    );
    assert_eq!(
        log("GET / HTTP/1.1\r\n\r\n"),
        "client sent HTTP/1.1 request without \"Host\" header"
    );
}

#[test]
fn a_head_can_be_used_again() {
    let (mut parser, mut head) = (RequestParser::new(), RequestHead::new());
    for (wire, target) in [
        ("GET /1 HTTP/1.0\r\na.b: c\r\nX: y\r\n\r\n", "/1"),
        ("POST /2 HTTP/1.0\r\n\r\n", "/2"),
    ] {
        parser.reset();
        head.clear();
        let result = parser.parse(wire.as_bytes(), &HeadLimits::default(), &mut head);
        assert_eq!(result, Ok(RequestProgress::Complete(wire.len())));
        assert_eq!(head.target(), target.as_bytes());
    }
    assert!(head.fields.is_empty() && head.ignored().next().is_none());
}

/// Every text of up to five bytes over the bytes that matter, as request line and as header line:
/// whole and byte by byte agree, and nothing panics.
#[test]
fn every_short_line_is_read_alike_in_any_pieces() {
    let alphabet = b"A/:. \r\n\0";
    let base = alphabet.len() as u64;
    for length in 1..=5u32 {
        for number in 0..base.pow(length) {
            let text: Vec<u8> = (0..length)
                .map(|i| alphabet[(number / base.pow(i) % base) as usize])
                .collect();
            for wire in [
                [&text[..], b"\r\n\r\n"].concat(),
                [b"GET /", &text[..], b"\r\n\r\n"].concat(),
                [b"GET / HTTP/1.0\r\nA", &text[..], b"\r\n\r\n"].concat(),
                [b"GET / HTTP/1.0\r\n", &text[..], b"\r\n\r\n"].concat(),
            ] {
                let outcome = |step| match parse(&wire, step, &HeadLimits::default()) {
                    (Ok(status), head) => Ok((status, format!("{:?}", head.fields))),
                    (Err(reject), _) => Err(reject.kind),
                };
                assert_eq!(
                    outcome(1),
                    outcome(wire.len()),
                    "{:?}",
                    String::from_utf8_lossy(&wire)
                );
            }
        }
    }
}
