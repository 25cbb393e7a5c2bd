//! Obtains the certificates of one issuer and renews them in time.
//!
//! A certificate found in the directory is used at once. It is renewed after two thirds of its
//! life, a little earlier or later, so that not all servers of the world come at the same time.
//! Failed attempts are repeated at growing intervals, counted per certificate. An issuer that asks
//! to be left alone is.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use host::error_log::{LogLevel, Logger};
use instant_acme::{
    Account, AccountCredentials, AuthorizationStatus, ChallengeType, ExternalAccountKey,
    Identifier, Key, NewAccount, NewOrder, Order, OrderStatus,
};
use net::resolver::Resolver;

use super::client::{AcmeAccess, AcmeClient};
use super::credential;
use super::issuer::{AcmeIssuer, ChallengeMethod, KeyKind};
use super::renewal_info::RenewalAdvice;
use super::state::{self, AcmeState, IssuedCertificate, PendingChallenge};

/// The time limit for the server to validate the challenges.
const VALIDATION_TIMEOUT: Duration = Duration::from_secs(120);
/// The time limit for signing. Longer than the other, because giving up and placing a new order
/// would not be faster.
const ISSUANCE_TIMEOUT: Duration = Duration::from_secs(600);
/// The time limit for a whole order, whatever the server responds.
pub(super) const ORDER_TIMEOUT: Duration = Duration::from_secs(1200);
/// The interval between polls of an order: it begins with the first and grows by half up to the
/// last.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_secs(20);
/// The wait after the first failure, doubled with each further one up to the last.
const FIRST_RETRY: Duration = Duration::from_secs(60);
const LAST_RETRY: Duration = Duration::from_secs(24 * 3600);
/// The minimum wait after a rate limit error. Such limits count over hours, and further attempts
/// may count as well.
const RATE_RETRY: Duration = Duration::from_secs(3600);

/// A certificate to obtain.
pub(super) struct CertificateOrder {
    /// Its name, here and in the directory.
    pub(super) id: String,
    /// The names and addresses in the certificate.
    pub(super) names: Vec<String>,
    pub(super) key: KeyKind,
}

/// Obtains and renews the certificates of one issuer.
pub(super) struct CertificateRenewer {
    pub(super) issuer: Arc<AcmeIssuer>,
    pub(super) state: Arc<AcmeState>,
    pub(super) resolver: Arc<Resolver>,
    pub(super) resolver_timeout: Duration,
    /// The log of the configuration, since no request is involved.
    pub(super) log: Logger,
    pub(super) orders: Vec<CertificateOrder>,
}

/// When to act next.
#[derive(Clone, Copy)]
pub(super) enum DueTime {
    /// At a wall clock time, in milliseconds: certificates expire by that clock, even if it is set
    /// meanwhile.
    Wall(u64),
    /// At a time of the monotonic clock: waits after failures must not depend on the wall clock.
    At(Instant),
}

impl DueTime {
    /// How long until then.
    fn wait(self) -> Duration {
        match self {
            DueTime::Wall(at) => Duration::from_millis(at.saturating_sub(rt::wall_millis())),
            DueTime::At(at) => at.saturating_duration_since(rt::now()),
        }
    }
}

/// A failed attempt.
pub(super) struct OrderFailure {
    /// For the log.
    pub(super) why: String,
    kind: OrderFailureKind,
}

/// What a failure means for what comes next.
#[derive(PartialEq, Eq)]
enum OrderFailureKind {
    Other,
    /// The server does not know our account, so the stored one is worthless and a new one is
    /// needed.
    NoAccount,
    /// The server counts too many orders.
    RateLimited,
}

impl From<String> for OrderFailure {
    fn from(why: String) -> OrderFailure {
        let kind = OrderFailureKind::Other;
        OrderFailure { why, kind }
    }
}

impl From<&str> for OrderFailure {
    fn from(why: &str) -> OrderFailure {
        why.to_owned().into()
    }
}

