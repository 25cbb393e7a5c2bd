//! epoll: which descriptors became ready, and whom to wake for it.
//!
//! A socket is registered once, edge-triggered, and only when a call on it would have blocked: a connection that is
//! served from what it has already sent never comes here. It is registered for reading (`IN | RDHUP`), and for
//! `OUT` from the first write that would have blocked: registered for `OUT` at once, every new connection would
//! wake the loop just to say that it can be written to. The result of an event is kept as bits in the [`EventSource`]
//! until a call says `EAGAIN`. Listeners are registered level-triggered and exclusive, so that one connection wakes
//! one of several loops.
//!
//! Wakers stay in place after they were used ("disarmed"), because the same task will mostly wait for the same
//! thing again: nothing is cloned per request.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

use crate::event_loop;
use crate::handle::LoopShared;
use crate::tables::used_places;

/// What a source is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IoInterest {
    Read = 0,
    Write = 1,
    /// The peer has closed its side, or the connection is broken.
    Closed = 2,
}

const READ: u8 = 1 << IoInterest::Read as u8;
const WRITE: u8 = 1 << IoInterest::Write as u8;
const CLOSED: u8 = 1 << IoInterest::Closed as u8;

/// What epoll is asked of every socket that is no listener.
const READS: EventFlags = EventFlags::IN
    .union(EventFlags::RDHUP)
    .union(EventFlags::ET);

/// One descriptor's readiness and the tasks that wait for it. What an event touches is in the first
/// cache line.
pub(crate) struct EventSource {
    /// Sides whose last edge still stands.
    ready: Cell<u8>,
    /// Sides that a task waits for.
    armed: Cell<u8>,
    /// By side: who waits, or waited last.
    wakers: [Cell<Option<Waker>>; 3],
    /// Epoll was asked for `OUT`, too.
    for_write: Cell<bool>,
    /// Set for a listening socket: it is level-triggered, so it must leave the epoll set while no task waits for
    /// it.
    level: Cell<Option<Rc<OwnedFd>>>,
}

impl EventSource {
    fn new(level: Option<Rc<OwnedFd>>) -> Self {
        Self {
            ready: Cell::new(0),
            armed: Cell::new(0),
            wakers: Default::default(),
            for_write: Cell::new(false),
            level: Cell::new(level),
        }
    }

    fn deliver(&self, flags: EventFlags, epoll: &OwnedFd) {
        let mut bits = 0;
        if flags.contains(EventFlags::IN) {
            bits |= READ;
        }
        if flags.contains(EventFlags::OUT) {
            bits |= WRITE;
        }
        // The end of the stream is read like data; a task that only waits for the peer to close is woken at once.
        if flags.contains(EventFlags::RDHUP) {
            bits |= READ | CLOSED;
        }
        // Every call now fails and reports why, so each side may try.
        if flags.intersects(EventFlags::HUP | EventFlags::ERR) {
            bits |= READ | WRITE | CLOSED;
        }
        self.ready.set(self.ready.get() | bits);
        let armed = self.armed.get();
        // No task waits for it. A level-triggered socket would end every wait and leaves the set; an edge is
        // remembered in `ready`.
        if armed & bits == 0 {
            self.detach(epoll);
            return;
        }
        self.armed.set(armed & !bits);
        for (side, waker) in self.wakers.iter().enumerate() {
            if armed & bits & (1 << side) != 0
                && let Some(told) = waker.take()
            {
                told.wake_by_ref();
                // The wake-up may have put another waker here meanwhile.
                let newer = waker.take();
                waker.set(Some(newer.unwrap_or(told)));
            }
        }
    }

    fn detach(&self, epoll: &OwnedFd) {
        if let Some(fd) = self.level.take() {
            // It can only fail if the descriptor was never added.
            let _gone_either_way = epoll::delete(epoll, &fd);
        }
    }
}

/// A descriptor's place in its loop's epoll set. Dropped before the descriptor is closed.
pub(crate) struct Registration {
    source: Rc<EventSource>,
    token: EpollToken,
    loop_id: u64,
}

