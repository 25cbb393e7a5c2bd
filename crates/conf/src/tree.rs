//! A configuration as a tree of nodes, read from files with every `include` expanded.
//!
//! The tree consists of words and braces, not directives: whether a name exists, where it is
//! allowed and what its words mean is decided later, by [`crate::dispatch()`]. Every word keeps its
//! place, so that any later message can show it.
//!
//! A block of very many lines, as a `map` can have, is not kept as nodes ([`crate::long_block`]).
//!
//! A syntax error does not end parsing: the rest is parsed as far as possible, so that one run
//! shows every mistake.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::text::errno_text;
use base::{BStr, BString, ByteSlice, Span};

use crate::diagnostic::{Diagnostic, DiagnosticPlace};
use crate::file_source::{ContentHash, FileSource, FileUse};
use crate::glob;
use crate::known_blocks::{BlockSource, KnownBlocks};
use crate::lexer::{Lexer, PlacedWord, StatementEnd};
use crate::long_block::{BlockDraft, BlockLines, LongBlock};
use crate::lua;
use crate::missing_signs::{self, MissingBrace};

pub use crate::source_map::{SourceKind, SourceMap, SourceText};

/// A configuration that was read.
#[derive(Debug, Default)]
pub struct ConfigurationTree {
    /// The nodes of the command line's `-g`, then those of the file.
    pub nodes: Vec<DirectiveNode>,
    /// The texts that the spans point into.
    pub sources: SourceMap,
    /// The `server` blocks of `http` that were parsed, by the place where each begins.
    pub blocks: HashMap<BlockPlace, BlockSource>,
}

/// The place where a block begins: its text and the offset in it.
pub type BlockPlace = (base::FileId, u32);

/// One directive.
#[derive(Clone, Debug)]
pub struct DirectiveNode {
    /// Its name.
    pub name: DirectiveWord,
    /// The words after the name.
    pub args: Box<[DirectiveWord]>,
    /// The content of its braces, if it has any.
    pub block: BlockContent,
    /// From the name to the `;` or `{`, which is the last byte. nginx names the line of that byte
    /// in messages.
    pub head: Span,
    /// From the name to the `;` or the closing `}`.
    pub span: Span,
}

/// A word: bare or quoted, escapes resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectiveWord {
    /// The text, without quotes.
    pub text: BString,
    /// Its place; quotes are not part of it.
    pub span: Span,
    /// Whether it was quoted.
    pub quoted: bool,
}

impl DirectiveWord {
    /// The text.
    pub fn as_bstr(&self) -> &BStr {
        self.text.as_bstr()
    }

    /// Whether the word is exactly this text.
    pub fn is(&self, text: &str) -> bool {
        self.text == text.as_bytes()
    }
}

/// What a directive has between braces.
#[derive(Clone, Debug)]
pub enum BlockContent {
    /// It ended with `;`.
    None,
    /// Directives, or rows of data (`types`, `map`).
    Nodes(Vec<DirectiveNode>),
    /// Very many lines without braces.
    Long(Box<LongBlock>),
    /// Text of another language (`content_by_lua_block`).
    Raw(Box<DirectiveWord>),
    /// A block that was skipped, because an earlier reading knows it: its number in [`KnownBlocks`].
    Known(usize),
}

impl BlockContent {
    /// The nodes between the braces; none without braces.
    pub fn nodes(&self) -> &[DirectiveNode] {
        match self {
            BlockContent::Nodes(nodes) => nodes,
            BlockContent::Long(block) => block.nodes(),
            BlockContent::None | BlockContent::Raw(_) | BlockContent::Known(_) => &[],
        }
    }

    /// The same one after the other. Those of a long block exist only while they are looked at.
    pub fn lines(&self) -> BlockLines<'_> {
        match self {
            BlockContent::Nodes(nodes) => BlockLines::of_nodes(nodes),
            BlockContent::Long(block) => block.lines(),
            BlockContent::None | BlockContent::Raw(_) | BlockContent::Known(_) => {
                BlockLines::of_nodes(&[])
            }
        }
    }

    /// Whether a word between the braces may contain this text: `false` is certain, and found quickly.
    pub fn may_contain(&self, text: &[u8]) -> bool {
        match self {
            BlockContent::Nodes(_) => true,
            BlockContent::Long(block) => block.may_contain(text),
            BlockContent::None | BlockContent::Raw(_) | BlockContent::Known(_) => false,
        }
    }
}