/// Classifies by the error type of RFC 8555, section 6.7.
impl From<instant_acme::Error> for OrderFailure {
    fn from(error: instant_acme::Error) -> OrderFailure {
        const PREFIX: &str = "urn:ietf:params:acme:error:";
        let kind = match &error {
            instant_acme::Error::Api(problem) => {
                let name = problem.r#type.as_deref().unwrap_or_default();
                match name.strip_prefix(PREFIX) {
                    Some("accountDoesNotExist") => OrderFailureKind::NoAccount,
                    Some("rateLimited") => OrderFailureKind::RateLimited,
                    _ => OrderFailureKind::Other,
                }
            }
            _ => OrderFailureKind::Other,
        };
        let why = error.to_string();
        OrderFailure { why, kind }
    }
}

impl CertificateRenewer {
    /// Runs as long as the configuration.
    pub(super) async fn run(self) {
        let mut dates = Vec::new();
        for wanted in &self.orders {
            let due = self.load(&wanted.id).await;
            // A certificate that does not exist is due now.
            dates.push((due.unwrap_or(DueTime::At(rt::now())), FIRST_RETRY));
        }
        loop {
            let dues = self.orders.iter().zip(&dates);
            let dues = dues.map(|(wanted, (due, _))| self.with_advice(wanted, *due).wait());
            let Some((index, wait)) = dues.enumerate().min_by_key(|(_, wait)| *wait) else {
                return;
            };
            let pause = self.state.pause(&self.issuer.account_name());
            // A pause that the issuer asked for holds back everything, queries included.
            let (wait, question) = (wait.max(pause), self.next_query_in().max(pause));
            if wait.is_zero() {
                let (wanted, (due, retry)) = (&self.orders[index], &mut dates[index]);
                if matches!(due, DueTime::Wall(_)) && !due.wait().is_zero() {
                    // Due although our own date is in the future: the authority made us renew
                    // early, which it may do only so often.
                    self.state
                        .update_advice(&wanted.id, RenewalAdvice::note_hurry);
                }
                // One order at a time: a failure of the account or a rate limit concerns all of them.
                (*due, *retry) = self.attempt(wanted, *retry).await;
            } else if question.is_zero() {
                self.query_renewal_info().await;
            } else {
                // At most a day, because the wall clock can be set meanwhile.
                rt::sleep(wait.min(question).min(LAST_RETRY)).await;
            }
        }
    }

    /// Makes one attempt. Returns when to make the next, and how long to wait if that fails.
    async fn attempt(&self, wanted: &CertificateOrder, retry: Duration) -> (DueTime, Duration) {
        let names = wanted.names.join(", ");
        let access = self.access();
        let obtained = rt::timeout(ORDER_TIMEOUT, self.obtain(wanted, &access)).await;
        let failure =
            match obtained.unwrap_or_else(|_| Err("timed out waiting for the order".into())) {
                Ok(next) if !DueTime::Wall(next).wait().is_zero() => {
                    self.log.log_plain(
                        LogLevel::Notice,
                        format_args!("acme: a certificate for {names} was issued"),
                    );
                    return (DueTime::Wall(next), FIRST_RETRY);
                }
                // The certificate is in use nevertheless. But treating this as success would order the
                // next one immediately, and so on forever.
                Ok(_) => OrderFailure::from(
                    "the issued certificate is already due for renewal: is the clock right?",
                ),
                Err(failure) => failure,
            };
        let floor = match failure.kind {
            OrderFailureKind::RateLimited => RATE_RETRY,
            OrderFailureKind::NoAccount | OrderFailureKind::Other => Duration::ZERO,
        };
        let mut wait = retry.max(floor);
        // Servers that failed together, in an outage of the authority, should not all retry
        // together.
        wait += wait.mul_f64(credential::random_fraction() / 4.0);
        if let Some(asked) = access.rate_limited_for() {
            self.state.set_pause(&self.issuer.account_name(), asked);
            wait = wait.max(asked);
        }
        if failure.kind == OrderFailureKind::NoAccount {
            // The next attempt creates a new one, after the usual wait: an authority that keeps forgetting accounts
            // must not be flooded.
            self.forget_account().await;
        }
        let (issuer, why, seconds) = (&self.issuer.name, &failure.why, wait.as_secs());
        self.log.log_plain(
            LogLevel::Error,
            format_args!(
                "acme: no certificate of \"{issuer}\" for {names}: {why}; next attempt in {seconds} s"
            ),
        );
        (DueTime::At(rt::now() + wait), (retry * 2).min(LAST_RETRY))
    }

