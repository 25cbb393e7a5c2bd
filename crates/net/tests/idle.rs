//! Connections kept for reuse, on one loop and between loops.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use net::upstream::{
    GroupOrigin, GroupSettings, KeepaliveSettings, PeerConnection, PeerOutcome, PeerSelection,
    PeerStream, ReuseTerms, UpstreamGroup, UpstreamServer, UpstreamTimes,
};
use weir_net as net;

/// A server that answers each byte with a byte, and closes a connection that sends `q`.
struct Echo {
    address: SocketAddr,
    accepted: Arc<AtomicUsize>,
}

impl Echo {
    fn start() -> Echo {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let accepted = Arc::new(AtomicUsize::new(0));
        let count = accepted.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                count.fetch_add(1, Ordering::SeqCst);
                std::thread::spawn(move || echo(stream));
            }
        });
        Echo { address, accepted }
    }

    fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }

    fn group(&self, keepalive: Option<KeepaliveSettings>) -> Arc<UpstreamGroup> {
        let mut settings = GroupSettings::new("u", GroupOrigin::Block);
        settings.add_server(UpstreamServer::new(
            self.address.to_string(),
            vec![self.address.into()],
        ));
        settings.keepalive = keepalive;
        Arc::new(UpstreamGroup::new(settings))
    }
}

fn echo(mut stream: TcpStream) {
    let mut byte = [0];
    while stream.read_exact(&mut byte).is_ok() && byte != *b"q" {
        if stream.write_all(&byte).is_err() {
            return;
        }
    }
}

fn keepalive(connections: usize) -> Option<KeepaliveSettings> {
    Some(KeepaliveSettings {
        connections,
        local: false,
        requests: 1000,
        time: Duration::from_secs(3600),
        timeout: Duration::from_secs(60),
    })
}

/// One request; whether its connection was used before.
async fn request(group: &Arc<UpstreamGroup>, byte: u8, tag: u64) -> bool {
    let mut selection = PeerSelection::for_client(group.clone(), None);
    let lease = selection.acquire().await.expect("alive");
    let connection = match lease.take_idle_connection(ReuseTerms::of(tag)).await {
        Some(connection) => connection,
        None => {
            let options = net::ConnectSettings::default();
            let stream = net::connect(lease.address(), &options)
                .await
                .expect("it listens");
            PeerConnection::new(
                PeerStream::Socket(net::Transport::plain(stream)),
                ReuseTerms::of(tag),
            )
        }
    };
    let reused = connection.is_reused();
    let transport = connection.stream.transport().expect("a socket");
    transport.write_all(&[byte]).await.expect("open");
    if byte != b'q' {
        let mut answer = [0; 16];
        assert_eq!(transport.read(&mut answer).await.expect("open"), 1);
    }
    lease.keep_connection(connection);
    selection.release_peer(lease, PeerOutcome::Ok(UpstreamTimes::default()));
    reused
}

fn on_a_loop<F: Future<Output = ()> + 'static>(future: impl FnOnce() -> F) {
    rt::run(rt::LoopOptions::default(), future).expect("a loop can be made");
}

