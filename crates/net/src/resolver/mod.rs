//! Resolves names to addresses while the server runs, through the servers of the `resolver` directive.
//!
//! A [`Resolver`] belongs to one such directive and is shared by all loops. It caches answers for their TTL or
//! `valid=`, and negative answers for the time in the zone's SOA record. A name is asked for once, however many
//! requests wait for it, and a request that gives up does not disturb the others.
//!
//! It does not read `/etc/hosts` and appends no search domain, and neither does nginx. Where no `resolver` is
//! configured but an upstream's name has to be resolved, the system's settings are used, `/etc/hosts` among them.

mod case_randomization;
mod counters;
pub mod directives;
mod dns_client;
mod error;
mod message;
mod settings;
mod watch;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use base::lru::Lru;
use base::sync::{Mutex, MutexGuard};
use bstr::{BStr, BString, ByteSlice};
use conf::{Diagnostic, DirectiveLine};
use host::error_log::{LogLevel, Logger, MainLog};
use rt::sync::remote_oneshot::{RemoteReceiver, RemoteSender, channel};

use case_randomization::ServerCaseSupport;
pub use counters::{REQUEST_KINDS, RESPONSE_KINDS, ResolverCounters, resolver_zones};
pub use directives::ResolverConf;
pub use error::ResolveError;
use message::{DnsAnswer, RecordType, SrvRecord};
pub use settings::ResolverSettings;
pub use watch::{LookupTurns, NameUpdate, NameWatch};

/// How many names are cached. Clients can make names up where `proxy_pass` has variables.
const MAX_NAMES: usize = 4096;

/// How many names may be asked for at the same time; beyond that, new ones fail at once.
const MAX_ASKED: usize = 1024;

/// The longest chain of aliases (CNAME) that is followed: two names can be aliases of each other.
const MAX_ALIASES: usize = 50;

/// The longest time that a negative answer is cached. nginx does not cache them at all, so operators expect a new
/// name to work soon.
const MAX_NEGATIVE: Duration = Duration::from_secs(10);

/// After how long a name from the system's own list is looked at again. The list is read once, so it is the same
/// until a reload.
const HOSTS_HOLD: Duration = Duration::from_secs(3600);

/// After how long an upstream's name that does not exist is asked for again, unless `valid=` says.
const NEGATIVE_RECHECK: Duration = Duration::from_secs(10);

/// The resolver of one `resolver` directive, shared by all loops.
pub struct Resolver {
    settings: ResolverSettings,
    log: Logger,
    cache: Mutex<ResolverCache>,
    /// Whether each server keeps the case of names, which decides how it is asked.
    cases: ServerCaseSupport,
    /// Counts questions: the servers take turns.
    asked: AtomicUsize,
    /// Counts answers from the cache: the addresses of a name take turns.
    rotation: AtomicUsize,
    /// The counters of its `status_zone`.
    counters: Option<Arc<ResolverCounters>>,
}

/// A server that a SRV record names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundService {
    /// Its address and port.
    pub address: SocketAddr,
    /// Its name in the record; empty when no SRV record was asked for.
    pub name: BString,
    /// Its priority; the lowest number is used first.
    pub priority: u16,
    /// Its share among those of the same priority; at least 1.
    pub weight: u16,
}

/// The cached answers, and the requests that wait for a question under way.
struct ResolverCache {
    known: Lru<LookupKey, CachedLookup>,
    asking: HashMap<LookupKey, Vec<RemoteSender<CachedLookup>>>,
}

/// A name in lower case, and what is wanted of it. Names that differ only in case are the same (RFC 4343).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct LookupKey {
    name: BString,
    want: LookupKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum LookupKind {
    Addresses,
    Services,
}

/// The answer for a name, and until when it may be used.
#[derive(Clone)]
struct CachedLookup {
    outcome: Result<Arc<ResolvedRecords>, ResolveError>,
    until: Instant,
    /// It comes from the cache, not from a question that was just answered.
    remembered: bool,
}