impl Registration {
    /// Registers a connected or connecting socket, edge-triggered, after a call for this side would have blocked. A
    /// socket that is not waited for in order to write counts as writable until a call has said otherwise.
    pub(crate) fn register_edge(fd: BorrowedFd<'_>, interest: IoInterest) -> io::Result<Self> {
        if interest == IoInterest::Write {
            let registration = Self::new(fd, READS | EventFlags::OUT, None)?;
            registration.source.for_write.set(true);
            return Ok(registration);
        }
        let registration = Self::new(fd, READS, None)?;
        registration.assume_ready(IoInterest::Write);
        Ok(registration)
    }

    /// After a write that would have blocked: epoll reports this side, too, starting with its present state.
    pub(crate) fn watch_writes(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        if self.source.for_write.replace(true) {
            return Ok(());
        }
        event_loop::with_loop(|core| {
            let flags = READS | EventFlags::OUT;
            Ok(epoll::modify(
                &core.reactor.epoll,
                fd,
                self.token.data(),
                flags,
            )?)
        })
    }

    /// Registers a listening socket, level-triggered; of the loops that share it, one is woken. If an event finds
    /// no waiting task, the socket leaves the set: see [`Self::is_detached`].
    pub(crate) fn register_exclusive(fd: &Rc<OwnedFd>) -> io::Result<Self> {
        Self::new(
            fd.as_fd(),
            EventFlags::IN | EventFlags::EXCLUSIVE,
            Some(Rc::clone(fd)),
        )
    }

    fn new(fd: BorrowedFd<'_>, flags: EventFlags, level: Option<Rc<OwnedFd>>) -> io::Result<Self> {
        event_loop::with_loop(|core| {
            let (source, token) = core.reactor.insert(level);
            let registration = Self {
                source,
                token,
                loop_id: core.shared.id,
            };
            epoll::add(&core.reactor.epoll, fd, token.data(), flags)?;
            Ok(registration)
        })
    }

    /// Whether the last edge still stands for this side.
    pub(crate) fn is_ready(&self, interest: IoInterest) -> bool {
        self.source.ready.get() & (1 << interest as u8) != 0
    }

    /// A call said `EAGAIN`: the next edge will tell.
    pub(crate) fn clear_ready(&self, interest: IoInterest) {
        self.source
            .ready
            .set(self.source.ready.get() & !(1 << interest as u8));
    }

    /// As if an edge had come, so that the next call is made.
    pub(crate) fn assume_ready(&self, interest: IoInterest) {
        self.source
            .ready
            .set(self.source.ready.get() | 1 << interest as u8);
    }

    /// Wakes the task at the next edge of this side.
    pub(crate) fn arm(&self, interest: IoInterest, cx: &Context<'_>) {
        let source = &self.source;
        source.armed.set(source.armed.get() | 1 << interest as u8);
        let place = &source.wakers[interest as usize];
        let waker = match place.take() {
            Some(waker) if waker.will_wake(cx.waker()) => waker,
            _ => cx.waker().clone(),
        };
        place.set(Some(waker));
    }

    /// Whether a level-triggered socket has left the epoll set because no task waited for it.
    pub(crate) fn is_detached(&self) -> bool {
        let level = self.source.level.take();
        let detached = level.is_none();
        self.source.level.set(level);
        detached
    }

    /// Takes the descriptor out of the epoll set, for one that lives on (closing it does the same,
    /// but only when no other process or descriptor shares the socket).
    pub(crate) fn remove(self, fd: BorrowedFd<'_>) {
        self.deregister(fd);
    }

    /// [`Registration::remove`] for one that is still referred to.
    pub(crate) fn deregister(&self, fd: BorrowedFd<'_>) {
        event_loop::try_with(|core| {
            if core.shared.id == self.loop_id {
                let _not_registered_is_fine = epoll::delete(&core.reactor.epoll, fd);
            }
        });
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        event_loop::try_with(|core| {
            if core.shared.id == self.loop_id {
                self.source.detach(&core.reactor.epoll);
                core.reactor.sources.borrow_mut().remove(self.token);
            }
        });
    }
}

/// What epoll carries for us: an index, and a generation against events of the slot's former tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct EpollToken {
    index: u32,
    generation: u32,
}

impl EpollToken {
    const EVENTFD: Self = Self {
        index: u32::MAX,
        generation: 0,
    };

