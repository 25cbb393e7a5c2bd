//! A request on its way through the engine.
//!
//! It belongs to one task on one loop, and every handler gets it as `&mut`. What the client sent (`head`) never
//! changes; where the request is going (`uri`, `server`, `location`, `flow`) does. No field belongs to a module: what
//! a module wants to remember about a request it keeps as a [`Request::state`] of a type of its own.

use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use bstr::{BStr, BString};
use conf::{Captured, Expression, Pattern, Scope, VarId, VariableCycle, VariableValues};
use host::error_log::{Level, Logger};
use net::client::Remote;
use proto::message::Method;

use crate::client::Client;
use crate::client_stream::ClientStream;
use crate::core::LocationConf;
use crate::handler::Outcome;
use crate::ledger::Ledger;
use crate::request_body::RequestBody;
use crate::response::Response;
use crate::site::{ConfRef, LocationId, ServerConfRef, ServerId, Site};

pub use crate::received_head::{ReceivedHead, Version};
pub use crate::request_flow::{
    AfterResponse, Entry, ErrorPages, MAX_JUMPS, RequestFlow, RequestPurpose, ResponseDelivery,
};

/// What a request ends with: see [`Request::wait_at_end`].
type EndWait = Pin<Box<dyn Future<Output = ()>>>;

/// A request.
pub struct Request {
    /// The configuration that the request began under, and ends under.
    pub site: Rc<Site>,
    /// The connection that it came on.
    pub client: Rc<Client>,
    /// The stream that it came on; for one that the server itself has made on behalf of a client, that client's connection.
    pub stream: Rc<dyn ClientStream>,
    /// What the client sent. Shared with subrequests.
    pub head: Rc<ReceivedHead>,
    /// The method; a subrequest or an error page may have another than the head.
    pub method: Method,
    /// Where the request goes now.
    pub uri: Uri,
    /// The server that it belongs to.
    pub server: ServerId,
    /// The location that it is in; the server's own pseudo location before one is chosen.
    pub location: LocationId,
    /// Who the client is. `realip` changes it; everything that judges or logs a client reads it.
    pub remote: Rc<Remote>,
    /// The user that authentication found: `$remote_user`. Without it that is what the client claims.
    pub user: Option<BString>,
    /// The request's content.
    pub body: RequestBody,
    /// The response, as far as there is one.
    pub out: Response,
    /// What is known of the upstream servers that were asked; it survives internal redirects.
    pub upstream: crate::upstream::Slot,
    /// How it moves through the phases.
    pub flow: RequestFlow,
    /// How its response gets to the client.
    pub delivery: ResponseDelivery,
    /// When each step of it happened.
    pub ledger: Ledger,
    /// Values of variables. Shared with subrequests.
    pub variables: Rc<Variables>,
    /// What the last regular expression captured.
    pub captured: Captured,
    /// For a subrequest, what is known of the request that it is part of.
    pub parent: Option<Rc<Parent>>,
    end_wait: Option<EndWait>,
    states: Vec<Box<dyn Any>>,
    facts: Vec<Rc<dyn Any>>,
}

/// Where a request goes.
#[derive(Clone, Default)]
pub struct Uri {
    /// The path, decoded and without `.` and `..`.
    pub path: BString,
    /// What follows the question mark, as it was sent.
    pub args: BString,
    /// Whether the target as sent may still stand for this path: nothing rewrote it.
    pub original: bool,
    /// Whether the target made no sense, so that `$request_uri` is not there.
    pub is_refused: bool,
}

impl Uri {
    fn clear(&mut self) {
        self.path.clear();
        self.args.clear();
        self.original = false;
        self.is_refused = false;
    }
}

/// What a subrequest knows of its parent.
pub struct Parent {
    /// How deep it stands below the client's request.
    pub depth: u8,
}

/// What a request and all of its subrequests share.
#[derive(Default)]
pub struct Variables {
    /// The values of variables.
    pub values: VariableValues,
    /// What modules share between them; see [`Request::shared`].
    shared: RefCell<Vec<Rc<dyn Any>>>,
}

