//! Three disks with a cache each, chosen by the URL: the configuration that thread pools were introduced with.

use weir_tests::{Server, http, skip_on_oracle};

/// The three caches. In the folder of the second one stands `folder`, which a store may not get over.
fn three(folder: &str) -> Server {
    http(
        "proxy_cache_path disk1 levels=1:2 keys_zone=cache_1:1m max_size=1024G use_temp_path=off;
         proxy_cache_path disk2 levels=1:2 keys_zone=cache_2:1m max_size=1024G use_temp_path=off;
         proxy_cache_path disk3 levels=1:2 keys_zone=cache_3:1m max_size=1024G use_temp_path=off;
         split_clients $request_uri $disk { 33.3% 1; 33.3% 2; * 3; }
         server { listen 127.0.0.1:%%PORT%%;
            location / {
                proxy_pass http://127.0.0.1:%%PORT1%%;
                proxy_cache_key $request_uri;
                proxy_cache cache_$disk;
                proxy_cache_valid 200 1h;
                aio threads=pool_$disk;
                sendfile on;
                add_header X-Cache \"$disk $upstream_cache_status\";
            }
         }
         server { listen 127.0.0.1:%%PORT1%%; location / { return 200 $request_uri; } }",
    )
    .main("thread_pool pool_1 threads=16; thread_pool pool_2 threads=16; thread_pool pool_3 threads=16;")
    .tolerate("disk2")
    .folder(&format!("disk2/{folder}"))
    .start()
}

/// Asks for thirty URLs; what was said of each: the disk and the cache's word.
fn ask(server: &Server) -> Vec<String> {
    let one = |number| {
        let target = format!("/{number}");
        let reply = server.get(&target).expect(200);
        assert_eq!(reply.text(), target);
        reply.field("X-Cache").to_owned()
    };
    (0..30).map(one).collect()
}

fn count(said: &[String], word: &str) -> usize {
    said.iter().filter(|said| said.as_str() == word).count()
}

#[test]
fn each_url_has_its_disk() {
    let server = three("other");
    let first = ask(&server);
    for disk in 1..=3 {
        assert!(count(&first, &format!("{disk} MISS")) > 3, "{first:?}");
    }
    let second = ask(&server);
    assert!(
        second.iter().all(|said| said.ends_with("HIT")),
        "{second:?}"
    );
}

#[test]
fn a_disk_that_fails_is_passed_by() {
    if skip_on_oracle("a store of Weir's own") {
        return;
    }
    let server = three("store");
    let first = ask(&server);
    let second = ask(&server);
    // Where there is no cache, nothing is said of it.
    let passed = count(&second, "2");
    assert!(passed > 3, "{second:?}");
    assert_eq!(
        count(&second, "1 HIT") + count(&second, "3 HIT"),
        30 - passed
    );
    assert_eq!(count(&first, "2"), passed, "{first:?}");
}