#[test]
fn the_same_loop_uses_its_connection_again() {
    let echo = Echo::start();
    let group = echo.group(keepalive(4));
    let accepted = echo.accepted.clone();
    on_a_loop(move || async move {
        assert!(!request(&group, b'a', 0).await);
        for _ in 0..10 {
            assert!(request(&group, b'a', 0).await);
        }
        assert_eq!(accepted.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn limits_of_requests_number_and_place() {
    let echo = Echo::start();
    on_a_loop(move || async move {
        let group = echo.group(Some(KeepaliveSettings {
            requests: 2,
            ..keepalive(4).expect("set")
        }));
        assert_eq!(
            [
                request(&group, b'a', 0).await,
                request(&group, b'a', 0).await,
                request(&group, b'a', 0).await
            ],
            [false, true, false]
        );
        let group = echo.group(Some(KeepaliveSettings {
            local: true,
            ..keepalive(4).expect("set")
        }));
        assert_eq!(
            [
                request(&group, b'a', 1).await,
                request(&group, b'a', 2).await,
                request(&group, b'a', 1).await
            ],
            [false, false, true]
        );
        assert_eq!(group.state().idle_connections(), 2);
        let group = echo.group(None);
        assert!(!request(&group, b'a', 0).await && !request(&group, b'a', 0).await);
        assert_eq!(group.state().idle_connections(), 0);
    });
}

#[test]
fn one_that_the_server_closed_is_not_used() {
    let echo = Echo::start();
    on_a_loop(move || async move {
        let group = echo.group(keepalive(4));
        request(&group, b'q', 0).await;
        rt::sleep(Duration::from_millis(50)).await;
        assert!(!request(&group, b'a', 0).await);
        assert_eq!(echo.accepted(), 2);
    });
}

#[test]
fn what_was_left_longest_ago_makes_room() {
    let echo = Echo::start();
    on_a_loop(move || async move {
        let group = echo.group(keepalive(2));
        let tasks: Vec<_> = (0..4)
            .map(|_| {
                let group = group.clone();
                rt::spawn_handle("request", async move { request(&group, b'a', 0).await })
            })
            .collect();
        for task in tasks {
            task.await.expect("no panic");
        }
        assert_eq!(group.state().idle_connections(), 2);
        let reloaded = echo.group(keepalive(1));
        group.state().configure(&reloaded.settings, 1);
        assert_eq!(group.state().idle_connections(), 1);
    });
}

#[test]
fn unused_ones_are_closed_after_their_time() {
    let echo = Echo::start();
    on_a_loop(move || async move {
        let group = echo.group(Some(KeepaliveSettings {
            timeout: Duration::from_millis(100),
            ..keepalive(4).expect("set")
        }));
        request(&group, b'a', 0).await;
        assert_eq!(group.state().idle_connections(), 1);
        rt::sleep(Duration::from_millis(120)).await;
        assert!(!request(&group, b'a', 0).await);
        rt::sleep(Duration::from_millis(2100)).await;
        assert_eq!(group.state().idle_connections(), 0);
    });
}

#[test]
fn loops_share_one_pool() {
    const LOOPS: usize = 4;
    let echo = Echo::start();
    let group = echo.group(keepalive(64));
    // One connection is opened on a loop that stays; the others use it in turn.
    let (ready, opened) = std::sync::mpsc::channel();
    let (finish, finished) = rt::sync::remote_oneshot::channel::<()>();
    let home = {
        let group = group.clone();
        std::thread::spawn(move || {
            on_a_loop(move || async move {
                request(&group, b'a', 0).await;
                ready.send(()).expect("the receiver waits");
                let _done = finished.await;
            });
        })
    };
    opened.recv().expect("opened");
    let (back, came_back) = std::sync::mpsc::channel();
    for _ in 0..LOOPS {
        let (group, back) = (group.clone(), back.clone());
        std::thread::spawn(move || {
            on_a_loop(move || async move {
                for _ in 0..20 {
                    assert!(
                        request(&group, b'a', 0).await,
                        "a new connection was opened"
                    );
                }
                // The loop ends, so that what it holds must be out of the pool; the last one home is this loop's.
                back.send(()).expect("the receiver waits");
                rt::sleep(Duration::from_secs(1)).await;
            });
        });
        came_back
            .recv_timeout(Duration::from_secs(20))
            .expect("done");
    }
    assert_eq!(echo.accepted(), 1);
    assert!(finish.send(()).is_ok());
    home.join().expect("no panic");
}

#[test]
fn many_loops_at_once_lose_no_connection() {
    const LOOPS: usize = 4;
    const TASKS: usize = 16;
    let echo = Echo::start();
    let group = echo.group(keepalive(LOOPS * TASKS));
    let barrier = Arc::new(std::sync::Barrier::new(LOOPS));
    let threads: Vec<_> = (0..LOOPS)
        .map(|_| {
            let (group, barrier) = (group.clone(), barrier.clone());
            std::thread::spawn(move || {
                on_a_loop(move || async move {
                    let tasks: Vec<_> = (0..TASKS)
                        .map(|_| {
                            let group = group.clone();
                            rt::spawn_handle("client", async move {
                                for _ in 0..200 {
                                    request(&group, b'a', 0).await;
                                }
                            })
                        })
                        .collect();
                    for task in tasks {
                        task.await.expect("no panic");
                    }
                    barrier.wait();
                    net::upstream::close_idle();
                });
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("no panic");
    }
    // As many as were ever in use at once, and few more for hand-overs that came too late.
    assert!(echo.accepted() <= LOOPS * TASKS + 8, "{}", echo.accepted());
    assert_eq!(group.state().idle_connections(), 0);
    assert_eq!(group.state().status()[0].connections, 0);
}

/// Requests of a loop while all idle connections are with loops whose turns last 30 ms, again and again.
#[test]
fn loops_that_are_late_do_not_fill_the_pool() {
    const LATE: Duration = Duration::from_millis(30);
    const CONNECTIONS: usize = 4;
    let echo = Echo::start();
    let group = echo.group(keepalive(64));
    let (ready, opened) = std::sync::mpsc::channel();
    let end = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let home = {
        let (group, end) = (group.clone(), end.clone());
        std::thread::spawn(move || {
            on_a_loop(move || async move {
                let tasks: Vec<_> = (0..CONNECTIONS)
                    .map(|_| {
                        let group = group.clone();
                        rt::spawn_handle("client", async move {
                            request(&group, b'a', 0).await;
                        })
                    })
                    .collect();
                for task in tasks {
                    task.await.expect("no panic");
                }
                ready.send(()).expect("the receiver waits");
                while !end.load(Ordering::SeqCst) {
                    // What a machine that is too busy does to a loop.
                    std::thread::sleep(LATE);
                    rt::sleep(Duration::from_micros(100)).await;
                }
            });
        })
    };
    opened.recv().expect("opened");
    for _ in 0..20 {
        // A loop of its own each time: what it leaves goes with it, as if it were the late one's.
        let group = group.clone();
        on_a_loop(move || async move {
            request(&group, b'a', 0).await;
            net::upstream::close_idle();
        });
    }
    end.store(true, Ordering::SeqCst);
    home.join().expect("no panic");
    // Each of the four may be used up; no other one is opened as long as one of them is left.
    assert!(echo.accepted() <= 20, "{}", echo.accepted());
}
