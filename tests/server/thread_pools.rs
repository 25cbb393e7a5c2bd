//! Thread pools: two configurations as they are printed in articles about them, and what happens when a pool has more
//! to do than it has threads and places in its queue.

use std::fs::File;

use rustix::fs::{Advice, fadvise};
use weir_tests::{Server, Site, http, is_oracle, skip_on_oracle, whole};

/// Content that tells where it is from.
fn content(number: usize, length: usize) -> Vec<u8> {
    let line = format!("file {number}\n");
    line.bytes().cycle().take(length).collect()
}

/// Puts a file out of the page cache, where the system can; a test is as true if it stays there.
fn make_cold(site: &Site, path: &str) {
    let file = File::open(site.path(path)).expect("it was just written");
    file.sync_data().expect("it can be written to the disk");
    // Advice.
    let _ = fadvise(&file, 0, None, Advice::DontNeed);
}

/// Asks for `/first/0`, `/first/1` … on a connection each, all before the first answer is read.
fn download_all(server: &Server, count: usize, target: impl Fn(usize) -> String, length: usize) {
    let mut connections: Vec<_> = (0..count).map(|_| server.connect()).collect();
    for (number, connection) in connections.iter_mut().enumerate() {
        connection.request("GET", &target(number), &["Connection: close"]);
    }
    for (number, connection) in connections.iter_mut().enumerate() {
        let reply = connection.reply().expect(200);
        assert!(reply.body == content(number, length), "download {number}");
    }
}

#[test]
fn the_configuration_with_one_pool_serves() {
    // As printed, but for `/storage`, the port, and the address of the listening socket.
    let text = "\
worker_processes 16;

events {
    accept_mutex off;
}

http {
    include mime.types;
    default_type application/octet-stream;

    access_log off;
    sendfile on;
    sendfile_max_chunk 512k;

    server {
        listen 127.0.0.1:%%PORT%%;

        location / {
            root %%DIR%%/storage;
            aio threads;
        }
    }
}
";
    let length = 1_500_000;
    let mut site = whole(text).file("mime.types", "types {\n    video/mp4 mp4;\n}\n");
    for number in 0..8 {
        let path = format!("storage/{number}.mp4");
        site = site.file(&path, content(number, length));
        make_cold(&site, &path);
    }
    let server = site.start();
    let reply = server.get("/7.mp4").expect(200);
    assert_eq!(reply.field("Content-Type"), "video/mp4");
    download_all(&server, 8, |number| format!("/{number}.mp4"), length);
}

#[test]
fn the_configuration_with_named_pools_serves() {
    // As printed; a server needs an address that is free here, and something to serve.
    let text = "\
# in the 'main' context
thread_pool one threads=128 max_queue=0;
thread_pool two threads=32;

events {}

http {
    server {
        listen 127.0.0.1:%%PORT%%;
        root html;
        location /one {
            aio threads=one;
        }

        location /two {
            aio threads=two;
        }

    }
    # ...
}
";
    let mut site = whole(text);
    for (number, path) in ["html/one/file", "html/two/file"].iter().enumerate() {
        site = site.file(path, content(number, 200_000));
        make_cold(&site, path);
    }
    let server = site.start();
    assert!(server.get("/one/file").expect(200).body == content(0, 200_000));
    assert!(server.get("/two/file").expect(200).body == content(1, 200_000));
}

#[test]
fn downloads_that_find_the_queue_full_wait_and_complete() {
    // 80 of 200 were cut short by nginx on a slow disk.
    if skip_on_oracle("it ends responses when the queue is full") {
        return;
    }
    let conf = "server { listen 127.0.0.1:%%PORT%%; sendfile on; sendfile_max_chunk 512k; aio threads=one; }";
    let mut site = http(conf).main("thread_pool one threads=128 max_queue=0;");
    for number in 0..200 {
        let path = format!("html/{number}");
        site = site.file(&path, content(number, 150_000));
        make_cold(&site, &path);
    }
    let server = site.start();
    download_all(&server, 200, |number| format!("/{number}"), 150_000);
}

#[test]
fn a_full_queue_is_told_with_the_number_that_waits() {
    if is_oracle() {
        // nginx tells of it too, as an alert, and ends the response.
        return;
    }
    // Reads past the page cache always go to the pool. One thread and no queue: the second read at a time has to wait.
    let conf = "server { listen 127.0.0.1:%%PORT%%; directio 4k; aio threads=one; }";
    let site = http(conf)
        .main("thread_pool one threads=1 max_queue=0;")
        .file("html/0", content(0, 400_000));
    if rustix::fs::open(
        site.path("html/0"),
        rustix::fs::OFlags::DIRECT,
        rustix::fs::Mode::empty(),
    )
    .is_err()
    {
        // This file system has no reads past the page cache.
        return;
    }
    let server = site.start();
    let mut connections: Vec<_> = (0..50).map(|_| server.connect()).collect();
    for connection in &mut connections {
        connection.request("GET", "/0", &["Connection: close"]);
    }
    for connection in &mut connections {
        assert!(connection.reply().expect(200).body == content(0, 400_000));
    }
    let line = server.line("error.log", "thread pool \"one\" queue overflow: ");
    assert!(line.ends_with(" tasks waiting"), "{line}");
}
