//! What a loop of the worker runs: its engines, and what the control thread asks of it.
//!
//! Everything here runs on the thread of a loop. [`crate::worker`] posts to it and never touches
//! the state of a loop; what a loop answers goes through its slot ([`host::loop_slots`]) or through the
//! pipe that tells of its end.
//!
//! An engine is stopped in the loop, not in the process: it stops accepting, and the loop goes on
//! until its last connection is closed.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{PipeWriter, Write as _};
use std::os::fd::AsFd as _;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use host::engine::{
    ConnectionSink, EngineConfiguration, LoopContext, LoopEngine, LoopListener, MoveScope,
};
use host::error_log::{LogLevel, Logger};
use host::loop_slots::{ArrivingConnection, LoopArrival, LoopSlot, LoopSlots, MovingConnection};

use crate::watchdog::{SHED_LEAST, SHED_PART};

/// How often a stopping loop checks whether its last connection is closed.
const DRAIN_INTERVAL: Duration = Duration::from_millis(10);

/// The body of a loop's thread.
pub(crate) fn run_loop(
    event_loop: rt::EventLoop,
    loop_slot: Arc<LoopSlot>,
    processors: Option<Vec<usize>>,
    log: &Logger,
    ended: LoopEndGuard,
) {
    // Dropped last, also by a panic.
    let _ended = ended;
    let index = loop_slot.index;
    if let Some(processors) = processors
        && let Err(error) = host::process::pin_thread(&processors)
    {
        let error = base::ErrnoText(&error);
        log.log_plain(
            LogLevel::Alert,
            format_args!("sched_setaffinity() failed{error}"),
        );
    }
    // Before the first message: it may be a configuration, or the order to end if another loop could not be started.
    let done = Rc::new(rt::sync::Notify::new());
    LOOP.with_borrow_mut(|state| {
        state.loop_slot = Some(loop_slot);
        state.done = Some(done.clone());
    });
    let main = || async move { done.notified().await };
    if let Err(error) = event_loop.run(main) {
        let error = base::ErrnoText(&error);
        log.log_plain(
            LogLevel::Emerg,
            format_args!("event loop {index} ended{error}"),
        );
    }
    // The engines belong to this loop; their destructors must find it gone, not half alive.
    LOOP.with_borrow_mut(|state| *state = LoopState::default());
}

/// Tells the control thread that a loop has ended, even by a panic.
pub(crate) struct LoopEndGuard(pub(crate) PipeWriter, pub(crate) u64);

impl Drop for LoopEndGuard {
    fn drop(&mut self) {
        // If the control thread is gone, too, the process is ending.
        let _ = self.0.write_all(&self.1.to_le_bytes());
    }
}

/// What runs on a loop.
#[derive(Default)]
struct LoopState {
    /// The engines by kind, such as `http`.
    engines: BTreeMap<&'static str, Rc<dyn LoopEngine>>,
    /// Engines that a reload has removed, with connections still open.
    retired: Vec<Rc<dyn LoopEngine>>,
    /// Notified to end the loop's main task.
    done: Option<Rc<rt::sync::Notify>>,
    /// Where others leave connections for this loop.
    loop_slot: Option<Arc<LoopSlot>>,
}

rt::local! {
    /// Set on loop threads only. Never borrowed while an engine runs, since that may call back into
    /// this module.
    static LOOP: RefCell<LoopState> = RefCell::default();
}

/// Runs on a loop: starts new engines and reloads the others.
pub(crate) fn configure_loop(
    context: LoopContext,
    engines: Vec<(Arc<dyn EngineConfiguration>, Vec<LoopListener>)>,
) {
    let mut before = LOOP.with_borrow_mut(|state| std::mem::take(&mut state.engines));
    let mut now = BTreeMap::new();
    for (configuration, listeners) in engines {
        let kind = configuration.kind();
        let engine = match before.remove(kind) {
            Some(engine) => {
                let context = context.clone();
                engine.reload(
                    configuration,
                    LoopContext {
                        listeners,
                        ..context
                    },
                );
                engine
            }
            None => Rc::from(configuration.start_loop(LoopContext {
                listeners,
                ..context.clone()
            })),
        };
        now.insert(kind, engine);
    }
    for engine in before.values() {
        // Engines that the configuration no longer has. Stopped only now, when those that stay listen already.
        engine.stop();
    }
    LOOP.with_borrow_mut(|state| {
        state.engines = now;
        // From now on other loops may leave connections here: there are engines to take them.
        if let Some(loop_slot) = &state.loop_slot {
            loop_slot.open_slot();
        }
        state.retired.retain(|engine| engine.active() > 0);
        state.retired.extend(before.into_values());
    });
}

