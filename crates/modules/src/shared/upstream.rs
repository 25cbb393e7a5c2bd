//! What stands in an `upstream` block and means the same in http and in stream: servers and the ways to choose one.
//!
//! The rows are each engine's own; their setters are here. A block is read into a [`Draft`], which becomes the settings
//! of a `net::upstream::Group` at its end.

use std::sync::Arc;
use std::time::Duration;

use bstr::{BString, ByteSlice};
use conf::{Address, Diagnostic, Host, Line, parse};
use net::resolver::Resolver;
use net::upstream::{
    Balance, Keepalive, MAX_SERVER_ID, Metric, Origin, Queue, RandomTwo, Reference, ResolvedAt,
    Server, ServerState,
};
use net::upstream::{Settings, Sticky, lookup};

/// The port of a server that names none.
const DEFAULT_PORT: u16 = 80;

/// The least size of a zone: eight pages.
const SMALLEST_ZONE: u64 = 8 * 4096;

/// The error of a first word that is no address, with what it was perhaps meant to be.
pub(crate) fn no_address(line: &Line, message: String) -> Diagnostic {
    let text = line.text(0);
    let error = line.error_at(0, message);
    if text.starts_with(b"/") {
        return error.note(format!("a socket is written unix:{text}"));
    }
    match text.find("://") {
        Some(end) => error.note(format!("without a scheme: {}", text[end + 3..].as_bstr())),
        None => error,
    }
}

/// Warns of a name that is not known now, and of the block that was perhaps meant.
pub(crate) fn warn_of(reference: &Reference, line: &mut Line) {
    let Some(warning) = &reference.warning else {
        return;
    };
    let mut warning = line.error_at(0, warning);
    warning.severity = conf::Severity::Warn;
    if let Some(near) = &reference.near {
        warning = warning.note(format!("did you mean the upstream \"{near}\"?"));
    }
    line.level.report(warning);
}

/// A block as far as it is read.
#[derive(Clone, Default)]
pub(crate) struct Draft {
    /// `server`.
    pub(crate) servers: Vec<Server>,
    /// The method, once a directive names one.
    pub(crate) balance: Option<Balance>,
    /// What `keepalive` and its kin say.
    pub(crate) keepalive: KeepaliveDraft,
    /// `queue`.
    pub(crate) queue: Option<Queue>,
    /// `sticky`.
    pub(crate) sticky: Option<Sticky>,
    /// `resolver`.
    pub(crate) resolver: Option<Arc<Resolver>>,
    /// `resolver_timeout`; zero while nothing says it.
    pub(crate) resolver_timeout: Duration,
}

/// `keepalive`, `keepalive_requests`, `keepalive_time`, `keepalive_timeout`.
#[derive(Clone, Debug)]
pub(crate) struct KeepaliveDraft {
    /// `keepalive`: how many, and whether only where they were used before.
    pub(crate) connections: Option<(usize, bool)>,
    pub(crate) requests: i64,
    pub(crate) time: Duration,
    pub(crate) timeout: Duration,
}

impl Default for KeepaliveDraft {
    fn default() -> Self {
        let Keepalive {
            requests,
            time,
            timeout,
            ..
        } = Keepalive::default();
        KeepaliveDraft {
            connections: None,
            requests: i64::try_from(requests).unwrap_or(i64::MAX),
            time,
            timeout,
        }
    }
}

impl KeepaliveDraft {
    fn finished(&self) -> Option<Keepalive> {
        let default = Keepalive::default();
        let (connections, local) = self
            .connections
            .unwrap_or((default.connections, default.local));
        let requests = u64::try_from(self.requests).unwrap_or(0);
        let Self { time, timeout, .. } = *self;
        (connections > 0).then_some(Keepalive {
            connections,
            local,
            requests,
            time,
            timeout,
        })
    }
}

