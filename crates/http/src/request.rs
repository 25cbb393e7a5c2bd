//! A request on its way through the engine.
//!
//! It belongs to one task on one loop, and every handler gets it as `&mut`. What the client sent (`head`) never
//! changes; where the request is going (`uri`, `server`, `location`, `flow`) does. No field belongs to a module: what
//! a module wants to remember about a request it keeps as a [`Request::state`] of a type of its own.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use bstr::{BStr, BString, ByteSlice};
use conf::{Captures, Expression, Pattern, Scope, VarId};
use net::client::Remote;
use proto::Known;
use proto::h1::Method;
use rt::error_log::{Level, Logger};

use crate::body_reader::RequestBody;
use crate::client::Client;
use crate::core::LocationConf;
use crate::ledger::Ledger;
use crate::module::Outcome;
use crate::response::Response;
use crate::site::{ConfRef, LocationId, ServerConfRef, ServerId, Site};

/// A request.
pub struct Request {
    /// The configuration that the request began under, and ends under.
    pub site: Rc<Site>,
    /// The connection that it came on.
    pub client: Rc<Client>,
    /// Its stream, on a connection that several requests share (HTTP/2); `None`: the connection is its own.
    pub lane: Option<Rc<dyn crate::lane::Lane>>,
    /// What the client sent. Shared with subrequests.
    pub head: Rc<RequestHead>,
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
    /// The request's content.
    pub body: RequestBody,
    /// The response, as far as there is one.
    pub out: Response,
    /// What is known of the upstream servers that were asked; it survives internal redirects.
    pub upstream: crate::upstream::Slot,
    /// How it moves through the phases.
    pub flow: Flow,
    /// When each step of it happened.
    pub ledger: Ledger,
    /// Values of variables. Shared with subrequests.
    pub variables: Rc<Variables>,
    /// What the last regular expression captured.
    pub captured: Captured,
    /// For a subrequest, what is known of the request that it is part of.
    pub parent: Option<Rc<Parent>>,
    states: Vec<Box<dyn Any>>,
    facts: Vec<Rc<dyn Any>>,
}

/// The request line and the header fields.
#[derive(Clone, Default)]
pub struct RequestHead {
    /// What came on the wire: method, target, version, header fields.
    pub wire: proto::h1::Head,
    /// The host that the client asked for, lower case, without a port; empty when it named none.
    pub host: BString,
    /// The port of the `Host` field or of the absolute target, as it was sent.
    pub port: Option<u16>,
    /// The head could not be read to its end. What it says of its version does not count then.
    pub rejected: bool,
}

/// The protocol version of a request, in an order that compares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// A request line without a version.
    Http09,
    /// HTTP/1.0
    Http10,
    /// HTTP/1.1
    #[default]
    Http11,
    /// HTTP/2
    Http2,
    /// HTTP/3
    Http3,
}

impl Version {
    /// As `$server_protocol` shows it.
    pub fn text(self) -> &'static str {
        match self {
            Version::Http09 => "HTTP/0.9",
            Version::Http10 => "HTTP/1.0",
            Version::Http11 => "HTTP/1.1",
            Version::Http2 => "HTTP/2.0",
            Version::Http3 => "HTTP/3.0",
        }
    }
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

/// How a request moves through the phases.
#[derive(Default)]
pub struct Flow {
    /// Where the next pass begins.
    pub entry: Entry,
    /// Changes of place so far: internal redirects, and rewrites after which the location was chosen again.
    pub jumps: u8,
    /// Whether the request was sent here by the server itself, so that `internal` locations are open to it.
    pub internal: bool,
    /// A rewrite changed the path: the location must be chosen again.
    pub uri_changed: bool,
    /// Rewrites changed the path after the location was chosen, so that `alias` can not be applied.
    pub rewritten: bool,
    /// `try_files` found a file below the `alias` of a regular expression: the path is added to it.
    pub path_after_alias: bool,
    /// An error page is being made, and those who make it get none of their own.
    pub error_page: bool,
    /// An error ends the request without a page: whoever made this subrequest has something else to show.
    pub no_error_page: bool,
    /// The status that the response must have, whatever its handler says.
    pub forced_status: Option<u16>,
    /// A response without content, whatever it says: HEAD.
    pub header_only: bool,
    /// A filter looked at `Accept-Encoding` where `gzip_vary` is on: `Vary: Accept-Encoding` is added at the wire, also
    /// to the built-in page of an error that came after it.
    pub varies_by_encoding: bool,
    /// The fields of `add_header` are there, on a page that took the place of the response they were added to.
    pub has_added_fields: bool,
    /// The charset that an upstream's response asks for, whatever the configuration says: `X-Accel-Charset`.
    pub charset: Option<BString>,
    /// The connection must close after this response.
    pub close: bool,
    /// The content of the response is sent in chunks.
    pub chunked: bool,
    /// The head waits for the first content: both come from a server whose response is buffered.
    pub head_waits: bool,
    /// The client sent the request before it had the response to the one before.
    pub pipelined: bool,
    /// The client left before it had sent its content: there is nothing to follow.
    pub abandoned: bool,
    /// The response was sent, and `post_action` is served for its effects.
    pub post_action: bool,
    /// There is to be no response at all.
    pub silent: bool,
    /// Nobody waits for the response, not even the client: it may leave.
    pub background: bool,
    /// The connection now belongs to another protocol and ends with it.
    pub upgraded: bool,
    /// The connection closes without reading what the client still sends.
    pub no_lingering: bool,
    /// Bytes per second; 0 is no limit. `None`: the location decides.
    pub limit_rate: Option<u64>,
    /// Bytes that are sent at full speed before `limit_rate` begins.
    pub limit_rate_after: Option<u64>,
    /// What the client's connection did not take of an interim response: it goes before the response.
    pub interim: Vec<u8>,
    /// The user that authentication found.
    pub user: Option<BString>,
    /// What the connection waits for when the request has ended, before it goes on or closes: its lines in the logs.
    pub farewell: Option<Pin<Box<dyn Future<Output = ()>>>>,
}

