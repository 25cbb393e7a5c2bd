//! Applies the nodes of a block to its structs.
//!
//! The order in a block: defaults (in outermost blocks only), then all rows in file order except
//! those that open an inheriting block, then the finish functions in table order, then those blocks
//! in file order. So a block inherits everything of the block around it, whatever their order in
//! the file.
//!
//! An error in one directive does not stop the others: one run shows them all.

use std::borrow::Cow;

use base::{BString, ByteSlice, FileId, Span};

use crate::block_confs::{BlockConfs, RowId};
use crate::block_context::{BlockContext, SeenDirective};
use crate::diagnostic::Diagnostic;
use crate::directive_line::DirectiveLine;
use crate::former_directives;
use crate::lexer::Lexer;
use crate::missing_signs;
use crate::nginx_directives;
use crate::spelling::nearest_name;
use crate::table::{RowInfo, SetterKind};
use crate::tree::{BlockContent, DirectiveNode, DirectiveWord};

/// Applies `nodes`, the content of one block, to `confs`, the structs of that block. `parents` are
/// those of the block around it, if it inherits from one. Messages go to `level.build`.
pub fn dispatch(
    nodes: &[DirectiveNode],
    confs: &mut BlockConfs,
    parents: Option<&BlockConfs>,
    level: &mut BlockContext,
) {
    if std::mem::take(&mut confs.needs_defaults) {
        apply_defaults(nodes, confs, level);
    }
    let mut deferred = Vec::new();
    for (index, node) in nodes.iter().enumerate() {
        let mut next = Some(Cow::Borrowed(node));
        while let Some(node) = next {
            next = apply_node(node, index, confs, level, &mut deferred).map(Cow::Owned);
        }
    }
    finish(confs, parents, level);
    for deferred in deferred {
        let index_of_rows = confs.index();
        let mut line = DirectiveLine {
            node: &deferred.node,
            level,
            index: deferred.index,
            repeated: deferred.repeated,
        };
        let result =
            index_of_rows
                .table(deferred.row)
                .apply_deferred(deferred.row.row, &mut line, confs);
        report_failure(
            result,
            &deferred.node,
            &index_of_rows.info(deferred.row),
            deferred.swallowed,
            level,
        );
    }
}

/// Applies those of `nodes` whose blocks inherit to structs that all other nodes have already been applied to: for a reload
/// in which only such blocks have changed.
pub fn dispatch_blocks(nodes: &[DirectiveNode], confs: &mut BlockConfs, level: &mut BlockContext) {
    let rows = confs.index();
    for (index, node) in nodes.iter().enumerate() {
        let name = node.name.text.to_str().unwrap_or_default();
        let Some(id) = confs.find(name, level.context) else {
            continue;
        };
        let info = rows.info(id);
        if info.kind != SetterKind::Deferred {
            continue;
        }
        if let Err(error) = check_form(node, &info) {
            level.report(error);
            continue;
        }
        let mut line = DirectiveLine {
            node,
            level,
            index,
            repeated: None,
        };
        let result = rows.table(id).apply_deferred(id.row, &mut line, confs);
        report_failure(result, node, &info, None, level);
    }
}

/// A directive whose block inherits, so that it is applied after all others.
struct DeferredNode<'n> {
    node: Cow<'n, DirectiveNode>,
    index: usize,
    row: RowId,
    repeated: Option<Span>,
    swallowed: Option<Span>,
}

/// Applies one directive, or keeps it for later. If it is invalid because its `;` is missing, the next
/// directive was read as its parameters: that one is returned, so that its errors are found too, and
/// nothing that it defines seems to be missing elsewhere.
fn apply_node<'n>(
    node: Cow<'n, DirectiveNode>,
    index: usize,
    confs: &mut BlockConfs,
    level: &mut BlockContext,
    deferred: &mut Vec<DeferredNode<'n>>,
) -> Option<DirectiveNode> {
    let swallowed = missing_signs::swallowed_directive(&node, &level.build.sources, |name| {
        confs.find(name, level.context).is_some()
    });
    let rest = |node: &DirectiveNode| swallowed.map(|swallowed| swallowed.split(node).1);
    let missing = swallowed.map(|swallowed| swallowed.missing);
    let Some(id) = find(&node, confs, level) else {
        return rest(&node);
    };
    let info = confs.index().info(id);
    if let Err(error) = check_form(&node, &info) {
        // The missing `;` explains more than the error.
        level.report(explain(error, missing));
        let (first, rest) = swallowed.map(|swallowed| swallowed.split(&node))?;
        if check_form(&first, &info).is_ok() {
            // Its parameters end before the line that makes no sense, so it cannot swallow again.
            apply_node(Cow::Owned(first), index, confs, level, deferred);
        }
        return Some(rest);
    }
    let repeated = remember(id, &info, &node, level);
    if info.kind == SetterKind::Deferred {
        deferred.push(DeferredNode {
            node,
            index,
            row: id,
            repeated,
            swallowed: missing,
        });
        return None;
    }
    let table = confs.index().table(id);
    let conf = confs.slot(id.group, id.table)?;
    let mut line = DirectiveLine {
        node: &node,
        level,
        index,
        repeated,
    };
    let result = table.apply(id.row, conf, &mut line);
    let is_invalid = result.is_err();
    report_failure(result, &node, &info, missing, level);
    rest(&node).filter(|_| is_invalid)
}

