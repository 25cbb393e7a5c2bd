//! Obtains the certificates of one issuer, and renews them in time.
//!
//! A certificate that lies in the folder is used at once. It is renewed after two thirds of its life, a little earlier
//! or later so that not everybody comes at the same time; what fails is tried again, less and less often.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use instant_acme::{
    Account, AccountCredentials, AuthorizationStatus, ChallengeType, ExternalAccountKey,
    Identifier, Key, NewAccount, NewOrder, Order, OrderStatus,
};
use net::resolver::Resolver;
use net::tls::Identity;
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, KeyPair};
use rt::error_log::{Level, Logger};

use super::client::{Access, Client};
use super::issuer::{Challenge, Issuer, KeyKind};
use super::state::{self, Issued, Proof, State};

/// How long the server may take to look at the proofs, and to sign.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often it is asked meanwhile.
const PAUSE: Duration = Duration::from_secs(1);
/// How long is waited after the first failure; twice as long after each further one.
const FIRST_RETRY: Duration = Duration::from_secs(60);
const LAST_RETRY: Duration = Duration::from_secs(24 * 3600);

/// Keeps the certificates of one issuer.
pub(super) struct Keeper {
    pub(super) issuer: Arc<Issuer>,
    pub(super) state: Arc<State>,
    pub(super) resolver: Arc<Resolver>,
    pub(super) resolver_timeout: Duration,
    pub(super) log: Logger,
    /// What is wanted: how it is called, for which names, with which key.
    pub(super) orders: Vec<(String, Vec<String>, KeyKind)>,
}

impl Keeper {
    /// Runs for as long as the configuration does.
    pub(super) async fn run(self) {
        let mut due = Vec::new();
        for (what, ..) in &self.orders {
            due.push(self.load(what).await.unwrap_or_else(rt::wall_millis));
        }
        let mut retry = FIRST_RETRY;
        loop {
            let Some((index, at)) = due.iter().copied().enumerate().min_by_key(|(_, at)| *at)
            else {
                return;
            };
            let now = rt::wall_millis();
            if at > now {
                // Not longer than a day: the clock may be set meanwhile.
                rt::sleep(Duration::from_millis(at - now).min(LAST_RETRY)).await;
                continue;
            }
            let (what, names, key) = &self.orders[index];
            match self.obtain(what, names, *key).await {
                Ok(next) => {
                    retry = FIRST_RETRY;
                    due[index] = next;
                    let names = names.join(", ");
                    self.log.plain(
                        Level::Notice,
                        format_args!("acme: a certificate for {names} was issued"),
                    );
                }
                Err(why) => {
                    let (issuer, seconds) = (&self.issuer.name, retry.as_secs());
                    let names = names.join(", ");
                    self.log.plain(
                        Level::Error,
                        format_args!("acme: no certificate of \"{issuer}\" for {names}: {why}; the next try is in {seconds} s"),
                    );
                    due[index] = rt::wall_millis() + retry.as_millis() as u64;
                    retry = (retry * 2).min(LAST_RETRY);
                }
            }
        }
    }

    fn path(&self, what: &str, extension: &str) -> PathBuf {
        self.issuer.folder.join(format!("{what}.{extension}"))
    }

    /// Takes what lies in the folder; tells when it is to be renewed.
    async fn load(&self, what: &str) -> Option<u64> {
        if let Some(issued) = self.state.issued(what) {
            return renewal(&issued.certificate);
        }
        let (certificate, key) = (self.path(what, "crt"), self.path(what, "key"));
        let read = move || {
            let certificate = std::fs::read_to_string(certificate).ok()?;
            Some((certificate, std::fs::read_to_string(key).ok()?))
        };
        let (certificate, key) = rt::pool::default_pool().run(read).await?;
        let due = renewal(&certificate)?;
        self.state.set_issued(what, Issued { certificate, key });
        Some(due)
    }

