//! Log sinks.

use std::fs;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use host::log_sink::{BUFFER_LIMIT, LogSink};
use weir_host as host;

fn path(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.log"));
    let _not_there = fs::remove_file(&path);
    path
}

fn append(path: &Path) -> OwnedFd {
    fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)
        .expect("it can be opened")
        .into()
}

#[test]
fn lines_of_many_threads_are_all_there_and_whole() {
    let path = path("many");
    let sink = LogSink::file("many", append(&path));
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let sink = sink.clone();
            std::thread::spawn(move || {
                for i in 0..5_000 {
                    sink.write(format!("{thread} {i}\n").as_bytes());
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("it did not panic");
    }
    sink.flush_blocking();
    let text = fs::read_to_string(&path).expect("it can be read");
    let mut next = [0; 4];
    for line in text.lines() {
        let (thread, i) = line.split_once(' ').expect("whole lines");
        let thread: usize = thread.parse().expect("a thread");
        assert_eq!(i.parse(), Ok(next[thread]), "in the order of their thread");
        next[thread] += 1;
    }
    assert_eq!((next, sink.lost_lines()), ([5_000; 4], 0));
}

#[test]
fn a_loop_s_lines_are_written_without_its_help() {
    let path = path("loop");
    let sink = LogSink::file("loop", append(&path));
    let inside = sink.clone();
    rt::run(rt::LoopOptions::default(), || async move {
        inside.write(b"one\n");
        inside.write(b"two\n");
        // The turn ends, the writer is woken; nothing else is asked of the loop.
        rt::yield_now().await;
    })
    .expect("a loop can be made");
    sink.flush_blocking();
    assert_eq!(fs::read(&path).expect("it can be read"), b"one\ntwo\n");
}

#[test]
fn after_reopening_lines_go_to_the_new_file_only() {
    let (old, new) = (path("old"), path("new"));
    let sink = LogSink::file("reopened", append(&old));
    for i in 0..1_000 {
        if i == 500 {
            sink.reopen(append(&new));
        }
        sink.write(format!("{i}\n").as_bytes());
    }
    sink.flush_blocking();
    let lines = |range: std::ops::Range<u32>| range.map(|i| format!("{i}\n")).collect::<String>();
    assert_eq!(
        fs::read_to_string(&old).expect("it can be read"),
        lines(0..500)
    );
    assert_eq!(
        fs::read_to_string(&new).expect("it can be read"),
        lines(500..1_000)
    );
}

#[test]
fn a_stuck_pipe_loses_its_own_lines_and_holds_nobody_s() {
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    let stuck = LogSink::file("stuck", writer.into());
    let line = [b"x".repeat(999), b"\n".to_vec()].concat();
    for _ in 0..BUFFER_LIMIT / 1000 * 2 {
        stuck.write(&line);
    }
    assert!(stuck.lost_lines() > 0);

    let path = path("healthy");
    let healthy = LogSink::file("healthy", append(&path));
    healthy.write(b"here\n");
    healthy.flush_blocking();
    assert_eq!(fs::read(&path).expect("it can be read"), b"here\n");

    let kept = BUFFER_LIMIT / 1000 * 2 - usize::try_from(stuck.lost_lines()).expect("few");
    let mut got = vec![0; kept * 1000];
    reader
        .read_exact(&mut got)
        .expect("what was kept is written");
    assert!(got.chunks(1000).all(|chunk| chunk == line));
    stuck.flush_blocking();
}

#[test]
fn datagrams_keep_their_bounds() {
    let (a, b) = std::os::unix::net::UnixDatagram::pair().expect("a pair");
    let sink = LogSink::datagrams("syslog", move || Ok(a.try_clone()?.into()));
    sink.write(b"<14>one");
    sink.write(b"<14>two, longer");
    sink.flush_blocking();
    let mut buf = [0; 100];
    for expected in [&b"<14>one"[..], b"<14>two, longer"] {
        let n = b.recv(&mut buf).expect("it was sent");
        assert_eq!(&buf[..n], expected);
    }
}
