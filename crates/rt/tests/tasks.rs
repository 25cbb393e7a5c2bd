//! Tasks, wakes from other threads, panics, fairness, reports.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use weir_rt as rt;

fn run<F: Future + 'static>(main: impl FnOnce() -> F) -> F::Output {
    rt::run(rt::LoopOptions::default(), main).expect("a loop can be made")
}

/// What was reported in this process; each test looks for names of its own.
fn reports(of: &str) -> Vec<String> {
    static SEEN: Mutex<Vec<String>> = Mutex::new(Vec::new());
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        rt::report::set_reporter(|event| {
            SEEN.lock()
                .expect("no panic in here")
                .push(event.to_string())
        });
    });
    SEEN.lock()
        .expect("no panic in here")
        .iter()
        .filter(|text| text.contains(of))
        .cloned()
        .collect()
}

#[test]
fn tasks_run_in_the_order_in_which_they_were_spawned() {
    let order = run(|| async {
        let order = Rc::new(RefCell::new(Vec::new()));
        for i in 0..100 {
            let order = Rc::clone(&order);
            rt::spawn(async move { order.borrow_mut().push(i) });
        }
        rt::yield_now().await;
        order.take()
    });
    assert_eq!(order, (0..100).collect::<Vec<_>>());
}

#[test]
fn a_panic_costs_one_task_and_is_reported_with_its_name() {
    reports("");
    let panics = run(|| async {
        let broken = rt::spawn_handle("the broken one", async { panic!("on purpose: {}", 7) });
        assert_eq!(
            broken.await.map(|never: ()| never),
            Err(rt::JoinError::Panicked)
        );
        let sound = rt::spawn_handle("the sound one", async { 3 });
        assert_eq!(sound.await, Ok(3));
        rt::handle().stats().panics
    });
    assert_eq!(panics, 1);
    // It is written out on a pool, because that takes long.
    let seen = loop {
        let seen = reports("\"the broken one\" panicked");
        if !seen.is_empty() {
            break seen;
        }
        std::thread::yield_now();
    };
    assert_eq!(seen.len(), 1);
    assert!(
        seen[0].contains("on purpose: 7") && seen[0].contains("tests/tasks.rs"),
        "{seen:?}"
    );
}

#[test]
#[should_panic(expected = "main went down")]
fn a_panic_of_the_main_task_is_passed_on() {
    reports("");
    run(|| async { panic!("main went down") });
}

#[test]
fn an_aborted_task_is_dropped_at_once() {
    struct Told(Rc<Cell<bool>>);
    impl Drop for Told {
        fn drop(&mut self) {
            self.0.set(true);
        }
    }
    run(|| async {
        let dropped = Rc::new(Cell::new(false));
        let told = Told(Rc::clone(&dropped));
        let task = rt::spawn_handle("waits for ever", async move {
            std::future::pending::<()>().await;
            drop(told);
        });
        rt::yield_now().await;
        task.abort();
        assert!(dropped.get());
        assert_eq!(task.await, Err(rt::JoinError::Aborted));
        assert_eq!(rt::task_count(), 1);
    });
}

#[test]
fn tasks_left_at_the_end_are_dropped_on_their_thread() {
    let left = Rc::new(Cell::new(0));
    struct Count(Rc<Cell<u32>>);
    impl Drop for Count {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }
    let inside = Rc::clone(&left);
    run(move || async move {
        for _ in 0..5 {
            let count = Count(Rc::clone(&inside));
            rt::spawn(async move {
                let _count = count;
                rt::sleep(Duration::from_secs(3600)).await;
            });
        }
        rt::yield_now().await;
    });
    assert_eq!(left.get(), 5);
}

#[test]
fn draining_waits_for_all_tasks() {
    let done = Rc::new(Cell::new(false));
    let inside = Rc::clone(&done);
    let options = rt::LoopOptions {
        drain: true,
        ..Default::default()
    };
    rt::run(options, move || async move {
        rt::spawn(async move {
            rt::sleep(Duration::from_millis(3)).await;
            inside.set(true);
        });
    })
    .expect("a loop can be made");
    assert!(done.get());
}

#[test]
fn wakes_and_messages_of_other_threads_arrive() {
    const MESSAGES: u64 = 20_000;
    let sum = run(|| async {
        let handle = rt::handle();
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let handle = handle.clone();
                let (sender, receiver) = rt::sync::remote_oneshot::channel();
                let thread = std::thread::spawn(move || {
                    for i in 0..MESSAGES {
                        // The inbox may be full for a moment: this is no loop, it may spin.
                        while handle.post(move || ARRIVED.set(ARRIVED.get() + i)).is_err() {
                            std::thread::yield_now();
                        }
                    }
                    sender.send(()).expect("the receiver waits");
                });
                (thread, receiver)
            })
            .collect();
        for (thread, receiver) in threads {
            receiver.await.expect("it was sent");
            thread.join().expect("it did not panic");
        }
        // What was posted before the last signal is run before or in the turn of that signal.
        rt::yield_now().await;
        ARRIVED.get()
    });
    assert_eq!(sum, 4 * MESSAGES * (MESSAGES - 1) / 2);
}

thread_local! {
    static ARRIVED: Cell<u64> = const { Cell::new(0) };
}

#[test]
fn a_message_to_a_loop_that_ended_is_refused() {
    let a_loop = rt::EventLoop::new(rt::LoopOptions::default()).expect("a loop can be made");
    let handle = a_loop.handle();
    assert!(handle.post(|| ()).is_ok(), "before it runs");
    a_loop.run(|| async {}).expect("it runs");
    assert_eq!(handle.post(|| ()), Err(rt::PostError::Closed));
}

