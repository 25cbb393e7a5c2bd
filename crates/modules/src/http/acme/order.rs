//! Obtains the certificates of one issuer, and renews them in time.
//!
//! A certificate that lies in the folder is used at once. It is renewed after two thirds of its life, a little earlier
//! or later so that not everybody comes at the same time. What fails is tried again, less and less often, each
//! certificate by its own count; an issuer that asks to be left alone is.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use instant_acme::{
    Account, AccountCredentials, AuthorizationStatus, ChallengeType, ExternalAccountKey,
    Identifier, Key, NewAccount, NewOrder, Order, OrderStatus,
};
use net::resolver::Resolver;
use rt::error_log::{Level, Logger};

use super::advice::Advice;
use super::client::{Access, Client};
use super::credential;
use super::issuer::{Challenge, Issuer, KeyKind};
use super::state::{self, Issued, Proof, State};

/// How long the server may take to look at the proofs.
const LOOK_PATIENCE: Duration = Duration::from_secs(120);
/// How long it may take to sign: a new order would not be faster.
const SIGN_PATIENCE: Duration = Duration::from_secs(600);
/// How long an order may take altogether, whatever the server answers.
pub(super) const ORDER_PATIENCE: Duration = Duration::from_secs(1200);
/// How soon the server is asked again meanwhile; each time a half later.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_secs(20);
/// How long is waited after the first failure; twice as long after each further one.
const FIRST_RETRY: Duration = Duration::from_secs(60);
const LAST_RETRY: Duration = Duration::from_secs(24 * 3600);
/// How long is waited at least when the server says that there were too many orders.
const RATE_RETRY: Duration = Duration::from_secs(3600);

/// A certificate that is wanted.
pub(super) struct Wanted {
    /// How it is called, here and in the folder.
    pub(super) what: String,
    pub(super) names: Vec<String>,
    pub(super) key: KeyKind,
}

/// Keeps the certificates of one issuer.
pub(super) struct Keeper {
    pub(super) issuer: Arc<Issuer>,
    pub(super) state: Arc<State>,
    pub(super) resolver: Arc<Resolver>,
    pub(super) resolver_timeout: Duration,
    pub(super) log: Logger,
    pub(super) orders: Vec<Wanted>,
}

/// When something is done next.
#[derive(Clone, Copy)]
pub(super) enum Due {
    /// At a time of the wall clock, in milliseconds: certificates end by that.
    Wall(u64),
    /// At a time that does not jump.
    At(Instant),
}

impl Due {
    fn wait(self) -> Duration {
        match self {
            Due::Wall(at) => Duration::from_millis(at.saturating_sub(rt::wall_millis())),
            Due::At(at) => at.saturating_duration_since(rt::now()),
        }
    }
}

/// What a try came to that gave no certificate.
pub(super) struct Failure {
    pub(super) why: String,
    kind: Kind,
}

#[derive(PartialEq, Eq)]
enum Kind {
    Other,
    /// The server does not know the account.
    NoAccount,
    RateLimited,
}

impl From<String> for Failure {
    fn from(why: String) -> Failure {
        let kind = Kind::Other;
        Failure { why, kind }
    }
}

impl From<&str> for Failure {
    fn from(why: &str) -> Failure {
        why.to_owned().into()
    }
}

impl From<instant_acme::Error> for Failure {
    fn from(error: instant_acme::Error) -> Failure {
        const PREFIX: &str = "urn:ietf:params:acme:error:";
        let kind = match &error {
            instant_acme::Error::Api(problem) => {
                let name = problem.r#type.as_deref().unwrap_or_default();
                match name.strip_prefix(PREFIX) {
                    Some("accountDoesNotExist") => Kind::NoAccount,
                    Some("rateLimited") => Kind::RateLimited,
                    _ => Kind::Other,
                }
            }
            _ => Kind::Other,
        };
        let why = error.to_string();
        Failure { why, kind }
    }
}

