//! `slice`: large responses in pieces, proxied and cached.

use weir_tests::{Server, http};

const CONTENT: &str = "0123456789abcdef";

/// A front that slices by 4, before a server with `/t`; `/cache/` has a cache.
fn sliced() -> Server {
    http(
        "log_format origin '$uri $http_range $status';
         proxy_cache_path cache keys_zone=one:1m;
         proxy_cache_key $uri$is_args$args$slice_range;
         server { listen 127.0.0.1:%%PORT%%;
            slice 4;
            proxy_set_header Range $slice_range;
            location /plain/ { proxy_pass http://127.0.0.1:%%PORT1%%/; }
            location /cache/ {
                proxy_pass http://127.0.0.1:%%PORT1%%/;
                proxy_cache one;
                proxy_cache_valid 200 206 1h;
                add_header X-Cache $upstream_cache_status;
            }
         }
         server { listen 127.0.0.1:%%PORT1%%; access_log origin.log origin;
            location /changes { add_header Content-Range \"bytes 0-3/100\"; add_header ETag $http_range; return 206 abcd; }
            location /short { add_header Content-Range \"bytes 0-2/100\"; return 206 abc; }
         }",
    )
    .file("html/t", CONTENT)
    .start()
}

fn part(server: &Server, target: &str, range: &str) -> (u16, String) {
    let reply = server.get_with(target, &[&format!("Range: bytes={range}")]);
    (reply.status, reply.text())
}

#[test]
fn pieces_make_the_whole_and_any_part() {
    let server = sliced();
    for folder in ["/plain/t", "/cache/t"] {
        let whole = server.get(folder).expect(200);
        assert_eq!(whole.text(), CONTENT);
        assert_eq!(whole.field("Content-Length"), "16");
        for (range, expected) in [
            ("0-0", "0"),
            ("3-4", "34"),
            ("5-", "56789abcdef"),
            ("-3", "def"),
            ("12-100", "cdef"),
            ("0-15", CONTENT),
        ] {
            let text = expected.to_owned();
            assert_eq!(
                part(&server, folder, range),
                (206, text),
                "{folder} {range}"
            );
        }
        assert_eq!(part(&server, folder, "1-1,3-3"), (200, CONTENT.to_owned()));
        assert_eq!(part(&server, folder, "16-").0, 416);
        let head = server.request("HEAD", folder, &[]);
        assert_eq!((head.status, head.field("Content-Length")), (200, "16"));
    }
}

#[test]
fn a_part_costs_only_its_pieces_and_they_are_cached() {
    let server = sliced();
    let cached = |range: &str| {
        let reply = server.get_with("/cache/t", &[&format!("Range: bytes={range}")]);
        (reply.field("X-Cache").to_owned(), reply.text())
    };
    let told = |status: &str, text: &str| (status.to_owned(), text.to_owned());
    assert_eq!(cached("9-9"), told("MISS", "9"));
    assert_eq!(cached("8-11"), told("HIT", "89ab"));
    assert_eq!(cached("10-13"), told("HIT", "abcd"));
    assert_eq!(cached("12-12"), told("HIT", "c"));
    let lines = server.lines("origin.log", 2);
    assert_eq!(lines, ["/t bytes=8-11 206", "/t bytes=12-15 206"]);
}

#[test]
fn conditions_are_of_the_whole() {
    let server = sliced();
    let etag = server.get("/cache/t").field("ETag").to_owned();
    let reply = server.get_with("/cache/t", &[&format!("If-None-Match: {etag}")]);
    assert_eq!(reply.status, 304);
    let with = |tag: &str| {
        let reply = server.get_with(
            "/cache/t",
            &["Range: bytes=6-7", &format!("If-Range: {tag}")],
        );
        (reply.status, reply.text())
    };
    assert_eq!(with(&etag), (206, "67".to_owned()));
    assert_eq!(with("\"other\""), (200, CONTENT.to_owned()));
}

#[test]
fn pieces_of_different_things_are_not_joined() {
    let server = sliced();
    for target in ["/plain/changes", "/plain/short"] {
        let request = format!("GET {target} HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n");
        let request = request.replace("\\r\\n", "\r\n");
        assert!(server.raw_or_closed(request).is_none(), "{target}");
    }
}
