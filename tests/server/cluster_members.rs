//! Members of a cluster that show each other certificates, that find each other in Redis, that share a key-value zone; and
//! what is said about the owner of a key.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use weir_tests::{Port, Redis, Server, Signal, Site, http, skip_on_oracle, until};

use crate::cluster::{FRESH, Nodes, SECRET, asked, members, node, owner_of, plain_origin};
use crate::cluster_redis::{Journaled, versioned_origin};

/// An authority, as a file and as what signs.
struct TestAuthority(CertifiedIssuer<'static, KeyPair>);

impl TestAuthority {
    fn new() -> TestAuthority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("random bytes");
        TestAuthority(CertifiedIssuer::self_signed(params, key).expect("a key that signs"))
    }

    /// The files of a member whose certificate has this name.
    fn give(&self, site: Site, name: &str, trusted: &TestAuthority) -> Site {
        let key = KeyPair::generate().expect("random bytes");
        let params = CertificateParams::new(vec![name.to_owned()]).expect("a host name");
        let certificate = params.signed_by(&key, &self.0).expect("a key that signs");
        site.file("ca.crt", trusted.0.pem())
            .file("member.crt", certificate.pem())
            .file("member.key", key.serialize_pem())
    }
}

const TLS: &str =
    "tls certificate=member.crt certificate_key=member.key trusted_certificate=ca.crt";

#[test]
fn members_show_each_other_certificates_of_their_authority() {
    if skip_on_oracle("it has no clusters") {
        return;
    }
    let (ours, others) = (TestAuthority::new(), TestAuthority::new());
    let origin = plain_origin(FRESH);
    let peers: Vec<Port> = (0..4).map(|_| Port::take()).collect();
    let numbers: Vec<u16> = peers.iter().map(Port::number).collect();
    let start = |own: usize, signer: &TestAuthority, name: &str| {
        let cluster = format!(
            "budget 2s; {} {TLS} name=members.example;",
            members(&numbers)
        );
        let site = http(&node(numbers[own], origin.port, &cluster, ""));
        signer
            .give(site, name, &ours)
            .main("worker_processes 2; master_process off;")
            .start()
    };
    let servers = [
        start(0, &ours, "members.example"),
        start(1, &ours, "members.example"),
        start(2, &others, "members.example"),
        start(3, &ours, "strangers.example"),
    ];
    let path_of = |owner: usize| {
        let mut paths = (0..).map(|number| format!("/secured/{number}"));
        let is_owned = |path: &String| {
            let key = format!("http://127.0.0.1:{}{path}", origin.port);
            owner_of(&peers, &key) == owner
        };
        paths.find(is_owned).expect("each member owns a key")
    };
    // The first one was there before the second, and asks it only once it has answered.
    let named = format!("member 127.0.0.1:{} of", numbers[1]);
    until(|| {
        let log = servers[0].read("error.log");
        let about = log.lines().filter(|line| line.contains(&named));
        let (back, gone): (Vec<&str>, Vec<&str>) =
            about.partition(|line| line.contains("answers again"));
        (log.contains(" members, this one is ") && back.len() == gone.len()).then_some(())
    })
    .expect("the second member answers");
    // A member answers a member.
    let path = path_of(1);
    for server in &servers[..2] {
        assert_eq!(server.get(&path).expect(200).text(), path);
    }
    assert_eq!(asked(&origin, &path), 1);
    // What is no member gets nothing of a member, and its clients get what they asked for.
    for server in &servers[2..] {
        assert_eq!(server.get(&path).expect(200).text(), path);
        assert!(asked(&origin, &path) > 1);
    }
    servers[1].line("error.log", "client SSL certificate verify error");
    servers[1].line("error.log", "its certificate has another name");
    // The port takes neither plain requests nor strangers with the secret's name only.
    let mut plain = std::net::TcpStream::connect(("127.0.0.1", numbers[0])).expect("it listens");
    let mut answer = String::new();
    std::io::Write::write_all(&mut plain, b"GET /a HTTP/1.0\r\nHost: a\r\n\r\n").expect("it reads");
    std::io::Read::read_to_string(&mut plain, &mut answer).expect("it closes the connection");
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
}