impl Draft {
    /// The settings of the group, for the directive that opened the block. A group needs servers, unless they are `chosen`
    /// by another party.
    pub(crate) fn finished(self, line: &Line, chosen: bool) -> Result<Settings, Diagnostic> {
        // Lines that were refused have said why; the group exists for those who refer to it.
        let has_lines = line
            .node
            .block
            .nodes()
            .iter()
            .any(|node| node.name.is("server"));
        if !has_lines && !chosen {
            return Err(line.error_after_block("no servers are inside upstream"));
        }
        let name = line.text(0);
        if !self.servers.is_empty() && self.servers.iter().all(|server| server.backup) {
            return Err(line.error(format!("no servers in upstream \"{name}\"")));
        }
        let keepalive = self.keepalive.finished();
        let mut settings = Settings::new(name, Origin::Block);
        settings.place = line.sources().place(line.node.span).unwrap_or_default();
        settings.servers = self.servers;
        settings.balance = self.balance.unwrap_or(Balance::RoundRobin);
        settings.keepalive = keepalive;
        settings.queue = self.queue;
        settings.sticky = self.sticky;
        settings.resolver = self.resolver;
        settings.resolver_timeout =
            Some(self.resolver_timeout).filter(|timeout| !timeout.is_zero());
        Ok(settings)
    }
}

/// `server address [parameters]`.
pub(crate) fn server(draft: &mut Draft, line: &mut Line) -> Result<(), Diagnostic> {
    let mut server = Server::new(line.text(0), Vec::new());
    let mut resolve = Resolve {
        wanted: false,
        service: BString::default(),
    };
    for i in 1..line.args().len() {
        parameter(draft, &mut server, &mut resolve, line, i)?;
    }
    let text = line.text(0);
    if !resolve.service.is_empty() && !resolve.wanted {
        return Err(line.error_at(
            0,
            format!("service upstream \"{text}\" requires \"resolve\" parameter"),
        ));
    }
    let address = Address::peer(text)
        .map_err(|why| no_address(line, format!("{why} in upstream \"{text}\"")))?;
    if !resolve.service.is_empty() && address.port.is_some() {
        return Err(line.error_at(0, format!("service upstream \"{text}\" may not have port")));
    }
    match &address.host {
        Host::Name(host) if resolve.wanted => {
            let port = address.port.unwrap_or(DEFAULT_PORT);
            server.resolve = Some(ResolvedAt {
                host: host.clone(),
                port,
                service: resolve.service,
                once: false,
            });
        }
        _ if !resolve.service.is_empty() => {
            return Err(line.error_at(
                0,
                format!("service upstream \"{text}\" requires domain name"),
            ));
        }
        _ => {
            let found = lookup(&address, DEFAULT_PORT);
            (server.addresses, server.resolve) = (found.addresses, found.later);
            if let Some(warning) = found.warning {
                line.warn_at(0, warning);
            }
        }
    }
    draft.servers.push(server);
    Ok(())
}

struct Resolve {
    wanted: bool,
    service: BString,
}

fn parameter(
    draft: &Draft,
    server: &mut Server,
    resolve: &mut Resolve,
    line: &Line,
    i: usize,
) -> Result<(), Diagnostic> {
    let text = line.text(i);
    let value = |name| parse::parameter(text, name);
    let invalid = || line.invalid_parameter(i);
    if let Some(weight) = value("weight") {
        server.weight = number(weight)
            .filter(|&weight| weight > 0)
            .ok_or_else(invalid)?;
    } else if let Some(most) = value("max_conns") {
        server.max_conns = number(most).ok_or_else(invalid)?;
    } else if let Some(most) = value("max_fails") {
        server.max_fails = number(most).ok_or_else(invalid)?;
    } else if let Some(time) = value("fail_timeout") {
        server.fail_timeout = parse::seconds(time).ok_or_else(invalid)?;
    } else if let Some(time) = value("slow_start") {
        supported(draft, line, i)?;
        server.slow_start = parse::seconds(time).ok_or_else(invalid)?;
    } else if let Some(route) = value("route") {
        match route.len() {
            0 => return Err(line.error_at(i, "route is empty")),
            1..=MAX_SERVER_ID => server.route = route.into(),
            _ => return Err(line.error_at(i, format!("route is longer than {MAX_SERVER_ID}"))),
        }
    } else if let Some(service) = value("service") {
        if service.is_empty() {
            return Err(line.error_at(i, "service is empty"));
        }
        resolve.service = service.into();
    } else {
        match text.as_bytes() {
            b"backup" => {
                supported(draft, line, i)?;
                server.backup = true;
            }
            b"down" => server.state = ServerState::Down,
            b"drain" => server.state = ServerState::Drain,
            b"resolve" => resolve.wanted = true,
            _ => return Err(invalid()),
        }
    }
    Ok(())
}