    /// The file of a certificate; `None` if nothing is stored.
    fn path(&self, what: &str, extension: &str) -> Option<PathBuf> {
        let folder = self.issuer.folder.as_ref()?;
        Some(folder.join(format!("{what}.{extension}")))
    }

    /// Loads a certificate from the directory and returns when to renew it.
    async fn load(&self, what: &str) -> Option<DueTime> {
        if let Some(issued) = self.state.issued(what) {
            return credential::renewal_time_ms(&issued.certificate).map(DueTime::Wall);
        }
        let (certificate, key) = (self.path(what, "crt")?, self.path(what, "key")?);
        let shown = certificate.display().to_string();
        // Files are read on a pool thread, since a disk could block the loop.
        let read = move || {
            let certificate = std::fs::read_to_string(certificate).ok()?;
            Some((certificate, std::fs::read_to_string(key).ok()?))
        };
        let (certificate, key) = rt::pool::default_pool().run(read).await?;
        // The pair can be inconsistent after a crash between the two writes, or because someone
        // edited it.
        if let Err(why) = credential::load_pair(&certificate, &key) {
            self.log.log_plain(
                LogLevel::Warn,
                format_args!("acme: \"{shown}\" is not used: {why}"),
            );
            return None;
        }
        let due = credential::renewal_time_ms(&certificate)?;
        self.state
            .set_issued(what, IssuedCertificate { certificate, key });
        Some(DueTime::Wall(due))
    }

    /// Access to the issuer's server, for one attempt.
    pub(super) fn access(&self) -> Arc<AcmeAccess> {
        Arc::new(AcmeAccess {
            resolver: Arc::clone(&self.resolver),
            resolver_timeout: self.resolver_timeout,
            tls: self.issuer.tls.clone(),
            verifies: self.issuer.verifies,
            user_agent: concat!("Weir/", env!("CARGO_PKG_VERSION")).to_owned(),
            last_response: Default::default(),
        })
    }

    /// Obtains a certificate; returns when to renew it.
    async fn obtain(
        &self,
        wanted: &CertificateOrder,
        access: &Arc<AcmeAccess>,
    ) -> Result<u64, OrderFailure> {
        let account = self.account(access).await?;
        let mut profile = None;
        if let Some((wish, required)) = &self.issuer.profile {
            let known = account.profiles().any(|known| known.name == wish);
            // Ordering without a required profile would yield a certificate that the configuration
            // rules out. An optional one is left out.
            if *required && !known {
                return Err(format!("the server has no profile \"{wish}\"").into());
            }
            profile = known.then_some(wish.as_str());
        }
        let mut order = self.order(wanted, &account, profile).await?;
        // The challenges stay answerable until the order is ready.
        let proofs = self.set_up_challenges(&mut order).await?;
        self.wait_for(&mut order, OrderStatus::Ready, access, VALIDATION_TIMEOUT)
            .await?;
        // The authority does not ask again after that.
        drop(proofs);
        let (names, kind) = (wanted.names.clone(), wanted.key);
        let common_name = self.issuer.common_name;
        // Generating an RSA key can take seconds.
        let made = move || credential::certificate_request(&names, kind, common_name);
        let (request, key) = rt::pool::default_pool().run(made).await?;
        order.finalize_csr(&request).await?;
        self.wait_for(&mut order, OrderStatus::Valid, access, ISSUANCE_TIMEOUT)
            .await?;
        let certificate = order.certificate().await?;
        let certificate = certificate.ok_or("the order is valid, but has no certificate")?;
        // The authority is not trusted to have signed our key: a wrong pair would fail in every handshake.
        credential::load_pair(&certificate, &key)?;
        let due =
            credential::renewal_time_ms(&certificate).ok_or("the certificate has invalid dates")?;
        // Stored before it is used: what clients see should survive a restart, and a lost
        // certificate counts against rate limits.
        self.save(&wanted.id, &certificate, &key).await;
        self.state
            .set_issued(&wanted.id, IssuedCertificate { certificate, key });
        Ok(due)
    }

