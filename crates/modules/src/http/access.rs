//! `allow` and `deny`: who may see a location, by address.
//!
//! ```nginx
//! location /intern/ {
//!     allow 10.0.0.0/8;
//!     allow unix:;
//!     deny  all;
//! }
//! ```
//!
//! The first rule that matches decides; without one everybody may. The address is the one that `realip` settled on.
//! A block with rules of its own inherits none.

use conf::{Arity, Directive, HTTP_SERVER_LOCATION_EXCEPT, Repeat, Setter, Table};
use http::site::Satisfy;
use http::{Module, Outcome, Phase, Request, Step};

use crate::shared::access::{Judgement, Rules};

pub(crate) static MODULE: Module = Module {
    name: "access",
    doc: "Restricts access by client address.",
    location: &DIRECTIVES,
    phases: &[(Phase::Access, judge)],
    enabled: |location| !location.confs.get::<Rules>().is_empty(),
    ..Module::EMPTY
};

static DIRECTIVES: Table<Rules> = Table::<Rules>::new(&[
    Directive {
        name: "allow",
        syntax: "address | CIDR | unix: | all",
        default: None,
        contexts: HTTP_SERVER_LOCATION_EXCEPT,
        since: "0.1",
        doc: "Allows access from this address or network. The first matching `allow` or `deny` decides.",
        set: Setter::Custom(Arity::ONE, Repeat::Many, |rules, line| rules.read(line, Judgement::Allow)),
    },
    Directive {
        name: "deny",
        syntax: "address | CIDR | unix: | all",
        default: None,
        contexts: HTTP_SERVER_LOCATION_EXCEPT,
        since: "0.1",
        doc: "Denies access from this address or network, with 403. The first matching `allow` or `deny` decides.",
        set: Setter::Custom(Arity::ONE, Repeat::Many, |rules, line| rules.read(line, Judgement::Deny)),
    },
])
.inherit(Rules::inherited, |_| true);

fn judge(request: &mut Request) -> Step<'_> {
    let judgement = request.conf::<Rules>().judge(&request.remote.address);
    match judgement {
        None => Outcome::Declined.into(),
        Some(Judgement::Allow) => Outcome::Ok.into(),
        Some(Judgement::Deny) => {
            // With `satisfy any` another handler may still grant; the engine logs when none did.
            if request.core().satisfy == Satisfy::All {
                request.error(format_args!("access forbidden by rule"));
            }
            Outcome::Status(403).into()
        }
    }
}
