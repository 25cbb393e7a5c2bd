//! The resolver against a DNS server that does what a test says.

use std::net::UdpSocket;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::thread::JoinHandle;

use rt::net::SocketAddress;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// A server on a thread: `answer` makes the answer section (records) and response code of a name and type, or nothing.
struct Dns {
    address: SocketAddr,
    asked: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// What a server does with the letters of a name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Letters {
    /// Repeats them, as it should.
    Keeps,
    /// Writes small ones.
    Lowers,
    /// Knows no name that has capitals.
    Compares,
    /// Does not answer when there are capitals.
    Ignores,
}

type Script = fn(&str, u16, usize) -> Option<(u8, Vec<Vec<u8>>)>;

impl Dns {
    fn start(script: Script) -> Dns {
        Dns::with(Letters::Keeps, script)
    }

    fn with(letters: Letters, script: Script) -> Dns {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        socket
            .set_read_timeout(Some(Duration::from_millis(20)))
            .expect("a timeout");
        let address = socket.local_addr().expect("bound");
        let (asked, stop) = (
            Arc::new(AtomicUsize::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let (count, end) = (asked.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            let mut buffer = [0; 512];
            while !end.load(Ordering::Relaxed) {
                let Ok((length, from)) = socket.recv_from(&mut buffer) else {
                    continue;
                };
                let number = count.fetch_add(1, Ordering::Relaxed);
                if let Some(reply) = reply(&buffer[..length], letters, script, number) {
                    socket
                        .send_to(&reply, from)
                        .expect("the query came from there");
                }
            }
        });
        Dns {
            address,
            asked,
            stop,
            thread: Some(thread),
        }
    }

    fn settings(&self) -> ResolverSettings {
        ResolverSettings {
            servers: vec![SocketAddress::Inet(self.address)],
            ..ResolverSettings::default()
        }
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

impl Drop for Dns {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

fn reply(query: &[u8], letters: Letters, script: Script, number: usize) -> Option<Vec<u8>> {
    let mut name = String::new();
    let mut at = 12;
    while query[at] != 0 {
        let end = at + 1 + usize::from(query[at]);
        name.push_str(std::str::from_utf8(&query[at + 1..end]).ok()?);
        name.push('.');
        at = end;
    }
    let kind = u16::from_be_bytes([query[at + 1], query[at + 2]]);
    let mut reply = query.to_vec();
    let capitals = name.bytes().any(|byte| byte.is_ascii_uppercase());
    match letters {
        Letters::Lowers => reply[12..at].make_ascii_lowercase(),
        Letters::Ignores if capitals => return None,
        Letters::Compares if capitals => name = "?".into(),
        Letters::Keeps | Letters::Ignores | Letters::Compares => {}
    }
    let name = name.to_ascii_lowercase();
    let (code, records) = script(name.trim_end_matches('.'), kind, number)?;
    reply[2..4].copy_from_slice(&[0x81, 0x80 | code]);
    reply[7] = records.len() as u8;
    records.iter().for_each(|record| reply.extend(record));
    Some(reply)
}

fn record(kind: u16, ttl: u32, data: &[u8]) -> Vec<u8> {
    let mut record = vec![0xc0, 12];
    record.extend(kind.to_be_bytes());
    record.extend([0, 1]);
    record.extend(ttl.to_be_bytes());
    record.extend((data.len() as u16).to_be_bytes());
    record.extend(data);
    record
}

fn wire_name(name: &str) -> Vec<u8> {
    let mut wire = Vec::new();
    for label in name.split('.') {
        wire.push(label.len() as u8);
        wire.extend(label.as_bytes());
    }
    wire.push(0);
    wire
}

fn on_loop<T: 'static>(future: impl Future<Output = T> + 'static) -> T {
    rt::run(rt::LoopOptions::default(), move || future).expect("a loop")
}

fn resolver(settings: ResolverSettings) -> Arc<Resolver> {
    Resolver::new(settings, Logger::default())
}

const A: u16 = 1;
const ALIAS: u16 = 5;
const AAAA: u16 = 28;
const SRV: u16 = 33;

#[test]
fn both_kinds_of_addresses_are_asked_for_once_and_remembered() {
    let dns = Dns::start(|_, kind, _| match kind {
        A => Some((
            0,
            vec![
                record(A, 60, &[127, 0, 0, 1]),
                record(A, 60, &[127, 0, 0, 2]),
            ],
        )),
        _ => Some((0, vec![record(AAAA, 60, &[0; 16])])),
    });
    let resolver = resolver(dns.settings());
    on_loop(async move {
        let all = resolver
            .lookup_host(b"Example.COM.", SECOND)
            .await
            .expect("addresses");
        let texts: Vec<String> = all.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["127.0.0.1", "127.0.0.2", "::"]);
        let mut firsts = Vec::new();
        for _ in 0..3 {
            firsts.push(
                resolver
                    .lookup_host(b"example.com", SECOND)
                    .await
                    .expect("addresses")[0],
            );
        }
        firsts.sort();
        assert_eq!(firsts, all, "each address comes first in turn");
    });
    assert_eq!(dns.asked(), 2);
}

#[test]
fn those_who_wait_for_a_name_share_one_question_and_may_leave() {
    let dns = Dns::start(|_, _, _| {
        std::thread::sleep(Duration::from_millis(100));
        Some((0, vec![record(A, 60, &[127, 0, 0, 1])]))
    });
    let resolver = resolver(ResolverSettings {
        ipv6: false,
        ..dns.settings()
    });
    on_loop(async move {
        let (one, two) = (resolver.clone(), resolver.clone());
        let brief = rt::spawn_handle("brief", async move {
            one.lookup_host(b"a", Duration::from_millis(10)).await
        });
        let patient = rt::spawn_handle(
            "patient",
            async move { two.lookup_host(b"a", SECOND).await },
        );
        assert_eq!(brief.await.expect("no panic"), Err(ResolveError::TimedOut));
        assert_eq!(patient.await.expect("no panic").map(|all| all.len()), Ok(1));
    });
    assert_eq!(dns.asked(), 1);
}

#[test]
fn failures_are_not_remembered_and_expire_as_told() {
    let dns = Dns::start(|_, _, number| {
        Some((
            if number == 0 { 2 } else { 0 },
            vec![record(A, 0, &[127, 0, 0, 1])],
        ))
    });
    let resolver = resolver(ResolverSettings {
        ipv6: false,
        ..dns.settings()
    });
    on_loop(async move {
        assert_eq!(
            resolver.lookup_host(b"a", SECOND).await,
            Err(ResolveError::Code(2))
        );
        for _ in 0..2 {
            assert!(resolver.lookup_host(b"a", SECOND).await.is_ok());
        }
    });
    assert_eq!(dns.asked(), 3, "a TTL of zero is not kept");
}

#[test]
fn aliases_are_followed_but_not_for_ever() {
    let dns = Dns::start(|name, _, _| match name {
        "www" => Some((0, vec![record(ALIAS, 60, &wire_name("host"))])),
        "host" => Some((0, vec![record(A, 60, &[127, 0, 0, 1])])),
        _ => Some((0, vec![record(ALIAS, 60, &wire_name("loop"))])),
    });
    let resolver = resolver(ResolverSettings {
        ipv6: false,
        ..dns.settings()
    });
    on_loop(async move {
        assert!(resolver.lookup_host(b"www", SECOND).await.is_ok());
        assert_eq!(
            resolver.lookup_host(b"loop", SECOND).await,
            Err(ResolveError::UNKNOWN)
        );
    });
    assert_eq!(dns.asked(), 3);
}

#[test]
fn an_error_for_one_kind_of_address_is_an_error() {
    let dns = Dns::start(|name, kind, _| match (name, kind) {
        (_, A) => Some((0, vec![record(A, 60, &[127, 0, 0, 1])])),
        ("half", _) => Some((3, vec![])),
        _ => Some((2, vec![])),
    });
    let resolver = resolver(dns.settings());
    on_loop(async move {
        assert_eq!(
            resolver.lookup_host(b"broken", SECOND).await,
            Err(ResolveError::Code(2))
        );
        assert!(resolver.lookup_host(b"half", SECOND).await.is_ok());
    });
}

#[test]
fn services_have_the_addresses_of_their_targets() {
    let dns = Dns::start(|name, kind, _| match (name, kind) {
        ("_http._tcp.site", SRV) => Some((
            0,
            vec![
                record(
                    SRV,
                    60,
                    &[&[0, 2, 0, 0, 0, 81][..], &wire_name("b")].concat(),
                ),
                record(
                    SRV,
                    60,
                    &[&[0, 1, 0, 5, 0, 80][..], &wire_name("a")].concat(),
                ),
            ],
        )),
        ("a", A) => Some((0, vec![record(A, 60, &[127, 0, 0, 1])])),
        ("b", A) => Some((0, vec![record(A, 60, &[127, 0, 0, 2])])),
        _ => Some((3, vec![])),
    });
    let resolver = resolver(ResolverSettings {
        ipv6: false,
        ..dns.settings()
    });
    on_loop(async move {
        let found = resolver
            .lookup_service(b"http", b"site", SECOND)
            .await
            .expect("services");
        let texts: Vec<String> = found
            .iter()
            .map(|s| format!("{} {} {} {}", s.address, s.name, s.priority, s.weight))
            .collect();
        assert_eq!(texts, ["127.0.0.1:80 a 1 5", "127.0.0.2:81 b 2 1"]);
        assert_eq!(
            resolver.lookup_service(b"no", b"site", SECOND).await,
            Err(ResolveError::UNKNOWN)
        );
    });
}

#[test]
fn a_server_that_is_not_there_is_passed_over_at_once() {
    let dns = Dns::start(|_, _, _| Some((0, vec![record(A, 60, &[127, 0, 0, 1])])));
    let closed = UdpSocket::bind("127.0.0.1:0")
        .and_then(|socket| socket.local_addr())
        .expect("a port that was free");
    let mut settings = ResolverSettings {
        ipv6: false,
        ..dns.settings()
    };
    settings.servers.insert(0, SocketAddress::Inet(closed));
    let resolver = resolver(settings);
    on_loop(async move { assert!(resolver.lookup_host(b"a", SECOND).await.is_ok()) });
}

#[test]
fn names_are_watched() {
    let dns = Dns::start(|_, _, number| match number {
        0 => Some((0, vec![record(A, 0, &[127, 0, 0, 1])])),
        1 => Some((2, vec![])),
        _ => Some((3, vec![])),
    });
    let settings = ResolverSettings {
        ipv6: false,
        ..dns.settings()
    };
    let mut watch = NameWatch::new(resolver(settings), "a".into(), "".into(), 80, SECOND);
    on_loop(async move {
        let NameUpdate::Servers(servers) = watch.next_update().await else {
            panic!("the first answer has an address")
        };
        assert_eq!(servers[0].address.to_string(), "127.0.0.1:80");
        assert_eq!(
            watch.next_update().await,
            NameUpdate::Failed(ResolveError::Code(2))
        );
        assert_eq!(watch.next_update().await, NameUpdate::Servers(Vec::new()));
    });
}

/// A server that answers only when nobody asks any more gets a part of the questions at a time, and no question is lost
/// in its receive buffer.
#[test]
fn many_watched_names_are_asked_for_in_turn() {
    const NAMES: usize = 500;
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    let pause = Duration::from_millis(20);
    socket.set_read_timeout(Some(pause)).expect("a timeout");
    let address = socket.local_addr().expect("bound");
    let server = std::thread::spawn(move || {
        let script: Script = |_, _, _| Some((0, vec![record(A, 60, &[127, 0, 0, 1])]));
        let (mut answered, mut largest, mut waiting) = (0, 0, Vec::new());
        let mut buffer = [0; 512];
        while answered < NAMES {
            if let Ok((length, from)) = socket.recv_from(&mut buffer) {
                waiting.push((reply(&buffer[..length], Letters::Keeps, script, 0), from));
                continue;
            }
            largest = largest.max(waiting.len());
            for (reply, from) in waiting.drain(..) {
                let reply = reply.expect("the script answers all");
                // A caller that has asked again in the meantime no longer listens here.
                let _ = socket.send_to(&reply, from);
                answered += 1;
            }
        }
        largest
    });
    let settings = ResolverSettings {
        servers: vec![SocketAddress::Inet(address)],
        ipv6: false,
        ..ResolverSettings::default()
    };
    let resolver = resolver(settings);
    on_loop(async move {
        let turns = Rc::<LookupTurns>::default();
        let watches: Vec<_> = (0..NAMES)
            .map(|number| {
                let (resolver, name) = (resolver.clone(), format!("n{number}"));
                let watch = NameWatch::new(resolver, name.into(), "".into(), 80, 10 * SECOND);
                let mut watch = watch.in_turns(&turns);
                rt::spawn_handle("watch", async move { watch.next_update().await })
            })
            .collect();
        for watch in watches {
            let update = watch.await.expect("it does not panic");
            assert!(matches!(update, NameUpdate::Servers(servers) if servers.len() == 1));
        }
    });
    let largest = server.join().expect("it does not panic");
    // On a machine that stands still for a while, turns end before they are answered.
    assert!(largest < NAMES / 2, "{largest} questions at once");
}

#[test]
fn without_servers_only_literals_resolve() {
    on_loop(async {
        let resolver = resolver(ResolverSettings::default());
        assert_eq!(
            resolver.lookup_host(b"a", SECOND).await,
            Err(ResolveError::NoResolver)
        );
        assert!(resolver.lookup_host(b"192.0.2.1", SECOND).await.is_ok());
    });
}

/// There is one name, and the question is as long as chance needs to choose a capital.
fn one_name(name: &str, _: u16, _: usize) -> Option<(u8, Vec<Vec<u8>>)> {
    match name {
        LONG_NAME => Some((0, vec![record(A, 0, &[127, 0, 0, 1])])),
        _ => Some((3, vec![])),
    }
}

const LONG_NAME: &str = "abcdefghijklmnopqrstuvwxyz.abcdefghijklmnopqrstuvwxyz.example";

#[test]
fn letters_of_a_name_must_come_back_as_they_went() {
    let dns = Dns::with(Letters::Keeps, one_name);
    let resolver = resolver(ResolverSettings {
        ipv6: false,
        ..dns.settings()
    });
    let cases = resolver.clone();
    on_loop(async move {
        for _ in 0..3 {
            assert!(
                resolver
                    .lookup_host(LONG_NAME.as_bytes(), SECOND)
                    .await
                    .is_ok()
            );
        }
    });
    assert!(cases.cases.is_kept(0));
    assert_eq!(dns.asked(), 3);
}

#[test]
fn servers_that_do_not_keep_the_letters_are_asked_in_small_ones() {
    for (letters, questions) in [(Letters::Lowers, 5), (Letters::Compares, 3)] {
        let dns = Dns::with(letters, one_name);
        let resolver = resolver(ResolverSettings {
            ipv6: false,
            ..dns.settings()
        });
        let cases = resolver.clone();
        on_loop(async move {
            for _ in 0..2 {
                let found = resolver.lookup_host(LONG_NAME.as_bytes(), SECOND).await;
                assert!(found.is_ok(), "{found:?}");
            }
        });
        assert!(!cases.cases.asks_randomly(0, false));
        // The first time so often until that was known; the second time once.
        assert_eq!(dns.asked(), questions);
    }
}

#[test]
fn a_server_that_is_silent_about_capitals_is_asked_without() {
    let dns = Dns::with(Letters::Ignores, one_name);
    let resolver = resolver(ResolverSettings {
        ipv6: false,
        ..dns.settings()
    });
    on_loop(async move {
        let found = resolver.lookup_host(LONG_NAME.as_bytes(), 9 * SECOND).await;
        assert!(found.is_ok(), "{found:?}");
    });
}
