//! A request on its way through the engine.
//!
//! It belongs to one task on one loop, and every handler gets it as `&mut`. What the client sent (`head`) never
//! changes; where the request is going (`uri`, `server`, `location`, `flow`) does. No field belongs to a module: what a
//! module has to remember about a request it keeps as a [`Request::state`] with a type of its own.

use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use bstr::{BStr, BString, ByteSlice};
use conf::{CapturedGroups, CapturingPattern, Expression, VarId, VariableScope, VariableValues};
use host::error_log::{ContextWriter, LogLevel, Logger};
use net::client::RemoteClient;
use proto::message::Method;

use crate::client::HttpClient;
use crate::client_stream::ClientStream;
use crate::core::LocationConf;
use crate::handler::HandlerOutcome;
use crate::http_site::{ConfRef, HttpSite, LocationId, ServerConfRef, ServerId};
use crate::ledger::{LedgerPhase, RequestLedger};
use crate::request_body::RequestBody;
use crate::request_times::RequestTimes;
use crate::response::Response;

pub use crate::received_head::{HttpVersion, ReceivedHead};
pub use crate::request_flow::{
    AfterResponse, ErrorPages, MAX_JUMPS, PhaseEntry, RequestFlow, RequestPurpose, ResponseDelivery,
};

/// The work that the end of a request waits for: see [`Request::wait_at_end`].
type EndWait = Pin<Box<dyn Future<Output = ()>>>;

/// A request.
pub struct Request {
    /// The configuration under which the request began. It also ends under it, whatever is reloaded meanwhile.
    pub site: Rc<HttpSite>,
    /// The client's connection.
    pub client: Rc<HttpClient>,
    /// How to reach the client: the connection (HTTP/1) or its stream (HTTP/2). A request that the server itself made
    /// on behalf of a client has that client's connection here.
    pub stream: Rc<dyn ClientStream>,
    /// What the client sent. Shared with subrequests.
    pub head: Rc<ReceivedHead>,
    /// The method. It differs from the head's in subrequests, and in error pages, which are fetched with GET.
    pub method: Method,
    /// The current path and arguments, after rewrites and internal redirects.
    pub uri: RequestUri,
    /// The virtual server that handles it.
    pub server: ServerId,
    /// The current location; the server's own level, which is a location too, before one is chosen.
    pub location: LocationId,
    /// The client's address. `realip` changes it; everything that judges or logs a client reads it here.
    pub remote: Rc<RemoteClient>,
    /// The user name that authentication found: `$remote_user`. If unset, the variable shows the name that the client
    /// claims.
    pub user: Option<BString>,
    /// The request's content.
    pub body: RequestBody,
    /// The response, as far as it has been made.
    pub out: Response,
    /// The upstream servers that were tried, for variables and logs; it survives internal redirects.
    pub upstream: crate::upstream::RecordSlot,
    /// Its way through the phases.
    pub flow: RequestFlow,
    /// How its response is delivered.
    pub delivery: ResponseDelivery,
    /// When each step of its processing happened.
    pub times: RequestTimes,
    /// Where its time went.
    pub ledger: RequestLedger,
    /// The values of variables. Shared with subrequests, as in nginx.
    pub variables: Rc<RequestVariables>,
    /// The captures of the last regular expression that matched: `$1` to `$9`.
    pub captured: CapturedGroups,
    /// Set in a subrequest: what it knows of its parent.
    pub parent: Option<Rc<SubrequestParent>>,
    end_wait: Option<EndWait>,
    states: Vec<Box<dyn Any>>,
    facts: Vec<Rc<dyn Any>>,
}

/// The path and arguments that decide where a request goes.
#[derive(Clone, Default)]
pub struct RequestUri {
    /// The path, decoded and without `.` and `..`.
    pub path: BString,
    /// The arguments: what follows the question mark, not decoded.
    pub args: BString,
    /// Whether the target as the client sent it still means this path, so that it can be passed on byte for byte.
    pub original: bool,
}

impl RequestUri {
    fn clear(&mut self) {
        self.path.clear();
        self.args.clear();
        self.original = false;
    }
}

/// What a subrequest knows of the request that created it.
pub struct SubrequestParent {
    /// The number of requests between it and the client's request, for the limit on nesting.
    pub depth: u8,
}