impl Variables {
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
    pub fn copy(&self) -> Variables {
        Variables {
            values: self.values.copy(),
            shared: self.shared.clone(),
        }
    }
}

/// What a request can leave to one of another connection: memory to fill again, and nothing that was in it.
#[derive(Default)]
pub(crate) struct RequestBuffers {
    head: Option<Rc<ReceivedHead>>,
    uri: Uri,
    out: Response,
    variables: Option<Rc<Variables>>,
    captured: Captured,
}

impl RequestBuffers {
    /// How much it is, as far as clients decide on that; in bytes.
    pub(crate) fn size(&self) -> usize {
        let head = self
            .head
            .as_ref()
            .map_or(0, |head| head.wire.fields.memory() + head.host.capacity());
        let out = &self.out;
        head + out.fields.memory()
            + out.trailers.memory()
            + self.uri.path.capacity()
            + self.uri.args.capacity()
            + out.content_type.capacity()
            + self.captured.memory()
    }
}

impl Request {
    /// The first request of a connection, before anything of it was read.
    pub(crate) fn recycling(
        buffers: &mut RequestBuffers,
        site: Rc<Site>,
        client: Rc<Client>,
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
            upstream: crate::upstream::Slot::default(),
            flow: RequestFlow::default(),
            delivery: ResponseDelivery::default(),
            end_wait: None,
            user: None,
            ledger: Ledger::begin(),
            variables: buffers.variables.take().unwrap_or_default(),
            captured: std::mem::take(&mut buffers.captured),
            parent: None,
            states: Vec::new(),
            facts: Vec::new(),
        }
    }

    /// Leaves its memory, when it has [ended](Request::end) and is about to be dropped.
    pub(crate) fn leave_buffers(&mut self, buffers: &mut RequestBuffers) {
        buffers.head = Some(Rc::clone(&self.head));
        buffers.variables = Some(Rc::clone(&self.variables));
        std::mem::swap(&mut buffers.uri, &mut self.uri);
        std::mem::swap(&mut buffers.out, &mut self.out);
        std::mem::swap(&mut buffers.captured, &mut self.captured);
    }

    /// A request that has just been read.
    pub fn new(
        site: Rc<Site>,
        client: Rc<Client>,
        head: Rc<ReceivedHead>,
        server: ServerId,
    ) -> Request {
        let mut buffers = RequestBuffers {
            head: Some(head),
            ..RequestBuffers::default()
        };
        Request::recycling(&mut buffers, site, client, server)
    }

    /// The same request once more, for a fetch that outlives it: head, place and variables are the same. Its content must
    /// have been read.
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
        fork.body = self.body.share();
        fork.flow.internal = self.flow.internal;
        fork.user = self.user.clone();
        fork.ledger = self.ledger.clone();
        fork.variables = Rc::clone(&self.variables);
        fork.captured = self.captured.clone();
        fork.parent = self.parent.clone();
        fork.facts = self.facts.clone();
        fork
    }

    /// Begins to be another request of the same connection, of which nothing is known yet.
    ///
    /// A connection has one `Request` for all that it serves: a keep-alive request then neither moves this large struct
    /// nor allocates what the one before it left.
    pub(crate) fn renew(&mut self, site: &Rc<Site>, server: ServerId) {
        if !Rc::ptr_eq(&self.site, site) {
            self.site = Rc::clone(site);
        }
        if !Rc::ptr_eq(&self.remote, &self.client.remote) {
            self.remote = Rc::clone(&self.client.remote);
        }
        self.method = Method::Get;
        self.server = server;
        self.location = self.site.server(server).root;
        self.flow = RequestFlow::default();
        self.delivery = ResponseDelivery::default();
        self.ledger = Ledger::begin();
    }

    /// Ends: lets go of everything that it holds but its connection's, and memory to fill again.
    pub(crate) fn end(&mut self) {
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
        self.upstream = crate::upstream::Slot::default();
        self.user = None;
        self.end_wait = None;
        self.captured.clear();
        self.parent = None;
        self.states.clear();
        self.facts.clear();
    }

    /// Has the connection wait for `wait` once the request has ended, before it goes on or closes: for what must be done by
    /// then, such as writing lines of a log.
    pub fn wait_at_end(&mut self, wait: impl Future<Output = ()> + 'static) {
        self.end_wait = Some(Box::pin(wait));
    }

    /// What is to be waited for.
    pub(crate) fn take_end_wait(&mut self) -> Option<EndWait> {
        self.end_wait.take()
    }

    /// Whether this is part of another request.
    pub fn is_subrequest(&self) -> bool {
        self.parent.is_some()
    }

    /// Goes back to the server's own level, before a location is chosen.
    pub fn enter_server(&mut self) {
        self.location = self.site.server(self.server).root;
    }

    /// Enters a location, or its `limit_except` block when the method is not among those that the block names.
    pub fn enter_location(&mut self, location: LocationId) {
        self.location = match self.site.location(location).limit_except {
            Some((allowed, block)) if self.method.bit() & allowed == 0 => block,
            _ => location,
        };
    }

    /// The engine's own settings in the present location.
    pub fn core(&self) -> Arc<LocationConf> {
        Arc::clone(&self.site.location(self.location).core)
    }

    /// Points the request at another path of the same server, as `X-Accel-Redirect`, `error_page` and `index` do. The
    /// method stays. `Outcome::Jump` is then what the handler must return.
    pub fn redirect(&mut self, path: impl Into<BString>, args: impl Into<BString>) -> Outcome {
        self.uri = Uri {
            path: path.into(),
            args: args.into(),
            original: false,
            is_refused: self.uri.is_refused,
        };
        self.debug(format_args!(
            "internal redirect: \"{}?{}\"",
            self.uri.path, self.uri.args
        ));
        self.flow.entry = Entry::Server;
        self.flow.jumps += 1;
        self.flow.internal = true;
        self.flow.add_uri_to_alias = false;
        self.flow.rewritten = false;
        self.flow.uri_changed = false;
        self.delivery.varies_by_encoding = false;
        self.states.clear();
        self.facts.clear();
        Outcome::Jump
    }

    /// Points the request at a named location; the path stays.
    pub fn redirect_named(&mut self, name: &BStr) -> Outcome {
        let Some(location) = self.site.server(self.server).named_location(name) else {
            self.error(format_args!("could not find named location \"{name}\""));
            return Outcome::Status(500);
        };
        if self.uri.path.is_empty() {
            self.error(format_args!(
                "empty URI in redirect to named location \"{name}\""
            ));
            return Outcome::Status(500);
        }
        self.flow.entry = Entry::Location;
        self.flow.jumps += 1;
        self.flow.internal = true;
        self.flow.add_uri_to_alias = false;
        self.states.clear();
        self.facts.clear();
        self.enter_location(location);
        Outcome::Jump
    }

    /// A module's struct in the present location. It may be held while the request changes.
    pub fn conf<C: Any + Send + Sync>(&self) -> ConfRef<C> {
        ConfRef::new(Rc::clone(&self.site), self.location)
    }

    /// A module's struct of the request's server, for tables of servers.
    pub fn server_conf<C: Any + Send + Sync>(&self) -> ServerConfRef<C> {
        ServerConfRef::new(Rc::clone(&self.site), self.server)
    }

    /// What the module that owns `T` remembers about this request.
    pub fn state<T: Any>(&mut self) -> Option<&mut T> {
        self.states
            .iter_mut()
            .find_map(|state| state.downcast_mut())
    }

    /// What the module that owns `T` remembers, made with `Default` at first.
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

    /// Remembers `state` in place of what the module that owns `T` remembered before.
    pub fn set_state<T: Any>(&mut self, state: T) {
        self.states.retain(|old| !old.is::<T>());
        self.states.push(Box::new(state));
    }

    /// What the module that owns `T` has found out about this request; a [`Request::fork`] knows it, too.
    pub fn fact<T: Any>(&self) -> Option<Rc<T>> {
        self.facts
            .iter()
            .find_map(|fact| Rc::clone(fact).downcast().ok())
    }

    /// Remembers `fact` in place of what the module that owns `T` had found out before.
    pub fn set_fact<T: Any>(&mut self, fact: T) {
        self.facts.retain(|old| !old.is::<T>());
        self.facts.push(Rc::new(fact));
    }

    /// Forgets what the module that owns `T` had found out.
    pub fn forget_fact<T: Any>(&mut self) {
        self.facts.retain(|old| !old.is::<T>());
    }

    /// What the module that owns `T` keeps for the client's request and all of its subrequests, made with `Default` at
    /// first. Unlike a [`Request::state`] it outlives internal redirects.
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

    /// Matches a pattern against a text. On a match its groups are the request's captures, and the variables of its
    /// named groups have their values.
    pub fn matches(&mut self, pattern: &Pattern, subject: &[u8]) -> bool {
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

    /// Sets a variable that `set`, a capture or a module gave a value.
    pub fn set_variable(&mut self, id: VarId, value: &[u8]) {
        let site = Rc::clone(&self.site);
        match site.variables.get(id).set {
            Some(set) => set(self, value),
            None => self.variables.values.put(id, Some(value)),
        }
    }

    /// Sets a variable to "not found".
    pub fn unset_variable(&mut self, id: VarId) {
        self.variables.values.put(id, None);
    }

    /// The logger of the present location.
    pub fn logger(&self) -> &Logger {
        &self.site.location(self.location).core.log
    }

    /// Writes a line about this request to the error log of its location.
    pub fn log(&self, level: Level, message: fmt::Arguments<'_>) {
        let logger = self.logger();
        if self.client.debug {
            logger.debug_connection().log(level, self, message);
        } else if logger.enabled(level) {
            logger.log(level, self, message);
        }
    }

    /// Writes a line at level `debug`.
    #[inline]
    pub fn debug(&self, message: fmt::Arguments<'_>) {
        if host::error_log::debug_is_on() {
            self.log(Level::Debug, message);
        }
    }

    /// Writes a line at level `error`.
    pub fn error(&self, message: fmt::Arguments<'_>) {
        self.log(Level::Error, message);
    }
}