    /// Obtains a certificate; tells when it is to be renewed.
    async fn obtain(&self, what: &str, names: &[String], key: KeyKind) -> Result<u64, String> {
        let account = self.account().await?;
        let identifiers: Vec<Identifier> = names.iter().map(|name| identifier(name)).collect();
        let mut wanted = NewOrder::new(&identifiers);
        if let Some(profile) = &self.issuer.profile {
            wanted = wanted.profile(profile);
        }
        let mut order = account.new_order(&wanted).await.map_err(text)?;
        // There until the order is ready.
        let proofs = self.prove(&mut order).await?;
        self.wait_for(&mut order, OrderStatus::Ready).await?;
        drop(proofs);
        let (request, key) = certificate_request(names, key)?;
        order.finalize_csr(&request).await.map_err(text)?;
        self.wait_for(&mut order, OrderStatus::Valid).await?;
        let certificate = order.certificate().await.map_err(text)?;
        let certificate = certificate.ok_or("the certificate is not there")?;
        let due = renewal(&certificate).ok_or("the certificate can not be read")?;
        self.save(what, &certificate, &key).await;
        self.state.set_issued(what, Issued { certificate, key });
        Ok(due)
    }

    /// Our account, from the folder or a new one.
    async fn account(&self) -> Result<Account, String> {
        let access = Arc::new(Access {
            resolver: Arc::clone(&self.resolver),
            resolver_timeout: self.resolver_timeout,
            tls: self.issuer.tls.clone(),
            verifies: self.issuer.verifies,
            user_agent: concat!("Weir/", env!("CARGO_PKG_VERSION")).to_owned(),
        });
        let builder = || Account::builder_with_http(Box::new(Client::new(Arc::clone(&access))));
        let path = self.path("account", "json");
        let kept = {
            let path = path.clone();
            rt::pool::default_pool()
                .run(move || std::fs::read(path).ok())
                .await
        };
        let kept = kept.and_then(|text| serde_json::from_slice::<AccountCredentials>(&text).ok());
        if let Some(credentials) = kept {
            return builder().from_credentials(credentials).await.map_err(text);
        }
        let (account, credentials) = match &self.issuer.account_key {
            Some(pem) => {
                let pair = KeyPair::from_pem(pem).map_err(|error| error.to_string())?;
                let der = pair.serialize_der();
                let key = Key::from_pkcs8_der(der.as_slice().into()).map_err(text)?;
                let der = rustls_pki_types::PrivatePkcs8KeyDer::from(der).into();
                let made = builder().create_from_key((key, der), self.issuer.uri.clone());
                made.await.map_err(text)?
            }
            None => {
                let contacts: Vec<&str> = self.issuer.contacts.iter().map(String::as_str).collect();
                let wanted = NewAccount {
                    contact: &contacts,
                    terms_of_service_agreed: self.issuer.accepts_terms,
                    only_return_existing: false,
                };
                let external = self.issuer.external.as_ref();
                let external =
                    external.map(|(id, secret)| ExternalAccountKey::new(id.clone(), secret));
                let made = builder().create(&wanted, self.issuer.uri.clone(), external.as_ref());
                made.await.map_err(text)?
            }
        };
        if let Ok(content) = serde_json::to_vec(&credentials) {
            self.keep(path, content).await;
        }
        Ok(account)
    }

