//! `weir takeover` and `weir shadow`: a real nginx with twenty sites, in whose place Weir comes and goes under load.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use weir_tests::{Port, Scripted, Signal, Site, server_path, skip_on_oracle, until, whole};

const WHY: &str = "nginx has no such command";
const NGINX: &str = "/usr/sbin/nginx";

/// A running nginx of the test's own: a copy of the binary, because the path of a running one is changed for a moment.
struct RunningNginx {
    site: Site,
    ports: Vec<Port>,
    _application: Scripted,
}

impl RunningNginx {
    /// Starts one with this configuration, in which `%%DIR%%` and `%%PORT%%`, `%%PORT1%%`, `%%PORT2%%` and `%%APP%%` are filled in.
    /// `None` where there is no nginx.
    fn start(configuration: &str) -> Option<RunningNginx> {
        let nginx = RunningNginx::prepare(configuration)?;
        nginx.run(&nginx.program(), &[]);
        Some(nginx)
    }

    fn prepare(configuration: &str) -> Option<RunningNginx> {
        if skip_on_oracle(WHY) || !Path::new(NGINX).exists() {
            return None;
        }
        let site = whole("")
            .file("html/index.html", "the first page")
            .file("html/style.css", "body {}")
            .file("html/static/page.txt", "x".repeat(5000))
            .folder("sbin")
            .folder("logs")
            .folder("cache");
        std::fs::copy(NGINX, site.path("sbin/nginx")).expect("the site's folder is writable");
        let nginx = RunningNginx {
            site,
            ports: (0..3).map(|_| Port::take()).collect(),
            _application: fastcgi(),
        };
        nginx.configure(configuration);
        Some(nginx)
    }

    fn configure(&self, configuration: &str) {
        let mut text = configuration.replace("%%DIR%%", &self.site.path("").to_string_lossy());
        for (index, name) in ["%%PORT%%", "%%PORT1%%", "%%PORT2%%"]
            .into_iter()
            .enumerate()
        {
            text = text.replace(name, &self.ports[index].number().to_string());
        }
        if rustix::process::geteuid().is_root() {
            // The site's folder belongs to root.
            text.insert_str(0, "user root;\n");
        }
        let text = text.replace("%%APP%%", &self._application.port().to_string());
        std::fs::write(self.site.path("nginx.conf"), text).expect("the site's folder is writable");
    }

    fn program(&self) -> PathBuf {
        self.site.path("sbin/nginx")
    }

    /// Starts it as a daemon, in the site's folder, with `-p`, `-c` and more.
    fn run(&self, program: &Path, more: &[&str]) {
        let output = Command::new(program)
            .current_dir(self.site.path(""))
            .args([
                "-p",
                &self.site.path("").to_string_lossy(),
                "-c",
                "nginx.conf",
            ])
            .args(["-e", "logs/error.log"])
            .args(more)
            .output()
            .expect("it is executable");
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(until(|| self.titled_master()).is_some(), "{}", self.log());
    }

    fn pid_in(&self, file: &str) -> Option<u32> {
        let text = std::fs::read_to_string(self.site.path(file)).ok()?;
        text.trim().parse().ok()
    }

    fn master(&self) -> Option<u32> {
        self.pid_in("nginx.pid")
    }

    /// The master once it shows what it is: nginx writes its pid file a moment before its title.
    fn titled_master(&self) -> Option<u32> {
        let line = std::fs::read(format!("/proc/{}/cmdline", self.master()?)).ok()?;
        line.starts_with(b"nginx: master process")
            .then(|| self.master())?
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.site.path("logs/error.log")).unwrap_or_default()
    }

    /// Runs a command of Weir for this nginx.
    fn weir(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("the binary runs")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let master = self.master().expect("it is running").to_string();
        let mut command = Command::new(server_path());
        command.args(arguments).args(["--process", &master]);
        command.stdin(Stdio::null());
        command
    }

    /// The status and the body on a new connection.
    fn get(&self, host: &str, target: &str) -> (u16, String) {
        let mut stream = self.connect();
        let (status, body, _) = ask(&mut stream, host, target).expect("a response");
        (status, body)
    }

    fn connect(&self) -> TcpStream {
        TcpStream::connect(("127.0.0.1", self.ports[0].number())).expect("it listens")
    }
}