/// What a request and all of its subrequests share.
#[derive(Default)]
pub struct RequestVariables {
    /// The values of variables.
    pub values: VariableValues,
    /// What modules share between them; see [`Request::shared`].
    shared: RefCell<Vec<Rc<dyn Any>>>,
}

impl RequestVariables {
    /// Drops all values and keeps the memory.
    fn clear(&mut self) {
        self.values.clear();
        self.shared.get_mut().clear();
    }

    /// Drops what modules keep for the whole request, which must have ended.
    pub fn release_shared(&self) {
        if !self.shared.borrow().is_empty() {
            // Out of its cell first: the destructor of a module's value may come back here for another one.
            drop(std::mem::take(&mut *self.shared.borrow_mut()));
        }
    }

    /// A copy of the values, for a request that changes them independently from here on.
    pub fn copy(&self) -> RequestVariables {
        RequestVariables {
            values: self.values.copy(),
            shared: self.shared.clone(),
        }
    }
}

/// The allocations of a request that has ended, for a request of another connection. Their contents have been cleared:
/// no byte of one client may reach another.
#[derive(Default)]
pub(crate) struct RequestBuffers {
    head: Option<Rc<ReceivedHead>>,
    uri: RequestUri,
    out: Response,
    variables: Option<Rc<RequestVariables>>,
    captured: CapturedGroups,
}

impl RequestBuffers {
    /// How much memory it is, in bytes, as far as clients can make it grow.
    pub(crate) fn size(&self) -> usize {
        let head = self.head.as_ref().map_or(0, |head| {
            head.wire.fields.memory_bytes() + head.host.capacity()
        });
        let out = &self.out;
        head + out.fields.memory_bytes()
            + out.trailers.memory_bytes()
            + self.uri.path.capacity()
            + self.uri.args.capacity()
            + out.content_type.capacity()
            + self.captured.memory()
    }
}

impl Request {
    /// The first request of a connection, before any of it has been read, in the memory that an earlier request left.
    pub(crate) fn from_buffers(
        buffers: &mut RequestBuffers,
        site: Rc<HttpSite>,
        client: Rc<HttpClient>,
        server: ServerId,
    ) -> Request {
        let location = site.server(server).root;
        let remote = Rc::clone(&client.remote);
        Request {
            site,
            stream: client.stream(),
            client,
            head: buffers.head.take().unwrap_or_default(),
            method: Method::Get,
            uri: std::mem::take(&mut buffers.uri),
            server,
            location,
            remote,
            body: RequestBody::none(),
            out: std::mem::take(&mut buffers.out),
            upstream: crate::upstream::RecordSlot::default(),
            flow: RequestFlow::default(),
            delivery: ResponseDelivery::default(),
            end_wait: None,
            user: None,
            times: RequestTimes::begin(),
            ledger: RequestLedger::begin(),
            variables: buffers.variables.take().unwrap_or_default(),
            captured: std::mem::take(&mut buffers.captured),
            parent: None,
            states: Vec::new(),
            facts: Vec::new(),
        }
    }

    /// Gives its memory away once it has [ended](Request::end) and is about to be dropped.
    pub(crate) fn leave_buffers(&mut self, buffers: &mut RequestBuffers) {
        buffers.head = Some(Rc::clone(&self.head));
        buffers.variables = Some(Rc::clone(&self.variables));
        std::mem::swap(&mut buffers.uri, &mut self.uri);
        std::mem::swap(&mut buffers.out, &mut self.out);
        std::mem::swap(&mut buffers.captured, &mut self.captured);
    }

    /// A request with this head, in new memory.
    pub fn new(
        site: Rc<HttpSite>,
        client: Rc<HttpClient>,
        head: Rc<ReceivedHead>,
        server: ServerId,
    ) -> Request {
        let mut buffers = RequestBuffers {
            head: Some(head),
            ..RequestBuffers::default()
        };
        Request::from_buffers(&mut buffers, site, client, server)
    }

