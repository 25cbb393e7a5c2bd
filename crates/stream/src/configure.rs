//! Builds the frozen configuration of `stream {}` from its nodes.

use conf::{
    Arity, BlockConfs, ConfSets, Diagnostic, Directive, DirectiveLine, DirectiveTable, STREAM,
    STREAM_SERVER, Setter, Span, TableSet, VariableRegistry, dispatch,
};
use host::error_log::MainLog;
use net::core_rows::{self, HashSizes};
use net::endpoint::ServerListen;

use crate::core::{self, StreamServerConf};

use crate::module::{StreamHandler, StreamModule, StreamPhase};
use crate::session::StreamSession;
use crate::stream_site::{FrozenStream, ServerId, StreamPhaseHandlers, StreamServer};

static HASH_SIZE_ROWS: [Directive<HashSizes>; 4] = core_rows::hash_sizes(STREAM);

/// The rows of hash tables' sizes.
pub static HASH_SIZES: DirectiveTable<HashSizes> = DirectiveTable::new(&HASH_SIZE_ROWS);

/// What `server` leaves in `stream` itself: nothing.
#[derive(Clone, Debug, Default)]
pub struct StreamMainConf;

/// The row of `server`. It stands above the other tables, beside its setter, which needs all of them.
pub static MAIN: DirectiveTable<StreamMainConf> = DirectiveTable::new(&[Directive {
    name: "server",
    syntax: "{ … }",
    default: None,
    contexts: STREAM,
    since: "0.1",
    doc: "Defines a server: the addresses it listens on, and what it does with sessions.",
    set: Setter::Deferred(Arity::NONE, server),
}]);

/// The group of tables whose structs belong to `stream`.
const MAIN_GROUP: usize = 0;
/// The group of tables whose structs belong to a server.
const SERVER_GROUP: usize = 1;

/// What is being built. Setters of blocks get it through `line.level.engine()`.
struct StreamBuilder {
    modules: &'static [&'static StreamModule],
    servers: Vec<StreamServer>,
    /// Where the blocks of the servers are in the files, for messages.
    places: Vec<Span>,
    claims: Vec<ServerListen>,
    /// What the structs of servers share.
    server_confs: ConfSets,
}

/// The tables of all modules, by the block to which their settings belong. Empty ones would cost a struct in each
/// server.
fn groups(modules: &[&'static StreamModule]) -> Vec<TableSet> {
    let mut groups: Vec<TableSet> = vec![
        vec![&HASH_SIZES, &MAIN],
        vec![&core::SERVER, &core::RESOLVER],
    ];
    for module in modules {
        groups[MAIN_GROUP].push(module.main);
        groups[SERVER_GROUP].push(module.server);
    }
    for group in &mut groups {
        group.retain(|table| !table.is_empty());
    }
    groups
}

/// Reads a `stream {}` block.
pub(crate) fn read_stream_block(
    modules: &'static [&'static StreamModule],
    version: String,
    line: &mut DirectiveLine,
) -> Result<FrozenStream, Diagnostic> {
    let mut registry: VariableRegistry<StreamSession> = VariableRegistry::new();
    for rows in crate::variables::VARIABLES {
        registry.add(rows);
    }
    for module in modules {
        registry.add(module.variables);
    }
    let mut builder = StreamBuilder {
        modules,
        servers: Vec::new(),
        places: Vec::new(),
        claims: Vec::new(),
        server_confs: ConfSets::default(),
    };
    let mut confs = BlockConfs::new(groups(modules));
    // Set before any directive is read, so that every server inherits the log of main.
    if let Some(core) = confs.get_mut::<StreamServerConf>() {
        core.log = line.shared::<MainLog>().0.clone();
    }
    {
        let build = &mut *line.level.build;
        let mut level = conf::BlockContext::new(build, &mut registry, &mut builder, STREAM);
        dispatch(line.node.block.nodes(), &mut confs, None, &mut level);
    }
    for module in modules {
        // Only here are all names declared: a line may refer to one that comes later.
        (module.complete)(line);
    }
    let endpoints = net::endpoint::build_endpoints(builder.claims, line);
    let variables = match registry.finish() {
        Ok(variables) => variables,
        Err(errors) => return Err(line.report_but_last(errors)),
    };
    let frozen = FrozenStream {
        main_confs: ConfSets::default().set(&confs.take_group(MAIN_GROUP)),
        outer_confs: builder.server_confs.set(&confs.take_group(SERVER_GROUP)),
        servers: builder.servers,
        endpoints,
        variables,
        version,
        conf_prefix: line.level.build.in_conf_prefix(conf::PathUse::Opened, ""),
        generation: host::generation::next_generation(),
    };
    // Needs the endpoints: which server is the default of an address follows from all `listen` lines.
    crate::tls::check_configuration(&frozen, &builder.places, line);
    Ok(frozen)
}

