//! The request that another server would get: which one, and what is sent to it. Nothing is sent.

use bstr::{BStr, BString, ByteSlice};
use net::upstream::{GroupOrigin, PeerSelection, UpstreamGroup, UpstreamGroups};

use super::notes::{ExplainNotes, StepResult};
use super::places::ExplainedPlace;
use crate::cache::{self, CachedProtocol, ExplainedCache, ExplainedCacheUse};
use crate::handler::HandlerOutcome;
use crate::request::Request;
use crate::upstream::{
    ExchangePlan, ExchangeTarget, SettingsRef, explained_head, explained_selection,
};

/// What another server would be asked.
#[derive(Clone, Debug)]
pub struct ExplainedUpstream {
    /// The group, or the host of the URL.
    pub name: BString,
    /// `http://`, `fastcgi://` and so on.
    pub scheme: &'static str,
    /// The `upstream` block, or the directive with the URL.
    pub place: Option<ExplainedPlace>,
    /// Whether the name is that of an `upstream` block.
    pub is_group: bool,
    /// The servers of the group.
    pub servers: Vec<ExplainedServerLine>,
    /// The balancing method, as it is written; empty for the default one.
    pub method: BString,
    /// The one that would be taken by a server that has just been started, if the method decides by the request alone, or
    /// if there is no other.
    pub peer: Option<BString>,
    /// The request line and the header fields, or the params. A line without a name is the first line of HTTP/1.
    pub head: Vec<(BString, BString)>,
    /// How many bytes of body follow.
    pub body_length: u64,
}

/// A `server` line of a group.
#[derive(Clone, Debug)]
pub struct ExplainedServerLine {
    /// Its text.
    pub text: BString,
    /// Its addresses.
    pub addresses: Vec<String>,
    /// Where it stands.
    pub place: Option<ExplainedPlace>,
}

/// The cache and the upstream server of a request: a fact of it, once they have been described.
#[derive(Clone, Default)]
pub(super) struct ExchangeReport {
    pub(super) cache: Option<ExplainedCache>,
    pub(super) upstream: Option<ExplainedUpstream>,
}

/// Describes an exchange through the cache, if the location has one. The error is the outcome of a handler that asks no
/// server.
pub fn describe_cached(
    request: &mut Request,
    settings: &SettingsRef,
    source: &CachedProtocol,
    notes: &mut ExplainNotes,
) -> Result<(), HandlerOutcome> {
    let cache = cache::explain_admission(request, settings, source)?;
    if let Some(cache) = &cache {
        note_cache(request, cache, notes);
    }
    let purges = |cache: &ExplainedCache| cache.used_for == ExplainedCacheUse::Purge;
    let upstream = match cache.as_ref().is_some_and(purges) {
        true => None,
        false => {
            let plan = (source.plan)(request)?;
            Some(describe_upstream(request, plan, notes)?)
        }
    };
    request.set_fact(ExchangeReport { cache, upstream });
    Ok(())
}

/// Describes an exchange that no cache concerns.
pub fn describe_direct(
    request: &mut Request,
    plan: ExchangePlan,
    notes: &mut ExplainNotes,
) -> Result<(), HandlerOutcome> {
    let upstream = Some(describe_upstream(request, plan, notes)?);
    request.set_fact(ExchangeReport {
        cache: None,
        upstream,
    });
    Ok(())
}

fn note_cache(request: &Request, cache: &ExplainedCache, notes: &mut ExplainNotes) {
    const NAMES: [&str; 4] = ["proxy_cache", "fastcgi_cache", "scgi_cache", "uwsgi_cache"];
    let place = notes.place_of(request.location, &NAMES);
    let zone = &cache.zone;
    let result = match cache.used_for {
        ExplainedCacheUse::LookUp => StepResult::Applies,
        _ => StepResult::Passes,
    };
    let text = match &cache.used_for {
        ExplainedCacheUse::LookUp => format!("looks up and stores in zone {zone}"),
        ExplainedCacheUse::Bypass(line) => format!("not looked up: bypass ({line})"),
        ExplainedCacheUse::Invalidate => format!("outdates what zone {zone} has, if it succeeds"),
        ExplainedCacheUse::Purge => format!("purges the key in zone {zone}"),
        ExplainedCacheUse::Method => "not for this method".to_owned(),
    };
    notes.step("cache", result, text, place);
    if let Some(line) = &cache.no_cache {
        notes.step(
            "cache",
            StepResult::Passes,
            format!("not stored: no_cache ({line})"),
            None,
        );
    }
}

