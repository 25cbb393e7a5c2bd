//! `allow` and `deny` in stream: who may come in, by address.
//!
//! The first rule that matches decides; without one everybody may. The address is the one that `realip` settled on. A
//! block with rules of its own inherits none.

use ::stream::module::status::FORBIDDEN;
use ::stream::{Module, Outcome, Phase, Session, Step};
use conf::contexts::STREAM_AND_SERVER;
use conf::{Arity, Directive, Repeat, Setter, Table};

use crate::shared::access::{Judgement, Rules};

pub(crate) static MODULE: Module = Module {
    name: "access",
    doc: "Restricts access by client address.",
    server: &DIRECTIVES,
    phases: &[(Phase::Access, judge)],
    enabled: |server| !server.confs.get::<Rules>().is_empty(),
    ..Module::EMPTY
};

static DIRECTIVES: Table<Rules> = Table::<Rules>::new(&[
    Directive {
        name: "allow",
        syntax: "address | CIDR | unix: | all",
        default: None,
        contexts: STREAM_AND_SERVER,
        since: "0.1",
        doc: "Allows access from this address or network. The first matching `allow` or `deny` decides.",
        set: Setter::Custom(Arity::ONE, Repeat::Many, |rules, line| rules.read(line, Judgement::Allow)),
    },
    Directive {
        name: "deny",
        syntax: "address | CIDR | unix: | all",
        default: None,
        contexts: STREAM_AND_SERVER,
        since: "0.1",
        doc: "Denies access from this address or network; the session ends with status 403. The first matching `allow` \
              or `deny` decides.",
        set: Setter::Custom(Arity::ONE, Repeat::Many, |rules, line| rules.read(line, Judgement::Deny)),
    },
])
.inherit(Rules::inherited, |_| true);

fn judge(session: &mut Session) -> Step<'_> {
    match session.conf::<Rules>().judge(&session.remote.address) {
        None => Outcome::Declined.into(),
        Some(Judgement::Allow) => Outcome::Ok.into(),
        Some(Judgement::Deny) => {
            session.error(format_args!("access forbidden by rule"));
            Outcome::Status(FORBIDDEN).into()
        }
    }
}
