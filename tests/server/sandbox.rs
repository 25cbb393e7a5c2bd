//! `worker_sandbox`: what a worker may still do, what it may not, and what the log says of it.

use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixDatagram, UnixListener};

use weir_tests::{
    Answer, Connection, Dns, Server, Signal, Site, http, skip_on_oracle, until, whole,
};

const WHY: &str = "nginx has no sandbox";
/// What lines say that would fail a test otherwise.
const DENIED: &str = "is denied by worker_sandbox";

/// A site with a sandbox.
fn sandbox(block: &str) -> Option<Site> {
    if skip_on_oracle(WHY) {
        return None;
    }
    Some(http(block).main("worker_sandbox on;"))
}

/// A server in whose root a script is run.
fn script(main: &str, code: &str) -> Option<Server> {
    let block = format!(
        "server {{ listen 127.0.0.1:%%PORT%%; default_type text/plain;
            location /page {{ }}
            location / {{ content_by_lua_block {{ {code} }} }} }}"
    );
    let site = sandbox(&block)?.main(main).file("html/page", "page");
    Some(site.tolerate(DENIED).start())
}

/// What the kernel says of the worker.
fn status_of_worker(server: &Server) -> String {
    let master = server.pid().as_raw_nonzero();
    let tasks = format!("/proc/{master}/task/{master}/children");
    let children = std::fs::read_to_string(tasks).expect("the master lives");
    let worker = children.split_whitespace().last().expect("it has a worker");
    std::fs::read_to_string(format!("/proc/{worker}/status")).expect("the worker lives")
}

#[test]
fn capabilities_and_system_calls_are_given_up() {
    let Some(site) = sandbox("server { listen 127.0.0.1:%%PORT%%; return 200 $pid; }") else {
        return;
    };
    let server = site.start();
    server.get("/").expect(200);
    let status = status_of_worker(&server);
    let fact = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_whitespace().nth(1))
            .unwrap_or_default()
            .to_owned()
    };
    assert_eq!(
        (fact("NoNewPrivs:").as_str(), fact("Seccomp:").as_str()),
        ("1", "2")
    );
    assert_eq!(u64::from_str_radix(&fact("CapBnd:"), 16), Ok(0));
    // The harness keeps the worker root: to open files of others is all that is left to it.
    let permitted = u64::from_str_radix(&fact("CapPrm:"), 16).expect("a number");
    assert_eq!(permitted & !0b1011, 0, "{permitted:#x}");
}

#[test]
fn without_the_directive_nothing_is_given_up() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = http("server { listen 127.0.0.1:%%PORT%%; return 200; }").start();
    server.get("/").expect(200);
    let status = status_of_worker(&server);
    assert!(
        status.contains("NoNewPrivs:\t0") && status.contains("Seccomp:\t0"),
        "{status}"
    );
}

#[test]
fn a_script_can_start_no_program() {
    let code = "ngx.print(tostring(os.execute('true')), ' ', tostring(io.popen('true')))";
    let Some(server) = script("", code) else {
        return;
    };
    for _ in 0..3 {
        let said = server.get("/").expect(200).text();
        assert!(
            !said.starts_with('0') && !said.starts_with("true"),
            "{said}"
        );
    }
    let line = server.line("error.log", "is denied by worker_sandbox");
    assert!(line.contains("system call clone ("), "{line}");
    server.get("/page").expect(200);
    let log = server.read("error.log");
    assert_eq!(
        log.matches("system call clone (").count(),
        1,
        "one line is enough\n{log}"
    );
}

#[test]
fn programs_that_are_named_may_be_started() {
    let main = "worker_sandbox_path execute /bin /usr/bin /lib /usr/lib /lib64;";
    let code = "local p = io.popen('/bin/echo started'); ngx.print(p:read('*a')); p:close()";
    let Some(server) = script(main, code) else {
        return;
    };
    assert_eq!(server.get("/").expect(200).text(), "started\n");
}

