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
use http::explain::StepResult;
use http::http_site::Satisfy;
use http::module::ExplainNotes;
use http::{HandlerOutcome, HandlerStep, HttpModule, HttpPhase, Request};

use crate::shared::access::{self, AccessAction, AccessRules};

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "access",
    doc: "Restricts access by client address.",
    location: &DIRECTIVES,
    phases: &[(HttpPhase::Access, judge)],
    enabled: |location| !location.confs.get::<AccessRules>().is_empty(),
    explain: http::module::ModuleExplain::Described(describe),
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

/// For `weir explain`: the rule that decides, in the place of the handler. The rules of a block are its `allow` and `deny`
/// lines in their order, so the number of a rule finds its line. The handler itself then judges by the same list.
fn describe<'a>(
    request: &'a mut Request,
    _: HttpPhase,
    notes: &'a mut ExplainNotes,
) -> HandlerStep<'a> {
    let location = request.location;
    let address = request.remote.address.clone();
    let rule = request.conf::<AccessRules>().rule_for(&address);
    let tree = std::rc::Rc::clone(&notes.tree);
    let lines = tree.lines(location, &["allow", "deny"]);
    let client = &request.remote.text;
    // No rule is not a grant: with `satisfy any` it leaves the decision to the others.
    match rule {
        Some((number, _)) => {
            let line = lines.get(number);
            let text = line.map(|line| line.text.to_string()).unwrap_or_default();
            let place = line.and_then(|line| line.place.clone());
            notes.step(
                "access",
                StepResult::Applies,
                format!("{text} → {client}"),
                place,
            );
        }
        None => {
            let place = lines.first().and_then(|line| line.place.clone());
            let text = format!("no rule has {client}");
            notes.step("access", StepResult::Passes, text, place);
        }
    }
    judge(request)
}
