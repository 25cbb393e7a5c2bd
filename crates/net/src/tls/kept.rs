//! Sessions of TLS 1.2 in an external store: it is asked for one when a client names it, and told of each that is
//! made. Those of TLS 1.3 are in tickets, or in the server's own cache: a client has several of them, each for one time.
//!
//! rustls looks for sessions while it reads the hello, and cannot wait for an answer. The hello is known before: so the session
//! is fetched first, the handshake finds it in a store of its own, and what it makes is left in that store, from where it is taken
//! when the handshake is over. The server's last message of version 1.2 is sent after that, so that no client is back
//! before its session is kept.
//!
//! ```text
//! kept        01  issued[8]  context[32]  what rustls makes of a session
//! ```
//!
//! The context is that of [`super::SessionCache`]: a session is of no use to a server with other certificates, or which trusts
//! others. Who may read kept sessions can decrypt what was said under them, as with those of OpenSSL.

use std::fmt;
use std::sync::Arc;

use base::sync::Mutex;
use rustls::ServerConfig;
use rustls::server::StoresServerSessions;

use super::accept::Hello;
use super::server::ServerSettings;

/// Which way a kept session is written; others are refused.
const FORM: u8 = 1;

const CONTEXT: usize = 32;

/// A session and its name.
#[derive(Clone, Default)]
pub struct KeptSession {
    /// Its name, as it stands on the wire.
    pub id: Vec<u8>,
    /// The session itself; empty while nobody has it.
    pub value: Vec<u8>,
}

impl KeptSession {
    /// Whether these bytes are a session, as far as can be told.
    pub fn is_one(value: &[u8]) -> bool {
        value.first() == Some(&FORM) && value.len() > 1 + 8 + CONTEXT
    }
}

/// Who keeps the sessions of one handshake.
pub struct Keeping(Arc<Store>);

impl Keeping {
    /// `keeps`: he is told of sessions that are made; `found`: what he was asked for and has, or has not. `None`: he is not asked.
    pub fn new(settings: &ServerSettings, keeps: bool, found: Option<KeptSession>) -> Keeping {
        let config = &settings.config;
        let found = found.map(|session| (session.id, settings.unwrap(&session.value)));
        Keeping(Arc::new(Store {
            found,
            keeps,
            made: Mutex::default(),
            usual: Arc::clone(&config.session_storage),
        }))
    }

    pub(super) fn config(&self, config: &Arc<ServerConfig>) -> Arc<ServerConfig> {
        let mut config = ServerConfig::clone(config);
        config.session_storage = Arc::clone(&self.0) as Arc<dyn StoresServerSessions>;
        Arc::new(config)
    }

    /// The session that the handshake has made.
    pub fn made(&self, settings: &ServerSettings) -> Option<KeptSession> {
        let (id, value) = self.0.made().take()?;
        let value = settings.wrap(&value);
        Some(KeptSession { id, value })
    }
}

impl Hello {
    /// Whether a session of this client may be kept elsewhere: it will speak TLS 1.2.
    pub fn may_be_kept(&self, settings: &ServerSettings) -> bool {
        !(settings.speaks_1_3() && self.offers_1_3())
    }

    /// The name of the session that the client would resume, if it has no ticket.
    pub fn wanted_session(&self) -> Option<Vec<u8>> {
        self.raw().session_id().map(<[u8]>::to_vec)
    }
}

impl ServerSettings {
    fn wrap(&self, value: &[u8]) -> Vec<u8> {
        let now = rt::wall_millis() / 1000;
        [&[FORM], &now.to_be_bytes()[..], &self.context, value].concat()
    }

    /// The session in what was kept; `None`: it is not ours, or too old.
    fn unwrap(&self, kept: &[u8]) -> Option<Vec<u8>> {
        let rest = kept.strip_prefix(&[FORM])?;
        let (issued, rest) = rest.split_first_chunk::<8>()?;
        let (context, value) = rest.split_first_chunk::<CONTEXT>()?;
        let age = (rt::wall_millis() / 1000).checked_sub(u64::from_be_bytes(*issued))?;
        (*context == self.context && age <= u64::from(self.session_timeout)).then(|| value.to_vec())
    }
}

struct Store {
    /// What was asked for, and what there is.
    found: Option<(Vec<u8>, Option<Vec<u8>>)>,
    keeps: bool,
    made: Mutex<Option<(Vec<u8>, Vec<u8>)>>,
    /// The cache of the configuration.
    usual: Arc<dyn StoresServerSessions>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").finish_non_exhaustive()
    }
}

impl Store {
    fn made(&self) -> base::sync::MutexGuard<'_, Option<(Vec<u8>, Vec<u8>)>> {
        self.made.lock()
    }
}

impl StoresServerSessions for Store {
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
