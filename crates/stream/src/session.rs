//! A session on its way through the engine.
//!
//! It belongs to one task on one loop, and every handler gets it as `&mut`. No field belongs to a module: what a module
//! wants to remember about a session it keeps as a [`StreamSession::state`] of a type of its own.

use std::any::Any;
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;

use bstr::{BStr, BString};
use conf::{CapturedGroups, CapturingPattern, Expression, VarId, VariableScope, VariableValues};
use host::error_log::{ContextWriter, LogContext, LogLevel, Logger};
use net::client::RemoteClient;
use net::endpoint::ListenEndpoint;
use rt::net::SocketAddress;

use crate::client::StreamClient;
use crate::stream_loop::StreamLoop;
use crate::stream_site::{ServerId, StreamConfRef, StreamServer, StreamSite};
use crate::upstream::SessionUpstreams;

/// A session.
pub struct StreamSession {
    /// The loop on which it runs.
    pub engine: Rc<StreamLoop>,
    /// The configuration under which it began. A reload does not change it.
    pub site: Rc<StreamSite>,
    /// The client's connection or datagrams.
    pub client: Rc<StreamClient>,
    /// The address at which it was accepted, with its servers.
    pub endpoint: std::sync::Arc<ListenEndpoint>,
    /// The server that serves it: the default of the address, until a TLS name chooses another.
    pub server: ServerId,
    /// The address of the client. `realip` changes it; everything that judges or logs a client reads it here.
    pub remote: RemoteClient,
    /// The listening address to which the connection is passed when the session has ended.
    pub pass_to: Option<SocketAddress>,
    /// The status with which it ended; 0 before.
    pub status: u16,
    /// Bytes that came from the client.
    pub received: u64,
    /// The upstream servers that were tried; none before a content handler tries one.
    pub upstream: Option<SessionUpstreams>,
    /// What is being done, as the error log says it behind "while"; empty: nothing is said.
    pub action: &'static str,
    values: VariableValues,
    captured: CapturedGroups,
    /// At most one value of each type. Searched in a row: few modules remember anything about a session.
    states: Vec<Box<dyn Any>>,
    /// What the end of the connection waits for, beside the lines of logs.
    endings: Vec<SessionEnding>,
}

/// Work that goes on when the session is over.
pub(crate) type SessionEnding = Pin<Box<dyn Future<Output = ()>>>;

impl StreamSession {
    /// A session that has just begun.
    pub fn new(
        engine: Rc<StreamLoop>,
        site: Rc<StreamSite>,
        client: Rc<StreamClient>,
        endpoint: std::sync::Arc<ListenEndpoint>,
    ) -> StreamSession {
        StreamSession {
            engine,
            site,
            server: endpoint.default_server,
            endpoint,
            remote: client.remote.clone(),
            client,
            pass_to: None,
            status: 0,
            received: 0,
            upstream: None,
            action: "initializing session",
            values: VariableValues::default(),
            captured: CapturedGroups::default(),
            states: Vec::new(),
            endings: Vec::new(),
        }
    }

    /// The server.
    pub fn server(&self) -> &StreamServer {
        self.site.server(self.server)
    }

    /// Chooses the server for a name that a TLS client asks for, among those of the address of the session. A text that
    /// is no valid host name chooses none.
    pub fn choose_server(&mut self, name: &[u8]) {
        let Ok(host) = proto::host::parse(name) else {
            return;
        };
        // Names were stored in lower case: host names do not depend on case (RFC 4343).
        let mut lower = Vec::with_capacity(host.name.len());
        host.write_lowercase(&mut lower);
        let endpoint = std::sync::Arc::clone(&self.endpoint);
        // No match keeps the default server of the address, as in nginx.
        if let Some((server, pattern)) = endpoint.names.find(BStr::new(&lower)) {
            if let Some(pattern) = pattern {
                self.matches(pattern, &lower);
            }
            self.server = server;
        }
    }

    /// The settings of a module in the server of the session. They may be held while the session changes.
    pub fn conf<C: Any>(&self) -> StreamConfRef<C> {
        StreamConfRef::new(Rc::clone(&self.site), self.server)
    }

    /// What the module that owns `T` remembers about this session.
    pub fn state<T: Any>(&mut self) -> Option<&mut T> {
        self.states
            .iter_mut()
            .find_map(|state| state.downcast_mut())
    }