impl Drop for RunningNginx {
    fn drop(&mut self) {
        for file in ["nginx.pid.oldbin", "nginx.pid"] {
            let Some(number) = self
                .pid_in(file)
                .and_then(|number| i32::try_from(number).ok())
            else {
                continue;
            };
            if let Some(process) = rustix::process::Pid::from_raw(number) {
                let _ = rustix::process::kill_process(process, Signal::TERM);
                until(|| {
                    rustix::process::test_kill_process(process)
                        .is_err()
                        .then_some(())
                });
            }
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// An application that speaks FastCGI: any request gets the same page.
fn fastcgi() -> Scripted {
    Scripted::start(|stream, _| {
        let mut record = [0; 8];
        // Until the empty record of standard input.
        while stream.read_exact(&mut record).is_ok() {
            let length = usize::from(u16::from_be_bytes([record[4], record[5]]));
            let mut content = vec![0; length + usize::from(record[6])];
            if stream.read_exact(&mut content).is_err() {
                return;
            }
            if record[1] == 5 && length == 0 {
                break;
            }
        }
        let page = b"Content-Type: text/html\r\nX-Made-By: application\r\n\r\n<p>made</p>";
        let length = u8::try_from(page.len()).expect("a short page");
        let mut answer = vec![1, 6, 0, 1, 0, length, 0, 0];
        answer.extend_from_slice(page);
        answer.extend_from_slice(&[1, 3, 0, 1, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let _ = stream.write_all(&answer);
    })
}

/// A status, a body, and whether the connection closes.
type Answer = std::io::Result<(u16, String, bool)>;

/// Sends a request on a connection that is kept, and reads the response, or what was in the way.
fn ask(stream: &mut TcpStream, host: &str, target: &str) -> Answer {
    stream.set_read_timeout(Some(weir_tests::PATIENCE))?;
    let head = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    stream.write_all(head.as_bytes())?;
    let mut received = Vec::new();
    let mut buffer = [0; 65536];
    loop {
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            let what = format!("closed after {} bytes", received.len());
            return Err(std::io::Error::other(what));
        }
        received.extend_from_slice(&buffer[..count]);
        let reply = text(&received);
        let Some((head, body)) = reply.split_once("\r\n\r\n") else {
            continue;
        };
        let status = head[9..12].parse().expect("a status");
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("Content-Length: "));
        let is_complete = match length {
            Some(length) => body.len() >= length.parse().expect("a length"),
            None => body.ends_with("0\r\n\r\n"),
        };
        if is_complete {
            let closes = head.contains("Connection: close");
            return Ok((status, body.to_owned(), closes));
        }
    }
}

/// Twenty sites: static ones, proxies, FastCGI, redirects, and a stream.
fn twenty_sites() -> String {
    let mut servers = String::new();
    for number in 1..20 {
        let location = match number % 4 {
            0 => {
                "location / { proxy_pass http://127.0.0.1:%%PORT1%%; proxy_cache pages; proxy_cache_valid 1m; }"
            }
            1 => "location /static/ { expires 1h; } location ~ \\.css$ { add_header X-Style yes; }",
            2 => "location / { fastcgi_pass 127.0.0.1:%%APP%%; fastcgi_param SCRIPT_NAME $uri; }",
            _ => {
                "location /old/ { return 301 /new/; } location = /exact { return 204; } error_page 404 /index.html;"
            }
        };
        servers.push_str(&format!(
            "server {{ listen 127.0.0.1:%%PORT%%; server_name s{number}.example.com; {location} }}\n"
        ));
    }
    format!(
        "load_module /usr/lib/nginx/modules/ngx_stream_module.so;\n{}\
         http {{ access_log %%DIR%%/logs/access.log; root %%DIR%%/html; gzip on;\n\
         proxy_cache_path %%DIR%%/cache keys_zone=pages:1m use_temp_path=off;\n{servers}\
         server {{ listen 127.0.0.1:%%PORT1%%; location / {{ return 200 \"upstream $uri\"; }} }} }}\n\
         stream {{ server {{ listen 127.0.0.1:%%PORT2%%; proxy_pass 127.0.0.1:%%PORT1%%; }} }}",
        MAIN.replace("%%WORKERS%%", "2")
    )
}

/// What every configuration begins with.
const MAIN: &str = "worker_processes %%WORKERS%%; pid %%DIR%%/nginx.pid; error_log %%DIR%%/logs/error.log notice;\n\
                    events { worker_connections 1024; }\n";

/// A configuration with one server.
fn one_site(server: &str) -> String {
    let main = MAIN.replace("%%WORKERS%%", "1");
    format!(
        "{main}http {{ access_log %%DIR%%/logs/access.log; root %%DIR%%/html;\n\
         server {{ listen 127.0.0.1:%%PORT%%; {server} }} }}"
    )
}

/// Clients that never stop asking: some with a connection for each request, some with one for all.
struct Load {
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
    counts: Arc<LoadCounts>,
}

#[derive(Default)]
struct LoadCounts {
    done: AtomicUsize,
    /// Requests on new connections that failed.
    failed: AtomicUsize,
    /// Kept connections that were closed between two requests.
    closed_idle: AtomicUsize,
}

impl Load {
    fn start(port: u16) -> Load {
        let counts = Arc::new(LoadCounts::default());
        let stop = Arc::new(AtomicBool::new(false));
        let threads = (0..8).map(|index| {
            let (counts, stop) = (Arc::clone(&counts), Arc::clone(&stop));
            std::thread::spawn(move || {
                let host = format!("s{}.example.com", index + 1);
                while !stop.load(Ordering::SeqCst) {
                    match index < 4 {
                        true => ask_once(port, &host, &counts),
                        false => ask_kept(port, &host, &counts, &stop),
                    }
                }
            })
        });
        let load = Load {
            threads: threads.collect(),
            stop,
            counts,
        };
        load.goes_on();
        load
    }

    /// Waits until each client has had some responses.
    fn goes_on(&self) {
        let before = self.counts.done.load(Ordering::SeqCst);
        assert!(
            until(|| (self.counts.done.load(Ordering::SeqCst) > before + 80).then_some(()))
                .is_some()
        );
    }

    /// Ends it: failed requests, and connections closed while idle.
    fn end(mut self) -> (usize, usize) {
        self.goes_on();
        self.stop.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            thread.join().expect("a client ends");
        }
        let (failed, closed) = (&self.counts.failed, &self.counts.closed_idle);
        (failed.load(Ordering::SeqCst), closed.load(Ordering::SeqCst))
    }
}

fn ask_once(port: u16, host: &str, counts: &LoadCounts) {
    let stream = TcpStream::connect(("127.0.0.1", port));
    let answer = stream.and_then(|mut stream| ask(&mut stream, host, "/"));
    count(counts, host, &answer);
}

fn count(counts: &LoadCounts, host: &str, answer: &Answer) {
    let counter = match answer {
        Ok((200, _, _)) => &counts.done,
        Ok(_) | Err(_) => &counts.failed,
    };
    counter.fetch_add(1, Ordering::SeqCst);
    if !matches!(answer, Ok((200, _, _))) {
        println!("a new connection to {host}: {answer:?}");
    }
}

fn ask_kept(port: u16, host: &str, counts: &LoadCounts, stop: &AtomicBool) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    let first = ask(&mut stream, host, "/");
    count(counts, host, &first);
    let mut is_open = matches!(first, Ok((_, _, false)));
    while is_open && !stop.load(Ordering::SeqCst) {
        match ask(&mut stream, host, "/") {
            Ok((200, _, closes)) => {
                counts.done.fetch_add(1, Ordering::SeqCst);
                is_open = !closes;
            }
            Ok(_) => {
                counts.failed.fetch_add(1, Ordering::SeqCst);
            }
            Err(_) => {
                counts.closed_idle.fetch_add(1, Ordering::SeqCst);
                is_open = false;
            }
        }
    }
}

#[test]
fn nginx_is_replaced_and_comes_back_under_load() {
    let Some(nginx) = RunningNginx::start(&twenty_sites()) else {
        return;
    };
    let first = nginx.master().expect("it is running");
    let before = std::fs::read(nginx.program()).expect("the binary");
    let load = Load::start(nginx.ports[0].number());
    let output = nginx.weir(&[
        "takeover",
        "--yes",
        "--requests",
        "60",
        "--rate",
        "1000",
        "--json",
    ]);
    let report = text(&output.stdout);
    assert!(
        output.status.success(),
        "{report} {} {}",
        text(&output.stderr),
        nginx.log()
    );
    let weir = nginx.master().expect("the pid file is there");
    assert_ne!(weir, first);
    assert!(
        report.contains(&format!("\"replaced\": {{\"process\": {weir}")),
        "{report}"
    );
    assert!(report.contains("\"requests\": 60"), "{report}");
    let (failed, closed) = load.end();
    // Each worker of nginx closes idle connections when it exits, without a word: each of four clients may meet both.
    assert_eq!(failed, 0, "{report}");
    assert!(closed <= 8, "{closed}");
    assert!(until(|| (!nginx.site.path("nginx.pid.oldbin").exists()).then_some(())).is_some());
    let program = std::fs::read(nginx.program()).expect("the binary");
    assert!(program == before, "the file is nginx's again");
    let (status, body) = nginx.get("s4.example.com", "/x");
    assert_eq!((status, body.as_str()), (200, "upstream /x"));

    let load = Load::start(nginx.ports[0].number());
    let started = std::time::Instant::now();
    let output = nginx.weir(&["takeover", "--undo", "--yes"]);
    assert!(
        output.status.success(),
        "{} {}",
        text(&output.stderr),
        nginx.log()
    );
    println!("undone after {:?}", started.elapsed());
    let back = nginx.master().expect("the pid file is there");
    assert_ne!(back, weir);
    assert_eq!(load.end(), (0, 0), "neither new connections nor kept ones");
    assert!(
        nginx.log().contains("is another program"),
        "{}",
        nginx.log()
    );
    let gone = until(|| (!nginx.site.path("nginx.pid.oldbin").exists()).then_some(()));
    assert!(gone.is_some(), "Weir ends");
    let executable = std::fs::read_link(format!("/proc/{back}/exe")).expect("it is running");
    assert_eq!(executable, nginx.program());
}

#[test]
fn the_way_back_does_not_wait_for_the_last_request_of_the_server_before() {
    let Some(nginx) = RunningNginx::start(&one_site(
        "location / { fastcgi_pass 127.0.0.1:%%APP%%; fastcgi_param SCRIPT_NAME $uri; }",
    )) else {
        return;
    };
    let first = nginx.master().expect("it is running");
    // A request that nginx cannot finish, so that it stays after it was replaced.
    let mut unfinished = nginx.connect();
    unfinished
        .write_all(b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nword")
        .expect("it accepts bytes");
    // It has the request once it serves another one, which came later.
    nginx.get("a", "/x");
    let output = nginx.weir(&["takeover", "--yes", "--requests", "2", "--rate", "1000"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(
        nginx.pid_in("nginx.pid.oldbin"),
        Some(first),
        "it finishes its request"
    );
    let output = nginx.weir(&["takeover", "--undo", "--yes"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let (status, _) = nginx.get("a", "/x");
    assert_eq!(status, 200);
    // The first one has kept its word meanwhile.
    unfinished.write_all(b"-word").expect("it is connected");
    let mut answer = [0; 12];
    unfinished.read_exact(&mut answer).expect("an answer");
    assert_eq!(text(&answer), "HTTP/1.1 200");
}

/// Every file below a directory, with its size and time of change, but for the logs, where nginx writes the requests that it gets.
fn files_below(folder: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).expect("readable").flatten() {
        let (path, meta) = (entry.path(), entry.metadata().expect("it is there"));
        let changed = meta.modified().expect("a time");
        match meta.is_dir() {
            true => {
                found.push(format!("{} {changed:?}", path.display()));
                files_below(&path, found);
            }
            false if path.extension().is_some_and(|extension| extension == "log") => {}
            false => found.push(format!("{} {} {changed:?}", path.display(), meta.len())),
        }
    }
    found.sort();
}

#[test]
fn a_dry_run_changes_nothing() {
    // Nothing of the upstream is cached: the cache's directory is nginx's.
    let sites = twenty_sites().replace("proxy_cache pages;", "");
    let Some(nginx) = RunningNginx::start(&sites) else {
        return;
    };
    let look = || {
        let mut files = Vec::new();
        files_below(&nginx.site.path(""), &mut files);
        let master = nginx.master().expect("it is running");
        let command_line = std::fs::read(format!("/proc/{master}/cmdline")).expect("it is running");
        let mut open: Vec<String> = std::fs::read_dir(format!("/proc/{master}/fd"))
            .expect("it is running")
            .flatten()
            .filter_map(|entry| Some(std::fs::read_link(entry.path()).ok()?.display().to_string()))
            .collect();
        // Channels to workers, which come when these start.
        open.retain(|name| !name.starts_with("socket:"));
        open.sort();
        (files, master, command_line, open)
    };
    let temporary = || {
        let entries = std::fs::read_dir(std::env::temp_dir())
            .expect("readable")
            .flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names.filter(|name| name.starts_with("weir-serve-")).count()
    };
    // Workers and cache processes are all there.
    assert!(until(|| nginx.log().contains("start worker process").then_some(())).is_some());
    let before = look();
    let folder = std::env::temp_dir().join(format!("weir-takeover-test-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("writable");
    let output = nginx
        .command(&["takeover", "--dry-run", "--json", "--requests", "100"])
        .env("TMPDIR", &folder)
        .output()
        .expect("the binary runs");
    let report = text(&output.stdout);
    assert_eq!(look(), before);
    assert_eq!(
        std::fs::read_dir(&folder).expect("readable").count(),
        0,
        "{}",
        temporary()
    );
    std::fs::remove_dir_all(&folder).expect("removed");
    assert!(report.contains("\"differences\": []"), "{report}");
    assert!(
        report.contains("\"requests\": 100,\n  \"not_compared\": 1"),
        "{report}"
    );
    assert!(report.contains("\"replaced\": null"), "{report}");
    assert_eq!(
        output.status.code(),
        Some(0),
        "{report} {}",
        text(&output.stderr)
    );
}

#[test]
fn differences_are_shown_in_groups() {
    let page = "location / { return 200 \"$pid $nginx_version\"; } location /same { return 200 x; } \
                location /pid/ { return 200 $pid; add_header X-Pid $pid; }";
    let Some(nginx) = RunningNginx::start(&one_site(page)) else {
        return;
    };
    let output = nginx.weir(&["takeover", "--dry-run"]);
    let report = text(&output.stdout);
    assert_eq!(output.status.code(), Some(2), "{report}");
    assert!(
        report.contains(" × body: of a 200 response\n      GET http://localhost/"),
        "{report}"
    );
    assert!(report.contains(" × header: x-pid is "), "{report}");
    assert!(!report.contains("/same"), "{report}");
}

#[test]
fn a_configuration_that_cannot_run_changes_nothing() {
    let Some(nginx) = RunningNginx::start(&one_site("")) else {
        return;
    };
    let master = nginx.master();
    let wrong: String = (0..60)
        .map(|number| format!("no_such_directive_{number} on;\n"))
        .collect();
    nginx.configure(&one_site(&wrong));
    let output = nginx.weir(&["takeover", "--yes"]);
    let (said, why) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{said}{why}");
    assert!(why.contains("Weir cannot run this configuration"), "{why}");
    assert!(
        why.contains("unknown directive \"no_such_directive_0\""),
        "{why}"
    );
    assert!(why.contains("nothing was changed"), "{why}");
    let lines = said.lines().count() + why.lines().count();
    assert!(lines <= 24, "one screen, and not {lines} lines");
    assert_eq!(nginx.master(), master);
    let (status, _) = nginx.get("localhost", "/");
    assert_eq!(status, 200, "nginx serves");
}

#[test]
fn a_new_server_that_answers_worse_is_taken_back() {
    // The configuration on the disk is not the one that nginx runs.
    let Some(nginx) = RunningNginx::start(&one_site("location / { return 200 here; }")) else {
        return;
    };
    let master = nginx.master();
    let broken = one_site("location / { return 503; }");
    nginx.configure(&broken);
    let output = nginx.weir(&["takeover", "--yes", "--requests", "0"]);
    let why = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{why}");
    assert!(why.contains("with 503, where the old one had 200"), "{why}");
    assert!(why.contains("serves again"), "{why}");
    assert_eq!(nginx.master(), master, "{}", nginx.log());
    assert!(!nginx.site.path("nginx.pid.oldbin").exists());
    let is_nginx = until(|| (nginx.get("localhost", "/").1 == "here").then_some(()));
    assert!(is_nginx.is_some(), "with the configuration that it had");
}

#[test]
fn a_server_may_have_been_started_in_any_way() {
    let Some(nginx) = RunningNginx::prepare(&one_site("location /title { return 200 x; }")) else {
        return;
    };
    // A relative path, and directives of the command line with spaces.
    nginx.run(
        Path::new("./sbin/nginx"),
        &["-g", "daemon on; worker_priority 1;"],
    );
    let there_and_back = || {
        let output = nginx.weir(&["takeover", "--yes", "--requests", "5"]);
        assert!(
            output.status.success(),
            "{} {}",
            text(&output.stderr),
            nginx.log()
        );
        let output = nginx.weir(&["takeover", "--yes"]);
        assert_eq!(output.status.code(), Some(1));
        assert!(
            text(&output.stderr).contains("is Weir already"),
            "{}",
            text(&output.stderr)
        );
        let output = nginx.weir(&["takeover", "--undo", "--yes"]);
        assert!(
            output.status.success(),
            "{} {}",
            text(&output.stderr),
            nginx.log()
        );
        let output = nginx.weir(&["takeover", "--undo", "--yes"]);
        assert_eq!(output.status.code(), Some(1), "it is nginx already");
    };
    there_and_back();
    let master = nginx.master().and_then(|number| i32::try_from(number).ok());
    let master = master
        .and_then(rustix::process::Pid::from_raw)
        .expect("it is running");
    rustix::process::kill_process(master, Signal::QUIT).expect("it is running");
    let gone = until(|| nginx.master().is_none().then_some(()));
    assert!(gone.is_some(), "{}", nginx.log());
}

#[test]
fn a_server_in_the_foreground_is_left_alone() {
    let Some(nginx) = RunningNginx::prepare(&one_site("")) else {
        return;
    };
    let mut child: Child = Command::new(nginx.program())
        .args([
            "-p",
            &nginx.site.path("").to_string_lossy(),
            "-c",
            "nginx.conf",
        ])
        .args(["-g", "daemon off;"])
        .spawn()
        .expect("it is executable");
    assert!(until(|| nginx.titled_master()).is_some());
    let output = nginx.weir(&["takeover", "--yes"]);
    let why = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{why}");
    assert!(why.contains("runs in the foreground"), "{why}");
    let process = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(process, Signal::QUIT).expect("it is running");
    assert!(child.wait().expect("it ends").success());
}

#[test]
fn another_user_is_told_who_can() {
    let Some(nginx) = RunningNginx::start(&one_site("")) else {
        return;
    };
    if !rustix::process::geteuid().is_root() {
        return;
    }
    use std::os::unix::process::CommandExt as _;
    let output = nginx
        .command(&["takeover", "--yes"])
        .uid(65534)
        .gid(65534)
        .output();
    let Ok(output) = output else {
        println!("skipped: another user cannot run this binary");
        return;
    };
    let why = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{why}");
    assert!(
        why.contains("belongs to another user: root can take it over"),
        "{why}"
    );
    assert!(why.contains("nothing was changed"), "{why}");
}

/// Anyone can give a process the title of a master, and the program of a master is executed.
#[test]
fn a_master_of_another_user_is_not_executed_by_root() {
    use std::os::unix::process::CommandExt as _;
    if skip_on_oracle(WHY) || !rustix::process::geteuid().is_root() {
        return;
    }
    let mut impostor = Command::new("sleep")
        .arg0("nginx: master process /usr/sbin/nginx")
        .arg("60")
        .uid(65534)
        .gid(65534)
        .spawn()
        .expect("sleep is there");
    let number = impostor.id().to_string();
    let title = format!("/proc/{number}/cmdline");
    let shows = || std::fs::read(&title).is_ok_and(|line| line.starts_with(b"nginx: master"));
    assert!(until(|| shows().then_some(())).is_some());
    let output = Command::new(server_path())
        .args(["takeover", "--yes", "--process", &number])
        .stdin(Stdio::null())
        .output()
        .expect("weir runs");
    let why = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{why}");
    assert!(why.contains("belongs to the user 65534"), "{why}");
    impostor.kill().expect("it is ours");
    impostor.wait().expect("it ends");
}

#[test]
fn requests_of_clients_are_repeated_to_both() {
    let locations = "location / { return 200 same; } location /differs { return 200 $nginx_version; } \
                     location /form { return 200 x; }";
    let Some(nginx) = RunningNginx::start(&one_site(locations)) else {
        return;
    };
    let log = nginx.site.path("logs/access.log");
    let mut command = nginx.command(&[
        "shadow",
        "--share",
        "100",
        "--rate",
        "1000",
        "--requests",
        "6",
        "--json",
    ]);
    let child = command
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    // One after the other, until they are seen: the command follows the log from some moment on.
    let mut child = Some(child);
    let mut sent = 0;
    let done = until(|| {
        for target in ["/?token=secret-1", "/a", "/differs?key=secret-2"] {
            nginx.get("localhost", target);
            sent += 1;
        }
        let mut post = nginx.connect();
        post.write_all(b"POST /form HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            .expect("sent");
        let mut answer = Vec::new();
        post.read_to_end(&mut answer).expect("a response");
        let running = child.as_mut()?;
        running.try_wait().expect("a child").map(drop)
    });
    let child = child.take().expect("it was started");
    assert!(done.is_some(), "it ends after six requests");
    let output = child.wait_with_output().expect("it ends");
    let report = text(&output.stdout);
    assert_eq!(output.status.code(), Some(2), "{report}");
    assert!(report.contains("\"requests\": 6"), "{report}");
    assert!(
        report.contains("GET http://localhost/differs?…"),
        "{report}"
    );
    assert!(
        !report.contains("secret") && !report.contains("/form"),
        "{report}"
    );
    let lines = std::fs::read_to_string(log).expect("a log");
    let posts = lines
        .lines()
        .filter(|line| line.contains("POST /form"))
        .count();
    assert_eq!(posts, sent / 3, "nothing but GET is repeated");
}

/// A page by which the two servers can be told apart: nginx's version, and that of nginx which Weir is compatible with, differ.
const WHO: &str = "location = /who { return 200 $nginx_version; }";

impl RunningNginx {
    /// Starts `weir canary` and waits until a new connection reaches it.
    fn canary(&self, share: &str, more: &[&str]) -> Child {
        let (_, version) = self.get("a", "/who");
        let mut command = self.command(&["canary", "--json", "--share", share]);
        let child = command
            .args(more)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let other = until(|| (self.get("a", "/who").1 != version).then_some(()));
        assert!(other.is_some(), "{}", self.log());
        child
    }

    /// Waits for its end: the exit code and the report.
    fn ended(&self, child: Child) -> (Option<i32>, String) {
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(text(&output.stderr), "");
        (output.status.code(), text(&output.stdout))
    }
}

#[test]
fn a_canary_gets_connections_and_gives_all_of_them_back() {
    let sites = twenty_sites().replacen(
        "root %%DIR%%",
        &format!("server {{ listen 127.0.0.1:%%PORT%%; server_name a; {WHO} }} root %%DIR%%"),
        1,
    );
    let Some(nginx) = RunningNginx::start(&sites) else {
        return;
    };
    if !rustix::process::geteuid().is_root() {
        // Sockets of other processes are root's to share.
        return;
    }
    let load = Load::start(nginx.ports[0].number());
    let canary = nginx.canary("50", &["--time", "3600"]);
    load.goes_on();
    // logrotate moves the logs and tells nginx: both servers go on in new files.
    let log = nginx.site.path("logs/access.log");
    std::fs::rename(log, nginx.site.path("logs/access.log.1")).expect("the log is there");
    signal(nginx.master().expect("it runs"), Signal::USR1);
    let length = |name: &str| std::fs::metadata(nginx.site.path(name)).map_or(0, |file| file.len());
    let old_is_complete = || {
        let before = length("logs/access.log.1");
        load.goes_on();
        let is_complete = length("logs/access.log.1") == before && length("logs/access.log") > 0;
        is_complete.then_some(())
    };
    assert!(
        until(old_is_complete).is_some(),
        "a server writes on in the renamed log"
    );
    signal(canary.id(), Signal::INT);
    let (code, report) = nginx.ended(canary);
    assert_eq!(code, Some(0), "{report}");
    assert!(
        report.contains("\"returned\": null") && report.contains("\"share\": 50"),
        "{report}"
    );
    let version = nginx.get("a", "/who").1;
    for _ in 0..50 {
        assert_eq!(
            nginx.get("a", "/who").1,
            version,
            "nginx alone has connections again"
        );
    }
    // Kept connections to the canary are closed between requests, as a server does that ends.
    let (failed, _) = load.end();
    assert_eq!(failed, 0);
    let leftovers = nginx.weir(&["takeover", "--dry-run", "--requests", "5"]);
    assert!(
        leftovers.status.code().is_some_and(|code| code != 1),
        "{}",
        text(&leftovers.stderr)
    );
}

#[test]
fn a_canary_that_does_worse_is_called_back() {
    let server = format!("{WHO} location / {{ if ($nginx_version = 1.31.5) {{ return 503; }} }}");
    let Some(nginx) = RunningNginx::start(&one_site(&server)) else {
        return;
    };
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let canary = nginx.canary("50", &["--time", "3600"]);
    let stop = AtomicBool::new(false);
    let (code, report) = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::SeqCst) {
                nginx.get("a", "/index.html");
            }
        });
        let ended = nginx.ended(canary);
        stop.store(true, Ordering::SeqCst);
        ended
    });
    assert_eq!(code, Some(2), "{report}");
    assert!(
        report.contains("of its responses were errors (5xx)"),
        "{report}"
    );
    for _ in 0..20 {
        assert_eq!(nginx.get("a", "/index.html").0, 200);
    }
}

#[test]
fn a_canary_ends_with_a_reload_of_nginx() {
    let Some(nginx) = RunningNginx::start(&one_site(WHO)) else {
        return;
    };
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let canary = nginx.canary("100", &["--time", "3600"]);
    signal(nginx.master().expect("it runs"), Signal::HUP);
    let (code, report) = nginx.ended(canary);
    assert_eq!(code, Some(2), "{report}");
    assert!(report.contains("nginx has been reloaded"), "{report}");
    assert_eq!(nginx.get("a", "/index.html").0, 200);
}

fn signal(process: u32, signal: Signal) {
    let process = i32::try_from(process)
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    rustix::process::kill_process(process.expect("a process"), signal).expect("it runs");
}