    /// A second request with the same head, location and variables, for a fetch that outlives the client's. The content
    /// must have been read: the input on the connection cannot be shared.
    pub fn fork(&self) -> Request {
        let mut fork = Request::new(
            Rc::clone(&self.site),
            Rc::clone(&self.client),
            Rc::clone(&self.head),
            self.server,
        );
        fork.method = self.method;
        fork.uri = self.uri.clone();
        fork.location = self.location;
        fork.remote = Rc::clone(&self.remote);
        fork.body = self.body.share_content();
        // Of the flow only what keeps `internal` locations open to it. How a response is delivered does not concern a
        // request whose response goes to no client.
        fork.flow.internal = self.flow.internal;
        fork.user = self.user.clone();
        fork.times = self.times.clone();
        fork.variables = Rc::clone(&self.variables);
        fork.captured = self.captured.clone();
        fork.parent = self.parent.clone();
        // A module's states stay behind: only what it stored as a fact describes both requests.
        fork.facts = self.facts.clone();
        fork
    }

    /// Turns into the next request of the same connection.
    ///
    /// A connection uses one `Request` for all that it serves, so that a request on a kept-alive connection neither
    /// moves this large struct nor allocates again what the previous one had allocated.
    pub(crate) fn begin_next(&mut self, site: &Rc<HttpSite>, server: ServerId) {
        // Only after a reload: comparing pointers is cheaper than touching two reference counts.
        if !Rc::ptr_eq(&self.site, site) {
            self.site = Rc::clone(site);
        }
        // `realip` may have given the previous request another address; this one begins with that of the connection.
        if !Rc::ptr_eq(&self.remote, &self.client.remote) {
            self.remote = Rc::clone(&self.client.remote);
        }
        self.method = Method::Get;
        self.server = server;
        self.location = self.site.server(server).root;
        self.flow = RequestFlow::default();
        self.delivery = ResponseDelivery::default();
        self.times = RequestTimes::begin();
        self.ledger.begin_again();
    }

    /// The request began at this moment, before its head was complete: `$request_time` counts from there.
    #[cold]
    pub(crate) fn begin_earlier(&mut self, since: Instant) {
        let by = self.times.started.saturating_duration_since(since);
        self.times.started = since;
        let by_ms = u64::try_from(by.as_millis()).unwrap_or(0);
        self.times.started_wall_ms = self.times.started_wall_ms.saturating_sub(by_ms);
        self.ledger.began_earlier(LedgerPhase::Head, by);
    }

    /// Ends the request: drops everything except its connection and memory that the next request fills again. Temporary
    /// files and what modules hold are thereby released now, not when the next request comes.
    pub(crate) fn end(&mut self) {
        // A subrequest or a fetch may still hold the head or the variables: then it keeps them, and this request gets
        // new ones.
        match Rc::get_mut(&mut self.head) {
            Some(head) => head.clear(),
            None => self.head = Rc::default(),
        }
        match Rc::get_mut(&mut self.variables) {
            Some(variables) => variables.clear(),
            None => self.variables = Rc::default(),
        }
        self.uri.clear();
        self.body.clear();
        self.out.clear();
        self.upstream = crate::upstream::RecordSlot::default();
        self.user = None;
        self.end_wait = None;
        self.captured.clear();
        self.parent = None;
        // What modules remember concerned the location that is left. nginx clears its module contexts here, too.
        self.states.clear();
        self.facts.clear();
    }

    /// Makes the connection wait for `wait` after the request has ended and before it continues or closes: for work
    /// that must be done by then, such as writing a log line.
    pub fn wait_at_end(&mut self, wait: impl Future<Output = ()> + 'static) {
        self.end_wait = Some(Box::pin(wait));
    }

    /// Takes what the connection has to wait for.
    pub(crate) fn take_end_wait(&mut self) -> Option<EndWait> {
        self.end_wait.take()
    }

    /// Whether this is a subrequest.
    pub fn is_subrequest(&self) -> bool {
        self.parent.is_some()
    }

    /// Returns to the server's own level, where no location is chosen.
    pub fn enter_server(&mut self) {
        self.location = self.site.server(self.server).root;
    }

    /// Enters a location, or its `limit_except` block if the block does not name the method.
    pub fn enter_location(&mut self, location: LocationId) {
        self.location = match self.site.location(location).limit_except {
            Some((allowed, block)) if self.method.bit() & allowed == 0 => block,
            _ => location,
        };
    }