#[test]
fn what_is_wrong_with_members_is_said_with_its_place() {
    if skip_on_oracle("it has no clusters") {
        return;
    }
    let rows = [
        (
            "tls certificate=a certificate_key=b x=y;",
            "invalid parameter \"x=y\"",
        ),
        (
            "tls certificate=a certificate_key=b name=c;",
            "\"tls\" needs certificate=, certificate_key= and trusted_certificate=",
        ),
        (
            "tls certificate=/none certificate_key=/none trusted_certificate=/none;",
            "cannot load certificate \"/none\"",
        ),
        (
            "discover redis=nodes;",
            "\"discover redis=\" without \"redis\"",
        ),
        (
            "discover redis=a/b; redis b;",
            "invalid parameter \"redis=a/b\"",
        ),
        (
            "discover redis=nodes expires=1s; redis b;",
            "an entry is valid for at least 3s",
        ),
        (
            "discover redis=a; discover redis=b; redis b;",
            "there is another list in Redis already",
        ),
    ];
    for (lines, message) in rows {
        let block =
            format!("cluster edge {{ secret \"{SECRET}\"; member 127.0.0.1:7070; {lines} }}");
        let finished = http(&block).test();
        assert!(
            finished.stderr.contains(message),
            "{lines}\n{}",
            finished.stderr
        );
    }
    let zones = [
        ("sync", "\"sync\" alone is not supported"),
        (
            "sync=share cluster=edge",
            "\"keyval_zone\" has no sync=share",
        ),
        ("sync=redis", "\"sync\" and \"cluster\" go together"),
        (
            "sync=redis cluster=edge",
            "cluster \"edge\" has no \"redis\"",
        ),
        (
            "sync=redis cluster=edge state=/tmp/x",
            "\"state\" and \"sync\" exclude each other",
        ),
    ];
    for (words, message) in zones {
        let block = format!(
            "cluster edge {{ secret \"{SECRET}\"; member 127.0.0.1:7070; }} keyval_zone zone=one:1m {words};"
        );
        let finished = http(&block).test();
        assert!(
            finished.stderr.contains(message),
            "{words}\n{}",
            finished.stderr
        );
    }
}

#[test]
fn members_find_each_other_in_redis() {
    if skip_on_oracle("it has no clusters") {
        return;
    }
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let (origin, _) = versioned_origin();
    let peers: Vec<Port> = (0..3).map(|_| Port::take()).collect();
    let start = |peer: &Port| {
        let cluster = format!(
            "budget 5s; discover redis=nodes expires=3s; redis 127.0.0.1:{};",
            redis.port()
        );
        http(&node(peer.number(), origin.port, &cluster, ""))
            .main("worker_processes 2; master_process off;")
            .start()
    };
    let mut servers: Vec<Server> = peers.iter().map(start).collect();
    for (server, peer) in servers.iter().zip(&peers) {
        let own = format!("has 3 members, this one is 127.0.0.1:{}", peer.number());
        server.line("error.log", &own);
    }
    // One that is gone does not renew its entry.
    let mut gone = servers.remove(2);
    gone.signal(Signal::KILL);
    let _ = gone.ended();
    servers[0].line("error.log", "has 2 members");
    // While Redis is away, who was there stays.
    drop(redis);
    servers[0].line("error.log", "what needs it goes on without");
    servers[0].get("/page").expect(200);
    let log = servers[0].read("error.log");
    // At the start it may have found itself alone.
    let (_, later) = log
        .split_once("what needs it goes on without")
        .expect("that was waited for");
    assert!(!later.contains("has 1 members"), "{log}");
    assert!(
        !log.contains("has 1 members, this one is 127.0.0.1:1"),
        "{log}"
    );
}

