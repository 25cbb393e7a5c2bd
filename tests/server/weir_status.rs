//! `weir_status`: what loops and pools do.

use weir_tests::{http, skip_on_oracle, until};

#[test]
fn a_table_for_people_and_json_for_programs() {
    if skip_on_oracle("nginx has no such page") {
        return;
    }
    let conf = "server { listen 127.0.0.1:%%PORT%%;
        location /text { weir_status; }
        location /json { weir_status json; }
        location / { return 200; } }";
    let server = http(conf).main("worker_processes 2;").start();
    for _ in 0..4 {
        server.get("/");
    }
    let page = server.get("/text").expect(200);
    assert_eq!(page.field("Content-Type"), "text/plain");
    let text = page.text();
    for part in [
        "loop connections",
        "\n   0 ",
        "iterations by duration",
        "\npool ",
    ] {
        assert!(text.contains(part), "{part:?} in {text}");
    }
    let page = server.get("/json").expect(200);
    assert_eq!(page.field("Content-Type"), "application/json");
    assert_eq!(page.field("Cache-Control"), "no-store");
    let text = page.text();
    let counts = text
        .split("\"requests\":")
        .skip(1)
        .filter_map(|rest| rest.split(',').next()?.parse::<u64>().ok());
    assert_eq!(counts.sum::<u64>(), 6, "{text}");
    // The second loop may begin a moment after the first.
    let both = until(|| {
        (server
            .get("/json")
            .text()
            .matches("\"turn_times_log2_us\":[")
            .count()
            == 2)
            .then_some(())
    });
    assert!(both.is_some(), "each loop is shown");
    assert_eq!(
        server
            .request("POST", "/json", &["Content-Length: 0"])
            .status,
        405
    );
}
