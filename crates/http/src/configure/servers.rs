//! The setter of `server`: builds a server, or takes over one that has not changed since the reading before.

use std::sync::Arc;

use bstr::BString;
use conf::{
    BlockConfs, BlockContent, Diagnostic, DirectiveLine, SERVER, TableSet, VariableUses, dispatch,
};

use super::builder::{HttpBuilder, SERVER_GROUP, close, open};
use crate::cluster;
use crate::core::{self, ServerConf};
use crate::http_site::{
    HandshakeAbility, HttpPhaseHandlers, HttpServer, LocationKind, PhaseHandler, ServerId,
};
use crate::kept_servers::{self, KeptServer, OutsideServers, ServerTraces};
use crate::listen;
use crate::module::HttpPhase;
use crate::request::Request;

/// The setter of `server`.
pub fn server(line: &mut DirectiveLine, parents: &mut BlockConfs) -> Result<(), Diagnostic> {
    if let BlockContent::Known(number) = line.node.block {
        take_over(line, number);
        return Ok(());
    }
    let builder = line.level.engine::<HttpBuilder>();
    let before = builder.before;
    if builder.outside.is_none() && !builder.reads_changes {
        let outside = OutsideServers::end(line, before);
        let builder = line.level.engine::<HttpBuilder>();
        builder.traces.add(&outside.traces);
        builder.outside = Some(outside);
    }
    let messages = line.level.build.diagnostics.len();
    line.level.engine::<HttpBuilder>().begin_server();
    if let Some(registry) = line.level.registry::<Request>() {
        registry.start_recording();
    }
    line.level
        .build
        .needs()
        .read_words(std::slice::from_ref(line.node));
    build_server(line, parents);
    keep_server(line, messages);
    Ok(())
}

/// Takes over a server of the reading before.
fn take_over(line: &mut DirectiveLine, number: usize) {
    let place = line.node.span;
    let builder = line.level.engine::<HttpBuilder>();
    let known = builder.known.get_mut(number).and_then(Option::take);
    let Some(kept) = known else {
        // Two blocks cannot be the same one; then everything is read.
        line.level.build.must_read_all = true;
        return;
    };
    let id = ServerId(builder.servers.len() as u32);
    let core = &kept.server.core;
    let claims = net::endpoint::claims(&core.names, &core.listens, id, place);
    builder.listens.extend(claims.map(|mut claim| {
        claim.listen.span = kept_servers::moved(claim.listen.span, kept.place, place);
        claim
    }));
    builder.places.push(place);
    builder.servers.push(Arc::clone(&kept.server));
    builder.blocks[kept.block as usize] = Arc::clone(&kept.locations);
    if let Some(registry) = line.level.registry::<Request>() {
        registry.repeat(&kept.variables);
    }
    let builder = line.level.engine::<HttpBuilder>();
    builder.traces.add(&kept.traces);
    builder.kept.push(kept);
}

/// Keeps the server that was built just now for the next reading, unless there was something to say about it: a warning has
/// to be given again.
fn keep_server(line: &mut DirectiveLine, messages: usize) {
    let variables = match line.level.registry::<Request>() {
        Some(registry) => registry.take_recording(),
        None => VariableUses::default(),
    };
    let mut traces = ServerTraces::take(line);
    line.level.engine::<HttpBuilder>().traces.add(&traces);
    let place = line.node.span;
    let build = &mut *line.level.build;
    let source = build.blocks.remove(&(place.file, place.start));
    let Some(mut source) = source.filter(|_| build.diagnostics.len() == messages) else {
        return;
    };
    if !variables.can_be_repeated() {
        return;
    }
    source.uses.append(&mut traces.take_files());
    let builder = line.level.engine::<HttpBuilder>();
    let (Some(server), Some(locations)) = (
        builder.servers.last(),
        builder.blocks.get(builder.block as usize),
    ) else {
        return;
    };
    builder.kept.push(KeptServer {
        source,
        server: Arc::clone(server),
        block: builder.block,
        locations: Arc::clone(locations),
        variables,
        traces,
        place,
    });
}

