//! `allow` and `deny` in stream: restricts access by client address.
//!
//! The first matching rule decides; if none matches, access is allowed. The address is the one
//! determined by `realip`. A block with rules of its own inherits none.
//!
//! ```nginx
//! server {
//!     listen     3306;
//!     deny       192.0.2.7;
//!     allow      192.0.2.0/24;
//!     deny       all;
//!     proxy_pass db;
//! }
//! ```

use ::stream::module::status::FORBIDDEN;
use ::stream::{Module, Outcome, Phase, Session, Step};
use conf::contexts::STREAM_AND_SERVER;
use conf::{Directive, Table};

use crate::shared::access::{self, AccessAction, AccessRules};

pub(crate) static MODULE: Module = Module {
    name: "access",
    doc: "Restricts access by client address.",
    server: &DIRECTIVES,
    phases: &[(Phase::Access, judge)],
    enabled: |server| !server.confs.get::<AccessRules>().is_empty(),
    ..Module::EMPTY
};

static ROWS: [Directive<AccessRules>; 2] = access::rows(
    STREAM_AND_SERVER,
    "Denies access from this address or network; the session ends with status 403. The first matching `allow` or `deny` \
     decides.",
);

static DIRECTIVES: Table<AccessRules> =
    Table::<AccessRules>::new(&ROWS).inherit(AccessRules::inherited, |_| true);

/// The phase handler.
fn judge(session: &mut Session) -> Step<'_> {
    match session
        .conf::<AccessRules>()
        .action_for(&session.remote.address)
    {
        None => Outcome::Declined.into(),
        Some(AccessAction::Allow) => Outcome::Ok.into(),
        Some(AccessAction::Deny) => {
            session.error(format_args!("access forbidden by rule"));
            Outcome::Status(FORBIDDEN).into()
        }
    }
}