    /// Has the connection close after the response if this location, which the request passes through, wants that: one that
    /// redirects elsewhere counts like the one that answers, as in nginx.
    pub fn limit_keepalive(&mut self, core: &LocationConf) {
        if core.keepalive_timeout.is_zero()
            || self.client.requests.get() >= core.keepalive_requests as u64
            || self.is_disabled_for_browser(core.keepalive_disable)
        {
            self.delivery.close();
        }
    }

    /// `keepalive_disable`: old Internet Explorers after a POST, and Safari on macOS. Both mishandle kept connections.
    pub(crate) fn is_disabled_for_browser(&self, disabled: u32) -> bool {
        const MSIE6: u32 = 1 << 1;
        const SAFARI: u32 = 1 << 2;
        let is_msie_wanted = disabled & MSIE6 != 0 && self.method == Method::Post;
        // Most requests are spared the search in `User-Agent`.
        if !is_msie_wanted && disabled & SAFARI == 0 {
            return false;
        }
        let Some(agent) = self
            .head
            .wire
            .fields
            .get_known(proto::KnownField::UserAgent)
        else {
            return false;
        };
        let agent = BStr::new(agent);
        if is_msie_wanted && crate::text::is_msie6(agent) {
            return true;
        }
        disabled & SAFARI != 0
            && agent.contains_str("Safari/")
            && agent.contains_str("Mac OS X")
            && !agent.contains_str("Chrome/")
    }

    /// The engine's own settings in the current location.
    pub fn core(&self) -> Arc<LocationConf> {
        Arc::clone(&self.site.location(self.location).core)
    }

    /// Redirects internally to another path of the same server, as `X-Accel-Redirect`, `error_page` and `index` do. The
    /// method stays. The handler must then return `HandlerOutcome::Jump`.
    pub fn redirect(
        &mut self,
        path: impl Into<BString>,
        args: impl Into<BString>,
    ) -> HandlerOutcome {
        let (path, args) = (path.into(), args.into());
        if !self.admits_redirect(BStr::new(&path), BStr::new(&args)) {
            return self.refuse_redirect();
        }
        self.uri = RequestUri {
            path,
            args,
            original: false,
        };
        self.jump_to_server()
    }

    /// The same with the arguments that the request has.
    pub fn redirect_path(&mut self, path: impl Into<BString>) -> HandlerOutcome {
        let path = path.into();
        if !self.admits_redirect(BStr::new(&path), BStr::new(&self.uri.args)) {
            return self.refuse_redirect();
        }
        self.uri.path = path;
        self.uri.original = false;
        self.jump_to_server()
    }

    /// Whether the request may be redirected once more. If not, the phases refuse it, and it keeps the path and the arguments
    /// that it has come to, as in nginx.
    fn admits_redirect(&self, path: &BStr, args: &BStr) -> bool {
        self.debug(format_args!("internal redirect: \"{path}?{args}\""));
        if self.flow.jumps >= MAX_JUMPS {
            self.error(format_args!(
                "rewrite or internal redirection cycle while internally redirecting to \"{path}\""
            ));
        }
        self.flow.jumps < MAX_JUMPS
    }

    /// One redirect too many: the next pass is a 500. The location stays, and with it what a rewrite has made of its `alias`.
    fn refuse_redirect(&mut self) -> HandlerOutcome {
        self.flow.jumps += 1;
        self.delivery.varies_by_encoding = false;
        HandlerOutcome::Jump
    }

    fn jump_to_server(&mut self) -> HandlerOutcome {
        self.flow.entry = PhaseEntry::Server;
        self.flow.jumps += 1;
        self.flow.internal = true;
        self.flow.add_uri_to_alias = false;
        self.flow.rewritten = false;
        self.flow.uri_changed = false;
        // The filters that set it looked at a response that is not going to be sent.
        self.delivery.varies_by_encoding = false;
        self.upstream.leave_location();
        self.states.clear();
        self.facts.clear();
        // Of the server's own level an internal redirect has everything until a location is found, as in nginx.
        let server = self.site.server(self.server).root;
        self.limit_keepalive(&Arc::clone(&self.site.location(server).core));
        HandlerOutcome::Jump
    }

