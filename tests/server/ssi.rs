//! `ssi`: commands in pages.

use std::time::{Duration, Instant};

use weir_tests::{Server, Site, http, is_oracle, skip_on_oracle};

fn site(directives: &str) -> Site {
    let conf = format!(
        "types {{ text/html html; text/plain txt; }}
        server {{
            listen 127.0.0.1:%%PORT%%;
            ssi on;
            {directives}
            location /plain/ {{ ssi off; alias %%DIR%%/html/; }}
            location /status/ {{ return 503; }}
            location /empty/ {{ return 204; }}
            location /none/ {{ alias %%DIR%%/none/; }}
        }}"
    );
    http(&conf)
        .file("html/x.html", "[x:<!--#echo var=\"arg_a\" -->]")
        .file("html/folder/y.html", "[y]")
}

/// What comes of pages, each served with the arguments `a=1&b=2`.
fn becomes(site: Site, pages: &[(&str, &str)]) -> Server {
    let mut site = site;
    for (index, (page, _)) in pages.iter().enumerate() {
        site = site.file(&format!("html/{index}.html"), page);
    }
    let server = site.start();
    for (index, (page, text)) in pages.iter().enumerate() {
        let reply = server.get(&format!("/{index}.html?a=1&b=2"));
        assert_eq!(reply.text(), *text, "{page}");
    }
    server
}

#[test]
fn echo_and_set() {
    becomes(
        site(""),
        &[
            ("<!--#echo var=\"arg_a\" -->", "1"),
            ("<!--#echo var='arg_a'-->", "1"),
            ("<!--#\n  echo\n\tvar = \"ARG_A\" -->", "1"),
            ("<!--#echo var=\"arg_none\" -->", "(none)"),
            ("<!--#echo var=\"unknown_name\" -->", "(none)"),
            ("<!--#echo var=\"arg_none\" default=\"d\" -->", "d"),
            ("a<!--#echo var=\"arg_none\" default=\"\" -->b", "ab"),
            (
                "<!--#set var=\"v\" value=\"<$arg_a>\" --><!--#echo var=\"v\" -->",
                "&lt;1&gt;",
            ),
            (
                "<!--#set var=\"v\" value=\"<&>\" --><!--#echo var=\"v\" encoding=\"none\" --><!--#echo var=\"v\" -->",
                "<&><&>",
            ),
            (
                "<!--#set var=\"v\" value=\"< >\" --><!--#echo var=\"v\" encoding=\"url\" -->",
                "%3C%20%3E",
            ),
            (
                "<!--#set var=\"v\" value=\"${arg_a}0\" --><!--#echo var=\"V\" -->",
                "10",
            ),
            (
                "<!--#set var=\"v\" value=\"\\$arg_a\\x\\\\\" --><!--#echo var=\"v\" -->",
                "$arg_a\\x\\",
            ),
            (
                "<!--#set var=\"v\" value=\"a\" --><!--#set var=\"v\" value=\"${v}b\" --><!--#echo var=\"v\" -->",
                "ab",
            ),
        ],
    );
}

#[test]
fn text_that_only_looks_like_a_command_is_text() {
    let pages = [
        "a < b",
        "<",
        "<!",
        "<!-- x -->",
        "<<!--x",
        "<!-#x",
        "<!--\n#echo -->",
        "<!--# ",
    ];
    let rows: Vec<_> = pages
        .iter()
        .map(|page| (*page, if *page == "<!--# " { "" } else { *page }))
        .collect();
    // nginx loses the beginning of a mark at the end of a page.
    let rows: Vec<_> = rows
        .into_iter()
        .filter(|(page, _)| !(is_oracle() && matches!(*page, "<" | "<!")))
        .collect();
    becomes(site(""), &rows);
}

#[test]
fn includes_stand_where_they_are_named() {
    becomes(
        site(""),
        &[
            ("<<!--#include virtual=\"/x.html?a=2\" -->>", "<[x:2]>"),
            ("<<!--#include virtual=\"x.html\" -->>", "<[x:(none)]>"),
            ("<<!--#include virtual=\"folder/y.html\" -->>", "<[y]>"),
            ("<<!--#include file=\"folder/y.html\" -->>", "<[y]>"),
            (
                "<<!--#include virtual=\"/%78.html?a=$arg_b\" -->>",
                "<[x:2]>",
            ),
            (
                "<!--#include virtual=\"/plain/x.html\" -->",
                "[x:<!--#echo var=\"arg_a\" -->]",
            ),
            (
                "<!--#include virtual=\"/x.html?a=3\" --><!--#include virtual=\"/folder/y.html\" -->.",
                "[x:3][y].",
            ),
            ("a<!--#include virtual=\"/empty/\" -->b", "ab"),
            (
                "<!--#set var=\"arg_a\" value=\"s\" --><!--#include virtual=\"/x.html\" wait=\"yes\" -->",
                "[x:s]",
            ),
        ],
    );
}

