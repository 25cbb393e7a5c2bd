//! Names that are resolved again whenever their answer expires: `server NAME resolve` in an upstream.

use std::cell::Cell;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bstr::BString;
use host::error_log::LogLevel;

use super::error::ResolveError;
use super::{FoundService, LookupKey, NEGATIVE_RECHECK, ResolvedName, Resolver, within};

/// The least time between two questions: a TTL of zero must not become a busy loop.
const SHORTEST: Duration = Duration::from_secs(1);

/// How many watched names are asked for at a time. A thousand names of a group have the same TTL, so they are due at
/// once; that many questions fill the receive buffer of the DNS server, and those that are lost are repeated only
/// after seconds.
const TURNS: usize = 32;

/// How long a lookup counts as one of these. One that takes longer waits for a server that does not answer, and must
/// not keep the others from asking.
const TURN: Duration = Duration::from_millis(500);

/// Lets the watched names of a loop ask in turn.
#[derive(Default)]
pub struct LookupTurns {
    running: Cell<usize>,
    freed: rt::sync::Notify,
}

/// The right to ask; it ends when this is dropped.
struct LookupTurn<'t>(&'t LookupTurns);

impl LookupTurns {
    async fn next_turn(&self) -> LookupTurn<'_> {
        while self.running.get() >= TURNS {
            self.freed.notified().await;
        }
        self.running.set(self.running.get() + 1);
        LookupTurn(self)
    }
}

impl Drop for LookupTurn<'_> {
    fn drop(&mut self) {
        self.0.running.set(self.0.running.get() - 1);
        self.0.freed.notify_one();
    }
}

/// Follows the addresses of one name, or the servers of one service.
pub struct NameWatch {
    resolver: Arc<Resolver>,
    host: BString,
    /// Empty when addresses are wanted.
    service: BString,
    /// The port for addresses; SRV records have their own.
    port: u16,
    timeout: Duration,
    turns: Rc<LookupTurns>,
    /// When to ask next; `None` means at once.
    due: Option<Instant>,
}

/// What a lookup has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameUpdate {
    /// The present servers; empty when the name no longer exists.
    Servers(Vec<FoundService>),
    /// The lookup failed: the servers that are known from before may still be right.
    Failed(ResolveError),
}

impl NameWatch {
    /// Watches `host`, or its `service` if that is not empty. `timeout` is `resolver_timeout`.
    pub fn new(
        resolver: Arc<Resolver>,
        host: BString,
        service: BString,
        port: u16,
        timeout: Duration,
    ) -> NameWatch {
        NameWatch {
            resolver,
            host,
            service,
            port,
            timeout,
            turns: Rc::default(),
            due: None,
        }
    }

    /// Takes turns with others.
    pub fn in_turns(self, turns: &Rc<LookupTurns>) -> NameWatch {
        NameWatch {
            turns: Rc::clone(turns),
            ..self
        }
    }

    /// The next result: the first one as soon as it is known, then one whenever it may have changed.
    ///
    /// Errors are already logged. Cancel-safe: the future may be dropped and the function called again.
    pub async fn next_update(&mut self) -> NameUpdate {
        if let Some(due) = self.due {
            rt::sleep_until(due).await;
        }
        let result = self.resolve_in_turn().await;
        let now = rt::now();
        if let Err(error) = result {
            self.log(error);
        }
        let (update, due) = match result {
            Ok((servers, until)) => (NameUpdate::Servers(servers), until),
            Err(error) if error.is_unknown() => {
                let recheck = self.resolver.settings.valid.unwrap_or(NEGATIVE_RECHECK);
                (NameUpdate::Servers(Vec::new()), now + recheck)
            }
            // A passing failure: ask again after as long as one question may take.
            Err(error) => (NameUpdate::Failed(error), now + self.timeout),
        };
        self.due = Some(due.max(now + SHORTEST));
        update
    }

    async fn resolve_in_turn(&self) -> Result<(Vec<FoundService>, Instant), ResolveError> {
        let turn = self.turns.next_turn().await;
        let mut lookup = pin!(self.resolve_once());
        match rt::timeout(TURN, lookup.as_mut()).await {
            Ok(result) => result,
            Err(_) => {
                drop(turn);
                lookup.await
            }
        }
    }

    async fn resolve_once(&self) -> Result<(Vec<FoundService>, Instant), ResolveError> {
        if !self.service.is_empty() {
            return self
                .resolver
                .services(&self.service, &self.host, self.timeout)
                .await;
        }
        let located = within(
            self.timeout,
            self.resolver
                .resolve_alias_chain(LookupKey::host(&self.host)),
        )
        .await?;
        // Not rotated: a changed order would look like a changed answer and rebuild the group.
        let located = ResolvedName {
            remembered: false,
            ..located
        };
        let addresses = self.resolver.addresses(&located).into_iter();
        let servers = addresses.map(|ip| FoundService {
            address: SocketAddr::new(ip, self.port),
            name: BString::default(),
            priority: 0,
            weight: 1,
        });
        Ok((servers.collect(), located.until))
    }

    fn log(&self, error: ResolveError) {
        let (log, host, service) = (&self.resolver.log, &self.host, &self.service);
        if error.is_no_resolver() {
            log.log_plain(
                LogLevel::Error,
                format_args!("no resolver defined to resolve {host}"),
            );
        } else if service.is_empty() {
            log.log_plain(
                LogLevel::Error,
                format_args!("{host} could not be resolved {error}"),
            );
        } else {
            log.log_plain(
                LogLevel::Error,
                format_args!("service {service} of {host} could not be resolved {error}"),
            );
        }
    }
}
