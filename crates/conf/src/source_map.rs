//! The texts that spans refer to, and the names of places in them.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use base::{BStr, FileId, Span};

use crate::diagnostic::{Diagnostic, DiagnosticPlace};

/// The texts of a configuration in the order in which they were read.
#[derive(Clone, Debug, Default)]
pub struct SourceMap {
    files: Vec<SourceText>,
    /// The offsets of lines per text, computed when a place in it is first needed: parsing needs
    /// none, and if each of ten thousand `proxy_pass` counted line feeds from the top, that would
    /// cost a hundred times the rest.
    lines: Vec<OnceLock<Box<[u32]>>>,
}

/// One text.
#[derive(Clone, Debug)]
pub struct SourceText {
    /// Its path as messages name it.
    pub path: PathBuf,
    /// What it is.
    pub kind: SourceKind,
    /// The text.
    pub text: Arc<[u8]>,
    /// The `include` that it stands for.
    pub included_at: Option<Span>,
}

/// What a text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceKind {
    /// A file.
    File,
    /// The value of `-g`.
    CommandLine,
}

impl SourceMap {
    /// Adds a text and returns its number, which its spans contain.
    pub fn add(&mut self, source: SourceText) -> FileId {
        self.files.push(source);
        self.lines.push(OnceLock::new());
        FileId((self.files.len() - 1) as u32)
    }

    /// Removes the texts after the first `len`, which will be read again.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.files.truncate(len);
        self.lines.truncate(len);
    }

    /// How many texts there are.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Whether there is no text.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// A text by number.
    pub fn get(&self, file: FileId) -> Option<&SourceText> {
        self.files.get(file.0 as usize)
    }

    /// All texts. One that is included twice is here twice.
    pub fn iter(&self) -> impl Iterator<Item = &SourceText> {
        self.files.iter()
    }

    /// Each file once, in the order of reading, for `-T`.
    pub fn unique_files(&self) -> Vec<&SourceText> {
        let mut seen = std::collections::HashSet::new();
        let files = self
            .files
            .iter()
            .filter(|source| source.kind == SourceKind::File);
        files.filter(|source| seen.insert(&source.path)).collect()
    }

    /// The text of a span.
    pub fn text(&self, span: Span) -> Option<&BStr> {
        let text = &self.get(span.file)?.text;
        text.get(span.start as usize..span.end as usize)
            .map(BStr::new)
    }

    /// The line and column of the start of a span, both from 1; the column counts bytes.
    pub fn line_column(&self, span: Span) -> Option<(usize, usize)> {
        let (line, start) = self.line_start(span)?;
        Some((line, span.start as usize - start + 1))
    }

    /// The line in which a span starts, without its line end, and the offset where that line
    /// starts.
    pub fn line(&self, span: Span) -> Option<(&[u8], usize)> {
        let (_, start) = self.line_start(span)?;
        let rest = self.get(span.file)?.text.get(start..)?;
        let end = rest.iter().position(|&byte| byte == b'\n');
        Some((&rest[..end.unwrap_or(rest.len())], start))
    }

    /// The number, from 1, of the line in which a span starts, and the offset where that line
    /// starts.
    fn line_start(&self, span: Span) -> Option<(usize, usize)> {
        let text = &self.get(span.file)?.text;
        if span.start as usize > text.len() {
            return None;
        }
        let starts = self.lines.get(span.file.0 as usize)?.get_or_init(|| {
            let feeds = text.iter().enumerate().filter(|&(_, &byte)| byte == b'\n');
            std::iter::once(0)
                .chain(feeds.map(|(at, _)| at as u32 + 1))
                .collect()
        });
        let line = starts.partition_point(|&start| start <= span.start);
        Some((line, starts[line - 1] as usize))
    }

    /// A place as messages name it: `FILE:LINE`, or `command line`.
    pub fn place(&self, span: Span) -> Option<String> {
        let source = self.get(span.file)?;
        match source.kind {
            SourceKind::CommandLine => Some("command line".to_owned()),
            SourceKind::File => Some(format!(
                "{}:{}",
                source.path.display(),
                self.line_column(span)?.0
            )),
        }
    }

    /// Sorts messages into the order in which nginx would have met them: by place, with an included
    /// text in the place of its `include`; those without a place come last.
    pub fn sort(&self, diagnostics: &mut [Diagnostic]) {
        diagnostics.sort_by_cached_key(|diagnostic| match (diagnostic.place, diagnostic.span) {
            (DiagnosticPlace::At(span), _) | (DiagnosticPlace::Span, Some(span)) => {
                (0, self.path_of(span))
            }
            (DiagnosticPlace::Unsaid, Some(span)) => (1, self.path_of(span)),
            (DiagnosticPlace::Span | DiagnosticPlace::Unsaid, None) => (2, Vec::new()),
        });
    }

    /// The offsets of the includes that lead to a span, outermost first, then its own.
    fn path_of(&self, span: Span) -> Vec<u32> {
        let mut path = vec![span.start];
        let mut file = span.file;
        while let Some(source) = self.get(file) {
            match source.included_at {
                Some(from) => {
                    path.push(from.start);
                    file = from.file;
                }
                None => break,
            }
        }
        // The root file: the command line was read before the main file.
        path.push(file.0);
        path.reverse();
        path
    }
}
