//! How much output of a script is kept until it is sent: `lua_http10_buffering`, and the bound of what a script may say
//! without waiting.

use http::Request;

use crate::scripts::HttpScripts;

/// A script whose unsent output reaches this many bytes is suspended until the output has been
/// sent. nginx buffers without limit; a loop of `ngx.say` would take all memory.
const FLUSH_AT: usize = 64 * 1024;

/// Whether a script with this much unsent output must wait until it is sent.
pub(crate) fn must_flush(said: usize) -> bool {
    said >= FLUSH_AT
}

/// How much output is buffered for an HTTP/1.0 client, in bytes.
const MAX_HTTP10_BUFFER: usize = 16 << 20;

/// Whether this much output may still be buffered until the script has ended.
pub(crate) fn may_buffer(said: usize) -> bool {
    said < MAX_HTTP10_BUFFER
}

/// `lua_http10_buffering`: whether to send the response at the end of the script, with its length.
/// HTTP/1.0 has no chunked encoding, so without a length the connection could not be kept open.
pub(crate) fn is_http10_buffered(request: &Request) -> bool {
    request.head.version() < http::request::HttpVersion::Http11
        && request.out.content_length.is_none()
        && !request.is_subrequest()
        && request.conf::<HttpScripts>().http10_buffering
}
