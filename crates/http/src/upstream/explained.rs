//! What an exchange would send, for `weir explain`: the head that is written for it, and the choice of a server that would
//! begin. No connection is opened.

use std::sync::Arc;

use net::upstream::{PeerSelection, UpstreamGroup};

use super::exchange::ExchangePlan;
use super::no_response::NoResponse;
use super::protocol::{RequestLength, ShownFields};
use super::request_content::describe_content;
use crate::request::Request;

/// Writes the head of an exchange, and reads it back: what is shown is what is sent. Also how many bytes of body follow.
pub(crate) fn explained_head(
    request: &mut Request,
    plan: &mut ExchangePlan,
) -> Result<(ShownFields, u64), NoResponse> {
    request.upstream.get_or_make().target.clear();
    let (announced, _) = describe_content(request, plan.content);
    let mut head = Vec::new();
    plan.protocol.write_head(request, announced, &mut head)?;
    let length = match announced {
        RequestLength::Length(length) => length,
        RequestLength::None | RequestLength::Unknown => 0,
    };
    Ok((plan.protocol.shown_fields(&head), length))
}

/// The choice of a server, as it begins for a request.
pub(crate) fn explained_selection(
    request: &mut Request,
    group: Arc<UpstreamGroup>,
) -> PeerSelection {
    super::exchange_target::begin_selection(request, group).0
}
