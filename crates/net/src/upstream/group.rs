//! A group of upstream servers: its configuration and its state.

use std::fmt;
use std::sync::{Arc, OnceLock};

use bstr::{BStr, BString, ByteSlice};
use rt::net::Address;

use super::server::Server;
use super::settings::{Origin, Settings};
use super::state::GroupState;

/// A group of servers. It does not change; what does is in its [`GroupState`].
pub struct Group {
    /// What the configuration says.
    pub settings: Settings,
    state: OnceLock<Arc<GroupState>>,
}

impl Group {
    /// A new group. It gets a fresh state at first use, unless [`Group::commit`] finds an older one before.
    pub fn new(settings: Settings) -> Group {
        Group {
            settings,
            state: OnceLock::new(),
        }
    }

    /// A group for the addresses of a URL that was only known at run time (`proxy_pass` with variables). It lives
    /// as long as its request, so it learns nothing about its servers.
    pub fn of_addresses(name: impl Into<BString>, addresses: Vec<Address>) -> Group {
        let name = name.into();
        let mut settings = Settings::new(name.clone(), Origin::Url { port: None });
        settings.servers.push(Server::new(name, addresses));
        Group::new(settings)
    }

    /// The name.
    pub fn name(&self) -> &BStr {
        self.settings.name.as_bstr()
    }

    /// The group's state.
    pub fn state(&self) -> &Arc<GroupState> {
        self.state.get_or_init(|| {
            let state = Arc::new(GroupState::new());
            state.configure(&self.settings, 1);
            state
        })
    }

    /// Takes over the state of the group of the same name from before a reload, so that connections, failures and
    /// queues live on. Must be called before [`Group::state`].
    pub fn commit(&self, zones: &host::engine::Zones) {
        let state = zones.get_or_create(&self.settings.state_key(), GroupState::new);
        // A group that is in use already keeps the state it has: two would each allow `max_conns`.
        if self.state.set(state.clone()).is_ok() {
            state.configure(&self.settings, zones.loops());
        }
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Settings {
            name,
            origin,
            servers,
            balance,
            ..
        } = &self.settings;
        f.debug_struct("Group")
            .field("name", name)
            .field("origin", origin)
            .field("servers", servers)
            .field("balance", balance)
            .finish_non_exhaustive()
    }
}