    /// Remembers `state` in place of what the module that owns `T` remembered before.
    pub fn set_state<T: Any>(&mut self, state: T) {
        self.states.retain(|old| !old.is::<T>());
        self.states.push(Box::new(state));
    }

    /// Makes the end of the connection wait a moment for something under way, such as a line of a log. What the modules
    /// held for the session is released before.
    pub fn wait_at_end(&mut self, ending: impl Future<Output = ()> + 'static) {
        self.endings.push(Box::pin(ending));
    }

    /// Drops what modules remember, such as what `limit_conn` counts, and gives what is still to be waited for.
    pub(crate) fn release_states(&mut self) -> Vec<SessionEnding> {
        self.states.clear();
        std::mem::take(&mut self.endings)
    }

    /// The value of an expression.
    pub fn value(&mut self, expression: &Expression) -> BString {
        match expression.constant() {
            Some(text) => text.to_owned(),
            None => expression.to_bytes(self).into(),
        }
    }

    /// Matches a pattern against a text. On a match its groups are the session's captures, and the variables of its
    /// named groups have their values.
    pub fn matches(&mut self, pattern: &CapturingPattern, subject: &[u8]) -> bool {
        if !self.captured.matches(&pattern.regex, subject) {
            // The captures of the last match stay.
            return false;
        }
        for &(variable, group) in &pattern.variables {
            self.values.put(variable, self.captured.group(group));
        }
        true
    }

    /// Sets a variable, for `set`, a capture or a module.
    pub fn set_variable(&mut self, id: VarId, value: &[u8]) {
        let site = Rc::clone(&self.site);
        match site.variables.get(id).set {
            // Some variables are part of the session and not only a text.
            Some(set) => set(self, value),
            None => self.values.put(id, Some(value)),
        }
    }

    /// The logger of the server.
    pub fn logger(&self) -> &Logger {
        &self.server().core.log
    }

    /// Writes a line about this session to the error log of its server.
    pub fn log(&self, level: LogLevel, message: fmt::Arguments<'_>) {
        self.write(level, self, message);
    }

    /// As [`StreamSession::log`] without naming the client: for lines that name it themselves.
    pub fn log_plainly(&self, level: LogLevel, message: fmt::Arguments<'_>) {
        self.write(level, &NumberOnly(self.client.number), message);
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

    fn write(&self, level: LogLevel, context: &dyn LogContext, message: fmt::Arguments<'_>) {
        let logger = self.logger().of_client(self.client.debug);
        logger.log(level, context, message);
    }
}

impl VariableScope for StreamSession {
    fn variable(&mut self, id: VarId, out: &mut Vec<u8>) -> bool {
        let site = Rc::clone(&self.site);
        // A value that was set or kept comes first; only then is the variable evaluated.
        let definition = site.variables.get(id);
        match definition.known_or_new_value(id, self, |session| &session.values, out) {
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

impl StreamSession {
    /// The loop may be late: names the session as the error log does.
    #[cold]
    pub fn suspect(&self) {
        rt::suspect(rt::slow_turn::SuspectKind::Whole, || {
            let mut text = format!("session *{}", self.client.number).into_bytes();
            self.describe(&mut ContextWriter::text(&mut text));
            String::from_utf8_lossy(&text).into_owned()
        });
    }
}

impl LogContext for StreamSession {
    fn connection(&self) -> Option<u64> {
        Some(self.client.number)
    }

    fn describe(&self, out: &mut ContextWriter<'_>) {
        out.doing(self.action);
        // As `realip` has it: an administrator looks for the client, not for the proxy before it.
        let client = if self.client.is_udp() {
            "udp client"
        } else {
            "client"
        };
        out.word(client, &self.remote.text);
        out.word("server", self.client.socket.to_string().as_bytes());
        if let Some(upstream) = &self.upstream {
            upstream.describe(self.received, self.client.sent.get(), out);
        }
    }
}

/// Says which connection a line is about, and no more.
struct NumberOnly(u64);

impl LogContext for NumberOnly {
    fn connection(&self) -> Option<u64> {
        Some(self.0)
    }

    fn describe(&self, _: &mut ContextWriter<'_>) {}
}
