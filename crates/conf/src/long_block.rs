//! Blocks of very many lines: a `map` or `geo` of a whole country's networks, mostly from an included file.
//!
//! A line as a node takes some two hundred bytes, many times its text. So once a block without inner braces has
//! [`LONG_BLOCK`] lines, it is kept as the ranges of the texts that it consists of, and its lines are read from there
//! whenever they are iterated over. Reading twice costs less time than the allocations that it saves.
//!
//! Who needs nodes that stay (`upstream` with thousands of servers) gets them from [`LongBlock::nodes`].

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use base::{ByteSlice, FileId, Span};

use crate::lexer::{Lexer, PlacedWord, StatementEnd};
use crate::tree::{BlockContent, DirectiveNode};

/// A block with this many lines is a long one.
const LONG_BLOCK: usize = 1024;

/// The content of a block with very many lines, none of which has braces.
#[derive(Clone, Debug)]
pub struct LongBlock {
    /// In the order of the lines. An `include` is where one run ends and the next begins.
    runs: Box<[LineRun]>,
    count: usize,
    /// The lines as nodes, for those who asked for them.
    nodes: OnceLock<Vec<DirectiveNode>>,
}

/// Lines that follow each other in one text.
#[derive(Clone, Debug)]
struct LineRun {
    text: Arc<[u8]>,
    file: FileId,
    start: u32,
    end: u32,
}

impl LongBlock {
    /// The lines as nodes, which are kept from now on.
    pub fn nodes(&self) -> &[DirectiveNode] {
        self.nodes.get_or_init(|| nodes_of(&self.runs, self.count))
    }

    /// The lines, each a node for as long as it is looked at.
    pub fn lines(&self) -> BlockLines<'_> {
        BlockLines {
            nodes: [].iter(),
            runs: self.runs.iter(),
            lexer: None,
            words: Vec::new(),
            count: self.count,
            skips_braces: false,
        }
    }

    /// The texts that have the lines, in their order.
    pub(crate) fn texts(&self) -> impl Iterator<Item = &[u8]> {
        let runs = self.runs.iter();
        runs.map(|run| &run.text[run.start as usize..run.end as usize])
    }

    /// Whether a line may contain this text: `false` is certain.
    pub fn may_contain(&self, text: &[u8]) -> bool {
        self.texts().any(|lines| {
            // An escape can hide any text.
            lines.contains(&b'\\') || lines.contains_str(text)
        })
    }
}

fn nodes_of(runs: &[LineRun], count: usize) -> Vec<DirectiveNode> {
    let lines = BlockLines {
        nodes: [].iter(),
        runs: runs.iter(),
        lexer: None,
        words: Vec::new(),
        count,
        skips_braces: false,
    };
    let mut nodes = Vec::with_capacity(count);
    nodes.extend(lines.map(Cow::into_owned));
    nodes
}

/// The lines of a block, one after the other.
#[derive(Clone)]
pub struct BlockLines<'t> {
    nodes: std::slice::Iter<'t, DirectiveNode>,
    runs: std::slice::Iter<'t, LineRun>,
    /// What reads the current run.
    lexer: Option<Lexer<'t>>,
    /// The words of a line; here so that their memory is used again.
    words: Vec<PlacedWord>,
    count: usize,
    skips_braces: bool,
}

impl<'t> BlockLines<'t> {
    pub(crate) fn of_nodes(nodes: &'t [DirectiveNode]) -> BlockLines<'t> {
        BlockLines {
            nodes: nodes.iter(),
            runs: [].iter(),
            lexer: None,
            words: Vec::new(),
            count: nodes.len(),
            skips_braces: false,
        }
    }

    /// Only those without braces.
    pub(crate) fn without_braces(self) -> BlockLines<'t> {
        BlockLines {
            skips_braces: true,
            ..self
        }
    }

    /// How many lines the block has.
    pub fn count_all(&self) -> usize {
        self.count
    }
}

impl<'t> Iterator for BlockLines<'t> {
    type Item = Cow<'t, DirectiveNode>;

