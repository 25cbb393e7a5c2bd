//! The directives of an `upstream` block that mean the same in http and in stream: servers and
//! balancing methods.
//!
//! Each engine has its own rows; their setters are here. A block is read into a [`GroupDraft`], which
//! becomes the settings of a `net::upstream::UpstreamGroup` at its end, because servers and method can come
//! in any order.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bstr::{BStr, BString, ByteSlice};
use conf::{
    AddressHost, BlockConfs, Contexts, Diagnostic, DirectiveLine, HostPort, PathUse, TableSet,
    dispatch, parse,
};
use net::resolver::Resolver;
use net::upstream::{
    AnyChooser, BalanceMethod, ConsistentHash, GroupOrigin, GroupReference, HashMethod,
    KeepaliveSettings, LeastTime, MAX_SERVER_ID, NameToResolve, PendingChooser, QueueSettings,
    RandomMethod, RandomTwo, ServerState, TimeMetric, UpstreamServer,
};
use net::upstream::{GroupSettings, StickySettings, lookup_configured};

use super::upstream_state;

/// The default port of a server.
pub(crate) const DEFAULT_PORT: u16 = 80;

/// The minimum size of a zone: eight pages of 4 KB, as in nginx.
const SMALLEST_ZONE: u64 = 8 * 4096;

/// The error for a first word that is not an address, with a guess at what was meant.
pub(crate) fn invalid_address(line: &DirectiveLine, message: String) -> Diagnostic {
    let text = line.text(0);
    let error = line.error_at(0, message);
    if text.starts_with(b"/") {
        return error.note(format!("write a socket as unix:{text}"));
    }
    match text.find("://") {
        Some(end) => error.note(format!("without a scheme: {}", text[end + 3..].as_bstr())),
        None => error,
    }
}

/// The error for an address without a port, of a protocol that has no default one. Only the name of an
/// `upstream` block needs none, so one may have been misspelt.
pub(crate) fn missing_port(
    reference: &GroupReference,
    line: &DirectiveLine,
    text: &BStr,
) -> Diagnostic {
    let error = line.error_at(0, format!("no port in upstream \"{text}\""));
    match &reference.near {
        Some(near) => error.note(upstream_note(near)),
        None => error,
    }
}

fn upstream_note(near: &str) -> String {
    format!("did you mean the upstream \"{near}\"?")
}

/// Warns about a host name that cannot be resolved now, and suggests the `upstream` block that may
/// have been meant.
pub(crate) fn warn_unresolved(reference: &GroupReference, line: &mut DirectiveLine) {
    let Some(warning) = &reference.warning else {
        return;
    };
    let mut warning = line.error_at(0, warning);
    warning.severity = conf::Severity::Warn;
    if let Some(near) = &reference.near {
        warning = warning.note(upstream_note(near));
    }
    line.level.report(warning);
}

/// A block while it is being read.
#[derive(Clone, Default)]
pub(crate) struct GroupDraft {
    /// `server`.
    pub(crate) servers: Vec<UpstreamServer>,
    /// The balancing method, once a directive has named one.
    pub(crate) balance: Option<Arc<dyn BalanceMethod>>,
    /// `keepalive` and its kin.
    pub(crate) keepalive: KeepaliveDraft,
    /// `queue`.
    pub(crate) queue: Option<QueueSettings>,
    /// `sticky`.
    pub(crate) sticky: Option<StickySettings>,
    /// `zone`.
    pub(crate) zone: BString,
    /// `state`: where the servers are kept, which are in `servers` already.
    pub(crate) state_file: Option<PathBuf>,
    /// `resolver`.
    pub(crate) resolver: Option<Arc<Resolver>>,
    /// `resolver_timeout`; zero if not set.
    pub(crate) resolver_timeout: Duration,
}

/// `keepalive`, `keepalive_requests`, `keepalive_time`, `keepalive_timeout`.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeepaliveDraft {
    /// Idle connections that each loop keeps; 0: none are kept.
    pub(crate) connections: usize,
    /// Only the location that opened a connection uses it again.
    pub(crate) local: bool,
    pub(crate) requests: i64,
    pub(crate) time: Duration,
    pub(crate) timeout: Duration,
}

impl KeepaliveDraft {
    /// The group's settings; `None` if connections are not kept.
    fn to_keepalive(&self) -> Option<KeepaliveSettings> {
        (self.connections > 0).then_some(KeepaliveSettings {
            connections: self.connections,
            local: self.local,
            requests: u64::try_from(self.requests).unwrap_or(0),
            time: self.time,
            timeout: self.timeout,
        })
    }
}

