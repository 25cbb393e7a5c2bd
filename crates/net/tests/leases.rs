//! Leases and the queue, from several loops at once.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use net::upstream::{
    GroupOrigin, GroupSettings, NoPeer, PeerOutcome, PeerSelection, QueueSettings, UpstreamGroup,
    UpstreamServer, UpstreamTimes,
};
use weir_net as net;

/// A group of servers 127.0.0.1:1, :2, … that takes this number of connections each.
fn group(servers: usize, max_conns: u32, queue: Option<QueueSettings>) -> Arc<UpstreamGroup> {
    let mut settings = GroupSettings::new("u", GroupOrigin::Block);
    for i in 0..servers {
        let address = SocketAddr::from(([127, 0, 0, 1], i as u16 + 1));
        settings.add_server(UpstreamServer {
            max_conns,
            ..UpstreamServer::new(address.to_string(), vec![address.into()])
        });
    }
    settings.queue = queue;
    Arc::new(UpstreamGroup::new(settings))
}

fn queue(length: usize, timeout: Duration) -> Option<QueueSettings> {
    Some(QueueSettings { length, timeout })
}

fn on_a_loop<F: Future<Output = ()> + 'static>(future: impl FnOnce() -> F) {
    rt::run(rt::LoopOptions::default(), future).expect("a loop can be made");
}

