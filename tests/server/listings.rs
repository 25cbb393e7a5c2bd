//! `autoindex_style pretty`: the page for people. nginx has no such page.

use weir_tests::{Site, http, skip_on_oracle};

fn site() -> Site {
    http("server { listen 127.0.0.1:%%PORT%%; autoindex on; autoindex_style pretty; }")
        .file("html/a & b/file <1>.txt", "four")
        .file("html/a & b/picture.PNG", vec![0; 1536])
        .folder("html/a & b/below")
        .folder("html/empty")
}

#[test]
fn the_page_stands_by_itself() {
    if skip_on_oracle("nginx has one style") {
        return;
    }
    let reply = site().start().get("/a%20&%20b/").expect(200);
    assert_eq!(reply.field("Content-Type"), "text/html; charset=utf-8");
    let text = reply.text();
    for wanted in [
        "<title>Index of /a &amp; b/</title>",
        "<a href=\"../\">/</a> a &amp; b</nav>",
        "<a href=\"below/\">below/</a>",
        "<a href=\"file%20%3C1%3E.txt\">file &lt;1&gt;.txt</a>",
        ">4 B<",
        ">1.5 KB<",
        "1 directory, 2 files, 1.5 KB",
        "prefers-color-scheme",
    ] {
        assert!(text.contains(wanted), "{wanted} is missing in {text}");
    }
    // Nothing is fetched from anywhere.
    assert!(
        !text.contains("http:") && !text.contains("https:") && !text.contains("src="),
        "{text}"
    );
    assert!(text.find("below/").expect("a folder") < text.find("file &lt;").expect("a file"));
}

#[test]
fn an_empty_folder_says_so() {
    if skip_on_oracle("nginx has one style") {
        return;
    }
    let text = site().start().get("/empty/").expect(200).text();
    assert!(text.contains("This directory is empty."), "{text}");
}
