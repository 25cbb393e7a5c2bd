//! `strace`: the system calls on files that a loaded server makes, by thread and with the
//! longest time each took. A loop's thread must never make one that can wait for a device; this
//! is the list to look at.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use xtask::flags::Flags;
use xtask::{Outcome, packages, shell};

use crate::Bench;
use crate::loop_device::drop_caches;
use crate::server::{Contender, Folder, Placement, Server};
use crate::wrk::Load;

pub(crate) const FLAGS: &str = "\
  --files N        files of 256 KB, asked for at random (400)";

/// Calls that take a file, by descriptor or by path.
const TRACED: &str = "open,openat,openat2,creat,stat,lstat,newfstatat,statx,fstat,access,faccessat2,readlink,\
read,readv,pread64,preadv,preadv2,write,writev,pwrite64,pwritev,pwritev2,sendfile,splice,copy_file_range,\
getdents64,rename,renameat2,unlink,unlinkat,mkdir,mkdirat,rmdir,fsync,fdatasync,sync_file_range,ftruncate,\
fallocate,fadvise64,readahead,madvise,mincore,mmap,flock,utimensat";

const CONFIGURATION: &str = "
worker_processes 2;
events { worker_connections 1024; }
http {
    access_log access.log;
    sendfile on;
    gzip on;
    autoindex on;
    %%DIRECTIVES%%
    server {
        listen 127.0.0.1:%%PORT%%;
        root html;
        location /read/ { alias %%FOLDER%%/html/; sendfile off; }
    }
}
";

pub(crate) fn run(bench: &Bench, flags: &mut Flags) -> Outcome {
    let seconds = bench.seconds;
    let files: u32 = flags.value("--files", 400)?;
    flags.finish()?;
    packages::need(&[packages::WRK, packages::STRACE])?;

    let folder = Folder::new("strace")?;
    for number in 0..files {
        let path = folder.path.join("html").join(number.to_string());
        fs::write(path, vec![b'x'; 256 << 10]).map_err(|error| error.to_string())?;
    }
    let script = format!(
        "request = function()\n  local kind = math.random(1, 20)\n  if kind == 1 then return wrk.format(\"GET\", \"/\") end\n  \
         if kind == 2 then return wrk.format(\"GET\", \"/none\") end\n  local at = kind > 10 and \"/read/\" or \"/\"\n  \
         return wrk.format(\"GET\", at .. math.random(0, {})) end\n",
        files - 1
    );
    if shell::is_root() {
        drop_caches()?;
    } else {
        println!("not root: the page cache stays warm, so few reads are cold");
    }

    let contender = Contender::new("server", &bench.weir, "");
    let configuration = CONFIGURATION.replace("%%FOLDER%%", &folder.path.to_string_lossy());
    let server = Server::start(
        &contender,
        &folder.path,
        &configuration,
        &Placement::default(),
    )?;
    let trace = folder.path.join("trace");
    let mut tracer = Command::new("strace");
    tracer
        .args([
            "-f",
            "-y",
            "-T",
            "-qq",
            "-e",
            &format!("trace={TRACED}"),
            "-o",
        ])
        .arg(&trace);
    for pid in server.workers() {
        tracer.args(["-p", &pid.to_string()]);
    }
    let mut tracer = tracer
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("strace: {error}"))?;
    std::thread::sleep(Duration::from_millis(500));
    let url = format!("http://127.0.0.1:{}/", server.port);
    let load = Load {
        connections: 64,
        seconds,
        url,
        script: Some(script),
        ..Load::default()
    }
    .run();
    let names = thread_names(&server);
    // INT makes strace detach and finish its file.
    let _ = Command::new("kill")
        .args(["-INT", &tracer.id().to_string()])
        .status();
    let _ = tracer.wait();
    println!("{} requests under strace", load?.requests);
    report(
        &fs::read_to_string(&trace).map_err(|error| format!("{}: {error}", trace.display()))?,
        &names,
    );
    Ok(())
}

/// The names of the workers' threads by their ids.
fn thread_names(server: &Server) -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    for pid in server.workers() {
        for task in fs::read_dir(format!("/proc/{pid}/task"))
            .into_iter()
            .flatten()
            .flatten()
        {
            let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            names.insert(
                task.file_name().to_string_lossy().into_owned(),
                name.trim().to_owned(),
            );
        }
    }
    names
}

