//! Builds the frozen configuration of `http {}` from its nodes.
//!
//! The blocks `server`, `location`, `if` and `limit_except` are rows whose setters stand here. Each makes structs that
//! inherit from those of the block around it, applies its own directives to them, and leaves what came of it with the
//! [`Builder`], which the blocks inside find again.

use std::sync::Arc;

use bstr::{BStr, BString, ByteSlice};
use conf::{
    ConfSets, Confs, Contexts, Diagnostic, HTTP, LIMIT_EXCEPT, LOCATION, LOCATION_IF, Line,
    Pattern, Registry, SERVER, SERVER_IF, TableSet, dispatch,
};
use proto::message::Method;

use crate::core::blocks::{BlockReaders, HandedDown};
use crate::core::{self, Identity, LocationConf, ServerConf};
use crate::listen;
use crate::location_parts::{LocationParts, collect_pipeline};
use crate::location_tree::LocationTree;
use crate::module::{Answer, Module, Phase};
use crate::request::Request;
use crate::site::{Frozen, Location, LocationId, LocationKind, Phases, Server, ServerId};

pub use crate::core::blocks::{Directories, PresentLocation, WantedPools};

/// The group of tables whose structs belong to `http`.
const MAIN_GROUP: usize = 0;
/// The group of tables whose structs belong to a server.
const SERVER_GROUP: usize = 1;
/// The group of tables whose structs belong to a location.
const LOCATION_GROUP: usize = 2;

/// What is being built. Setters of blocks reach it through `line.level.engine()`.
pub struct Builder {
    modules: &'static [&'static Module],
    servers: Vec<Server>,
    /// Where the servers' blocks stand.
    places: Vec<base::Span>,
    listens: Vec<listen::Claim>,
    locations: Vec<Option<Location>>,
    /// Where each of them begins.
    heads: Vec<base::Span>,
    /// The blocks around the present one, outermost first.
    open: Vec<Frame>,
    named: Vec<(BString, LocationId)>,
    /// The present server takes CONNECT.
    connect: bool,
    /// Modules' structs of servers.
    server_confs: ConfSets,
    /// Who runs in the phase `Rewrite` of the block that was closed last.
    rewriters: Vec<&'static str>,
    parts: LocationParts,
}

impl Builder {
    /// Nothing is built yet.
    fn new(modules: &'static [&'static Module]) -> Builder {
        Builder {
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
        }
    }
}

/// A block that is being read.
struct Frame {
    id: LocationId,
    name: BString,
    kind: LocationKind,
    children: Vec<(BString, LocationKind, LocationId)>,
    limit_except: Option<(u32, LocationId)>,
    /// Who answers, where several could: as in nginx the module whose directive stands last.
    answer: Option<&'static Answer>,
    /// Who runs in the phase that blocks of `if` inside are chosen in: a block that is chosen is in the midst of it.
    rewriters: Vec<&'static str>,
}

/// The tables of the engine and of `modules`, in three groups.
pub fn groups(modules: &'static [&'static Module]) -> Vec<TableSet> {
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
        group.retain(|table| !table.is_empty());
    }
    groups
}

/// Reads an `http {}` block.
pub fn http(
    modules: &'static [&'static Module],
    identity: Identity,
    line: &mut Line,
) -> Result<Frozen, Diagnostic> {
    let mut registry = registry(modules);
    let mut builder = Builder::new(modules);
    line.shared::<HandedDown>().0 = Some(BlockReaders {
        server,
        location,
        limit_except,
        present_location,
    });
    let mut confs = Confs::new(groups(modules));
    if let Some(core) = confs.get_mut::<LocationConf>() {
        core.log = line.shared::<host::error_log::MainLog>().0.clone();
    }
    {
        let build = &mut *line.level.build;
        let mut level = conf::Level::new(build, &mut registry, &mut builder, HTTP);
        dispatch(line.node.block.nodes(), &mut confs, None, &mut level);
    }
    for module in modules {
        (module.complete)(line);
    }
    let endpoints = net::endpoint::endpoints(std::mem::take(&mut builder.listens), line);
    let variables = match registry.finish() {
        Ok(variables) => variables,
        Err(errors) => return Err(line.report_but_last(errors)),
    };
    let main_confs = confs.take_group(MAIN_GROUP);
    let outer_confs = confs.take_group(LOCATION_GROUP);
    let frozen = Frozen {
        main_confs: ConfSets::default().set(&main_confs),
        outer_confs: builder.parts.confs.set(&outer_confs),
        servers: builder.servers,
        locations: closed(builder.locations),
        endpoints,
        variables,
        identity,
        prefix: line.level.build.in_prefix(conf::Access::Opened, ""),
        conf_prefix: line.level.build.in_conf_prefix(conf::Access::Opened, ""),
        generation: host::generation::next_generation(),
    };
    crate::tls::check_configuration(&frozen, &builder.places, line);
    Ok(frozen)
}

