//! Builds the frozen configuration of `http {}` from its nodes.
//!
//! The blocks `server`, `location`, `if` and `limit_except` are directive rows whose setters are here. Each makes
//! settings that inherit from those of the block around it, applies its own directives to them, and leaves the result
//! with the [`HttpBuilder`], where the enclosing block's setter finds it.

mod builder;
mod location;
mod servers;

use conf::{
    BlockConfs, ConfSets, Diagnostic, DirectiveLine, HTTP, TableSet, TypeMap, VariableRegistry,
    dispatch, dispatch_blocks,
};

use crate::core::blocks::{BlockReaders, HandedDown};
use crate::core::{self, LocationConf, ServerIdentity};
use crate::explain::places::WantedBlockHeads;
use crate::http_site::FrozenHttp;
use crate::kept_servers::{self, KeptHttp, OutsideServers};
use crate::module::HttpModule;
use crate::request::Request;

use builder::{LOCATION_GROUP, MAIN_GROUP, SERVER_GROUP};

pub use crate::core::blocks::{PresentLocation, RequiredDirectories, WantedPools};
pub use builder::HttpBuilder;
pub use location::{
    limit_except, location, present_location, present_location_name, read_if_block,
};
pub use servers::{server, take_connect, upstream_tables};

/// The directive tables of the engine and of `modules`, in three groups.
pub fn table_groups(modules: &'static [&'static HttpModule]) -> Vec<TableSet> {
    let locations: TableSet = vec![
        &core::location::DIRECTIVES,
        &core::delivery::DIRECTIVES,
        &core::resolver::DIRECTIVES,
    ];
    let mut groups: Vec<TableSet> = vec![
        vec![&core::main::HASH_SIZES, &core::main::DIRECTIVES],
        vec![
            &core::server::DIRECTIVES,
            &core::http2::DIRECTIVES,
            &core::http3::DIRECTIVES,
        ],
        locations,
    ];
    for module in modules {
        groups[MAIN_GROUP].push(module.main);
        groups[SERVER_GROUP].push(module.server);
        groups[LOCATION_GROUP].push(module.location);
    }
    for group in &mut groups {
        // A table without rows needs no settings in each block.
        group.retain(|table| !table.is_empty());
    }
    groups
}

/// Reads an `http {}` block.
pub fn read_http_block(
    modules: &'static [&'static HttpModule],
    identity: ServerIdentity,
    line: &mut DirectiveLine,
) -> Result<FrozenHttp, Diagnostic> {
    if let Some(kept) = line.level.build.momentary.take::<KeptHttp>() {
        return read_changed_servers(modules, identity, line, kept);
    }
    // Before any directive is read, because its text may name variables of any module.
    let mut registry = registry(modules);
    let mut builder = HttpBuilder::new(modules);
    builder.kept_heads = line.shared::<WantedBlockHeads>().clone();
    let (main_traces, names, messages) = OutsideServers::begin(line);
    builder.before = (names, messages);
    line.shared::<HandedDown>().0 = Some(BlockReaders {
        server,
        location,
        limit_except,
        present_location,
    });
    let mut confs = BlockConfs::new(table_groups(modules));
    if let Some(core) = confs.get_mut::<LocationConf>() {
        // `error_log` of the main context is inherited like the settings of `http`.
        core.log = line.shared::<host::error_log::MainLog>().0.clone();
    }
    {
        let build = &mut *line.level.build;
        let mut level = conf::BlockContext::new(build, &mut registry, &mut builder, HTTP);
        dispatch(line.node.block.nodes(), &mut confs, None, &mut level);
    }
    let outside = builder
        .outside
        .take()
        .filter(|outside| outside.can_be_kept(line.level.build));
    main_traces.leave(line);
    builder.traces.leave(line);
    let frozen = freeze(modules, identity, line, &registry, &confs, &mut builder)?;
    if let Some(outside) = outside {
        line.level.build.momentary.insert(KeptHttp {
            confs,
            registry,
            outside,
            shared: TypeMap::default(),
            servers: builder.kept,
        });
    }
    Ok(frozen)
}

