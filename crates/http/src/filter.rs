//! What happens to a response between its handler and the wire.
//!
//! The filters of a location run in the order of the module list. Each sees what the ones before it left. The first
//! that matter are the conditions (304, 412); the last are the ranges, which apply only to content that no filter
//! changed.

use std::rc::Rc;

use crate::module::FilterVerdict;
use crate::request::{Request, RequestPurpose};

/// Runs the filters of the request's location, until one takes the response out of their hands.
pub fn run_filters(request: &mut Request) -> FilterVerdict {
    // A filter may move the request elsewhere. The list stays that of the location in which the response was made.
    let site = Rc::clone(&request.site);
    if request.flow.purpose == RequestPurpose::Member {
        return run_member_filters(request);
    }
    for (name, filter) in site.location(request.location).pipeline.filters.iter() {
        request.debug(format_args!("http filter: {name}"));
        let verdict = filter(request);
        if verdict != FilterVerdict::Pass {
            return verdict;
        }
    }
    // The cursor that it may have over a fill would hold a fill up that waits for its followers.
    request.out.forget_identity();
    FilterVerdict::Pass
}

/// Runs the filters for an answer to a member of a cluster.
#[cold]
fn run_member_filters(request: &mut Request) -> FilterVerdict {
    let site = Rc::clone(&request.site);
    for filter in &site.location(request.location).pipeline.member_filters {
        let verdict = filter(request);
        if verdict != FilterVerdict::Pass {
            return verdict;
        }
    }
    request.out.forget_identity();
    FilterVerdict::Pass
}
