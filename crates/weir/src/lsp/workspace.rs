//! The configurations that the open files belong to.
//!
//! A file with `events` or `http` is a configuration of its own. Any other one is a part of a configuration that is known,
//! or of a `nginx.conf` or `weir.conf` in a directory above it; failing that, only its syntax is judged.
//!
//! ```text
//! a change  →  its main file  →  reading, as `-t` does  →  messages by file  →  those that the editor does not show yet
//! ```
//!
//! An editor shows what it was told last about a file, until it is told something else. So a file whose last message is gone
//! is told that it has none, and files of the reading before are looked at, too: an `include` may have been removed.
//!
//! What a reading finds is kept until the next one, for definitions: while a text is being typed and does not parse, the
//! directives that could be read are still there, since the parser goes on after errors.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use base::{BString, ByteSlice as _};
use conf::{Diagnostic, DirectiveNode, DiskFiles, FileId, FileSource, Severity, SourceMap, Span};
use host::error_log::LogFiles;
use serde_json::{Value, json};

use super::open_files::EditorText;
use crate::arguments::NginxOptions;
use crate::identity::ProgramIdentity;
use crate::load_configuration::load;

/// The names of configurations that are looked for.
const NAMES: [&str; 2] = ["nginx.conf", "weir.conf"];

/// The directories above a file in which they are looked for.
const MAX_ABOVE: usize = 8;

/// What is open, and what was read of it.
#[derive(Default)]
pub(super) struct ConfigurationWorkspace {
    /// The texts in the editor, by path. They count before those on the disk.
    open: HashMap<PathBuf, EditorText>,
    /// Main files, with what was read of them.
    read: BTreeMap<PathBuf, ReadConfiguration>,
    /// The files with messages that the editor shows.
    shown: BTreeSet<PathBuf>,
    /// The messages that it does not show yet, by file.
    fresh: BTreeMap<PathBuf, Vec<Value>>,
    /// What readings have left behind: it is dropped when the editor has its answer.
    spent: Vec<Box<dyn Any>>,
}

/// A configuration as it was read last.
#[derive(Default)]
pub(super) struct ReadConfiguration {
    /// Its directives, includes in their places: for definitions and names.
    pub(super) nodes: Vec<DirectiveNode>,
    /// The texts that it was read from, which spans point into.
    pub(super) sources: SourceMap,
}

impl ReadConfiguration {
    /// Whether a file was read as a part of it.
    fn has(&self, path: &Path) -> bool {
        self.sources.iter().any(|source| source.path == path)
    }
}

/// The disk, with the texts of the editor in front.
struct EditorFiles(HashMap<PathBuf, Vec<u8>>);

impl FileSource for EditorFiles {
    fn read(&mut self, path: &Path) -> io::Result<Vec<u8>> {
        match self.0.get(path) {
            Some(text) => Ok(text.clone()),
            None => DiskFiles.read(path),
        }
    }

    fn glob(&mut self, pattern: &Path) -> io::Result<Vec<PathBuf>> {
        DiskFiles.glob(pattern)
    }
}

impl ConfigurationWorkspace {
    /// With a configuration that is known from the beginning, or none.
    pub(super) fn new(configuration: Option<&Path>) -> ConfigurationWorkspace {
        let mut workspace = ConfigurationWorkspace::default();
        if let Some(path) = configuration.and_then(|path| std::path::absolute(path).ok()) {
            workspace.read(&path);
        }
        workspace
    }

    /// A file that is open.
    pub(super) fn open_file(&self, path: &Path) -> Option<&EditorText> {
        self.open.get(path)
    }

    /// Takes a text of the editor.
    pub(super) fn set_text(&mut self, path: PathBuf, text: &str) {
        let text = EditorText::new(path.clone(), text.as_bytes().to_vec());
        self.open.insert(path.clone(), text);
        self.read_again(&path);
    }

    /// The file on the disk counts again.
    pub(super) fn close(&mut self, path: &Path) {
        self.open.remove(path);
        self.read_again(path);
    }

    /// Reads the configuration of a file.
    pub(super) fn read_again(&mut self, path: &Path) {
        match self.main_file(path) {
            Some(main) => self.read(&main),
            None => self.judge_syntax(path),
        }
    }

    /// The messages that the editor does not show yet: for each file all that it has.
    pub(super) fn take_diagnostics(&mut self) -> Vec<(PathBuf, Vec<Value>)> {
        std::mem::take(&mut self.fresh).into_iter().collect()
    }

    /// Drops what nobody needs any more. Called when the editor has been answered.
    pub(super) fn drop_spent(&mut self) {
        self.spent.clear();
    }

    /// The configuration that a file belongs to.
    fn main_file(&mut self, path: &Path) -> Option<PathBuf> {
        if self.is_main(path) {
            return Some(path.to_owned());
        }
        let known = self.read.iter().find(|(_, read)| read.has(path));
        if let Some((main, _)) = known {
            return Some(main.clone());
        }
        let above = path.ancestors().skip(1).take(MAX_ABOVE);
        let candidates = above.flat_map(|folder| NAMES.map(|name| folder.join(name)));
        for candidate in candidates.filter(|candidate| candidate.is_file()) {
            let (tree, _) = conf::parse_tolerant(&candidate, &mut self.files(), None);
            if tree.sources.iter().any(|source| source.path == path) {
                return Some(candidate);
            }
        }
        None
    }

