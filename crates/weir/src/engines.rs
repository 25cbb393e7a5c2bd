//! The engines that this binary has, and every directive table in it.

use std::sync::Arc;

use conf::describe::rows;
use conf::{Diagnostic, Line, RowInfo, Rows};
use rt::engine::Configuration;

/// One page of the reference: the tables of one module.
pub(crate) struct Page {
    /// The file's name without its ending, and the title.
    pub(crate) name: &'static str,
    /// What it is about.
    pub(crate) about: &'static str,
    /// Its tables.
    pub(crate) tables: Vec<&'static dyn Rows>,
    /// Its variables.
    pub(crate) variables: Vec<conf::describe::VariableInfo>,
}

/// HTTP with its modules.
static HTTP: http::Engine = http::Engine::new(modules::http::MODULES);

/// Builds `http { … }`.
pub(crate) fn http(line: &mut Line) -> Result<Arc<dyn Configuration>, Diagnostic> {
    HTTP.configure(line)
}

/// Every module of the binary, in the order of the reference.
pub(crate) fn pages() -> Vec<Page> {
    let mut pages = vec![
        Page {
            name: "main",
            about: "The processes, the error log, and the blocks of the engines: what stands outside every block.",
            tables: vec![&crate::core::DIRECTIVES],
            variables: Vec::new(),
        },
        Page {
            name: "events",
            about: "How event loops take connections: what stands in `events { … }`.",
            tables: vec![&crate::events::DIRECTIVES],
            variables: Vec::new(),
        },
        Page {
            name: "http",
            about: "The engine itself: servers, locations, requests, responses, files.",
            tables: http::Engine::own_tables().to_vec(),
            variables: variables(http::variables::VARIABLES),
        },
    ];
    pages.extend(HTTP.modules().iter().map(|module| {
        Page {
            name: module.name,
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
    pages
}

fn variables(
    lists: &[&'static [conf::Variable<http::Request>]],
) -> Vec<conf::describe::VariableInfo> {
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

/// Is there a directive of this name?
pub(crate) fn knows(name: &str) -> bool {
    directives().iter().any(|row| row.name == name)
}