#[test]
fn a_task_that_wakes_itself_for_ever_does_not_keep_timers_out() {
    run(|| async {
        rt::spawn(std::future::poll_fn(|cx| {
            cx.waker().wake_by_ref();
            std::task::Poll::Pending
        }));
        rt::sleep(Duration::from_millis(2)).await;
    });
}

#[test]
fn a_slow_turn_is_remembered_with_the_task_that_held_it() {
    let options = rt::LoopOptions {
        name: "slow loop".into(),
        slow_turn: Duration::from_millis(20),
        ..Default::default()
    };
    let seen = rt::run(options, || async {
        for _ in 0..3 {
            rt::spawn_named("quick one", async {});
        }
        rt::yield_now().await;
        rt::spawn_named("sluggard", async {
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_millis(25) {}
            let name = || "a long pattern".to_owned();
            rt::suspect(rt::slow_turn::SuspectKind::Part, name);
        });
        rt::yield_now().await;
        rt::yield_now().await;
        // This turn is not late, and nobody is to blame for anything.
        let name = || "an innocent".to_owned();
        rt::suspect(rt::slow_turn::SuspectKind::Part, name);
        rt::handle().take_slow_turns()
    })
    .expect("a loop can be made")
    .expect("there was one");
    assert!(seen.worst.tasks.contains(&"sluggard"), "{seen:?}");
    assert_eq!(seen.worst.suspects, ["a long pattern"]);
}

#[test]
fn a_loop_that_is_held_is_late_and_a_parked_one_is_not() {
    let held = run(|| async {
        let handle = rt::handle();
        let (sender, receiver) = rt::sync::remote_oneshot::channel();
        let watcher = std::thread::spawn(move || {
            let late = loop {
                let late = handle.turn_duration();
                if late >= Duration::from_millis(5) {
                    break late;
                }
                std::thread::yield_now();
            };
            sender.send(()).expect("the receiver waits");
            late
        });
        while !watcher.is_finished() {
            std::thread::yield_now();
        }
        receiver.await.expect("it was sent");
        watcher.join().expect("it did not panic")
    });
    assert!(held >= Duration::from_millis(5));
}

#[test]
fn timers_fire_in_order_and_not_early() {
    run(|| async {
        let fired = Rc::new(RefCell::new(Vec::new()));
        let begin = Instant::now();
        let tasks: Vec<_> = [9u64, 1, 5, 70, 3]
            .into_iter()
            .map(|ms| {
                let fired = Rc::clone(&fired);
                rt::spawn_handle("sleeper", async move {
                    rt::sleep(Duration::from_millis(ms)).await;
                    fired.borrow_mut().push(ms);
                    assert!(
                        begin.elapsed() >= Duration::from_millis(ms) - Duration::from_micros(100)
                    );
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("it did not panic");
        }
        assert_eq!(*fired.borrow(), [1, 3, 5, 9, 70]);
    });
}

#[test]
fn a_timer_may_be_put_off_and_brought_forward_while_a_task_waits() {
    run(|| async {
        let timer = Rc::new(rt::Timer::after(Duration::from_millis(4)));
        let waiting = Rc::clone(&timer);
        let begin = Instant::now();
        let task = rt::spawn_handle("waits", async move { waiting.expired().await });
        rt::yield_now().await;
        timer.set(Duration::from_secs(3600));
        rt::sleep(Duration::from_millis(8)).await;
        assert!(!task.is_finished(), "it was put off");
        timer.set(Duration::from_millis(1));
        task.await.expect("it did not panic");
        assert!(
            begin.elapsed() < Duration::from_secs(60),
            "it was brought forward"
        );

        timer.clear();
        let waiting = Rc::clone(&timer);
        let task = rt::spawn_handle("waits again", async move { waiting.expired().await });
        rt::sleep(Duration::from_millis(2)).await;
        assert!(!task.is_finished(), "it is not set");
        timer.set(Duration::ZERO);
        task.await.expect("it did not panic");
    });
}

#[test]
fn a_queue_pushes_back_and_ends() {
    run(|| async {
        let (sender, mut receiver) = rt::sync::mpsc::channel(2);
        rt::spawn(async move {
            for i in 0..50 {
                sender.send(i).await.expect("the receiver waits");
            }
        });
        for i in 0..50 {
            assert_eq!(receiver.recv().await, Ok(i));
        }
        assert_eq!(receiver.recv().await, Err(rt::sync::ChannelClosed));
    });
}

#[test]
fn a_notification_of_one_who_left_goes_to_the_next() {
    run(|| async {
        let notify = Rc::new(rt::sync::Notify::new());
        let first = notify.notified();
        let second = notify.notified();
        notify.notify_one();
        drop(first);
        rt::timeout(Duration::from_secs(10), second)
            .await
            .expect("it was passed on");
        assert!(!notify.has_waiters());
    });
}

/// What refers to a task that has ended must not reach another one, even if its place has been freed and made again.
#[test]
fn a_handle_does_not_reach_a_task_that_came_later() {
    run(|| async {
        let old: Vec<_> = (0..100)
            .map(|_| rt::spawn_abortable("short", async {}))
            .collect();
        rt::yield_now().await;
        rt::shrink_tables();
        let ended = Rc::new(Cell::new(0));
        for _ in 0..100 {
            let ended = Rc::clone(&ended);
            rt::spawn(async move {
                rt::sleep(Duration::from_millis(5)).await;
                ended.set(ended.get() + 1);
            });
        }
        for handle in old {
            handle.abort();
        }
        while rt::task_count() > 1 {
            rt::shrink_tables();
            rt::yield_now().await;
        }
        assert_eq!(ended.get(), 100);
    });
}