/// The maximum depth of blocks, including the includes between them.
pub const MAX_DEPTH: usize = 128;
/// The maximum number of files read, counting repeated includes.
pub const MAX_FILES: usize = 100_000;
/// The number of syntax errors after which parsing stops: the text is probably no configuration at
/// all.
pub const MAX_ERRORS: usize = 100;

/// Reads the configuration file at `path`, which must be absolute: relative includes count from its
/// directory. `extra_globals` is the text of the command line's `-g`, whose directives come first.
///
/// On any syntax error it is refused, with all errors in the order of their places.
pub fn parse_tree(
    path: &Path,
    files: &mut dyn FileSource,
    extra_globals: Option<&str>,
) -> Result<ConfigurationTree, (Vec<Diagnostic>, SourceMap)> {
    let (tree, diagnostics) = parse_tolerant(path, files, extra_globals);
    if diagnostics.is_empty() {
        Ok(tree)
    } else {
        Err((diagnostics, tree.sources))
    }
}

/// As [`parse_tree`], but gives what could be understood together with the errors, so that a caller can
/// go on and collect the errors of later steps too.
pub fn parse_tolerant(
    path: &Path,
    files: &mut dyn FileSource,
    extra_globals: Option<&str>,
) -> (ConfigurationTree, Vec<Diagnostic>) {
    parse_changes(path, files, extra_globals, None)
}

/// As [`parse_tolerant`], but skips the blocks that are known.
pub fn parse_changes(
    path: &Path,
    files: &mut dyn FileSource,
    extra_globals: Option<&str>,
    known: Option<&mut KnownBlocks>,
) -> (ConfigurationTree, Vec<Diagnostic>) {
    let mut parser = TreeParser {
        files,
        conf_prefix: path.parent().unwrap_or(Path::new("/")).to_owned(),
        sources: SourceMap::default(),
        texts: HashMap::new(),
        diagnostics: Vec::new(),
        including: Vec::new(),
        unclosed: false,
        known,
        open: 0,
        in_http: false,
        uses: None,
        blocks: HashMap::new(),
    };
    let mut draft = BlockDraft::default();
    if let Some(text) = extra_globals {
        parser.globals(text, &mut draft);
    }
    parser.file(path, None, 0, &mut draft);
    let nodes = draft.into_nodes();
    let TreeParser {
        sources,
        mut diagnostics,
        blocks,
        ..
    } = parser;
    sources.sort(&mut diagnostics);
    let tree = ConfigurationTree {
        nodes,
        sources,
        blocks,
    };
    (tree, diagnostics)
}

struct TreeParser<'f> {
    files: &'f mut dyn FileSource,
    conf_prefix: PathBuf,
    sources: SourceMap,
    /// Texts by path: a file that is included by a thousand servers is read once.
    texts: HashMap<PathBuf, Arc<[u8]>>,
    diagnostics: Vec<Diagnostic>,
    /// The paths of the files being read now, outermost first.
    including: Vec<Arc<[u8]>>,
    /// A block of the current file has no end.
    unclosed: bool,
    /// The blocks of the reading before.
    known: Option<&'f mut KnownBlocks>,
    /// How many braces are open, over all files.
    open: usize,
    /// The outermost of them is that of `http`.
    in_http: bool,
    /// What is read within the current `server` block of `http`.
    uses: Option<Vec<FileUse>>,
    /// The `server` blocks of `http`.
    blocks: HashMap<BlockPlace, BlockSource>,
}

/// The surroundings of a sequence of statements.
#[derive(Clone, Copy)]
enum StatementSurroundings {
    /// A whole file.
    File,
    /// The text of `-g`.
    Globals,
    /// Between the braces that this head opened.
    Braces(Span),
}