#[test]
fn a_script_opens_only_files_that_the_configuration_names() {
    let code = "local function open(name) local f, e = io.open(name); if f then f:close() end; return f and 'open' or e end
        ngx.say(open(ngx.config.prefix() .. '/html/page'))
        ngx.say(open(ngx.config.prefix() .. '/given/file'))
        ngx.say(open(ngx.config.prefix() .. '/secret'))";
    let block = format!(
        "server {{ listen 127.0.0.1:%%PORT%%; location / {{ content_by_lua_block {{ {code} }} }} }}"
    );
    let Some(site) = sandbox(&block) else {
        return;
    };
    let site = site
        .main("worker_sandbox_path read given;")
        .tolerate(DENIED);
    let site = site
        .file("html/page", "")
        .file("given/file", "")
        .file("secret", "");
    let said = site.start().get("/").expect(200).text();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(&lines[..2], ["open", "open"]);
    assert!(lines[2].ends_with("Permission denied"), "{said}");
}

#[test]
fn machine_code_of_scripts_and_patterns_runs() {
    let code = "jit.on(); local sum = 0; for i = 1, 1000000 do sum = (sum + i) % 1000003 end
        local found = 0; for i = 1, 100 do if ngx.re.find('abc' .. i, '[a-c]+(\\\\d+)', 'jo') then found = found + 1 end end
        ngx.print(tostring(jit.status()), ' ', sum, ' ', found)";
    let Some(server) = script("", code) else {
        return;
    };
    let said = server.get("/").expect(200).text();
    assert!(
        said.starts_with("true ") && said.ends_with(" 100"),
        "{said}"
    );
    assert!(!server.read("error.log").contains(DENIED));
}

#[test]
fn unix_sockets_are_reached_where_they_are_named() {
    let Some(site) = sandbox(
        "upstream app { server unix:%%DIR%%/app.sock; }
        server { listen 127.0.0.1:%%PORT%%; access_log syslog:server=unix:%%DIR%%/log.sock;
            location / { proxy_pass http://app; } }",
    ) else {
        return;
    };
    let app = UnixListener::bind(site.path("app.sock")).expect("a socket");
    let log = UnixDatagram::bind(site.path("log.sock")).expect("a socket");
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = app.accept().expect("a connection");
        let mut head = [0; 1024];
        let _ = stream.read(&mut head).expect("a request");
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\napp";
        stream.write_all(answer).expect("it is read");
    });
    let server = site.start();
    assert_eq!(server.get("/there").expect(200).text(), "app");
    thread.join().expect("no panic");
    let mut line = [0; 1024];
    let length = log.recv(&mut line).expect("a line");
    assert!(String::from_utf8_lossy(&line[..length]).contains("/there"));
}

#[test]
fn logs_temporary_files_caches_and_passwords_are_where_they_were() {
    let Some(site) = sandbox(
        "proxy_cache_path cache keys_zone=c:1m;
        server { listen 127.0.0.1:%%PORT%%; root sites/$arg_site; access_log by/$arg_site.log;
            location / { }
            location /up { client_body_in_file_only clean; proxy_pass http://127.0.0.1:%%PORT1%%; proxy_buffers 2 4k;
                proxy_buffer_size 4k; proxy_busy_buffers_size 4k; }
            location /cached { proxy_cache c; proxy_cache_valid 1h; proxy_pass http://127.0.0.1:%%PORT1%%;
                add_header X-Status $upstream_cache_status; }
            location /closed { auth_basic x; auth_basic_user_file users/$arg_site; try_files /page =404; }
            location /put { dav_methods PUT; root put; }
            location /kept { root html; proxy_store on; proxy_pass http://127.0.0.1:%%PORT1%%; }
        }
        server { listen 127.0.0.1:%%PORT1%%; client_max_body_size 10m; location / { root html; error_page 405 =200 /big; } }",
    ) else {
        return;
    };
    let server = site
        .folder("by")
        .folder("put")
        .file("sites/a/page", "page of a")
        .file("html/big", vec![b'x'; 3_000_000])
        .file("html/up", vec![b'x'; 3_000_000])
        .file("html/cached", "cached")
        .file("html/kept", "kept")
        .file("users/a", "me:{PLAIN}secret\n")
        .start();
    assert_eq!(server.get("/page?site=a").expect(200).text(), "page of a");
    server.line("by/a.log", "/page?site=a");
    let post = format!(
        "POST /up?site=a HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\nConnection: close\r\n\r\n{}",
        "x".repeat(100_000)
    );
    server.raw(post).expect(200);
    assert_eq!(server.get("/up?site=a").expect(200).body.len(), 3_000_000);
    server.get("/cached?site=a").expect(200);
    assert!(
        until(|| (server.get("/cached?site=a").field("X-Status") == "HIT").then_some(())).is_some()
    );
    server.get("/closed?site=a").expect(401);
    let me = ["Authorization: Basic bWU6c2VjcmV0"];
    assert_eq!(
        server.get_with("/closed?site=a", &me).expect(200).text(),
        "page of a"
    );
    let put =
        "PUT /put?site=a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nConnection: close\r\n\r\nnew";
    server.raw(put).expect(201);
    server.get("/kept?site=a").expect(200);
}

#[test]
fn certificates_named_by_variables_are_read() {
    let Some(site) = sandbox(
        "server { listen 127.0.0.1:%%PORT%% ssl; ssl_certificate pairs/$ssl_server_name.crt;
            ssl_certificate_key pairs/$ssl_server_name.key; return 200 secret; }",
    ) else {
        return;
    };
    let pair = crate::tls::self_signed("localhost");
    let site = site.file("pairs/localhost.crt", pair.certificate);
    let server = site.file("pairs/localhost.key", pair.key).start();
    let said = crate::tls::Client::new().get(&server, "localhost", "/");
    assert!(said.expect("a handshake").ends_with("secret"));
}

