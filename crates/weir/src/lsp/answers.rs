//! Completion and help, from the rows: what an editor shows is what `weir help` says.
//!
//! ```text
//! serv                 directives of the context, with their syntax and documentation
//! log_format m '$      variables
//! proxy_pass http://   the upstreams of the configuration
//! try_files $uri @     its named locations
//! rewrite ^ /x         the words that the syntax names: last, break, redirect, permanent
//! ```
//!
//! An editor filters by what has been typed, and asks again when a word begins. So all that fits is returned, in the order of
//! the tables, and nothing here depends on the first letters.

use std::sync::OnceLock;

use base::ByteSlice as _;
use conf::cursor::{TextCursor, cursor_at, word_at};
use conf::{Contexts, DirectiveNode, RowInfo, describe};
use serde_json::{Value, json};

use super::open_files::EditorText;
use super::workspace::ConfigurationWorkspace;
use crate::reference;

/// The kinds of the protocol: a keyword, a variable, a reference.
const KEYWORD: u8 = 14;
const VARIABLE: u8 = 6;
const REFERENCE: u8 = 18;

/// The rows, which do not change.
fn rows() -> &'static [RowInfo] {
    static ROWS: OnceLock<Vec<RowInfo>> = OnceLock::new();
    ROWS.get_or_init(reference::directives)
}

/// What may stand at an offset.
pub(super) fn completion(
    workspace: &ConfigurationWorkspace,
    file: &EditorText,
    offset: usize,
) -> Value {
    // In a comment or in Lua code nothing of ours may stand.
    let Some(cursor) = cursor_at(&file.text, offset) else {
        return json!([]);
    };
    let is_name = cursor.words.is_empty() || cursor.words.len() == 1 && cursor.is_in_word;
    if is_name {
        return Value::Array(directives(&cursor, file));
    }
    let word = match (cursor.is_in_word, cursor.words.last()) {
        (true, Some(word)) => word.text.as_slice(),
        _ => b"",
    };
    if word.rfind_byte(b'$').is_some() {
        return Value::Array(variables());
    }
    let mut items = Vec::new();
    let read = workspace.configuration(&file.path);
    let nodes = read.map_or(&[][..], |read| &read.nodes);
    let directive = &cursor.words[0].text;
    if word.starts_with(b"@") {
        named(nodes, "location", b"@", &mut items);
    } else if directive.ends_with(b"_pass") {
        named(nodes, "upstream", b"", &mut items);
    }
    items.extend(parameters(directive));
    Value::Array(items)
}

/// The directives of the context.
fn directives(cursor: &TextCursor, file: &EditorText) -> Vec<Value> {
    // A directive may be in several tables, one for each engine: its name is offered once.
    let contexts = contexts_of(cursor, file);
    let mut seen = std::collections::HashSet::new();
    let fitting = rows().iter().filter(|row| row.contexts.meets(contexts));
    let fitting = fitting.filter(|row| seen.insert(row.name));
    let items = fitting.map(|row| {
        json!({
            "label": row.name,
            "kind": KEYWORD,
            "detail": describe::syntax_line(row),
            "documentation": row.doc,
        })
    });
    items.collect()
}

/// The contexts that a place may be in. A file that another one includes does not say where it is: any.
fn contexts_of(cursor: &TextCursor, file: &EditorText) -> Contexts {
    let names: Vec<&[u8]> = cursor.block_names().map(|name| name.as_slice()).collect();
    let context = match names[..] {
        [] if is_whole(&file.text) => "main",
        [] => return Contexts::ANY,
        [.., b"upstream"] if names.contains(&&b"stream"[..]) => "stream upstream",
        [.., b"server"] if names.contains(&&b"stream"[..]) => "stream server",
        [.., b"location", b"if"] => "if in location",
        [.., b"if"] => "if in server",
        [.., name] => name.to_str().unwrap_or_default(),
    };
    Contexts::named(context).unwrap_or(Contexts::NONE)
}

/// Whether a text is a configuration of its own.
fn is_whole(text: &[u8]) -> bool {
    let begins = |line: &[u8]| {
        let line = line.trim_ascii_start();
        line.starts_with(b"events") || line.starts_with(b"http") || line.starts_with(b"stream")
    };
    text.trim_ascii().is_empty() || text.lines().any(begins)
}

/// All variables. An editor filters them by what has been typed, so none is left out here.
fn variables() -> Vec<Value> {
    let variables = reference::known_variables();
    let items = variables.iter().map(|variable| {
        json!({
            "label": variable.shown_name(),
            "insertText": variable.name,
            "kind": VARIABLE,
            "documentation": variable.doc,
        })
    });
    items.collect()
}

/// The words that the syntax of a directive names: `on`, `off`, `last`.
fn parameters(directive: &[u8]) -> Vec<Value> {
    let Some(row) = rows().iter().find(|row| row.name.as_bytes() == directive) else {
        return Vec::new();
    };
    // Between bars stand the alternatives; what is one word of small letters there is meant literally.
    let words = row.syntax.split(['|', '[', ']', ' ', '…']);
    let literal = |word: &&str| {
        word.len() > 1
            && word
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte == b'_')
    };
    let has_choice = row.syntax.contains('|');
    let words = words.filter(literal).filter(|_| has_choice);
    let items = words.map(|word| json!({ "label": word, "kind": KEYWORD }));
    items.collect()
}

/// The first words of directives with this name, in all blocks.
fn named(nodes: &[DirectiveNode], name: &str, start: &[u8], items: &mut Vec<Value>) {
    for node in nodes {
        if node.name.is(name)
            && let Some(word) = node
                .args
                .first()
                .filter(|word| word.text.starts_with(start))
        {
            let label = word.text.to_str_lossy();
            items.push(json!({ "label": label, "kind": REFERENCE }));
        }
        named(node.block.nodes(), name, start, items);
    }
}

/// What is known of the word at an offset.
pub(super) fn hover(file: &EditorText, offset: usize) -> Option<Value> {
    let (words, index) = word_at(&file.text, offset)?;
    let word = &words[index];
    let text = match index {
        0 => describe::directive_help(&word.text.to_str_lossy(), rows())?,
        _ => variable_help(&word.text, offset.saturating_sub(word.span.start as usize))?,
    };
    let range = file.range(word.span.start as usize, word.span.end as usize);
    Some(json!({
        "contents": { "kind": "plaintext", "value": text },
        "range": range,
    }))
}

/// What `weir help` says of the variable at an offset in a word.
fn variable_help(word: &[u8], offset: usize) -> Option<String> {
    let name = super::workspace::variable_at(word, offset)?.to_str().ok()?;
    let variables = reference::known_variables();
    let exact = variables
        .iter()
        .find(|variable| !variable.family && variable.name == name);
    let family = || {
        let mut families = variables.iter().filter(|variable| variable.family);
        families.find(|variable| name.starts_with(variable.name))
    };
    let variable = exact.or_else(family)?;
    Some(format!("{}\n\n{}", variable.shown_name(), variable.doc))
}