enum ResolvedRecords {
    /// IPv4 first.
    Addresses(Vec<IpAddr>),
    Services(Vec<SrvRecord>),
    /// The name is an alias of this one.
    Alias(BString),
}

/// The end of a chain of aliases.
struct ResolvedName {
    found: Arc<ResolvedRecords>,
    until: Instant,
    remembered: bool,
}

impl Resolver {
    /// A resolver with an empty cache. Errors of the DNS servers go to `log`.
    pub fn new(settings: ResolverSettings, log: Logger) -> Arc<Resolver> {
        let zone = settings.status_zone.as_deref();
        Arc::new(Resolver {
            counters: zone.map(ResolverCounters::of_zone),
            cases: ServerCaseSupport::new(settings.servers.len()),
            settings,
            log,
            cache: Mutex::new(ResolverCache {
                known: Lru::new(MAX_NAMES),
                asking: HashMap::new(),
            }),
            asked: AtomicUsize::new(0),
            rotation: AtomicUsize::new(0),
        })
    }

    /// The resolver of a `resolver` line; it logs to the main error log.
    pub fn from_line(line: &mut DirectiveLine) -> Result<Arc<Resolver>, Diagnostic> {
        let settings = ResolverSettings::from_line(line)?;
        // A reload forgets what was looked up.
        line.must_read_all();
        let log = line.lasting::<MainLog>().0.clone();
        Ok(Resolver::new(settings, log))
    }

    /// Whether there are neither servers nor system names: only literal addresses can be resolved.
    pub fn is_empty(&self) -> bool {
        self.settings.servers.is_empty() && self.settings.hosts.is_empty()
    }

    /// The addresses of a host, IPv4 first; at least one.
    ///
    /// From the cache, they start with another one each time, so that connections spread. `timeout` is
    /// `resolver_timeout`. Must be called on a loop.
    pub async fn lookup_host(
        self: &Arc<Self>,
        name: &[u8],
        timeout: Duration,
    ) -> Result<Vec<IpAddr>, ResolveError> {
        if let Some(ip) = conf::address::ip(name) {
            return Ok(vec![ip]);
        }
        let located = within(timeout, self.resolve_alias_chain(LookupKey::host(name))).await?;
        Ok(self.addresses(&located))
    }

    /// The servers of a service, sorted by priority; at least one.
    ///
    /// A service name without a dot stands for one over TCP, as in nginx: `http` at `example.com` is
    /// `_http._tcp.example.com`.
    pub async fn lookup_service(
        self: &Arc<Self>,
        service: &[u8],
        host: &[u8],
        timeout: Duration,
    ) -> Result<Vec<FoundService>, ResolveError> {
        Ok(self.services(service, host, timeout).await?.0)
    }

    /// As [`Resolver::lookup_service`], with the time until which the answer holds.
    async fn services(
        self: &Arc<Self>,
        service: &[u8],
        host: &[u8],
        timeout: Duration,
    ) -> Result<(Vec<FoundService>, Instant), ResolveError> {
        let located = within(
            timeout,
            self.resolve_alias_chain(LookupKey::service(service, host)),
        )
        .await?;
        let ResolvedRecords::Services(targets) = &*located.found else {
            return Err(ResolveError::UNKNOWN);
        };
        // All questions are sent before the first answer is waited for: the lookups overlap.
        let hosts: Vec<_> = targets
            .iter()
            .map(|target| self.start_lookup(LookupKey::host(&target.target)))
            .collect();
        let mut until = located.until;
        let mut services = Vec::new();
        let mut errors = Vec::new();
        for (target, begun) in targets.iter().zip(hosts) {
            match within(
                timeout,
                self.follow_aliases(LookupKey::host(&target.target), begun),
            )
            .await
            {
                // The whole answer is valid only as long as its shortest-lived part.
                Ok(host) => {
                    until = until.min(host.until);
                    services.extend(self.addresses(&host).into_iter().map(|ip| target.at(ip)));
                }
                Err(error) => {
                    self.log_service_host(target, error, service, host);
                    errors.push(error);
                }
            }
        }
        // "No such name" is preferred to a passing error: it lets the caller drop the addresses it has.
        if services.is_empty() {
            let unknown = errors.iter().find(|error| error.is_unknown());
            return Err(*unknown.or(errors.first()).unwrap_or(&ResolveError::UNKNOWN));
        }
        Ok((services, until))
    }