impl GroupDraft {
    /// The settings of the group, for the line that opened the block. A group needs servers, unless
    /// another party, such as a Lua script, chooses them (`chosen`).
    fn into_settings(
        self,
        line: &DirectiveLine,
        chosen: bool,
    ) -> Result<GroupSettings, Diagnostic> {
        // Counts lines rather than servers read: refused lines have been reported, and a second
        // error about an empty group would only obscure the first.
        let has_lines = line
            .node
            .block
            .nodes()
            .iter()
            .any(|node| node.name.is("server"));
        if has_lines && self.state_file.is_some() {
            return Err(line.error_after_block(
                "\"server\" and \"state\" cannot both be inside upstream: the file has the servers",
            ));
        }
        // With a file the group may be empty until a server is added.
        if !has_lines && !chosen && self.state_file.is_none() {
            return Err(line.error_after_block("no servers are inside upstream"));
        }
        let name = line.text(0);
        // With only backups there is nothing they could stand in for. nginx's message.
        if !self.servers.is_empty() && self.servers.iter().all(|server| server.backup) {
            return Err(line.error(format!("no servers in upstream \"{name}\"")));
        }
        let keepalive = self.keepalive.to_keepalive();
        let mut settings = GroupSettings::new(name, GroupOrigin::Block);
        settings.place = line.sources().place(line.node.span).unwrap_or_default();
        // Thousands of servers would keep room for as many again.
        let mut servers = self.servers;
        servers.shrink_to_fit();
        settings.servers = Arc::new(servers);
        settings.balance = self.balance;
        settings.keepalive = keepalive;
        settings.queue = self.queue;
        settings.zone = self.zone;
        settings.state_file = self.state_file;
        settings.sticky = self.sticky;
        settings.resolver = self.resolver;
        settings.resolver_timeout =
            Some(self.resolver_timeout).filter(|timeout| !timeout.is_zero());
        Ok(settings)
    }
}

/// Reads an `upstream` block of the engine that serves `R`, with its rows.
pub(crate) fn read_block<R: 'static>(
    line: &mut DirectiveLine,
    rows: TableSet,
    context: Contexts,
) -> Result<GroupSettings, Diagnostic> {
    // The block's own struct, apart from those of the surrounding levels.
    let mut confs = BlockConfs::new(vec![rows]);
    dispatch(
        line.node.block.nodes(),
        &mut confs,
        None,
        &mut line.level.inner_block(context),
    );
    let draft = confs
        .get_mut::<GroupDraft>()
        .map(std::mem::take)
        .unwrap_or_default();
    // A module's directive in the block, if any, left its chooser here.
    let chooser = line.shared::<PendingChooser<R>>().0.take();
    let mut settings = draft.into_settings(line, chooser.is_some())?;
    settings.chooser = chooser.map(AnyChooser::new);
    Ok(settings)
}

/// Reads `state file`: the servers are in the file, where the API keeps them.
pub(crate) fn read_state(
    draft: &mut GroupDraft,
    line: &mut DirectiveLine,
) -> Result<(), Diagnostic> {
    let path = line.prefix_path(PathUse::Opened, line.arg(0));
    // The worker replaces the file, for which it needs the folder.
    if let Some(folder) = path.parent() {
        line.level.build.in_prefix(PathUse::Write, folder);
    }
    // Also for a file that cannot be read: that the group has no servers then is no second error.
    draft.state_file = Some(path.clone());
    // The file may have changed, whatever the rest of the configuration did.
    line.must_read_all();
    match line.files().read(&path) {
        // Nothing was added yet.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => {
            let errno = base::text::errno_text(&error);
            return Err(line.error_at(0, format!("cannot read \"{}\": {errno}", path.display())));
        }
        Ok(content) => {
            draft.servers = upstream_state::read_servers(&content)
                .map_err(|wrong| line.error_at(0, format!("{wrong} of {}", path.display())))?;
        }
    }
    Ok(())
}

/// Reads `server address [parameters]`.
pub(crate) fn read_server(
    draft: &mut GroupDraft,
    line: &mut DirectiveLine,
) -> Result<(), Diagnostic> {
    let mut server = UpstreamServer::new(line.text(0), Vec::new());
    let mut resolve = ResolveParameters {
        wanted: false,
        service: BString::default(),
    };
    for i in 1..line.args().len() {
        read_parameter(draft, &mut server, &mut resolve, line, i)?;
    }
    let text = line.text(0);
    // SRV records have a lifetime, so reading them once would be wrong.
    if !resolve.service.is_empty() && !resolve.wanted {
        return Err(line.error_at(
            0,
            format!("service upstream \"{text}\" requires \"resolve\" parameter"),
        ));
    }
    let address = HostPort::parse_peer(text)
        .map_err(|why| invalid_address(line, format!("{why} in upstream \"{text}\"")))?;
    // SRV records bring their own ports.
    if !resolve.service.is_empty() && address.port.is_some() {
        return Err(line.error_at(0, format!("service upstream \"{text}\" may not have port")));
    }
    match &address.host {
        AddressHost::Name(host) if resolve.wanted => {
            let port = address.port.unwrap_or(DEFAULT_PORT);
            server.resolve = Some(Box::new(NameToResolve {
                host: host.clone(),
                port,
                service: resolve.service,
                once: false,
            }));
        }
        _ if !resolve.service.is_empty() => {
            return Err(line.error_at(
                0,
                format!("service upstream \"{text}\" requires domain name"),
            ));
        }
        // Resolved once, now. A name that fails is resolved again later instead of keeping the
        // server from starting.
        _ => {
            let found = lookup_configured(&address, DEFAULT_PORT);
            (server.addresses, server.resolve) = (found.addresses, found.later);
            if let Some(warning) = found.warning {
                line.warn_at(0, warning);
            }
        }
    }
    draft.servers.push(server);
    Ok(())
}

