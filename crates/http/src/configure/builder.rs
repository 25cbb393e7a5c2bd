//! What is under construction while `http {}` is read, and the opening and closing of blocks, which servers, locations and
//! `if` blocks have in common.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bstr::{BString, ByteSlice};
use conf::{BlockConfs, ConfSets, DirectiveLine};

use crate::explain::places::WantedBlockHeads;
use crate::http_site::{HttpServer, Location, LocationId, LocationKind};
use crate::kept_servers::{KeptServer, OutsideServers, ServerTraces};
use crate::listen;
use crate::location_parts::{LocationParts, collect_pipeline};
use crate::location_tree::LocationTree;
use crate::module::{ContentHandler, HttpModule};

/// The group of tables whose settings exist once for `http`.
pub(super) const MAIN_GROUP: usize = 0;

/// The group of tables whose settings exist once for each server.
pub(super) const SERVER_GROUP: usize = 1;

/// The group of tables whose settings exist once for each location.
pub(super) const LOCATION_GROUP: usize = 2;

/// The configuration that is being built. Setters of blocks reach it through `line.level.engine()`.
pub struct HttpBuilder {
    pub(super) modules: &'static [&'static HttpModule],
    pub(super) servers: Vec<Arc<HttpServer>>,
    /// The locations of the servers that are complete, by the numbers of the lists.
    pub(super) blocks: Vec<Arc<[Location]>>,
    /// Numbers of lists that no server has yet; beyond them, the next one is the length of `blocks`.
    pub(super) free_blocks: Vec<u32>,
    /// The number of the current server's list.
    pub(super) block: u32,
    /// The servers of the reading before, as far as they have not been taken over.
    pub(super) known: Vec<Option<KeptServer>>,
    /// All servers, for the next reading.
    pub(super) kept: Vec<KeptServer>,
    /// What the lines of all blocks have left outside of them.
    pub(super) traces: ServerTraces,
    /// Only servers that may have changed are read.
    pub(super) reads_changes: bool,
    /// What `http` itself has done; set at the first server.
    pub(super) outside: Option<OutsideServers>,
    /// How many names had been resolved, and how many messages there were, before `http` was read.
    pub(super) before: (u64, usize),
    /// Where the servers' blocks are in the configuration, for diagnostics.
    pub(super) places: Vec<base::Span>,
    pub(super) listens: Vec<listen::ServerListen>,
    /// The locations of the current server.
    pub(super) locations: Vec<Option<Location>>,
    /// Where each location begins, for diagnostics.
    pub(super) heads: Vec<base::Span>,
    /// Where they are kept, if it is to be known what stands where.
    pub(super) kept_heads: WantedBlockHeads,
    /// The blocks around the current line, outermost first.
    pub(super) open: Vec<OpenBlock>,
    pub(super) named: Vec<(BString, LocationId)>,
    /// The current server accepts CONNECT.
    pub(super) connect: bool,
    /// Modules' structs of servers.
    pub(super) server_confs: ConfSets,
    /// The modules that run in phase `Rewrite` of the block that was closed last.
    pub(super) rewriters: Vec<&'static str>,
    pub(super) parts: LocationParts,
    /// The content handlers by the directives that choose them.
    pub(super) content_handlers: HashMap<&'static [u8], &'static ContentHandler>,
    /// The named locations of the current server by name.
    pub(super) named_ids: HashMap<BString, LocationId>,
}

impl HttpBuilder {
    /// An empty builder.
    pub(super) fn new(modules: &'static [&'static HttpModule]) -> HttpBuilder {
        HttpBuilder {
            modules,
            servers: Vec::new(),
            blocks: Vec::new(),
            free_blocks: Vec::new(),
            block: 0,
            known: Vec::new(),
            kept: Vec::new(),
            traces: ServerTraces::default(),
            reads_changes: false,
            outside: None,
            before: (0, 0),
            places: Vec::new(),
            listens: Vec::new(),
            locations: Vec::new(),
            heads: Vec::new(),
            kept_heads: WantedBlockHeads::default(),
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

    /// Keeps the lists of the servers that stay where they are; the numbers of the others are free.
    pub(super) fn reserve_blocks(&mut self, servers: &mut Vec<KeptServer>, known: &HashSet<usize>) {
        let used: HashSet<u32> = servers
            .iter()
            .enumerate()
            .filter_map(|(number, kept)| known.contains(&number).then_some(kept.block))
            .collect();
        let count = used.iter().max().map_or(0, |last| last + 1);
        self.blocks = vec![Arc::default(); count as usize];
        self.free_blocks = (0..count).filter(|block| !used.contains(block)).collect();
        self.known = servers.drain(..).map(Some).collect();
    }

    /// Forgets where the locations of a server begin, or keeps it.
    pub(super) fn end_heads(&mut self) {
        if let WantedBlockHeads(Some(kept)) = &self.kept_heads {
            kept.lock().insert(self.block, self.heads.clone());
        }
        self.heads.clear();
    }

    /// Gives the next server a number for its list of locations.
    pub(super) fn begin_server(&mut self) {
        self.block = match self.free_blocks.pop() {
            Some(block) => block,
            None => {
                self.blocks.push(Arc::default());
                self.blocks.len() as u32 - 1
            }
        };
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
pub(super) struct OpenBlock {
    pub(super) id: LocationId,
    pub(super) name: BString,
    pub(super) kind: LocationKind,
    pub(super) children: Vec<(BString, LocationKind, LocationId)>,
    /// The prefix and the exact locations inside by name, for a message about a second one.
    pub(super) child_ids: [HashMap<BString, LocationId>; 2],
    pub(super) limit_except: Option<(u32, LocationId)>,
    /// The module that produces the content if several could: as in nginx the one whose directive comes last.
    pub(super) answer: Option<&'static ContentHandler>,
    /// The modules that run in phase `Rewrite` of `if` blocks inside: a request that enters such a block is in the
    /// middle of that phase, so the enclosing location must have those handlers, too.
    pub(super) rewriters: Vec<&'static str>,
}

/// Opens a block. `outer` is the content handler if no directive in the block names one.
pub(super) fn open(
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
    let id = LocationId {
        block: builder.block,
        index: builder.locations.len() as u32,
    };
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
pub(super) fn close(line: &mut DirectiveLine, confs: &mut BlockConfs) -> LocationTree {
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
        tree: None,
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
    builder.locations[frame.id.index as usize] = Some(location);
    LocationTree::build(
        frame
            .children
            .iter()
            .map(|(name, kind, id)| (name.as_bstr(), kind, *id)),
    )
}