impl Keeper {
    /// Runs for as long as the configuration does.
    pub(super) async fn run(self) {
        let mut dates = Vec::new();
        for wanted in &self.orders {
            let due = self.load(&wanted.what).await;
            dates.push((due.unwrap_or(Due::At(rt::now())), FIRST_RETRY));
        }
        loop {
            let dues = self.orders.iter().zip(&dates);
            let dues = dues.map(|(wanted, (due, _))| self.advised(wanted, *due).wait());
            let Some((index, wait)) = dues.enumerate().min_by_key(|(_, wait)| *wait) else {
                return;
            };
            let pause = self.state.pause(&self.issuer.account_name());
            let (wait, question) = (wait.max(pause), self.ask_in().max(pause));
            if wait.is_zero() {
                let (wanted, (due, retry)) = (&self.orders[index], &mut dates[index]);
                if matches!(due, Due::Wall(_)) && !due.wait().is_zero() {
                    self.state.advise(&wanted.what, Advice::hasten);
                }
                (*due, *retry) = self.attempt(wanted, *retry).await;
            } else if question.is_zero() {
                self.ask().await;
            } else {
                // Not longer than a day: the clock may be set meanwhile.
                rt::sleep(wait.min(question).min(LAST_RETRY)).await;
            }
        }
    }

    /// Tries once; tells when to try next, and how long to wait if that fails.
    async fn attempt(&self, wanted: &Wanted, retry: Duration) -> (Due, Duration) {
        let names = wanted.names.join(", ");
        let access = self.access();
        let obtained = rt::timeout(ORDER_PATIENCE, self.obtain(wanted, &access)).await;
        let failure = match obtained.unwrap_or_else(|_| Err("the order takes too long".into())) {
            Ok(next) if !Due::Wall(next).wait().is_zero() => {
                self.log.plain(
                    Level::Notice,
                    format_args!("acme: a certificate for {names} was issued"),
                );
                return (Due::Wall(next), FIRST_RETRY);
            }
            // It is shown to clients all the same; but asking for the next one at once would never end.
            Ok(_) => Failure::from(
                "the issued certificate is already due for renewal: is the clock right?",
            ),
            Err(failure) => failure,
        };
        let floor = match failure.kind {
            Kind::RateLimited => RATE_RETRY,
            Kind::NoAccount | Kind::Other => Duration::ZERO,
        };
        let mut wait = retry.max(floor);
        wait += wait.mul_f64(credential::chance() / 4.0);
        if let Some(asked) = access.refused_for() {
            self.state.set_pause(&self.issuer.account_name(), asked);
            wait = wait.max(asked);
        }
        if failure.kind == Kind::NoAccount {
            self.forget_account().await;
        }
        let (issuer, why, seconds) = (&self.issuer.name, &failure.why, wait.as_secs());
        self.log.plain(
            Level::Error,
            format_args!(
                "acme: no certificate of \"{issuer}\" for {names}: {why}; next attempt in {seconds} s"
            ),
        );
        (Due::At(rt::now() + wait), (retry * 2).min(LAST_RETRY))
    }

    fn path(&self, what: &str, extension: &str) -> Option<PathBuf> {
        let folder = self.issuer.folder.as_ref()?;
        Some(folder.join(format!("{what}.{extension}")))
    }

    /// Takes what lies in the folder; tells when it is to be renewed.
    async fn load(&self, what: &str) -> Option<Due> {
        if let Some(issued) = self.state.issued(what) {
            return credential::renewal(&issued.certificate).map(Due::Wall);
        }
        let (certificate, key) = (self.path(what, "crt")?, self.path(what, "key")?);
        let shown = certificate.display().to_string();
        let read = move || {
            let certificate = std::fs::read_to_string(certificate).ok()?;
            Some((certificate, std::fs::read_to_string(key).ok()?))
        };
        let (certificate, key) = rt::pool::default_pool().run(read).await?;
        // A crash between the two files, or somebody's hand, may have left what does not fit.
        if let Err(why) = credential::check(&certificate, &key) {
            self.log.plain(
                Level::Warn,
                format_args!("acme: \"{shown}\" is not used: {why}"),
            );
            return None;
        }
        let due = credential::renewal(&certificate)?;
        self.state.set_issued(what, Issued { certificate, key });
        Some(Due::Wall(due))
    }

    pub(super) fn access(&self) -> Arc<Access> {
        Arc::new(Access {
            resolver: Arc::clone(&self.resolver),
            resolver_timeout: self.resolver_timeout,
            tls: self.issuer.tls.clone(),
            verifies: self.issuer.verifies,
            user_agent: concat!("Weir/", env!("CARGO_PKG_VERSION")).to_owned(),
            answered: Default::default(),
        })
    }