    fn log_service_host(
        &self,
        target: &SrvRecord,
        error: ResolveError,
        service: &[u8],
        host: &[u8],
    ) {
        let (service, host) = (service.as_bstr(), host.as_bstr());
        self.log.log_plain(
            LogLevel::Error,
            format_args!(
                "{} could not be resolved {error} while resolving service {service} of {host}",
                target.target
            ),
        );
    }

    /// Resolves a name and follows its aliases to the end.
    async fn resolve_alias_chain(
        self: &Arc<Self>,
        key: LookupKey,
    ) -> Result<ResolvedName, ResolveError> {
        let begun = self.start_lookup(key.clone());
        self.follow_aliases(key, begun).await
    }

    async fn follow_aliases(
        self: &Arc<Self>,
        mut key: LookupKey,
        begun: LookupStart,
    ) -> Result<ResolvedName, ResolveError> {
        let mut known = begun.wait().await?;
        let mut until = known.until;
        // A server usually sends the whole chain in one answer; the rest of the chain is asked for here.
        for _ in 0..=MAX_ALIASES {
            let found = known.outcome?;
            until = until.min(known.until);
            let ResolvedRecords::Alias(name) = &*found else {
                return Ok(ResolvedName {
                    found,
                    until,
                    remembered: known.remembered,
                });
            };
            key.name.clone_from(name);
            known = self.start_lookup(key.clone()).wait().await?;
        }
        Err(ResolveError::UNKNOWN)
    }

    fn addresses(&self, name: &ResolvedName) -> Vec<IpAddr> {
        let ResolvedRecords::Addresses(addresses) = &*name.found else {
            return Vec::new();
        };
        let mut addresses = addresses.clone();
        if name.remembered {
            let turn = self.rotation.fetch_add(1, Ordering::Relaxed) % addresses.len().max(1);
            addresses.rotate_left(turn);
        }
        addresses
    }

    /// The cached answer, or a place among the requests that wait for one. The first of them starts the question.
    fn start_lookup(self: &Arc<Self>, key: LookupKey) -> LookupStart {
        if let Some(known) = self.host(&key) {
            return LookupStart::Known(known);
        }
        if self.settings.servers.is_empty() {
            return LookupStart::Refused(ResolveError::NoResolver);
        }
        let mut memory = self.lock_cache();
        if let Some(known) = memory.known.get(&key) {
            if known.until > rt::now() {
                return LookupStart::Known(CachedLookup {
                    remembered: true,
                    ..known.clone()
                });
            }
            memory.known.remove(&key);
        }
        let (sender, receiver) = channel();
        // Requests that have gone are removed here, so that a slow name does not collect them.
        if let Some(waiting) = memory.asking.get_mut(&key) {
            waiting.retain(|waiter| !waiter.is_closed());
            waiting.push(sender);
        } else if memory.asking.len() >= MAX_ASKED {
            return LookupStart::Refused(ResolveError::FAILURE);
        } else {
            memory.asking.insert(key.clone(), vec![sender]);
            // Spawning is done without the lock: all loops need it for every lookup.
            drop(memory);
            rt::spawn_named("resolver", run_lookup(Arc::clone(self), key));
        }
        LookupStart::Asked(receiver)
    }

    /// The system's own entry for a name, which needs no question.
    fn host(&self, key: &LookupKey) -> Option<CachedLookup> {
        let found = match key.want {
            LookupKind::Addresses => self.settings.hosts.get(&key.name)?,
            LookupKind::Services => return None,
        };
        Some(CachedLookup {
            outcome: Ok(Arc::new(ResolvedRecords::Addresses(found.clone()))),
            until: rt::now() + HOSTS_HOLD,
            remembered: true,
        })
    }

