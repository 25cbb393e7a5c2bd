//! Files: what is in memory and what is not.

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rt::file::{self, File, InodeKind, OpenOptions};
use rt::net::StreamSocket;
use rt::pool::{DeviceNumber, PoolHandle};
use weir_rt as rt;

fn run<F: Future + 'static>(main: impl FnOnce() -> F) -> F::Output {
    rt::run(rt::LoopOptions::default(), main).expect("a loop can be made")
}

fn pool() -> PoolHandle {
    PoolHandle::new("files", 2, 16)
}

/// A fresh directory below the build's own, so that it is on a disk and not in memory.
fn directory(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _not_there = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).expect("the build directory can be written");
    path
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect()
}

/// Throws the file out of the page cache; false where the file system does not do that.
fn make_cold(path: &Path, file: &File) -> bool {
    fs::File::open(path)
        .and_then(|file| file.sync_all())
        .expect("it can be synced");
    // The kernel keeps pages that were touched just now on lists of each processor for a while.
    (0..1000).any(|_| {
        rustix::fs::fadvise(file.as_fd(), 0, None, rustix::fs::Advice::DontNeed).expect("advice");
        std::thread::yield_now();
        let mut byte = [0];
        (0..1_500_000)
            .step_by(4096)
            .all(|offset| file.try_read_at(&mut byte, offset).is_err())
    })
}

#[test]
fn a_missing_file_is_known_without_the_pool() {
    run(|| async {
        let pool = pool();
        let missing = directory("missing").join("none");
        // Twice: the first look may have to ask the disk.
        for _ in 0..2 {
            let error = file::open(&missing, OpenOptions::READ, &pool)
                .await
                .expect_err("missing");
            assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
        }
        let done = pool.stats().done;
        let error = file::stat(&missing, &pool).await.expect_err("missing");
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
        assert_eq!(pool.stats().done, done, "answered from the directory cache");
    });
}

#[test]
fn reading_what_is_in_memory_needs_no_pool_and_ends_at_the_end() {
    run(|| async {
        let pool = pool();
        let path = directory("warm").join("file");
        let content = bytes(100_000);
        fs::write(&path, &content).expect("written");
        let file = file::open(&path, OpenOptions::READ, &pool)
            .await
            .expect("it is there");
        let done = pool.stats().done;
        let read = file
            .read_at(b"head".to_vec(), 0, 200_000, &pool)
            .await
            .expect("it can be read");
        assert!(read.starts_with(b"head") && read[4..] == content);
        assert_eq!(file.resident_prefix(0, 100_000), 100_000);
        assert_eq!(file.resident_prefix(4_097, 10), 10);
        assert_eq!(
            file.read_at(Vec::new(), 100_000, 10, &pool)
                .await
                .expect("the end"),
            b""
        );
        assert_eq!(pool.stats().done, done);
    });
}

#[test]
fn who_wants_the_same_range_waits_for_the_same_load_and_needs_nobody_else() {
    run(|| async {
        let folder = directory(&format!("same-load-{}", std::process::id()));
        let path = folder.join("file");
        fs::write(&path, bytes(100_000)).expect("written");
        let pool = PoolHandle::new("one thread", 1, 100);
        let file = file::open(&path, OpenOptions::READ, &pool)
            .await
            .expect("it is there");
        let (open, gate) = std::sync::mpsc::channel::<()>();
        let (begun, begins) = std::sync::mpsc::channel();
        pool.submit(
            DeviceNumber::UNKNOWN,
            Box::new(move || {
                begun.send(()).expect("it is waited for");
                // Ends when the gate is dropped: an error is what is waited for.
                let _opened = gate.recv();
            }),
        );
        begins.recv().expect("the only thread is held");
        let load = |offset| {
            let (file, pool) = (file.clone(), pool.clone());
            rt::spawn_handle("loads", async move {
                file.load_range(offset, 1_000, 0, &pool).await
            })
        };
        let (first, second, other) = (load(0), load(0), load(50_000));
        rt::yield_now().await;
        assert_eq!(pool.stats().queued, 2, "one for each range");
        first.abort();
        drop(open);
        for task in [second, other] {
            let loaded = task.await.expect("it did not panic");
            loaded.expect("it can be read");
        }
        // What is no longer under way can be loaded again.
        load(0)
            .await
            .expect("it did not panic")
            .expect("it can be read");
        fs::remove_dir_all(folder).expect("it is ours");
    });
}

