//! A group of servers: what the configuration says of it, and the state that it has.

use std::fmt;
use std::sync::{Arc, OnceLock};

use bstr::{BStr, BString, ByteSlice};
use rt::net::Address;

use super::server::Server;
use super::settings::{Origin, Settings};
use super::state::GroupState;

/// A group of servers. Immutable; what changes is in its [`GroupState`].
pub struct Group {
    /// What the configuration says.
    pub settings: Settings,
    state: OnceLock<Arc<GroupState>>,
}

impl Group {
    /// A group with a state of its own until [`Group::commit`] finds an older one.
    pub fn new(settings: Settings) -> Group {
        Group {
            settings,
            state: OnceLock::new(),
        }
    }

    /// A group for addresses that a URL made while running was found to have. It lives as long as its request.
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

    /// What is going on in the group.
    pub fn state(&self) -> &Arc<GroupState> {
        self.state.get_or_init(|| {
            let state = Arc::new(GroupState::new());
            state.configure(&self.settings, 1);
            state
        })
    }

    /// Takes over the state that a group of this name had before the reload. To be called before [`Group::state`].
    pub fn commit(&self, zones: &host::engine::Zones) {
        let state = zones.get_or_create(&self.settings.state_key(), GroupState::new);
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