    fn lock_cache(&self) -> MutexGuard<'_, ResolverCache> {
        // No code panics while it holds this lock, except for lack of memory.
        self.cache.lock()
    }

    /// The server to ask first.
    fn first_server(&self) -> usize {
        self.asked.fetch_add(1, Ordering::Relaxed) % self.settings.servers.len()
    }

    /// Whether a request still waits for this name.
    fn is_wanted(&self, key: &LookupKey) -> bool {
        self.lock_cache()
            .asking
            .get(key)
            .is_some_and(|waiting| waiting.iter().any(|waiter| !waiter.is_closed()))
    }

    /// The record types to ask for. Both address types unless one is switched off (`ipv6=off`).
    fn kinds(&self, kind: LookupKind) -> &'static [RecordType] {
        match (kind, self.settings.ipv4, self.settings.ipv6) {
            (LookupKind::Services, ..) => &[RecordType::Srv],
            (LookupKind::Addresses, true, false) => &[RecordType::A],
            (LookupKind::Addresses, false, true) => &[RecordType::Aaaa],
            (LookupKind::Addresses, ..) => &[RecordType::A, RecordType::Aaaa],
        }
    }

    /// Combines the answers to all questions about a name.
    fn merge_answers(&self, answers: Vec<DnsAnswer>) -> CachedLookup {
        let ttl = answers.iter().map(|answer| answer.ttl).min().unwrap_or(0);
        let negative_ttl = answers
            .iter()
            .filter_map(|answer| answer.negative_ttl)
            .min()
            .unwrap_or(0);
        let outcome = outcome(answers).map(Arc::new);
        let lives = match outcome {
            Ok(_) => self
                .settings
                .valid
                .unwrap_or(Duration::from_secs(ttl.into())),
            Err(error) if error.is_unknown() => {
                Duration::from_secs(negative_ttl.into()).min(MAX_NEGATIVE)
            }
            // A server failure is not cached: it may have passed a moment later.
            Err(_) => Duration::ZERO,
        };
        CachedLookup {
            outcome,
            until: rt::now() + lives,
            remembered: false,
        }
    }

    /// Caches an answer and sends it to all requests that wait for it.
    fn publish_answer(&self, key: &LookupKey, known: CachedLookup) {
        let mut memory = self.lock_cache();
        // Both maps change under one lock: a request that comes in between would start the question again.
        let waiting = memory.asking.remove(key).unwrap_or_default();
        if known.until > rt::now() {
            memory.known.insert(key.clone(), known.clone());
        }
        drop(memory);
        for waiter in waiting {
            // An error means that this request has gone.
            let _ = waiter.send(known.clone());
        }
    }
}

/// The result of a look into the cache.
enum LookupStart {
    Known(CachedLookup),
    Asked(RemoteReceiver<CachedLookup>),
    Refused(ResolveError),
}

impl LookupStart {
    async fn wait(self) -> Result<CachedLookup, ResolveError> {
        match self {
            LookupStart::Known(known) => Ok(known),
            // The task that asks has ended without an answer: its loop ended, or it panicked.
            LookupStart::Asked(receiver) => receiver.await.map_err(|_| ResolveError::FAILURE),
            LookupStart::Refused(error) => Err(error),
        }
    }
}

impl LookupKey {
    fn host(name: &[u8]) -> LookupKey {
        // A trailing dot marks a name as absolute, which all names are here.
        let name = name.strip_suffix(b".").unwrap_or(name);
        LookupKey {
            name: name.to_ascii_lowercase().into(),
            want: LookupKind::Addresses,
        }
    }