#[test]
fn a_path_that_begins_with_a_variable_opens_everything_and_that_is_said() {
    let block = "server { listen 127.0.0.1:%%PORT%%; set $top /usr; root $top/share; }";
    let Some(site) = sandbox(block) else { return };
    let server = site.start();
    server.line("error.log", "all files are readable");
}

#[test]
fn refused_files_of_scripts_are_in_the_log() {
    let code = "local _, why = io.open('/etc/hostname'); ngx.print(why)";
    let Some(server) = script("", code) else {
        return;
    };
    for _ in 0..3 {
        let said = server.get("/").expect(200).text();
        assert_eq!(said, "/etc/hostname: Permission denied");
    }
    server.line("error.log", "\"/etc/hostname\" is denied by worker_sandbox");
    let log = server.read("error.log");
    assert_eq!(
        log.matches("is denied by worker_sandbox").count(),
        1,
        "{log}"
    );
}

#[test]
fn the_state_of_acme_and_databases_that_reload_may_be_used() {
    // Whether they are allowed is seen in the rules; that they work is stated by their own tests, which run in the sandbox
    // with WEIR_TEST_MAIN.
    let Some(site) = sandbox(
        "acme_issuer there { uri https://127.0.0.1:1/; state_path state; accept_terms_of_service; }
        server { listen 127.0.0.1:%%PORT%%; return 200; }",
    ) else {
        return;
    };
    let server = site.main("error_log debug.log debug;").start();
    let line = server.line("debug.log", "/state\"");
    assert!(line.contains("may change"), "{line}");
}

