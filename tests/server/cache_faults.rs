//! Disks that fail under a cache: what they hold is never served other than it was, and the proxy goes on without them.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use weir_tests::{Scripted, Server, Signal, http, read_until, send, skip_on_oracle, until};

const OWN: &str = "a store of Weir's own";

/// In memory, one extent, several extents in one run, several runs.
const LENGTHS: [usize; 4] = [1_000, 100_000, 900_000, 2_500_000];

fn content(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8).collect()
}

/// Answers `/LENGTH/…` with so many bytes.
fn origin() -> Scripted {
    Scripted::start(|stream, _| {
        let head = read_until(stream, b"\r\n\r\n");
        let text = String::from_utf8_lossy(&head);
        let length = text.split('/').nth(1).and_then(|word| word.parse().ok());
        let length = length.unwrap_or(0);
        let head = format!(
            "HTTP/1.1 200 OK\r\nCache-Control: max-age=600\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
        );
        send(stream, [head.as_bytes(), &content(length)].concat());
    })
}

/// A proxy with its cache at this path.
fn proxy(origin: &Scripted, path: &Path) -> Server {
    let (path, port) = (path.display(), origin.port());
    http(&format!(
        "proxy_cache_path {path} keys_zone=one:1m max_size=1g;
         server {{ listen 127.0.0.1:%%PORT%%; add_header X-Cache $upstream_cache_status;
            location / {{ proxy_pass http://127.0.0.1:{port}; proxy_cache one; proxy_cache_key $uri; }} }}"
    ))
    .tolerate("damaged")
    .tolerate("failed")
    .tolerate("vanished")
    .tolerate("replaced")
    .tolerate("used by another process")
    .start()
}

/// Asks, compares the content, and gives the cache's word; empty where the request went past it.
#[track_caller]
fn ask(server: &Server, length: usize, name: &str) -> String {
    let reply = server.get(&format!("/{length}/{name}")).expect(200);
    assert!(reply.body == content(length), "/{length}/{name}");
    match reply.has("X-Cache") {
        true => reply.field("X-Cache").to_owned(),
        false => String::new(),
    }
}

fn segments(path: &Path) -> Vec<PathBuf> {
    let items = fs::read_dir(path).expect("the store's folder");
    let paths = items.map(|item| item.expect("an entry").path());
    paths
        .filter(|path| path.extension().is_some_and(|end| end == "segment"))
        .collect()
}

/// A folder of this test alone, with nothing in it; gone when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let name = format!("weir-faults-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).expect("the temporary folder is writable");
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Mounted or not; what stays lies among temporary files.
        let _ = Command::new("umount").arg(&self.0).output();
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn no_damaged_byte_is_served() {
    if skip_on_oracle(OWN) {
        return;
    }
    let origin = origin();
    let folder = Folder::new("flips");
    let path = folder.0.join("cache");
    const PLACES: u64 = 6;
    for place in 0..PLACES {
        let mut server = proxy(&origin, &path);
        for length in LENGTHS {
            // What is damaged is fetched anew, and is good from then on.
            ask(&server, length, "a");
            assert_eq!(ask(&server, length, "a"), "HIT", "{place}: {length}");
        }
        server.signal(Signal::QUIT);
        server.ended();
        for segment in segments(&path) {
            let file = fs::OpenOptions::new().read(true).write(true).open(segment);
            let file = file.expect("a segment");
            let at = file.metadata().expect("a length").len() * place / PLACES + 37;
            let mut byte = [0];
            if file.read_exact_at(&mut byte, at).is_ok() {
                byte[0] ^= 4;
                file.write_all_at(&byte, at).expect("a segment");
            }
        }
    }
}

#[test]
fn a_full_disk_is_said_and_passed_by() {
    if skip_on_oracle(OWN) {
        return;
    }
    let folder = Folder::new("full");
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=6m", "tmpfs"])
        .arg(&folder.0)
        .output();
    if !mounted.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: a small file system cannot be mounted here");
        return;
    }
    let origin = origin();
    let path = folder.0.join("cache");
    let server = proxy(&origin, &path);
    for number in 0..30 {
        ask(&server, 900_000, &number.to_string());
    }
    server.line("error.log", "writing to the cache failed");
    // What was stored before is served, and all the others too.
    assert_eq!(ask(&server, 900_000, "0"), "HIT");
    // Somebody makes room: the cache is used again.
    for segment in segments(&path) {
        fs::remove_file(segment).expect("a segment");
    }
    let mounted = Command::new("mount")
        .args(["-o", "remount,size=60m"])
        .arg(&folder.0)
        .output();
    assert!(mounted.is_ok_and(|output| output.status.success()));
    let stored = until(|| (ask(&server, 100_000, "again") == "HIT").then_some(()));
    assert!(stored.is_some(), "the cache is used again");
}

#[test]
fn a_folder_that_vanishes_is_said_and_made_anew() {
    if skip_on_oracle(OWN) {
        return;
    }
    let origin = origin();
    let folder = Folder::new("vanish");
    let path = folder.0.join("cache");
    let server = proxy(&origin, &path);
    ask(&server, 100_000, "a");
    fs::remove_dir_all(&path).expect("the store's folder");
    ask(&server, 100_000, "a");
    server.line("error.log", "has disappeared");
    let stored = until(|| {
        ask(&server, 100_000, "b");
        (path.join("store").exists() && ask(&server, 100_000, "b") == "HIT").then_some(())
    });
    assert!(stored.is_some(), "it is stored in a new folder");
}

#[test]
fn who_waits_for_a_folder_has_it_when_the_other_ends() {
    if skip_on_oracle(OWN) {
        return;
    }
    let origin = origin();
    let folder = Folder::new("two");
    let path = folder.0.join("cache");
    let mut first = proxy(&origin, &path);
    ask(&first, 1_000, "a");
    let second = proxy(&origin, &path);
    assert_eq!(ask(&second, 1_000, "a"), "");
    second.line("error.log", "is used by another process");
    first.signal(Signal::QUIT);
    first.ended();
    let found = until(|| (ask(&second, 1_000, "a") == "HIT").then_some(()));
    assert!(found.is_some(), "what the first one stored");
}

#[test]
fn what_somebody_overwrites_while_the_server_runs_is_fetched_anew() {
    if skip_on_oracle(OWN) {
        return;
    }
    let origin = origin();
    let folder = Folder::new("overwritten");
    let path = folder.0.join("cache");
    let server = proxy(&origin, &path);
    const PLACES: u64 = 12;
    for place in 0..PLACES {
        for length in LENGTHS {
            // All is there, and in memory.
            ask(&server, length, "a");
            ask(&server, length, "b");
        }
        // What a response begins with may be sent before it is in the file.
        let stored = until(|| (ask(&server, 2_500_000, "b") == "HIT").then_some(()));
        assert!(stored.is_some());
        for segment in segments(&path) {
            let file = fs::OpenOptions::new().read(true).write(true).open(segment);
            let file = file.expect("a segment");
            let at = file.metadata().expect("a length").len() * place / PLACES + 5_000;
            let mut byte = [0];
            if file.read_exact_at(&mut byte, at).is_ok() {
                byte[0] ^= 4;
                file.write_all_at(&byte, at).expect("a segment");
            }
        }
        for length in LENGTHS {
            // Each is compared with what it was.
            ask(&server, length, "a");
            ask(&server, length, "b");
        }
    }
    // A file that is too short is no other case.
    for segment in segments(&path) {
        let file = fs::OpenOptions::new().write(true).open(segment);
        let file = file.expect("a segment");
        let length = file.metadata().expect("a length").len();
        file.set_len(length / 2).expect("a segment");
    }
    for length in LENGTHS {
        ask(&server, length, "a");
        ask(&server, length, "b");
    }
}

#[test]
fn a_folder_that_is_deleted_and_made_again_is_used_again() {
    if skip_on_oracle(OWN) {
        return;
    }
    let origin = origin();
    let folder = Folder::new("remade");
    let path = folder.0.join("cache");
    let server = proxy(&origin, &path);
    ask(&server, 100_000, "a");
    for round in 0..2 {
        // The store may make a file in it meanwhile.
        let removed = || (fs::remove_dir_all(&path).is_ok() || !path.exists()).then_some(());
        until(removed).expect("the store's folder");
        // As root does it: the worker's user may not write there.
        fs::create_dir(&path).expect("the folder above");
        let name = format!("b{round}");
        let stored = until(|| {
            ask(&server, 100_000, &name);
            (path.join("store").exists() && ask(&server, 100_000, &name) == "HIT").then_some(())
        });
        assert!(stored.is_some(), "it is stored in the new folder");
    }
}

#[test]
fn a_full_disk_has_no_segment_without_an_object_and_says_so() {
    if skip_on_oracle(OWN) {
        return;
    }
    let folder = Folder::new("tight");
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=8m", "tmpfs"])
        .arg(&folder.0)
        .output();
    if !mounted.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: a small file system cannot be mounted here");
        return;
    }
    let origin = origin();
    let path = folder.0.join("cache");
    let (shown, port) = (path.display(), origin.port());
    let server = http(&format!(
        "proxy_cache_path {shown} keys_zone=one:1m max_size=1g;
         server {{ listen 127.0.0.1:%%PORT%%; add_header X-Cache $upstream_cache_status;
            location / {{ proxy_pass http://127.0.0.1:{port}; proxy_cache one; proxy_cache_key $uri;
                proxy_cache_status_header on; }} }}"
    ))
    .tolerate("failed")
    .start();
    let mut wrong = 0;
    let mut refused = 0;
    for number in 0..30 {
        let target = format!("/900000/{number}");
        let reply = server.get(&target).expect(200);
        assert!(reply.body == content(900_000), "{number}");
        let said = reply.field("Cache-Status").to_owned();
        // The disk may be behind the responses. It has caught up when there is a hit, or no room.
        let stored = until(|| {
            let again = server.get(&target);
            let is_hit = again.field("X-Cache") == "HIT";
            let is_full = again
                .field("Cache-Status")
                .ends_with("; detail=\"disk full\"");
            (is_hit || is_full).then_some(is_hit)
        });
        let stored = stored.expect("it is stored, or there is no room");
        refused += usize::from(said.ends_with("; detail=\"disk full\""));
        assert!(
            !said.ends_with("disk full\"") || !said.contains("; stored"),
            "{said}"
        );
        wrong += usize::from(said.contains("; stored") && !stored);
    }
    // The first one that finds the disk full has said so before.
    assert!(wrong <= 1 && refused >= 20, "{wrong} {refused}");
    server.line("error.log", "writing to the cache failed");
    // What others need is free: logs, and uploads.
    let spare = fs::write(folder.0.join("upload"), vec![1; 300_000]);
    assert!(spare.is_ok(), "{spare:?}");
    assert_eq!(server.get("/900000/0").field("X-Cache"), "HIT");
}