/// Passes the defaults of all rows to their setters, except for directives that the block contains:
/// a default that opens a file must not do so if another file is named.
fn apply_defaults(nodes: &[DirectiveNode], confs: &mut BlockConfs, level: &mut BlockContext) {
    let index = confs.index();
    let named: std::collections::HashSet<&[u8]> =
        nodes.iter().map(|node| &node.name.text[..]).collect();
    for id in index.rows() {
        let info = index.info(id);
        let Some(default) = info
            .default
            .filter(|_| !named.contains(info.name.as_bytes()))
        else {
            continue;
        };
        let node = default_node(info.name, default);
        let Some(conf) = confs.slot(id.group, id.table) else {
            continue;
        };
        let mut line = DirectiveLine {
            node: &node,
            level,
            index: 0,
            repeated: None,
        };
        if let Err(error) = index.table(id).apply(id.row, conf, &mut line) {
            level.report(error.note(format!("in the default of \"{}\": {default}", info.name)));
        }
    }
}

/// A default as a node without a place, parsed like a user's line.
fn default_node(name: &str, default: &str) -> DirectiveNode {
    let text = format!("{name} {default};");
    let mut errors = Vec::new();
    let mut placed = Vec::new();
    let mut lexer = Lexer::new(text.as_bytes(), FileId::NONE, true);
    lexer.statement(&mut placed, &mut errors);
    let mut words: Vec<DirectiveWord> = placed.iter().map(|word| lexer.resolve(*word)).collect();
    for word in &mut words {
        word.span = Span::NONE;
    }
    let nameless = DirectiveWord {
        text: BString::from(name),
        span: Span::NONE,
        quoted: false,
    };
    let args = words.split_off(words.len().min(1));
    let name = words.pop().unwrap_or(nameless);
    DirectiveNode {
        name,
        args: args.into_boxed_slice(),
        block: BlockContent::None,
        head: Span::NONE,
        span: Span::NONE,
    }
}

/// The row for a node, or a message that there is none, or that it is refused.
fn find(node: &DirectiveNode, confs: &BlockConfs, level: &mut BlockContext) -> Option<RowId> {
    let name = node.name.text.to_str().unwrap_or_default();
    let Some(found) = confs.find(name, level.context) else {
        let error = not_found(node, confs, level);
        level.report(error);
        return None;
    };
    if level.build.refused.contains(name) {
        let error = node.error(format!("\"{name}\" directive is refused"));
        level.report(Diagnostic {
            span: Some(node.name.span),
            ..error.note("\"refuse_directives\" in the main context names it")
        });
        return None;
    }
    Some(found)
}

fn not_found(node: &DirectiveNode, confs: &BlockConfs, level: &BlockContext) -> Diagnostic {
    let name = node.name.text.to_str_lossy();
    let rows = all_rows(confs, level);
    let places: Vec<RowInfo> = rows
        .iter()
        .filter(|row| row.name == name)
        .copied()
        .collect();
    let at_name = |message: String| Diagnostic {
        span: Some(node.name.span),
        ..node.error(message)
    };
    if let Some(first) = places.first() {
        let contexts = places
            .iter()
            .fold(first.contexts, |all, row| all.or(row.contexts));
        let error = at_name(format!("\"{name}\" directive is not allowed here"));
        return error.note(format!("allowed in: {}", contexts.text()));
    }
    let error = at_name(format!("unknown directive \"{name}\""));
    if let Some((word, _)) = name.split_once('(')
        && rows.iter().any(|row| row.name == word)
    {
        return error.note(format!("a space is missing: {word} ("));
    }
    if let Some(advice) = former_directives::former_advice(&name) {
        return error.note(advice);
    }
    if let Some(known) = nginx_directives::find(&name) {
        let error = error.note("nginx 1.31 has it; Weir does not support it yet");
        return error.note(format!("syntax: {}", known.syntax_line()));
    }
    // Suggestions: first what is allowed here, then any directive of ours, then any of nginx's.
    let here = rows
        .iter()
        .filter(|row| row.contexts.contains(level.context))
        .map(|row| row.name);
    let near =
        nearest_name(&name, here).or_else(|| nearest_name(&name, rows.iter().map(|row| row.name)));
    let near =
        near.or_else(|| nearest_name(&name, nginx_directives::all().map(|known| known.name)));
    match near {
        Some(near) => error.note(format!("did you mean \"{near}\"?")),
        None => error,
    }
}

