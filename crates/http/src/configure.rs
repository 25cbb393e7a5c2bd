//! Builds the frozen configuration of `http {}` from its nodes.
//!
//! The blocks `server`, `location`, `if` and `limit_except` are directive rows whose setters are here. Each makes
//! settings that inherit from those of the block around it, applies its own directives to them, and leaves the result
//! with the [`HttpBuilder`], where the enclosing block's setter finds it.

use std::collections::HashMap;
use std::sync::Arc;

use bstr::{BStr, BString, ByteSlice};
use conf::{
    BlockConfs, CapturingPattern, ConfSets, Contexts, Diagnostic, DirectiveLine, HTTP,
    LIMIT_EXCEPT, LOCATION, LOCATION_IF, SERVER, SERVER_IF, TableSet, VariableRegistry, dispatch,
};
use proto::message::Method;

use crate::core::blocks::{BlockReaders, HandedDown};
use crate::core::{self, LocationConf, ServerConf, ServerIdentity};
use crate::http_site::{
    FrozenHttp, HttpPhaseHandlers, HttpServer, Location, LocationId, LocationKind, ServerId,
};
use crate::listen;
use crate::location_parts::{LocationParts, collect_pipeline};
use crate::location_tree::LocationTree;
use crate::module::{ContentHandler, HttpModule, HttpPhase};
use crate::request::Request;

pub use crate::core::blocks::{PresentLocation, RequiredDirectories, WantedPools};

/// The group of tables whose settings exist once for `http`.
const MAIN_GROUP: usize = 0;
/// The group of tables whose settings exist once for each server.
const SERVER_GROUP: usize = 1;
/// The group of tables whose settings exist once for each location.
const LOCATION_GROUP: usize = 2;

/// The configuration that is being built. Setters of blocks reach it through `line.level.engine()`.
pub struct HttpBuilder {
    modules: &'static [&'static HttpModule],
    servers: Vec<HttpServer>,
    /// Where the servers' blocks are in the configuration, for diagnostics.
    places: Vec<base::Span>,
    listens: Vec<listen::ServerListen>,
    locations: Vec<Option<Location>>,
    /// Where each location begins, for diagnostics.
    heads: Vec<base::Span>,
    /// The blocks around the current line, outermost first.
    open: Vec<OpenBlock>,
    named: Vec<(BString, LocationId)>,
    /// The current server accepts CONNECT.
    connect: bool,
    /// Modules' structs of servers.
    server_confs: ConfSets,
    /// The modules that run in phase `Rewrite` of the block that was closed last.
    rewriters: Vec<&'static str>,
    parts: LocationParts,
    /// The content handlers by the directives that choose them.
    content_handlers: HashMap<&'static [u8], &'static ContentHandler>,
    /// The named locations of the current server by name.
    named_ids: HashMap<BString, LocationId>,
}

impl HttpBuilder {
    /// An empty builder.
    fn new(modules: &'static [&'static HttpModule]) -> HttpBuilder {
        HttpBuilder {
            modules,
            servers: Vec::new(),
            places: Vec::new(),
            listens: Vec::new(),
            locations: Vec::new(),
            heads: Vec::new(),
            open: Vec::new(),
            named: Vec::new(),
            connect: false,
            server_confs: ConfSets::default(),
            rewriters: Vec::new(),
            parts: LocationParts::default(),
            content_handlers: content_handlers(modules),
            named_ids: HashMap::new(),
        }
    }
}

/// The content handlers of modules by the directives that choose them; the first module counts.
fn content_handlers(
    modules: &'static [&'static HttpModule],
) -> HashMap<&'static [u8], &'static ContentHandler> {
    let mut by_directive = HashMap::new();
    for handler in modules
        .iter()
        .filter_map(|module| module.content_handler.as_ref())
    {
        for directive in handler.directives {
            by_directive.entry(directive.as_bytes()).or_insert(handler);
        }
    }
    by_directive
}

/// A block that is being read.
struct OpenBlock {
    id: LocationId,
    name: BString,
    kind: LocationKind,
    children: Vec<(BString, LocationKind, LocationId)>,
    /// The prefix and the exact locations inside by name, for a message about a second one.
    child_ids: [HashMap<BString, LocationId>; 2],
    limit_except: Option<(u32, LocationId)>,
    /// The module that produces the content if several could: as in nginx the one whose directive comes last.
    answer: Option<&'static ContentHandler>,
    /// The modules that run in phase `Rewrite` of `if` blocks inside: a request that enters such a block is in the
    /// middle of that phase, so the enclosing location must have those handlers, too.
    rewriters: Vec<&'static str>,
}

