//! Where the directives of a frozen configuration stand.
//!
//! What is frozen has no spans: a server may have hundreds of thousands of locations. `weir explain` keeps the tree that
//! was read beside it, and where each block begins in it. From there the lines follow by the rule of inheritance: those of
//! the innermost block that has any with this name.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use base::Span;
use base::sync::Mutex;
use bstr::{BStr, BString, ByteSlice};
use conf::{DirectiveNode, SourceMap};

use crate::block_ids::LocationId;

/// Where the blocks of each server begin, in the order of their numbers.
pub type BlockHeads = HashMap<u32, Vec<Span>>;

/// Put into the values that rows share, it has the builder keep where blocks begin. Without it nothing is kept.
#[derive(Clone, Default)]
pub struct WantedBlockHeads(pub Option<Arc<Mutex<BlockHeads>>>);

/// A place in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainedPlace {
    /// The file; empty for the command line's `-g`.
    pub file: PathBuf,
    /// The line, from 1.
    pub line: usize,
}

impl fmt::Display for ExplainedPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)
    }
}

/// A directive with its place.
#[derive(Clone, Debug)]
pub struct ExplainedLine<'t> {
    /// Its node.
    pub node: &'t DirectiveNode,
    /// Its text without the sign at its end, on one line.
    pub text: BString,
    /// Where it begins.
    pub place: Option<ExplainedPlace>,
}

/// The tree of a configuration, and the blocks of servers in it.
pub struct ExplainedTree {
    nodes: Vec<DirectiveNode>,
    sources: SourceMap,
    heads: BlockHeads,
    /// For the place where a block begins, the positions that lead to it from the top.
    paths: HashMap<(base::FileId, u32), Box<[u32]>>,
}

/// The blocks that requests can be in, and those around them.
const BLOCKS: [&[u8]; 5] = [b"http", b"server", b"location", b"if", b"limit_except"];

impl ExplainedTree {
    /// Finds the blocks of a tree.
    pub fn new(nodes: Vec<DirectiveNode>, sources: SourceMap, heads: BlockHeads) -> ExplainedTree {
        let mut paths = HashMap::new();
        add_paths(&nodes, &mut Vec::new(), &mut paths);
        ExplainedTree {
            nodes,
            sources,
            heads,
            paths,
        }
    }

    /// The blocks around a location and its own, outermost first. Empty if it is not known where it stands.
    fn blocks(&self, location: LocationId) -> Vec<&DirectiveNode> {
        let head = self
            .heads
            .get(&location.block)
            .and_then(|heads| heads.get(location.index as usize));
        let path = head.and_then(|head| self.paths.get(&(head.file, head.start)));
        let (mut nodes, mut blocks) = (&self.nodes[..], Vec::new());
        for index in path.into_iter().flatten() {
            let Some(node) = nodes.get(*index as usize) else {
                break;
            };
            blocks.push(node);
            nodes = node.block.nodes();
        }
        blocks
    }

    /// The block of a location.
    pub fn block(&self, location: LocationId) -> Option<ExplainedLine<'_>> {
        let blocks = self.blocks(location);
        blocks.last().map(|node| self.line(node))
    }

    /// The directives with one of these names that apply to a location: those of the innermost block that has any.
    pub fn lines(&self, location: LocationId, names: &[&str]) -> Vec<ExplainedLine<'_>> {
        let is_meant = |node: &&DirectiveNode| names.iter().any(|name| node.name.is(name));
        let blocks = self.blocks(location).into_iter().rev();
        let levels = blocks.map(|block| block.block.nodes().iter().filter(is_meant));
        let lines = levels.map(|nodes| nodes.map(|node| self.line(node)).collect::<Vec<_>>());
        lines
            .into_iter()
            .find(|lines| !lines.is_empty())
            .unwrap_or_default()
    }

    /// The directive at this position of a location's own block.
    pub fn line_at(&self, location: LocationId, index: usize) -> Option<ExplainedLine<'_>> {
        let blocks = self.blocks(location);
        let node = blocks.last()?.block.nodes().get(index)?;
        Some(self.line(node))
    }

    /// A directive of the main level of `http` whose first word is this one, such as an `upstream`.
    pub fn named_block(&self, directive: &str, name: &BStr) -> Option<ExplainedLine<'_>> {
        let blocks = self.nodes.iter().filter(|node| node.name.is("http"));
        let mut nodes = blocks.flat_map(|http| http.block.nodes());
        let node = nodes.find(|node| {
            node.name.is(directive) && node.args.first().is_some_and(|word| word.text == *name)
        })?;
        Some(self.line(node))
    }

    /// The lines with this name in a block.
    pub fn lines_in(&self, block: &DirectiveNode, name: &str) -> Vec<ExplainedLine<'_>> {
        let head = (block.head.file, block.head.start);
        let nodes = self.nodes.iter().filter(|node| node.name.is("http"));
        let block = nodes
            .flat_map(|http| http.block.nodes())
            .find(|node| (node.head.file, node.head.start) == head);
        let nodes = block.into_iter().flat_map(|block| block.block.nodes());
        let nodes = nodes.filter(|node| node.name.is(name));
        nodes.map(|node| self.line(node)).collect()
    }

    /// The place of a span.
    pub fn place(&self, span: Span) -> Option<ExplainedPlace> {
        let source = self.sources.get(span.file)?;
        Some(ExplainedPlace {
            file: source.path.clone(),
            line: self.sources.line_column(span)?.0,
        })
    }

    fn line<'t>(&'t self, node: &'t DirectiveNode) -> ExplainedLine<'t> {
        let text = self.sources.text(node.head).unwrap_or_default();
        let text = text.trim_end_with(|sign| matches!(sign, ';' | '{') || sign.is_whitespace());
        let words: Vec<&[u8]> = text.fields().collect();
        ExplainedLine {
            node,
            text: bstr::join(" ", words).into(),
            place: self.place(node.head),
        }
    }
}

/// Notes the paths to the blocks among `nodes`, whose own path is `path`.
fn add_paths(
    nodes: &[DirectiveNode],
    path: &mut Vec<u32>,
    paths: &mut HashMap<(base::FileId, u32), Box<[u32]>>,
) {
    for (index, node) in nodes.iter().enumerate() {
        if !BLOCKS.contains(&node.name.text.as_slice()) {
            continue;
        }
        path.push(u32::try_from(index).unwrap_or(u32::MAX));
        paths.insert((node.head.file, node.head.start), path.as_slice().into());
        add_paths(node.block.nodes(), path, paths);
        path.pop();
    }
}