    fn service(service: &[u8], host: &[u8]) -> LookupKey {
        let (service, host) = (
            service.as_bstr(),
            host.strip_suffix(b".").unwrap_or(host).as_bstr(),
        );
        let name = if service.contains(&b'.') {
            format!("{service}.{host}")
        } else {
            format!("_{service}._tcp.{host}")
        };
        LookupKey {
            name: name.to_ascii_lowercase().into(),
            want: LookupKind::Services,
        }
    }
}

impl SrvRecord {
    fn at(&self, ip: IpAddr) -> FoundService {
        FoundService {
            address: SocketAddr::new(ip, self.port),
            name: self.target.clone(),
            priority: self.priority,
            weight: self.weight,
        }
    }
}

/// Asks for a name, on the loop of the request that wanted it first.
async fn run_lookup(resolver: Arc<Resolver>, key: LookupKey) {
    let mut guard = LookupGuard {
        resolver: &resolver,
        key: &key,
        armed: true,
    };
    let name: &BStr = key.name.as_bstr();
    let counters = resolver.counters.as_deref();
    if let Some(counters) = counters {
        counters.count_request(match key.want {
            LookupKind::Addresses => 0,
            LookupKind::Services => 1,
        });
    }
    let known = match dns_client::query_servers(&resolver, name, resolver.kinds(key.want), || {
        resolver.is_wanted(&key)
    })
    .await
    {
        Ok(answers) => resolver.merge_answers(answers),
        Err(error) => CachedLookup {
            outcome: Err(error),
            until: rt::now(),
            remembered: false,
        },
    };
    if let Some(counters) = counters {
        counters.count_response(known.outcome.as_ref().err().copied());
    }
    // Before the answer is stored: from then on, the entry may belong to the next question.
    guard.armed = false;
    resolver.publish_answer(&key, known);
}

/// Removes the entry of a question whose task ends early, so that the next request for the name starts a new one
/// instead of waiting for ever.
struct LookupGuard<'a> {
    resolver: &'a Resolver,
    key: &'a LookupKey,
    /// The question has no answer yet. Later, an entry under this name may be the next question's.
    armed: bool,
}

impl Drop for LookupGuard<'_> {
    fn drop(&mut self) {
        if self.armed {
            // The waiters are dropped after the lock: dropping them wakes tasks.
            let waiting = self.resolver.lock_cache().asking.remove(self.key);
            drop(waiting);
        }
    }
}

/// Combines answers to addresses, services, an alias or an error. `answers` are in the order of
/// [`Resolver::kinds`].
fn outcome(answers: Vec<DnsAnswer>) -> Result<ResolvedRecords, ResolveError> {
    let codes = || {
        answers
            .iter()
            .map(|answer| answer.code)
            .filter(|&code| code != 0)
    };
    let addresses: Vec<IpAddr> = answers
        .iter()
        .flat_map(|answer| answer.addresses.iter().copied())
        .collect();
    // Some servers answer NXDOMAIN for AAAA although the name has A records: with addresses of one kind, that code
    // is ignored for the other.
    if let Some(code) = codes().find(|&code| addresses.is_empty() || code != 3) {
        return Err(ResolveError::Code(code));
    }
    if !addresses.is_empty() {
        return Ok(ResolvedRecords::Addresses(addresses));
    }
    // An alias holds for all record types, so the last answer speaks for all.
    let Some(last) = answers.into_iter().next_back() else {
        return Err(ResolveError::UNKNOWN);
    };
    if !last.services.is_empty() {
        return Ok(ResolvedRecords::Services(last.services));
    }
    last.alias
        .map(ResolvedRecords::Alias)
        .ok_or(ResolveError::UNKNOWN)
}

/// Limits a lookup to `timeout`; zero means no limit, as in nginx.
async fn within<T>(
    timeout: Duration,
    future: impl Future<Output = Result<T, ResolveError>>,
) -> Result<T, ResolveError> {
    if timeout.is_zero() {
        return future.await;
    }
    rt::timeout(timeout, future)
        .await
        .unwrap_or(Err(ResolveError::TimedOut))
}

#[cfg(test)]
mod tests;