#[test]
fn a_key_value_zone_is_the_same_on_all_members() {
    if skip_on_oracle("it has no clusters") {
        return;
    }
    let Some(mut redis) = Redis::start(&[]) else {
        return;
    };
    let start = || {
        http(&format!(
            "cluster edge {{ secret \"{SECRET}\"; member 127.0.0.1:1; redis 127.0.0.1:{}; }}
             keyval_zone zone=one:64k timeout=1h sync=redis cluster=edge; keyval $arg_key $value zone=one;
             server {{ listen 127.0.0.1:%%PORT%%;
                location /api/ {{ api write=on; allow 127.0.0.1; deny all; }}
                location / {{ return 200 \"$value\"; }} }}",
            redis.port()
        ))
        .main("worker_processes 2; master_process off;")
        .start()
    };
    let mut servers = [start(), start()];
    let send = |server: &Server, method: &str, body: &str| {
        crate::api::send(server, method, "http/keyvals/one", body)
    };
    let is = |server: &Server, key: &str, value: &str| {
        until(|| (server.get(&format!("/?key={key}")).text() == value).then_some(()))
            .expect("the change arrives");
    };
    until(|| {
        (send(&servers[0], "POST", "{\"a\":\"1\",\"b\":\"2 3\"}").status == 201).then_some(())
    })
    .expect("Redis is there");
    assert_eq!(
        servers[0].get("/?key=b").text(),
        "2 3",
        "who has made a change sees it"
    );
    is(&servers[1], "b", "2 3");
    send(&servers[1], "PATCH", "{\"a\":\"other\"}").expect(204);
    send(&servers[1], "PATCH", "{\"b\":null}").expect(204);
    is(&servers[0], "a", "other");
    is(&servers[0], "b", "");
    // What is there is decided by Redis, not by a copy.
    send(&servers[0], "POST", "{\"a\":\"1\"}").expect(409);
    send(&servers[0], "PATCH", "{\"none\":\"1\"}").expect(404);
    send(
        &servers[0],
        "POST",
        "{\"c\":{\"value\":\"short\",\"expire\":300}}",
    )
    .expect(201);
    // The key is free again when its time has passed, for all.
    until(|| (send(&servers[0], "POST", "{\"c\":\"again\"}").status == 201).then_some(()))
        .expect("it ends");
    // One that starts later has everything.
    servers[1] = start();
    is(&servers[1], "a", "other");
    is(&servers[1], "c", "again");
    // While Redis is away, the copies stay and changes are refused; an emptied Redis is empty everywhere.
    redis.kill();
    until(|| (send(&servers[0], "PATCH", "{\"a\":\"x\"}").status == 503).then_some(()))
        .expect("it is away");
    assert_eq!(servers[1].get("/?key=a").text(), "other");
    redis.start_again();
    is(&servers[0], "a", "");
    is(&servers[1], "a", "");
}

#[test]
fn a_slot_that_moves_to_another_redis_costs_no_purge() {
    if skip_on_oracle("it has no clusters") {
        return;
    }
    let ports = [Port::take(), Port::take()];
    let lines = |bus: &Port| {
        format!(
            "cluster-enabled yes\ncluster-port {}\ncluster-config-file nodes.conf",
            bus.number()
        )
    };
    let Some(first) = Redis::start(&[&lines(&ports[0])]) else {
        return;
    };
    let second = Redis::start(&[&lines(&ports[1])]).expect("it is installed");
    first.ask(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    let (port, bus) = (first.port().to_string(), ports[0].number().to_string());
    second.ask(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
    for redis in [&first, &second] {
        until(|| {
            redis
                .ask(&["CLUSTER", "INFO"])
                .contains("cluster_state:ok")
                .then_some(())
        })
        .expect("the cluster is complete");
    }
    let (origin, version) = versioned_origin();
    let nodes = Journaled::start(1, origin.port, "", |_| first.port());
    let purge = || nodes.server(0).request("PURGE", "/purge?all", &[]);
    until(|| (purge().status == 200).then_some(())).expect("the journal can be written");
    let stream = "{weir:edge}:journal:one";
    let slot = first.ask(&["CLUSTER", "KEYSLOT", stream]);
    let (from, to) = (
        first.ask(&["CLUSTER", "MYID"]),
        second.ask(&["CLUSTER", "MYID"]),
    );
    second.ask(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from]);
    first.ask(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to]);
    let port = second.port().to_string();
    let moved = first.ask(&["MIGRATE", "127.0.0.1", &port, stream, "0", "5000"]);
    assert_eq!(moved, "OK");
    // The slot is still the first one's, which says where the stream is.
    nodes.until_hit(0, "/page");
    version.store(1, std::sync::atomic::Ordering::SeqCst);
    purge().expect(200);
    assert_eq!(nodes.server(0).get("/page").expect(200).text(), "1");
    for redis in [&second, &first] {
        redis.ask(&["CLUSTER", "SETSLOT", &slot, "NODE", &to]);
    }
    until(|| (purge().status == 200).then_some(())).expect("the second one takes it");
    assert!(
        !nodes
            .server(0)
            .read("error.log")
            .contains("it has lost entries")
    );
}

#[test]
fn explain_names_the_owner_of_a_key() {
    if skip_on_oracle("it has no clusters") {
        return;
    }
    let origin = plain_origin(FRESH);
    let nodes = Nodes::start(2, origin.port, "budget 5s;", "");
    for owner in 0..2 {
        let path = nodes.path_owned_by(owner, origin.port, "owned");
        let url = format!("http://127.0.0.1:{}{path}", nodes.servers[0].port(0));
        let said = nodes.servers[0].explain_with(&["--live", &url]).stdout;
        let name = format!("127.0.0.1:{}", nodes.peers[owner].number());
        let line = said
            .lines()
            .find(|line| line.contains("first for this key"));
        let line = line.unwrap_or_else(|| panic!("{said}"));
        assert!(line.contains(&name), "{line}");
        assert_eq!(line.contains("(this server)"), owner == 0, "{line}");
        assert!(line.contains("the origin"), "{line}");
    }
}

#[test]
fn the_ledger_has_a_column_for_the_other_member() {
    if skip_on_oracle("it has no clusters") {
        return;
    }
    let origin = crate::cache_fills::Origin::start(move |stream, _, _| {
        std::thread::park_timeout(std::time::Duration::from_millis(60));
        crate::cache_fills::say(stream, &crate::cache_fills::head(FRESH, 1));
        crate::cache_fills::say(stream, b"x");
    });
    let location = "add_header X-Member $weir_time_member always;";
    let nodes = Nodes::start(2, origin.port, "budget 5s;", location);
    let path = nodes.path_owned_by(1, origin.port, "timed");
    let reply = nodes.servers[0].get(&path).expect(200);
    let time: f64 = reply.field("X-Member").parse().unwrap_or(0.0);
    assert!(time >= 0.05, "{time}");
}
