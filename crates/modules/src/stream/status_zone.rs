//! `status_zone` in stream: counts the sessions of a server under a name, for `api` and `weir_status`.
//!
//! ```nginx
//! server { listen 5432; proxy_pass db; status_zone postgres; }
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;

use ::stream::{SessionOutcome, SessionStep, StreamModule, StreamPhase, StreamSession};
use bstr::ByteSlice;
use conf::{Arity, Directive, DirectiveTable, RepeatRule, STREAM_SERVER, Setter};

use crate::shared::observation::Observation;
use crate::shared::observation::sessions::CountedSession;

pub(crate) static MODULE: StreamModule = StreamModule {
    name: "status_zone",
    doc: "Counts the sessions of a server under a name.",
    server: &DIRECTIVES,
    phases: &[(StreamPhase::PostAccept, begin), (StreamPhase::Log, end)],
    enabled: |server| server.confs.get::<Conf>().zone.is_some(),
    commit: |site, zones| {
        let names = site.servers.iter();
        let names = names.filter_map(|server| server.confs.get::<Conf>().zone.clone());
        let names: BTreeSet<_> = names.collect();
        Observation::of(zones).sessions.set_names(&names);
    },
    start: |engine| Observation::of(&engine.zones).set_stream(&engine.site().shared()),
    ..StreamModule::EMPTY
};

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::new(&[Directive {
    name: "status_zone",
    syntax: "name",
    default: None,
    contexts: STREAM_SERVER,
    since: "0.2",
    doc: "Counts the sessions of this server under a name, for `api` and `weir_status`. Several servers may have the same \
          name.",
    set: Setter::Custom(Arity::ONE, RepeatRule::Once, |conf, line| {
        conf.zone = Some(line.text(0).to_str_lossy().into());
        Ok(())
    }),
}]);

#[derive(Clone, Debug, Default)]
struct Conf {
    zone: Option<Arc<str>>,
}

/// The session begins.
fn begin(session: &mut StreamSession) -> SessionStep<'_> {
    let zones = Observation::of(&session.engine.zones);
    let zone = session.conf::<Conf>().zone.clone();
    if let Some(counters) = zone.and_then(|zone| zones.sessions.find(&zone)) {
        session.set_state(CountedSession::begin(counters));
    }
    SessionOutcome::Declined.into()
}

/// The session has ended.
fn end(session: &mut StreamSession) -> SessionStep<'_> {
    let (status, received, sent) = (session.status, session.received, session.client.sent.get());
    if let Some(counted) = session.state::<CountedSession>() {
        counted.end(status, received, sent);
    }
    SessionOutcome::Declined.into()
}