/// Where a pass through the phases begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Entry {
    /// At the server's phases.
    #[default]
    Server,
    /// At the rewrites of a location that is chosen already.
    Location,
    /// At the content of a location that is chosen already: for the copy of a request that came so far.
    Content,
}

/// The groups of the last match of a regular expression, with the text they are in.
#[derive(Clone, Default)]
pub struct Captured {
    subject: Vec<u8>,
    groups: Captures,
}

impl Captured {
    /// Matches; when the pattern does not match, what an earlier one captured stays.
    pub fn matches(&mut self, regex: &conf::Regex, subject: &[u8]) -> bool {
        let mut groups = Captures::new();
        if !regex.captures(subject, &mut groups) {
            return false;
        }
        self.groups = groups;
        self.subject.clear();
        self.subject.extend_from_slice(subject);
        true
    }

    /// The text of group `n`; 0 is the whole match.
    pub fn group(&self, n: usize) -> Option<&[u8]> {
        self.groups.text(n, &self.subject)
    }

    /// Forgets the match.
    pub fn clear(&mut self) {
        self.groups.clear();
    }
}

/// What a subrequest knows of its parent.
pub struct Parent {
    /// How deep it stands below the client's request.
    pub depth: u8,
}

/// Values of variables that have been computed or set, by variable.
#[derive(Default)]
pub struct Variables {
    slots: RefCell<Vec<Slot>>,
    /// What modules keep for a request and all of its subrequests; see [`Request::shared`].
    shared: RefCell<Vec<Rc<dyn Any>>>,
    /// How many variables are being evaluated, each for the sake of the one before.
    depth: Cell<u8>,
}

/// How deep variables may stand inside variables, before it must be a circle; nginx's bound.
const MAX_VARIABLE_DEPTH: u8 = 100;

#[derive(Clone, Default)]
enum Slot {
    #[default]
    Unset,
    NotFound,
    Value(Rc<[u8]>),
}

impl Variables {
    /// Forgets all values, keeps the memory.
    fn clear(&mut self) {
        self.slots.get_mut().clear();
        self.shared.get_mut().clear();
    }

    /// Forgets what modules keep for the request; it must have ended.
    pub fn release_shared(&self) {
        if !self.shared.borrow().is_empty() {
            // Out of its cell first: what is dropped may look for something here.
            drop(std::mem::take(&mut *self.shared.borrow_mut()));
        }
    }

    /// The remembered value: `None` when nothing is remembered, `Some(None)` when it is known that there is none.
    fn get(&self, id: VarId) -> Option<Option<Rc<[u8]>>> {
        match self.slots.borrow().get(id.0 as usize)? {
            Slot::Unset => None,
            Slot::NotFound => Some(None),
            Slot::Value(value) => Some(Some(Rc::clone(value))),
        }
    }

    fn put(&self, id: VarId, value: Option<&[u8]>) {
        let mut slots = self.slots.borrow_mut();
        let index = id.0 as usize;
        if slots.len() <= index {
            slots.resize(index + 1, Slot::Unset);
        }
        slots[index] = value.map_or(Slot::NotFound, |bytes| Slot::Value(bytes.into()));
    }

    /// The same values, for a request that goes its own way with them.
    pub fn copy(&self) -> Variables {
        Variables {
            slots: self.slots.clone(),
            shared: self.shared.clone(),
            depth: Cell::new(0),
        }
    }

    /// Remembers that this variable has to be computed anew.
    pub fn forget(&self, id: VarId) {
        if let Some(slot) = self.slots.borrow_mut().get_mut(id.0 as usize) {
            *slot = Slot::Unset;
        }
    }
}

