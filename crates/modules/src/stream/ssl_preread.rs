//! `ssl_preread`: extracts what a TLS client sends unencrypted, without terminating TLS.
//!
//! ```nginx
//! map $ssl_preread_server_name $backend {
//!     a.example.com  10.0.0.1:443;
//!     default        10.0.0.2:443;
//! }
//! server {
//!     listen      443;
//!     ssl_preread on;
//!     proxy_pass  $backend;
//! }
//! ```

use ::stream::module::{SessionOutcome, SessionStep, StreamPhase};
use ::stream::preread::{PrereadProgress, read_preread};
use ::stream::{StreamModule, StreamSession};
use conf::directive_contexts::STREAM_AND_SERVER;
use conf::{Directive, DirectiveTable, Setter, Variable};
use proto::client_hello::{ClientHello, ClientHelloReader, HelloProgress};

pub(crate) static MODULE: StreamModule = StreamModule {
    name: "ssl_preread",
    doc: "Extracts the server name, versions and protocols from a TLS ClientHello without decrypting anything.",
    server: &DIRECTIVES,
    phases: &[(StreamPhase::Preread, |session| {
        SessionStep::later(async move { read(session).await })
    })],
    enabled: |server| server.confs.get::<Conf>().enabled,
    variables: &[
        Variable::new(
            "ssl_preread_protocol",
            |s, out| shown(s, |hello| hello.version_name().as_bytes(), out),
            "The highest TLS version supported by the client.",
        ),
        Variable::new(
            "ssl_preread_server_name",
            |s, out| shown(s, |hello| &hello.server_name, out),
            "The server name requested by the client (SNI).",
        ),
        Variable::new(
            "ssl_preread_alpn_protocols",
            |s, out| shown(s, |hello| &hello.alpn_protocols, out),
            "The protocols offered by the client by ALPN, separated by commas.",
        ),
    ],
    ..StreamModule::EMPTY
};

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::new(&[Directive {
    name: "ssl_preread",
    syntax: "on | off",
    default: Some("off"),
    contexts: STREAM_AND_SERVER,
    since: "0.1",
    doc: "Whether to read the TLS ClientHello. Its server name chooses among the servers of an address, and its \
          contents are available in `$ssl_preread_…`. Sessions without TLS are not affected.",
    set: Setter::Flag(|c| &mut c.enabled),
}]);

#[derive(Clone, Default)]
struct Conf {
    enabled: bool,
}

/// The phase handler: waits for the ClientHello.
async fn read(session: &mut StreamSession) -> SessionOutcome {
    // Datagrams have no stream of bytes to wait for.
    if session.client.is_udp() {
        return SessionOutcome::Declined;
    }
    let mut reader = ClientHelloReader::default();
    let mut found = None;
    let look = |input: &[u8]| match reader.read(input) {
        HelloProgress::Partial => PrereadProgress::More,
        // Not TLS: the session goes on without the variables.
        HelloProgress::NotHello => PrereadProgress::Enough,
        HelloProgress::Complete(hello) => {
            found = Some(hello);
            PrereadProgress::Enough
        }
    };
    if let Err(status) = read_preread(session, look).await {
        return SessionOutcome::Status(status);
    }
    let Some(hello) = found else {
        session.debug(format_args!("ssl preread: not a client hello"));
        return SessionOutcome::Declined;
    };
    let name = bstr::BString::from(hello.server_name.clone());
    session.debug(format_args!("ssl preread server name: \"{name}\""));
    if !name.is_empty() {
        // As where TLS ends here, the name chooses the server among those of the address.
        session.choose_server(&name);
    }
    // Kept for the variables, as long as the session.
    session.set_state(hello);
    SessionOutcome::Ok
}

/// Writes a field of the ClientHello, if there was one.
fn shown(session: &mut StreamSession, which: fn(&ClientHello) -> &[u8], out: &mut Vec<u8>) -> bool {
    let Some(hello) = session.state::<ClientHello>() else {
        return false;
    };
    out.extend_from_slice(which(hello));
    true
}