/// `backup` and `slow_start` need a method with a round.
fn supported(draft: &Draft, line: &Line, i: usize) -> Result<(), Diagnostic> {
    match &draft.balance {
        Some(method) if !method.takes_backup() => {
            let text = line.text(i);
            Err(line.error_at(
                i,
                format!("balancing method does not support parameter \"{text}\""),
            ))
        }
        _ => Ok(()),
    }
}

fn number(text: &[u8]) -> Option<u32> {
    parse::number(text).and_then(|number| u32::try_from(number).ok())
}

/// Sets the method; a second one takes the place of the first.
pub(crate) fn method(draft: &mut Draft, line: &mut Line, balance: Balance) {
    if draft.balance.is_some() {
        line.warn("load balancing method redefined");
    }
    draft.balance = Some(balance);
}

/// `hash key [consistent]`.
pub(crate) fn hash(draft: &mut Draft, line: &mut Line) -> Result<(), Diagnostic> {
    let key = line.expression(0)?;
    let consistent = match line.get(1) {
        None => false,
        Some(word) if word.is("consistent") => true,
        Some(_) => return Err(line.invalid_parameter(1)),
    };
    method(draft, line, Balance::Hash { key, consistent });
    Ok(())
}

/// `random [two [least_conn | least_time=…]]`. `times` are the words of `least_time` here and what they mean.
pub(crate) fn random(
    draft: &mut Draft,
    line: &mut Line,
    times: &[(&str, Metric)],
) -> Result<(), Diagnostic> {
    let two = match (line.get(0), line.get(1)) {
        (None, _) => None,
        (Some(word), _) if !word.is("two") => return Err(line.invalid_parameter(0)),
        (Some(_), None) => Some(RandomTwo::LeastConn),
        (Some(_), Some(word)) if word.is("least_conn") => Some(RandomTwo::LeastConn),
        (Some(_), Some(word)) => {
            let metric =
                parse::parameter(&word.text, "least_time").and_then(|value| metric(value, times));
            Some(RandomTwo::LeastTime(
                metric.ok_or_else(|| line.invalid_parameter(1))?,
            ))
        }
    };
    method(draft, line, Balance::Random { two });
    Ok(())
}

/// `least_time metric [inflight]`.
pub(crate) fn least_time(
    draft: &mut Draft,
    line: &mut Line,
    times: &[(&str, Metric)],
) -> Result<(), Diagnostic> {
    let metric = metric(line.text(0), times).ok_or_else(|| line.invalid_value(0))?;
    let inflight = match line.get(1) {
        None => false,
        Some(word) if word.is("inflight") => true,
        Some(_) => return Err(line.invalid_parameter(1)),
    };
    method(draft, line, Balance::LeastTime { metric, inflight });
    Ok(())
}

fn metric(text: &[u8], times: &[(&str, Metric)]) -> Option<Metric> {
    times
        .iter()
        .find(|(word, _)| text == word.as_bytes())
        .map(|&(_, metric)| metric)
}

/// `zone name [size]`: the name and the size are checked, and that is all: every group is shared by all loops here.
pub(crate) fn zone(line: &Line) -> Result<(), Diagnostic> {
    let name = line.text(0);
    if name.is_empty() {
        return Err(line.error_at(0, format!("invalid zone name \"{name}\"")));
    }
    let Some(word) = line.get(1) else {
        return Ok(());
    };
    match parse::size(&word.text) {
        None => Err(line.error_at(1, format!("invalid zone size \"{}\"", word.text))),
        Some(size) if size < SMALLEST_ZONE => {
            Err(line.error_at(1, format!("zone \"{name}\" is too small")))
        }
        Some(_) => Ok(()),
    }
}