fn describe_upstream(
    request: &mut Request,
    mut plan: ExchangePlan,
    notes: &ExplainNotes,
) -> Result<ExplainedUpstream, HandlerOutcome> {
    const PASSES: [&str; 7] = [
        "proxy_pass",
        "fastcgi_pass",
        "scgi_pass",
        "uwsgi_pass",
        "memcached_pass",
        "grpc_pass",
        "tunnel_pass",
    ];
    let pass = notes.place_of(request.location, &PASSES);
    let (head, body_length) = explained_head(request, &mut plan)
        .map_err(|failure| HandlerOutcome::Status(failure.status))?;
    let scheme = plan.protocol.scheme();
    let (group, name) = match &plan.target {
        ExchangeTarget::Group(group) => (Some(group.clone()), group.settings.name.clone()),
        ExchangeTarget::Host {
            host,
            port,
            explicit_port,
        } => {
            let groups = request.site.main_confs.get::<UpstreamGroups>();
            let group = groups.find_url(host, *port, *explicit_port);
            let name = match port {
                Some(port) if *explicit_port => format!("{host}:{port}").into(),
                _ => host.clone(),
            };
            (group, name)
        }
    };
    let mut upstream = ExplainedUpstream {
        name,
        scheme,
        place: pass,
        is_group: false,
        servers: Vec::new(),
        method: BString::default(),
        peer: None,
        head,
        body_length,
    };
    if let Some(group) = group {
        describe_group(request, &group, &mut upstream, notes);
    }
    Ok(upstream)
}

fn describe_group(
    request: &mut Request,
    group: &std::sync::Arc<UpstreamGroup>,
    upstream: &mut ExplainedUpstream,
    notes: &ExplainNotes,
) {
    /// What sets the balancing method.
    const METHODS: [&str; 7] = [
        "ip_hash",
        "hash",
        "least_conn",
        "random",
        "least_time",
        "balancer_by_lua_block",
        "balancer_by_lua_file",
    ];
    let settings = &group.settings;
    upstream.is_group = settings.origin == GroupOrigin::Block;
    let block = notes.tree.named_block("upstream", settings.name.as_bstr());
    let lines = match &block {
        Some(block) if upstream.is_group => {
            upstream.place = block.place.clone();
            let methods = METHODS
                .iter()
                .flat_map(|name| notes.tree.lines_in(block.node, name));
            upstream.method = methods.map(|line| line.text).next().unwrap_or_default();
            notes.tree.lines_in(block.node, "server")
        }
        _ => Vec::new(),
    };
    for (index, server) in settings.servers.iter().enumerate() {
        let line = lines.get(index);
        let text = line.map_or_else(|| server.name.clone(), |line| line.text.clone());
        upstream.servers.push(ExplainedServerLine {
            text,
            addresses: server.addresses.iter().map(ToString::to_string).collect(),
            place: line.and_then(|line| line.place.clone()),
        });
    }
    let is_certain = settings.chooser.is_none()
        && (settings.servers.len() == 1 || settings.method().key().is_some() || {
            let word: &BStr = upstream.method.as_bstr();
            word == "ip_hash"
        });
    if is_certain {
        let mut selection: PeerSelection = explained_selection(request, group.clone());
        // Of a state of this process's own, which no server uses.
        let lease = selection.try_pick();
        upstream.peer = lease.ok().map(|lease| lease.peer().name().to_owned());
    }
}
