//! Names that are resolved again and again: `server NAME resolve` in an upstream.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bstr::BString;
use host::error_log::Level;

use super::error::ResolveError;
use super::{FoundService, Key, Located, NEGATIVE_RECHECK, Resolver, within};

/// The least time between two questions.
const SHORTEST: Duration = Duration::from_secs(1);

/// Follows what the servers of a name are.
pub struct Watch {
    resolver: Arc<Resolver>,
    host: BString,
    /// Empty when addresses are wanted.
    service: BString,
    /// Of addresses; services bring their own.
    port: u16,
    timeout: Duration,
    /// When to ask; `None` is at once.
    due: Option<Instant>,
}

/// News of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update {
    /// These are its servers now; none when the name does not exist any more.
    Servers(Vec<FoundService>),
    /// It is not known: what was known before may still be true.
    Failed(ResolveError),
}

impl Watch {
    /// Watches `host`, or the service at it if `service` is not empty. `timeout` is `resolver_timeout`.
    pub fn new(
        resolver: Arc<Resolver>,
        host: BString,
        service: BString,
        port: u16,
        timeout: Duration,
    ) -> Watch {
        Watch {
            resolver,
            host,
            service,
            port,
            timeout,
            due: None,
        }
    }

    /// The state of things: at first as soon as it is known, then again whenever it may have changed.
    ///
    /// What went wrong is in the error log already. May be dropped and called again.
    pub async fn next(&mut self) -> Update {
        if let Some(due) = self.due {
            rt::sleep_until(due).await;
        }
        let result = self.ask().await;
        let now = rt::now();
        if let Err(error) = result {
            self.log(error);
        }
        let (update, due) = match result {
            Ok((servers, until)) => (Update::Servers(servers), until),
            Err(error) if error.is_unknown() => {
                let recheck = self.resolver.settings.valid.unwrap_or(NEGATIVE_RECHECK);
                (Update::Servers(Vec::new()), now + recheck)
            }
            Err(error) => (Update::Failed(error), now + self.timeout),
        };
        self.due = Some(due.max(now + SHORTEST));
        update
    }

    async fn ask(&self) -> Result<(Vec<FoundService>, Instant), ResolveError> {
        if !self.service.is_empty() {
            return self
                .resolver
                .services(&self.service, &self.host, self.timeout)
                .await;
        }
        let located = within(self.timeout, self.resolver.locate(Key::host(&self.host))).await?;
        // In the order of the answer, so that nothing seems to change when nothing does.
        let located = Located {
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
            log.plain(
                Level::Error,
                format_args!("no resolver defined to resolve {host}"),
            );
        } else if service.is_empty() {
            log.plain(
                Level::Error,
                format_args!("{host} could not be resolved {error}"),
            );
        } else {
            log.plain(
                Level::Error,
                format_args!("service {service} of {host} could not be resolved {error}"),
            );
        }
    }
}
