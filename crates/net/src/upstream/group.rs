//! A group of upstream servers: its configuration and its state.

use std::fmt;
use std::sync::{Arc, OnceLock};

use bstr::{BStr, BString, ByteSlice};
use rt::net::SocketAddress;

use super::group_state::GroupState;
use super::server::UpstreamServer;
use super::settings::{GroupOrigin, GroupSettings};

/// A group of servers. It does not change; what does is in its [`GroupState`].
pub struct UpstreamGroup {
    /// What the configuration says.
    pub settings: GroupSettings,
    state: OnceLock<Arc<GroupState>>,
}

impl UpstreamGroup {
    /// A new group. It gets a fresh state at first use, unless [`UpstreamGroup::adopt_state`] finds an older one
    /// before.
    pub fn new(settings: GroupSettings) -> UpstreamGroup {
        UpstreamGroup {
            settings,
            state: OnceLock::new(),
        }
    }

    /// A group for the addresses of a URL that was only known at run time (`proxy_pass` with variables). It lives
    /// as long as its request, so it learns nothing about its servers.
    pub fn of_addresses(name: impl Into<BString>, addresses: Vec<SocketAddress>) -> UpstreamGroup {
        let name = name.into();
        let mut settings = GroupSettings::new(name.clone(), GroupOrigin::Url { port: None });
        settings.add_server(UpstreamServer::new(name, addresses));
        UpstreamGroup::new(settings)
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
    /// queues live on. Must be called before [`UpstreamGroup::state`].
    pub fn adopt_state(&self, zones: &host::engine::ZoneRegistry) {
        let state = zones.get_or_create(&self.settings.state_key(), GroupState::new);
        // A group that is in use already keeps the state it has: two would each allow `max_conns`.
        if self.state.set(state.clone()).is_ok() {
            state.set_place(zones.group().place());
            state.configure(&self.settings, zones.loops());
        }
    }
}

impl fmt::Debug for UpstreamGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GroupSettings {
            name,
            origin,
            servers,
            balance,
            ..
        } = &self.settings;
        f.debug_struct("UpstreamGroup")
            .field("name", name)
            .field("origin", origin)
            .field("servers", servers)
            .field("balance", balance)
            .finish_non_exhaustive()
    }
}