/// The loop's engines, including those that a reload has removed.
fn all_engines() -> Vec<Rc<dyn LoopEngine>> {
    LOOP.with_borrow(|state| {
        state
            .engines
            .values()
            .chain(&state.retired)
            .cloned()
            .collect()
    })
}

/// Lets the loop's main task end, and so the loop.
fn finish_loop() {
    let done = LOOP.with_borrow(|state| state.done.clone());
    if let Some(done) = done {
        done.notify_one();
    }
}

/// Gives a connection to the loop with the fewest connections.
pub(crate) fn place_connection(mut arrival: LoopArrival, loop_slots: &LoopSlots) {
    // A loop may just have closed its slot, and is not found again then. A connection that no loop
    // takes is closed, as an idle one may be.
    for _ in loop_slots.list.iter() {
        let Some(loop_slot) = loop_slots.least_loaded() else {
            return;
        };
        match loop_slot.give_connection(arrival) {
            Ok(()) => return,
            Err(refused) => arrival = refused,
        }
    }
}

/// Runs on a loop: adopts the connections that others have given it.
pub(crate) fn take_arrivals() {
    let (loop_slot, engines) =
        LOOP.with_borrow(|state| (state.loop_slot.clone(), state.engines.clone()));
    let Some(loop_slot) = loop_slot else { return };
    // A kind that this loop no longer has is dropped, which closes the connection.
    for arrival in loop_slot.take_arrivals() {
        if let Some(engine) = engines.get(arrival.kind) {
            engine.adopt_connection(arrival.connection);
        }
    }
}

/// Runs on a loop: serves in place of another one as long as that is late by `limit`.
pub(crate) fn rescue(late: Arc<LoopSlot>, limit: Duration) {
    let engines = LOOP.with_borrow(|state| state.engines.clone());
    for arrival in late.take_arrivals() {
        if let Some(engine) = engines.get(arrival.kind) {
            engine.adopt_connection(arrival.connection);
        }
    }
    let index = late.index;
    // Checked again at every step: the late loop may recover at any moment, and then serves its sockets itself.
    let still: Rc<dyn Fn() -> bool> = Rc::new(move || late.handle().turn_duration() >= limit);
    for engine in engines.values() {
        engine.accept_for_late_loop(index, still.clone());
    }
}

/// Runs on a loop: moves this number of its connections to other loops.
pub(crate) fn move_connections(count: usize, loop_slots: LoopSlots) {
    let engines = LOOP.with_borrow(|state| state.engines.clone());
    for (kind, engine) in engines {
        let loop_slots = loop_slots.clone();
        let sink = move |moving| {
            let connection = ArrivingConnection::Idle(moving);
            place_connection(LoopArrival { kind, connection }, &loop_slots);
        };
        let sink = ConnectionSink {
            scope: MoveScope::Process,
            take: Rc::new(sink),
        };
        engine.move_idle_connections(count, sink);
    }
}

/// Runs on a loop: closes connections that have long been idle.
pub(crate) fn shed_idle() {
    for engine in all_engines() {
        engine.close_idle_connections(SHED_PART, SHED_LEAST);
    }
}

