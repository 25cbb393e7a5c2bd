//! TLS 1.2 sessions in an external store (`ssl_session_fetch_by_lua`, `ssl_session_store_by_lua`): it is asked when
//! a client names a session, and told of every session that is created. TLS 1.3 sessions are in tickets or in the
//! server's own cache: a client has several of them, each for one use.
//!
//! rustls looks a session up while it processes the ClientHello, and cannot wait for an answer. But the hello is
//! known before that. So the session is fetched first, and the handshake finds it in a store made for this one
//! handshake. A session that the handshake creates is left in that store and collected afterwards. The server's
//! last message of TLS 1.2 is sent only then, so that no client returns before its session is stored.
//!
//! ```text
//! kept        01  issued[8]  context[32]  what rustls makes of a session
//! ```
//!
//! The context is that of [`super::SessionCache`]: it makes a session useless to a server with other certificates
//! or other trust. Anyone who can read stored sessions can decrypt the connections made with them, as with
//! OpenSSL's.

use std::fmt;
use std::sync::Arc;

use base::sync::Mutex;
use rustls::ServerConfig;
use rustls::server::StoresServerSessions;

use super::accept::ReceivedHello;
use super::server::ServerSettings;

/// The version of the stored format; others are refused.
const FORM: u8 = 1;

const CONTEXT: usize = 32;

/// A session and its ID.
#[derive(Clone, Default)]
pub struct KeptSession {
    /// The session ID, as on the wire.
    pub id: Vec<u8>,
    /// The session; empty if no store has it.
    pub value: Vec<u8>,
}

impl KeptSession {
    /// Whether these bytes have the form of a session.
    pub fn is_one(value: &[u8]) -> bool {
        value.first() == Some(&FORM) && value.len() > 1 + 8 + CONTEXT
    }
}

/// The external store of one handshake.
pub struct SessionKeeper(Arc<ExternalSessionStore>);

impl SessionKeeper {
    /// `keeps`: new sessions are given to the external store. `found`: what that store was asked for and what it
    /// had; `None` if it was not asked.
    pub fn new(
        settings: &ServerSettings,
        keeps: bool,
        found: Option<KeptSession>,
    ) -> SessionKeeper {
        let config = settings.config();
        let found = found.map(|session| (session.id, settings.unwrap(&session.value)));
        SessionKeeper(Arc::new(ExternalSessionStore {
            found,
            keeps,
            made: Mutex::default(),
            usual: Arc::clone(&config.session_storage),
        }))
    }

    pub(super) fn config_with_store(&self, config: &Arc<ServerConfig>) -> Arc<ServerConfig> {
        let mut config = ServerConfig::clone(config);
        config.session_storage = Arc::clone(&self.0) as Arc<dyn StoresServerSessions>;
        Arc::new(config)
    }

    /// The session that the handshake has created.
    pub fn made_session(&self, settings: &ServerSettings) -> Option<KeptSession> {
        let (id, value) = self.0.made().take()?;
        let value = settings.wrap(&value);
        Some(KeptSession { id, value })
    }
}

impl ReceivedHello {
    /// Whether a session of this client can be stored externally: it will use TLS 1.2.
    pub fn may_be_kept(&self, settings: &ServerSettings) -> bool {
        !(settings.speaks_1_3() && self.offers_1_3())
    }

    /// The ID of the session that the client wants to resume, if it has no ticket.
    pub fn wanted_session(&self) -> Option<Vec<u8>> {
        self.raw().session_id().map(<[u8]>::to_vec)
    }
}

impl ServerSettings {
    fn wrap(&self, value: &[u8]) -> Vec<u8> {
        let now = rt::wall_millis() / 1000;
        [&[FORM], &now.to_be_bytes()[..], &self.context, value].concat()
    }

    /// The session in a stored value; `None` if it is another server's or has expired. The external store is not
    /// trusted to check either.
    fn unwrap(&self, kept: &[u8]) -> Option<Vec<u8>> {
        let rest = kept.strip_prefix(&[FORM])?;
        let (issued, rest) = rest.split_first_chunk::<8>()?;
        let (context, value) = rest.split_first_chunk::<CONTEXT>()?;
        let age = (rt::wall_millis() / 1000).checked_sub(u64::from_be_bytes(*issued))?;
        (*context == self.context && age <= u64::from(self.session_timeout)).then(|| value.to_vec())
    }
}

struct ExternalSessionStore {
    /// The ID that was asked for, and the session if there is one.
    found: Option<(Vec<u8>, Option<Vec<u8>>)>,
    keeps: bool,
    made: Mutex<Option<(Vec<u8>, Vec<u8>)>>,
    /// The configured session cache.
    usual: Arc<dyn StoresServerSessions>,
}

impl fmt::Debug for ExternalSessionStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExternalSessionStore")
            .finish_non_exhaustive()
    }
}

impl ExternalSessionStore {
    fn made(&self) -> base::sync::MutexGuard<'_, Option<(Vec<u8>, Vec<u8>)>> {
        self.made.lock()
    }
}

impl StoresServerSessions for ExternalSessionStore {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        if !self.keeps {
            return self.usual.put(key, value);
        }
        *self.made() = Some((key, value));
        true
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        match &self.found {
            Some((id, value)) if id == key => value.clone(),
            // The external store was asked for another ID: only its answer counts in this handshake.
            Some(_) => None,
            None => self.usual.get(key),
        }
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        match &self.found {
            Some(_) => self.get(key),
            None => self.usual.take(key),
        }
    }

    fn can_cache(&self) -> bool {
        self.keeps || self.usual.can_cache()
    }
}
