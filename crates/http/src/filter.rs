//! What happens to a response between its handler and the wire.
//!
//! The filters of a location stand in the order of the modules. Each sees what the ones before it left. The first two
//! to matter are the conditions (304, 412), the last the ranges, which only apply to content that nobody changed.

use std::rc::Rc;

use crate::module::Verdict;
use crate::request::Request;

/// Runs the filters of the request's location.
pub fn run(request: &mut Request) -> Verdict {
    let site = Rc::clone(&request.site);
    for (name, filter) in site.location(request.location).pipeline.filters.iter() {
        request.debug(format_args!("http filter: {name}"));
        let verdict = filter(request);
        if verdict != Verdict::Pass {
            return verdict;
        }
    }
    Verdict::Pass
}
