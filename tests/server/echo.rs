//! `echo`: the directives of the third-party module, with Debian's build of it as oracle.

use weir_tests::{Server, is_oracle, skip_on_oracle, whole};

/// Where Debian puts the modules that nginx loads for these tests.
const NDK: &str = "/usr/lib/nginx/modules/ndk_http_module.so";
const ECHO: &str = "/usr/lib/nginx/modules/ngx_http_echo_module.so";

/// A server with these locations; `None` where the oracle lacks the module.
fn with(locations: &str) -> Option<Server> {
    let mut modules = String::new();
    if is_oracle() {
        if !std::path::Path::new(ECHO).exists() {
            let _ = skip_on_oracle("the module is not installed");
            return None;
        }
        modules = format!("load_module {NDK}; load_module {ECHO};\n");
    }
    let text = format!(
        "{modules}events {{ }}\nhttp {{ access_log off; default_type text/plain;\n\
         server {{ listen 127.0.0.1:%%PORT%%; {locations} }} }}\n"
    );
    Some(whole(&text).start())
}

#[test]
fn texts_are_written_in_order() {
    let Some(server) = with(
        "location /a { echo hello $arg_x; echo -n \"no end\"; echo; echo -- -n x; echo -n; echo last; }
         location /copies { echo_duplicate 3 ab; echo; echo_duplicate 0 x; echo_duplicate 2 $arg_x; echo_duplicate 1_0 +; }
         location /status { echo_status 404; echo gone; }
         location /if { echo outer; if ($arg_x = 1) { echo inner; } if ($arg_x = 2) { set $z 1; } }
         location /outer { echo outer; location /outer/in { return 200 in; } }",
    ) else {
        return;
    };
    let text = |target: &str| server.get(target).text();
    assert_eq!(text("/a?x=q"), "hello q\nno end\n-n x\nlast\n");
    assert_eq!(text("/copies?x=q"), "ababab\nqq++++++++++");
    assert_eq!(text("/if"), "outer\n");
    assert_eq!(text("/if?x=1"), "inner\n");
    assert_eq!(text("/if?x=2"), "outer\n");
    assert_eq!(text("/outer/in"), "in");
    let reply = server.get("/status");
    assert_eq!((reply.status, &*reply.text()), (404, "gone\n"));
}

#[test]
fn responses_of_other_paths_keep_their_places() {
    let Some(server) = with(
        "location /all { echo_location /sub?b=2; echo_location /sub a=1; echo mid; echo_location_async /slow x=1;
             echo_location_async /sub x=2; echo_subrequest POST /content -q q=1 -b 'the content'; echo end; }
         location /sub { echo \"$echo_request_uri $echo_request_method $args\"; }
         location /slow { echo_sleep 0.05; echo \"slow $args\"; }
         location /content { echo_read_request_body; echo \"$echo_request_method $args [$echo_request_body]\"; }",
    ) else {
        return;
    };
    assert_eq!(
        server.get("/all").text(),
        "/sub GET b=2\n/sub GET a=1\nmid\nslow x=1\n/sub GET x=2\nPOST q=1 [the content]\nend\n"
    );
}

#[test]
fn the_content_of_the_request_comes_back() {
    let Some(server) = with(
        "location / { echo_read_request_body; echo \"[$echo_request_body]\"; echo_request_body; }
         location /file { client_body_in_file_only on; echo_read_request_body; echo_request_body; }",
    ) else {
        return;
    };
    for (target, expected) in [
        ("/", "[some content]\nsome content"),
        ("/file", "some content"),
    ] {
        let request = format!(
            "POST {target} HTTP/1.1\r\nHost: x\r\nContent-Length: 12\r\nConnection: close\r\n\r\nsome content"
        );
        assert_eq!(server.raw(request.as_bytes()).text(), expected, "{target}");
    }
}

#[test]
fn a_script_may_go_on_elsewhere() {
    let Some(server) = with(
        "location /a { echo_exec /b x=9; }
         location /b { echo \"b $args\"; }
         location /c { echo_exec @named; }
         location /d { echo_exec @named?k=2 k=3; }
         location /e { echo_exec /%62?y=%31; }
         location /f { echo_location /%62 x=8; echo_location_async /%62; }
         location @named { echo \"named $uri $args\"; }",
    ) else {
        return;
    };
    assert_eq!(server.get("/a").text(), "b x=9\n");
    assert_eq!(server.get("/c?k=1").text(), "named /c k=1\n");
    assert_eq!(server.get("/d").text(), "named /d \n");
    assert_eq!(server.get("/e").text(), "b y=%31\n");
    assert_eq!(server.get("/f").text(), "b x=8\nb \n");
}

#[test]
fn a_text_is_done_part_by_part() {
    let Some(server) = with(
        "location / { echo_foreach_split , $arg_x; echo \"$echo_it $echo_incr\"; echo_end; echo \"after [$echo_it]\"; }",
    ) else {
        return;
    };
    assert_eq!(server.get("/?x=1,2,,3").text(), "1 1\n2 2\n3 3\nafter []\n");
    assert_eq!(server.get("/").text(), "after []\n");
}

#[test]
fn texts_stand_around_other_responses() {
    let Some(server) = with(
        "location / { echo_before_body \"before $uri\"; echo_before_body more; echo_after_body after; return 200 mid\\n; }
         location /none { echo_after_body after; return 404; }",
    ) else {
        return;
    };
    let reply = server.get("/");
    assert_eq!(reply.text(), "before /\nmore\nmid\nafter\n");
    assert!(!reply.has("Content-Length"));
    assert!(server.get("/none").text().ends_with("</html>\r\nafter\n"));
    assert_eq!(server.request("HEAD", "/", &[]).text(), "");
}