#[test]
fn an_include_becomes_a_variable() {
    becomes(
        site("subrequest_output_buffer_size 10k;"),
        &[
            (
                "<!--#include virtual=\"/folder/y.html\" set=\"v\" -->(<!--#echo var=\"v\" -->)",
                "([y])",
            ),
            (
                "<!--#include virtual=\"/none/\" set=\"v\" -->(<!--#echo var=\"v\" -->)",
                "()",
            ),
        ],
    );
}

#[test]
fn blocks_stand_in_for_what_has_nothing_to_show() {
    let block = "<!--#block name=\"b\" -->block:<!--#echo var=\"arg_a\" --><!--#endblock -->";
    let pages = [
        (
            "<!--#include virtual=\"/none/\" stub=\"b\" -->",
            "block:(none)",
        ),
        (
            "<!--#include virtual=\"/status/?a=7\" stub=\"b\" -->",
            "block:7",
        ),
        (
            "<!--#include virtual=\"/folder/y.html\" stub=\"b\" -->",
            "[y]",
        ),
    ];
    let pages: Vec<_> = pages
        .iter()
        .map(|(page, text)| (format!("{block}{page}"), *text))
        .collect();
    let pages: Vec<_> = pages
        .iter()
        .map(|(page, text)| (page.as_str(), *text))
        .collect();
    becomes(site(""), &pages);
}

#[test]
fn a_block_stands_in_for_no_content() {
    let page = "<!--#block name=\"b\" -->block<!--#endblock -->\
                (<!--#include virtual=\"/empty/?a=7\" stub=\"b\" -->)";
    becomes(site(""), &[(page, "(block)")]);
}

#[test]
fn conditions() {
    let shown = |expression: &str| {
        format!("<!--#if expr=\"{expression}\" -->T<!--#else -->F<!--#endif -->")
    };
    let pages: Vec<(String, &str)> = [
        ("$arg_a", "T"),
        ("$arg_none", "F"),
        ("$arg_a = 1", "T"),
        ("$arg_a=1", "T"),
        ("$arg_a != 1", "F"),
        ("$arg_a = $arg_b", "F"),
        ("a$arg_a = a1", "T"),
        ("$arg_none = ", "T"),
        ("$uri = /\\.html\\$/", "T"),
        ("$uri != /\\.html\\$/", "F"),
        ("$uri = \\/x", "F"),
    ]
    .iter()
    .map(|(expression, text)| (shown(expression), *text))
    .chain([
        (
            "<!--#if expr=\"$arg_none\" -->1<!--#elif expr=\"$arg_b = 2\" -->2<!--#else -->3<!--#endif -->4".to_owned(),
            "24",
        ),
        ("<!--#if expr=\"$arg_none\" --><!--#echo var=\"arg_a\" --><!--#bad --><!--#endif -->.".to_owned(), "."),
    ])
    .collect();
    let pages: Vec<_> = pages
        .iter()
        .map(|(page, text)| (page.as_str(), *text))
        .collect();
    becomes(site(""), &pages);
}

#[test]
fn groups_of_an_expression_are_variables() {
    let page = "<!--#if expr=\"$uri = /^.(.).(?<ending>html)/\" --><!--#echo var=\"1\" -->.\
                <!--#echo var=\"ending\" --><!--#endif -->";
    let server = site("").file("html/z.html", page).start();
    assert_eq!(server.get("/z.html").text(), "z.html");
}

#[test]
fn an_if_may_stand_in_an_if() {
    if skip_on_oracle("nginx knows one level only") {
        return;
    }
    let page = |a: &str, b: &str| {
        format!(
            "<!--#if expr=\"{a}\" -->A<!--#if expr=\"{b}\" -->B<!--#else -->b<!--#endif -->C<!--#else -->a\
             <!--#if expr=\"{b}\" -->D<!--#endif --><!--#endif -->."
        )
    };
    let pages = [
        (page("$arg_a", "$arg_b"), "ABC."),
        (page("$arg_a", "$arg_none"), "AbC."),
        (page("$arg_none", "$arg_b"), "aD."),
        (page("$arg_none", "$arg_none"), "a."),
    ];
    let pages: Vec<_> = pages
        .iter()
        .map(|(page, text)| (page.as_str(), *text))
        .collect();
    becomes(site(""), &pages);
}

const ERROR: &str = "[an error occurred while processing the directive]";

