//! What an API function works on: the run that is active on this thread, and its request.
//!
//! A C function that Lua calls receives the Lua stack and nothing else. lua-nginx-module keeps the
//! request in the coroutine's environment; here a thread-local points to what the loop is running
//! right now. [`enter`] sets it for the duration of one resume. The request is lent exclusively, to
//! one API call at a time: a call that asks for it while another has it gets an error, not a second
//! `&mut`.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ptr;
use std::rc::Rc;

use ::stream::StreamSession;
use bstr::BString;
use host::error_log::Logger;
use http::Request;
use net::tls::{CertificateChain, CertificateKey, HandshakeOffer};
use net::upstream::{TimeoutOverrides, TryHistory};
use rt::net::SocketAddress;

use crate::api::{ConnectedSockets, TcpCosocket};
use crate::chunk::ScriptKind;
use crate::luajit::{LuaCoroutine, LuaError, RegistryRef, fail};
use crate::operation::YieldOperation;
use crate::run_owner::RunOwner;
use crate::vm::LuaVm;

/// What a run and the API functions that its scripts call share. API functions get at it through a
/// shared reference, hence all the cells; a cell is never borrowed across a call into Lua.
pub(crate) struct RunScope {
    pub(crate) vm: Rc<LuaVm>,
    /// Which directive the script belongs to: decides which API functions it may call.
    pub(crate) kind: ScriptKind,
    /// Output of `ngx.print` and `ngx.say` that has not been taken yet.
    pub(crate) output: RefCell<Vec<u8>>,
    /// The response head is final: headers can no longer be changed (`ngx.headers_sent`).
    pub(crate) head_sent: Cell<bool>,
    /// What `ngx.exit` of a script that it does not end has asked for.
    pub(crate) later_exit: Cell<Option<i32>>,
    /// The script has taken over the client's connection: `ngx.req.socket(true)`.
    pub(crate) raw_socket: Cell<bool>,
    /// `ngx.eof` was called: no more output.
    pub(crate) eof_sent: Cell<bool>,
    /// What the coroutine that is about to yield waits for. Set by the API function just before it
    /// yields, taken by the run right after.
    pub(crate) pending_operation: RefCell<Option<YieldOperation>>,
    /// Light threads that the script has spawned since it was resumed.
    pub(crate) spawned: RefCell<Vec<SpawnedThread>>,
    /// The number of the light thread that is running.
    pub(crate) current_thread: Cell<usize>,
    /// Light threads that are alive, and those that have ended but were not waited for.
    pub(crate) light_threads: RefCell<BTreeMap<usize, LightThread>>,
    /// Light threads that `ngx.thread.kill` has ended since the script was resumed.
    pub(crate) killed: RefCell<Vec<usize>>,
    /// The arguments of `set_by_lua`: `ngx.arg[1]` and so on.
    pub(crate) set_arguments: RefCell<Vec<Vec<u8>>>,
    /// `ngx.ctx` of a run that has no request.
    pub(crate) context: RefCell<Option<Rc<RegistryRef>>>,
    /// The chunk that a body filter is looking at, and whether it is the last: `ngx.arg[1]` and
    /// `[2]`.
    pub(crate) body_chunk: RefCell<Option<(Vec<u8>, bool)>>,
    /// What a `balancer_by_lua` script has decided so far.
    pub(crate) balancer: RefCell<Option<Rc<RefCell<BalancerDecision>>>>,
    /// The handshake that an `ssl_*_by_lua` script takes part in.
    pub(crate) offer: RefCell<Option<Rc<RefCell<HandshakeOffer>>>>,
    /// The function of `ngx.on_abort`.
    pub(crate) on_abort: RefCell<Option<Rc<RegistryRef>>>,
    /// The certificate or the key that `ngx.ssl` has been given while the other one is missing.
    pub(crate) pending_identity: RefCell<PendingIdentity>,
    /// The client's side as a cosocket: `ngx.req.socket`.
    pub(crate) client_socket: RefCell<Option<Rc<TcpCosocket>>>,
    /// Cosockets that a script without a request has connected. A request's own are in the
    /// request's state, because they outlive the phase.
    pub(crate) connected_sockets: RefCell<ConnectedSockets>,
    /// How many light threads wait for subrequests. `ngx.exit` and the like are refused meanwhile.
    pub(crate) pending_captures: Cell<usize>,
    /// The error message, for callers that report it themselves.
    pub(crate) failure: RefCell<Option<Vec<u8>>>,
    /// The error log of a run without a request.
    pub(crate) log: Logger,
}

