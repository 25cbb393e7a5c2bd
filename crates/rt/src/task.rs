//! Tasks: the slab that holds them, their wakers, spawning, joining.
//!
//! A task is a boxed future in a slot of its loop's slab. Its waker is an `Arc<TaskHeader>` through
//! [`std::task::Wake`], so that no hand-made vtable is needed: waking from the loop's own thread pushes
//! the task's id on the ready queue; from any other thread it goes through the loop's inbox. A slot
//! keeps its header for the next task when no waker of the last one survives, so that a connection
//! costs one allocation for its future and mostly none for its waker. Only [`KEPT_HEADERS`] free slots do: after a peak
//! of tasks their headers, strewn among what has been freed, would keep all of that from going back to the system.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use crate::event_loop::{self, LoopCore};
use crate::handle::{LoopHandle, LoopShared, PostError, TaskId, current_id};
use crate::panics;
use crate::tables::used_places;

/// Runs `future` on this thread's loop, detached.
///
/// # Panics
/// When no loop runs on this thread.
pub fn spawn(future: impl Future<Output = ()> + 'static) {
    spawn_named("task", future);
}

/// [`spawn`], with a name for reports about the task.
pub fn spawn_named(name: &'static str, future: impl Future<Output = ()> + 'static) {
    let future: BoxedTask = Box::pin(future);
    event_loop::with_loop(|core| core.spawn(name, TaskRank::Ordinary, future));
}

/// [`spawn_named`], with a handle to wait for the result or to abort.
pub fn spawn_handle<T: 'static>(
    name: &'static str,
    future: impl Future<Output = T> + 'static,
) -> JoinHandle<T> {
    spawn_ranked(name, TaskRank::Ordinary, future)
}

/// [`spawn_named`], with a handle that can only abort: eight bytes, for tasks of which there are very many.
pub fn spawn_abortable(
    name: &'static str,
    future: impl Future<Output = ()> + 'static,
) -> AbortHandle {
    let future: BoxedTask = Box::pin(future);
    AbortHandle(event_loop::with_loop(|core| {
        core.spawn(name, TaskRank::Ordinary, future)
    }))
}

/// Ends a task. Dropping it lets the task run on.
#[derive(Debug, Clone, Copy)]
pub struct AbortHandle(TaskId);

impl AbortHandle {
    /// See [`JoinHandle::abort`]. A task that has ended is not affected.
    pub fn abort(&self) {
        let future = event_loop::try_with(|core| core.tasks.borrow_mut().abort(self.0)).flatten();
        drop(future);
    }
}

impl LoopHandle {
    /// Spawns on the loop the task that `make` builds there.
    pub fn spawn<F>(
        &self,
        name: &'static str,
        make: impl FnOnce() -> F + Send + 'static,
    ) -> Result<(), PostError>
    where
        F: Future<Output = ()> + 'static,
    {
        self.post(move || spawn_named(name, make()))
    }
}

/// Which tasks a turn polls first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TaskRank {
    /// In the order in which they were woken.
    #[default]
    Ordinary,
    /// After all ordinary ones, and for a limited time in each turn: work for clients that have not yet shown that
    /// they deserve more. Under full load they get half of the loop together, so none of them starves.
    Patient,
}

/// [`spawn_handle`], with a rank other than the ordinary one.
pub fn spawn_ranked<T: 'static>(
    name: &'static str,
    rank: TaskRank,
    future: impl Future<Output = T> + 'static,
) -> JoinHandle<T> {
    let join = Rc::new(JoinState {
        output: RefCell::new(TaskOutput::Running),
        waker: Cell::new(None),
    });
    // Into its box at once: each closure that it went through would copy it, and the future of a request is large.
    let joined: BoxedTask = Box::pin(JoinedFuture {
        ticket: JoinTicket(Rc::clone(&join)),
        future,
    });
    let task = event_loop::with_loop(|core| core.spawn(name, rank, joined));
    JoinHandle {
        task,
        join,
        abort_on_drop: false,
    }
}

/// Changes the rank of the task that is being polled, from when it is woken next.
pub fn set_rank(rank: TaskRank) {
    event_loop::try_with(|core| {
        if let Some(id) = core.polled.get() {
            core.tasks.borrow_mut().set_rank(id, rank);
        }
    });
}

