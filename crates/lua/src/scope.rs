//! What a function of ours that Lua calls works on: the run that is active on this thread, and its request.
//!
//! Lua's functions take no reference of ours along, so the loop's thread remembers what it is running. The request is
//! lent for one resume of a coroutine, and within it for one call at a time.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ptr;
use std::rc::Rc;

use ::stream::Session;
use http::Request;
use net::tls::Offer;
use rt::error_log::{Level, Logger};

use crate::api::{Connected, Half, Tcp};
use crate::balancer::Balancing;
use crate::chunk::Kind;
use crate::luajit::{Coroutine, Failure, Ref, fail};
use crate::operation::Operation;
use crate::vm::Vm;

/// What a run and the functions that its scripts call share.
pub(crate) struct Scope {
    pub(crate) vm: Rc<Vm>,
    /// Which directive's script it is.
    pub(crate) kind: Kind,
    /// What the script has said and nobody has taken yet.
    pub(crate) output: RefCell<Vec<u8>>,
    /// The script has made the head of the response: it is no longer to be changed.
    pub(crate) head_sent: Cell<bool>,
    /// The script has taken over the client's connection.
    pub(crate) raw: Cell<bool>,
    /// The script has said that its response is over.
    pub(crate) over: Cell<bool>,
    /// What the coroutine that stops next waits for.
    pub(crate) waits: RefCell<Option<Operation>>,
    /// Light threads that the script has begun since it was resumed.
    pub(crate) begun: RefCell<Vec<Begun>>,
    /// The light thread that runs.
    pub(crate) thread: Cell<usize>,
    /// Light threads that run, and those that have ended and nobody has asked yet.
    pub(crate) lights: RefCell<BTreeMap<usize, Light>>,
    /// Light threads that are to end.
    pub(crate) killed: RefCell<Vec<usize>>,
    /// What a line of `set_by_lua` gives its script.
    pub(crate) arguments: RefCell<Vec<Vec<u8>>>,
    /// `ngx.ctx` of a run that has no request.
    pub(crate) context: RefCell<Option<Rc<Ref>>>,
    /// The piece of content that a body filter looks at, and whether it is the last.
    pub(crate) piece: RefCell<Option<(Vec<u8>, bool)>>,
    /// What a script of `balancer_by_lua` says.
    pub(crate) balancing: RefCell<Option<Rc<RefCell<Balancing>>>>,
    /// The handshake that a script of `ssl_certificate_by_lua` has a say in.
    pub(crate) offer: RefCell<Option<Rc<RefCell<Offer>>>>,
    /// What is to run when the client leaves.
    pub(crate) on_abort: RefCell<Option<Rc<Ref>>>,
    /// Of a certificate and its key, what the script has set so far.
    pub(crate) half: RefCell<Half>,
    /// The client's connection, as a socket that the script has asked for.
    pub(crate) client_socket: RefCell<Option<Rc<Tcp>>>,
    /// Sockets that a script without a request has connected.
    pub(crate) connected: RefCell<Connected>,
    /// How many of its light threads wait for subrequests.
    pub(crate) captures: Cell<usize>,
    /// Why the script failed.
    pub(crate) failure: RefCell<Option<Vec<u8>>>,
    /// Where a run without a request writes.
    pub(crate) log: Logger,
}

/// What scripts are told about a light thread.
pub(crate) struct Light {
    /// The coroutine that has begun it, which alone may wait for it and end it: [`crate::luajit::Stack::identity`].
    pub(crate) parent: usize,
    /// It has ended.
    pub(crate) over: bool,
    /// It waits for subrequests.
    pub(crate) captures: bool,
}

/// A light thread that has not run yet.
pub(crate) struct Begun {
    pub(crate) number: usize,
    pub(crate) coroutine: Coroutine,
    /// How many arguments stand on its stack.
    pub(crate) arguments: i32,
}

impl Scope {
    pub(crate) fn new(vm: Rc<Vm>, kind: Kind, log: Logger) -> Rc<Scope> {
        Rc::new(Scope {
            vm,
            kind,
            output: RefCell::default(),
            head_sent: Cell::new(false),
            raw: Cell::new(false),
            over: Cell::new(false),
            waits: RefCell::default(),
            begun: RefCell::default(),
            thread: Cell::new(0),
            lights: RefCell::default(),
            killed: RefCell::default(),
            arguments: RefCell::default(),
            context: RefCell::default(),
            piece: RefCell::default(),
            balancing: RefCell::default(),
            offer: RefCell::default(),
            on_abort: RefCell::default(),
            half: RefCell::default(),
            client_socket: RefCell::default(),
            connected: RefCell::default(),
            captures: Cell::new(0),
            failure: RefCell::default(),
            log,
        })
    }
}

impl Drop for Scope {
    /// Nobody else may keep the client's connection.
    fn drop(&mut self) {
        if let Some(socket) = self.client_socket.take() {
            socket.detach();
        }
    }
}