/// The tables of modules whose directives stand in `upstream { … }`, for the module that reads such a block.
pub fn upstream_tables(line: &mut DirectiveLine) -> TableSet {
    let modules = line.level.engine::<StreamBuilder>().modules;
    let tables = modules.iter().map(|module| module.upstream);
    tables.filter(|table| !table.is_empty()).collect()
}

/// The setter of `server`.
fn server(line: &mut DirectiveLine, parents: &mut BlockConfs) -> Result<(), Diagnostic> {
    let mut confs = parents.child(SERVER_GROUP);
    dispatch(
        line.node.block.nodes(),
        &mut confs,
        Some(parents),
        &mut line.level.inner_block(STREAM_SERVER),
    );
    let core = confs.get::<StreamServerConf>().cloned().unwrap_or_default();
    let place = line.sources().place(line.node.span).unwrap_or_default();
    let structs = confs.take_group(SERVER_GROUP);
    let mut server = StreamServer {
        name: core.name.clone(),
        core,
        confs: line
            .level
            .engine::<StreamBuilder>()
            .server_confs
            .set(&structs),
        tls: None,
        handshake: None,
        phases: StreamPhaseHandlers::default(),
    };
    // Asked before the engine is borrowed from the line.
    let has_errors = line.level.build.has_errors();
    let (span, block) = (line.node.name.span, line.node.span);
    let builder = line.level.engine::<StreamBuilder>();
    server.tls = builder
        .modules
        .iter()
        .find_map(|module| (module.tls)(&server.confs));
    server.handshake = builder
        .modules
        .iter()
        .filter_map(|module| module.handshake)
        .find(|handshake| (handshake.when)(&server.confs))
        .map(|handshake| handshake.handler);
    // Content has one handler: the first module in the list whose directive the server has.
    let answer = builder
        .modules
        .iter()
        .filter_map(|module| module.content_handler.as_ref())
        .find(|answer| (answer.when)(&server));
    // Handlers that can do nothing in this server are left out here, not asked at each session.
    let active = builder
        .modules
        .iter()
        .filter(|module| (module.enabled)(&server));
    let mut handlers: Vec<(StreamPhase, StreamHandler)> = active
        .flat_map(|module| module.phases.iter().copied())
        .collect();
    let listens = !server.core.listens.is_empty();
    handlers.extend(answer.map(|answer| (StreamPhase::Content, answer.handler)));
    server.phases = StreamPhaseHandlers::collect(handlers.into_iter());
    // The number is the index in the list, so it is taken before the server is added.
    let id = ServerId(builder.servers.len() as u32);
    builder.claims.extend(net::endpoint::claims(
        &server.core.names,
        &server.core.listens,
        id,
        span,
    ));
    builder.servers.push(server);
    builder.places.push(block);
    // An error in the block was reported. The missing `listen` may be the refused line.
    if has_errors {
        return Ok(());
    }
    if !listens {
        return Err(line
            .error(format!("no \"listen\" is defined for server in {place}"))
            .place(conf::DiagnosticPlace::Unsaid));
    }
    Ok(())
}