/// Goes on as a task of this rank: what follows has its turn among those, not in the present poll.
pub async fn continue_as(rank: TaskRank) {
    set_rank(rank);
    let mut has_waited = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut has_waited, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// A future whose output goes to a [`JoinHandle`]. Not an `async` block: that would have room for the
/// future twice, as what it captured and as what it waits for, and the future of a connection is large.
struct JoinedFuture<F: Future> {
    ticket: JoinTicket<F::Output>,
    future: F,
}

impl<F: Future> Future for JoinedFuture<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // SAFETY: `future` is pinned whenever `self` is: it is never moved out or handed out unpinned,
        // the type has no `Drop` of its own, and it is `Unpin` only if both fields are. `ticket` is never pinned.
        // JUSTIFICATION: half of the memory of every connection, 18 KB each.
        let (future, ticket) = unsafe {
            let this = self.get_unchecked_mut();
            (Pin::new_unchecked(&mut this.future), &this.ticket)
        };
        future.poll(cx).map(|output| {
            ticket.0.output.replace(TaskOutput::Done(output));
        })
    }
}

/// How many tasks live on this thread's loop, the main one included.
pub fn task_count() -> usize {
    event_loop::with_loop(|core| core.tasks.borrow().living)
}

/// Frees the places of this thread's loop behind the last one that is used. It looks at each place: a microsecond for a thousand.
pub fn shrink_tables() {
    // Without a loop there are no tables.
    let _no_loop = event_loop::try_with(|core| {
        core.tasks.borrow_mut().shrink();
        core.wheel.borrow_mut().shrink();
        core.reactor.shrink();
        core.queue(TaskRank::Ordinary).shrink_to_fit();
        core.queue(TaskRank::Patient).shrink_to_fit();
    });
}

pub(crate) type BoxedTask = Pin<Box<dyn Future<Output = ()>>>;

/// What a waker points to.
pub(crate) struct TaskHeader {
    id: TaskId,
    /// In the ready queue. Only the loop's thread looks at it; atomic because a `TaskHeader` is shared.
    queued: AtomicBool,
    /// In the inbox. Cleared by the loop with a read-modify-write, so that whatever happened before
    /// a wake that found it set is seen by the poll that follows.
    posted: AtomicBool,
    /// [`TaskRank::Patient`]. As `queued`.
    patient: AtomicBool,
    shared: Arc<LoopShared>,
}

impl Wake for TaskHeader {
    fn wake(self: Arc<Self>) {
        Self::wake_by_ref(&self);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if current_id() == self.shared.id {
            self.wake_here();
        } else if !self.posted.swap(true, Ordering::AcqRel) {
            self.shared.wake(self.id);
        }
    }
}

impl TaskHeader {
    fn rank(&self) -> TaskRank {
        match self.patient.load(Ordering::Relaxed) {
            true => TaskRank::Patient,
            false => TaskRank::Ordinary,
        }
    }

    fn wake_here(&self) {
        if !self.queued.load(Ordering::Relaxed) {
            self.queued.store(true, Ordering::Relaxed);
            event_loop::try_with(|core| core.queue(self.rank()).push_back(self.id));
        }
    }
}

/// The tasks of a loop.
pub(crate) struct TaskSlab {
    slots: Vec<TaskSlot>,
    free: Vec<u32>,
    /// The generation of a new slot: none that one in its place has had before.
    first: u32,
    pub(crate) living: usize,
}

/// How many free slots keep their header.
const KEPT_HEADERS: usize = 1024;

struct TaskSlot {
    generation: u32,
    /// `None` in a free slot that keeps none.
    header: Option<Arc<TaskHeader>>,
    waker: Option<Waker>,
    state: TaskState,
    name: &'static str,
}

enum TaskState {
    Free,
    Waiting(BoxedTask),
    /// Its future is with the loop, being polled.
    Running,
    /// Aborted by itself, while being polled.
    Aborted,
}

/// A task taken out of the slab to be polled.
pub(crate) struct TakenTask {
    pub(crate) id: TaskId,
    pub(crate) name: &'static str,
    pub(crate) future: BoxedTask,
    pub(crate) waker: Waker,
}

