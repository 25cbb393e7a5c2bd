//! A cluster with Redis: purges that reach members which were away, and what happens when Redis is.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use weir_tests::{
    Answer, Dns, PATIENCE, Port, Redis, Relay, Server, Signal, http, skip_on_oracle, until,
};

use crate::cache_fills::{Origin, head, say};
use crate::cluster::{FRESH, SECRET, members};

/// An origin whose every response has the number of the version that is current.
pub(crate) fn versioned_origin() -> (Origin, Arc<AtomicUsize>) {
    let version = Arc::new(AtomicUsize::new(0));
    let said = Arc::clone(&version);
    let origin = Origin::start(move |stream, _, _| {
        let text = said.load(SeqCst).to_string();
        let fields = FRESH.replace("\"v\"", &format!("\"{text}\""));
        say(stream, &head(&fields, text.len()));
        say(stream, text.as_bytes());
    });
    (origin, version)
}

/// Members of a cluster whose caches outlive them.
pub(crate) struct Journaled {
    pub(crate) servers: Vec<Option<Server>>,
    pub(crate) peers: Vec<Port>,
    folders: Vec<PathBuf>,
    origin: u16,
    /// What the block says besides the members.
    cluster: Vec<String>,
}

impl Journaled {
    /// Starts members; `redis` gives the port at which each one finds Redis.
    pub(crate) fn start(
        count: usize,
        origin: u16,
        more: &str,
        redis: impl Fn(usize) -> u16,
    ) -> Journaled {
        let peers: Vec<Port> = (0..count).map(|_| Port::take()).collect();
        let folder =
            |peer: &Port| std::env::temp_dir().join(format!("weir-test-cache-{}", peer.number()));
        let numbers: Vec<u16> = peers.iter().map(Port::number).collect();
        let cluster = |index| {
            let redis = redis(index);
            format!("{} redis 127.0.0.1:{redis}; {more}", members(&numbers))
        };
        let mut members = Journaled {
            servers: (0..count).map(|_| None).collect(),
            folders: peers.iter().map(folder).collect(),
            peers,
            origin,
            cluster: (0..count).map(cluster).collect(),
        };
        members
            .folders
            .iter()
            .for_each(|folder| drop(std::fs::remove_dir_all(folder)));
        (0..count).for_each(|index| members.start_one(index));
        members
    }