/// For whom Lua code runs.
pub(crate) enum Guest<'a> {
    /// For the server itself: a timer, for example.
    Nobody,
    Request(&'a mut Request),
    Session(&'a mut Session),
}

impl<'a> From<&'a mut Request> for Guest<'a> {
    fn from(request: &'a mut Request) -> Guest<'a> {
        Guest::Request(request)
    }
}

impl<'a> From<&'a mut Session> for Guest<'a> {
    fn from(session: &'a mut Session) -> Guest<'a> {
        Guest::Session(session)
    }
}

impl Guest<'_> {
    /// The same guest, for a while.
    pub(crate) fn again(&mut self) -> Guest<'_> {
        match self {
            Guest::Nobody => Guest::Nobody,
            Guest::Request(request) => Guest::Request(request),
            Guest::Session(session) => Guest::Session(session),
        }
    }

    /// Writes a line about it to its error log, or to `log` where there is nobody.
    pub(crate) fn log(&self, log: &Logger, level: Level, message: std::fmt::Arguments<'_>) {
        match self {
            Guest::Nobody => log.plain(level, message),
            Guest::Request(request) => request.log(level, message),
            Guest::Session(session) => session.log(level, message),
        }
    }
}

struct Active {
    scope: *const Rc<Scope>,
    /// Null where there is none, and while a call has it.
    request: Cell<*mut Request>,
    /// Likewise.
    session: Cell<*mut Session>,
}

thread_local! {
    static ACTIVE: Cell<*const Active> = const { Cell::new(ptr::null()) };
}

/// Runs `code`, which resumes Lua, with this scope and guest in place.
pub(crate) fn enter<T>(scope: &Rc<Scope>, guest: Guest<'_>, code: impl FnOnce() -> T) -> T {
    let (request, session) = match guest {
        Guest::Nobody => (ptr::null_mut(), ptr::null_mut()),
        Guest::Request(request) => (ptr::from_mut(request), ptr::null_mut()),
        Guest::Session(session) => (ptr::null_mut(), ptr::from_mut(session)),
    };
    let active = Active {
        scope,
        request: Cell::new(request),
        session: Cell::new(session),
    };
    let before = ACTIVE.replace(&active);
    let restore = Restore(before);
    let result = code();
    drop(restore);
    result
}

/// Puts back what was active before, whatever happens.
struct Restore(*const Active);

impl Drop for Restore {
    fn drop(&mut self) {
        ACTIVE.set(self.0);
    }
}

/// Calls `code` with the scope that is active.
pub(crate) fn with<T>(code: impl FnOnce(&Rc<Scope>) -> T) -> Result<T, Failure> {
    // SAFETY: `enter` keeps what it points to alive until it puts back what was active before; both happen on this
    // thread.
    // JUSTIFICATION: a function that Lua calls has no other way to its surroundings.
    match unsafe { ACTIVE.get().as_ref() } {
        // SAFETY: likewise.
        Some(active) => Ok(code(unsafe { &*active.scope })),
        None => fail("API disabled in the current context"),
    }
}

/// Calls `code` with the request that is active. Fails where there is none (timers), and inside of such a call.
pub(crate) fn with_request<T>(code: impl FnOnce(&mut Request) -> T) -> Result<T, Failure> {
    // SAFETY: as in `with`.
    let Some(active) = (unsafe { ACTIVE.get().as_ref() }) else {
        return fail("API disabled in the current context");
    };
    let request = active.request.replace(ptr::null_mut());
    let put_back = PutBack(&active.request, request);
    // SAFETY: the request was lent to `enter` exclusively until it returns, and taking the pointer out of its cell makes
    // sure that only one call has it at a time.
    // JUSTIFICATION: as in `with`.
    match unsafe { request.as_mut() } {
        Some(request) => {
            let result = code(request);
            drop(put_back);
            Ok(result)
        }
        // Only before there are workers is there nothing that stands for one.
        None => match with(|scope| scope.kind)? {
            crate::chunk::Kind::Init => fail("no request found"),
            _ => fail("API disabled in the current context"),
        },
    }
}

/// Whether the code that runs works for a session of stream.
pub(crate) fn serves_session() -> bool {
    // SAFETY: as in `with`.
    // JUSTIFICATION: likewise.
    unsafe { ACTIVE.get().as_ref() }.is_some_and(|active| !active.session.get().is_null())
}

/// Calls `code` with the session of stream that is active; otherwise as [`with_request`].
pub(crate) fn with_session<T>(code: impl FnOnce(&mut Session) -> T) -> Result<T, Failure> {
    // SAFETY: as in `with`.
    let Some(active) = (unsafe { ACTIVE.get().as_ref() }) else {
        return fail("API disabled in the current context");
    };
    let session = active.session.replace(ptr::null_mut());
    let put_back = PutBack(&active.session, session);
    // SAFETY: as in `with_request`.
    // JUSTIFICATION: as in `with`.
    match unsafe { session.as_mut() } {
        Some(session) => {
            let result = code(session);
            drop(put_back);
            Ok(result)
        }
        None => fail("no request found"),
    }
}

struct PutBack<'a, T>(&'a Cell<*mut T>, *mut T);

impl<T> Drop for PutBack<'_, T> {
    fn drop(&mut self) {
        self.0.set(self.1);
    }
}
