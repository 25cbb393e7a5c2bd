//! The bounds that the configuration sets to a connection. Those of the heads of its requests are in
//! [`crate::stream_request`].

use std::sync::Arc;
use std::time::Duration;

use crate::client::HttpClient;
use crate::core::LocationConf;
use crate::http_site::HttpSite;
use crate::stream_request::BLOCK_FACTOR;

/// The largest dynamic table of a client, in bytes; nginx's bound.
pub(super) const TABLE_CAPACITY: usize = 4096;

/// How much a header block may be without the configuration allowing more, in bytes.
const LEAST_BLOCK: u64 = 64 * 1024;

/// How much the header blocks that wait for the table may occupy together, in bytes.
pub(super) const BLOCKED_BYTES: usize = 256 * 1024;

/// How much of a request's content is taken before a handler reads it, in bytes, so that the end of the content and a
/// reset behind it are seen.
pub(super) const PREREAD: usize = 64 * 1024;

/// How much of what we say on our control and QPACK streams may wait for the client's windows, in bytes.
pub(super) const UNSENT: usize = 16 * 1024;

/// The limits of a connection, from the server at which its requests begin.
pub(super) struct Http3Limits {
    pub(super) max_streams: usize,
    pub(super) max_block: u64,
    pub(super) max_text: usize,
    pub(super) header_timeout: Duration,
    pub(super) core: Arc<LocationConf>,
    /// The number of the configuration that they are from.
    pub(super) generation: u64,
}

impl Http3Limits {
    pub(super) fn of(site: &HttpSite, client: &HttpClient) -> Http3Limits {
        let server = site.server(client.first_server());
        let fields = server.core.large_buffers * server.core.large_buffer_size;
        Http3Limits {
            max_streams: server.core.http3.max_concurrent_streams as usize,
            max_block: fields.saturating_mul(BLOCK_FACTOR as u64).max(LEAST_BLOCK),
            max_text: server.core.large_buffer_size as usize,
            header_timeout: server.core.client_header_timeout,
            core: Arc::clone(&site.location(server.root).core),
            generation: site.generation,
        }
    }
}
