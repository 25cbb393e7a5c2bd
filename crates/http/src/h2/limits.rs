//! The bounds that the configuration sets to a connection and its frames. Those of the heads of its requests are in
//! [`crate::stream_request`].

use std::sync::Arc;
use std::time::Duration;

use proto::h2::{ReaderLimits, frame};

use crate::client::HttpClient;
use crate::core::LocationConf;
use crate::http_site::HttpSite;
use crate::stream_request::BLOCK_FACTOR;

/// How many CONTINUATION frames a header block may have. Empty ones cost a client nothing, and the list never has to
/// end (CVE-2024-27316 and its relatives).
const MAX_CONTINUATIONS: u32 = 64;

/// The limits of a connection, from the server at which its requests begin.
pub(super) struct Http2Limits {
    pub(super) max_streams: usize,
    pub(super) preread: u32,
    pub(super) read_size: usize,
    pub(super) header_timeout: Duration,
    pub(super) core: Arc<LocationConf>,
}

impl Http2Limits {
    pub(super) fn of(site: &HttpSite, client: &HttpClient) -> Http2Limits {
        let server = site.server(client.first_server());
        let http2 = &server.core.http2;
        Http2Limits {
            max_streams: http2.max_concurrent_streams as usize,
            // The directive's own limit keeps it within a window, so that nothing is cut off.
            preread: http2.body_preread_size as u32,
            read_size: http2.recv_buffer_size as usize,
            header_timeout: server.core.client_header_timeout,
            core: Arc::clone(&site.location(server.root).core),
        }
    }
}

/// The limits of the frame reader, derived from those on a request's head.
pub(super) fn reader_limits(site: &HttpSite, client: &HttpClient) -> ReaderLimits {
    let server = site.server(client.first_server());
    let fields = server.core.large_buffers * server.core.large_buffer_size;
    ReaderLimits {
        // Content gains nothing by larger frames. But where a field may be larger than the default frame, frames may be
        // as large as in nginx, so that it need not be continued. They need no more memory: content passes in pieces,
        // and header blocks have limits of their own.
        max_frame_size: match server.core.large_buffer_size > frame::MAX_FRAME_SIZE_DEFAULT.into() {
            true => frame::MAX_FRAME_SIZE_MAX,
            false => frame::MAX_FRAME_SIZE_DEFAULT,
        },
        max_block: (fields as usize)
            .saturating_mul(BLOCK_FACTOR)
            .max(ReaderLimits::default().max_block),
        max_continuations: MAX_CONTINUATIONS,
        takes_pushes: false,
    }
}