    /// Redirects internally to a named location; the path stays.
    pub fn redirect_named(&mut self, name: &BStr) -> HandlerOutcome {
        if self.flow.jumps >= MAX_JUMPS {
            self.error(format_args!(
                "rewrite or internal redirection cycle while redirect to named location \"{name}\""
            ));
            return self.refuse_redirect();
        }
        // Counted even if it fails: the page of that 500 may be the same location.
        self.flow.jumps += 1;
        let Some(location) = self.site.server(self.server).named_location(name) else {
            self.error(format_args!("could not find named location \"{name}\""));
            return HandlerOutcome::Status(500);
        };
        // The target was malformed (an error page for that 400, say): a location would work with a path that does not
        // exist.
        if self.uri.path.is_empty() {
            self.error(format_args!(
                "empty URI in redirect to named location \"{name}\""
            ));
            return HandlerOutcome::Status(500);
        }
        self.flow.entry = PhaseEntry::Location;
        self.flow.internal = true;
        self.flow.add_uri_to_alias = false;
        self.flow.uri_changed = false;
        self.upstream.leave_location();
        self.states.clear();
        self.facts.clear();
        self.enter_location(location);
        self.limit_keepalive(&self.core());
        HandlerOutcome::Jump
    }

    /// A module's settings in the current location. They may be held while the request changes.
    pub fn conf<C: Any + Send + Sync>(&self) -> ConfRef<C> {
        ConfRef::new(Rc::clone(&self.site), self.location)
    }

    /// A module's settings of the virtual server, for tables that exist once per server.
    pub fn server_conf<C: Any + Send + Sync>(&self) -> ServerConfRef<C> {
        ServerConfRef::new(Rc::clone(&self.site), self.server)
    }

    /// The state of type `T` that a module keeps for this request; an internal redirect clears it.
    pub fn state<T: Any>(&mut self) -> Option<&mut T> {
        self.states
            .iter_mut()
            .find_map(|state| state.downcast_mut())
    }

    /// The state of type `T`, made with `Default` if there is none yet.
    pub fn state_or_default<T: Any + Default>(&mut self) -> &mut T {
        let index = match self.states.iter().position(|state| state.is::<T>()) {
            Some(index) => index,
            None => {
                self.states.push(Box::new(T::default()));
                self.states.len() - 1
            }
        };
        self.states[index]
            .downcast_mut()
            .expect("the entry was found by this very type, or just made")
    }

    /// Stores `state`, replacing an earlier one of the same type.
    pub fn set_state<T: Any>(&mut self, state: T) {
        self.states.retain(|old| !old.is::<T>());
        self.states.push(Box::new(state));
    }

    /// A fact of type `T` that a module found out about this request; a [`Request::fork`] inherits it.
    pub fn fact<T: Any>(&self) -> Option<Rc<T>> {
        self.facts
            .iter()
            .find_map(|fact| Rc::clone(fact).downcast().ok())
    }

    /// Stores `fact`, replacing an earlier one of the same type.
    pub fn set_fact<T: Any>(&mut self, fact: T) {
        self.facts.retain(|old| !old.is::<T>());
        self.facts.push(Rc::new(fact));
    }

    /// Takes over what modules found out about another request: for a copy of it that outlives it.
    pub fn inherit_facts(&mut self, other: &Request) {
        self.facts.clone_from(&other.facts);
    }

    /// Removes the fact of type `T`.
    pub fn forget_fact<T: Any>(&mut self) {
        self.facts.retain(|old| !old.is::<T>());
    }

    /// The value of type `T` that the client's request and all of its subrequests share, made with `Default` if there
    /// is none yet. Unlike a [`Request::state`] it survives internal redirects.
    pub fn shared<T: Any + Default>(&self) -> Rc<T> {
        let mut shared = self.variables.shared.borrow_mut();
        let known = shared
            .iter()
            .find_map(|known| Rc::clone(known).downcast().ok());
        known.unwrap_or_else(|| {
            let made = Rc::new(T::default());
            shared.push(Rc::clone(&made) as Rc<dyn Any>);
            made
        })
    }

    /// Shares a value that another request has.
    pub fn share<T: Any>(&self, value: Rc<T>) {
        self.variables.shared.borrow_mut().push(value);
    }

    /// The same as [`Request::shared`], if it has been made.
    #[inline]
    pub fn shared_if_made<T: Any>(&self) -> Option<Rc<T>> {
        let shared = self.variables.shared.borrow();
        shared
            .iter()
            .find_map(|known| Rc::clone(known).downcast().ok())
    }

