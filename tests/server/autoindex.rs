//! `autoindex`: the listing in its four formats.

use weir_tests::{Site, http};

fn site(directives: &str) -> Site {
    let conf = format!("server {{ listen 127.0.0.1:%%PORT%%; autoindex on; {directives} }}");
    http(&conf)
        .file("html/d/b.txt", "four")
        .file("html/d/a<&>.txt", "")
        .file("html/d/with space & 100%", "x")
        .file("html/d/.hidden", "x")
        .file("html/d/ü", "x")
        .folder("html/d/sub")
        .folder("html/d/empty")
}

#[test]
fn the_page_lists_folders_first_and_escapes_names() {
    let reply = site("").start().get("/d/").expect(200);
    let text = reply.text();
    assert_eq!(reply.field("Content-Type"), "text/html");
    assert!(text.contains("<title>Index of /d/</title>"), "{text}");
    assert!(text.contains("<a href=\"../\">../</a>"), "{text}");
    assert!(text.contains("<a href=\"sub/\">sub/</a>"), "{text}");
    assert!(
        text.contains("<a href=\"a%3C%26%3E.txt\">a&lt;&amp;&gt;.txt</a>"),
        "{text}"
    );
    assert!(
        text.contains("<a href=\"with%20space%20%26%20100%25\">with space &amp; 100%</a>"),
        "{text}"
    );
    assert!(!text.contains("hidden"), "{text}");
    let at = |needle: &str| {
        text.find(needle)
            .unwrap_or_else(|| panic!("{needle} is missing in {text}"))
    };
    assert!(at("empty/") < at("sub/") && at("sub/") < at("a%3C") && at("a%3C") < at("b.txt"));
}

#[test]
fn sizes_are_exact_or_rounded() {
    let big = vec![b'x'; 50_000];
    let exact = site("").file("html/d/big", &big).start().get("/d/").text();
    assert!(
        exact
            .lines()
            .any(|line| line.contains(">big<") && line.ends_with(" 50000")),
        "{exact}"
    );
    let rounded = site("autoindex_exact_size off;")
        .file("html/d/big", &big)
        .start()
        .get("/d/")
        .text();
    assert!(
        rounded
            .lines()
            .any(|line| line.contains(">big<") && line.ends_with(" 49K")),
        "{rounded}"
    );
}

#[test]
fn times_are_utc_with_month_names() {
    let text = site("").start().get("/d/").text();
    let line = text
        .lines()
        .find(|line| line.contains(">b.txt<"))
        .unwrap_or_default()
        .to_owned();
    let date = line.split_whitespace().rev().nth(2).unwrap_or_default();
    let parts: Vec<&str> = date.split('-').collect();
    assert!(
        parts.len() == 3 && parts[0].len() == 2 && parts[1].len() == 3 && parts[2].len() == 4,
        "{line}"
    );
}

#[test]
fn json_xml_and_jsonp() {
    let json = site("autoindex_format json;")
        .start()
        .get("/d/")
        .expect(200);
    assert_eq!(json.field("Content-Type"), "application/json");
    let text = json.text();
    assert!(
        text.starts_with("[\r\n{ \"name\":\"empty\", \"type\":\"directory\", \"mtime\":\""),
        "{text}"
    );
    assert!(
        text.contains("{ \"name\":\"b.txt\", \"type\":\"file\", \"mtime\":\""),
        "{text}"
    );
    assert!(text.contains(" GMT\", \"size\":4 }"), "{text}");
    assert!(text.trim_end().ends_with(']'), "{text}");

    let server = site("autoindex_format jsonp;").start();
    let jsonp = server.get("/d/?callback=call").expect(200);
    assert_eq!(jsonp.field("Content-Type"), "application/javascript");
    assert!(
        jsonp.text().starts_with("/* callback */\r\ncall(["),
        "{}",
        jsonp.text()
    );
    assert!(jsonp.text().ends_with(");"), "{}", jsonp.text());

    let xml = site("autoindex_format xml;").start().get("/d/").expect(200);
    assert_eq!(xml.field("Content-Type"), "text/xml; charset=utf-8");
    let text = xml.text();
    assert!(
        text.starts_with("<?xml version=\"1.0\"?>\r\n<list>\r\n<directory mtime=\""),
        "{text}"
    );
    assert!(text.contains("size=\"4\">b.txt</file>"), "{text}");
    assert!(text.contains("a&lt;&amp;&gt;.txt"), "{text}");
}

#[test]
fn long_names_are_cut_in_the_text_only() {
    let long = "n".repeat(70);
    let text = site("")
        .file(&format!("html/d/{long}"), "x")
        .start()
        .get("/d/")
        .text();
    assert!(
        text.contains(&format!("<a href=\"{long}\">{}..&gt;</a>", &long[..47])),
        "{text}"
    );
}

#[test]
fn an_index_file_wins_and_head_has_no_body() {
    let server = site("").file("html/i/index.html", "the index").start();
    assert_eq!(server.get("/i/").text(), "the index");
    let mut connection = server.connect();
    connection.request("HEAD", "/d/", &[]);
    assert_eq!(connection.reply_to("HEAD").status, 200);
    assert_eq!(connection.get("/i/").text(), "the index");
}

#[test]
fn a_missing_folder_is_not_found() {
    site("").start().answers(&[("/none/", 404, "")]);
}

/// Names are as wide as they have bytes, unless the page says that it is UTF-8.
#[test]
fn columns_count_bytes_unless_the_page_is_utf_8() {
    let long = "\u{444}".repeat(51);
    for (charset, width, cut) in [
        ("", 48, None),
        ("charset koi8-r;", 48, None),
        ("charset utf-8;", 49, Some(&long[..94])),
        (
            "charset UTF-8; source_charset utf-8;",
            49,
            Some(&long[..94]),
        ),
    ] {
        let site = site(charset).file(&format!("html/d/{long}"), "x");
        let body = site.start().get("/d/").expect(200).body;
        let line = format!("<a href=\"%C3%BC\">\u{fc}</a>{} ", " ".repeat(width));
        let has = |text: &[u8]| body.windows(text.len()).any(|window| window == text);
        assert!(has(line.as_bytes()), "{charset}");
        assert!(!has(format!("{line} ").as_bytes()), "{charset}");
        // A name that is cut to 47 bytes ends within a letter.
        let shown = cut.map_or(&long.as_bytes()[..47], str::as_bytes);
        assert!(has(&[b">", shown, b"..&gt;</a> "].concat()), "{charset}");
    }
}
