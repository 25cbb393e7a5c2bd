//! Pools: order, push-back, shares of devices, panics.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rt::pool::{DeviceNumber, PoolHandle};
use weir_rt as rt;

fn run<F: Future + 'static>(main: impl FnOnce() -> F) -> F::Output {
    rt::run(rt::LoopOptions::default(), main).expect("a loop can be made")
}

#[test]
fn a_full_queue_delays_and_keeps_the_order() {
    let overflows = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&overflows);
    rt::report::set_reporter(move |event| {
        if matches!(
            event,
            rt::report::RuntimeEvent::PoolOverflow { pool: "narrow", .. }
        ) {
            seen.fetch_add(1, SeqCst);
        }
    });
    run(|| async {
        let pool = PoolHandle::new("narrow", 1, 0);
        let order = Arc::new(Mutex::new(Vec::new()));
        let tasks: Vec<_> = (0..200)
            .map(|i| {
                let (pool, order) = (pool.clone(), Arc::clone(&order));
                rt::spawn_handle("caller", async move {
                    pool.run(move || order.lock().expect("no panic in here").push(i))
                        .await;
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("it did not panic");
        }
        assert_eq!(
            *order.lock().expect("no panic in here"),
            (0..200).collect::<Vec<_>>()
        );
        assert_eq!(pool.stats().threads, 1);
        assert_eq!(pool.stats().done, 200);
    });
    assert_eq!(overflows.load(SeqCst), 1, "once a second");
}

#[test]
fn a_panic_in_the_pool_is_the_caller_s() {
    run(|| async {
        let pool = PoolHandle::new("panics", 1, 8);
        let again = pool.clone();
        let task = rt::spawn_handle("caller", async move {
            pool.run(|| panic!("in the pool")).await;
        });
        assert_eq!(task.await, Err(rt::JoinError::Panicked));
        assert_eq!(again.run(|| 5).await, 5, "its thread lives");
    });
}

#[test]
fn work_whose_caller_left_is_not_done() {
    run(|| async {
        let pool = PoolHandle::new("left", 1, 8);
        let (open, gate) = mpsc::channel::<()>();
        let first = {
            let pool = pool.clone();
            rt::spawn_handle("holds the thread", async move {
                pool.run(move || gate.recv().expect("it is opened")).await
            })
        };
        let done = Arc::new(AtomicUsize::new(0));
        let abandoned = {
            let (pool, done) = (pool.clone(), Arc::clone(&done));
            rt::spawn_handle("leaves", async move {
                pool.run(move || done.fetch_add(1, SeqCst)).await;
            })
        };
        rt::yield_now().await;
        abandoned.abort();
        open.send(()).expect("the first job waits");
        first.await.expect("it did not panic");
        pool.run(|| ()).await;
        assert_eq!(done.load(SeqCst), 0);
    });
}

#[test]
fn a_stuck_device_leaves_threads_to_the_others() {
    run(|| async {
        let pool = PoolHandle::new("devices", 4, 100);
        let (stuck, healthy) = (DeviceNumber(1), DeviceNumber(2));
        // Both are at work, so that both have a share.
        pool.run_on(healthy, || ()).await;
        let (open, gate) = mpsc::channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        let held: Vec<_> = (0..50)
            .map(|_| {
                let (pool, gate) = (pool.clone(), Arc::clone(&gate));
                rt::spawn_handle("on the stuck device", async move {
                    pool.run_on(stuck, move || {
                        // Ends when the gate is dropped: an error is what is waited for.
                        let _opened = gate.lock().expect("no panic in here").recv();
                    })
                    .await;
                })
            })
            .collect();
        rt::yield_now().await;
        for i in 0..20 {
            let run = pool.run_on(healthy, move || i);
            assert_eq!(rt::timeout(Duration::from_secs(20), run).await, Ok(i));
        }
        // A thread counts as running for a moment after its caller has the result.
        let settled = async {
            while pool.stats().running > 3 {
                rt::yield_now().await;
            }
        };
        let settled = rt::timeout(Duration::from_secs(20), settled).await;
        assert!(settled.is_ok(), "{:?}", pool.stats());
        drop(open);
        for task in held {
            task.await.expect("it did not panic");
        }
    });
}

#[test]
fn a_registered_pool_is_found_and_replaced_when_its_size_changes() {
    let first = rt::pool::register("registered", 2, 5);
    assert_eq!(first.name(), "registered");
    assert!(rt::pool::get("registered").is_some());
    assert!(rt::pool::get("never registered").is_none());
    rt::pool::register("registered", 3, 5);
    run(move || async move {
        // The handle of the old one works on.
        assert_eq!(first.run(|| 1).await, 1);
        assert_eq!(rt::pool::default_pool().run(|| 2).await, 2);
    });
}