/// Runs on a loop: moves this number of its idle connections to another worker group.
pub(crate) fn move_to_group(count: usize, to: usize, loop_slots: LoopSlots) {
    let group = loop_slots
        .list
        .first()
        .and_then(|slot| slot.group().cloned());
    let Some(group) = group else { return };
    let engines = LOOP.with_borrow(|state| state.engines.clone());
    for (kind, engine) in engines {
        let (group, loop_slots) = (group.clone(), loop_slots.clone());
        let sink = move |moving: MovingConnection| {
            let body = crate::handover::encode(kind, &moving);
            // What only this process can use, such as a TLS session, was meant for another loop of it: the order that
            // this sink belongs to came in between.
            let may_leave = moving.state.is_none();
            if may_leave && group.give_idle(to, &body, moving.descriptor.as_fd()) {
                return;
            }
            let connection = ArrivingConnection::Idle(moving);
            place_connection(LoopArrival { kind, connection }, &loop_slots);
        };
        let sink = ConnectionSink {
            scope: MoveScope::Beyond,
            take: Rc::new(sink),
        };
        engine.move_idle_connections(count, sink);
    }
}

/// Runs on a loop: begins to count the work of each connection.
pub(crate) fn count_work() {
    for engine in all_engines() {
        engine.start_counting_work();
    }
}

/// Runs on a loop: moves connections that cause this part of its work to the loop with the slot
/// `to`. If that has ended meanwhile, any other loop will do.
pub(crate) fn move_work(part: f64, to: u64, loop_slots: LoopSlots) {
    let engines = LOOP.with_borrow(|state| state.engines.clone());
    for (kind, engine) in engines {
        let loop_slots = loop_slots.clone();
        let sink = move |moving| {
            let connection = ArrivingConnection::Idle(moving);
            let arrival = LoopArrival { kind, connection };
            let refused = match loop_slots.list.iter().find(|loop_slot| loop_slot.id == to) {
                Some(calm) => calm.give_connection(arrival),
                None => Err(arrival),
            };
            if let Err(arrival) = refused {
                place_connection(arrival, &loop_slots);
            }
        };
        let sink = ConnectionSink {
            scope: MoveScope::Process,
            take: Rc::new(sink),
        };
        engine.move_busy_connections(part, sink);
    }
}

/// Closes the loop's slot: others can give it nothing any more, and what they gave is adopted.
fn close_loop_slot() {
    let (loop_slot, engines) =
        LOOP.with_borrow(|state| (state.loop_slot.clone(), state.engines.clone()));
    let arrivals = loop_slot
        .map(|loop_slot| loop_slot.close_slot())
        .unwrap_or_default();
    for arrival in arrivals {
        if let Some(engine) = engines.get(arrival.kind) {
            engine.adopt_connection(arrival.connection);
        }
    }
}

/// Runs on a loop: ends it when its last connection is closed. Idle connections go to `sink`.
pub(crate) fn drain_loop_to(
    scope: MoveScope,
    sink: impl Fn(&'static str, MovingConnection) + Clone + 'static,
) {
    // Before the engines are asked: what others left here counts as this loop's connections.
    close_loop_slot();
    let engines = LOOP.with_borrow(|state| state.engines.clone());
    for (kind, engine) in engines {
        let sink = sink.clone();
        let take = Rc::new(move |moving| sink(kind, moving));
        engine.hand_over(ConnectionSink { scope, take });
    }
    end_when_idle();
}

/// Runs on a loop: ends it when its last connection is closed. Those that wait for a request wait for `linger` at most.
pub(crate) fn stop_loop(linger: Duration) {
    close_loop_slot();
    for engine in all_engines() {
        if !linger.is_zero() {
            engine.linger(linger);
        }
        engine.stop();
    }
    end_when_idle();
}

/// Ends the loop once no engine has a connection left. Polling is good enough here: it happens once
/// per loop.
fn end_when_idle() {
    let engines = all_engines();
    rt::spawn_named("stop", async move {
        while engines.iter().any(|engine| engine.active() > 0) {
            rt::sleep(DRAIN_INTERVAL).await;
        }
        finish_loop();
    });
}

/// Cuts every connection so that its request ends and is logged.
pub(crate) fn cut_loop() {
    for engine in all_engines() {
        engine.shut_down_connections();
    }
}

/// Runs on a loop: ends it at once.
pub(crate) fn abort_loop() {
    for engine in all_engines() {
        engine.abort();
    }
    finish_loop();
}