#[test]
fn a_cold_file_is_known_to_be_cold_is_loaded_and_then_sent() {
    run(|| async {
        let pool = pool();
        let path = directory("cold").join("file");
        let content = Rc::new(bytes(1_500_000));
        fs::write(&path, &*content).expect("written");
        let file = file::open(&path, OpenOptions::READ, &pool)
            .await
            .expect("it is there");
        // Looking whether it is cold may have begun to read it ahead.
        if !make_cold(&path, &file) || file.resident_prefix(0, 1_500_000) > 0 {
            return;
        }
        file.load_range(100_000, 300_000, 0, &pool)
            .await
            .expect("it can be read");
        assert!(file.resident_prefix(100_000, 300_000) >= 300_000);

        if !make_cold(&path, &file) {
            return;
        }
        let read = file
            .read_at(Vec::new(), 5_000, 70_000, &pool)
            .await
            .expect("it can be read");
        assert!(read == content[5_000..75_000]);

        if !make_cold(&path, &file) {
            return;
        }
        let (a, b) = StreamSocket::pair().expect("a pair");
        let sending = file.clone();
        let sender = rt::spawn_handle("sender", async move {
            let mut offset = 3;
            // More than there is: the file ends early.
            let sent = a
                .sendfile(&sending, &mut offset, 9_000_000, &pool)
                .await
                .expect("sent");
            assert_eq!((sent, offset), (1_499_997, 1_500_000));
        });
        let mut got = Vec::new();
        while b.read_into(&mut got, 65_536).await.expect("it can be read") > 0 {}
        sender.await.expect("it did not panic");
        assert!(got == content[3..]);
    });
}

#[test]
fn a_truncated_file_does_not_make_anybody_wait() {
    run(|| async {
        let pool = pool();
        let path = directory("short").join("file");
        fs::write(&path, bytes(10_000)).expect("written");
        let file = file::open(&path, OpenOptions::READ, &pool)
            .await
            .expect("it is there");
        fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .and_then(|f| f.set_len(5_000))
            .expect("cut");
        assert_eq!(
            file.resident_prefix(0, 10_000),
            10_000,
            "past the end nothing waits"
        );
        file.load_range(0, 10_000, 100_000, &pool)
            .await
            .expect("it can be read");
        file.load_range(20_000, 10, 0, &pool)
            .await
            .expect("nothing to read");
    });
}

#[test]
fn names_are_made_listed_renamed_and_removed() {
    run(|| async {
        let pool = pool();
        let root = directory("names");
        let (a, b, below) = (root.join("a"), root.join("b"), root.join("below"));
        let options = OpenOptions::WRITE.create_new().mode(0o600);
        let file = file::open(&a, options, &pool).await.expect("made");
        file.write_all_at(b"hello".to_vec(), 3, &pool)
            .await
            .expect("written");
        let again = file::open(&a, options, &pool)
            .await
            .expect_err("it is there");
        assert_eq!(again.kind(), std::io::ErrorKind::AlreadyExists);
        file::create_directory(&below, 0o755, &pool)
            .await
            .expect("made");
        file::rename(&a, &b, &pool).await.expect("renamed");
        std::os::unix::fs::symlink("b", &a).expect("linked");
        assert_eq!(
            file::read_link(&a, &pool).await.expect("a link"),
            Path::new("b")
        );

        let target = file::stat(&a, &pool)
            .await
            .expect("the link leads somewhere");
        assert_eq!(
            (target.kind, target.len, target.mode & 0o777),
            (InodeKind::Regular, 8, 0o600)
        );
        let link = file::lstat(&a, &pool).await.expect("the link is there");
        assert_eq!(link.kind, InodeKind::Symlink);
        assert!(
            file::open(&a, OpenOptions::READ.nofollow(), &pool)
                .await
                .is_err()
        );

        let mut names: Vec<_> = file::read_directory(&root, 100, &pool)
            .await
            .expect("it can be read")
            .into_iter()
            .map(|entry| (entry.name.into_string().expect("ASCII"), entry.kind))
            .collect();
        names.sort_by(|a, b| a.0.cmp(&b.0));
        let expected = [
            ("a", InodeKind::Symlink),
            ("b", InodeKind::Regular),
            ("below", InodeKind::Directory),
        ];
        assert_eq!(
            names,
            expected.map(|(name, kind)| (name.to_owned(), Some(kind)))
        );
        assert_eq!(
            file::read_directory(&root, 2, &pool)
                .await
                .expect("read")
                .len(),
            2
        );

        let when = std::time::UNIX_EPOCH + std::time::Duration::from_millis(1_700_000_000_500);
        file::set_times(&b, when, &pool).await.expect("set");
        assert_eq!(
            file::stat(&b, &pool).await.expect("it is there").modified(),
            when
        );
        file::remove_file(&b, &pool).await.expect("removed");
        file::remove_directory(&below, &pool)
            .await
            .expect("removed");
    });
}