impl Scope for Request {
    fn variable(&mut self, id: VarId, out: &mut Vec<u8>) -> bool {
        let site = Rc::clone(&self.site);
        let definition = site.variables.get(id);
        match definition.known_or_new_value(id, self, |request| &request.variables.values, out) {
            Ok(found) => found,
            Err(VariableCycle) => {
                let name = &definition.name;
                self.error(format_args!("cycle while evaluating variable \"{name}\""));
                false
            }
        }
    }

    fn capture(&mut self, n: usize, out: &mut Vec<u8>) -> bool {
        self.captured.append(n, out)
    }
}

impl host::error_log::Context for Request {
    fn connection(&self) -> Option<u64> {
        Some(self.client.number)
    }

    fn describe(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b", client: ");
        out.extend_from_slice(&self.remote.text);
        out.extend_from_slice(b", server: ");
        out.extend_from_slice(&self.site.server(self.server).name);
        if !self.head.wire.request_line().is_empty() {
            out.extend_from_slice(b", request: \"");
            out.extend_from_slice(self.head.wire.request_line());
            out.push(b'"');
        }
        if self.is_subrequest() {
            out.extend_from_slice(b", subrequest: \"");
            out.extend_from_slice(&self.uri.path);
            out.push(b'"');
        }
        if let Some(upstream) = self.upstream.get() {
            upstream.describe(out);
        }
        for (label, name) in [
            (", host: \"", &b"Host"[..]),
            (", referrer: \"", &b"Referer"[..]),
        ] {
            if let Some(value) = self.head.field(name) {
                out.extend_from_slice(label.as_bytes());
                out.extend_from_slice(value);
                out.push(b'"');
            }
        }
    }
}