/// What other coroutines may ask about a light thread.
pub(crate) struct LightThread {
    /// The coroutine that spawned it. Only the parent may wait for it or kill it, as in
    /// lua-nginx-module: [`crate::luajit::stack::LuaStack::identity`].
    pub(crate) parent: usize,
    /// It has ended, and nothing has waited for it yet: a "zombie".
    pub(crate) ended: bool,
    /// It waits for subrequests, and cannot be killed: the subrequests hold its parent request.
    pub(crate) is_capturing: bool,
}

/// A light thread that was spawned and has not run yet.
pub(crate) struct SpawnedThread {
    pub(crate) number: usize,
    pub(crate) coroutine: LuaCoroutine,
    /// How many arguments are on its stack.
    pub(crate) arguments: i32,
}

/// What the script decides about the attempt that begins.
#[derive(Default)]
pub(crate) struct BalancerDecision {
    /// `set_current_peer`.
    pub(crate) peer: Option<SocketAddress>,
    /// Its third argument: the name for TLS.
    pub(crate) tls_name: Option<BString>,
    /// `set_more_tries`: further attempts after this one.
    pub(crate) more_tries: Option<u32>,
    /// `set_timeouts`.
    pub(crate) timeouts: TimeoutOverrides,
    /// `recreate_request`: build the request again, since the script has changed it.
    pub(crate) recreate_request: bool,
    /// `bind_to_local_addr`.
    pub(crate) local_address: Option<SocketAddress>,
    /// `set_upstream_tls(false)`.
    pub(crate) without_tls: bool,
    /// The attempts before this one, for `get_last_failure` and the limit on tries.
    pub(crate) history: TryHistory,
}

/// A certificate without its key, or the reverse.
#[derive(Default)]
pub(crate) struct PendingIdentity {
    pub(crate) chain: Option<Rc<CertificateChain>>,
    pub(crate) key: Option<Rc<CertificateKey>>,
}

impl RunScope {
    /// A scope without a request: what is logged goes to the VM's log.
    pub(crate) fn of_vm(vm: &Rc<LuaVm>, kind: ScriptKind) -> Rc<RunScope> {
        RunScope::new(Rc::clone(vm), kind, vm.log.clone())
    }

    pub(crate) fn new(vm: Rc<LuaVm>, kind: ScriptKind, log: Logger) -> Rc<RunScope> {
        Rc::new(RunScope {
            vm,
            kind,
            output: RefCell::default(),
            head_sent: Cell::new(false),
            later_exit: Cell::new(None),
            raw_socket: Cell::new(false),
            eof_sent: Cell::new(false),
            pending_operation: RefCell::default(),
            spawned: RefCell::default(),
            current_thread: Cell::new(0),
            light_threads: RefCell::default(),
            killed: RefCell::default(),
            set_arguments: RefCell::default(),
            context: RefCell::default(),
            body_chunk: RefCell::default(),
            balancer: RefCell::default(),
            offer: RefCell::default(),
            on_abort: RefCell::default(),
            pending_identity: RefCell::default(),
            client_socket: RefCell::default(),
            connected_sockets: RefCell::default(),
            pending_captures: Cell::new(0),
            failure: RefCell::default(),
            log,
        })
    }
}

impl Drop for RunScope {
    /// A timer may still hold the cosocket object. The connection goes on to the next request, so
    /// the object must not reach it any more.
    fn drop(&mut self) {
        if let Some(socket) = self.client_socket.take() {
            socket.detach();
        }
    }
}