#[test]
fn names_are_resolved_and_pools_started_later() {
    let dns = Dns::start(Answer::Addresses(vec![[127, 0, 0, 1].into()], 60));
    let Some(site) = sandbox(&format!(
        "resolver 127.0.0.1:{}; server {{ listen 127.0.0.1:%%PORT%%; location = /there {{ return 200 there; }}
            location /big {{ aio threads=late; sendfile off; }}
            location / {{ proxy_pass http://$arg_name:%%PORT%%/there; }} }}",
        dns.port()
    )) else {
        return;
    };
    let site = site.main("worker_processes 2; thread_pool late threads=3;");
    let mut server = site.file("html/big", vec![b'x'; 500_000]).start();
    assert_eq!(server.get("/?name=a.example").expect(200).text(), "there");
    assert_eq!(server.get("/big").expect(200).body.len(), 500_000);
    // More loops are more threads, which begin in the sandbox.
    server.reconfigure("server { listen 127.0.0.1:%%PORT%%; return 200 more; }");
    server.signal(Signal::HUP);
    assert!(until(|| (server.get("/").text() == "more").then_some(())).is_some());
}

/// The process that answers a connection.
fn worker_of(connection: &mut Connection) -> String {
    connection.get("/").expect(200).text()
}

#[test]
fn a_reload_that_needs_another_folder_replaces_the_worker_and_keeps_its_connections() {
    let block = |root: &str| {
        format!(
            "server {{ listen 127.0.0.1:%%PORT%%; root {root}; location = / {{ return 200 $pid:$connection; }} location / {{ }} }}"
        )
    };
    let Some(site) = sandbox(&block("html")) else {
        return;
    };
    let mut server = site.file("html/a", "a").file("other/b", "b").start();
    let mut connection = server.connect();
    let first = worker_of(&mut connection);
    let process = |text: &str| text.split(':').next().unwrap_or_default().to_owned();
    // The same needs: the same process.
    server.signal(Signal::HUP);
    server.line("error.log", "exited with code 0");
    assert_eq!(process(&worker_of(&mut connection)), process(&first));
    server.reconfigure(&block("other"));
    server.signal(Signal::HUP);
    let replaced = until(|| {
        let text = server.get("/").expect(200).text();
        (process(&text) != process(&first)).then_some(text)
    });
    assert!(replaced.is_some(), "another process serves");
    assert_eq!(server.get("/b").expect(200).text(), "b");
    // The new worker serves before the old one is told to hand over.
    let moved = until(|| {
        let text = worker_of(&mut connection);
        (process(&text) != process(&first)).then_some(())
    });
    assert!(moved.is_some(), "the connection has moved");
}

#[test]
fn a_folder_that_is_replaced_is_served_again_by_a_new_worker() {
    let Some(site) = sandbox("server { listen 127.0.0.1:%%PORT%%; root %%DIR%%/site; }") else {
        return;
    };
    let site = site
        .tolerate(DENIED)
        .file("site/a", "old")
        .file("site.new/a", "new");
    let server = site.start();
    assert_eq!(server.get("/a").expect(200).text(), "old");
    let (site, old) = (server.path("site"), server.path("site.old"));
    std::fs::rename(&site, old).expect("it is ours");
    std::fs::rename(server.path("site.new"), &site).expect("it is ours");
    let served = until(|| (server.get("/a").text() == "new").then_some(()));
    assert!(served.is_some());
    server.line("error.log", "the files of worker_sandbox have changed");
}

#[test]
fn a_link_may_be_pointed_at_another_release() {
    let Some(site) = sandbox("server { listen 127.0.0.1:%%PORT%%; root %%DIR%%/app/current; }")
    else {
        return;
    };
    let site = site.file("app/1/a", "one").file("app/2/a", "two");
    let (link, next) = (site.path("app/current"), site.path("app/next"));
    std::os::unix::fs::symlink("1", &link).expect("a link");
    let server = site.start();
    assert_eq!(server.get("/a").expect(200).text(), "one");
    std::os::unix::fs::symlink("2", &next).expect("a link");
    std::fs::rename(&next, &link).expect("it is ours");
    assert_eq!(server.get("/a").expect(200).text(), "two");
}

#[test]
fn a_server_without_a_master_says_that_it_has_no_sandbox() {
    if skip_on_oracle(WHY) {
        return;
    }
    let block = "events { } http { server { listen 127.0.0.1:%%PORT%%; return 200; } }";
    let server = whole(block)
        .main("worker_sandbox on; master_process off;")
        .start();
    server.get("/").expect(200);
    assert!(
        server
            .read("stderr")
            .contains("\"worker_sandbox\" has no effect without \"master_process\"")
    );
}

#[test]
fn stream_and_datagrams_work_in_it() {
    if skip_on_oracle(WHY) {
        return;
    }
    let conf =
        "events { } stream { server { listen 127.0.0.1:%%PORT%%; proxy_pass 127.0.0.1:%%PORT1%%; }
        server { listen 127.0.0.1:%%PORT1%%; return stream; } }";
    let server = whole(conf).main("worker_sandbox on;").start();
    assert_eq!(server.connect().rest(), b"stream");
}

#[test]
fn a_cache_whose_folder_is_removed_is_used_again() {
    let Some(site) = sandbox(
        "proxy_cache_path cache keys_zone=c:1m;
        server { listen 127.0.0.1:%%PORT%%; location / { proxy_cache c; proxy_cache_valid 1h; proxy_pass http://127.0.0.1:%%PORT1%%;
            add_header X-Status $upstream_cache_status; } }
        server { listen 127.0.0.1:%%PORT1%%; return 200 content; }",
    ) else {
        return;
    };
    let server = site.tolerate(DENIED).start();
    let hit =
        |target: &str| until(|| (server.get(target).field("X-Status") == "HIT").then_some(()));
    assert!(hit("/a").is_some());
    std::fs::remove_dir_all(server.path("cache")).expect("it is there");
    let number = std::cell::Cell::new(0);
    let stored = until(|| {
        number.set(number.get() + 1);
        let target = format!("/{}", number.get());
        server.get(&target).expect(200);
        server.path("cache/store").exists().then_some(target)
    });
    assert!(hit(&stored.expect("the folder is made anew")).is_some());
}