    /// Whether a file is a configuration of its own.
    fn is_main(&self, path: &Path) -> bool {
        let Some(file) = self.open.get(path) else {
            return self.read.contains_key(path);
        };
        let begins = |line: &[u8]| {
            let word = line.trim_ascii_start();
            let word = word
                .split(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_')
                .next();
            matches!(word, Some(b"events" | b"http" | b"stream"))
        };
        file.text.lines().any(begins)
    }

    /// The texts as one reading sees them. Copied, since a reading takes its files along.
    fn files(&self) -> EditorFiles {
        let open = self.open.iter();
        EditorFiles(
            open.map(|(path, file)| (path.clone(), file.text.clone()))
                .collect(),
        )
    }

    /// Reads a configuration as `-t` does.
    fn read(&mut self, main: &Path) {
        let options = NginxOptions {
            test: true,
            configuration: Some(main.to_owned()),
            ..NginxOptions::default()
        };
        // The paths only; a directory that is gone is no reason to end.
        let Ok(startup) = crate::run::startup(ProgramIdentity::Weir, &options, &[]) else {
            return;
        };
        let files = Box::new(self.files());
        let messages = match load(&startup, files, LogFiles::default(), None) {
            Ok(mut loaded) => {
                let messages = loaded.messages.take();
                self.spent.push(Box::new(loaded));
                messages
            }
            Err(failure) => failure.0,
        };
        let prefix = &startup.paths.prefix;
        let attacks = crate::check::warnings(&messages.nodes, &messages.sources, prefix);
        let all: Vec<Diagnostic> = messages.all().iter().chain(&attacks).cloned().collect();
        let read = ReadConfiguration {
            nodes: messages.nodes,
            sources: messages.sources,
        };
        self.show(main, &all, &read.sources);
        if let Some(former) = self.read.insert(main.to_owned(), read) {
            self.spent.push(Box::new(former));
        }
    }

    /// A file that no configuration includes, as far as is known.
    fn judge_syntax(&mut self, path: &Path) {
        let (tree, errors) = conf::parse_tolerant(path, &mut self.files(), None);
        self.show(path, &errors, &tree.sources);
    }

    /// Prepares the messages about the files of a configuration. A file without any gets an empty list, so that the editor
    /// removes what it shows.
    fn show(&mut self, main: &Path, diagnostics: &[Diagnostic], sources: &SourceMap) {
        let former = self.read.get(main).map(|read| read.sources.iter());
        let former = former
            .into_iter()
            .flatten()
            .map(|source| source.path.clone());
        let files = sources.iter().map(|source| source.path.clone());
        let open = self.open.contains_key(main).then(|| main.to_owned());
        let mut by_file: BTreeMap<PathBuf, Vec<Value>> = former
            .chain(files)
            .filter(|path| self.shown.contains(path) || self.open.contains_key(path))
            .chain(open)
            .map(|path| (path, Vec::new()))
            .collect();
        // The lines of a file are looked for once, however many messages it has.
        let mut texts: HashMap<FileId, EditorText> = HashMap::new();
        for diagnostic in diagnostics {
            let source = diagnostic
                .span
                .and_then(|span| Some((span, sources.get(span.file)?)));
            // A message about no place is shown at the beginning of the main file.
            let (path, range) = match source {
                Some((span, source)) => {
                    let text = texts
                        .entry(span.file)
                        .or_insert_with(|| text_of(&source.path, &source.text));
                    let range = text.range(span.start as usize, span.end as usize);
                    (source.path.clone(), range)
                }
                None => (main.to_owned(), whole_line()),
            };
            let shown = json!({
                "range": range,
                "severity": severity(diagnostic.severity),
                "source": "weir",
                "message": text(diagnostic),
            });
            let list = by_file.entry(path).or_default();
            // A file that is included twice has its messages once.
            if !list.contains(&shown) {
                list.push(shown);
            }
        }
        for (path, list) in by_file {
            match list.is_empty() {
                true => self.shown.remove(&path),
                false => self.shown.insert(path.clone()),
            };
            self.fresh.insert(path, list);
        }
    }

    /// The configuration of a file, as it was read last.
    pub(super) fn configuration(&self, path: &Path) -> Option<&ReadConfiguration> {
        let own = self.read.get(path);
        own.or_else(|| self.read.values().find(|read| read.has(path)))
    }

    /// Where what stands at an offset is defined: path and range.
    pub(super) fn definitions(&self, file: &EditorText, offset: usize) -> Vec<(PathBuf, Value)> {
        let Some((words, index)) = conf::cursor::word_at(&file.text, offset) else {
            return Vec::new();
        };
        let word = &words[index];
        let Some(read) = self.configuration(&file.path) else {
            return Vec::new();
        };
        if words[0].is("include") && index > 0 {
            return self.included(&file.path, read, &word.text);
        }
        let mut found = Vec::new();
        let wanted =
            WantedDefinition::of(&word.text, offset.saturating_sub(word.span.start as usize));
        if let Some(wanted) = wanted {
            wanted.find(&read.nodes, &mut found);
        }
        let places = found.into_iter().map(|span| place(&read.sources, span));
        places.collect()
    }

    /// The files of an `include`, which counts from the directory of the main file.
    fn included(
        &self,
        from: &Path,
        read: &ReadConfiguration,
        text: &[u8],
    ) -> Vec<(PathBuf, Value)> {
        let main = read
            .sources
            .iter()
            .next()
            .map(|source| source.path.as_path());
        let folder = main.unwrap_or(from).parent().unwrap_or(Path::new("/"));
        let path = folder.join(OsStr::from_bytes(text));
        let files = match conf::glob::is_pattern(text) {
            true => conf::glob::expand(&path).unwrap_or_default(),
            false => vec![path],
        };
        files.into_iter().map(|file| (file, whole_line())).collect()
    }
}

/// What is looked for.
enum WantedDefinition {
    /// Without the `$`.
    Variable(BString),
    /// With the `@`.
    Location(BString),
    /// The name of an `upstream`.
    Upstream(BString),
}

impl WantedDefinition {
    /// What a word means at an offset in it.
    fn of(word: &[u8], offset: usize) -> Option<WantedDefinition> {
        if let Some(name) = variable_at(word, offset) {
            return Some(WantedDefinition::Variable(name.into()));
        }
        if word.starts_with(b"@") {
            return Some(WantedDefinition::Location(word.into()));
        }
        let host = word.split_once_str("://").map_or(word, |(_, rest)| rest);
        let end = host.find_byteset(b"/:;$").unwrap_or(host.len());
        let name = &host[..end];
        (!name.is_empty()).then(|| WantedDefinition::Upstream(name.into()))
    }

