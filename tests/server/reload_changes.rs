//! HUP reads what has changed: the result must be that of a fresh start, whatever the change.

use std::fmt::Write as _;

use weir_tests::{Reply, Server, Signal, Site, http, skip_on_oracle, until};

use crate::tls;

const WHY: &str = "nginx builds everything anew";

/// A generator of the same numbers for the same seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % limit
    }

    fn is_one_of(&mut self, limit: usize) -> bool {
        self.below(limit) == 0
    }
}

/// A `server` block.
#[derive(Clone)]
struct Virtual {
    name: usize,
    /// The lines of its own level.
    lines: Vec<String>,
    locations: Vec<(String, String)>,
}

/// A configuration that can be edited.
#[derive(Clone)]
struct Model {
    servers: Vec<Virtual>,
    map: usize,
    header: usize,
    format: usize,
    /// Which of the backends the group has.
    group: usize,
    zone: usize,
    cache: bool,
    snippet: usize,
    /// Its text before the servers, so that all of them move.
    comment: usize,
    names: usize,
}

const KINDS: usize = 14;

impl Model {
    fn new(dice: &mut Dice) -> Model {
        let mut model = Model {
            servers: Vec::new(),
            map: 0,
            header: 0,
            format: 0,
            group: 0,
            zone: 0,
            cache: false,
            snippet: 0,
            comment: 0,
            names: 0,
        };
        for _ in 0..5 {
            model.add_server(dice);
        }
        model
    }

    fn add_server(&mut self, dice: &mut Dice) {
        self.names += 1;
        let mut server = Virtual {
            name: self.names,
            lines: Vec::new(),
            locations: Vec::new(),
        };
        for _ in 0..3 {
            Model::add_location(&mut server, dice);
        }
        let at = dice.below(self.servers.len() + 1);
        self.servers.insert(at, server);
    }

    fn add_location(server: &mut Virtual, dice: &mut Dice) {
        let number = dice.below(1000);
        let value = dice.below(1000);
        let name = format!("/{number}/");
        let text = match dice.below(KINDS) {
            0 => format!("return 200 \"{value} $server_name\";"),
            1 => "return 200 \"$mapped $arg_a\";".to_owned(),
            2 => "proxy_pass http://group;".to_owned(),
            3 => "proxy_pass http://127.0.0.1:%%PORT1%%/x/;".to_owned(),
            4 => format!(
                "set $v{} {value}; return 200 \"$v{}\";",
                value % 5,
                value % 5
            ),
            5 => format!("if ($arg_a = 1) {{ return 200 one{value}; }} return 200 other;"),
            6 => format!("location {name}inner/ {{ return 200 inner{value}; }} return 200 outer;"),
            7 => "include snippet.conf;".to_owned(),
            8 => format!("rewrite ^ /{number}/to?b={value} break; return 200 \"$uri $args\";"),
            9 => format!("error_page 404 =200 @named{value}; try_files /nothing =404;"),
            10 => format!("add_header X-Own {value}; charset utf-8; try_files /page =404;"),
            11 => "limit_except GET { deny all; } return 200 limited;".to_owned(),
            12 => "access_log probe.log probe; return 200 logged;".to_owned(),
            _ => format!("expires {value}s; alias %%DIR%%/html/;"),
        };
        if text.contains("@named") {
            let named = format!("@named{value}");
            let answer = format!("return 200 named{value};");
            server.locations.retain(|(known, _)| *known != named);
            server.locations.push((named, answer));
        }
        server.locations.retain(|(known, _)| *known != name);
        server.locations.push((name, text));
    }

