//! The scripts of a location of `http` and of a server of `stream`: what the rows of [`crate::directives`] and
//! [`crate::stream`] make of the configuration.

use std::sync::Arc;

use crate::chunk::LuaChunk;

/// The scripts and settings of a location. Each is inherited unless the location has its own.
#[derive(Clone, Default)]
pub(crate) struct HttpScripts {
    /// It runs before a location is chosen, so only the server's value is ever used.
    pub(crate) server_rewrite: Option<Arc<LuaChunk>>,
    pub(crate) rewrite: Option<Arc<LuaChunk>>,
    /// `access_by_lua`.
    pub(crate) access: Option<Arc<LuaChunk>>,
    /// `precontent_by_lua`.
    pub(crate) precontent: Option<Arc<LuaChunk>>,
    /// Which of these run early. The same in every location.
    pub(crate) no_postpone: NoPostpone,
    /// The content handler. Unlike the other scripts it is not inherited by nested locations.
    pub(crate) content: Option<Arc<LuaChunk>>,
    /// `header_filter_by_lua`.
    pub(crate) header_filter: Option<Arc<LuaChunk>>,
    /// `body_filter_by_lua`.
    pub(crate) body_filter: Option<Arc<LuaChunk>>,
    /// `log_by_lua`.
    pub(crate) log: Option<Arc<LuaChunk>>,
    /// `lua_code_cache`: off gives each request a VM of its own.
    pub(crate) code_cache: bool,
    /// `lua_need_request_body`: the body is read before the rewrite and access scripts.
    pub(crate) need_request_body: bool,
    /// `lua_use_default_type`: a response without a type gets that of `default_type`.
    pub(crate) use_default_type: bool,
    /// `lua_http10_buffering`: HTTP/1.0 has no chunks, so without the whole response there is no
    /// length.
    pub(crate) http10_buffering: bool,
    /// `lua_transform_underscores_in_response_headers`: Lua's `ngx.header.content_type` can be
    /// written without quotes.
    pub(crate) transform_underscores: bool,
    /// `lua_check_client_abort`: a script that waits is woken when its client disconnects.
    pub(crate) check_client_abort: bool,
    /// The scripts of TLS handshakes. These run before a request, so a server's value is used.
    pub(crate) client_hello: Option<Arc<LuaChunk>>,
    pub(crate) certificate: Option<Arc<LuaChunk>>,
    pub(crate) session_fetch: Option<Arc<LuaChunk>>,
    pub(crate) session_store: Option<Arc<LuaChunk>>,
}

impl HttpScripts {
    /// `content_by_lua` is a content handler like `proxy_pass`, and is not inherited by nested
    /// locations.
    pub(crate) fn drop_content(&mut self) {
        self.content = None;
    }
}

/// The `*_by_lua_no_postpone` directives: which scripts run at the beginning of their phase.
#[derive(Clone, Copy, Default)]
pub(crate) struct NoPostpone {
    pub(crate) rewrite: bool,
    pub(crate) access: bool,
    pub(crate) precontent: bool,
}

/// The scripts and settings of a server.
#[derive(Clone, Default)]
pub(crate) struct StreamScripts {
    /// Runs at the end of the preread phase.
    pub(crate) preread: Option<Arc<LuaChunk>>,
    /// Handles the session in place of `proxy_pass`.
    pub(crate) content: Option<Arc<LuaChunk>>,
    /// Runs when the session has ended.
    pub(crate) log: Option<Arc<LuaChunk>>,
    pub(crate) client_hello: Option<Arc<LuaChunk>>,
    pub(crate) certificate: Option<Arc<LuaChunk>>,
    /// `lua_code_cache`: off gives each session a VM of its own.
    pub(crate) code_cache: bool,
    /// `lua_check_client_abort`: the content script ends with its client.
    pub(crate) check_client_abort: bool,
}
