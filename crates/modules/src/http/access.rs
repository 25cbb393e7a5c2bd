//! `allow` and `deny`: access to a location by client address.
//!
//! ```nginx
//! location /intern/ {
//!     allow 10.0.0.0/8;
//!     allow unix:;
//!     deny  all;
//! }
//! ```
//!
//! The first matching rule decides; without one, access is allowed. The address is the one that
//! `realip` determined. A block with rules of its own inherits none.

use conf::{Directive, DirectiveTable, HTTP_SERVER_LOCATION_EXCEPT};
use http::http_site::Satisfy;
use http::{HandlerOutcome, HandlerStep, HttpModule, HttpPhase, Request};

use crate::shared::access::{self, AccessAction, AccessRules};

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "access",
    doc: "Restricts access by client address.",
    location: &DIRECTIVES,
    phases: &[(HttpPhase::Access, judge)],
    enabled: |location| !location.confs.get::<AccessRules>().is_empty(),
    ..HttpModule::EMPTY
};

static ROWS: [Directive<AccessRules>; 2] = access::rows(
    HTTP_SERVER_LOCATION_EXCEPT,
    "Denies access from this address or network, with 403. The first matching `allow` or `deny` decides.",
);

static DIRECTIVES: DirectiveTable<AccessRules> =
    DirectiveTable::<AccessRules>::new(&ROWS).inherit(AccessRules::inherited, |_| true);

/// The handler of the access phase. `Declined` and `Ok` both let the request pass, but with
/// `satisfy any` only `Ok` grants access.
fn judge(request: &mut Request) -> HandlerStep<'_> {
    let judgement = request
        .conf::<AccessRules>()
        .action_for(&request.remote.address);
    match judgement {
        None => HandlerOutcome::Declined.into(),
        Some(AccessAction::Allow) => HandlerOutcome::Ok.into(),
        Some(AccessAction::Deny) => {
            // With `satisfy any` another handler may still grant access; the engine logs if none
            // did.
            if request.core().satisfy == Satisfy::All {
                request.error(format_args!("access forbidden by rule"));
            }
            HandlerOutcome::Status(403).into()
        }
    }
}
