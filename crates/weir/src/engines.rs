//! The engines in this binary, with their modules.
//!
//! This is the only place that names the engines and puts the lists of their modules together. The
//! rest of the crate knows them as `host::engine::EngineConfiguration`, so a further engine changes
//! nothing else.

use std::sync::{Arc, LazyLock};

use conf::{Diagnostic, DirectiveLine};
use host::engine::EngineConfiguration;

/// The HTTP engine with its modules.
pub(crate) static HTTP: LazyLock<http::HttpEngine> =
    LazyLock::new(|| http::HttpEngine::new(http_modules()));

/// The modules of http, with Lua's in their places, which decide the order: scripts run last in the
/// rewrite and access phases, and their filters see a response before the other filters do.
fn http_modules() -> &'static [&'static http::HttpModule] {
    let mut list = modules::http::MODULES.to_vec();
    for (after, module) in lua::HTTP_MODULES {
        let at = list.iter().position(|known| known.name == *after);
        let at = at.map_or(list.len(), |at| at + 1);
        list.insert(at, module);
    }
    Vec::leak(list)
}

/// The stream engine with its modules.
pub(crate) static STREAM: LazyLock<stream::StreamEngine> =
    LazyLock::new(|| stream::StreamEngine::new(stream_modules()));

/// The modules of stream, with Lua's in their places: scripts run last in the preread phase.
fn stream_modules() -> &'static [&'static stream::StreamModule] {
    let mut list = modules::stream::MODULES.to_vec();
    for (after, module) in lua::STREAM_MODULES {
        let at = list.iter().position(|known| known.name == *after);
        let at = at.map_or(list.len(), |at| at + 1);
        list.insert(at, module);
    }
    Vec::leak(list)
}

/// Builds the configuration of `stream { … }`.
pub(crate) fn stream(line: &mut DirectiveLine) -> Result<Arc<dyn EngineConfiguration>, Diagnostic> {
    STREAM.configure(line)
}

/// Builds the configuration of `http { … }`.
pub(crate) fn http(line: &mut DirectiveLine) -> Result<Arc<dyn EngineConfiguration>, Diagnostic> {
    HTTP.configure(line)
}
