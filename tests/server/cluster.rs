//! A cluster: several servers that fetch for each other. The origin is asked once, whichever of them a client asks; a
//! member that is lost costs nobody a response.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::thread;

use weir_tests::{Answer, Dns, PATIENCE, Port, Reply, Server, Signal, http, skip_on_oracle, until};

use crate::cache_fills::{Origin, content, head, say};

pub(crate) const SECRET: &str = "for the tests of the cluster";

/// Servers that are members of one cluster.
pub(crate) struct Nodes {
    pub(crate) servers: Vec<Server>,
    pub(crate) peers: Vec<Port>,
}

/// The lines of a `cluster` block with these members.
pub(crate) fn members(peers: &[u16]) -> String {
    let lines = peers.iter().map(|port| format!("member 127.0.0.1:{port};"));
    lines.collect::<Vec<_>>().join(" ")
}

/// The configuration of one member: what the block says, and what the location says.
pub(crate) fn node(peer: u16, origin: u16, cluster: &str, location: &str) -> String {
    node_at(&format!("127.0.0.1:{peer}"), origin, cluster, location)
}

/// The same for a member at an address of its own.
fn node_at(peer: &str, origin: u16, cluster: &str, location: &str) -> String {
    format!(
        "proxy_cache_path cache keys_zone=one:1m;
         cluster edge {{ secret \"{SECRET}\"; {cluster} }}
         log_format seen '$request_uri $upstream_cache_status $upstream_addr';
         server {{ listen 127.0.0.1:%%PORT%%; listen {peer} cluster=edge;
            access_log seen.log seen; add_header X-Cache $upstream_cache_status;
            location = /purge {{ cache_purge one cluster=edge; allow 127.0.0.1; deny all; }}
            location / {{ proxy_pass http://127.0.0.1:{origin}; proxy_cache one cluster=edge; {location} }} }}"
    )
}

impl Nodes {
    pub(crate) fn start(count: usize, origin: u16, cluster: &str, location: &str) -> Nodes {
        let peers: Vec<Port> = (0..count).map(|_| Port::take()).collect();
        let numbers: Vec<u16> = peers.iter().map(Port::number).collect();
        let cluster = format!("{} {cluster}", members(&numbers));
        let servers = numbers
            .iter()
            .map(|peer| {
                http(&node(*peer, origin, &cluster, location))
                    .main("worker_processes 2; master_process off;")
                    .start()
            })
            .collect();
        let nodes = Nodes { servers, peers };
        nodes.until_all_answer();
        nodes
    }

    /// Waits until each member has an answer of each other one: they did not start at the same moment.
    pub(crate) fn until_all_answer(&self) {
        let others = self.servers.len() - 1;
        for server in &self.servers {
            until(|| {
                let log = server.read("error.log");
                let lost = log
                    .lines()
                    .filter(|line| line.contains("refuses connections"))
                    .count();
                let back = log
                    .lines()
                    .filter(|line| line.contains("answers again"))
                    .count();
                // A loop may serve before the one that keeps the list of members has begun.
                let is_known = log.contains(" members, this one is ");
                (is_known && (lost == back || others == 0)).then_some(())
            })
            .expect("all members answer");
        }
    }

    /// A path below `folder` whose default key the member with this number owns.
    pub(crate) fn path_owned_by(&self, owner: usize, origin: u16, folder: &str) -> String {
        let paths = (0..).map(|number| format!("/{folder}/{number}"));
        let mut owned = paths.filter(|path| {
            let key = format!("http://127.0.0.1:{origin}{path}");
            owner_of(&self.peers, &key) == owner
        });
        owned.next().expect("each member owns a key")
    }
}

/// The member that owns a key, as the guide's page describes it: the order is a contract between versions.
pub(crate) fn owner_of(peers: &[Port], key: &str) -> usize {
    let hash = |text: &str| {
        let whole = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, text.as_bytes());
        u64::from_be_bytes(whole.as_ref()[..8].try_into().expect("there are 32"))
    };
    let score = |member: u64| {
        let mut mixed = member ^ hash(key).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    };
    let scores = peers
        .iter()
        .map(|peer| score(hash(&format!("127.0.0.1:{}", peer.number()))));
    let best = scores.enumerate().max_by_key(|(_, score)| *score);
    best.expect("there are members").0
}

/// An origin whose responses may be stored.
pub(crate) fn plain_origin(fields: &'static str) -> Origin {
    Origin::start(move |stream, asked, _| {
        let path = asked.split(' ').nth(1).unwrap_or_default().to_owned();
        say(stream, &head(fields, path.len()));
        say(stream, path.as_bytes());
    })
}

pub(crate) const FRESH: &str =
    "Cache-Control: max-age=60\r\nETag: \"v\"\r\nAccept-Ranges: bytes\r\n";

/// Gets a target of these servers, with this many clients each that begin together.
fn together(servers: &[Server], target: &str, clients: usize) -> Vec<Reply> {
    let begin = Barrier::new(clients * servers.len());
    thread::scope(|scope| {
        let ask = |server| {
            let begin = &begin;
            scope.spawn(move || {
                begin.wait();
                Server::get(server, target)
            })
        };
        let all = servers
            .iter()
            .flat_map(|server| (0..clients).map(move |_| server));
        let threads: Vec<_> = all.map(ask).collect();
        let replies = threads.into_iter().map(|thread| thread.join());
        replies
            .map(|reply| reply.expect("a client does not panic"))
            .collect()
    })
}

/// The requests for a path that the origin has had.
pub(crate) fn asked(origin: &Origin, path: &str) -> usize {
    let heads = origin.heads.lock().expect("no answer panics");
    let line = format!("GET {path} ");
    heads.iter().filter(|head| head.starts_with(&line)).count()
}

#[test]
fn the_origin_is_asked_once_for_all_members() {
    if skip_on_oracle("it has no clusters") {
        return;
    }
    let body = content(400_000);
    let sent = body.clone();
    let origin = Origin::start(move |stream, _, _| {
        say(stream, &head(FRESH, sent.len()));
        for piece in sent.chunks(50_000) {
            say(stream, piece);
            thread::yield_now();
        }
    });
    let nodes = Nodes::start(3, origin.port, "budget 5s;", "");
    for path in ["/a", "/b", "/c", "/d"] {
        for reply in together(&nodes.servers, path, 8) {
            assert!(reply.body == body);
            assert_eq!(reply.field("ETag"), "\"v\"");
        }
        assert_eq!(asked(&origin, path), 1, "{path}");
    }
}

#[test]
fn a_copy_is_kept_only_of_what_is_asked_for_often() {
    if skip_on_oracle("it has no clusters") {
        return;
    }
    let origin = plain_origin(FRESH);
    let nodes = Nodes::start(2, origin.port, "budget 5s; min_uses 3;", "");
    let path = nodes.path_owned_by(1, origin.port, "hot");
    // The third request leaves a copy, which the fourth one finds.
    let words: Vec<String> = (0..4)
        .map(|_| {
            nodes.servers[0]
                .get(&path)
                .expect(200)
                .field("X-Cache")
                .to_owned()
        })
        .collect();
    assert_eq!(words, ["MISS", "MISS", "MISS", "HIT"]);
    let age: u32 = nodes.servers[0]
        .get(&path)
        .field("Age")
        .parse()
        .expect("a hit has an age");
    assert!(age < 60);
    assert_eq!(asked(&origin, &path), 1);
}

#[test]
fn the_peer_port_answers_only_members() {
    if skip_on_oracle("it has no clusters") {
        return;
    }
    let origin = plain_origin(FRESH);
    let nodes = Nodes::start(2, origin.port, "budget 5s;", "error_page 403 /page;");
    let peer = nodes.peers[0].number();
    let ask = |line: &str| {
        let mut stream = TcpStream::connect(("127.0.0.1", peer)).expect("it listens");
        let request =
            format!("GET /a HTTP/1.1\r\nHost: localhost\r\n{line}Connection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("it is there");
        let mut answer = String::new();
        stream
            .read_to_string(&mut answer)
            .expect("it closes the connection");
        answer
    };
    let zeros = "0".repeat(64);
    let forged = format!(
        "Weir-Cluster: v=1;n=edge;h=1;e=0000000000000000;t=1;f=;k={};c=;s=0;o=0;m={zeros}\r\n",
        "0".repeat(32)
    );
    for line in ["", "Weir-Cluster: x\r\n", &forged] {
        let answer = ask(line);
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
        assert!(
            answer.ends_with("\r\n\r\n"),
            "no page, whatever error_page says: {answer}"
        );
    }
    let refused = "request is not of a member of cluster \"edge\"";
    let log = nodes.servers[0].read("error.log");
    assert_eq!(
        log.lines().filter(|line| line.contains(refused)).count(),
        3,
        "{log}"
    );
    assert!(!log.contains(SECRET));
    assert_eq!(origin.requests(), 0);
    // On the other port the field means nothing.
    nodes.servers[0]
        .get_with("/a", &["Weir-Cluster: x"])
        .expect(200);
}

#[test]
fn a_private_response_is_for_its_client_alone() {
    if skip_on_oracle("it has no clusters") {
        return;
    }
    let origin = plain_origin("Cache-Control: private\r\nSet-Cookie: a=b\r\n");
    let nodes = Nodes::start(2, origin.port, "budget 5s;", "");
    for server in &nodes.servers {
        for _ in 0..3 {
            let reply = server.get("/private").expect(200);
            assert_eq!(
                (reply.text(), reply.field("Set-Cookie")),
                ("/private".to_owned(), "a=b")
            );
            assert!(!reply.has("Weir-Cluster-Object"));
        }
    }
    assert_eq!(asked(&origin, "/private"), 6);
}

#[test]
fn what_the_location_makes_of_a_response_is_made_once() {
    if skip_on_oracle("it has no clusters") {
        return;
    }
    let origin = plain_origin(
        "Cache-Control: max-age=60\r\nX-Hidden: secret\r\nWeir-Cluster-Object: private\r\nX-Shown: yes\r\nContent-Type: text/html\r\n",
    );
    let location = "proxy_hide_header X-Hidden; add_header X-Added once; sub_filter probe PROBE;
        sub_filter_once off; proxy_set_header X-Client $remote_addr; allow 127.0.0.1; deny all;
        proxy_cache_key $scheme$host$request_uri$remote_addr;";
    let nodes = Nodes::start(2, origin.port, "budget 5s;", location);
    // Each member owns some of these.
    for path in (0..8).map(|number| format!("/probe/{number}")) {
        let reply = nodes.servers[0].get(&path).expect(200);
        assert_eq!(reply.text(), path.replace("probe", "PROBE"));
        assert_eq!(reply.all("X-Added"), ["once"]);
        assert_eq!(reply.field("X-Shown"), "yes");
        assert!(!reply.has("X-Hidden"));
        assert_eq!(asked(&origin, &path), 1);
    }
    let log = nodes.servers[0].read("seen.log");
    let peer = format!(":{}", nodes.peers[1].number());
    assert!(
        log.contains(&peer),
        "one of eight belongs to the other member: {log}"
    );
    let heads = origin.heads.lock().expect("no answer panics");
    assert!(
        heads
            .iter()
            .all(|head| head.contains("X-Client: 127.0.0.1"))
    );
    assert!(
        heads.iter().all(|head| !head.contains("Weir-Cluster")),
        "the origin gets no signature"
    );
}

#[test]
fn ranges_and_conditions_are_answered_as_without_a_cluster() {
    if skip_on_oracle("it has no clusters") {
        return;
    }
    let body = content(100_000);
    let sent = body.clone();
    let origin = Origin::start(move |stream, _, _| {
        say(stream, &head(FRESH, sent.len()));
        say(stream, &sent);
    });
    let nodes = Nodes::start(2, origin.port, "budget 5s;", "");
    for server in &nodes.servers {
        let part = server
            .get_with("/ranges", &["Range: bytes=1000-1999"])
            .expect(206);
        assert!(part.body == body[1000..2000]);
        server
            .get_with("/ranges", &["If-None-Match: \"v\""])
            .expect(304);
        server.request("HEAD", "/ranges", &[]).expect(200);
    }
    assert_eq!(asked(&origin, "/ranges"), 1);
}

/// An origin that sends half of what is asked for below `/long/` and waits for the others of `half` before the rest. It
/// answers ranges.
fn halting_origin(body: Vec<u8>, half: Arc<Barrier>) -> Origin {
    let first = AtomicUsize::new(0);
    Origin::start(move |stream, asked, _| {
        let range = asked.split("Range: bytes=").nth(1);
        let from = range.and_then(|rest| rest.split('-').next()?.parse::<usize>().ok());
        let (length, middle) = (body.len(), body.len() / 2);
        if let Some(from) = from {
            let fields = format!(
                "{FRESH}Content-Range: bytes {from}-{}/{length}\r\n",
                length - 1
            );
            let head = String::from_utf8(head(&fields, length - from)).expect("it is text");
            say(
                stream,
                head.replace("200 OK", "206 Partial Content").as_bytes(),
            );
            return say(stream, &body[from..]);
        }
        say(stream, &head(FRESH, length));
        say(stream, &body[..middle]);
        if first.fetch_add(1, SeqCst) == 0 {
            half.wait();
        }
        say(stream, &body[middle..]);
    })
}

/// A client that reads a response to its end; `None` if it is cut off.
fn read_whole(port: u16, path: &str) -> Option<Vec<u8>> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it is there");
    stream
        .set_read_timeout(Some(PATIENCE))
        .expect("sockets have timeouts");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let at = answer.windows(4).position(|four| four == b"\r\n\r\n")?;
    Some(answer.split_off(at + 4))
}

/// What becomes of five clients of a member, if the owner of their key is lost at half of the response.
fn lose_owner_at_half(budget: &str, signal: Signal) {
    let (body, half) = (content(600_000), Arc::new(Barrier::new(2)));
    let origin = halting_origin(body.clone(), Arc::clone(&half));
    let mut nodes = Nodes::start(3, origin.port, budget, "");
    let path = nodes.path_owned_by(2, origin.port, "long");
    let port = nodes.servers[0].port(0);
    let clients: Vec<_> = (0..5)
        .map(|_| {
            let path = path.clone();
            thread::spawn(move || read_whole(port, &path))
        })
        .collect();
    until(|| (origin.requests() > 0).then_some(())).expect("the owner asks the origin");
    let mut owner = nodes.servers.remove(2);
    owner.signal(signal);
    for client in clients {
        let got = client.join().expect("a client does not panic");
        assert!(
            got.as_ref() == Some(&body),
            "{:?} bytes",
            got.map(|got| got.len())
        );
    }
    half.wait();
    assert!(asked(&origin, &path) <= 2, "{}", asked(&origin, &path));
    match signal {
        Signal::KILL => {
            let _ = owner.ended();
        }
        _ => owner.signal(Signal::CONT),
    }
}

#[test]
fn a_member_that_is_killed_at_half_cuts_nobody() {
    if skip_on_oracle("it has no clusters") {
        return;
    }
    lose_owner_at_half("budget 5s;", Signal::KILL);
}

#[test]
fn a_member_that_is_stopped_at_half_cuts_nobody() {
    if skip_on_oracle("it has no clusters") {
        return;
    }
    lose_owner_at_half("budget 300ms;", Signal::STOP);
}

#[test]
fn members_that_are_not_there_cost_no_request() {
    if skip_on_oracle("it has no clusters") {
        return;
    }
    let origin = plain_origin(FRESH);
    let (own, gone) = (Port::take(), Port::take());
    let cluster = members(&[own.number(), gone.number()]);
    let server = http(&node(own.number(), origin.port, &cluster, "")).start();
    for number in 0..10 {
        let path = format!("/alone/{number}");
        server.get(&path).expect(200);
        assert_eq!(
            server.get(&path).field("X-Cache"),
            "HIT",
            "who is alone keeps everything"
        );
        assert_eq!(asked(&origin, &path), 1);
    }
    server.line("error.log", "refuses connections");
}

#[test]
fn members_with_different_views_ask_the_origin_twice_at_most() {
    if skip_on_oracle("it has no clusters") {
        return;
    }
    let origin = plain_origin(FRESH);
    let peers: Vec<Port> = (0..3).map(|_| Port::take()).collect();
    let number = |index: usize| peers[index].number();
    let servers: Vec<Server> = (0..3)
        .map(|own| {
            let view: Vec<u16> = match own {
                // The first two know of each other only, the third of all.
                0 | 1 => vec![number(0), number(1)],
                _ => (0..3).map(number).collect(),
            };
            let cluster = format!("budget 5s; {}", members(&view));
            http(&node(number(own), origin.port, &cluster, ""))
                .main("worker_processes 2;")
                .start()
        })
        .collect();
    for path in (0..30).map(|number| format!("/views/{number}")) {
        for reply in together(&servers, &path, 2) {
            assert_eq!(reply.text(), path);
        }
        assert!(
            asked(&origin, &path) <= 2,
            "{path}: {}",
            asked(&origin, &path)
        );
    }
}

/// A member that is lost and comes back again and again, and with it the views of the others.
#[test]
fn members_that_come_and_go_cost_no_more_requests_than_there_are_members() {
    if skip_on_oracle("it has no clusters") {
        return;
    }
    let origin = plain_origin(FRESH);
    let nodes = Nodes::start(3, origin.port, "budget 300ms;", "");
    let (shaking, steady) = (&nodes.servers[2], &nodes.servers[..2]);
    let is_over = AtomicBool::new(false);
    let seen = |words: &str| steady[0].read("error.log").matches(words).count();
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..5 {
                let (lost, back) = (seen("is silent"), seen("answers again"));
                shaking.signal(Signal::STOP);
                until(|| (seen("is silent") > lost).then_some(()));
                shaking.signal(Signal::CONT);
                until(|| (seen("answers again") > back).then_some(()));
            }
            is_over.store(true, SeqCst);
        });
        for server in steady {
            let is_over = &is_over;
            scope.spawn(move || {
                // At least as many keys as it takes until the other one is steady again.
                for number in 0..1_000 {
                    let path = format!("/shaken/{}", number % 200);
                    assert_eq!(server.get(&path).expect(200).text(), path);
                    if number >= 200 && is_over.load(SeqCst) {
                        return;
                    }
                }
            });
        }
    });
    // Each member fetches a key once and keeps it. Two would do if only one member were ever late; on a machine that is short
    // of processors the steady ones are late as well.
    for number in 0..200 {
        let path = format!("/shaken/{number}");
        assert!(
            asked(&origin, &path) <= 3,
            "{path}: {}",
            asked(&origin, &path)
        );
    }
}

#[test]
fn members_are_found_by_a_name_and_followed() {
    if skip_on_oracle("it has no clusters") {
        return;
    }
    let origin = plain_origin(FRESH);
    let address = |last: u8| IpAddr::from([127, 0, 0, last]);
    let dns = Dns::start(Answer::Addresses(vec![address(2), address(3)], 1));
    let port = Port::take();
    let start = |last: u8| {
        let cluster = format!(
            "budget 5s; discover dns=members.test port={}; resolver 127.0.0.1:{} ipv6=off;",
            port.number(),
            dns.port()
        );
        let peer = format!("127.0.0.{last}:{}", port.number());
        http(&node_at(&peer, origin.port, &cluster, "")).start()
    };
    let servers = [start(2), start(3)];
    for (server, last) in servers.iter().zip([2, 3]) {
        let own = format!(
            "has 2 members, this one is 127.0.0.{last}:{}",
            port.number()
        );
        server.line("error.log", &own);
    }
    for path in (0..10).map(|number| format!("/named/{number}")) {
        for server in &servers {
            server.get(&path).expect(200);
        }
        assert_eq!(asked(&origin, &path), 1, "{path}");
    }
    dns.say(Answer::Addresses(
        vec![address(2), address(3), address(4)],
        1,
    ));
    servers[0].line("error.log", "has 3 members, this one is 127.0.0.2");
    dns.say(Answer::Code(2));
    servers[0].line("error.log", "could not be resolved");
    // The one that is not there costs nothing, and a name server that fails changes nothing.
    servers[0].get("/after").expect(200);
    assert_eq!(
        servers[0].read("error.log").matches("this one is").count(),
        2
    );
}

#[test]
fn a_purge_reaches_all_members_and_names_them() {
    if skip_on_oracle("it has no clusters") {
        return;
    }
    let version = Arc::new(AtomicUsize::new(0));
    let said = Arc::clone(&version);
    let origin = Origin::start(move |stream, _, _| {
        let text = said.load(SeqCst).to_string();
        let fields =
            format!("{FRESH}Surrogate-Key: page\r\n").replace("\"v\"", &format!("\"{text}\""));
        say(stream, &head(&fields, text.len()));
        say(stream, text.as_bytes());
    });
    let mut nodes = Nodes::start(3, origin.port, "budget 5s; min_uses 1;", "");
    let path = nodes.path_owned_by(1, origin.port, "page");
    let key = format!("/purge?key=http://127.0.0.1:{}{path}", origin.port);
    let purges: [(&str, &[&str]); 4] = [
        (&key, &[]),
        ("/purge?all", &[]),
        ("/purge?tag=page", &[]),
        ("/purge", &["Surrogate-Key: page"]),
    ];
    for (target, lines) in purges {
        for server in &nodes.servers {
            server.get(&path).expect(200);
            assert_eq!(server.get(&path).field("X-Cache"), "HIT", "each has a copy");
        }
        let now = version.fetch_add(1, SeqCst) + 1;
        let reply = nodes.servers[0].request("PURGE", target, lines).expect(200);
        for other in &nodes.peers[1..] {
            assert!(
                reply
                    .text()
                    .contains(&format!("127.0.0.1:{}", other.number())),
                "{}",
                reply.text()
            );
        }
        assert!(reply.text().contains("\"missing\": []"), "{}", reply.text());
        for server in &nodes.servers {
            assert_eq!(server.get(&path).text(), now.to_string(), "{target}");
        }
    }
    let mut gone = nodes.servers.remove(2);
    gone.signal(Signal::KILL);
    let _ = gone.ended();
    let reply = nodes.servers[0]
        .request("PURGE", "/purge?all", &[])
        .expect(202);
    let missing = format!("127.0.0.1:{}", nodes.peers[2].number());
    let after = reply.text().split("missing").nth(1).map(str::to_owned);
    assert!(
        after.is_some_and(|text| text.contains(&missing)),
        "{}",
        reply.text()
    );
}

#[test]
fn configurations_that_differ_never_mix_their_keys() {
    if skip_on_oracle("it has no clusters") {
        return;
    }
    let origin = plain_origin(FRESH);
    let peers: Vec<Port> = (0..2).map(|_| Port::take()).collect();
    let cluster = format!(
        "budget 5s; {}",
        members(&[peers[0].number(), peers[1].number()])
    );
    let start = |own: usize, location: &str| {
        http(&node(peers[own].number(), origin.port, &cluster, location)).start()
    };
    let servers = [
        start(0, "proxy_cache_key one$uri;"),
        start(1, "proxy_cache_key two$uri;"),
    ];
    for path in (0..6).map(|number| format!("/keys/{number}")) {
        for server in &servers {
            assert_eq!(server.get(&path).expect(200).text(), path);
        }
        assert_eq!(asked(&origin, &path), 2);
    }
    let logs = servers
        .each_ref()
        .map(|server| server.read("error.log"))
        .concat();
    assert!(logs.contains("its key differs from the one here"), "{logs}");
}

#[test]
fn what_is_wrong_with_a_cluster_is_said_with_its_place() {
    if skip_on_oracle("it has no clusters") {
        return;
    }
    let secret = "secret \"sixteen bytes at least\";";
    let member = "member 127.0.0.1:7070;";
    let rows = [
        (format!("cluster edge {{ {member} }}"), "no \"secret\" in cluster \"edge\""),
        (format!("cluster edge {{ {secret} }}"), "no members in cluster \"edge\""),
        (format!("cluster edge {{ {member} secret short; }}"), "a secret has at least 16 bytes"),
        (format!("cluster edge {{ {secret} member host; }}"), "invalid address of a member \"host\""),
        (format!("cluster edge {{ {secret} {member} budget 1ms; }}"), "a budget is at least 20ms"),
        (format!("cluster edge {{ {secret} discover dns=name; }}"), "\"discover\" is dns=name"),
        (
            format!("cluster edge {{ {secret} {member} }} cluster edge {{ {secret} {member} }}"),
            "duplicate cluster \"edge\"",
        ),
        (
            "server { listen 127.0.0.1:%%PORT%% cluster=other; }".to_owned(),
            "unknown cluster \"other\"",
        ),
        (
            format!(
                "cluster edge {{ {secret} {member} }} server {{ listen 127.0.0.1:%%PORT%% cluster=edge; }}
                 server {{ listen 127.0.0.1:%%PORT%%; }}"
            ),
            "no \"cluster=edge\" for 127.0.0.1:",
        ),
    ];
    for (block, message) in rows {
        let finished = http(&block).test();
        assert!(
            finished.stderr.contains(message),
            "{block}\n{}",
            finished.stderr
        );
    }
}
