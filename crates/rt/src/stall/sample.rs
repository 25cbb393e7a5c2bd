//! Taking a copy of a stuck thread's stack.
//!
//! The thread gets a signal. Its handler does as little as can be: it copies three registers and the
//! used part of the thread's own stack, at most [`WORDS`] words, into memory that was there before. To
//! find the frames in the copy is the work of another thread ([`super::unwind`]), where locks and
//! allocation are allowed. No unwinder runs in the handler, since the interrupted code may hold the very
//! locks that it needs.

use std::cell::Cell;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::clock;

/// The most that is copied, in words of 8 bytes: 64 KB.
const WORDS: usize = 8192;
/// How long the thread may take to answer.
const PATIENCE: Duration = Duration::from_millis(50);

/// A copied stack.
pub(super) struct StackCopy {
    /// Where the thread was.
    pub(super) instruction: u64,
    /// The lowest address of the copy.
    pub(super) pointer: u64,
    pub(super) frame: u64,
    /// The link register, on processors that have one.
    #[cfg_attr(target_arch = "x86_64", allow(dead_code))]
    pub(super) link: u64,
    pub(super) words: Vec<u64>,
}

impl StackCopy {
    /// The word at an address.
    pub(super) fn word(&self, address: u64) -> Option<u64> {
        let offset = address.checked_sub(self.pointer)?;
        if !offset.is_multiple_of(8) {
            return None;
        }
        self.words.get(usize::try_from(offset / 8).ok()?).copied()
    }
}

/// No sample is wanted.
const IDLE: u32 = 0;
/// The thread that gets the signal should write a sample.
const WANTED: u32 = 1;
/// It is writing.
const COPYING: u32 = 2;
/// It has written.
const DONE: u32 = 3;

/// Where the handler writes. One sample is taken at a time.
struct SampleBuffer {
    state: AtomicU32,
    instruction: AtomicU64,
    pointer: AtomicU64,
    frame: AtomicU64,
    link: AtomicU64,
    length: AtomicUsize,
    words: [AtomicU64; WORDS],
}

static PLACE: SampleBuffer = SampleBuffer {
    state: AtomicU32::new(IDLE),
    instruction: AtomicU64::new(0),
    pointer: AtomicU64::new(0),
    frame: AtomicU64::new(0),
    link: AtomicU64::new(0),
    length: AtomicUsize::new(0),
    words: [const { AtomicU64::new(0) }; WORDS],
};

thread_local! {
    /// The first address above this thread's stack; 0 on a thread that is no loop's. It needs neither
    /// construction nor destruction, so that a signal handler may read it.
    static STACK_END: Cell<usize> = const { Cell::new(0) };
}

/// Notes where the calling thread's stack ends, so that it can be sampled. The answer is the thread's
/// number.
pub(crate) fn note_stack() -> i32 {
    STACK_END.set(stack_end().unwrap_or(0));
    rustix::thread::gettid().as_raw_nonzero().get()
}

fn stack_end() -> Option<usize> {
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    let (mut base, mut size) = (std::ptr::null_mut(), 0);
    // SAFETY: pthread_getattr_np initialises the attributes when it returns 0, and only then they are
    // read and destroyed; the out-pointers are valid for the calls.
    // JUSTIFICATION: a handler that copies a stack must know where it ends.
    unsafe {
        if libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) != 0 {
            return None;
        }
        let code = libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut base, &raw mut size);
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        if code != 0 {
            return None;
        }
    }
    base.addr().checked_add(size)
}

fn signal() -> i32 {
    // Away from the first ones, which libraries like to take.
    libc::SIGRTMIN() + 7
}