    fn next(&mut self) -> Option<Cow<'t, DirectiveNode>> {
        let skips = self.skips_braces;
        if let Some(node) = self.nodes.find(|node| !skips || !node.has_braces()) {
            return Some(Cow::Borrowed(node));
        }
        loop {
            let Some(lexer) = &mut self.lexer else {
                let run = self.runs.next()?;
                let text = &run.text[..run.end as usize];
                self.lexer = Some(Lexer::new(text, run.file, false).starting_at(run.start));
                continue;
            };
            // Errors were reported when the configuration was read.
            let statement = lexer.statement(&mut self.words, &mut Vec::new());
            match statement.end {
                StatementEnd::Semicolon => {
                    if let Some(node) = simple_node(&self.words, statement.span, lexer) {
                        return Some(Cow::Owned(node));
                    }
                }
                StatementEnd::File => self.lexer = None,
                // The end of the block, or an error that was reported.
                StatementEnd::Close | StatementEnd::Open => {}
            }
        }
    }
}

/// A directive without braces.
fn simple_node(words: &[PlacedWord], head: Span, lexer: &Lexer) -> Option<DirectiveNode> {
    let (name, args) = words.split_first()?;
    Some(DirectiveNode {
        name: lexer.resolve(*name),
        args: args.iter().map(|word| lexer.resolve(*word)).collect(),
        block: BlockContent::None,
        head,
        span: head,
    })
}

/// A block while it is read.
#[derive(Default)]
pub(crate) struct BlockDraft {
    /// The lines so far; empty if there are too many.
    nodes: Vec<DirectiveNode>,
    /// Where the lines are, up to the run that is being read.
    runs: Vec<LineRun>,
    /// The run that is being read; its end is not known yet.
    open: Option<LineRun>,
    /// How many lines there are only as text.
    count: usize,
    /// It has braces or must be read again, so that it has to consist of nodes.
    is_short: bool,
}

impl BlockDraft {
    /// How many directives there are so far.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len() + self.count
    }

    /// The lines from the lexer's place on are in this text.
    pub(crate) fn begin_run(&mut self, text: &Arc<[u8]>, lexer: &Lexer) {
        if !self.is_short {
            self.open = Some(LineRun {
                text: Arc::clone(text),
                file: lexer.file(),
                start: lexer.position(),
                end: lexer.position(),
            });
        }
    }

    /// The run ends here.
    pub(crate) fn end_run(&mut self, end: u32) {
        let Some(run) = self.open.take() else {
            return;
        };
        if end > run.start {
            self.runs.push(LineRun { end, ..run });
        }
    }

    /// Adds a line. An `include` is not added but returned, and ends the run.
    pub(crate) fn line(
        &mut self,
        words: &[PlacedWord],
        head: Span,
        lexer: &Lexer,
    ) -> Option<DirectiveNode> {
        // Seven letters, or more with escapes.
        let may_include = words.first().is_some_and(|name| name.span.len() >= 7);
        if self.count > 0 && !may_include {
            self.count += 1;
            return None;
        }
        let node = simple_node(words, head, lexer)?;
        if node.name.is("include") {
            self.end_run(head.start);
            return Some(node);
        }
        if self.count > 0 {
            self.count += 1;
            return None;
        }
        self.nodes.push(node);
        if self.nodes.len() >= LONG_BLOCK && !self.is_short {
            self.count = self.nodes.len();
            self.nodes = Vec::new();
        }
        None
    }

    /// Adds a directive with braces, after [`BlockDraft::expand`].
    pub(crate) fn push(&mut self, node: DirectiveNode) {
        self.nodes.push(node);
    }

    /// Makes it consist of nodes for good. `end` is the place up to which its lines have been read.
    pub(crate) fn expand(&mut self, end: u32) {
        if self.is_short {
            return;
        }
        self.is_short = true;
        self.end_run(end);
        if self.count > 0 {
            self.nodes = nodes_of(&self.runs, self.count);
            self.count = 0;
        }
        self.runs = Vec::new();
    }

    /// Removes the directives after the first `len`, which will be read again.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.expand(0);
        self.nodes.truncate(len);
    }

    /// The directives.
    pub(crate) fn into_nodes(mut self) -> Vec<DirectiveNode> {
        self.expand(0);
        self.nodes
    }

    /// The content of the block.
    pub(crate) fn into_content(mut self) -> BlockContent {
        if self.count == 0 {
            // Most blocks have one or two lines, and a vector starts with room for four.
            self.nodes.shrink_to_fit();
            return BlockContent::Nodes(self.nodes);
        }
        BlockContent::Long(Box::new(LongBlock {
            runs: self.runs.into_boxed_slice(),
            count: self.count,
            nodes: OnceLock::new(),
        }))
    }
}