    /// Obtains a certificate; tells when it is to be renewed.
    async fn obtain(&self, wanted: &Wanted, access: &Arc<Access>) -> Result<u64, Failure> {
        let account = self.account(access).await?;
        let mut profile = None;
        if let Some((wish, required)) = &self.issuer.profile {
            let known = account.profiles().any(|known| known.name == wish);
            if *required && !known {
                return Err(format!("the server has no profile \"{wish}\"").into());
            }
            profile = known.then_some(wish.as_str());
        }
        let mut order = self.order(wanted, &account, profile).await?;
        // There until the order is ready.
        let proofs = self.prove(&mut order).await?;
        self.wait_for(&mut order, OrderStatus::Ready, access, LOOK_PATIENCE)
            .await?;
        drop(proofs);
        let (names, kind) = (wanted.names.clone(), wanted.key);
        let common_name = self.issuer.common_name;
        // Making an RSA key takes up to seconds.
        let made = move || credential::request(&names, kind, common_name);
        let (request, key) = rt::pool::default_pool().run(made).await?;
        order.finalize_csr(&request).await?;
        self.wait_for(&mut order, OrderStatus::Valid, access, SIGN_PATIENCE)
            .await?;
        let certificate = order.certificate().await?;
        let certificate = certificate.ok_or("the certificate is not there")?;
        credential::check(&certificate, &key)?;
        let due = credential::renewal(&certificate).ok_or("the certificate has invalid dates")?;
        self.save(&wanted.what, &certificate, &key).await;
        self.state
            .set_issued(&wanted.what, Issued { certificate, key });
        Ok(due)
    }

    /// Places an order. To an authority that gives advice about renewal it says which certificate it replaces (RFC 9773,
    /// section 5); one that does not want to know is not told.
    async fn order(
        &self,
        wanted: &Wanted,
        account: &Account,
        profile: Option<&str>,
    ) -> Result<Order, Failure> {
        let identifiers: Vec<Identifier> =
            wanted.names.iter().map(|name| identifier(name)).collect();
        let request = || {
            let request = NewOrder::new(&identifiers);
            match profile {
                Some(profile) => request.profile(profile),
                None => request,
            }
        };
        let old = match self.state.advice(&wanted.what).is_given() {
            true => self.state.issued(&wanted.what),
            false => None,
        };
        let old = old.and_then(|old| credential::identifier(&old.certificate));
        if let Some(old) = old {
            let replacing = request().replaces(old);
            match account.new_order(&replacing).await.map_err(Failure::from) {
                Err(failure) if failure.kind == Kind::Other => {}
                done => return done,
            }
        }
        Ok(account.new_order(&request()).await?)
    }

    /// Our account: the one of the configuration's key, that of an earlier order, or a new one.
    pub(super) async fn account(&self, access: &Arc<Access>) -> Result<Account, Failure> {
        let builder = || Account::builder_with_http(Box::new(Client::new(Arc::clone(access))));
        let contacts: Vec<&str> = self.issuer.contacts.iter().map(String::as_str).collect();
        if let Some(pem) = &self.issuer.account_key {
            let der = credential::key_der(pem)?;
            let key = Key::from_pkcs8_der(der.as_slice().into())?;
            let der = rustls_pki_types::PrivatePkcs8KeyDer::from(der).into();
            let uri = self.issuer.uri.clone();
            let (account, _) = match self.issuer.accepts_terms {
                true => builder().create_from_key((key, der), uri).await?,
                false => builder().from_key((key, der), uri).await?,
            };
            if !contacts.is_empty() {
                account.update_contacts(&contacts).await?;
            }
            return Ok(account);
        }
        if let Some(credentials) = self.kept_account().await {
            return Ok(builder().from_credentials(credentials).await?);
        }
        let wanted = NewAccount {
            contact: &contacts,
            terms_of_service_agreed: self.issuer.accepts_terms,
            only_return_existing: false,
        };
        let external = self.issuer.external.as_ref();
        let external = external.map(|(id, secret)| ExternalAccountKey::new(id.clone(), secret));
        let made = builder().create(&wanted, self.issuer.uri.clone(), external.as_ref());
        let (account, credentials) = made.await?;
        if let Ok(content) = serde_json::to_vec(&credentials) {
            // Also in memory: without a folder that can be written, each order would make an account.
            self.state
                .set_account(&self.issuer.account_name(), content.clone());
            self.keep(self.path("account", "json"), content).await;
        }
        Ok(account)
    }