/// What runs on this thread. It lives on the stack of [`enter`].
struct ActiveRun {
    scope: *const Rc<RunScope>,
    /// Null where there is no request, and while a call has borrowed it.
    request: Cell<*mut Request>,
    /// The same for a session of stream.
    session: Cell<*mut StreamSession>,
}

rt::local! {
    // Runs nest: a script may start a subrequest whose own script runs before the first continues.
    static ACTIVE: Cell<*const ActiveRun> = const { Cell::new(ptr::null()) };
}

/// Runs `code`, which resumes Lua, with this scope and owner active.
pub(crate) fn enter<T>(scope: &Rc<RunScope>, guest: RunOwner<'_>, code: impl FnOnce() -> T) -> T {
    let (request, session) = match guest {
        RunOwner::Server => (ptr::null_mut(), ptr::null_mut()),
        RunOwner::Request(request) => (ptr::from_mut(request), ptr::null_mut()),
        RunOwner::Session(session) => (ptr::null_mut(), ptr::from_mut(session)),
    };
    let active = ActiveRun {
        scope,
        request: Cell::new(request),
        session: Cell::new(session),
    };
    let before = ACTIVE.replace(&active);
    let restore = RestoreActive(before);
    let result = code();
    drop(restore);
    result
}

/// Restores what was active before, even if `code` panics.
struct RestoreActive(*const ActiveRun);

impl Drop for RestoreActive {
    fn drop(&mut self) {
        ACTIVE.set(self.0);
    }
}

/// Calls `code` with the active scope.
pub(crate) fn with<T>(code: impl FnOnce(&Rc<RunScope>) -> T) -> Result<T, LuaError> {
    // SAFETY: `enter` keeps what it points to alive until it puts back what was active before; both
    // happen on this thread.
    // JUSTIFICATION: a function that Lua calls has no other way to its surroundings.
    match unsafe { ACTIVE.get().as_ref() } {
        // SAFETY: likewise.
        Some(active) => Ok(code(unsafe { &*active.scope })),
        None => fail("API disabled in the current context"),
    }
}

/// Calls `code` with the active request. Fails where there is none (a timer), and within another
/// such call.
pub(crate) fn with_request<T>(code: impl FnOnce(&mut Request) -> T) -> Result<T, LuaError> {
    // SAFETY: as in `with`.
    let Some(active) = (unsafe { ACTIVE.get().as_ref() }) else {
        return fail("API disabled in the current context");
    };
    let request = active.request.replace(ptr::null_mut());
    let put_back = PutBack(&active.request, request);
    // SAFETY: the request was lent to `enter` exclusively until it returns, and taking the pointer
    // out of its cell makes sure that only one call has it at a time.
    // JUSTIFICATION: as in `with`.
    match unsafe { request.as_mut() } {
        Some(request) => {
            let result = code(request);
            drop(put_back);
            Ok(result)
        }
        // lua-nginx-module answers "no request found" only where it has not even a fake request,
        // which it creates for every phase after `init_by_lua`.
        None => match with(|scope| scope.kind)? {
            crate::chunk::ScriptKind::Init => fail("no request found"),
            _ => fail("API disabled in the current context"),
        },
    }
}

/// Whether the running code serves a session of stream.
pub(crate) fn serves_session() -> bool {
    // SAFETY: as in `with`.
    // JUSTIFICATION: likewise.
    unsafe { ACTIVE.get().as_ref() }.is_some_and(|active| !active.session.get().is_null())
}

/// Calls `code` with the active session of stream; otherwise as [`with_request`].
pub(crate) fn with_session<T>(code: impl FnOnce(&mut StreamSession) -> T) -> Result<T, LuaError> {
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

/// Returns a borrowed request or session to its cell, even if the borrower panics.
struct PutBack<'a, T>(&'a Cell<*mut T>, *mut T);

impl<T> Drop for PutBack<'_, T> {
    fn drop(&mut self) {
        self.0.set(self.1);
    }
}
