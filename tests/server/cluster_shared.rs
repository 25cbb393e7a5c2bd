//! What members of a cluster share by Redis besides purges and rates: sessions, limits of what is in progress, key-value zones of
//! `stream`. And what the log says of who is no member.

use std::io::Read as _;
use std::net::TcpStream;

use weir_tests::{Connection, Port, Redis, Server, Site, http, skip_on_oracle, until, whole};

use crate::cache_fills::{Origin, head, say};
use crate::cluster::{SECRET, members};

/// An application that begins a session with each response, and says its name.
fn application(name: &'static str) -> Origin {
    Origin::start(move |stream, asked, number| {
        let fields = match asked.contains("Cookie:") {
            true => String::new(),
            false => format!("Set-Cookie: s={name}-{number}\r\n"),
        };
        say(stream, &head(&fields, name.len()));
        say(stream, name.as_bytes());
    })
}

#[test]
fn members_know_each_others_sessions() {
    if skip_on_oracle("it has no clusters") {
        return;
    }
    let Some(mut redis) = Redis::start(&[]) else {
        return;
    };
    let apps = [application("one"), application("two")];
    let start = || {
        http(&format!(
            "cluster edge {{ secret \"{SECRET}\"; member 127.0.0.1:1; redis 127.0.0.1:{}; }}
             upstream app {{
                server 127.0.0.1:{}; server 127.0.0.1:{};
                sticky learn create=$upstream_cookie_s lookup=$cookie_s zone=sessions:64k sync=redis cluster=edge;
             }}
             server {{ listen 127.0.0.1:%%PORT%%;
                location = /metrics {{ prometheus; }}
                location / {{ proxy_pass http://app; }} }}",
            redis.port(),
            apps[0].port,
            apps[1].port
        ))
        .main("worker_processes 2; master_process off;")
        .start()
    };
    let mut servers = vec![start(), start()];
    let until_redis = |server: &Server| {
        let up = "weir_cluster_redis_up{cluster=\"edge\"} 1";
        until(|| {
            server
                .get("/metrics")
                .expect(200)
                .text()
                .contains(up)
                .then_some(())
        })
        .expect("Redis is there");
    };
    servers.iter().for_each(until_redis);
    let begin = |server: &Server, count: usize| -> Vec<(String, String)> {
        let session = |_| {
            let reply = server.get("/").expect(200);
            let cookie = reply.field("Set-Cookie").replace("s=", "Cookie: s=");
            (cookie, reply.text())
        };
        (0..count).map(session).collect()
    };
    // Ten sessions whose servers would be right by chance once in a thousand times.
    let know = |server: &Server, sessions: &[(String, String)]| {
        let is_right = |(cookie, name): &(String, String)| {
            server.get_with("/", &[cookie]).expect(200).text() == *name
        };
        until(|| sessions.iter().all(is_right).then_some(())).expect("it knows all sessions");
    };
    let sessions = begin(&servers[0], 10);
    know(&servers[1], &sessions);
    // One that comes later knows them too.
    servers.push(start());
    know(&servers[2], &sessions);
    // Without Redis each goes on with what it knows, and tells the rest later. What Redis itself has lost comes back with use.
    redis.kill();
    let away = "weir_cluster_redis_up{cluster=\"edge\"} 0";
    until(|| {
        servers[0]
            .get("/metrics")
            .text()
            .contains(away)
            .then_some(())
    })
    .expect("it is away");
    let later = begin(&servers[0], 10);
    know(&servers[0], &later);
    know(&servers[1], &sessions);
    redis.start_again();
    know(&servers[1], &later);
}

/// A request that has begun and waits for a byte of its body; `false`: it was refused.
fn held(server: &Server) -> (Connection, bool) {
    let mut connection = server.connect();
    connection.request(
        "POST",
        "/held",
        &["Content-Length: 1", "Expect: 100-continue"],
    );
    let begun = connection.at_least(12).starts_with(b"HTTP/1.1 100");
    (connection, begun)
}

#[test]
fn members_count_what_is_in_progress_together() {
    if skip_on_oracle("it has no clusters") {
        return;
    }
    let Some(mut redis) = Redis::start(&[]) else {
        return;
    };
    let peers = [Port::take(), Port::take()];
    let numbers = [peers[0].number(), peers[1].number()];
    let start = |peer: &u16| {
        http(&format!(
            "cluster edge {{ secret \"{SECRET}\"; budget 5s; {} redis 127.0.0.1:{}; }}
             limit_conn_zone all zone=one:1m sync=redis cluster=edge;
             server {{ listen 127.0.0.1:%%PORT%%; listen 127.0.0.1:{peer} cluster=edge;
                location = /metrics {{ prometheus; }}
                location /sink/ {{ return 200 done; }}
                location / {{ limit_conn one 4; proxy_pass http://127.0.0.1:%%PORT%%/sink/; }} }}",
            members(&numbers),
            redis.port()
        ))
        .main("worker_processes 2; master_process off;")
        .start()
    };
    let servers: Vec<Server> = numbers.iter().map(start).collect();
    for server in &servers {
        until(|| {
            let text = server.get("/metrics").expect(200).text();
            let wanted = [
                "weir_cluster_members_live{cluster=\"edge\"} 2",
                "redis_up{cluster=\"edge\"} 1",
            ];
            wanted.iter().all(|line| text.contains(line)).then_some(())
        })
        .expect("all members answer, and Redis");
    }
    // Half of it at first, and all of it once Redis has said that no other member has the key.
    let mut first = Vec::new();
    until(|| {
        let (connection, begun) = held(&servers[0]);
        first.extend(begun.then_some(connection));
        (first.len() == 4).then_some(())
    })
    .expect("it is alone");
    assert_eq!(servers[0].get("/").status, 503);
    // The other one takes its first part, and learns that it was nobody's to give.
    let (mut second, begun) = held(&servers[1]);
    assert!(begun, "nobody waits for Redis");
    until(|| (servers[1].get("/").status == 503).then_some(())).expect("it learns of the first");
    // What has ended there is free here.
    for mut connection in first.drain(..) {
        connection.send("x");
        connection.reply().expect(200);
    }
    until(|| (servers[1].get("/").status == 200).then_some(())).expect("it learns of the end");
    // Without Redis, half of the limit.
    redis.kill();
    let away = "weir_cluster_redis_up{cluster=\"edge\"} 0";
    until(|| {
        servers[1]
            .get("/metrics")
            .text()
            .contains(away)
            .then_some(())
    })
    .expect("it is away");
    until(|| {
        let (mut connection, begun) = held(&servers[1]);
        let next = servers[1].get("/").status;
        connection.send("x");
        connection.reply();
        (begun && next == 503).then_some(())
    })
    .expect("it has two of four places");
    second.send("x");
    second.reply().expect(200);
}

/// A site with both blocks, in this order or in the other one.
fn with_stream(http: &str, stream: &str, stream_is_first: bool) -> Site {
    let http = format!("http {{ root html; {http} }}");
    let (first, second) = match stream_is_first {
        true => (stream, &http[..]),
        false => (&http[..], stream),
    };
    whole(&format!("events {{}}\n{first}\n{second}\n"))
}

#[test]
fn a_key_value_zone_of_stream_is_the_same_on_all_members() {
    if skip_on_oracle("it has no clusters") {
        return;
    }
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let ports = [Port::take(), Port::take()];
    // The blocks in either order.
    let start = |port: &Port, is_first: bool| {
        let stream = format!(
            "stream {{ keyval_zone zone=pairs:64k sync=redis cluster=edge; keyval $server_addr $value zone=pairs;
                server {{ listen 127.0.0.1:{}; return \"<$value>\"; }} }}",
            port.number()
        );
        let http = format!(
            "cluster edge {{ secret \"{SECRET}\"; member 127.0.0.1:1; redis 127.0.0.1:{}; }}
             server {{ listen 127.0.0.1:%%PORT%%;
                location /api/ {{ api write=on; allow 127.0.0.1; deny all; }} }}",
            redis.port()
        );
        let site = with_stream(&http, &stream, is_first);
        site.main("worker_processes 2; master_process off;").start()
    };
    let servers = [start(&ports[0], true), start(&ports[1], false)];
    until(|| {
        let made = crate::api::send(
            &servers[0],
            "POST",
            "stream/keyvals/pairs",
            "{\"127.0.0.1\":\"a\"}",
        );
        (made.status == 201).then_some(())
    })
    .expect("Redis is there");
    for port in &ports {
        until(|| {
            let mut text = String::new();
            let mut stream = TcpStream::connect(("127.0.0.1", port.number())).expect("it listens");
            stream.read_to_string(&mut text).expect("it says something");
            (text == "<a>").then_some(())
        })
        .expect("the entry arrives");
    }
}

#[test]
fn who_is_no_member_costs_a_line_and_not_one_for_each_question() {
    if skip_on_oracle("it has no clusters") {
        return;
    }
    let peers = [Port::take(), Port::take()];
    let numbers = [peers[0].number(), peers[1].number()];
    let start = |peer: u16, secret: &str| {
        http(&format!(
            "cluster edge {{ secret \"{secret}\"; budget 40ms; {} }}
             server {{ listen 127.0.0.1:%%PORT%%; listen 127.0.0.1:{peer} cluster=edge;
                location = /metrics {{ prometheus; }} }}",
            members(&numbers)
        ))
        .main("worker_processes 2; master_process off;")
        .start()
    };
    let servers = [
        start(numbers[0], SECRET),
        start(numbers[1], "another secret than that one"),
    ];
    let refused = |server: &Server| -> u64 {
        let text = server.get("/metrics").expect(200).text();
        let line = text
            .lines()
            .find(|line| line.starts_with("weir_cluster_refused_total"));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok())
            .unwrap_or(0)
    };
    for server in &servers {
        until(|| (refused(server) > 50).then_some(())).expect("it is asked again and again");
        let log = server.read("error.log");
        let lines = log
            .lines()
            .filter(|line| line.contains("request is not of a member"));
        assert_eq!(lines.count(), 1, "{log}");
        let lines = log
            .lines()
            .filter(|line| line.contains("gives no valid answer"));
        assert!(lines.count() <= 2, "{log}");
    }
}

#[test]
fn what_is_wrong_with_what_is_shared_is_said() {
    if skip_on_oracle("it has no clusters") {
        return;
    }
    let learn = "sticky learn create=$upstream_cookie_s lookup=$cookie_s zone=s:64k";
    let group = |words: &str| format!("upstream u {{ server 127.0.0.1:1; {learn} {words}; }}");
    let rows = [
        (group("sync"), "\"sync\" alone is not supported"),
        (
            group("sync=share cluster=edge"),
            "\"sticky\" has no sync=share",
        ),
        (group("sync=redis"), "\"sync\" and \"cluster\" go together"),
        (
            group("sync=redis cluster=edge"),
            "cluster \"edge\" has no \"redis\"",
        ),
        (
            group("sync=redis cluster=other"),
            "unknown cluster \"other\"",
        ),
        (
            "limit_conn_zone all zone=two:1m sync=redis cluster=edge;".to_owned(),
            "cluster \"edge\" has no \"redis\"",
        ),
    ];
    let block = |lines: &str| {
        format!(
            "cluster edge {{ secret \"{SECRET}\"; member 127.0.0.1:7070; }} {lines}
             server {{ listen 127.0.0.1:%%PORT%%; }}"
        )
    };
    for (lines, message) in rows {
        let finished = http(&block(&lines)).test();
        assert!(
            finished.stderr.contains(message),
            "{lines}\n{}",
            finished.stderr
        );
    }
    for (zone, message) in [
        (
            "keyval_zone zone=z:64k sync=redis cluster=none;",
            "unknown cluster \"none\"",
        ),
        (
            "limit_conn_zone $server_addr zone=z:64k sync=share cluster=none;",
            "unknown cluster \"none\"",
        ),
        (
            "limit_conn_zone $server_addr zone=z:64k sync=redis cluster=edge;",
            "has no \"redis\"",
        ),
    ] {
        let stream =
            format!("stream {{ {zone} server {{ listen 127.0.0.1:%%PORT1%%; return a; }} }}");
        for stream_is_first in [true, false] {
            let finished = with_stream(&block(""), &stream, stream_is_first).test();
            assert!(
                finished.stderr.contains(message),
                "{zone}\n{}",
                finished.stderr
            );
        }
    }
}