    /// The account that was made earlier, by this server process or another, if it is one of this authority.
    pub(super) async fn kept_account(&self) -> Option<AccountCredentials> {
        let text = match self.state.account(&self.issuer.account_name()) {
            Some(text) => text,
            None => {
                let path = self.path("account", "json")?;
                let read = move || std::fs::read(path).ok();
                rt::pool::default_pool().run(read).await?
            }
        };
        let facts: serde_json::Value = serde_json::from_slice(&text).ok()?;
        if facts.get("directory")?.as_str()? != self.issuer.uri {
            return None;
        }
        serde_json::from_slice(&text).ok()
    }

    async fn forget_account(&self) {
        self.state.forget_account(&self.issuer.account_name());
        if let Some(path) = self.path("account", "json") {
            let remove = move || std::fs::remove_file(path);
            // It may not be there.
            let _ = rt::pool::default_pool().run(remove).await;
        }
    }

    /// Sets up the proofs that the server asks for, and tells it to look.
    async fn prove(&self, order: &mut Order) -> Result<Vec<Proof>, Failure> {
        let mut proofs = Vec::new();
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization?;
            match authorization.status {
                AuthorizationStatus::Pending => {}
                AuthorizationStatus::Valid => continue,
                _ => return Err("an authorization is neither pending nor valid".into()),
            }
            let Some(mut challenge) = authorization.challenge(self.issuer.challenge.kind()) else {
                return Err("the server does not offer this kind of challenge".into());
            };
            let name = challenge.identifier().to_string();
            let answer = challenge.key_authorization();
            proofs.push(match self.issuer.challenge {
                Challenge::Http => self.state.answer(&challenge.token, answer.as_str())?,
                Challenge::Tls => {
                    let identity = credential::proof(&name, answer.digest().as_ref())?;
                    self.state.show(&name, identity)?
                }
            });
            challenge.set_ready().await?;
        }
        Ok(proofs)
    }

    /// Asks for an order's state until it is what it has to become; the server says how often, within limits.
    async fn wait_for(
        &self,
        order: &mut Order,
        wanted: OrderStatus,
        access: &Access,
        patience: Duration,
    ) -> Result<(), Failure> {
        let deadline = rt::now() + patience;
        let mut pause = FIRST_PAUSE;
        loop {
            let state = order.refresh().await?;
            if state.status == wanted || state.status == OrderStatus::Valid {
                return Ok(());
            }
            if state.status == OrderStatus::Invalid {
                let why = state.error.as_ref().map(ToString::to_string);
                return Err(self.refusal(order, why).await.into());
            }
            if rt::now() >= deadline {
                return Err("the server takes too long".into());
            }
            let left = deadline.saturating_duration_since(rt::now());
            rt::sleep(access.asked_to_wait().unwrap_or(pause).max(pause).min(left)).await;
            pause = pause.mul_f64(1.5).min(LAST_PAUSE);
        }
    }

    /// Why an order is invalid: what the server saw when it looked at a proof says more than the order does.
    async fn refusal(&self, order: &mut Order, of_order: Option<String>) -> String {
        let mut authorizations = order.authorizations();
        while let Some(Ok(mut authorization)) = authorizations.next().await {
            let name = authorization.identifier().to_string();
            let Ok(state) = authorization.refresh().await else {
                break;
            };
            let mut errors = state.challenges.iter().filter_map(|one| one.error.as_ref());
            if let Some(error) = errors.next() {
                return format!("{name}: {error}");
            }
        }
        of_order.unwrap_or_else(|| "a challenge failed".to_owned())
    }

    async fn save(&self, what: &str, certificate: &str, key: &str) {
        // The key first: a certificate without its key would be of no use.
        self.keep(self.path(what, "key"), key.into()).await;
        self.keep(self.path(what, "crt"), certificate.into()).await;
    }

    async fn keep(&self, path: Option<PathBuf>, content: Vec<u8>) {
        let Some(path) = path else { return };
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

impl Challenge {
    fn kind(self) -> ChallengeType {
        match self {
            Challenge::Http => ChallengeType::Http01,
            Challenge::Tls => ChallengeType::TlsAlpn01,
        }
    }
}

fn identifier(name: &str) -> Identifier {
    match name.parse() {
        Ok(ip) => Identifier::Ip(ip),
        Err(_) => Identifier::Dns(name.to_owned()),
    }
}