/// Reads an `http {}` block of which only servers may have changed since it was read before.
fn read_changed_servers(
    modules: &'static [&'static HttpModule],
    identity: ServerIdentity,
    line: &mut DirectiveLine,
    mut kept: KeptHttp,
) -> Result<FrozenHttp, Diagnostic> {
    let mut builder = HttpBuilder::new(modules);
    let nodes = line.node.block.nodes();
    let known = kept_servers::known_numbers(nodes);
    kept.renew_groups(&known);
    kept.registry.return_to(&kept.outside.variables);
    builder.reserve_blocks(&mut kept.servers, &known);
    builder.reads_changes = true;
    let main_shared = std::mem::replace(&mut line.level.build.shared, kept.shared);
    let (main_traces, names, _) = OutsideServers::begin(line);
    line.level.build.must_read_all = false;
    {
        let build = &mut *line.level.build;
        let registry = &mut kept.registry;
        let mut level = conf::BlockContext::new(build, registry, &mut builder, HTTP);
        dispatch_blocks(nodes, &mut kept.confs, &mut level);
    }
    // A server that was read just now may have done what cannot be kept, or what concerns the others.
    let build = &*line.level.build;
    let is_complete = !build.must_read_all
        && !build.must_always_read_all
        && names == net::upstream::names_asked()
        && !kept.registry.is_sparse();
    main_traces.leave(line);
    kept.outside.traces.leave(line);
    builder.traces.leave(line);
    let frozen = freeze(
        modules,
        identity,
        line,
        &kept.registry,
        &kept.confs,
        &mut builder,
    )?;
    kept.shared = std::mem::replace(&mut line.level.build.shared, main_shared);
    // The engine takes them when all is read.
    let directories = kept.shared.take::<RequiredDirectories>();
    *line.lasting::<RequiredDirectories>() = directories.unwrap_or_default();
    *line.lasting::<WantedPools>() = kept.shared.take::<WantedPools>().unwrap_or_default();
    kept.servers = builder.kept;
    // Without it, all is read.
    if is_complete {
        line.level.build.momentary.insert(kept);
    }
    Ok(frozen)
}

/// The frozen configuration, when all blocks are closed.
fn freeze(
    modules: &'static [&'static HttpModule],
    identity: ServerIdentity,
    line: &mut DirectiveLine,
    registry: &VariableRegistry<Request>,
    confs: &BlockConfs,
    builder: &mut HttpBuilder,
) -> Result<FrozenHttp, Diagnostic> {
    for module in modules {
        (module.complete)(line);
    }
    // Only now, because addresses of different servers may be the same socket.
    let endpoints = net::endpoint::build_endpoints(std::mem::take(&mut builder.listens), line);
    // Only now: a variable may be used before the directive that defines it.
    let variables = match registry.finish() {
        Ok(variables) => variables,
        Err(errors) => return Err(line.report_but_last(errors)),
    };
    let main_confs = confs.group(MAIN_GROUP);
    let outer_confs = confs.group(LOCATION_GROUP);
    let frozen = FrozenHttp {
        main_confs: ConfSets::default().set(&main_confs),
        outer_confs: builder.parts.confs.set(&outer_confs),
        servers: std::mem::take(&mut builder.servers),
        locations: std::mem::take(&mut builder.blocks),
        endpoints,
        variables,
        identity,
        prefix: line.level.build.in_prefix(conf::PathUse::Opened, ""),
        conf_prefix: line.level.build.in_conf_prefix(conf::PathUse::Opened, ""),
        generation: host::generation::next_generation(),
    };
    crate::tls::check_configuration(&frozen, &builder.places, line);
    Ok(frozen)
}

/// The variables of the engine and of `modules`.
fn registry(modules: &[&'static HttpModule]) -> VariableRegistry<Request> {
    let mut registry = VariableRegistry::new();
    for rows in crate::variables::VARIABLES {
        registry.add(rows);
    }
    for module in modules {
        registry.add(module.variables);
    }
    registry
}
