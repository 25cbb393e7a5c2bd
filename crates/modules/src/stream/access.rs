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
use ::stream::{SessionOutcome, SessionStep, StreamModule, StreamPhase, StreamSession};
use conf::directive_contexts::STREAM_AND_SERVER;
use conf::{Directive, DirectiveTable};

use crate::shared::access::{self, AccessAction, AccessRules};

pub(crate) static MODULE: StreamModule = StreamModule {
    name: "access",
    doc: "Restricts access by client address.",
    server: &DIRECTIVES,
    phases: &[(StreamPhase::Access, judge)],
    enabled: |server| !server.confs.get::<AccessRules>().is_empty(),
    ..StreamModule::EMPTY
};

static ROWS: [Directive<AccessRules>; 2] = access::rows(
    STREAM_AND_SERVER,
    "Denies access from this address or network; the session ends with status 403. The first matching `allow` or `deny` \
     decides.",
);

static DIRECTIVES: DirectiveTable<AccessRules> =
    DirectiveTable::<AccessRules>::new(&ROWS).inherit(AccessRules::inherited, |_| true);

/// The phase handler.
fn judge(session: &mut StreamSession) -> SessionStep<'_> {
    match session
        .conf::<AccessRules>()
        .action_for(&session.remote.address)
    {
        None => SessionOutcome::Declined.into(),
        Some(AccessAction::Allow) => SessionOutcome::Ok.into(),
        Some(AccessAction::Deny) => {
            session.error(format_args!("access forbidden by rule"));
            SessionOutcome::Status(FORBIDDEN).into()
        }
    }
}