/// What a request can leave to one of another connection: memory to fill again, and nothing that was in it.
#[derive(Default)]
pub(crate) struct Memory {
    head: Option<Rc<RequestHead>>,
    uri: Uri,
    out: Response,
    variables: Option<Rc<Variables>>,
    captured: Captured,
}

impl Memory {
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
            + self.captured.subject.capacity()
    }
}

impl Request {
    /// The first request of a connection, before anything of it was read.
    pub(crate) fn in_memory(
        memory: &mut Memory,
        site: Rc<Site>,
        client: Rc<Client>,
        server: ServerId,
    ) -> Request {
        let location = site.server(server).root;
        let remote = Rc::clone(&client.remote);
        Request {
            site,
            client,
            lane: None,
            head: memory.head.take().unwrap_or_default(),
            method: Method::Get,
            uri: std::mem::take(&mut memory.uri),
            server,
            location,
            remote,
            body: RequestBody::none(),
            out: std::mem::take(&mut memory.out),
            upstream: crate::upstream::Slot::default(),
            flow: Flow::default(),
            ledger: Ledger::begin(),
            variables: memory.variables.take().unwrap_or_default(),
            captured: std::mem::take(&mut memory.captured),
            parent: None,
            states: Vec::new(),
            facts: Vec::new(),
        }
    }

    /// Leaves its memory, when it has [ended](Request::end) and is about to be dropped.
    pub(crate) fn leave(&mut self, memory: &mut Memory) {
        memory.head = Some(Rc::clone(&self.head));
        memory.variables = Some(Rc::clone(&self.variables));
        std::mem::swap(&mut memory.uri, &mut self.uri);
        std::mem::swap(&mut memory.out, &mut self.out);
        std::mem::swap(&mut memory.captured, &mut self.captured);
    }

    /// A request that has just been read.
    pub fn new(
        site: Rc<Site>,
        client: Rc<Client>,
        head: Rc<RequestHead>,
        server: ServerId,
    ) -> Request {
        let mut memory = Memory {
            head: Some(head),
            ..Memory::default()
        };
        Request::in_memory(&mut memory, site, client, server)
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
        fork.flow.user = self.flow.user.clone();
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
        self.flow = Flow::default();
        self.ledger = Ledger::begin();
    }

    /// Ends: lets go of everything that it holds but memory to fill again.
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
        self.captured.clear();
        self.lane = None;
        self.parent = None;
        self.states.clear();
        self.facts.clear();
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
        self.flow.path_after_alias = false;
        self.flow.rewritten = false;
        self.flow.uri_changed = false;
        self.flow.varies_by_encoding = false;
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
        self.flow.path_after_alias = false;
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
            None => self.variables.put(id, Some(value)),
        }
    }

    /// Sets a variable to "not found".
    pub fn unset_variable(&mut self, id: VarId) {
        self.variables.put(id, None);
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
        if rt::error_log::debug_is_on() {
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
        if let Some(known) = self.variables.get(id) {
            return match known {
                None => false,
                Some(value) => {
                    out.extend_from_slice(&value);
                    true
                }
            };
        }
        let depth = self.variables.depth.get();
        if depth == MAX_VARIABLE_DEPTH {
            self.error(format_args!(
                "cycle while evaluating variable \"{}\"",
                definition.name
            ));
            return false;
        }
        self.variables.depth.set(depth + 1);
        let start = out.len();
        let found = definition.value(self, out);
        self.variables.depth.set(depth);
        if definition.cache {
            self.variables.put(id, found.then(|| &out[start..]));
        }
        found
    }

    fn capture(&mut self, n: usize, out: &mut Vec<u8>) -> bool {
        match self.captured.group(n) {
            None => false,
            Some(text) => {
                out.extend_from_slice(text);
                true
            }
        }
    }
}

impl rt::error_log::Context for Request {
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

impl RequestHead {
    /// Makes it empty again and keeps the memory.
    pub fn clear(&mut self) {
        self.wire.clear();
        self.host.clear();
        self.port = None;
        self.rejected = false;
    }

    /// The value of a header field; the first, when there are several.
    pub fn field(&self, name: &[u8]) -> Option<&BStr> {
        self.wire.fields.get(name).map(|value| value.as_bstr())
    }

    /// The value of a header field that the server knows by number.
    pub fn known(&self, name: Known) -> Option<&BStr> {
        self.wire
            .fields
            .get_known(name)
            .map(|value| value.as_bstr())
    }

    /// The protocol version.
    pub fn version(&self) -> Version {
        use proto::h1::Version as Wire;
        match self.wire.version {
            _ if self.rejected => Version::Http10,
            version if version >= Wire::HTTP_3 => Version::Http3,
            version if version >= Wire::HTTP_2 => Version::Http2,
            version if version >= Wire::HTTP_11 => Version::Http11,
            version if version >= Wire::HTTP_10 => Version::Http10,
            _ => Version::Http09,
        }
    }
}