    /// Places an order. An authority that provides renewal information is told which certificate is
    /// replaced (RFC 9773, section 5), since it may exempt renewals from rate limits. If it refuses
    /// that, the order is placed without.
    async fn order(
        &self,
        wanted: &CertificateOrder,
        account: &Account,
        profile: Option<&str>,
    ) -> Result<Order, OrderFailure> {
        let identifiers: Vec<Identifier> =
            wanted.names.iter().map(|name| identifier(name)).collect();
        let request = || {
            let request = NewOrder::new(&identifiers);
            match profile {
                Some(profile) => request.profile(profile),
                None => request,
            }
        };
        let old = match self.state.advice(&wanted.id).is_given() {
            true => self.state.issued(&wanted.id),
            false => None,
        };
        let old = old.and_then(|old| credential::certificate_identifier(&old.certificate));
        if let Some(old) = old {
            let replacing = request().replaces(old);
            match account
                .new_order(&replacing)
                .await
                .map_err(OrderFailure::from)
            {
                // An unknown account or a rate limit concerns the plain order as well, so those are
                // not retried here.
                Err(failure) if failure.kind == OrderFailureKind::Other => {}
                done => return done,
            }
        }
        Ok(account.new_order(&request()).await?)
    }

    /// The account: that of the configured key, a stored one, or a new one.
    pub(super) async fn account(&self, access: &Arc<AcmeAccess>) -> Result<Account, OrderFailure> {
        let builder = || Account::builder_with_http(Box::new(AcmeClient::new(Arc::clone(access))));
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
            // An existing account keeps its contacts; those in the configuration are the current ones.
            if !contacts.is_empty() {
                account.update_contacts(&contacts).await?;
            }
            return Ok(account);
        }
        if let Some(credentials) = self.stored_account().await {
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
            // Also in memory: otherwise, without a writable directory, each order would create an
            // account.
            self.state
                .set_account(&self.issuer.account_name(), content.clone());
            self.write_file(self.path("account", "json"), content).await;
        }
        Ok(account)
    }

    /// The account created earlier, by this process or another, if it belongs to this authority.
    pub(super) async fn stored_account(&self) -> Option<AccountCredentials> {
        let text = match self.state.account(&self.issuer.account_name()) {
            Some(text) => text,
            None => {
                let path = self.path("account", "json")?;
                let read = move || std::fs::read(path).ok();
                rt::pool::default_pool().run(read).await?
            }
        };
        let facts: serde_json::Value = serde_json::from_slice(&text).ok()?;
        // The issuer's `uri` has changed: an account at one authority means nothing to another.
        if facts.get("directory")?.as_str()? != self.issuer.uri {
            return None;
        }
        serde_json::from_slice(&text).ok()
    }

    /// Discards the account, in memory and on disk.
    async fn forget_account(&self) {
        self.state.forget_account(&self.issuer.account_name());
        if let Some(path) = self.path("account", "json") {
            let remove = move || std::fs::remove_file(path);
            // The file may not exist.
            let _ = rt::pool::default_pool().run(remove).await;
        }
    }

    /// Sets up the challenges of an order, and tells the server to validate them. They end when the
    /// result is dropped.
    async fn set_up_challenges(
        &self,
        order: &mut Order,
    ) -> Result<Vec<PendingChallenge>, OrderFailure> {
        let mut proofs = Vec::new();
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization?;
            match authorization.status {
                // Only these need a proof.
                AuthorizationStatus::Pending => {}
                // The authority may still accept an earlier validation.
                AuthorizationStatus::Valid => continue,
                _ => return Err("an authorization is neither pending nor valid".into()),
            }
            let Some(mut challenge) = authorization.challenge(self.issuer.challenge.kind()) else {
                return Err("the server does not offer this kind of challenge".into());
            };
            let name = challenge.identifier().to_string();
            let answer = challenge.key_authorization();
            proofs.push(match self.issuer.challenge {
                ChallengeMethod::Http => self
                    .state
                    .add_http_challenge(&challenge.token, answer.as_str())?,
                ChallengeMethod::Tls => {
                    let identity =
                        credential::challenge_certificate(&name, answer.digest().as_ref())?;
                    self.state.add_tls_challenge(&name, identity)?
                }
            });
            // Only after the answer is in place: the authority may ask before this request has returned.
            challenge.set_ready().await?;
        }
        Ok(proofs)
    }

    /// Polls an order until it reaches a status; the server chooses the interval, within limits.
    async fn wait_for(
        &self,
        order: &mut Order,
        wanted: OrderStatus,
        access: &AcmeAccess,
        patience: Duration,
    ) -> Result<(), OrderFailure> {
        let deadline = rt::now() + patience;
        let mut pause = FIRST_PAUSE;
        loop {
            let state = order.refresh().await?;
            // An order can skip a status between two polls.
            if state.status == wanted || state.status == OrderStatus::Valid {
                return Ok(());
            }
            if state.status == OrderStatus::Invalid {
                let why = state.error.as_ref().map(ToString::to_string);
                return Err(self.failure_reason(order, why).await.into());
            }
            // After a poll, so that the last one happens at the deadline and not an interval before it.
            if rt::now() >= deadline {
                return Err("timed out waiting for the server".into());
            }
            let left = deadline.saturating_duration_since(rt::now());
            // Never shorter than our own interval, and never past the deadline.
            rt::sleep(access.retry_after().unwrap_or(pause).max(pause).min(left)).await;
            pause = pause.mul_f64(1.5).min(LAST_PAUSE);
        }
    }

    /// Why an order failed. What the server saw when it validated a challenge is more helpful than
    /// the order's own error.
    async fn failure_reason(&self, order: &mut Order, of_order: Option<String>) -> String {
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

    /// Stores a certificate and its key.
    async fn save(&self, what: &str, certificate: &str, key: &str) {
        // The key first, since a certificate without its key is useless, and loading checks the
        // pair.
        self.write_file(self.path(what, "key"), key.into()).await;
        self.write_file(self.path(what, "crt"), certificate.into())
            .await;
    }

    /// Writes a file on a pool thread. A failure is logged but does not fail the order: the
    /// certificate works from memory.
    async fn write_file(&self, path: Option<PathBuf>, content: Vec<u8>) {
        let Some(path) = path else { return };
        let shown = path.display().to_string();
        let pool = rt::pool::default_pool();
        if let Err(error) = pool
            .run(move || state::write_private(&path, &content))
            .await
        {
            self.log.log_plain(
                LogLevel::Error,
                format_args!("acme: \"{shown}\" could not be written: {error}"),
            );
        }
    }
}

impl ChallengeMethod {
    /// The crate's name for it.
    fn kind(self) -> ChallengeType {
        match self {
            ChallengeMethod::Http => ChallengeType::Http01,
            ChallengeMethod::Tls => ChallengeType::TlsAlpn01,
        }
    }
}

/// An identifier of the order; IP addresses have their own type (RFC 8738).
fn identifier(name: &str) -> Identifier {
    match name.parse() {
        Ok(ip) => Identifier::Ip(ip),
        Err(_) => Identifier::Dns(name.to_owned()),
    }
}
