//! `flv` and `mp4`: players that begin in the middle. `browser`: variables about browsers. `msie_refresh`.

use weir_tests::http;

#[test]
fn an_flv_file_begins_at_a_byte() {
    let server = http("server { listen 127.0.0.1:%%PORT%%; location / { flv; } }")
        .file("html/a.flv", "0123456789")
        .file("html/index.html", "index")
        .start();
    let whole = server.get("/a.flv").expect(200);
    assert_eq!(whole.text(), "0123456789");
    let part = server.get("/a.flv?start=6").expect(200);
    assert_eq!(part.body, b"FLV\x01\x05\0\0\0\x09\0\0\0\x006789");
    for odd in ["0", "10", "x", "-1"] {
        assert_eq!(
            server.get(&format!("/a.flv?start={odd}")).text(),
            "0123456789",
            "{odd}"
        );
    }
    let range = server
        .get_with("/a.flv?start=6", &["Range: bytes=12-14"])
        .expect(206);
    assert_eq!(range.body, b"\x0067");
    assert_eq!(range.field("Content-Range"), "bytes 12-14/17");
    server.answers(&[("/", 200, "index"), ("/none.flv", 404, "")]);
    assert_eq!(server.request("POST", "/a.flv", &[]).status, 405);
}

/// Also where the handlers of one are outside and those of another inside.
#[test]
fn the_last_directive_that_makes_a_response_counts() {
    let server = http(
        "server { listen 127.0.0.1:%%PORT%%;
            location /pixel/ { flv; mp4; empty_gif; }
            location /film/ { empty_gif; flv; }
            location /status/ { flv; stub_status; } }",
    )
    .file("html/pixel/a.flv", "0123456789")
    .file("html/film/a.flv", "0123456789")
    .file("html/film/index.html", "index")
    .file("html/status/a.flv", "0123456789")
    .start();
    let pixel = server.get("/pixel/a.flv").expect(200);
    assert_eq!(pixel.field("Content-Type"), "image/gif");
    assert_eq!(
        server.get("/film/a.flv?start=6").body,
        b"FLV\x01\x05\0\0\0\x09\0\0\0\x006789"
    );
    // What it leaves to others is not the picture either.
    server.answers(&[("/film/", 200, "index"), ("/film/none", 404, "")]);
    assert!(
        server
            .get("/status/a.flv")
            .text()
            .starts_with("Active connections")
    );
}

/// A box of an MP4 file.
fn box_of(name: &str, content: &[u8]) -> Vec<u8> {
    let mut out = (content.len() as u32 + 8).to_be_bytes().to_vec();
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(content);
    out
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// A film of six samples, a second and one byte each, one in a chunk; its data comes before the index.
fn film() -> Vec<u8> {
    let mut file = box_of("ftyp", b"isom\0\0\0\0");
    let first = file.len() as u32 + 8;
    file.extend(box_of("mdat", b"abcdef"));
    let offsets: Vec<u32> = [0, 6]
        .into_iter()
        .chain((0..6).map(|n| first + n))
        .collect();
    let tables = [
        box_of("stts", &words(&[0, 1, 6, 1])),
        box_of("stsc", &words(&[0, 1, 1, 1, 1])),
        box_of("stsz", &words(&[0, 0, 6, 1, 1, 1, 1, 1, 1])),
        box_of("stco", &words(&offsets)),
    ];
    let information = box_of("minf", &box_of("stbl", &tables.concat()));
    let media = box_of(
        "mdia",
        &[box_of("mdhd", &words(&[0, 0, 0, 1, 6, 0])), information].concat(),
    );
    let mut header = words(&[0, 0, 0, 1, 0, 6000]);
    header.resize(84, 0);
    let track = box_of("trak", &[box_of("tkhd", &header), media].concat());
    let mut movie = words(&[0, 0, 0, 1000, 6000]);
    movie.resize(100, 0);
    file.extend(box_of("moov", &[box_of("mvhd", &movie), track].concat()));
    file
}

#[test]
fn an_mp4_file_begins_and_ends_at_times() {
    let film = film();
    let server = http("server { listen 127.0.0.1:%%PORT%%; location / { mp4; } }")
        .file("html/a.mp4", &film)
        .file("html/text.mp4", "this is no film")
        .start();
    assert_eq!(server.get("/a.mp4").expect(200).body, film);
    assert_eq!(server.get("/a.mp4?start=x").expect(200).body, film);
    for (args, data) in [
        ("start=2", "cdef"),
        ("start=2.000001", "cdef"),
        ("start=1&end=4", "bcd"),
        ("end=2", "ab"),
        ("start=5", "f"),
    ] {
        let reply = server.get(&format!("/a.mp4?{args}")).expect(200);
        let tail = [
            &(data.len() as u32 + 8).to_be_bytes()[..],
            b"mdat",
            data.as_bytes(),
        ]
        .concat();
        assert!(
            reply.body.ends_with(&tail),
            "{args}: {:?}",
            String::from_utf8_lossy(&reply.body)
        );
        // The first chunk is where the index says it is.
        let at = reply
            .body
            .windows(4)
            .position(|name| name == b"stco")
            .expect("there is an index")
            + 12;
        let offset = u32::from_be_bytes(*reply.body[at..].first_chunk().expect("there is a chunk"));
        assert_eq!(reply.body[offset as usize..], *data.as_bytes(), "{args}");
    }
    server.answers(&[
        ("/a.mp4?start=7", 500, ""),
        ("/text.mp4?start=1", 500, ""),
        ("/none.mp4?start=1", 404, ""),
    ]);
}

#[test]
fn browsers_are_old_or_new() {
    let conf = "server { listen 127.0.0.1:%%PORT%%;
        modern_browser gecko 1.5; modern_browser msie 6.0; ancient_browser_value old;
        location / { return 200 '$modern_browser|$ancient_browser|$msie'; }
        location /unlisted { modern_browser unlisted; ancient_browser Lynx netscape4;
            return 200 '$modern_browser|$ancient_browser|$msie'; }
    }";
    let server = http(conf).start();
    for (target, agent, expected) in [
        (
            "/",
            "Mozilla/5.0 (X11; U; rv:1.8.0.5) Gecko/20060729",
            "1||",
        ),
        ("/", "Mozilla/5.0 (X11; U; rv:1.4) Gecko/20060729", "|old|"),
        (
            "/",
            "Mozilla/4.0 (compatible; MSIE 6.0; Windows NT 5.1)",
            "1||1",
        ),
        (
            "/",
            "Mozilla/4.0 (compatible; MSIE 6.0; X11) Opera 7.50  [en]",
            "|old|",
        ),
        ("/", "curl", "|old|"),
        ("/unlisted", "curl", "1||"),
        ("/unlisted", "Lynx/2.8", "|old|"),
        ("/unlisted", "Mozilla/4.72 [en] (X11; U)", "|old|"),
    ] {
        let reply = server.get_with(target, &[&format!("User-Agent: {agent}")]);
        assert_eq!(reply.text(), expected, "{target} {agent}");
    }
}

#[test]
fn msie_refresh_makes_a_page_of_a_redirect() {
    let conf = "server { listen 127.0.0.1:%%PORT%%; msie_refresh on; location / { return 302 \"/a b\"; } }";
    let server = http(conf).start();
    let page = server.get_with("/", &["User-Agent: MSIE 6.0"]).expect(200);
    assert!(page.text().contains("URL=/a%20b\""), "{}", page.text());
    assert!(!page.has("Location"));
    assert_eq!(server.get("/").status, 302);
}
