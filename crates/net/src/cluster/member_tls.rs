//! TLS between members: both sides show a certificate, and each accepts those of the cluster's own authority.
//!
//! Members come and go with their addresses, so the address need not stand in a certificate: that the authority has signed it
//! is what makes its owner a member. An authority that signs for others as well needs a `name` that only members have.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bstr::{BStr, BString};

use crate::Transport;
use crate::tls::{
    CipherChoice, ClientCertificates, ClientOptions, IdentityCache, ServerOptions, ServerTls,
    TlsConfigError, TlsIdentity, TlsProtocols, TlsSession, TrustStore, VerifyClient,
};
use crate::upstream::{CertifiedName, UpstreamTls, UpstreamTlsError};

/// The longest chain of certificates.
const DEPTH: usize = 5;

/// How long a handshake may take that no other time limit ends.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// The TLS of a cluster.
pub struct MemberTls {
    server: ServerTls,
    client: UpstreamTls,
    name: Option<BString>,
}

impl MemberTls {
    /// Of this certificate and this authority. `authority` is the text of the file that is called `file`; `name` is what all
    /// certificates must be valid for.
    pub fn new(
        identity: &Arc<TlsIdentity>,
        (authority, file): (&[u8], &str),
        name: Option<&BStr>,
    ) -> Result<MemberTls, TlsConfigError> {
        // 1.2 has nothing that members of one version would need.
        let protocols = TlsProtocols {
            tls12: false,
            tls13: true,
        };
        let trust = || {
            let mut trust = TrustStore::without_anchors(DEPTH);
            trust.add_certificates(authority, file).map(|()| trust)
        };
        let client = ClientOptions {
            protocols,
            trust: Some(Arc::new(trust()?)),
            identity: Some(Arc::clone(identity)),
            ..ClientOptions::default()
        };
        let server = ServerOptions {
            protocols,
            choice: CipherChoice::default(),
            prefer_server_ciphers: false,
            identities: vec![Arc::clone(identity)],
            client_certificates: Some(ClientCertificates::new(trust()?, &trust()?)),
            alpn: Vec::new(),
            // Connections of members are kept; a session that could be resumed would be one more thing to steal.
            cache: None,
            tickets: None,
            session_timeout: 0,
            record_size: 0,
            early_data: 0,
            compress_certificates: false,
            context: b"cluster".to_vec(),
        };
        let certified = match name {
            Some(_) => CertifiedName::Asked,
            None => CertifiedName::Any,
        };
        Ok(MemberTls {
            server: ServerTls {
                settings: Some(server.build()?),
                http2: None,
                quic: OnceLock::new(),
                rejects: false,
                verify_client: VerifyClient::Required,
                status: None,
                dynamic: Vec::new(),
                cache: IdentityCache::new(0, Duration::ZERO, Duration::ZERO),
                handshake_timeout: HANDSHAKE,
                passwords: Arc::default(),
            },
            client: UpstreamTls::of_client(client.build()?, certified),
            name: name.map(ToOwned::to_owned),
        })
    }

    /// For members that ask.
    pub fn server(&self) -> &ServerTls {
        &self.server
    }

    /// For members that are asked.
    pub fn client(&self) -> &UpstreamTls {
        &self.client
    }

    /// What a certificate is compared with: the common name, or without one the member's own, which is not compared.
    pub fn host_of<'a>(&'a self, member: &'a str) -> &'a BStr {
        match &self.name {
            Some(name) => name.as_ref(),
            None => member.into(),
        }
    }

    /// Whether the certificate of who asks has the common name, if there is one. That the authority has signed it was checked
    /// before.
    pub fn accepts_name(&self, session: &TlsSession) -> bool {
        let name = self.name.as_ref().map(|name| name.to_string());
        name.is_none_or(|name| session.is_for(&name))
    }

    /// Does the handshake on a new connection to a member.
    pub async fn secure(
        &self,
        transport: &mut Transport,
        member: &str,
        limit: Duration,
    ) -> Result<(), UpstreamTlsError> {
        let parameters = self.client.fixed_parameters(self.host_of(member));
        self.client.handshake(transport, &parameters, limit).await
    }
}
