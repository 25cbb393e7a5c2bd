//! `empty_gif`.

use weir_tests::http;

#[test]
fn a_pixel() {
    let server = http("server { listen 127.0.0.1:%%PORT%%; location / { empty_gif; } }").start();
    let reply = server.get("/").expect(200);
    assert_eq!(reply.field("Content-Type"), "image/gif");
    assert!(reply.body.starts_with(b"GIF89a") && reply.body.len() == 43);
    let since = format!("If-Modified-Since: {}", reply.field("Last-Modified"));
    assert_eq!(server.get_with("/", &[&since]).status, 304);
    assert_eq!(
        server.request("PUT", "/", &["Content-Length: 0"]).status,
        405
    );
}
