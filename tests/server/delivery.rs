//! How files get to the client: past the page cache, cold, in portions, from the cache of open files.

use std::process::Command;

use weir_tests::{Server, http, is_oracle};

/// Content in which every part is different.
fn content(length: usize) -> Vec<u8> {
    (0..length as u32)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect()
}

/// Puts a file out of the page cache, where the system can; a test is as true if it stays there.
fn make_cold(server: &Server, path: &str) {
    let file = format!("if={}", server.path(path).display());
    let _ = Command::new("dd")
        .args([&file, "iflag=nocache", "count=0", "status=none"])
        .status();
}

#[test]
fn every_way_of_reading_gives_the_same_bytes() {
    let ways = [
        "sendfile on;",
        "sendfile off; output_buffers 1 1000;",
        "sendfile on; sendfile_max_chunk 10k;",
        "sendfile on; directio 4k;",
        "sendfile on; directio 1m; read_ahead 1m;",
        "sendfile on; aio threads;",
        "aio threads=%%POOL%%; sendfile off;",
        "sendfile on; tcp_nopush on;",
        "open_file_cache max=10; sendfile on;",
        "open_file_cache max=10; directio 4k;",
    ];
    let data = content(300_001);
    for way in ways {
        let way = way.replace("%%POOL%%", "disk");
        let conf = format!("server {{ listen 127.0.0.1:%%PORT%%; {way} }}");
        let server = http(&conf)
            .main("thread_pool disk threads=2;")
            .file("html/big", &data)
            .start();
        for _ in 0..2 {
            make_cold(&server, "html/big");
            assert!(server.get("/big").expect(200).body == data, "{way}");
        }
        let part = server
            .get_with("/big", &["Range: bytes=4095-200001"])
            .expect(206);
        assert!(part.body == data[4095..=200_001], "{way}");
        let parts = server
            .get_with("/big", &["Range: bytes=1-2,100000-200000"])
            .expect(206);
        assert!(
            parts
                .body
                .windows(100_001)
                .any(|window| window == &data[100_000..=200_000]),
            "{way}"
        );
    }
}

#[test]
fn a_pool_that_does_not_exist_is_told_and_the_file_served() {
    if is_oracle() {
        // nginx ends such a response instead.
        return;
    }
    let conf =
        "server { listen 127.0.0.1:%%PORT%%; sendfile on; directio 4k; aio threads=$arg_pool; }";
    let data = content(50_000);
    let server = http(conf)
        .file("html/big", &data)
        .tolerate("not found")
        .start();
    assert!(server.get("/big?pool=nowhere").expect(200).body == data);
    server.line("error.log", "thread pool \"nowhere\" not found");
}

#[test]
fn the_cache_of_open_files_believes_what_it_knows_for_its_time() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        location / { open_file_cache max=10; open_file_cache_valid 1h; open_file_cache_errors on; }
        location /fresh/ { alias %%DIR%%/html/; open_file_cache max=10; open_file_cache_valid 0; open_file_cache_errors on; }
    }";
    let server = http(conf).file("html/x", "first").start();
    assert_eq!(server.get("/x").text(), "first");
    assert_eq!(server.get("/fresh/x").text(), "first");
    server.get("/y").expect(404);
    // A new file under the same name: the open one is still the old.
    std::fs::write(server.path("html/new"), "second!").expect("written");
    std::fs::rename(server.path("html/new"), server.path("html/x")).expect("renamed");
    std::fs::write(server.path("html/y"), "there").expect("written");
    assert_eq!(server.get("/x").text(), "first");
    server.get("/y").expect(404);
    assert_eq!(server.get("/fresh/x").text(), "second!");
    assert_eq!(server.get("/fresh/y").text(), "there");
    std::fs::remove_file(server.path("html/x")).expect("removed");
    server.get("/fresh/x").expect(404);
}

#[test]
fn a_cache_that_is_full_still_serves_everything() {
    let conf = "server { listen 127.0.0.1:%%PORT%%; open_file_cache max=2 inactive=1h; open_file_cache_min_uses 2; }";
    let mut site = http(conf);
    for number in 0..8 {
        site = site.file(&format!("html/{number}"), format!("file {number}"));
    }
    let server = site.start();
    for round in 0..3 {
        for number in 0..8 {
            let reply = server.get(&format!("/{number}")).expect(200);
            assert_eq!(reply.text(), format!("file {number}"), "round {round}");
        }
    }
}

#[test]
fn a_file_that_shrinks_while_it_is_sent_ends_the_connection() {
    let conf = "server { listen 127.0.0.1:%%PORT%%; sendfile on; open_file_cache max=1; open_file_cache_valid 1h; }";
    let server = http(conf)
        .file("html/x", content(100_000))
        .tolerate("[alert]")
        .start();
    server.get("/x").expect(200);
    // The cache believes the old length; the content is not there any more.
    std::fs::write(server.path("html/x"), "short").expect("written");
    let mut client = server.connect();
    client.request("GET", "/x", &[]);
    let bytes = client.rest();
    assert!(
        bytes.len() < 10_000,
        "the answer is cut, not filled up: {} bytes",
        bytes.len()
    );
    server.get("/x/none").expect(404);
}