#[test]
fn errors_show_in_their_place() {
    let pages = [
        "<!--#unknown -->",
        "<!--#echo -->",
        "<!--#echo var=\"a\" var=\"b\" -->",
        "<!--#echo name=\"a\" -->",
        "<!--#echo var=a -->",
        "<!--#else -->",
        "<!--#endif -->",
        "<!--#set var=\"a\" value=\"$\" -->",
        "<!--#set var=\"a\" value=\"${x\" -->",
        "<!--#include -->",
        "<!--#include virtual=\"/x.html\" file=\"x.html\" -->",
        "<!--#include virtual=\"/x.html\" wait=\"perhaps\" -->",
        "<!--#include virtual=\"/x.html\" stub=\"none\" -->",
        "<!--#include virtual=\"/../x.html\" -->",
        "<!--#if expr=\"$arg_a + 1\" -->",
        "<!--#if expr=\"$arg_a = /(/\" -->",
    ];
    let texts: Vec<String> = pages.iter().map(|page| format!("a{page}b")).collect();
    let wanted = format!("a{ERROR}b");
    let is_if = |page: &str| page.contains("#if");
    let rows: Vec<_> = texts
        .iter()
        .filter(|page| !is_if(page))
        .map(|page| (page.as_str(), wanted.as_str()))
        .collect();
    let server = becomes(site(""), &rows);
    server.line("error.log", "invalid SSI command: \"unknown\"");
    server.line(
        "error.log",
        "mandatory \"var\" parameter is absent in \"echo\" SSI command",
    );
    server.line("error.log", "unsafe URI \"/../x.html\" was detected");

    becomes(
        site("ssi_silent_errors on;"),
        &[("a<!--#unknown -->b", "ab")],
    );
    becomes(
        site(""),
        &[(
            "<!--#config errmsg=\"(error)\" -->a<!--#unknown -->b",
            "a(error)b",
        )],
    );
}

#[test]
fn long_values_are_errors() {
    let value = "x".repeat(300);
    let page = format!("<!--#set var=\"v\" value=\"{value}\" --><!--#echo var=\"v\" -->");
    let short = format!("{ERROR}(none)");
    becomes(site(""), &[(&page, &short)]);
    becomes(site("ssi_value_length 300;"), &[(&page, &value)]);
}

#[test]
fn dates_are_written_in_the_wanted_form() {
    let server = site("")
        .file(
            "html/date.html",
            "<!--#config timefmt=\"%Y-%m\" --><!--#echo var=\"date_gmt\" -->",
        )
        .file(
            "html/seconds.html",
            "<!--#config timefmt=\"%s\" --><!--#echo var=\"date_local\" -->",
        )
        .file("html/usual.html", "<!--#echo var=\"date_gmt\" -->")
        .start();
    let date = server.get("/date.html").text();
    assert!(
        date.len() == 7 && date.starts_with("20") && date.contains('-'),
        "{date}"
    );
    assert!(
        server
            .get("/seconds.html")
            .text()
            .parse::<u64>()
            .is_ok_and(|seconds| seconds > 1_700_000_000)
    );
    assert!(server.get("/usual.html").text().ends_with(" GMT"));
}

#[test]
fn validators_and_ranges_go_with_the_content() {
    let server = site("location /kept/ { alias %%DIR%%/html/; ssi_last_modified on; }").start();
    let reply = server.get("/x.html").expect(200);
    for field in ["Last-Modified", "ETag", "Accept-Ranges", "Content-Length"] {
        assert!(!reply.has(field), "{field}");
    }
    let reply = server.get("/kept/x.html").expect(200);
    assert!(reply.has("Last-Modified") && reply.field("ETag").starts_with("W/"));
    let reply = server
        .get_with("/x.html", &["Range: bytes=0-0"])
        .expect(200);
    assert_eq!(reply.text(), "[x:(none)]");
    let head = server.request("HEAD", "/x.html", &[]).expect(200);
    assert!(!head.has("Content-Length"));
}

#[test]
fn other_types_are_left_alone() {
    let page = "<!--#echo var=\"arg_a\" -->";
    let server = site("location /all/ { alias %%DIR%%/html/; ssi_types text/plain; }")
        .file("html/a.txt", page)
        .start();
    let reply = server.get("/a.txt").expect(200);
    assert_eq!(reply.text(), page);
    assert!(reply.has("Content-Length") && reply.has("ETag"));
    assert_eq!(server.get("/all/a.txt").text(), "(none)");
}

#[test]
fn a_page_that_includes_itself_comes_to_an_end() {
    let server = site("")
        .file("html/self.html", "x<!--#include virtual=\"/self.html\" -->")
        .start();
    let text = server.get("/self.html").expect(200).text();
    assert!(
        text.starts_with("xxxxxxxxxx") && text.len() < 5_000,
        "{text}"
    );
    server.line(
        "error.log",
        "subrequests cycle while processing \"/self.html\"",
    );
}