    /// Sets up the proofs that the server asks for, and tells it to look.
    async fn prove(&self, order: &mut Order) -> Result<Vec<Proof>, String> {
        let mut proofs = Vec::new();
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization.map_err(text)?;
            match authorization.status {
                AuthorizationStatus::Pending => {}
                AuthorizationStatus::Valid => continue,
                _ => return Err("an authorization is neither pending nor valid".to_owned()),
            }
            let kind = match self.issuer.challenge {
                Challenge::Http => ChallengeType::Http01,
                Challenge::Tls => ChallengeType::TlsAlpn01,
            };
            let Some(mut challenge) = authorization.challenge(kind) else {
                return Err("the server does not offer this kind of challenge".to_owned());
            };
            let name = challenge.identifier().to_string();
            let answer = challenge.key_authorization();
            proofs.push(match self.issuer.challenge {
                Challenge::Http => self.state.answer(&challenge.token, answer.as_str())?,
                Challenge::Tls => {
                    let identity = shown_identity(&name, answer.digest().as_ref())?;
                    self.state.show(&name, identity)?
                }
            });
            challenge.set_ready().await.map_err(text)?;
        }
        Ok(proofs)
    }

    async fn wait_for(&self, order: &mut Order, wanted: OrderStatus) -> Result<(), String> {
        let deadline = rt::now() + PATIENCE;
        loop {
            let state = order.refresh().await.map_err(text)?;
            if state.status == wanted || state.status == OrderStatus::Valid {
                return Ok(());
            }
            if state.status == OrderStatus::Invalid {
                let why = state.error.as_ref().map(ToString::to_string);
                let why = why.unwrap_or_else(|| "a proof was not accepted".to_owned());
                return Err(why);
            }
            if rt::now() >= deadline {
                return Err("the server takes too long".to_owned());
            }
            rt::sleep(PAUSE).await;
        }
    }

    async fn save(&self, what: &str, certificate: &str, key: &str) {
        // The key first: a certificate without its key would be of no use.
        self.keep(self.path(what, "key"), key.into()).await;
        self.keep(self.path(what, "crt"), certificate.into()).await;
    }

    async fn keep(&self, path: PathBuf, content: Vec<u8>) {
        let shown = path.display().to_string();
        let pool = rt::pool::default_pool();
        if let Err(error) = pool.run(move || state::write(&path, &content)).await {
            self.log.plain(
                Level::Error,
                format_args!("acme: \"{shown}\" could not be written: {error}"),
            );
        }
    }
}

fn text(error: instant_acme::Error) -> String {
    error.to_string()
}

fn identifier(name: &str) -> Identifier {
    match name.parse() {
        Ok(ip) => Identifier::Ip(ip),
        Err(_) => Identifier::Dns(name.to_owned()),
    }
}

/// A request for a certificate, DER, and the key that goes with it, PEM.
fn certificate_request(names: &[String], kind: KeyKind) -> Result<(Vec<u8>, String), String> {
    let text = |error: rcgen::Error| error.to_string();
    let algorithm = match kind {
        KeyKind::P256 => &rcgen::PKCS_ECDSA_P256_SHA256,
        KeyKind::P384 => &rcgen::PKCS_ECDSA_P384_SHA384,
    };
    let key = KeyPair::generate_for(algorithm).map_err(text)?;
    let mut params = CertificateParams::new(names).map_err(text)?;
    params.distinguished_name = DistinguishedName::new();
    let request = params.serialize_request(&key).map_err(text)?;
    Ok((request.der().to_vec(), key.serialize_pem()))
}

/// The certificate that proves a name by TLS-ALPN-01 (RFC 8737, section 3).
fn shown_identity(name: &str, digest: &[u8]) -> Result<Arc<Identity>, String> {
    let text = |error: rcgen::Error| error.to_string();
    let key = KeyPair::generate().map_err(text)?;
    let mut params = CertificateParams::new([name.to_owned()]).map_err(text)?;
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
    let certificate = params.self_signed(&key).map_err(text)?;
    let certificate = format!("data:{}", certificate.pem());
    let key = format!("data:{}", key.serialize_pem());
    let mut nothing = |_: &std::path::Path| Err(std::io::ErrorKind::NotFound.into());
    Identity::load(
        certificate.as_str().into(),
        key.as_str().into(),
        &[],
        &mut nothing,
    )
    .map_err(|problem| problem.message)
}

/// When a certificate is to be renewed, in milliseconds since 1970: after two thirds of its life, less up to a
/// thirtieth. `None`: it can not be read.
fn renewal(pem: &str) -> Option<u64> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).ok()?;
    let certificate = pem.parse_x509().ok()?;
    let (from, until) = (
        certificate.validity().not_before.timestamp(),
        certificate.validity().not_after.timestamp(),
    );
    let life = u64::try_from(until - from).ok()?;
    let mut random = [0; 2];
    // Without chance it is only less spread.
    let _ = getrandom::fill(&mut random);
    let jitter = life / 30 * u64::from(u16::from_be_bytes(random)) / u64::from(u16::MAX);
    let seconds = u64::try_from(from).ok()? + life * 2 / 3 - jitter;
    Some(seconds * 1000)
}