    /// Adds the words that define it, in these blocks and all inside.
    fn find(&self, nodes: &[DirectiveNode], found: &mut Vec<Span>) {
        for node in nodes {
            let name = node.name.text.as_slice();
            for (index, word) in node.args.iter().enumerate() {
                let defines = match self {
                    WantedDefinition::Variable(variable) => {
                        defines_variable(name, index, node.args.len(), &word.text, variable)
                    }
                    WantedDefinition::Location(location) => {
                        name == b"location" && word.text == *location
                    }
                    WantedDefinition::Upstream(upstream) => {
                        name == b"upstream" && index == 0 && word.text == *upstream
                    }
                };
                if defines {
                    found.push(word.span);
                }
            }
            // The rows of a map define nothing.
            if !matches!(name, b"map" | b"geo" | b"types" | b"split_clients") {
                self.find(node.block.nodes(), found);
            }
        }
    }
}

/// Whether this word of a directive defines a variable.
fn defines_variable(
    directive: &[u8],
    index: usize,
    count: usize,
    word: &[u8],
    variable: &[u8],
) -> bool {
    let named = word.strip_prefix(b"$").is_some_and(|name| name == variable);
    let is_place = match directive {
        b"map" | b"geo" | b"split_clients" => index + 1 == count,
        b"auth_request_set" => index == 0,
        _ => directive.starts_with(b"set") && index == 0,
    };
    if named && is_place {
        return true;
    }
    // A named group of a regular expression.
    let group = [b"?<", variable, b">"].concat();
    let other = [b"?P<", variable, b">"].concat();
    word.contains_str(&group) || word.contains_str(&other)
}

/// The name of the variable around an offset in a word.
pub(super) fn variable_at(word: &[u8], offset: usize) -> Option<&[u8]> {
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    for (at, _) in word.iter().enumerate().filter(|(_, byte)| **byte == b'$') {
        let start = at + 1 + usize::from(word.get(at + 1) == Some(&b'{'));
        let length = word[start..]
            .iter()
            .take_while(|byte| is_name(byte))
            .count();
        if length > 0 && (at..=start + length).contains(&offset) {
            return Some(&word[start..start + length]);
        }
    }
    None
}

/// The file and the range of a span.
fn place(sources: &SourceMap, span: Span) -> (PathBuf, Value) {
    let Some(source) = sources.get(span.file) else {
        return (PathBuf::new(), whole_line());
    };
    let range = text_of(&source.path, &source.text).range(span.start as usize, span.end as usize);
    (source.path.clone(), range)
}

/// A text of a configuration, with its lines.
fn text_of(path: &Path, text: &[u8]) -> EditorText {
    EditorText::new(path.to_owned(), text.to_vec())
}

/// The beginning of a file.
fn whole_line() -> Value {
    let start = json!({ "line": 0, "character": 0 });
    json!({ "start": start, "end": start })
}

/// The numbers of the protocol: error, warning, information.
fn severity(severity: Severity) -> u8 {
    match severity.name() {
        "emerg" | "alert" | "crit" | "error" => 1,
        "warn" => 2,
        _ => 3,
    }
}

/// The message with its notes.
fn text(diagnostic: &Diagnostic) -> String {
    let mut text = diagnostic.message.clone();
    for note in &diagnostic.notes {
        text.push('\n');
        text.push_str(note);
    }
    text
}