/// Applies the lines of a `server` block.
fn build_server(line: &mut DirectiveLine, parents: &mut BlockConfs) {
    let mut confs = parents.child(SERVER_GROUP);
    let id = open(line, BString::default(), LocationKind::Unnamed, None);
    dispatch(
        line.node.block.nodes(),
        &mut confs,
        Some(parents),
        &mut line.level.inner_block(SERVER),
    );
    // The server's own group; closing the block below takes the group of its outermost location.
    let mut core = take_core(&mut confs);
    core.http2 = confs.get::<core::Http2Conf>().cloned().unwrap_or_default();
    core.http3 = confs.get::<core::Http3Conf>().cloned().unwrap_or_default();
    let server_confs = confs.take_group(SERVER_GROUP);
    let tree = close(line, &mut confs);
    let builder = line.level.engine::<HttpBuilder>();
    let mut named = std::mem::take(&mut builder.named);
    builder.named_ids.clear();
    let takes_connect = std::mem::take(&mut builder.connect);
    // Sorted for a binary search at each redirect.
    named.sort_by(|a, b| a.0.cmp(&b.0));
    let server = ServerId(builder.servers.len() as u32);
    let root = builder.locations[id.index as usize]
        .as_ref()
        .expect("the server's own level was closed just now");
    let handshake = builder
        .modules
        .iter()
        .filter_map(|module| module.handshake)
        .find(|handshake| (handshake.when)(root))
        .map(|handshake| (handshake.handler, (handshake.session_storage)(root)));
    let handlers = builder
        .modules
        .iter()
        .filter(|module| (module.enabled)(root));
    // Only the two phases before a location is chosen: the rest belongs to locations, the root location among them.
    let handlers = handlers.flat_map(|module| module.phases.iter().copied());
    // First: nothing of the server runs for a request to the peer port that is not a member's.
    let handlers = peer_port(&core).into_iter().chain(handlers);
    let phases = HttpPhaseHandlers::collect(
        handlers
            .filter(|(phase, _)| matches!(phase, HttpPhase::PostRead | HttpPhase::ServerRewrite)),
    );
    if core.listens.is_empty() {
        core.listens.push(listen::default(line.node.span));
    }
    let claims = net::endpoint::claims(&core.names, &core.listens, server, line.node.span);
    builder.listens.extend(claims);
    let confs = builder.server_confs.set(&server_confs);
    builder.server_confs.forget_chunks();
    builder.parts.confs.forget_chunks();
    builder.places.push(line.node.span);
    let tls = builder
        .modules
        .iter()
        .find_map(|module| (module.tls)(&confs));
    builder.servers.push(Arc::new(HttpServer {
        name: core.name.clone(),
        core: Arc::new(core),
        handshakes: handshake_ability(tls.as_deref()),
        tls,
        confs,
        handshake,
        root: id,
        tree,
        named,
        phases,
        takes_connect,
    }));
    // In place: a server may have thousands.
    let locations = std::mem::take(&mut builder.locations).into_iter();
    builder.blocks[builder.block as usize] = locations.map_while(|one| one).collect();
    builder.end_heads();
}

/// What guards the peer port of a server that has one.
fn peer_port(core: &ServerConf) -> Option<(HttpPhase, PhaseHandler)> {
    let has_one = core.listens.iter().any(|listen| listen.cluster.is_some());
    has_one.then_some((HttpPhase::PostRead, cluster::admit_member))
}

/// The engine's settings of a server. Taken and not copied: nothing looks for them among the modules' structs.
fn take_core(confs: &mut BlockConfs) -> ServerConf {
    let mut core = match confs.get_mut::<ServerConf>() {
        Some(core) => std::mem::take(core),
        None => ServerConf::default(),
    };
    core.names.shrink_to_fit();
    core.listens.shrink_to_fit();
    core
}

/// What a server can do with a handshake.
fn handshake_ability(service: Option<&net::tls::ServerTls>) -> HandshakeAbility {
    match service {
        Some(service) if service.settings.is_some() => HandshakeAbility::Accepts,
        Some(service) if service.rejects => HandshakeAbility::Rejects,
        Some(_) | None => HandshakeAbility::None,
    }
}

/// Makes the server of the current line accept CONNECT, for a module whose directive serves it.
pub fn take_connect(line: &mut DirectiveLine) {
    line.level.engine::<HttpBuilder>().connect = true;
}

/// The directive tables of modules for `upstream { … }`, for the reader of such a block.
pub fn upstream_tables(line: &mut DirectiveLine) -> TableSet {
    let modules = line.level.engine::<HttpBuilder>().modules;
    let tables = modules.iter().map(|module| module.upstream);
    tables.filter(|table| !table.is_empty()).collect()
}