impl TreeParser<'_> {
    fn globals(&mut self, text: &str, draft: &mut BlockDraft) {
        let text: Arc<[u8]> = text.as_bytes().into();
        let file = self.sources.add(SourceText {
            path: PathBuf::from("command line"),
            kind: SourceKind::CommandLine,
            text: text.clone(),
            included_at: None,
        });
        let mut lexer = Lexer::new(&text, file, true);
        self.statements(&mut lexer, StatementSurroundings::Globals, 0, draft);
    }

    /// Parses a file in the place of the `include` at `from`.
    fn file(&mut self, path: &Path, from: Option<Span>, depth: usize, draft: &mut BlockDraft) {
        if self.sources.len() >= MAX_FILES {
            return self.error(format!("more than {MAX_FILES} files are included"), from);
        }
        let name = path.as_os_str().as_bytes();
        if self.including.iter().any(|including| **including == *name) {
            return self.error(format!("\"{}\" includes itself", path.display()), from);
        }
        let Some(text) = self.text_of(path, from) else {
            return;
        };
        let file = self.sources.add(SourceText {
            path: path.to_owned(),
            kind: SourceKind::File,
            text: text.clone(),
            included_at: from,
        });
        self.including.push(name.into());
        let before = (draft.len(), self.diagnostics.len(), self.sources.len());
        let mut lexer = Lexer::new(&text, file, false);
        let unclosed = std::mem::take(&mut self.unclosed);
        self.statements(&mut lexer, StatementSurroundings::File, depth, draft);
        let missing = match std::mem::replace(&mut self.unclosed, unclosed) {
            true => missing_signs::missing_braces(&text, file),
            false => Vec::new(),
        };
        if !missing.is_empty() {
            // With the braces in place, what follows is no longer in the wrong block.
            draft.truncate(before.0);
            self.diagnostics.truncate(before.1);
            self.sources.truncate(before.2);
            self.report_missing(&missing, &text);
            let closings = missing.iter().map(|brace| brace.before).collect();
            let mut lexer = Lexer::new(&text, file, false).with_closings(closings);
            self.statements(&mut lexer, StatementSurroundings::File, depth, draft);
        }
        self.including.pop();
    }

    /// Reports where braces are missing. The first line remains nginx's, which noticed at the end
    /// of the file.
    fn report_missing(&mut self, missing: &[MissingBrace], text: &[u8]) {
        for brace in missing {
            let end = Span {
                start: text.len() as u32,
                end: text.len() as u32,
                ..brace.head
            };
            let before = Span {
                start: brace.before as u32,
                end: brace.before as u32,
                ..brace.head
            };
            let line = self.sources.line_column(before).map_or(0, |(line, _)| line);
            let error = Diagnostic::error("unexpected end of file, expecting \"}\"", brace.head);
            let error = error.place(DiagnosticPlace::At(end));
            self.diagnostics.push(error.note(format!(
                "this block is never closed; judging by the indentation, its \"}}\" is missing before line {line}"
            )));
        }
    }

    fn text_of(&mut self, path: &Path, from: Option<Span>) -> Option<Arc<[u8]>> {
        if let Some(text) = self.texts.get(path).cloned() {
            self.note_use(path, &text);
            return Some(text);
        }
        match self.files.read_shared(path) {
            // Spans count bytes in 32 bits.
            Ok(text) if u32::try_from(text.len()).is_err() => {
                self.error(format!("\"{}\" is too large", path.display()), from);
                None
            }
            Ok(text) => {
                self.texts.insert(path.to_owned(), text.clone());
                self.note_use(path, &text);
                Some(text)
            }
            Err(error) => {
                // A directory can be opened; the failure comes from reading it.
                let call = if error.kind() == std::io::ErrorKind::IsADirectory {
                    "read()"
                } else {
                    "open()"
                };
                self.error(
                    format!(
                        "{call} \"{}\" failed {}",
                        path.display(),
                        errno_text(&error)
                    ),
                    from,
                );
                None
            }
        }
    }

    fn note_use(&mut self, path: &Path, text: &[u8]) {
        if let Some(uses) = &mut self.uses {
            let used = FileUse::Read(path.to_owned(), Ok(ContentHash::of(text)));
            uses.push(used);
        }
    }

    /// Whether a statement here is one of `http` itself.
    fn is_in_http(&self) -> bool {
        self.in_http && self.open == 1
    }

    /// Skips a block that the reading before knows.
    fn skip_known(&mut self, lexer: &mut Lexer, depth: usize) -> Option<DirectiveNode> {
        if !self.is_in_http() {
            return None;
        }
        let known = self.known.as_mut()?;
        let head = lexer.next_place();
        let text = &self.sources.get(head.file)?.text;
        let path = self.including.last()?;
        let (number, end) = known.take_next(text, head.start, (path, depth), &mut *self.files)?;
        lexer.skip((end - head.start) as usize);
        let name = DirectiveWord {
            text: BString::from("server"),
            span: head,
            quoted: false,
        };
        Some(DirectiveNode {
            name,
            args: Box::default(),
            block: BlockContent::Known(number),
            head,
            span: Span { end, ..head },
        })
    }

    /// Keeps the text of a `server` block of `http`, and replaces the block if the reading before knows it.
    fn keep_source(&mut self, span: Span, depth: usize, block: &mut BlockContent) {
        let uses = self.uses.take().unwrap_or_default();
        let (Some(source), Some(path)) = (self.sources.get(span.file), self.including.last())
        else {
            return;
        };
        let parsed = BlockSource::new(&source.text, span, path.clone(), depth, uses);
        let known = self.known.as_mut();
        match known.and_then(|known| known.take_same(&parsed, &mut *self.files)) {
            Some(number) => *block = BlockContent::Known(number),
            None => {
                self.blocks.insert((span.file, span.start), parsed);
            }
        }
    }

    fn error(&mut self, message: String, head: Option<Span>) {
        let mut diagnostic = Diagnostic::error(message, head);
        if let Some(head) = head {
            diagnostic.place = DiagnosticPlace::At(head.last_byte());
        }
        self.diagnostics.push(diagnostic);
    }

    /// Reads statements until the surroundings end. Returns the place after the closing brace.
    fn statements(
        &mut self,
        lexer: &mut Lexer,
        around: StatementSurroundings,
        depth: usize,
        draft: &mut BlockDraft,
    ) -> u32 {
        let mut words = Vec::new();
        let text = self.sources.get(lexer.file()).map(|source| &source.text);
        let text = text.cloned().unwrap_or_default();
        draft.begin_run(&text, lexer);
        loop {
            if let Some(node) = self.skip_known(lexer, depth) {
                draft.expand(node.span.start);
                draft.push(node);
                continue;
            }
            let statement = lexer.statement(&mut words, &mut self.diagnostics);
            let end = statement.span.end;
            match statement.end {
                StatementEnd::Semicolon => {
                    if let Some(include) = draft.line(&words, statement.span, lexer) {
                        self.include(&include, depth, draft);
                        draft.begin_run(&text, lexer);
                    }
                }
                StatementEnd::Open => {
                    draft.expand(statement.span.start);
                    self.braces(lexer, &words, statement.span, (around, depth), draft);
                }
                StatementEnd::Close => match around {
                    StatementSurroundings::Braces(_) => {
                        draft.end_run(end);
                        return end;
                    }
                    StatementSurroundings::File | StatementSurroundings::Globals => {
                        let error = Diagnostic::error("unexpected \"}\"", statement.span);
                        let text = "one \"}\" too many: every block is closed before it";
                        self.diagnostics.push(error.note(text));
                    }
                },
                StatementEnd::File => {
                    if let (StatementSurroundings::Braces(head), false) = (around, lexer.gave_up())
                    {
                        let error =
                            Diagnostic::error("unexpected end of file, expecting \"}\"", head);
                        let error = error.place(DiagnosticPlace::At(statement.span));
                        self.diagnostics
                            .push(error.note("this block is never closed"));
                        self.unclosed = true;
                    }
                    draft.end_run(end);
                    return end;
                }
            }
        }
    }

    fn braces(
        &mut self,
        lexer: &mut Lexer,
        words: &[PlacedWord],
        head: Span,
        (around, depth): (StatementSurroundings, usize),
        draft: &mut BlockDraft,
    ) {
        if matches!(around, StatementSurroundings::Globals) {
            self.error(
                "block directives are not supported in -g option".to_owned(),
                Some(head),
            );
        }
        if depth >= MAX_DEPTH {
            self.error(
                format!("blocks are nested more than {MAX_DEPTH} levels deep"),
                Some(head),
            );
            return lexer.give_up();
        }
        let named = words.split_first().map(|(name, args)| {
            let args: Box<[_]> = args.iter().map(|word| lexer.resolve(*word)).collect();
            (lexer.resolve(*name), args)
        });
        let is_named = |found: &str| named.as_ref().is_some_and(|(name, _)| name.is(found));
        let raw = named
            .as_ref()
            .is_some_and(|(name, _)| name.text.ends_with(b"_by_lua_block"));
        let is_server = self.is_in_http() && words.len() == 1 && is_named("server");
        if is_server {
            self.uses = Some(Vec::new());
        }
        let (mut block, end) = match raw {
            true => self.lua(lexer, head),
            false => self.inside(lexer, head, depth + 1, is_named("http")),
        };
        let Some((name, args)) = named else {
            return; // "unexpected {" has been said.
        };
        let span = Span { end, ..head };
        if is_server {
            self.keep_source(span, depth, &mut block);
        }
        if name.is("include") {
            return self.error(
                "directive \"include\" is not terminated by \";\"".to_owned(),
                Some(head),
            );
        }
        draft.push(DirectiveNode {
            name,
            args,
            block,
            head,
            span,
        });
    }

    /// Reads the directives between braces. Returns the place after the closing one, too.
    fn inside(
        &mut self,
        lexer: &mut Lexer,
        head: Span,
        depth: usize,
        is_http: bool,
    ) -> (BlockContent, u32) {
        let mut inside = BlockDraft::default();
        let outermost = self.open == 0;
        if outermost {
            self.in_http = is_http;
        }
        self.open += 1;
        let around = StatementSurroundings::Braces(head);
        let end = self.statements(lexer, around, depth, &mut inside);
        self.open -= 1;
        self.in_http &= !outermost;
        (inside.into_content(), end)
    }

    /// Takes Lua code up to the brace that closes it.
    fn lua(&mut self, lexer: &mut Lexer, head: Span) -> (BlockContent, u32) {
        let rest = lexer.rest();
        let inside = match lua::block_length(rest) {
            Ok(length) => length,
            Err(unclosed) => {
                let at = head.end + unclosed.at as u32;
                let opened = Span {
                    start: at,
                    end: at + unclosed.len as u32,
                    ..head
                };
                let span = if unclosed.len == 0 { head } else { opened };
                let error = Diagnostic::error(unclosed.message, span);
                self.diagnostics.push(
                    error.note("in a Lua block, which ends at the \"}\" that matches its \"{\""),
                );
                lexer.give_up();
                rest.len()
            }
        };
        let text = BString::from(&rest[..inside]);
        let span = Span {
            start: head.end,
            end: head.end + inside as u32,
            ..head
        };
        lexer.skip(inside + 1);
        (
            BlockContent::Raw(Box::new(DirectiveWord {
                text,
                span,
                quoted: false,
            })),
            lexer.position(),
        )
    }

    fn include(&mut self, node: &DirectiveNode, depth: usize, draft: &mut BlockDraft) {
        let [name] = &node.args[..] else {
            let message = "invalid number of arguments in \"include\" directive".to_owned();
            return self.error(message, Some(node.head));
        };
        if depth >= MAX_DEPTH {
            return self.error(
                format!("includes are nested more than {MAX_DEPTH} levels deep"),
                Some(node.head),
            );
        }
        let path = self
            .conf_prefix
            .join(std::ffi::OsStr::from_bytes(&name.text));
        if !glob::is_pattern(path.as_os_str().as_bytes()) {
            return self.file(&path, Some(node.head), depth + 1, draft);
        }
        match self.files.glob(&path) {
            Ok(paths) => {
                if let Some(uses) = &mut self.uses {
                    uses.push(FileUse::Glob(path, paths.clone()));
                }
                for path in paths {
                    self.file(&path, Some(node.head), depth + 1, draft);
                }
            }
            Err(error) => {
                let message = format!(
                    "glob() \"{}\" failed {}",
                    path.display(),
                    errno_text(&error)
                );
                self.error(message, Some(node.head));
            }
        }
    }
}