    fn data(self) -> EventData {
        EventData::new_u64(u64::from(self.generation) << 32 | u64::from(self.index))
    }

    fn of(data: EventData) -> Self {
        let bits = data.u64();
        Self {
            index: bits as u32,
            generation: (bits >> 32) as u32,
        }
    }
}

#[derive(Default)]
struct EventSources {
    slots: Vec<(u32, Option<Rc<EventSource>>)>,
    free: Vec<u32>,
    /// The generation of a new slot: none that one in its place has had before.
    first: u32,
}

impl EventSources {
    fn get(&self, token: EpollToken) -> Option<Rc<EventSource>> {
        let (generation, source) = self.slots.get(token.index as usize)?;
        if *generation != token.generation {
            return None;
        }
        source.clone()
    }

    fn remove(&mut self, token: EpollToken) {
        let (generation, source) = &mut self.slots[token.index as usize];
        debug_assert_eq!(*generation, token.generation);
        *source = None;
        *generation = generation.wrapping_add(1);
        self.free.push(token.index);
    }

    /// Frees the slots behind the last one that is used.
    fn shrink(&mut self) {
        let used = used_places(self.slots.len(), &self.free);
        for (generation, _) in self.slots.drain(used..) {
            self.first = self.first.max(generation);
        }
        self.slots.shrink_to_fit();
        self.free.retain(|index| (*index as usize) < used);
        self.free.shrink_to_fit();
    }
}

/// A loop's epoll set.
pub(crate) struct Reactor {
    epoll: OwnedFd,
    sources: RefCell<EventSources>,
    events: RefCell<Vec<epoll::Event>>,
    capacity: usize,
}

impl Reactor {
    pub(crate) fn new(capacity: usize, shared: &Arc<LoopShared>) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(
            &epoll,
            shared.eventfd(),
            EpollToken::EVENTFD.data(),
            EventFlags::IN | EventFlags::ET,
        )?;
        let capacity = capacity.max(1);
        let events = RefCell::new(Vec::with_capacity(capacity));
        Ok(Self {
            epoll,
            sources: RefCell::default(),
            events,
            capacity,
        })
    }

    fn insert(&self, level: Option<Rc<OwnedFd>>) -> (Rc<EventSource>, EpollToken) {
        let source = Rc::new(EventSource::new(level));
        let mut sources = self.sources.borrow_mut();
        let token = match sources.free.pop() {
            Some(index) => {
                let (generation, slot) = &mut sources.slots[index as usize];
                *slot = Some(Rc::clone(&source));
                EpollToken {
                    index,
                    generation: *generation,
                }
            }
            None => {
                let index = u32::try_from(sources.slots.len()).expect("descriptors are 31-bit");
                let generation = sources.first;
                sources.slots.push((generation, Some(Rc::clone(&source))));
                EpollToken { index, generation }
            }
        };
        (source, token)
    }

    pub(crate) fn shrink(&self) {
        self.sources.borrow_mut().shrink();
    }

    /// Waits for events until the timeout (`None`: for ever). An interrupted wait is an empty one.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> io::Result<()> {
        let mut events = self.events.borrow_mut();
        events.clear();
        events.reserve(self.capacity);
        #[cfg(feature = "simulation")]
        let timeout = match crate::simulation::park(self.epoll.as_fd(), timeout) {
            true => Some(Duration::ZERO),
            false => timeout,
        };
        let timeout = timeout.map(|d| Timespec {
            tv_sec: i64::try_from(d.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: d.subsec_nanos().into(),
        });
        match epoll::wait(
            self.epoll.as_fd(),
            spare_capacity(&mut events),
            timeout.as_ref(),
        ) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// How many events the last wait gave.
    pub(crate) fn event_count(&self) -> usize {
        self.events.borrow().len()
    }

    /// Hands the events of the last wait to their sources. The eventfd's event needs nothing: it has
    /// done its work by ending the wait.
    pub(crate) fn dispatch(&self) {
        let events = self.events.take();
        for event in &events {
            let source = self.sources.borrow().get(EpollToken::of(event.data));
            if let Some(source) = source {
                source.deliver(event.flags, &self.epoll);
            }
        }
        self.events.replace(events);
    }
}