    /// The value of an expression.
    pub fn value(&mut self, expression: &Expression) -> BString {
        match expression.constant() {
            Some(text) => text.to_owned(),
            None => {
                let mut out = Vec::new();
                expression.eval(self, &mut out);
                out.into()
            }
        }
    }

    /// Whether an expression is true as `if=` parameters understand it: neither empty nor `0`.
    pub fn is_true(&mut self, expression: &Expression) -> bool {
        let value = self.value(expression);
        !(value.is_empty() || value == "0")
    }

    /// Matches a pattern against a text. On a match its groups become the request's captures, and the variables of its
    /// named groups get their values.
    pub fn matches(&mut self, pattern: &CapturingPattern, subject: &[u8]) -> bool {
        if !self.captured.matches(&pattern.regex, subject) {
            return false;
        }
        for &(variable, group) in &pattern.variables {
            match self.captured.group(group).map(<[u8]>::to_vec) {
                Some(value) => self.set_variable(variable, &value),
                None => self.unset_variable(variable),
            }
        }
        true
    }

    /// Sets a variable, as `set`, a named capture or a module does.
    pub fn set_variable(&mut self, id: VarId, value: &[u8]) {
        let site = Rc::clone(&self.site);
        // Some variables are settings of the request under another name (`$args`, `$limit_rate`): they have a setter of
        // their own.
        match site.variables.get(id).set {
            Some(set) => set(self, value),
            None => self.variables.values.put(id, Some(value)),
        }
    }

    /// Marks a variable as unset.
    pub fn unset_variable(&mut self, id: VarId) {
        self.variables.values.put(id, None);
    }

    /// The logger of the current location.
    pub fn logger(&self) -> &Logger {
        &self.site.location(self.location).core.log
    }

    /// Writes a line about this request to the error log of its location.
    pub fn log(&self, level: LogLevel, message: fmt::Arguments<'_>) {
        let logger = self.logger().of_client(self.client.debug);
        logger.log(level, self, message);
    }

    /// Writes a line about something that happened while the server was `doing` this; further lines say so too.
    pub fn log_while(&self, level: LogLevel, doing: &'static str, message: fmt::Arguments<'_>) {
        self.head.doing.set(doing);
        self.log(level, message);
    }

    /// Writes a line at level `debug`.
    #[inline]
    pub fn debug(&self, message: fmt::Arguments<'_>) {
        if host::error_log::debug_is_on() {
            self.log(LogLevel::Debug, message);
        }
    }

    /// Writes a line at level `error`.
    pub fn error(&self, message: fmt::Arguments<'_>) {
        self.log(LogLevel::Error, message);
    }
}

impl VariableScope for Request {
    fn variable(&mut self, id: VarId, out: &mut Vec<u8>) -> bool {
        let site = Rc::clone(&self.site);
        // The value may be cached from an earlier use. A variable that must be computed each time is never cached.
        let definition = site.variables.get(id);
        match definition.known_or_new_value(id, self, |request| &request.variables.values, out) {
            Ok(found) => found,
            Err(cycle) => {
                self.error(format_args!("{cycle}"));
                false
            }
        }
    }

    fn capture(&mut self, n: usize, out: &mut Vec<u8>) -> bool {
        self.captured.append(n, out)
    }
}

impl host::error_log::LogContext for Request {
    fn connection(&self) -> Option<u64> {
        Some(self.client.number)
    }

    fn describe(&self, out: &mut ContextWriter<'_>) {
        out.doing(self.head.doing.get());
        // The order and the labels are nginx's: tools that parse error logs rely on them.
        out.word("client", &self.remote.text);
        out.word("server", &self.site.server(self.server).name);
        if !self.head.wire.request_line().is_empty() {
            out.quoted("request", self.head.wire.request_line());
        }
        if self.is_subrequest() {
            out.quoted("subrequest", &self.uri.path);
        }
        if let Some(upstream) = self.upstream.get() {
            upstream.describe(out);
        }
        for (label, name) in [("host", &b"Host"[..]), ("referrer", b"Referer")] {
            if let Some(value) = self.head.field(name) {
                out.quoted(label, value);
            }
        }
    }
}