#[test]
fn no_server_has_more_than_it_takes_and_nobody_is_forgotten() {
    const LOOPS: usize = 4;
    const REQUESTS: usize = 400;
    let group = group(3, 2, queue(LOOPS * REQUESTS, Duration::from_secs(60)));
    let in_use: Arc<Vec<AtomicUsize>> = Arc::new((0..4).map(|_| AtomicUsize::new(0)).collect());
    let (served, left) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let threads: Vec<_> = (0..LOOPS)
        .map(|_| {
            let (group, in_use, served, left) =
                (group.clone(), in_use.clone(), served.clone(), left.clone());
            std::thread::spawn(move || {
                on_a_loop(move || async move {
                    let tasks: Vec<_> = (0..REQUESTS)
                        .map(|i| {
                            let task = one_request(group.clone(), in_use.clone(), i);
                            rt::spawn_handle("request", task)
                        })
                        .collect();
                    for task in tasks {
                        let counter = if task.await.expect("no panic") {
                            &served
                        } else {
                            &left
                        };
                        counter.fetch_add(1, Ordering::Relaxed);
                    }
                });
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("no panic");
    }
    assert_eq!(
        served.load(Ordering::Relaxed) + left.load(Ordering::Relaxed),
        LOOPS * REQUESTS
    );
    assert!(served.load(Ordering::Relaxed) > LOOPS * REQUESTS / 2);
    let status = group.state().status();
    assert!(
        status.iter().all(|peer| peer.connections == 0),
        "{status:?}"
    );
    assert_eq!(group.state().waiting(), 0);
}

/// Whether it got a server. Every fourth leaves early: in the queue or while it is served.
async fn one_request(group: Arc<UpstreamGroup>, in_use: Arc<Vec<AtomicUsize>>, i: usize) -> bool {
    let serve = async {
        let mut selection = PeerSelection::for_client(group.clone(), None);
        let lease = selection.acquire().await.expect("the queue is long enough");
        let here = &in_use[usize::from(lease.address().port())];
        assert!(
            here.fetch_add(1, Ordering::SeqCst) < 2,
            "more than max_conns"
        );
        let guard = Leaving(here);
        if i.is_multiple_of(3) {
            rt::sleep(Duration::from_millis(1)).await;
        } else {
            rt::yield_now().await;
        }
        drop(guard);
        selection.release_peer(lease, PeerOutcome::Ok(UpstreamTimes::default()));
    };
    let patience = if i % 4 == 1 {
        Duration::from_millis(i as u64 % 7 * 10)
    } else {
        Duration::from_secs(60)
    };
    rt::timeout(patience, serve).await.is_ok()
}

struct Leaving<'a>(&'a AtomicUsize);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[test]
fn first_come_first_served() {
    on_a_loop(|| async {
        let group = group(1, 1, queue(10, Duration::from_secs(60)));
        let mut first = PeerSelection::for_client(group.clone(), None);
        let lease = first.acquire().await.expect("it is free");
        let order = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
        let tasks: Vec<_> = (0..5)
            .map(|i| {
                let (group, order) = (group.clone(), order.clone());
                rt::spawn_handle("waiter", async move {
                    let mut selection = PeerSelection::for_client(group.clone(), None);
                    let lease = selection.acquire().await.expect("served in turn");
                    order.borrow_mut().push(i);
                    rt::yield_now().await;
                    drop(lease);
                })
            })
            .collect();
        while group.state().waiting() < 5 {
            rt::yield_now().await;
        }
        // One of them leaves.
        tasks[2].abort();
        while group.state().waiting() > 4 {
            rt::yield_now().await;
        }
        first.release_peer(lease, PeerOutcome::Ok(UpstreamTimes::default()));
        for task in tasks {
            let _aborted_or_done = task.await;
        }
        assert_eq!(*order.borrow(), [0, 1, 3, 4]);
    });
}

#[test]
fn a_queue_has_an_end_and_a_time() {
    on_a_loop(|| async {
        let group = group(2, 1, queue(1, Duration::from_millis(30)));
        let mut selections: Vec<_> = (0..4)
            .map(|_| PeerSelection::for_client(group.clone(), None))
            .collect();
        let a = selections[0].acquire().await.expect("free");
        let b = selections[1].acquire().await.expect("free");
        assert_ne!(a.address(), b.address());
        let (third, fourth) = selections.split_at_mut(3);
        let waiting = third[2].acquire();
        let mut waiting = std::pin::pin!(waiting);
        assert!(
            rt::timeout(Duration::from_millis(1), &mut waiting)
                .await
                .is_err()
        );
        assert_eq!(
            fourth[0].acquire().await.expect_err("the queue is full"),
            NoPeer::QueueFull
        );
        assert_eq!(
            waiting.await.expect_err("its time is over"),
            NoPeer::QueueTimeout
        );
        assert_eq!(group.state().waiting(), 0);
    });
}

#[test]
fn without_a_queue_busy_is_an_answer() {
    on_a_loop(|| async {
        let group = group(2, 1, None);
        let mut first = PeerSelection::for_client(group.clone(), None);
        let lease = first.acquire().await.expect("free");
        let mut second = PeerSelection::for_client(group.clone(), None);
        let other = second.acquire().await.expect("free");
        let mut third = PeerSelection::for_client(group.clone(), None);
        assert!(matches!(third.try_pick(), Err(NoPeer::Occupied)));
        assert_eq!(
            third.acquire().await.expect_err("no queue"),
            NoPeer::Occupied
        );
        drop(other);
        assert!(third.try_pick().is_ok());
        drop(lease);
    });
}

#[test]
fn waiting_is_in_vain_when_the_last_server_fails() {
    on_a_loop(|| async {
        let group = group(2, 1, queue(10, Duration::from_secs(60)));
        let mut selections: Vec<_> = (0..3)
            .map(|_| PeerSelection::for_client(group.clone(), None))
            .collect();
        let a = selections[0].acquire().await.expect("free");
        let b = selections[1].acquire().await.expect("free");
        let waiter = {
            let group = group.clone();
            rt::spawn_handle("waiter", async move {
                PeerSelection::for_client(group.clone(), None)
                    .acquire()
                    .await
                    .map(drop)
            })
        };
        while group.state().waiting() < 1 {
            rt::yield_now().await;
        }
        assert!(
            selections[0]
                .release_peer(a, PeerOutcome::Failed(UpstreamTimes::default()))
                .disabled
        );
        assert!(
            selections[1]
                .release_peer(b, PeerOutcome::Failed(UpstreamTimes::default()))
                .disabled
        );
        assert_eq!(waiter.await.expect("no panic"), Err(NoPeer::NoneAlive));
    });
}

#[test]
fn tries_are_counted_as_nginx_counts_them() {
    on_a_loop(|| async {
        let group = group(3, 0, None);
        let mut selection = PeerSelection::for_client(group.clone(), None);
        assert_eq!(selection.tries_left(), 3);
        let lease = selection.acquire().await.expect("alive");
        let released = selection.release_peer(lease, PeerOutcome::Failed(UpstreamTimes::default()));
        assert!(released.disabled);
        assert_eq!(selection.tries_left(), 2);
        // An idle connection that had been closed: neither a try nor a failure, and the peer can be chosen again.
        let lease = selection.acquire().await.expect("alive");
        let port = lease.address().port();
        drop(lease);
        selection.forget_try();
        assert_eq!(selection.tries_left(), 2);
        let mut ports = Vec::new();
        for _ in 0..2 {
            ports.push(selection.acquire().await.expect("alive").address().port());
        }
        assert!(ports.contains(&port), "{ports:?}");
        selection.limit_tries(1);
        assert_eq!(selection.tries_left(), 1);
        let failed = group
            .state()
            .status()
            .into_iter()
            .filter(|peer| !peer.available)
            .count();
        assert_eq!(failed, 1);
    });
}

#[test]
fn a_reload_keeps_numbers_and_begins_the_round_anew() {
    on_a_loop(|| async {
        let zones = host::engine::ZoneRegistry::default();
        let old = group(2, 0, None);
        old.adopt_state(&zones);
        let mut selection = PeerSelection::for_client(old.clone(), None);
        let lease = selection.acquire().await.expect("alive");
        assert_eq!(lease.address().port(), 1);
        let mut failing = PeerSelection::for_client(old.clone(), None);
        let other = failing.acquire().await.expect("alive");
        failing.release_peer(other, PeerOutcome::Failed(UpstreamTimes::default()));
        let new = group(3, 0, None);
        new.adopt_state(&zones);
        assert!(Arc::ptr_eq(old.state(), new.state()));
        let status = new.state().status();
        let numbers: Vec<_> = status
            .iter()
            .map(|peer| (peer.connections, peer.available))
            .collect();
        assert_eq!(numbers, [(1, true), (0, false), (0, true)]);
        drop(lease);
        assert_eq!(new.state().status()[0].connections, 0);
    });
}
