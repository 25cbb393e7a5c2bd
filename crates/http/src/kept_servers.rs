//! What a reload takes over of `http {}`: the servers that have not changed, as they were built.
//!
//! A reading leaves a [`KeptHttp`]: the settings of `http` itself, the registries that its lines have filled, and each server
//! with what its lines have done besides building it ([`ServerTraces`]). If only `server` blocks differ at the next reading,
//! that one begins with all this, repeats the traces of servers that the parser found unchanged
//! ([`conf::BlockContent::Known`]), and applies the lines of the others only.
//!
//! Whatever is not known to be repeatable makes the next reading a complete one: [`conf::BlockContext::shared`].

use std::collections::{BTreeSet, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

use conf::{
    BlockConfs, BlockContent, BlockSource, CompiledPatterns, ConfigurationBuild, DirectiveLine,
    DirectiveNode, FileUse, Span, SystemNeeds, TypeMap, VariableCheckpoint, VariableRegistry,
    VariableUses,
};
use host::error_log::{LogFile, LogFiles};
use net::upstream::{UpstreamGroup, UpstreamGroups};

use crate::core::blocks::RequiredDirectories;
use crate::http_site::{HttpServer, Location};
use crate::request::Request;

/// The state of a reading that the next one can begin with.
pub struct KeptHttp {
    /// The settings of `http`.
    pub(crate) confs: BlockConfs,
    pub(crate) registry: VariableRegistry<Request>,
    pub(crate) outside: OutsideServers,
    /// The registries of modules.
    pub shared: TypeMap,
    pub(crate) servers: Vec<KeptServer>,
}

/// What the lines of `http` itself have done.
pub(crate) struct OutsideServers {
    pub(crate) variables: VariableCheckpoint<Request>,
    pub(crate) traces: ServerTraces,
    /// How many names had been resolved before `http` was read.
    names_asked: u64,
}

/// A server as it was built.
pub(crate) struct KeptServer {
    pub(crate) source: BlockSource,
    pub(crate) server: Arc<HttpServer>,
    /// The number of its list of locations.
    pub(crate) block: u32,
    pub(crate) locations: Arc<[Location]>,
    pub(crate) variables: VariableUses,
    pub(crate) traces: ServerTraces,
    /// Where its block was when it was built: positions in it are relative to that.
    pub(crate) place: Span,
}

/// What the lines of a server have left outside of it.
#[derive(Clone, Default)]
pub(crate) struct ServerTraces {
    groups: Vec<Arc<UpstreamGroup>>,
    /// Held, because only files that someone holds stay in the set.
    log_files: Vec<Arc<LogFile>>,
    directories: BTreeSet<PathBuf>,
    needs: SystemNeeds,
    files: Vec<FileUse>,
}

impl ServerTraces {
    /// Takes what lines have left since this was last called.
    pub(crate) fn take(line: &mut DirectiveLine) -> ServerTraces {
        let needs = std::mem::take(&mut *line.level.build.needs());
        ServerTraces {
            groups: line.lasting::<UpstreamGroups>().take_referred(),
            log_files: line.lasting::<LogFiles>().take_asked(),
            directories: std::mem::take(&mut line.lasting::<RequiredDirectories>().0),
            needs,
            files: line.files().take_uses().unwrap_or_default(),
        }
    }

    /// Leaves the same again, so that the whole configuration has it.
    pub(crate) fn leave(&self, line: &mut DirectiveLine) {
        let directories = &mut line.lasting::<RequiredDirectories>().0;
        directories.extend(self.directories.iter().cloned());
        line.level.build.needs().merge(&self.needs);
    }

    /// Adds what another block has left.
    pub(crate) fn add(&mut self, other: &ServerTraces) {
        self.directories.extend(other.directories.iter().cloned());
        self.needs.merge(&other.needs);
    }

    /// Takes the list of files that were read.
    pub(crate) fn take_files(&mut self) -> Vec<FileUse> {
        std::mem::take(&mut self.files)
    }
}

impl OutsideServers {
    /// Called before `http` is read.
    pub(crate) fn begin(line: &mut DirectiveLine) -> (ServerTraces, u64, usize) {
        let before = ServerTraces::take(line);
        let messages = line.level.build.diagnostics.len();
        (before, net::upstream::names_asked(), messages)
    }

    /// Called when the lines of `http` itself have been applied.
    pub(crate) fn end(
        line: &mut DirectiveLine,
        (names_asked, messages): (u64, usize),
    ) -> OutsideServers {
        let variables = line
            .level
            .registry::<Request>()
            .expect("http's rows stand in http")
            .checkpoint();
        let mut traces = ServerTraces::take(line);
        // Those of blocks, and of URLs in `http` itself: every server can refer to them.
        traces.groups = line.lasting::<UpstreamGroups>().all_groups();
        // Warnings about `http` itself would be missing at a reload that does not apply its lines.
        let build = &mut *line.level.build;
        build.must_always_read_all |= build.diagnostics.len() != messages;
        build.must_read_all = false;
        OutsideServers {
            variables,
            traces,
            names_asked,
        }
    }

    /// Whether the reading that is complete now can be the beginning of another one.
    pub(crate) fn can_be_kept(&self, build: &ConfigurationBuild) -> bool {
        !build.must_read_all
            && !build.must_always_read_all
            && self.names_asked == net::upstream::names_asked()
    }
}

impl KeptHttp {
    /// The texts of the servers, for the parser. Their positions are the servers' numbers.
    pub fn take_sources(&mut self) -> Vec<BlockSource> {
        let servers = self.servers.iter_mut();
        servers
            .map(|kept| std::mem::take(&mut kept.source))
            .collect()
    }

    /// Gives a server the place back at which the parser has found it.
    pub fn put_source(&mut self, number: usize, source: BlockSource) {
        if let Some(kept) = self.servers.get_mut(number) {
            kept.source = source;
        }
    }

    /// The files that lines of `http` itself have read.
    pub fn outside_files(&self) -> &[FileUse] {
        &self.outside.traces.files
    }

    /// Drops what only serving needs: for a master, which reads the configuration to test it and to open what it names.
    /// Returns how many servers it was dropped of.
    pub fn forget_locations(&mut self) -> usize {
        // A server that was taken over has none any more.
        let whole = self.servers.iter_mut();
        let whole: Vec<_> = whole.filter(|kept| !kept.locations.is_empty()).collect();
        let count = whole.len();
        for kept in whole {
            kept.locations = Arc::default();
            kept.server = Arc::new(kept.server.without_locations());
            // A changed server finds those of `http` itself, and makes what it names by a URL.
            kept.traces.groups = Vec::new();
        }
        self.renew_groups(&HashSet::new());
        // They only save work, and hold what was dropped.
        drop(self.shared.take::<CompiledPatterns>());
        count
    }

    /// Replaces what is kept of servers by copies that stand together. What is left of a server stood among its locations,
    /// and holds pages of memory for a few bytes each.
    pub fn move_servers_together(&mut self) {
        let servers = &mut self.servers;
        // The allocator gives a thread memory of its own, where nothing else is.
        host::process::run_aside(|| {
            let mut paths = HashSet::new();
            *servers = servers.iter().map(|kept| kept.copied(&mut paths)).collect();
        });
    }

    /// Drops it in a child of the process that has read it, which only has to close log files. The servers are left as they
    /// are: to free them would copy the pages that the child shares with its parent.
    pub fn abandon(mut self) {
        let traces = self.servers.iter_mut().map(|kept| &mut kept.traces);
        for traces in traces.filter(|traces| !traces.log_files.is_empty()) {
            traces.log_files = Vec::new();
        }
        std::mem::forget(std::mem::take(&mut self.servers));
    }

    /// Whether it comes from a complete reading, whose registries have yet to be put in.
    pub fn is_complete_reading(&self) -> bool {
        self.shared.get::<LogFiles>().is_none()
    }

    /// The log files of this reading.
    pub fn log_files(&self) -> Option<LogFiles> {
        self.shared.get::<LogFiles>().cloned()
    }

    /// Prepares the registry of upstream groups: those of `http` itself, and those of the servers that stay. A server that is
    /// built anew must find theirs, or there would be two of one name.
    pub(crate) fn renew_groups(&mut self, known: &HashSet<usize>) {
        let groups = self.shared.get_or_default::<UpstreamGroups>();
        let next = groups.with_groups(&self.outside.traces.groups);
        for (_, kept) in self
            .servers
            .iter()
            .enumerate()
            .filter(|(number, _)| known.contains(number))
        {
            kept.traces
                .groups
                .iter()
                .for_each(|group| next.adopt_group(group));
        }
        if let Some(conf) = self.confs.get_mut::<UpstreamGroups>() {
            conf.clone_from(&next);
        }
        self.shared.insert(next);
    }
}

impl KeptServer {
    /// A copy of one without locations.
    fn copied(&self, paths: &mut HashSet<Arc<[u8]>>) -> KeptServer {
        KeptServer {
            source: self.source.copied(paths),
            server: Arc::new(self.server.copied()),
            block: self.block,
            locations: Arc::default(),
            variables: self.variables.clone(),
            traces: self.traces.clone(),
            place: self.place,
        }
    }
}

/// The numbers of the servers that the parser found unchanged.
pub(crate) fn known_numbers(nodes: &[DirectiveNode]) -> HashSet<usize> {
    let number = |node: &DirectiveNode| match node.block {
        BlockContent::Known(number) => Some(number),
        BlockContent::None
        | BlockContent::Nodes(_)
        | BlockContent::Long(_)
        | BlockContent::Raw(_) => None,
    };
    nodes.iter().filter_map(number).collect()
}

/// A position in a block that has been moved. One in a file that the block includes becomes the block's own.
pub(crate) fn moved(span: Span, from: Span, to: Span) -> Span {
    if span.file != from.file || span.start < from.start || span.end > from.end {
        return to;
    }
    Span {
        file: to.file,
        start: span.start - from.start + to.start,
        end: span.end - from.start + to.start,
    }
}