    pub(crate) fn start_one(&mut self, index: usize) {
        let (peer, origin) = (self.peers[index].number(), self.origin);
        let (cluster, folder) = (&self.cluster[index], self.folders[index].display());
        let server = http(&format!(
            "proxy_cache_path {folder} keys_zone=one:1m;
             cluster edge {{ secret \"{SECRET}\"; budget 5s; min_uses 1; {cluster} }}
             server {{ listen 127.0.0.1:%%PORT%%; listen 127.0.0.1:{peer} cluster=edge;
                add_header X-Cache $upstream_cache_status;
                location = /purge {{ cache_purge one cluster=edge; allow 127.0.0.1; deny all; }}
                location = /metrics {{ prometheus; }}
                location / {{ proxy_pass http://127.0.0.1:{origin}; proxy_cache one cluster=edge; }} }}"
        ))
        .main("worker_processes 2; master_process off;")
        .start();
        self.servers[index] = Some(server);
    }

    pub(crate) fn server(&self, index: usize) -> &Server {
        self.servers[index].as_ref().expect("it was not killed")
    }

    /// Kills a member in the middle of whatever it does.
    fn kill(&mut self, index: usize) {
        let mut server = self.servers[index].take().expect("it was not killed");
        server.signal(Signal::KILL);
        let _ = server.ended();
    }

    /// Has a member store the page; nothing is stored before the journal has been read.
    pub(crate) fn until_hit(&self, index: usize, path: &str) {
        until(|| {
            let reply = self.server(index).get(path).expect(200);
            (reply.field("X-Cache") == "HIT").then_some(())
        })
        .expect("it is stored");
    }

    fn purge(&self, index: usize, what: &str) -> weir_tests::Reply {
        self.server(index)
            .request("PURGE", &format!("/purge?{what}"), &[])
    }

    /// A number in a member's metrics.
    fn metric(&self, index: usize, name: &str) -> Option<u64> {
        let text = self.server(index).get("/metrics").expect(200).text();
        let line = text.lines().find(|line| line.starts_with(name))?;
        line.rsplit(' ').next()?.parse().ok()
    }
}

impl Drop for Journaled {
    fn drop(&mut self) {
        self.servers.clear();
        self.folders
            .iter()
            .for_each(|folder| drop(std::fs::remove_dir_all(folder)));
    }
}

#[test]
fn a_member_that_was_away_learns_of_purges_before_it_serves_a_hit() {
    if skip_on_oracle("it has no clusters") {
        return;
    }
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let (origin, version) = versioned_origin();
    let mut nodes = Journaled::start(3, origin.port, "", |_| redis.port());
    for index in 0..3 {
        nodes.until_hit(index, "/page");
        nodes.until_hit(index, "/other");
    }
    // All are there: all are named.
    version.store(1, SeqCst);
    let reply = nodes.purge(0, "all").expect(200);
    for other in &nodes.peers[1..] {
        let name = format!("127.0.0.1:{}", other.number());
        assert!(reply.text().contains(&name), "{}", reply.text());
    }
    for index in 0..3 {
        nodes.until_hit(index, "/page");
        assert_eq!(nodes.server(index).get("/page").text(), "1");
    }
    // One is away, and what happens meanwhile waits for it.
    nodes.kill(2);
    version.store(2, SeqCst);
    let reply = nodes.purge(0, "prefix=http").expect(202);
    let missing = reply.text().split("missing").nth(1).map(str::to_owned);
    let name = format!("127.0.0.1:{}", nodes.peers[2].number());
    assert!(
        missing.is_some_and(|text| text.contains(&name)),
        "{}",
        reply.text()
    );
    nodes.start_one(2);
    for _ in 0..20 {
        assert_eq!(nodes.server(2).get("/page").expect(200).text(), "2");
    }
    // What was not purged is still there.
    nodes.kill(2);
    nodes.start_one(2);
    until(|| (nodes.server(2).get("/page").field("X-Cache") == "HIT").then_some(()))
        .expect("it is kept");
    assert_eq!(nodes.metric(2, "weir_cluster_journal_gaps"), Some(0));
}

#[test]
fn a_member_that_was_stopped_serves_no_hit_before_it_has_read_the_journal() {
    if skip_on_oracle("it has no clusters") {
        return;
    }
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let (origin, version) = versioned_origin();
    let nodes = Journaled::start(2, origin.port, "", |_| redis.port());
    (0..2).for_each(|index| nodes.until_hit(index, "/page"));
    nodes.server(1).signal(Signal::STOP);
    version.store(1, SeqCst);
    // Longer than a busy machine stops anybody.
    let begun = Instant::now();
    let mut purges = 0;
    while begun.elapsed() < Duration::from_millis(2_500) {
        redis.ask(&[
            "XADD",
            "{weir:edge}:journal:one",
            "*",
            "w",
            "1",
            "p",
            "hphttp",
        ]);
        purges += 1;
    }
    nodes.server(1).signal(Signal::CONT);
    for _ in 0..20 {
        assert_eq!(
            nodes.server(1).get("/page").expect(200).text(),
            "1",
            "{purges} purges"
        );
    }
    nodes.until_hit(1, "/page");
}

#[test]
fn a_journal_that_has_lost_what_a_member_knew_makes_everything_stale() {
    if skip_on_oracle("it has no clusters") {
        return;
    }
    let Some(mut redis) = Redis::start(&[]) else {
        return;
    };
    let (origin, version) = versioned_origin();
    let nodes = Journaled::start(2, origin.port, "", |_| redis.port());
    (0..2).for_each(|index| nodes.until_hit(index, "/page"));
    nodes.purge(0, "key=/none").expect(200);
    version.store(1, SeqCst);
    redis.start_again();
    for index in 0..2 {
        nodes
            .server(index)
            .line("error.log", "it has lost entries, what is stored is stale");
        until(|| (nodes.server(index).get("/page").text() == "1").then_some(()))
            .expect("it is asked for again");
    }
    // And it goes on.
    nodes
        .server(1)
        .line("error.log", "Redis of cluster \"edge\" is back");
    version.store(2, SeqCst);
    nodes.purge(1, "all").expect(200);
    (0..2).for_each(|index| assert_eq!(nodes.server(index).get("/page").text(), "2"));
}

#[test]
fn a_member_that_was_away_for_too_long_drops_what_it_has() {
    if skip_on_oracle("it has no clusters") {
        return;
    }
    let Some(redis) = Redis::start(&["stream-node-max-entries 10"]) else {
        return;
    };
    let (origin, version) = versioned_origin();
    let mut nodes = Journaled::start(2, origin.port, "journal length=100;", |_| redis.port());
    (0..2).for_each(|index| nodes.until_hit(index, "/page"));
    until(|| nodes.folders[1].join("note").exists().then_some(())).expect("it keeps its position");
    nodes.kill(1);
    version.store(1, SeqCst);
    nodes.purge(0, "all").expect(202);
    for number in 0..300 {
        nodes.purge(0, &format!("key=/{number}")).expect(202);
    }
    nodes.start_one(1);
    nodes
        .server(1)
        .line("error.log", "what was missed is not in it any more");
    for _ in 0..20 {
        assert_eq!(nodes.server(1).get("/page").expect(200).text(), "1");
    }
}

#[test]
fn without_redis_requests_go_on_and_purges_are_refused() {
    if skip_on_oracle("it has no clusters") {
        return;
    }
    let Some(mut redis) = Redis::start(&[]) else {
        return;
    };
    let (origin, version) = versioned_origin();
    let nodes = Journaled::start(2, origin.port, "", |_| redis.port());
    // What a member has stored before it knew the journal is gone: members that start together do not ask each other for it.
    (0..2).for_each(|index| {
        nodes
            .server(index)
            .line("error.log", "journal of purges of cache");
        nodes.until_hit(index, "/page");
    });
    redis.kill();
    nodes.server(0).line("error.log", "Redis is away");
    version.store(1, SeqCst);
    let reply = nodes.purge(0, "all").expect(503);
    assert!(
        reply.text().contains("cannot be written"),
        "{}",
        reply.text()
    );
    for index in 0..2 {
        let reply = nodes.server(index).get("/page").expect(200);
        assert_eq!(reply.text(), "0");
        nodes.server(index).get("/new").expect(200);
    }
}

#[test]
fn purges_are_kept_for_a_redis_that_is_away_if_the_configuration_says_so() {
    if skip_on_oracle("it has no clusters") {
        return;
    }
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let relays = [Relay::start(redis.port()), Relay::start(redis.port())];
    let (origin, version) = versioned_origin();
    let mut nodes = Journaled::start(2, origin.port, "journal away=keep;", |index| {
        relays[index].port()
    });
    (0..2).for_each(|index| nodes.until_hit(index, "/page"));
    // The other member is away, and Redis is for this one.
    nodes.kill(1);
    relays[0].cut();
    nodes.server(0).line("error.log", "Redis is away");
    version.store(1, SeqCst);
    let reply = nodes.purge(0, "all").expect(202);
    assert!(reply.text().contains("\"kept\""), "{}", reply.text());
    assert_eq!(nodes.server(0).get("/page").text(), "1");
    relays[0].mend();
    until(|| (nodes.metric(0, "weir_cluster_journal_unsent")? == 0).then_some(()))
        .expect("it is written");
    nodes.start_one(1);
    for _ in 0..20 {
        assert_eq!(nodes.server(1).get("/page").expect(200).text(), "1");
    }
}

#[test]
fn a_fetch_never_brings_back_what_was_purged() {
    if skip_on_oracle("it has no clusters") {
        return;
    }
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let relay = Relay::start(redis.port());
    let (origin, version) = versioned_origin();
    // One member is parted from Redis, and not from the others, who ask it for the keys that it owns.
    let redis_of = |index| {
        if index == 0 {
            relay.port()
        } else {
            redis.port()
        }
    };
    let nodes = Journaled::start(2, origin.port, "", redis_of);
    let paths: Vec<String> = (0..12).map(|number| format!("/parted/{number}")).collect();
    for path in &paths {
        (0..2).for_each(|index| nodes.until_hit(index, path));
    }
    relay.cut();
    nodes.server(0).line("error.log", "Redis is away");
    version.store(1, SeqCst);
    nodes.purge(1, "all").expect(202);
    for path in &paths {
        assert_eq!(nodes.server(1).get(path).expect(200).text(), "1", "{path}");
    }
    relay.mend();
    for path in &paths {
        until(|| (nodes.server(0).get(path).text() == "1").then_some(()))
            .expect("it reads the journal");
    }
}

#[test]
fn what_is_no_redis_costs_nothing_but_the_journal() {
    if skip_on_oracle("it has no clusters") {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let port = listener.local_addr().expect("it is bound").port();
    let replies: [&[u8]; 5] = [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"$99999999999\r\n",
        b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n",
        b"",
        b"*3\r\n$6\r\nmaster\r\n:-1\r\n*0\r\n*-1\r\n+OK\r\n:1\r\n$-1\r\n+x\r\n",
    ];
    let seen = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&seen);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let number = count.fetch_add(1, SeqCst);
            let _ = stream.set_read_timeout(Some(PATIENCE));
            let _ = stream.read(&mut [0; 512]);
            let _ = stream.write_all(replies[number % replies.len()]);
        }
    });
    let (origin, _) = versioned_origin();
    let nodes = Journaled::start(1, origin.port, "", |_| port);
    until(|| (seen.load(SeqCst) >= 10).then_some(())).expect("it is tried again");
    nodes.until_hit(0, "/page");
    nodes.purge(0, "all").expect(503);
}

#[test]
fn redis_asks_for_a_password_and_sentinel_names_the_master() {
    if skip_on_oracle("it has no clusters") {
        return;
    }
    let users =
        "user weir on >sixteen-bytes-at-least ~{tests}* +@all\nuser default on nopass ~* &* +@all";
    let Some(master) = Redis::start(&[users]) else {
        return;
    };
    let follow = format!("replicaof 127.0.0.1 {}", master.port());
    let replica = Redis::start(&[users, &follow]).expect("it is installed");
    until(|| {
        replica
            .ask(&["INFO", "replication"])
            .contains("master_link_status:up")
            .then_some(())
    })
    .expect("the replica follows");
    let monitor = format!("sentinel monitor one 127.0.0.1 {} 1", master.port());
    let sentinel = Redis::start_sentinel(&[
        &monitor,
        "sentinel down-after-milliseconds one 500",
        "sentinel failover-timeout one 2000",
    ])
    .expect("it is installed");
    until(|| {
        sentinel
            .ask(&["SENTINEL", "replicas", "one"])
            .contains(&replica.port().to_string())
            .then_some(())
    })
    .expect("Sentinel knows the replica");
    let (origin, version) = versioned_origin();
    let peer = Port::take();
    let server = http(&format!(
        "proxy_cache_path cache keys_zone=one:1m;
         cluster edge {{ secret \"{SECRET}\"; member 127.0.0.1:{}; self 127.0.0.1:{0};
            redis 127.0.0.1:{} sentinel=one user=weir password=sixteen-bytes-at-least prefix=tests; }}
         server {{ listen 127.0.0.1:%%PORT%%; add_header X-Cache $upstream_cache_status;
            location = /purge {{ cache_purge one cluster=edge; }}
            location / {{ proxy_pass http://127.0.0.1:{}; proxy_cache one cluster=edge; }} }}",
        peer.number(),
        sentinel.port(),
        origin.port
    ))
    .start();
    let purge = || server.request("PURGE", "/purge?all", &[]);
    let store = || {
        until(|| (server.get("/page").field("X-Cache") == "HIT").then_some(()))
            .expect("it is stored");
    };
    until(|| (purge().status == 200).then_some(())).expect("the journal can be written");
    store();
    // The entry with which the journal begins, and the purge's.
    until(|| {
        let length = master.ask(&["XLEN", "{tests}:journal:one"]).parse::<u32>();
        length.is_ok_and(|length| length >= 2).then_some(())
    })
    .expect("both are written");
    // The master is lost, and Sentinel makes the replica the master.
    let mut master = master;
    version.store(1, SeqCst);
    until(|| {
        let offset = |redis: &Redis| {
            let text = redis.ask(&["INFO", "replication"]);
            let line = text
                .lines()
                .find(|line| line.starts_with("master_repl_offset:"))?;
            Some(line.trim().to_owned())
        };
        (offset(&master) == offset(&replica)).then_some(())
    })
    .expect("the replica has everything");
    master.kill();
    until(|| (purge().status == 200).then_some(())).expect("the other one is written to");
    assert_eq!(server.get("/page").text(), "1");
    assert!(!server.read("error.log").contains("it has lost entries"));
}

#[test]
fn what_is_wrong_with_redis_is_said_without_the_password() {
    if skip_on_oracle("it has no clusters") {
        return;
    }
    let block = |lines: &str| {
        format!("cluster edge {{ member 127.0.0.1:7070; secret \"never to be shown\"; {lines} }}")
    };
    let rows = [
        ("redis;", "invalid number of arguments in \"redis\""),
        ("redis password=hidden-word;", "\"redis\" has no address"),
        (
            "redis a b:c password=hidden-word;",
            "invalid address of Redis \"b:c\"",
        ),
        ("redis a user=x;", "\"user\" without \"password\""),
        (
            "redis a password=hidden-word \"prefix={x}\";",
            "the prefix of keys has no braces",
        ),
        (
            "redis a password=hidden-word database=x;",
            "invalid parameter \"database=x\"",
        ),
        (
            "redis a password=hidden-word tls=on trusted_certificate=/none;",
            "cannot read \"/none\"",
        ),
        ("journal away=keep;", "\"journal\" without \"redis\""),
        (
            "redis a password=hidden-word; journal length=10;",
            "a journal has at least 100 entries",
        ),
        (
            "redis a password=hidden-word; journal away=never;",
            "invalid parameter \"away=never\"",
        ),
    ];
    for (lines, message) in rows {
        let finished = http(&block(lines)).test();
        assert!(
            finished.stderr.contains(message),
            "{lines}\n{}",
            finished.stderr
        );
        for secret in ["never to be shown", "hidden-word"] {
            assert!(!finished.stderr.contains(secret), "{}", finished.stderr);
        }
    }
}

#[test]
fn members_are_found_by_their_service() {
    if skip_on_oracle("it has no clusters") {
        return;
    }
    let (origin, _) = versioned_origin();
    let peers: Vec<Port> = (0..3).map(|_| Port::take()).collect();
    let ip = IpAddr::from([127, 0, 0, 1]);
    let of = |count: usize| {
        peers[..count]
            .iter()
            .map(|peer| (ip, peer.number()))
            .collect()
    };
    let dns = Dns::start(Answer::Services(of(2), 1));
    let start = |peer: &Port| {
        let block = format!(
            "budget 5s; discover srv=_cache._tcp.members.test; resolver 127.0.0.1:{} ipv6=off;",
            dns.port()
        );
        http(&crate::cluster::node(
            peer.number(),
            origin.port,
            &block,
            "",
        ))
        .start()
    };
    let servers: Vec<Server> = peers[..2].iter().map(start).collect();
    for (server, peer) in servers.iter().zip(&peers) {
        let own = format!("has 2 members, this one is 127.0.0.1:{}", peer.number());
        server.line("error.log", &own);
    }
    for path in (0..10).map(|number| format!("/served/{number}")) {
        for server in &servers {
            server.get(&path).expect(200);
        }
        assert_eq!(crate::cluster::asked(&origin, &path), 1, "{path}");
    }
    dns.say(Answer::Services(of(3), 1));
    servers[0].line("error.log", "has 3 members");
    assert!(
        dns.names()
            .iter()
            .any(|name| name.eq_ignore_ascii_case("_cache._tcp.members.test"))
    );
}

/// Members that share a limit, and nothing else.
fn limited(count: usize, zone: &str, limit: &str, redis: Option<u16>) -> (Vec<Server>, Vec<Port>) {
    let peers: Vec<Port> = (0..count).map(|_| Port::take()).collect();
    let numbers: Vec<u16> = peers.iter().map(Port::number).collect();
    let redis = redis.map_or(String::new(), |port| format!("redis 127.0.0.1:{port};"));
    let start = |peer: &u16| {
        http(&format!(
            "cluster edge {{ secret \"{SECRET}\"; budget 5s; {} {redis} }}
             {zone}
             server {{ listen 127.0.0.1:%%PORT%%; listen 127.0.0.1:{peer} cluster=edge;
                location = /metrics {{ prometheus; }}
                location / {{ {limit} }} }}",
            members(&numbers)
        ))
        .file("html/index.html", "passed")
        .main("worker_processes 2; master_process off;")
        .start()
    };
    let servers: Vec<Server> = numbers.iter().map(start).collect();
    for server in &servers {
        until(|| {
            let text = server.get("/metrics").expect(200).text();
            let live = format!("weir_cluster_members_live{{cluster=\"edge\"}} {count}");
            text.contains(&live).then_some(())
        })
        .expect("all members answer");
    }
    (servers, peers)
}

/// How many of this number of requests pass.
fn passed(server: &Server, requests: usize) -> usize {
    (0..requests)
        .filter(|_| server.get("/").status == 200)
        .count()
}

#[test]
fn members_share_a_rate_in_equal_parts() {
    if skip_on_oracle("it has no clusters") {
        return;
    }
    let zone = "limit_req_zone all zone=one:1m rate=1r/m sync=share cluster=edge;";
    let (servers, _peers) = limited(3, zone, "limit_req zone=one burst=30 nodelay;", None);
    for server in &servers {
        // A third of the burst, and the first request, which is in no excess of the rate.
        assert_eq!(passed(server, 40), 11);
    }
}

#[test]
fn members_count_a_rate_together_and_nobody_waits_for_it() {
    if skip_on_oracle("it has no clusters") {
        return;
    }
    let Some(mut redis) = Redis::start(&[]) else {
        return;
    };
    let zone = "limit_req_zone all zone=one:1m rate=6r/m sync=redis cluster=edge;";
    let limit = "limit_req zone=one burst=60 nodelay;";
    let (servers, _peers) = limited(3, zone, limit, Some(redis.port()));
    servers[0].line("error.log", "cluster \"edge\" has 3 members");
    let begun = Instant::now();
    // The only one that is asked gets the whole rate: more than a third of it and of the burst.
    let mut all = 0;
    until(|| {
        all += passed(&servers[0], 10);
        (all > 50).then_some(())
    })
    .expect("its part becomes the whole");
    // What the others may add is their first lease: a third each, until they know.
    for server in &servers[1..] {
        all += passed(server, 60);
    }
    let in_time = usize::try_from(begun.elapsed().as_secs() / 10 + 1).expect("it is a few");
    // And a request on each of the two loops that is judged at the very moment of a reply.
    assert!(all <= 61 + 2 * 21 + in_time + 3 * 2, "{all}");
    // Once all know, nothing more passes but what the rate gives.
    let after = || {
        servers
            .iter()
            .map(|server| passed(server, 20))
            .sum::<usize>()
    };
    until(|| (after() == 0).then_some(())).expect("the bucket is full everywhere");
    redis.signal(Signal::STOP);
    after();
    redis.signal(Signal::CONT);
    redis.kill();
    servers[0].line("error.log", "Redis is away");
    after();
    let metrics = servers[0].get("/metrics").expect(200).text();
    assert!(
        metrics.contains("weir_limit_req_leases_total{zone=\"one\"}"),
        "{metrics}"
    );
}

#[test]
fn each_worker_group_of_a_member_reports_for_itself() {
    if skip_on_oracle("it has no clusters") {
        return;
    }
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let peer = Port::take();
    let own = peer.number();
    let server = http(&format!(
        "cluster edge {{ secret \"{SECRET}\"; {} redis 127.0.0.1:{}; }}
         limit_req_zone all zone=one:1m rate=6r/m sync=redis cluster=edge;
         server {{ listen 127.0.0.1:%%PORT%% reuseport; listen 127.0.0.1:{own} cluster=edge;
            location / {{ limit_req zone=one burst=60 nodelay; }} }}",
        members(&[own]),
        redis.port()
    ))
    .main("worker_processes 2; worker_groups 2;")
    .start();
    let named = format!("n:127.0.0.1:{own} ");
    until(|| {
        passed(&server, 10);
        let key = redis.ask(&["KEYS", "*rate:one:*"]);
        let fields = redis.ask(&["HKEYS", &key]);
        let groups = fields.lines().filter(|field| field.starts_with(&named));
        (groups.count() == 2).then_some(())
    })
    .expect("two groups");
}

#[test]
fn what_is_wrong_with_a_shared_limit_is_said() {
    if skip_on_oracle("it has no clusters") {
        return;
    }
    let zone = "limit_req_zone all zone=one:1m rate=1r/s";
    let rows = [
        (
            format!("{zone} sync=share;"),
            "\"sync\" and \"cluster\" go together",
        ),
        (
            format!("{zone} cluster=edge;"),
            "\"sync\" and \"cluster\" go together",
        ),
        (
            format!("{zone} sync=maybe cluster=edge;"),
            "invalid parameter \"sync=maybe\"",
        ),
        (
            format!("{zone} sync=share cluster=other;"),
            "unknown cluster \"other\"",
        ),
        (
            format!("{zone} sync=redis cluster=edge;"),
            "cluster \"edge\" has no \"redis\"",
        ),
    ];
    for (line, message) in rows {
        let block = format!(
            "cluster edge {{ secret \"{SECRET}\"; member 127.0.0.1:7070; }} {line}
             server {{ listen 127.0.0.1:%%PORT%%; }}"
        );
        let finished = http(&block).test();
        assert!(
            finished.stderr.contains(message),
            "{line}\n{}",
            finished.stderr
        );
    }
}