/// The parameters `resolve` and `service=`, which only make sense together with the address.
struct ResolveParameters {
    wanted: bool,
    service: BString,
}

/// Reads one parameter of a `server` line.
fn read_parameter(
    draft: &GroupDraft,
    server: &mut UpstreamServer,
    resolve: &mut ResolveParameters,
    line: &DirectiveLine,
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
        check_supported(draft, line, i)?;
        server.slow_start = parse::seconds(time).ok_or_else(invalid)?;
    } else if let Some(route) = value("route") {
        match route.len() {
            // An empty route could not be told from none.
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
                check_supported(draft, line, i)?;
                server.backup = true;
            }
            // Kept in the group, so that a hash maps other keys as before.
            b"down" => server.state = ServerState::Down,
            b"drain" => server.state = ServerState::Drain,
            b"resolve" => resolve.wanted = true,
            _ => return Err(invalid()),
        }
    }
    Ok(())
}

/// Refuses `backup` and `slow_start` with methods that do not support them. Only a method named
/// before the line is known; nginx has the same restriction.
fn check_supported(draft: &GroupDraft, line: &DirectiveLine, i: usize) -> Result<(), Diagnostic> {
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

/// A number that fits.
fn number(text: &[u8]) -> Option<u32> {
    parse::number(text).and_then(|number| u32::try_from(number).ok())
}

/// Sets the method. A second one replaces the first, with nginx's warning.
pub(crate) fn set_method(
    draft: &mut GroupDraft,
    line: &mut DirectiveLine,
    method: impl BalanceMethod + 'static,
) {
    if draft.balance.is_some() {
        line.warn("load balancing method redefined");
    }
    draft.balance = Some(Arc::new(method));
}

/// Reads `hash key [consistent]`.
pub(crate) fn read_hash(
    draft: &mut GroupDraft,
    line: &mut DirectiveLine,
) -> Result<(), Diagnostic> {
    let key = line.expression(0)?;
    match line.get(1) {
        None => set_method(draft, line, HashMethod { key }),
        Some(word) if word.is("consistent") => set_method(draft, line, ConsistentHash { key }),
        Some(_) => return Err(line.invalid_parameter(1)),
    }
    Ok(())
}

/// Reads `random [two [least_conn | least_time=…]]`. `times` are the words of `least_time` in this
/// engine.
pub(crate) fn read_random(
    draft: &mut GroupDraft,
    line: &mut DirectiveLine,
    times: &[(&str, TimeMetric)],
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
    set_method(draft, line, RandomMethod { two });
    Ok(())
}

/// Reads `least_time metric [inflight]`.
pub(crate) fn read_least_time(
    draft: &mut GroupDraft,
    line: &mut DirectiveLine,
    times: &[(&str, TimeMetric)],
) -> Result<(), Diagnostic> {
    let metric = metric(line.text(0), times).ok_or_else(|| line.invalid_value(0))?;
    let inflight = match line.get(1) {
        None => false,
        Some(word) if word.is("inflight") => true,
        Some(_) => return Err(line.invalid_parameter(1)),
    };
    set_method(draft, line, LeastTime { metric, inflight });
    Ok(())
}

/// The metric that a word stands for.
fn metric(text: &[u8], times: &[(&str, TimeMetric)]) -> Option<TimeMetric> {
    times
        .iter()
        .find(|(word, _)| text == word.as_bytes())
        .map(|&(_, metric)| metric)
}

/// Reads `zone name [size]`. It is a name and no more: all loops are threads of one process, so every group is shared
/// already.
pub(crate) fn read_zone(draft: &mut GroupDraft, line: &DirectiveLine) -> Result<(), Diagnostic> {
    check_zone(line)?;
    draft.zone = line.text(0).to_owned();
    Ok(())
}

fn check_zone(line: &DirectiveLine) -> Result<(), Diagnostic> {
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