fn all_rows(confs: &BlockConfs, level: &BlockContext) -> Vec<RowInfo> {
    let index = confs.index();
    let tables = index.tables().chain(level.build.tables.iter().copied());
    tables
        .flat_map(|table| (0..table.len()).map(move |row| table.info(row)))
        .collect()
}

/// Checks braces and the number of words, in nginx's order.
fn check_form(node: &DirectiveNode, info: &RowInfo) -> Result<(), Diagnostic> {
    let name = info.name;
    let has_braces = !matches!(node.block, BlockContent::None);
    let message = if has_braces && !info.kind.has_braces() {
        format!("directive \"{name}\" is not terminated by \";\"")
    } else if !has_braces && info.kind.has_braces() {
        format!("directive \"{name}\" has no opening \"{{\"")
    } else if !info.arity.accepts(node.args.len()) {
        format!("invalid number of arguments in \"{name}\" directive")
    } else {
        return Ok(());
    };
    Err(node.error(message).note(syntax_note(info)))
}

fn syntax_note(info: &RowInfo) -> String {
    format!("syntax: {}", crate::describe::syntax_line(info))
}

/// Notes that a row was used here; returns the place of its first use if there was one.
fn remember(
    id: RowId,
    info: &RowInfo,
    node: &DirectiveNode,
    level: &mut BlockContext,
) -> Option<Span> {
    let first = level.seen.iter().find(|seen| seen.row == id);
    let first = first.map(|seen| seen.head);
    if first.is_none() {
        let (name, head) = (info.name, node.head);
        level.seen.push(SeenDirective {
            row: id,
            name,
            head,
        });
    }
    first
}

fn report_failure(
    result: Result<(), Diagnostic>,
    node: &DirectiveNode,
    info: &RowInfo,
    swallowed: Option<Span>,
    level: &mut BlockContext,
) {
    let Err(mut error) = result else {
        if let Some(missing) = swallowed {
            let text = format!(
                "\"{}\" has another directive among its parameters",
                info.name
            );
            level.report(explain(Diagnostic::warning(text, node.head), Some(missing)));
        }
        return;
    };
    // An error within the braces is about another line, for which this syntax is no help.
    let about_head = error
        .span
        .is_some_and(|span| span.file == node.head.file && span.end <= node.head.end);
    if about_head && swallowed.is_some() {
        error = explain(error, swallowed);
    } else if about_head && error.notes.is_empty() {
        error = error.note(syntax_note(info));
    }
    level.report(error);
}

/// If a directive's `;` is missing, any error in it is about that, wherever nginx noticed it.
fn explain(error: Diagnostic, missing: Option<Span>) -> Diagnostic {
    match missing {
        Some(missing) => Diagnostic {
            span: Some(missing),
            notes: vec!["a \";\" is missing here".to_owned()],
            ..error
        },
        None => error,
    }
}

fn finish(confs: &mut BlockConfs, parents: Option<&BlockConfs>, level: &mut BlockContext) {
    let index = confs.index();
    for group in 0..confs.group_count() {
        for table in 0..index.group_len(group) {
            let rows = index.rows_of(group, table);
            let is_shared = confs.is_shared(group, table);
            if !is_shared.is_some_and(|is_shared| rows.finishes(is_shared, level)) {
                continue;
            }
            let parent = parents.and_then(|parents| parents.conf(group, table));
            let inherited = confs.inherited(group, table);
            let Some(conf) = confs.slot(group, table) else {
                continue;
            };
            // Even where the result is known: the function also tells the block's engine what it needs.
            match rows.finish(conf, parent, level) {
                Err(error) => {
                    let error = place_by_name(error, level);
                    level.report(error);
                }
                Ok(()) => {
                    if let Some(outer) = inherited.filter(|_| rows.finishes_alike()) {
                        confs.share_finished(group, table, outer);
                    }
                }
            }
        }
    }
}

/// An error about settings together has no place of its own: it gets that of the directive of this block whose name is most
/// like those in the message. A value that was not set is derived from others, so that it need not be one of them.
fn place_by_name(error: Diagnostic, level: &BlockContext) -> Diagnostic {
    if error.span.is_some_and(|span| span != Span::NONE) {
        return error;
    }
    let quoted = || error.message.split('"').skip(1).step_by(2);
    let likeness = |seen: &SeenDirective| {
        let common = |name: &str| {
            let pairs = name.bytes().zip(seen.name.bytes());
            pairs.take_while(|(a, b)| a == b).count()
        };
        // The prefix of a module, at least.
        let longest = quoted().map(common).max();
        longest.filter(|length| seen.name[..*length].contains('_'))
    };
    let alike = level
        .seen
        .iter()
        .filter_map(|seen| Some((likeness(seen)?, seen.head)));
    match alike.max_by_key(|(length, _)| *length) {
        Some((_, head)) => Diagnostic {
            span: Some(head),
            ..error
        },
        None => error,
    }
}
