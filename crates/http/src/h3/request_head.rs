//! The head of a request: a header block, decoded into the form that all versions of HTTP share.

use std::rc::Rc;

use proto::KnownField;
use proto::field_section::{MalformedRequest, ResponsePriority};
use proto::h3::H3Error;
use proto::qpack::SectionOutcome;

use super::connection_link::{Http3Link, block_error};
use crate::client_budget::price;
use crate::request::Request;
use crate::stream_request::{StreamHeadFacts, as_upgrade, list_limits, request_limits};

/// What the life of a request starts from.
pub(super) struct Http3Start {
    /// The request, of which only the head has been filled in.
    pub(super) request: Box<Request>,
    pub(super) verdict: Result<(), MalformedRequest>,
    pub(super) facts: StreamHeadFacts,
    /// What its own field says of the priority of its response.
    pub(super) priority: Option<ResponsePriority>,
}

/// Decodes the head of a request. `None`: its stream is blocked. The error ends the connection.
pub(super) fn decode_head(
    link: &Http3Link,
    stream: u64,
    block: &[u8],
) -> Result<Option<Http3Start>, H3Error> {
    let site = link.http.site();
    let core = &site.server(link.client.first_server()).core;
    let limits = request_limits(core);
    let mut request = link.take_spare_request();
    let head =
        Rc::get_mut(&mut request.head).expect("a request that has ended is alone with its head");
    let mut reader = link.requests.borrow_mut();
    let outcome = link
        .decoder
        .borrow_mut()
        .decode(stream, block, list_limits(core), |field| {
            reader.add_field(field, &limits, &mut head.wire);
        });
    let decoded = match outcome {
        Ok(SectionOutcome::Decoded(decoded)) => decoded,
        Ok(SectionOutcome::Blocked) => {
            reader.clear();
            link.keep_spare_request(request);
            return Ok(None);
        }
        Err(error) => {
            reader.clear();
            return Err(block_error(error));
        }
    };
    let is_too_large = decoded.too_large || reader.is_too_large();
    let mut verdict = reader.finish(block.len() as u32, &mut head.wire);
    if is_too_large {
        verdict = Err(MalformedRequest {
            status: 494,
            line: b"client sent too large header".to_vec(),
        });
    }
    if verdict.is_ok() && reader.protocol() == Some(b"websocket") {
        as_upgrade(&mut head.wire.fields);
    }
    let requests = &link.client.requests;
    requests.set(requests.get() + 1);
    head.number = requests.get();
    let priority = head.wire.fields.get_known(KnownField::Priority);
    let priority = priority.map(ResponsePriority::parse);
    let facts = StreamHeadFacts::of_reader(&reader, true);
    // The reader is reused for every head of the connection: nothing of this request may show in the next one.
    reader.clear();
    if verdict.is_err() {
        link.spend(price::STREAM)?;
    }
    Ok(Some(Http3Start {
        request,
        verdict,
        facts,
        priority,
    }))
}