#[test]
fn large_pages_with_many_includes_come_whole() {
    let filler = "text between the includes, ".repeat(100);
    let page: String = (0..500)
        .map(|i| format!("{filler}<!--#include virtual=\"/x.html?a={i}\" -->"))
        .collect();
    let wanted: String = (0..500).map(|i| format!("{filler}[x:{i}]")).collect();
    let server = site("output_buffers 1 1k;")
        .file("html/large.html", &page)
        .start();
    let text = server.get("/large.html").expect(200).text();
    assert!(
        text == wanted,
        "{} bytes, wanted {}",
        text.len(),
        wanted.len()
    );
}

#[test]
fn slow_includes_run_side_by_side() {
    let page: String = (0..5)
        .map(|i| format!("<!--#include virtual=\"/slow/?{i}\" -->"))
        .collect();
    let conf = "types { text/html html; }
        server { listen 127.0.0.1:%%PORT%%; ssi on; location /slow/ { proxy_pass http://127.0.0.1:%%PORT1%%/; } }
        server { listen 127.0.0.1:%%PORT1%%; limit_rate 100; limit_rate_after 200; location / { root %%DIR%%/slow; } }";
    let server = http(conf)
        .file("html/page.html", page)
        .file("slow/index.html", "abcdefghij".repeat(10))
        .start();
    let begun = Instant::now();
    let reply = server.get("/page.html").expect(200);
    assert_eq!(reply.body.len(), 500);
    // One after the other they would take five times as long as one.
    assert!(
        begun.elapsed() < Duration::from_secs(4),
        "{:?}",
        begun.elapsed()
    );
}

#[test]
fn a_page_may_be_packed_and_filtered() {
    let conf = "types { text/html html; }
        server { listen 127.0.0.1:%%PORT%%; ssi on; sub_filter one two; sub_filter_once off;
            location /plain/ { ssi off; sub_filter none none; alias %%DIR%%/html/; } }";
    let server = http(conf)
        .file("html/a.html", "one <!--#include virtual=\"/b.html\" --> <!--#include virtual=\"/plain/b.html\" --> one")
        .file("html/b.html", "b:one")
        .start();
    assert_eq!(server.get("/a.html").text(), "two b:two b:one two");
}

#[test]
fn an_include_that_is_too_large_for_a_variable_ends_the_page() {
    let page = "<!--#include virtual=\"/large.html\" set=\"v\" -->(<!--#echo var=\"v\" -->)";
    let server = site("location = /large.html { ssi off; subrequest_output_buffer_size 1k; }")
        .file("html/page.html", page)
        .file("html/large.html", "x".repeat(1025))
        .start();
    assert!(
        server
            .raw_or_closed("GET /page.html HTTP/1.1\r\nHost: a\r\n\r\n")
            .is_none()
    );
    server.line("error.log", "too big subrequest response: 1025");
}

#[test]
fn a_page_that_multiplies_holds_up_nobody_else() {
    if skip_on_oracle("nginx starts all of the includes at once") {
        return;
    }
    let include = "<!--#include virtual=\"/twice.html\" -->";
    let server = site("")
        .file("html/twice.html", format!("x{include}{include}"))
        .start();
    let mut connection = server.connect();
    connection.request("GET", "/twice.html", &[]);
    assert!(!connection.at_least(2_000).is_empty());
    assert_eq!(server.get("/x.html").expect(200).text(), "[x:(none)]");
}

#[test]
fn a_page_that_includes_itself_twice_comes_to_an_end_soon() {
    if skip_on_oracle("nginx makes some 40,000 of them before it stops") {
        return;
    }
    let itself = "<!--#include virtual=\"/self.html\" -->";
    let server = site("")
        .file("html/self.html", format!("x{itself}{itself}"))
        .start();
    let text = server.get("/self.html").expect(200).text();
    let pages = text.matches('x').count();
    assert!((50..1_500).contains(&pages), "{pages} pages");
    server.line("error.log", "too many subrequests while processing");
}

#[test]
fn a_page_that_includes_itself_very_often_says_so_once() {
    if skip_on_oracle("nginx makes some 40,000 of them before it stops") {
        return;
    }
    let itself = "<!--#include virtual=\"/self.html\" -->";
    let server = site("")
        .file("html/self.html", format!("x{}", itself.repeat(3_000)))
        .start();
    let text = server.get("/self.html").expect(200).text();
    assert!(text.matches('x').count() < 1_500);
    server.line("error.log", "too many subrequests while processing");
    let log = server.read("error.log");
    assert_eq!(log.matches("too many subrequests").count(), 1);
    assert!(log.lines().count() < 3_000, "{} lines", log.lines().count());
}
