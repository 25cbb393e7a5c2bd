//! The bounds that the configuration sets to a connection, its frames, and the heads of its requests.

use std::sync::Arc;
use std::time::Duration;

use proto::h2::hpack::ListLimits;
use proto::h2::request::{RequestLimits, Underscores};
use proto::h2::{ReaderLimits, frame};
use proto::message::InvalidHeaders;

use crate::client::Client;
use crate::core::{LocationConf, ServerConf};
use crate::site::Site;

/// CONTINUATION frames of one header block.
const MAX_CONTINUATIONS: u32 = 64;

/// A header block may be so many times as large on the wire as its fields may be: the least efficient code has 30 bits
/// for a byte.
const BLOCK_FACTOR: usize = 4;

/// Fields of a request that are looked at, Cookie fields included, beyond `max_headers`.
const MORE_FIELDS: usize = 1000;

/// What bounds a connection: settings of the server of its address.
pub(super) struct Limits {
    pub(super) max_streams: usize,
    pub(super) preread: u32,
    pub(super) read_size: usize,
    pub(super) header_timeout: Duration,
    pub(super) core: Arc<LocationConf>,
}

impl Limits {
    pub(super) fn of(site: &Site, client: &Client) -> Limits {
        let server = site.server(client.endpoint.borrow().default_server);
        let http2 = &server.core.http2;
        Limits {
            max_streams: http2.max_concurrent_streams as usize,
            // The row's bound is that of a window.
            preread: http2.body_preread_size as u32,
            read_size: http2.recv_buffer_size as usize,
            header_timeout: server.core.client_header_timeout,
            core: Arc::clone(&site.location(server.root).core),
        }
    }
}

/// What the reader takes, by the bounds on a request's head.
pub(super) fn reader_limits(site: &Site, client: &Client) -> ReaderLimits {
    let server = site.server(client.endpoint.borrow().default_server);
    let fields = server.core.large_buffers * server.core.large_buffer_size;
    ReaderLimits {
        // Content gains nothing by larger frames; but where a field may be larger than a frame usually is, frames may be
        // as large as in nginx. They cost nothing more: content passes in pieces, and the rest has other bounds.
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

/// What the head of a request may be.
pub(super) fn request_limits(core: &ServerConf) -> RequestLimits {
    RequestLimits {
        underscores_in_headers: match core.underscores_in_headers {
            true => Underscores::Allowed,
            false => Underscores::Invalid,
        },
        invalid_headers: match core.ignore_invalid_headers {
            true => InvalidHeaders::Ignored,
            false => InvalidHeaders::Kept,
        },
        max_headers: core.max_headers as usize,
        max_text: core.large_buffer_size as usize,
        max_texts: (core.large_buffers * core.large_buffer_size) as usize,
    }
}

/// nginx counts the texts alone, and no Cookie fields; what the fields themselves take is bounded here too.
pub(super) fn list_limits(core: &ServerConf) -> ListLimits {
    let texts = (core.large_buffers * core.large_buffer_size) as usize;
    let fields = (core.max_headers as usize).saturating_add(MORE_FIELDS);
    ListLimits {
        max_size: texts.saturating_add(MORE_FIELDS * proto::h2::hpack::ENTRY_OVERHEAD),
        max_fields: fields,
    }
}