/// Count and longest time of each kind of call, by thread name without its number.
fn report(trace: &str, names: &BTreeMap<String, String>) {
    let mut table: BTreeMap<(String, String), (u64, f64, String)> = BTreeMap::new();
    for (thread, call) in calls(trace) {
        let Some(kind) = kind(&call) else {
            continue;
        };
        let name = names.get(&thread).map_or("(ended)", String::as_str);
        let name = name
            .trim_end_matches(|c: char| c.is_ascii_digit() || "-#/".contains(c))
            .to_owned();
        let time = call
            .rsplit_once('<')
            .and_then(|(_, rest)| rest.trim_end_matches('>').parse().ok())
            .unwrap_or(0.0);
        let entry = table.entry((name, kind)).or_insert((0, 0.0, String::new()));
        entry.0 += 1;
        if time >= entry.1 {
            entry.1 = time;
            entry.2 = call.chars().take(110).collect();
        }
    }
    println!(
        "{:<16} {:<34} {:>8} {:>10}  the longest",
        "thread", "call", "count", "longest"
    );
    for ((name, kind), (count, longest, example)) in table {
        println!(
            "{name:<16} {kind:<34} {count:>8} {:>7.2} ms  {}",
            longest * 1000.0,
            example.trim()
        );
    }
}

/// The calls with the ids of their threads. One that another thread's line interrupts is put together
/// again: its flags stand in one half, its time in the other.
fn calls(trace: &str) -> Vec<(String, String)> {
    let mut begun: BTreeMap<&str, &str> = BTreeMap::new();
    let mut calls = Vec::new();
    for line in trace.lines() {
        let Some((thread, call)) = line.split_once(' ') else {
            continue;
        };
        let call = call.trim_start();
        if let Some(first) = call.strip_suffix("<unfinished ...>") {
            begun.insert(thread, first);
        } else if call.starts_with("<... ") {
            let first = begun.remove(thread);
            if let (Some(first), Some((_, rest))) = (first, call.split_once(" resumed>")) {
                calls.push((thread.to_owned(), format!("{first}{rest}")));
            }
        } else {
            calls.push((thread.to_owned(), call.to_owned()));
        }
    }
    calls
}

/// What a call is for our question; `None` for calls on sockets, pipes and event descriptors.
fn kind(call: &str) -> Option<String> {
    let (name, arguments) = call.split_once('(')?;
    if name.starts_with("<...") || name.starts_with(['+', '-']) {
        return None;
    }
    let first = arguments.split([',', ')']).next().unwrap_or_default();
    let no_file = [
        "socket:",
        "eventfd",
        "eventpoll",
        "pipe:",
        "signalfd",
        "timerfd",
        "TCP",
        "UNIX",
    ];
    // sendfile's first descriptor is the socket it sends to; its second is the file.
    if name != "sendfile" && no_file.iter().any(|word| first.contains(word)) {
        return None;
    }
    if name == "mmap" && arguments.contains("MAP_ANONYMOUS") {
        return None;
    }
    let marks = ["RESOLVE_CACHED", "RWF_NOWAIT", "O_PATH"]
        .iter()
        .filter(|mark| arguments.contains(**mark));
    let marks: Vec<&str> = marks.copied().collect();
    Some(if marks.is_empty() {
        name.to_owned()
    } else {
        format!("{name} {}", marks.join(" "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupted_calls_are_put_together() {
        let trace = "7  preadv2(5</a>, <unfinished ...>\n8  read(6</b>, \"\", 1) = 0 <0.2>\n\
                     7  <... preadv2 resumed>[], 1, 0, RWF_NOWAIT) = 1 <0.1>\n";
        let joined = "preadv2(5</a>, [], 1, 0, RWF_NOWAIT) = 1 <0.1>";
        let expected = [
            ("8".to_owned(), "read(6</b>, \"\", 1) = 0 <0.2>".to_owned()),
            ("7".to_owned(), joined.to_owned()),
        ];
        assert_eq!(calls(trace), expected);
    }

    #[test]
    fn sockets_are_no_files_and_flags_are_told() {
        assert_eq!(kind("read(5<socket:[123]>, \"x\", 10) = 1 <0.1>"), None);
        assert_eq!(
            kind("read(5</a/b>, \"x\", 10) = 1 <0.1>").as_deref(),
            Some("read")
        );
        assert_eq!(
            kind("preadv2(5</a/b>, [], 1, 0, RWF_NOWAIT) = 1 <0.1>").as_deref(),
            Some("preadv2 RWF_NOWAIT")
        );
        assert_eq!(
            kind("sendfile(5<socket:[1]>, 6</a>, [0], 10) = 10 <0.1>").as_deref(),
            Some("sendfile")
        );
    }
}
