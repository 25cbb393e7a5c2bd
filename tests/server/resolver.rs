//! `resolver`: names that are only known while running.

use std::net::IpAddr;

use weir_tests::{Answer, Dns, Site, http, is_oracle, skip_on_oracle, until};

const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

/// A server that passes requests to itself, by the name that the request has.
fn site(dns: u16, more: &str) -> Site {
    http(&format!(
        "resolver 127.0.0.1:{dns} {more};
        resolver_timeout 500ms;
        server {{
            listen 127.0.0.1:%%PORT%%;
            location / {{ proxy_pass http://$arg_name:%%PORT%%/there; add_header X-Address $upstream_addr always; }}
            location /there {{ return 200 there; }}
        }}"
    ))
}

#[test]
fn a_name_is_asked_for_once_in_its_time() {
    let dns = Dns::start(Answer::Addresses(vec![HERE], 60));
    let server = site(dns.port(), "").start();
    for _ in 0..5 {
        let reply = server.get("/?name=Host.example").expect(200);
        assert_eq!(
            (reply.text().as_str(), reply.field("X-Address")),
            ("there", &*format!("127.0.0.1:{}", server.port(0)))
        );
    }
    assert_eq!(dns.queries(), 2, "one for IPv4, one for IPv6");
}

#[test]
fn all_loops_ask_once() {
    if skip_on_oracle("each worker of nginx asks for itself") {
        return;
    }
    let dns = Dns::start(Answer::Addresses(vec![HERE], 60));
    let server = site(dns.port(), "ipv6=off")
        .main("worker_processes 4;")
        .start();
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| server.get("/?name=host.example").expect(200));
        }
    });
    assert_eq!(dns.queries(), 1);
}

#[test]
fn the_case_of_a_question_is_random() {
    if skip_on_oracle("nginx asks in small letters") {
        return;
    }
    let dns = Dns::start(Answer::Addresses(vec![HERE], 60));
    let server = site(dns.port(), "ipv6=off").start();
    let host = "a-name-that-is-long-enough-for-chance.example";
    let other = "another-name-that-is-long-enough.example";
    for name in [host, other] {
        server.get(&format!("/?name={name}")).expect(200);
    }
    let names = dns.names();
    let lower: Vec<String> = names.iter().map(|name| name.to_ascii_lowercase()).collect();
    assert_eq!(lower, [host, other]);
    let has = |name: &String, is: fn(&char) -> bool| name.chars().any(|letter| is(&letter));
    for name in names {
        assert!(has(&name, char::is_ascii_uppercase) && has(&name, char::is_ascii_lowercase));
    }
}

#[test]
fn one_kind_of_address_may_be_enough() {
    let dns = Dns::start(Answer::Addresses(vec![HERE], 60));
    let server = site(dns.port(), "ipv6=off").start();
    server.get("/?name=host.example").expect(200);
    assert_eq!(dns.queries(), 1);
}

#[test]
fn failures_are_502_with_nginxs_words() {
    let dns = Dns::start(Answer::Code(3));
    let server = site(dns.port(), "").start();
    assert_eq!(server.get("/?name=a.example").status, 502);
    server.line(
        "error.log",
        "a.example could not be resolved (3: Host not found)",
    );
    dns.say(Answer::Code(2));
    assert_eq!(server.get("/?name=b.example").status, 502);
    server.line(
        "error.log",
        "b.example could not be resolved (2: Server failure)",
    );
    dns.say(Answer::Silence);
    assert_eq!(server.get("/?name=c.example").status, 502);
    server.line(
        "error.log",
        "c.example could not be resolved (110: Operation timed out)",
    );
    dns.say(Answer::Addresses(vec![HERE], 1));
    assert_eq!(
        server.get("/?name=a.example").status,
        200,
        "a failure is not remembered"
    );
}

#[test]
fn without_a_resolver_only_addresses_work() {
    let server = http(
        "server { listen 127.0.0.1:%%PORT%%; location / { proxy_pass http://$arg_name:%%PORT%%/there; } \
        location /there { return 200 there; } }",
    )
    .start();
    assert_eq!(server.get("/?name=127.0.0.1").text(), "there");
    assert_eq!(server.get("/?name=a.example").status, 502);
    server.line("error.log", "no resolver defined to resolve a.example");
}

#[test]
fn valid_is_stronger_than_the_ttl() {
    let dns = Dns::start(Answer::Addresses(vec![HERE], 0));
    let server = site(dns.port(), "valid=60s ipv6=off").start();
    server.get("/?name=a.example").expect(200);
    dns.say(Answer::Code(2));
    server.get("/?name=a.example").expect(200);
    assert_eq!(dns.queries(), 1);
}

#[test]
fn an_answer_that_has_expired_is_asked_for_again() {
    let dns = Dns::start(Answer::Addresses(vec![HERE], 1));
    let server = site(dns.port(), "ipv6=off").start();
    server.get("/?name=a.example").expect(200);
    dns.say(Answer::Code(2));
    assert!(until(|| (server.get("/?name=a.example").status == 502).then_some(())).is_some());
}

#[test]
fn a_client_that_leaves_waits_for_no_name() {
    let dns = Dns::start(Answer::Silence);
    let server = site(
        dns.port(),
        "; log_format status $status; access_log status.log status",
    )
    .start();
    let mut client = server.connect();
    client.request("GET", "/?name=a.example", &[]);
    assert!(until(|| (dns.queries() > 0).then_some(())).is_some());
    drop(client);
    assert_eq!(server.line("status.log", ""), "499");
}

#[test]
fn bad_resolvers_are_refused() {
    for (line, message) in [
        ("resolver valid=1s;", "no name servers defined"),
        ("resolver 127.0.0.1 valid=x;", "invalid parameter: valid=x"),
        (
            "resolver 127.0.0.1 ipv4=off ipv6=off;",
            "\"ipv4\" and \"ipv6\" cannot both be \"off\"",
        ),
        (
            "resolver 127.0.0.1:0x;",
            "invalid port in resolver \"127.0.0.1:0x\"",
        ),
    ] {
        // The oracle may be older than 1.23.1, which has these parameters.
        if is_oracle() && line.contains("ipv4") {
            continue;
        }
        let finished = http(line).test();
        assert!(
            finished.code == 1 && finished.first_line().contains(message),
            "{line}: {}",
            finished.stderr
        );
    }
}
