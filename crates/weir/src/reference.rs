//! The pages of the reference, and all directive tables of this binary. Whatever lists directives
//! asks here: `weir help`, `-V`, the suggestions in error messages.

use conf::describe::rows;
use conf::{DirectiveRows, RowInfo};

use crate::engines::{HTTP, STREAM};

/// One page of the reference: the tables of one module.
pub(crate) struct ReferencePage {
    /// The title, and the file's name without extension.
    pub(crate) name: String,
    /// A sentence about the module.
    pub(crate) about: &'static str,
    /// The tables of its directives.
    pub(crate) tables: Vec<&'static dyn DirectiveRows>,
    /// Its variables.
    pub(crate) variables: Vec<conf::describe::VariableInfo>,
}

impl ReferencePage {
    /// The name of the page's file.
    pub(crate) fn file_name(&self) -> String {
        format!("{}.md", self.name.replace(['/', ' '], "-"))
    }

    /// Whether it is about the TCP and UDP engine.
    pub(crate) fn is_stream(&self) -> bool {
        self.name == "stream" || self.name.starts_with("stream_")
    }
}

/// A page per module, in the order of the reference.
pub(crate) fn pages() -> Vec<ReferencePage> {
    let mut pages = vec![
        ReferencePage {
            name: "main".into(),
            about: "Processes, the error log, and the blocks of the engines: the main context.",
            tables: vec![&crate::core_conf::DIRECTIVES],
            variables: Vec::new(),
        },
        ReferencePage {
            name: "events".into(),
            about: "How event loops accept and poll connections: the `events` block.",
            tables: vec![&crate::events::DIRECTIVES],
            variables: Vec::new(),
        },
        ReferencePage {
            name: "http".into(),
            about: "The core of the HTTP engine: servers, locations, requests, responses, files.",
            tables: http::HttpEngine::own_tables().to_vec(),
            variables: variables(http::variables::VARIABLES),
        },
    ];
    pages.extend(HTTP.modules().iter().map(|module| {
        ReferencePage {
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

/// The pages of stream's modules. Their names have a prefix, because http has modules with the same
/// names.
fn stream_pages() -> Vec<ReferencePage> {
    let mut pages = vec![ReferencePage {
        name: "stream".into(),
        about: "The core of the TCP and UDP engine: servers and sessions.",
        tables: stream::StreamEngine::own_tables().to_vec(),
        variables: variables(stream::variables::VARIABLES),
    }];
    pages.extend(STREAM.modules().iter().map(|module| {
        ReferencePage {
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

/// All directive tables.
pub(crate) fn tables() -> Vec<&'static dyn DirectiveRows> {
    pages().into_iter().flat_map(|page| page.tables).collect()
}

/// All directives.
pub(crate) fn directives() -> Vec<RowInfo> {
    rows(tables())
}

/// The names that `weir help` knows: those of directives, each once.
pub(crate) fn directive_names() -> Vec<&'static str> {
    let mut names: Vec<&str> = directives().iter().map(|row| row.name).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// All variables.
pub(crate) fn known_variables() -> Vec<conf::describe::VariableInfo> {
    pages()
        .into_iter()
        .flat_map(|page| page.variables)
        .collect()
}

/// The names of all variables, without `$`.
pub(crate) fn variable_names() -> Vec<&'static str> {
    let variables = pages().into_iter().flat_map(|page| page.variables);
    variables.map(|variable| variable.name).collect()
}