/// The variables of the engine and of `modules`.
fn registry(modules: &[&'static Module]) -> Registry<Request> {
    let mut registry = Registry::new();
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
pub fn server(line: &mut Line, parents: &mut Confs) -> Result<(), Diagnostic> {
    let mut confs = parents.child(SERVER_GROUP);
    let id = open(line, BString::default(), LocationKind::Unnamed, None);
    dispatch(
        line.node.block.nodes(),
        &mut confs,
        Some(parents),
        &mut line.level.inner(SERVER),
    );
    let mut core = confs.get::<ServerConf>().cloned().unwrap_or_default();
    core.http2 = confs.get::<core::Http2Conf>().cloned().unwrap_or_default();
    let server_confs = confs.take_group(SERVER_GROUP);
    let tree = close(line, &mut confs);
    let builder = line.level.engine::<Builder>();
    let mut named = std::mem::take(&mut builder.named);
    let takes_connect = std::mem::take(&mut builder.connect);
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
        .map(|handshake| (handshake.handler, (handshake.keeps)(root)));
    let handlers = builder
        .modules
        .iter()
        .filter(|module| (module.enabled)(root));
    let handlers = handlers.flat_map(|module| module.phases.iter().copied());
    let phases = Phases::collect(
        handlers.filter(|(phase, _)| matches!(phase, Phase::PostRead | Phase::ServerRewrite)),
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
    builder.servers.push(Server {
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

/// Makes the server that a directive stands in take CONNECT, for the module whose directive that is.
pub fn take_connect(line: &mut Line) {
    line.level.engine::<Builder>().connect = true;
}

/// The tables of modules whose directives stand in `upstream { … }`, for who reads such a block.
pub fn upstream_tables(line: &mut Line) -> TableSet {
    let modules = line.level.engine::<Builder>().modules;
    let tables = modules.iter().map(|module| module.upstream);
    tables.filter(|table| !table.is_empty()).collect()
}

/// The setter of `location`.
pub fn location(line: &mut Line, parents: &mut Confs) -> Result<(), Diagnostic> {
    let (kind, name) = parse_location(line)?;
    check_place(line, &kind, name.as_bstr())?;
    let mut confs = parents.child(LOCATION_GROUP);
    for module in line.level.engine::<Builder>().modules {
        (module.nested)(&mut confs);
    }
    confs.change_if(LocationConf::has_own_part, LocationConf::enter_child);
    let id = open(line, name.clone(), kind.clone(), None);
    dispatch(
        line.node.block.nodes(),
        &mut confs,
        Some(parents),
        &mut line.level.inner(LOCATION),
    );
    let tree = close(line, &mut confs);
    let builder = line.level.engine::<Builder>();
    if let Some(location) = &mut builder.locations[id.0 as usize] {
        location.tree = tree;
    }
    match kind {
        LocationKind::Named => builder.named.push((name, id)),
        kind => {
            let frame = builder
                .open
                .last_mut()
                .expect("a location stands in a server or location");
            frame.children.push((name, kind, id));
        }
    }
    Ok(())
}

/// The setter of `limit_except`.
pub fn limit_except(line: &mut Line, parents: &mut Confs) -> Result<(), Diagnostic> {
    let mut allowed = 0;
    for (index, word) in line.args().iter().enumerate() {
        let method = Method::from_bytes(&word.text);
        if matches!(method, Method::Other | Method::Connect | Method::Trace) {
            return Err(line.error_at(index, format!("invalid method \"{}\"", word.text)));
        }
        allowed |= method.bit();
        if method == Method::Get {
            allowed |= Method::Head.bit();
        }
    }
    let id = block(line, parents, LIMIT_EXCEPT);
    let frame = line
        .level
        .engine::<Builder>()
        .open
        .last_mut()
        .expect("limit_except stands in a location");
    frame.limit_except = Some((allowed, id));
    Ok(())
}

/// Reads the block of an `if`, for the module whose directive that is: a pseudo location that a request is in for as
/// long as the condition's block counts.
pub fn condition(line: &mut Line, parents: &mut Confs) -> LocationId {
    let context = if line.level.context == SERVER {
        SERVER_IF
    } else {
        LOCATION_IF
    };
    block(line, parents, context)
}

fn block(line: &mut Line, parents: &mut Confs, context: Contexts) -> LocationId {
    let mut confs = parents.child(LOCATION_GROUP);
    let frame = line
        .level
        .engine::<Builder>()
        .open
        .last()
        .expect("the block stands in a server or location");
    let (name, kind) = (frame.name.clone(), frame.kind.clone());
    // A condition leaves the location's handler in place. Where methods are excluded, nginx chooses it anew.
    let answer = frame.answer.filter(|_| context != LIMIT_EXCEPT);
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
        &mut line.level.inner(context),
    );
    close(line, &mut confs);
    let builder = line.level.engine::<Builder>();
    if let Some(outer) = builder.open.last_mut() {
        outer.rewriters.append(&mut builder.rewriters);
    }
    id
}

/// Opens a block. `outer` is who answers if no directive in the block says it.
fn open(
    line: &mut Line,
    name: BString,
    kind: LocationKind,
    outer: Option<&'static Answer>,
) -> LocationId {
    let nodes = line.node.block.nodes();
    let builder = line.level.engine::<Builder>();
    let answers = || {
        builder
            .modules
            .iter()
            .filter_map(|module| module.answer.as_ref())
    };
    let named = |node: &conf::Node| {
        answers().find(|answer| answer.directives.iter().any(|name| node.name.text == *name))
    };
    let answer = nodes.iter().rev().find_map(named).or(outer);
    let id = LocationId(builder.locations.len() as u32);
    builder.locations.push(None);
    builder.heads.push(line.node.head);
    builder.open.push(Frame {
        id,
        name,
        kind,
        children: Vec::new(),
        limit_except: None,
        answer,
        rewriters: Vec::new(),
    });
    id
}

/// Freezes the innermost open block. What is given back is the tree of the locations inside it.
fn close(line: &mut Line, confs: &mut Confs) -> LocationTree {
    let core = line.level.engine::<Builder>().parts.core(confs);
    let structs = confs.take_group(LOCATION_GROUP);
    let builder = line.level.engine::<Builder>();
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

/// The location that a directive stands in.
pub fn present_location(line: &mut Line) -> PresentLocation {
    let builder = line.level.engine::<Builder>();
    match builder.open.last() {
        Some(frame) => match frame.kind {
            LocationKind::Regex(_) => PresentLocation::Regex,
            LocationKind::Named => PresentLocation::Named,
            _ => PresentLocation::Prefix(frame.name.len()),
        },
        None => PresentLocation::Prefix(0),
    }
}

/// The name of the location that a directive stands in; empty in a server.
pub fn present_location_name(line: &mut Line) -> BString {
    let builder = line.level.engine::<Builder>();
    builder
        .open
        .last()
        .map(|frame| frame.name.clone())
        .unwrap_or_default()
}

fn parse_location(line: &mut Line) -> Result<(LocationKind, BString), Diagnostic> {
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
    line: &mut Line,
    index: usize,
    pattern: &[u8],
    caseless: bool,
) -> Result<LocationKind, Diagnostic> {
    Ok(LocationKind::Regex(Arc::new(Pattern::compile(
        line, index, pattern, caseless,
    )?)))
}

/// nginx's rules for locations inside locations, and against the same one twice.
fn check_place(line: &mut Line, kind: &LocationKind, name: &BStr) -> Result<(), Diagnostic> {
    let duplicate = format!("duplicate location \"{name}\"");
    let builder = line.level.engine::<Builder>();
    let depth = builder.open.len();
    let frame = builder
        .open
        .last()
        .expect("a location stands in a server or location");
    let outer = frame.name.clone();
    let same = |other: &LocationKind| {
        matches!(
            (other, kind),
            (LocationKind::Exact, LocationKind::Exact)
                | (LocationKind::Prefix { .. }, LocationKind::Prefix { .. })
        )
    };
    let first = match kind {
        LocationKind::Named => builder
            .named
            .iter()
            .find(|(known, _)| known.as_bstr() == name)
            .map(|(_, id)| *id),
        _ => frame
            .children
            .iter()
            .find(|(known, other, _)| known.as_bstr() == name && same(other))
            .map(|(_, _, id)| *id),
    };
    let outer_kind = frame.kind.clone();
    if let Some(first) = first {
        let first = builder.heads[first.0 as usize];
        return Err(line.error_after(first, duplicate));
    }
    if depth < 2 {
        return Ok(());
    }
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
            if !name.starts_with(&outer) =>
        {
            Err(line.error(format!(
                "location \"{name}\" is outside location \"{outer}\""
            )))
        }
        _ => Ok(()),
    }
}