impl TaskSlab {
    pub(crate) fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            first: 0,
            living: 0,
        }
    }

    /// Adds a task, already marked as queued.
    pub(crate) fn insert(
        &mut self,
        name: &'static str,
        rank: TaskRank,
        future: BoxedTask,
        shared: &Arc<LoopShared>,
    ) -> TaskId {
        let patient = rank == TaskRank::Patient;
        self.living += 1;
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                let index =
                    u32::try_from(self.slots.len()).expect("fewer than 2^32 tasks fit in memory");
                self.slots.push(TaskSlot {
                    generation: self.first,
                    header: None,
                    waker: None,
                    state: TaskState::Free,
                    name,
                });
                index
            }
        };
        let slot = &mut self.slots[index as usize];
        let id = TaskId {
            index,
            generation: slot.generation,
        };
        let header = slot
            .header
            .get_or_insert_with(|| TaskHeader::new(id, shared));
        header.queued.store(true, Ordering::Relaxed);
        header.patient.store(patient, Ordering::Relaxed);
        slot.waker
            .get_or_insert_with(|| Waker::from(Arc::clone(header)));
        slot.state = TaskState::Waiting(future);
        slot.name = name;
        id
    }

    fn slot(&mut self, id: TaskId) -> Option<&mut TaskSlot> {
        self.slots
            .get_mut(id.index as usize)
            .filter(|slot| slot.generation == id.generation)
    }

    /// Takes a task that was in the ready queue, to poll it.
    pub(crate) fn take(&mut self, id: TaskId) -> Option<TakenTask> {
        let slot = self.slot(id)?;
        slot.header.as_ref()?.queued.store(false, Ordering::Relaxed);
        match std::mem::replace(&mut slot.state, TaskState::Running) {
            TaskState::Waiting(future) => {
                let waker = slot
                    .waker
                    .take()
                    .expect("a waiting task's slot holds its waker");
                Some(TakenTask {
                    id,
                    name: slot.name,
                    future,
                    waker,
                })
            }
            state => {
                slot.state = state;
                None
            }
        }
    }

    /// Puts back a task that is not finished. Gives the future back if the task aborted itself.
    pub(crate) fn put_back(&mut self, taken: TakenTask) -> Option<BoxedTask> {
        let id = taken.id;
        let slot = self.slot(id).expect("a running task keeps its slot");
        slot.waker = Some(taken.waker);
        if matches!(slot.state, TaskState::Aborted) {
            self.release(id);
            return Some(taken.future);
        }
        slot.state = TaskState::Waiting(taken.future);
        None
    }

    /// Frees the slot of a task that has ended.
    pub(crate) fn free_slot(&mut self, id: TaskId, waker: Waker) {
        if let Some(slot) = self.slot(id) {
            slot.waker = Some(waker);
            self.release(id);
        }
    }

    fn release(&mut self, id: TaskId) {
        let slot = &mut self.slots[id.index as usize];
        slot.state = TaskState::Free;
        let next = TaskId {
            index: id.index,
            generation: id.generation.wrapping_add(1),
        };
        slot.generation = next.generation;
        slot.waker = None;
        let has_room = self.free.len() < KEPT_HEADERS;
        slot.header = slot.header.take().filter(|_| has_room).map(|mut header| {
            match Arc::get_mut(&mut header) {
                Some(header) => {
                    header.id = next;
                    *header.queued.get_mut() = false;
                    *header.posted.get_mut() = false;
                }
                None => header = TaskHeader::new(next, &header.shared),
            }
            slot.waker = Some(Waker::from(Arc::clone(&header)));
            header
        });
        self.free.push(id.index);
        self.living -= 1;
    }

    /// Frees the slots behind the last one that is used.
    pub(crate) fn shrink(&mut self) {
        let used = used_places(self.slots.len(), &self.free);
        for slot in self.slots.drain(used..) {
            self.first = self.first.max(slot.generation);
        }
        self.slots.shrink_to_fit();
        self.free.retain(|index| (*index as usize) < used);
        self.free.shrink_to_fit();
    }

    /// Ends a task that is not being polled and gives its future back, to be dropped without a borrow
    /// of the slab. One that is being polled ends when its poll returns.
    pub(crate) fn abort(&mut self, id: TaskId) -> Option<BoxedTask> {
        let slot = self.slot(id)?;
        match std::mem::replace(&mut slot.state, TaskState::Aborted) {
            TaskState::Waiting(future) => {
                self.release(id);
                Some(future)
            }
            TaskState::Free => {
                slot.state = TaskState::Free;
                None
            }
            TaskState::Running | TaskState::Aborted => None,
        }
    }

    /// Whether the task is in its slot.
    pub(crate) fn contains(&self, id: TaskId) -> bool {
        self.slots
            .get(id.index as usize)
            .filter(|slot| slot.generation == id.generation)
            .is_some_and(|slot| !matches!(slot.state, TaskState::Free))
    }

    /// Marks a task that was woken through the inbox as queued; gives the queue for it, unless it is in one.
    pub(crate) fn wake_posted(&mut self, id: TaskId) -> Option<TaskRank> {
        let header = self.slot(id)?.header.as_ref()?;
        header.posted.swap(false, Ordering::AcqRel);
        let is_new = !header.queued.swap(true, Ordering::Relaxed);
        is_new.then(|| header.rank())
    }

    fn set_rank(&mut self, id: TaskId, rank: TaskRank) {
        if let Some(header) = self.slot(id).and_then(|slot| slot.header.as_ref()) {
            let patient = rank == TaskRank::Patient;
            header.patient.store(patient, Ordering::Relaxed);
        }
    }

    /// Takes any one future that still lives; for the end of the loop.
    pub(crate) fn pop(&mut self) -> Option<BoxedTask> {
        let index = self
            .slots
            .iter()
            .position(|slot| matches!(slot.state, TaskState::Waiting(_)))?;
        let id = TaskId {
            index: u32::try_from(index).ok()?,
            generation: self.slots[index].generation,
        };
        self.abort(id)
    }
}