/// Asks a thread for a copy of its stack; `None` when it does not answer in time.
pub(super) fn take(thread: i32) -> Option<StackCopy> {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(install);
    let change = |from, to| {
        PLACE
            .state
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    };
    if thread == 0 || !change(IDLE, WANTED) {
        return None;
    }
    // SAFETY: tgkill takes numbers only; a handler for this signal was installed above.
    // JUSTIFICATION: the standard library cannot signal a thread.
    unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), thread, signal()) };
    let deadline = clock::read_clock() + PATIENCE;
    while PLACE.state.load(Ordering::Acquire) != DONE {
        // One that is being written will be there in microseconds.
        if clock::read_clock() >= deadline && change(WANTED, IDLE) {
            return None;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    let length = PLACE.length.load(Ordering::Relaxed).min(WORDS);
    let stack = StackCopy {
        instruction: PLACE.instruction.load(Ordering::Relaxed),
        pointer: PLACE.pointer.load(Ordering::Relaxed),
        frame: PLACE.frame.load(Ordering::Relaxed),
        link: PLACE.link.load(Ordering::Relaxed),
        words: PLACE.words[..length]
            .iter()
            .map(|word| word.load(Ordering::Relaxed))
            .collect(),
    };
    PLACE.state.store(IDLE, Ordering::Release);
    Some(stack)
}

fn install() {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: all zero bytes are a valid sigaction, whose fields are then set; the handler has the
    // signature that SA_SIGINFO asks for and keeps to what a handler may do (see there). SA_RESTART: an
    // interrupted call goes on as if nothing had happened.
    // JUSTIFICATION: the standard library has no signal handlers.
    unsafe {
        let action = action.assume_init_mut();
        action.sa_sigaction = copy_stack as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        libc::sigemptyset(&raw mut action.sa_mask);
        libc::sigaction(signal(), action, std::ptr::null_mut());
    }
}

/// Runs on the stuck thread. No calls, no allocation, no locks: only loads and stores, and `errno` is not touched.
/// If no sample is wanted or the thread is not a loop's, nothing happens.
extern "C" fn copy_stack(
    _signal: libc::c_int,
    _information: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    let end = STACK_END.get();
    let place = &PLACE;
    if end == 0
        || place
            .state
            .compare_exchange(WANTED, COPYING, Ordering::AcqRel, Ordering::Acquire)
            .is_err()
    {
        return;
    }
    // SAFETY: the kernel passes a valid ucontext to a handler with SA_SIGINFO, alive while it runs.
    // JUSTIFICATION: the interrupted registers are nowhere else.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    let [instruction, pointer, frame, link] = registers(context);
    place.instruction.store(instruction, Ordering::Relaxed);
    place.pointer.store(pointer, Ordering::Relaxed);
    place.frame.store(frame, Ordering::Relaxed);
    place.link.store(link, Ordering::Relaxed);
    let start = pointer as usize;
    let mut length = 0;
    if start.is_multiple_of(8) && start < end {
        length = ((end - start) / 8).min(WORDS);
    }
    for (index, word) in place.words[..length].iter().enumerate() {
        let address = std::ptr::with_exposed_provenance::<u64>(start + index * 8);
        // SAFETY: the address lies between the thread's interrupted stack pointer and the end of its
        // stack: mapped, readable, aligned, and written by no thread but this one, which is here.
        // Volatile: the words belong to frames that the compiler assumes are private.
        // JUSTIFICATION: it is the stack that tells what a stuck loop does; without it the log has only
        // a duration.
        let value = unsafe { std::ptr::read_volatile(address) };
        word.store(value, Ordering::Relaxed);
    }
    place.length.store(length, Ordering::Relaxed);
    place.state.store(DONE, Ordering::Release);
}

/// Instruction, stack and frame pointer, and the link register.
#[cfg(target_arch = "x86_64")]
fn registers(context: &libc::ucontext_t) -> [u64; 4] {
    let register = |number: libc::c_int| context.uc_mcontext.gregs[number as usize] as u64;
    [
        register(libc::REG_RIP),
        register(libc::REG_RSP),
        register(libc::REG_RBP),
        0,
    ]
}

/// Instruction, stack and frame pointer, and the link register.
#[cfg(target_arch = "aarch64")]
fn registers(context: &libc::ucontext_t) -> [u64; 4] {
    let machine = &context.uc_mcontext;
    [machine.pc, machine.sp, machine.regs[29], machine.regs[30]]
}

/// Instruction, stack and frame pointer, and the link register: not known here, the sample stays empty.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn registers(_context: &libc::ucontext_t) -> [u64; 4] {
    [0; 4]
}
