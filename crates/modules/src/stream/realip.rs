//! `set_real_ip_from` in stream: takes the client address from the PROXY protocol header of a
//! trusted proxy.
//!
//! ```nginx
//! server {
//!     listen           12345 proxy_protocol;
//!     set_real_ip_from 10.0.0.0/8;
//! }
//! ```

use std::net::SocketAddr;

use ::stream::{SessionOutcome, SessionStep, StreamModule, StreamPhase, StreamSession};
use conf::directive_contexts::STREAM_AND_SERVER;
use conf::{Arity, Directive, DirectiveTable, RepeatRule, Setter, Variable};
use net::client::RemoteClient;
use rt::net::SocketAddress;

use crate::shared::realip::{self, TrustedPeers};

pub(crate) static MODULE: StreamModule = StreamModule {
    name: "realip",
    doc: "Takes the client address from the PROXY protocol header of a trusted proxy.",
    server: &DIRECTIVES,
    phases: &[(StreamPhase::PostAccept, replace_client)],
    enabled: |server| !server.confs.get::<Conf>().trusted.is_empty(),
    variables: &VARIABLES,
    ..StreamModule::EMPTY
};

static VARIABLES: [Variable<StreamSession>; 2] = realip::variables();

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::<Conf>::new(&[Directive {
    name: "set_real_ip_from",
    syntax: "address | CIDR | host | unix:",
    default: None,
    contexts: STREAM_AND_SERVER,
    since: "0.1",
    doc: "Trusted proxies, whose information about the client address is used. A host name stands for all of its \
          addresses.",
    set: Setter::Custom(
        Arity::ONE,
        RepeatRule::Fresh(|c| c.trusted.clear()),
        |c, line| c.trusted.read(line),
    ),
}]);

#[derive(Clone, Debug, Default)]
struct Conf {
    trusted: TrustedPeers,
}

/// The phase handler. It runs before all others, which then see the client's address.
fn replace_client(session: &mut StreamSession) -> SessionStep<'_> {
    let source = session.client.proxy.as_ref().map(|header| &header.source);
    let named = source.and_then(|source| Some(SocketAddr::new(source.ip?, source.port)));
    // Anyone can send the header, so it only counts from a trusted peer.
    if let Some(client) = named.filter(|_| {
        session
            .conf::<Conf>()
            .trusted
            .includes(&session.remote.address)
    }) {
        session.remote = RemoteClient::from_address(SocketAddress::Inet(client));
    }
    SessionOutcome::Declined.into()
}