    /// Changes something.
    fn edit(&mut self, dice: &mut Dice) {
        let at = dice.below(self.servers.len());
        let other = dice.below(self.servers.len());
        match dice.below(16) {
            0 => self.map += 1,
            1 => self.header += 1,
            2 => self.format += 1,
            3 => self.group += 1,
            4 => self.zone += 1,
            5 => self.cache = !self.cache,
            6 => self.snippet += 1,
            7 => self.servers.swap(at, other),
            8 => self.add_server(dice),
            9 if self.servers.len() > 2 => drop(self.servers.remove(at)),
            10 => {
                let line = match dice.below(5) {
                    0 => "add_header X-Server $mapped".to_owned(),
                    1 => format!("set $v{} s", dice.below(5)),
                    2 => "proxy_set_header X-Seen $server_name".to_owned(),
                    3 => "listen 127.0.0.1:%%PORT%% default_server".to_owned(),
                    _ => "limit_req zone=requests burst=10000 nodelay".to_owned(),
                };
                // Only one may be the default, and only one line of each is allowed.
                for server in &mut self.servers {
                    server.lines.retain(|known| {
                        !known.starts_with("listen") || !line.starts_with("listen")
                    });
                }
                let server = &mut self.servers[at];
                server.lines.retain(|known| *known != line);
                server.lines.push(line);
            }
            11 => drop(self.servers[at].lines.pop()),
            12 => drop(self.servers[at].locations.pop()),
            13 => self.comment += 1,
            14 => {
                // Twice the same text, except for the name.
                let mut copy = self.servers[at].clone();
                self.names += 1;
                copy.name = self.names;
                copy.lines.retain(|line| !line.starts_with("listen"));
                self.servers.insert(other, copy);
            }
            _ => Model::add_location(&mut self.servers[at], dice),
        }
    }

    fn text(&self, marker: usize) -> String {
        let mut text = String::new();
        let out = &mut text;
        let backend = ["PORT1", "PORT2"][self.group % 2];
        let _ = writeln!(out, "{}", "# moved\n".repeat(self.comment % 3));
        let _ = writeln!(
            out,
            "map $arg_a $mapped {{ default m{}; 1 one{}; }}",
            self.map, self.map
        );
        let _ = writeln!(
            out,
            "log_format probe 'f{} $server_name $request_uri $status';",
            self.format
        );
        let _ = writeln!(out, "add_header X-Default {};", self.header);
        let _ = writeln!(out, "upstream group {{ server 127.0.0.1:%%{backend}%%; }}");
        let zone = format!(
            "limit_req_zone $arg_none zone=requests:{}k rate=1r/s;",
            64 + self.zone
        );
        let _ = writeln!(out, "{zone}");
        if self.cache {
            let _ = writeln!(out, "open_file_cache max=10;");
        }
        for (port, name) in [("PORT1", "first"), ("PORT2", "second")] {
            let _ = writeln!(
                out,
                "server {{ listen 127.0.0.1:%%{port}%%; access_log off; \
                 location / {{ return 200 \"{name} $http_x_seen $request_uri\"; }} }}"
            );
        }
        for server in &self.servers {
            let name = server.name;
            let listen = match server.lines.iter().any(|line| line.starts_with("listen")) {
                true => "",
                false => "listen 127.0.0.1:%%PORT%%;",
            };
            let _ = writeln!(
                out,
                "server {{\n    {listen} server_name s{name} *.s{name}.test;"
            );
            for line in &server.lines {
                let _ = writeln!(out, "    {line};");
            }
            for (path, inside) in &server.locations {
                let _ = writeln!(out, "    location {path} {{ {inside} }}");
            }
            let _ = writeln!(out, "}}");
        }
        let marker = format!("location / {{ return 200 marker{marker}; }}");
        let _ = writeln!(
            out,
            "server {{ listen 127.0.0.1:%%PORT%%; server_name marker; {marker} }}"
        );
        text
    }

    fn snippet(&self) -> String {
        match self.snippet % 2 {
            0 => format!("return 200 snippet{};", self.snippet),
            _ => format!("set $snip {}; return 200 \"$snip $mapped\";", self.snippet),
        }
    }

    fn site(&self, marker: usize) -> Site {
        http(&self.text(marker))
            .file("snippet.conf", self.snippet())
            .file("html/page", "page")
    }

    /// What the server says to everything that could be asked. Also how many lines that has logged.
    fn answers(&self, server: &Server) -> (Vec<String>, usize) {
        let mut answers = Vec::new();
        let mut logged = 0;
        let mut connection = server.connect();
        let mut ask = |method: &str, target: &str, host: &str| {
            connection.send(format!(
                "{method} {target} HTTP/1.1\r\nHost: {host}\r\nX-Seen: c\r\nContent-Length: 0\r\n\r\n"
            ));
            let reply = connection.reply_to(method);
            if reply.field("Connection") == "close" {
                connection = server.connect();
            }
            answers.push(format!("{method} {host}{target}: {}", shown(&reply)));
        };
        ask("GET", "/", "unknown");
        for virtual_server in &self.servers {
            let host = format!("s{}", virtual_server.name);
            ask("GET", "/", &format!("x.{host}.test"));
            for (path, inside) in &virtual_server.locations {
                if path.starts_with('/') {
                    ask("GET", &format!("{path}?a=1"), &host);
                    ask("GET", &format!("{path}inner/?a=2"), &host);
                    ask("PUT", path, &host);
                    logged += 3 * usize::from(inside.contains("probe.log"));
                }
            }
        }
        (answers, logged)
    }
}