impl TaskHeader {
    fn new(id: TaskId, shared: &Arc<LoopShared>) -> Arc<Self> {
        Arc::new(Self {
            id,
            queued: AtomicBool::new(false),
            posted: AtomicBool::new(false),
            patient: AtomicBool::new(false),
            shared: Arc::clone(shared),
        })
    }
}

impl LoopCore {
    /// Adds a task and makes it ready.
    pub(crate) fn spawn(&self, name: &'static str, rank: TaskRank, future: BoxedTask) -> TaskId {
        let mut tasks = self.tasks.borrow_mut();
        let id = tasks.insert(name, rank, future, &self.shared);
        self.queue(rank).push_back(id);
        id
    }
}

/// Waits for a task's result. Dropping it lets the task run on, unless told otherwise.
pub struct JoinHandle<T> {
    task: TaskId,
    join: Rc<JoinState<T>>,
    abort_on_drop: bool,
}

/// Why a task gave no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JoinError {
    /// It was aborted, or its loop ended.
    Aborted,
    /// It panicked (and was reported).
    Panicked,
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Aborted => "the task was aborted",
            Self::Panicked => "the task panicked",
        })
    }
}

impl std::error::Error for JoinError {}

struct JoinState<T> {
    output: RefCell<TaskOutput<T>>,
    waker: Cell<Option<Waker>>,
}

enum TaskOutput<T> {
    Running,
    Done(T),
    Lost(JoinError),
    Taken,
}

/// The task's end of a [`JoinState`]: dropped with the task, however that ends.
struct JoinTicket<T>(Rc<JoinState<T>>);

impl<T> Drop for JoinTicket<T> {
    fn drop(&mut self) {
        let mut output = self.0.output.borrow_mut();
        if matches!(*output, TaskOutput::Running) {
            let panicked = panics::is_dropping_panicked();
            *output = TaskOutput::Lost(if panicked {
                JoinError::Panicked
            } else {
                JoinError::Aborted
            });
        }
        drop(output);
        if let Some(waker) = self.0.waker.take() {
            waker.wake();
        }
    }
}

impl<T> JoinHandle<T> {
    /// Ends the task: its future is dropped before this returns (a task that aborts itself is dropped
    /// when it next waits).
    pub fn abort(&self) {
        AbortHandle(self.task).abort();
    }

    /// Makes dropping the handle abort the task.
    #[must_use]
    pub fn abort_on_drop(mut self) -> Self {
        self.abort_on_drop = true;
        self
    }

    /// Changes the task's rank, from when it is woken next.
    pub fn set_rank(&self, rank: TaskRank) {
        event_loop::try_with(|core| core.tasks.borrow_mut().set_rank(self.task, rank));
    }

    /// Whether the result is there.
    pub fn is_finished(&self) -> bool {
        !matches!(*self.join.output.borrow(), TaskOutput::Running)
    }
}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        if self.abort_on_drop {
            self.abort();
        }
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut output = self.join.output.borrow_mut();
        match std::mem::replace(&mut *output, TaskOutput::Taken) {
            TaskOutput::Running => {
                *output = TaskOutput::Running;
                self.join.waker.set(Some(cx.waker().clone()));
                Poll::Pending
            }
            TaskOutput::Done(value) => Poll::Ready(Ok(value)),
            TaskOutput::Lost(error) => Poll::Ready(Err(error)),
            TaskOutput::Taken => panic!("a JoinHandle was polled after it gave its result"),
        }
    }
}
