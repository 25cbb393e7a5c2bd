//! The engines that this binary has, and every directive table in it.

use std::sync::{Arc, LazyLock};

use conf::describe::rows;
use conf::{Diagnostic, Line, RowInfo, Rows};
use rt::engine::Configuration;

/// One page of the reference: the tables of one module.
pub(crate) struct Page {
    /// The file's name without its ending, and the title.
    pub(crate) name: String,
    /// What it is about.
    pub(crate) about: &'static str,
    /// Its tables.
    pub(crate) tables: Vec<&'static dyn Rows>,
    /// Its variables.
    pub(crate) variables: Vec<conf::describe::VariableInfo>,
}

/// HTTP with its modules.
static HTTP: LazyLock<http::Engine> = LazyLock::new(|| http::Engine::new(http_modules()));

/// The modules of http, with Lua's in their places: scripts run last in the phases of rewrite and access, and their
/// filters see a response before the other filters do.
fn http_modules() -> &'static [&'static http::Module] {
    let mut list = modules::http::MODULES.to_vec();
    for (after, module) in lua::HTTP_MODULES {
        let at = list.iter().position(|known| known.name == *after);
        let at = at.map_or(list.len(), |at| at + 1);
        list.insert(at, module);
    }
    Vec::leak(list)
}

/// Stream with its modules.
static STREAM: LazyLock<stream::Engine> = LazyLock::new(|| stream::Engine::new(stream_modules()));

/// The modules of stream, with Lua's in their places: scripts run last in the preread phase.
fn stream_modules() -> &'static [&'static stream::Module] {
    let mut list = modules::stream::MODULES.to_vec();
    for (after, module) in lua::STREAM_MODULES {
        let at = list.iter().position(|known| known.name == *after);
        let at = at.map_or(list.len(), |at| at + 1);
        list.insert(at, module);
    }
    Vec::leak(list)
}

/// Builds `stream { … }`.
pub(crate) fn stream(line: &mut Line) -> Result<Arc<dyn Configuration>, Diagnostic> {
    STREAM.configure(line)
}

/// Builds `http { … }`.
pub(crate) fn http(line: &mut Line) -> Result<Arc<dyn Configuration>, Diagnostic> {
    HTTP.configure(line)
}

/// Every module of the binary, in the order of the reference.
pub(crate) fn pages() -> Vec<Page> {
    let mut pages = vec![
        Page {
            name: "main".into(),
            about: "Processes, the error log, and the blocks of the engines: the main context.",
            tables: vec![&crate::core::DIRECTIVES],
            variables: Vec::new(),
        },
        Page {
            name: "events".into(),
            about: "How event loops accept and poll connections: the `events` block.",
            tables: vec![&crate::events::DIRECTIVES],
            variables: Vec::new(),
        },
        Page {
            name: "http".into(),
            about: "The core of the HTTP engine: servers, locations, requests, responses, files.",
            tables: http::Engine::own_tables().to_vec(),
            variables: variables(http::variables::VARIABLES),
        },
    ];
    pages.extend(HTTP.modules().iter().map(|module| {
        Page {
            name: module.name.into(),
            about: module.doc,
            tables: [module.main, module.server, module.location]
                .iter()
                .chain(module.blocks)
                .copied()
                .filter(|table| !table.is_empty())
                .collect(),
            variables: variables(&[module.variables]),
        }
    }));
    pages.extend(stream_pages());
    pages
}

fn stream_pages() -> Vec<Page> {
    let mut pages = vec![Page {
        name: "stream".into(),
        about: "The core of the TCP and UDP engine: servers and sessions.",
        tables: stream::Engine::own_tables().to_vec(),
        variables: variables(stream::variables::VARIABLES),
    }];
    pages.extend(STREAM.modules().iter().map(|module| {
        Page {
            name: format!("stream_{}", module.name),
            about: module.doc,
            tables: [module.main, module.server]
                .iter()
                .chain(module.blocks)
                .copied()
                .filter(|table| !table.is_empty())
                .collect(),
            variables: variables(&[module.variables]),
        }
    }));
    pages
}

fn variables<R>(lists: &[&'static [conf::Variable<R>]]) -> Vec<conf::describe::VariableInfo> {
    lists
        .iter()
        .flat_map(|list| list.iter())
        .map(conf::describe::VariableInfo::of)
        .collect()
}

/// Every table.
pub(crate) fn tables() -> Vec<&'static dyn Rows> {
    pages().into_iter().flat_map(|page| page.tables).collect()
}

/// Every directive.
pub(crate) fn directives() -> Vec<RowInfo> {
    rows(tables())
}

/// Is there a directive of this name? `stream NAME` asks for one in stream.
pub(crate) fn knows(name: &str) -> bool {
    let in_stream = name.strip_prefix("stream ");
    directives().iter().any(|row| match in_stream {
        Some(name) => row.name == name && row.contexts.text().contains("stream"),
        None => row.name == name,
    })
}