/// The directive tables of the engine and of `modules`, in three groups.
pub fn table_groups(modules: &'static [&'static HttpModule]) -> Vec<TableSet> {
    let locations: TableSet = vec![
        &core::location::DIRECTIVES,
        &core::delivery::DIRECTIVES,
        &core::resolver::DIRECTIVES,
    ];
    let mut groups: Vec<TableSet> = vec![
        vec![&core::main::HASH_SIZES, &core::main::DIRECTIVES],
        vec![&core::server::DIRECTIVES, &core::http2::DIRECTIVES],
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
    // Before any directive is read, because its text may name variables of any module.
    let mut registry = registry(modules);
    let mut builder = HttpBuilder::new(modules);
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
    let main_confs = confs.take_group(MAIN_GROUP);
    let outer_confs = confs.take_group(LOCATION_GROUP);
    let frozen = FrozenHttp {
        main_confs: ConfSets::default().set(&main_confs),
        outer_confs: builder.parts.confs.set(&outer_confs),
        servers: builder.servers,
        locations: closed(builder.locations),
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

/// The locations, when every block was closed. The list is made in place: there may be hundreds of thousands.
fn closed(locations: Vec<Option<Location>>) -> Vec<Location> {
    let mut locations: Vec<Location> = locations.into_iter().map_while(|one| one).collect();
    locations.shrink_to_fit();
    locations
}

/// The setter of `server`.
pub fn server(line: &mut DirectiveLine, parents: &mut BlockConfs) -> Result<(), Diagnostic> {
    let mut confs = parents.child(SERVER_GROUP);
    let id = open(line, BString::default(), LocationKind::Unnamed, None);
    dispatch(
        line.node.block.nodes(),
        &mut confs,
        Some(parents),
        &mut line.level.inner_block(SERVER),
    );
    // The server's own group; closing the block below takes the group of its outermost location.
    let mut core = confs.get::<ServerConf>().cloned().unwrap_or_default();
    core.http2 = confs.get::<core::Http2Conf>().cloned().unwrap_or_default();
    let server_confs = confs.take_group(SERVER_GROUP);
    let tree = close(line, &mut confs);
    let builder = line.level.engine::<HttpBuilder>();
    let mut named = std::mem::take(&mut builder.named);
    builder.named_ids.clear();
    let takes_connect = std::mem::take(&mut builder.connect);
    // Sorted for a binary search at each redirect.
    named.sort_by(|a, b| a.0.cmp(&b.0));
    let server = ServerId(builder.servers.len() as u32);
    let root = builder.locations[id.0 as usize]
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
    // Sharing is sought within one server only.
    builder.server_confs.forget_chunks();
    builder.parts.confs.forget_chunks();
    builder.places.push(line.node.span);
    builder.servers.push(HttpServer {
        name: core.name.clone(),
        core: Arc::new(core),
        tls: builder
            .modules
            .iter()
            .find_map(|module| (module.tls)(&confs)),
        confs,
        handshake,
        root: id,
        tree,
        named,
        phases,
        takes_connect,
    });
    Ok(())
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

/// The setter of `location`.
pub fn location(line: &mut DirectiveLine, parents: &mut BlockConfs) -> Result<(), Diagnostic> {
    let (kind, name) = parse_location(line)?;
    check_place(line, &kind, name.as_bstr())?;
    let mut confs = parents.child(LOCATION_GROUP);
    // Before the block's own lines are applied: what a nested location does not inherit (`proxy_pass`, say) must be
    // gone before a line sets it anew.
    for module in line.level.engine::<HttpBuilder>().modules {
        (module.nested)(&mut confs);
    }
    confs.change_if(LocationConf::has_own_part, LocationConf::enter_child);
    let id = open(line, name.clone(), kind.clone(), None);
    dispatch(
        line.node.block.nodes(),
        &mut confs,
        Some(parents),
        &mut line.level.inner_block(LOCATION),
    );
    let tree = close(line, &mut confs);
    let builder = line.level.engine::<HttpBuilder>();
    if let Some(location) = &mut builder.locations[id.0 as usize] {
        location.tree = tree;
    }
    match kind {
        // Named locations belong to the server, the others to the block around them.
        LocationKind::Named => {
            builder.named_ids.insert(name.clone(), id);
            builder.named.push((name, id));
        }
        kind => {
            let frame = builder
                .open
                .last_mut()
                .expect("a location stands in a server or location");
            if let Some(list) = list_of(&kind) {
                frame.child_ids[list].insert(name.clone(), id);
            }
            frame.children.push((name, kind, id));
        }
    }
    Ok(())
}

/// The setter of `limit_except`.
pub fn limit_except(line: &mut DirectiveLine, parents: &mut BlockConfs) -> Result<(), Diagnostic> {
    let open = &line.level.engine::<HttpBuilder>().open;
    if open
        .last()
        .is_some_and(|frame| frame.limit_except.is_some())
    {
        return Err(line.directive_error("is duplicate"));
    }
    let mut allowed = 0;
    for (index, word) in line.args().iter().enumerate() {
        let method = Method::from_bytes(&word.text);
        // nginx's list of methods does not have these.
        if matches!(method, Method::Other | Method::Connect | Method::Trace) {
            return Err(line.error_at(index, format!("invalid method \"{}\"", word.text)));
        }
        allowed |= method.bit();
        // As in nginx, allowing GET allows HEAD.
        if method == Method::Get {
            allowed |= Method::Head.bit();
        }
    }
    let id = block(line, parents, LIMIT_EXCEPT);
    let frame = line
        .level
        .engine::<HttpBuilder>()
        .open
        .last_mut()
        .expect("limit_except stands in a location");
    frame.limit_except = Some((allowed, id));
    Ok(())
}

/// Reads the block of an `if`, for the module whose directive it is. The block becomes a pseudo location that a request
/// enters if the condition is true.
pub fn read_if_block(line: &mut DirectiveLine, parents: &mut BlockConfs) -> LocationId {
    let context = if line.level.context == SERVER {
        SERVER_IF
    } else {
        LOCATION_IF
    };
    block(line, parents, context)
}

/// Reads a block without a path of its own (`if`, `limit_except`) as a pseudo location.
fn block(line: &mut DirectiveLine, parents: &mut BlockConfs, context: Contexts) -> LocationId {
    let mut confs = parents.child(LOCATION_GROUP);
    let frame = line
        .level
        .engine::<HttpBuilder>()
        .open
        .last()
        .expect("the block stands in a server or location");
    let (name, kind) = (frame.name.clone(), frame.kind.clone());
    // An `if` block keeps the location's content handler. In `limit_except` nginx chooses it anew, so it has to be
    // named again.
    let answer = frame.answer.filter(|_| context != LIMIT_EXCEPT);
    // The kind of a regular expression stays: `alias` and `proxy_pass` behave differently in one, and in its `if`
    // blocks.
    let kind = if let LocationKind::Regex(_) = kind {
        kind
    } else {
        LocationKind::Unnamed
    };
    let id = open(line, name, kind, answer);
    dispatch(
        line.node.block.nodes(),
        &mut confs,
        Some(parents),
        &mut line.level.inner_block(context),
    );
    close(line, &mut confs);
    let builder = line.level.engine::<HttpBuilder>();
    if let Some(outer) = builder.open.last_mut() {
        outer.rewriters.append(&mut builder.rewriters);
    }
    id
}

/// Opens a block. `outer` is the content handler if no directive in the block names one.
fn open(
    line: &mut DirectiveLine,
    name: BString,
    kind: LocationKind,
    outer: Option<&'static ContentHandler>,
) -> LocationId {
    let nodes = line.node.block.nodes();
    let builder = line.level.engine::<HttpBuilder>();
    let named =
        |node: &conf::DirectiveNode| builder.content_handlers.get(node.name.text.as_slice());
    // From the end: of several directives that set a content handler nginx follows the last one.
    let answer = nodes.iter().rev().find_map(named).copied().or(outer);
    let id = LocationId(builder.locations.len() as u32);
    // The number is given out before the block is read: blocks inside come later in the list, and can refer to it.
    builder.locations.push(None);
    builder.heads.push(line.node.head);
    builder.open.push(OpenBlock {
        id,
        name,
        kind,
        children: Vec::new(),
        child_ids: Default::default(),
        limit_except: None,
        answer,
        rewriters: Vec::new(),
    });
    id
}

/// Freezes the innermost open block; returns the tree of the locations inside it.
fn close(line: &mut DirectiveLine, confs: &mut BlockConfs) -> LocationTree {
    let core = line.level.engine::<HttpBuilder>().parts.core(confs);
    let structs = confs.take_group(LOCATION_GROUP);
    let builder = line.level.engine::<HttpBuilder>();
    let frame = builder
        .open
        .pop()
        .expect("every block that is closed was opened");
    let mut location = Location {
        name: frame.name,
        kind: frame.kind,
        core,
        confs: builder.parts.confs.set(&structs),
        tree: LocationTree::default(),
        limit_except: frame.limit_except,
        adds_slash: false,
        pipeline: Arc::default(),
    };
    let rewriters = collect_pipeline(
        &mut location,
        builder.modules,
        frame.answer,
        &frame.rewriters,
        &mut builder.parts,
    );
    builder.rewriters = rewriters;
    builder.locations[frame.id.0 as usize] = Some(location);
    LocationTree::build(
        frame
            .children
            .iter()
            .map(|(name, kind, id)| (name.as_bstr(), kind, *id)),
    )
}

/// The location of the current line.
pub fn present_location(line: &mut DirectiveLine) -> PresentLocation {
    let builder = line.level.engine::<HttpBuilder>();
    match builder.open.last() {
        Some(frame) => match frame.kind {
            LocationKind::Regex(_) => PresentLocation::Regex,
            LocationKind::Named => PresentLocation::Named,
            _ => PresentLocation::Prefix(frame.name.len()),
        },
        None => PresentLocation::Prefix(0),
    }
}

/// The name of the location of the current line; empty outside of locations.
pub fn present_location_name(line: &mut DirectiveLine) -> BString {
    let builder = line.level.engine::<HttpBuilder>();
    builder
        .open
        .last()
        .map(|frame| frame.name.clone())
        .unwrap_or_default()
}

/// Parses the modifier and the name of a location. As in nginx the modifier may be a word of its own or the beginning
/// of the name.
fn parse_location(line: &mut DirectiveLine) -> Result<(LocationKind, BString), Diagnostic> {
    let first = line.text(0);
    if let Some(second) = line.get(1) {
        let name = second.text.clone();
        let kind = match first.as_bytes() {
            b"=" => LocationKind::Exact,
            b"^~" => LocationKind::Prefix { regexes: false },
            b"~" => regex_location(line, 1, &name, false)?,
            b"~*" => regex_location(line, 1, &name, true)?,
            _ => return Err(line.error_at(0, format!("invalid location modifier \"{first}\""))),
        };
        return Ok((kind, name));
    }
    let (kind, name): (LocationKind, &[u8]) = if let Some(rest) = first.strip_prefix(b"=") {
        (LocationKind::Exact, rest)
    } else if let Some(rest) = first.strip_prefix(b"^~") {
        (LocationKind::Prefix { regexes: false }, rest)
    } else if let Some(rest) = first.strip_prefix(b"~*") {
        (regex_location(line, 0, rest, true)?, rest)
    } else if let Some(rest) = first.strip_prefix(b"~") {
        (regex_location(line, 0, rest, false)?, rest)
    } else if first.starts_with(b"@") {
        (LocationKind::Named, first)
    } else {
        (LocationKind::Prefix { regexes: true }, first)
    };
    Ok((kind, name.into()))
}

fn regex_location(
    line: &mut DirectiveLine,
    index: usize,
    pattern: &[u8],
    caseless: bool,
) -> Result<LocationKind, Diagnostic> {
    Ok(LocationKind::Regex(Arc::new(CapturingPattern::compile(
        line, index, pattern, caseless,
    )?)))
}

/// The list in [`OpenBlock::child_ids`] of a location of this kind, of which there can be one for each text.
fn list_of(kind: &LocationKind) -> Option<usize> {
    match kind {
        LocationKind::Prefix { .. } => Some(0),
        LocationKind::Exact => Some(1),
        LocationKind::Regex(_) | LocationKind::Named | LocationKind::Unnamed => None,
    }
}

/// Checks nginx's rules for nested locations, and against duplicates.
fn check_place(
    line: &mut DirectiveLine,
    kind: &LocationKind,
    name: &BStr,
) -> Result<(), Diagnostic> {
    let builder = line.level.engine::<HttpBuilder>();
    let depth = builder.open.len();
    let frame = builder
        .open
        .last()
        .expect("a location stands in a server or location");
    let first = match kind {
        LocationKind::Named => builder.named_ids.get(name),
        kind => list_of(kind).and_then(|list| frame.child_ids[list].get(name)),
    };
    let first = first.copied();
    if let Some(first) = first {
        let first = builder.heads[first.0 as usize];
        return Err(line.error_after(first, format!("duplicate location \"{name}\"")));
    }
    // Directly in a server every kind is allowed.
    if depth < 2 {
        return Ok(());
    }
    let (outer, outer_kind) = (frame.name.clone(), frame.kind.clone());
    match (&outer_kind, kind) {
        (LocationKind::Exact, _) => Err(line.error(format!(
            "location \"{name}\" cannot be inside the exact location \"{outer}\""
        ))),
        (LocationKind::Named, _) => Err(line.error(format!(
            "location \"{name}\" cannot be inside the named location \"{outer}\""
        ))),
        (_, LocationKind::Named) => Err(line.error(format!(
            "named location \"{name}\" can be on the server level only"
        ))),
        (LocationKind::Prefix { .. }, LocationKind::Exact | LocationKind::Prefix { .. })
            // No path could reach it: the outer location is chosen first. For regular expressions that cannot be
            // decided.
            if !name.starts_with(&outer) =>
        {
            Err(line.error(format!(
                "location \"{name}\" is outside location \"{outer}\""
            )))
        }
        _ => Ok(()),
    }
}
