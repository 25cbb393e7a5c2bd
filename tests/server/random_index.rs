//! `random_index`: a file by chance.

use std::collections::HashSet;
use std::os::unix::fs::symlink;

use weir_tests::http;

#[test]
fn every_file_has_its_turn_and_nothing_else() {
    let conf = "server { listen 127.0.0.1:%%PORT%%;
        location / { random_index on; } location /off/ { alias %%DIR%%/html/; } }";
    let site = http(conf)
        .file("html/.hidden", "hidden")
        .file("html/a", "a")
        .file("html/b", "b")
        .file("html/folder/x", "x")
        .file("outside", "c")
        .folder("html/empty");
    symlink(site.path("outside"), site.path("html/link")).expect("the folder is writable");
    symlink(site.path("html/folder"), site.path("html/folder-link"))
        .expect("the folder is writable");
    symlink(site.path("nowhere"), site.path("html/broken")).expect("the folder is writable");
    let server = site.start();
    // With three of the same chance, one is missing after 100 draws in 1 of 10^17 runs.
    let drawn: HashSet<String> = (0..100)
        .map(|_| server.get("/").expect(200).text())
        .collect();
    let wanted = HashSet::from(["a", "b", "c"].map(str::to_owned));
    assert_eq!(drawn, wanted);
    assert_eq!(server.get("/a").text(), "a");
    server.answers(&[
        ("/empty/", 403, ""),
        ("/none/", 404, ""),
        ("/off/", 403, ""),
    ]);
}
