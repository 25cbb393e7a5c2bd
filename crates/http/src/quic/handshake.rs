//! Which settings a QUIC client's handshake runs with: chosen by its hello, in the order of [`crate::tls`].

use std::rc::Rc;

use net::tls::{HandshakeError, QuicHandshake, ReceivedHello, ServerSettings};

use crate::block_ids::ServerId;
use crate::client::HttpClient;
use crate::http_site::HttpSite;
use crate::listen::ListenEndpoint;
use crate::tls::{self, TlsAcceptFailure, TlsServer};

/// The server whose settings run the handshake, and the handshake.
pub(super) async fn choose(
    site: &Rc<HttpSite>,
    endpoint: &ListenEndpoint,
    client: &Rc<HttpClient>,
    hello: ReceivedHello,
) -> Result<(ServerId, QuicHandshake), TlsAcceptFailure> {
    let default = endpoint.default_server;
    let protocols = tls::consult_hello(site, client, default, &hello).await;
    let protocols = protocols.map_err(|_| HandshakeError::Objection)?;
    tls::note_name(client, endpoint, &hello);
    let named = client.first_server();
    if tls::service(site, named).is_some_and(|service| service.rejects) {
        return Err(HandshakeError::Refused.into());
    }
    // A server without a certificate of its own shows the default server's, as in nginx.
    let found = [named, default]
        .into_iter()
        .find_map(|server| quic_server(site, server));
    let server = found.ok_or(HandshakeError::NoCertificate)?;
    // Sessions of TLS 1.3 are not kept externally, so there is nobody to ask for one.
    let (mut choice, _) = tls::choose_identities(site, client, &server, &hello).await?;
    tls::refresh_staples(site, &server);
    choice.protocols = protocols;
    let own = choice
        .settings(server.settings)
        .map_err(|_| HandshakeError::Objection)?;
    let settings: &ServerSettings = own.as_ref().unwrap_or(server.settings);
    let handshake = hello.prepare_quic(settings, choice.identities)?;
    Ok((server.id, handshake))
}

/// `None`: the server has no certificate.
fn quic_server(site: &HttpSite, server: ServerId) -> Option<TlsServer<'_>> {
    let service = tls::service(site, server)?;
    let http3 = &site.server(server).core.http3;
    Some(TlsServer {
        id: server,
        service,
        settings: service.quic_settings(|| http3.protocols())?,
    })
}