fn shown(reply: &Reply) -> String {
    let mut fields: Vec<String> = reply
        .fields
        .iter()
        .filter(|(name, _)| !["Date", "Expires", "Last-Modified", "ETag"].contains(&name.as_str()))
        .map(|(name, value)| format!("{name}: {value}"))
        .collect();
    fields.sort();
    format!("{} {fields:?} {}", reply.status, reply.text())
}

/// The lines of the log that requests have written since it had `before` lines.
fn log_lines(server: &Server, before: usize, count: usize) -> Vec<String> {
    match count {
        0 => Vec::new(),
        count => server.lines("probe.log", before + count).split_off(before),
    }
}

/// What a virtual server answers.
fn of_host(server: &Server, host: &str) -> Reply {
    server.raw(format!(
        "GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    ))
}

#[test]
fn a_reload_after_any_change_is_like_a_fresh_start() {
    if skip_on_oracle(WHY) {
        return;
    }
    let number = |name: &str, default| {
        let text = std::env::var(name).ok();
        text.and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let cases = number("WEIR_RELOAD_CASES", 30);
    let mut dice = Dice(number("WEIR_RELOAD_SEED", 1) as u64 * 0x9e37_79b9 + 1);
    let mut model = Model::new(&mut dice);
    let mut server = model.site(0).start();
    let mut logged = 0;
    for case in 1..=cases {
        let before = model.text(case - 1);
        for _ in 0..=dice.below(2) {
            model.edit(&mut dice);
        }
        // Several at once now and then, and nothing but the marker.
        if dice.is_one_of(8) {
            (0..4).for_each(|_| model.edit(&mut dice));
        }
        std::fs::write(server.path("snippet.conf"), model.snippet())
            .expect("the folder is writable");
        server.reconfigure(&model.text(case));
        server.signal(Signal::HUP);
        let marker = format!("marker{case}");
        let is_there = || of_host(&server, "marker").text() == marker;
        assert!(
            until(|| is_there().then_some(())).is_some(),
            "{case}: {}",
            model.text(case)
        );

        let fresh = model.site(case).start();
        let (found, lines) = model.answers(&server);
        let (expected, _) = model.answers(&fresh);
        for (found, expected) in found.iter().zip(&expected) {
            let (found, expected) = (portless(&server, found), portless(&fresh, expected));
            assert_eq!(
                found,
                expected,
                "case {case}\n{before}\n=====\n{}",
                model.text(case)
            );
        }
        let expected = log_lines(&fresh, 0, lines);
        assert_eq!(
            log_lines(&server, logged, lines),
            expected,
            "case {case}\n{}",
            model.text(case)
        );
        logged += lines;
        fresh.stop();
    }
    let taken = server.read("error.log");
    let taken = taken
        .lines()
        .filter(|line| line.contains("taken over"))
        .count();
    assert!(
        taken > cases / 4,
        "only {taken} of {cases} reloads took servers over"
    );
}

/// An answer without the ports of its server.
fn portless(server: &Server, text: &str) -> String {
    (0..3).fold(text.to_owned(), |text, index| {
        text.replace(&server.port(index).to_string(), &format!("PORT{index}"))
    })
}

#[test]
fn a_certificate_that_has_changed_is_read_again_and_only_its_server_is_built() {
    if skip_on_oracle(WHY) {
        return;
    }
    let block = "ssl_certificate_key localhost.key;
        server { listen 127.0.0.1:%%PORT%% ssl; server_name one; ssl_certificate localhost.crt; }
        server { listen 127.0.0.1:%%PORT%% ssl; server_name two; ssl_certificate two.crt; ssl_certificate_key two.key; }
        server { listen 127.0.0.1:%%PORT%% ssl; server_name three; ssl_certificate two.crt; ssl_certificate_key two.key; }";
    let pair = tls::self_signed("two");
    let server = tls::https(block)
        .file("two.crt", pair.certificate)
        .file("two.key", pair.key)
        .start();
    let client = tls::Client::new();
    let shown = |name: &str| {
        let mut stream = client.connect(&server, 0, name);
        let _ = tls::ask(&mut stream, "/", "Host: x");
        stream.conn.peer_certificates().expect("a certificate")[0].to_vec()
    };
    let before = ["one", "two", "three"].map(shown);
    let pair = tls::self_signed("two");
    std::fs::write(server.path("two.crt"), pair.certificate).expect("the folder is writable");
    std::fs::write(server.path("two.key"), pair.key).expect("the folder is writable");
    server.signal(Signal::HUP);
    assert!(until(|| (shown("two") != before[1]).then_some(())).is_some());
    assert_eq!(shown("one"), before[0]);
    assert_ne!(
        shown("three"),
        before[2],
        "the file was read for another server first"
    );
    server.line("error.log", "1 of 3 servers were taken over");
}

/// A server block with twenty locations.
fn large_server(number: usize) -> String {
    let locations = (0..20).map(|at| match at % 3 {
        0 => format!("location /a{at}/ {{ expires 1d; }} "),
        1 => format!("location ~ x{at}$ {{ add_header X s{number}; }} "),
        _ => format!("location /r{at}/ {{ return 301 /s{number}$request_uri; }} "),
    });
    let locations: String = locations.collect();
    format!("server {{ listen 127.0.0.1:%%PORT%%; server_name s{number}; {locations} }}\n")
}

/// The answer of the server of this name.
fn ask(server: &Server, name: &str, path: &str) -> Reply {
    server.raw(format!("GET {path} HTTP/1.1\r\nHost: {name}\r\n\r\n"))
}

/// What a process has in memory, in bytes; of what it shares its part.
fn memory_of(process: i32) -> u64 {
    let rollup = format!("/proc/{process}/smaps_rollup");
    let rollup = std::fs::read_to_string(rollup).expect("it lives");
    let mut lines = rollup.lines();
    let line = lines.find_map(|line| line.strip_prefix("Pss_Anon:"));
    let kilobytes = line.map(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>());
    kilobytes.expect("a line").expect("a number") * 1024
}

#[test]
fn a_master_keeps_little_of_its_servers() {
    if skip_on_oracle(WHY) {
        return;
    }
    const FEW: usize = 50;
    const MANY: usize = 100;
    let memory = |count: usize| {
        let servers: String = (0..count).map(large_server).collect();
        let server = http(&servers).start();
        ask(&server, "s0", "/r2/").expect(301);
        let memory = memory_of(server.pid().as_raw_nonzero().get());
        server.stop();
        memory
    };
    // What is the same for any number of servers is in both.
    let few = memory(FEW);
    let many = memory(FEW + MANY);
    let each = many.saturating_sub(few) / MANY as u64;
    assert!(each < 15_000, "{each} bytes for each server");
}

#[test]
fn equal_patterns_of_servers_set_the_variables_of_each() {
    let server = |name: &str, group: &str| {
        format!(
            "server {{ listen 127.0.0.1:%%PORT%%; server_name {name};
                 location ~ ^/(?<first>[a-z]+)/(?<second>[a-z]+)$ {{ return 200 \"{name} ${group} $1 $2\"; }} }}"
        )
    };
    let block = [server("a", "first"), server("b", "second")].concat();
    let server = http(&block).start();
    for (name, group) in [("a", "x"), ("b", "y"), ("a", "x")] {
        let answer = ask(&server, name, "/x/y").text();
        assert_eq!(answer, format!("{name} {group} x y"));
    }
}

#[test]
fn servers_that_inherit_the_same_have_their_own_changes() {
    let block = "add_header A outer; proxy_set_header B outer;
        server { listen 127.0.0.1:%%PORT%%; server_name a; location / { return 200 a; } location /p { proxy_pass http://127.0.0.1:%%PORT1%%; } }
        server { listen 127.0.0.1:%%PORT%%; server_name b; add_header A inner; proxy_set_header B inner;
            location / { return 200 b; } location /p { proxy_pass http://127.0.0.1:%%PORT1%%; } }
        server { listen 127.0.0.1:%%PORT%%; server_name c; location / { add_header A location; return 200 c; }
            location /p { proxy_set_header B location; proxy_pass http://127.0.0.1:%%PORT1%%; } }
        server { listen 127.0.0.1:%%PORT%%; server_name d; location / { return 200 d; } location /p { proxy_pass http://127.0.0.1:%%PORT1%%; } }
        server { listen 127.0.0.1:%%PORT1%%; return 200 $http_b; }";
    let server = http(block).start();
    for (name, expected) in [
        ("a", "outer"),
        ("b", "inner"),
        ("c", "location"),
        ("d", "outer"),
    ] {
        let plain = ask(&server, name, "/");
        assert_eq!(plain.field("A"), expected, "{name}");
        assert_eq!(ask(&server, name, "/p").text(), expected, "{name}");
    }
}

#[test]
fn a_variable_that_no_server_sets_any_more_is_unknown() {
    if skip_on_oracle(WHY) {
        return;
    }
    let block = |lines: &str, answer: &str| {
        format!(
            "server {{ listen 127.0.0.1:%%PORT%%; server_name a; {lines} }}
             server {{ listen 127.0.0.1:%%PORT%%; server_name b; location / {{ return 200 \"{answer}$foo\"; }} }}"
        )
    };
    let mut server = http(&block("set $foo 1;", "x"))
        .tolerate("unknown \"foo\" variable")
        .start();
    assert_eq!(of_host(&server, "b").text(), "x");
    server.reconfigure(&block("", "x"));
    server.signal(Signal::HUP);
    server.line("error.log", "unknown \"foo\" variable");
    assert_eq!(of_host(&server, "b").text(), "x");
    // After a refused reload the next one still works.
    server.reconfigure(&block("set $foo 1;", "y"));
    server.signal(Signal::HUP);
    let is_new = || of_host(&server, "b").text() == "y";
    assert!(until(|| is_new().then_some(())).is_some());
}

#[test]
fn a_refused_reload_leaves_zones_and_the_master_as_they_were() {
    if skip_on_oracle("nginx refuses it in the master") {
        return;
    }
    let block = |key: &str, size: &str, answer: &str| {
        format!(
            "limit_req_zone $remote_addr zone=first:{size} rate=1r/m;
             limit_req_zone ${key} zone=second:64k rate=1r/m;
             server {{
                 listen 127.0.0.1:%%PORT%%;
                 location / {{ return 200 {answer}; }}
                 location /first {{ limit_req zone=first; try_files /nothing =404; }}
                 location /second {{ limit_req zone=second; }}
             }}"
        )
    };
    let mut server = http(&block("remote_addr", "64k", "old"))
        .tolerate("key while previously")
        .tolerate("exited on signal 9")
        .start();
    server.get("/first").expect(404);
    // Another size for the first zone, and another key for the second one, which a worker refuses.
    server.reconfigure(&block("request_uri", "128k", "new"));
    server.signal(Signal::HUP);
    server.line("error.log", "keeps the previous one");
    assert_eq!(server.get("/").text(), "old");
    server.get("/first").expect(503);
    // A worker that starts now runs what the old one ran.
    let started = server.line("error.log", "start worker process ");
    let worker = started.trim().rsplit(' ').next().expect("a number");
    let killed = std::process::Command::new("kill")
        .args(["-9", worker])
        .status();
    assert!(killed.expect("kill runs").success());
    server.line("error.log", "exited on signal 9");
    server.lines("error.log", 1);
    let until_started = || {
        server
            .read("error.log")
            .matches("start worker process ")
            .count()
            == 2
    };
    assert!(until(|| until_started().then_some(())).is_some());
    assert_eq!(server.get("/").text(), "old");
}

#[test]
fn a_zone_that_a_refused_reload_would_have_resized_keeps_its_content() {
    if skip_on_oracle("nginx refuses it in the master") {
        return;
    }
    let block = |key: &str, size: &str, answer: &str| {
        format!(
            "limit_req_zone $remote_addr zone=first:{size} rate=1r/m;
             limit_req_zone ${key} zone=second:64k rate=1r/m;
             server {{
                 listen 127.0.0.1:%%PORT%%;
                 location / {{ return 200 {answer}; }}
                 location /first {{ limit_req zone=first; try_files /nothing =404; }}
                 location /second {{ limit_req zone=second; }}
             }}"
        )
    };
    let mut server = http(&block("remote_addr", "64k", "old"))
        .tolerate("key while previously")
        .start();
    server.get("/first").expect(404);
    server.reconfigure(&block("request_uri", "128k", "refused"));
    server.signal(Signal::HUP);
    server.line("error.log", "keeps the previous one");
    server.reconfigure(&block("remote_addr", "64k", "new"));
    server.signal(Signal::HUP);
    assert!(until(|| (server.get("/").text() == "new").then_some(())).is_some());
    server.get("/first").expect(503);
}
