//! All upstream groups of an engine, by name.
//!
//! While the configuration is read, `upstream` blocks define groups and URLs refer to them; a URL whose host names
//! no block makes an implicit group. At run time, URLs made of variables are looked up here.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use base::sync::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use bstr::{BString, ByteSlice};
use conf::{AddressHost, HostPort};

use super::configured_lookup::{lookup_configured, peer_address};
use super::group::UpstreamGroup;
use super::server::UpstreamServer;
use super::settings::{GroupOrigin, GroupSettings};
use crate::resolver;

/// The registry of groups. Clones share it.
#[derive(Clone, Default)]
pub struct UpstreamGroups(Arc<GroupRegistry>);

#[derive(Default)]
struct GroupRegistry {
    groups: RwLock<GroupList>,
    /// See [`GroupSettings::realm`].
    realm: &'static str,
    /// The system's resolver settings, read only if some name has to be resolved at run time.
    system: OnceLock<resolver::ResolverSettings>,
    /// The groups that the current server has referred to, while it is read.
    referred: Mutex<Vec<Arc<UpstreamGroup>>>,
}

/// Groups in the order in which they were made.
#[derive(Default)]
struct GroupList {
    all: Vec<Arc<UpstreamGroup>>,
    /// Those of each name, which is in lower case here. There may be a block, and a group for each port.
    by_name: HashMap<Vec<u8>, Vec<Arc<UpstreamGroup>>>,
}

impl GroupList {
    fn push(&mut self, group: Arc<UpstreamGroup>) {
        let name = group.settings.name.to_ascii_lowercase();
        self.by_name.entry(name).or_default().push(group.clone());
        self.all.push(group);
    }

    /// The groups of a name.
    fn named(&self, name: &[u8]) -> &[Arc<UpstreamGroup>] {
        // A request with variables in its URL asks, and rarely in upper case.
        let groups = match name.iter().any(u8::is_ascii_uppercase) {
            true => self.by_name.get(&name.to_ascii_lowercase()),
            false => self.by_name.get(name),
        };
        groups.map_or(&[], Vec::as_slice)
    }
}

/// The group that a URL's host and port refer to.
#[derive(Debug)]
pub struct GroupReference {
    /// The group.
    pub group: Arc<UpstreamGroup>,
    /// A warning for the user: the name could not be resolved, and the group has no peers until it can be.
    pub warning: Option<String>,
    /// With a warning: the most similar name of a block, in case the URL has a typing error.
    pub near: Option<String>,
}

impl UpstreamGroups {
    /// An empty registry. `realm` keeps the states of http's and stream's groups apart, which may have the same
    /// names.
    pub fn of(realm: &'static str) -> UpstreamGroups {
        UpstreamGroups(Arc::new(GroupRegistry {
            realm,
            ..GroupRegistry::default()
        }))
    }

    /// A registry with these groups, for the configuration after a reload that has not changed them.
    pub fn with_groups(&self, groups: &[Arc<UpstreamGroup>]) -> UpstreamGroups {
        let next = UpstreamGroups::of(self.0.realm);
        for group in groups {
            next.adopt_group(group);
        }
        next
    }

    /// Adds a group that a server refers to which a reload takes over.
    pub fn adopt_group(&self, group: &Arc<UpstreamGroup>) {
        if self
            .search(&group.settings.name, group.settings.origin)
            .is_none()
        {
            self.write().push(group.clone());
        }
    }

    /// The groups that lines have referred to since this was last called.
    pub fn take_referred(&self) -> Vec<Arc<UpstreamGroup>> {
        std::mem::take(&mut *self.0.referred.lock())
    }

    fn note_referred(&self, group: &Arc<UpstreamGroup>) {
        let mut referred = self.0.referred.lock();
        if !referred.iter().any(|known| Arc::ptr_eq(known, group)) {
            referred.push(group.clone());
        }
    }

    /// Adds the group of an `upstream` block. The error is nginx's message.
    pub fn define_group(&self, mut settings: GroupSettings) -> Result<Arc<UpstreamGroup>, String> {
        let mut groups = self.write();
        for group in groups.named(&settings.name) {
            // A URL may come before its block in the file. The implicit group that it made is then shadowed by the
            // block, unless the URL has a port, which a block's name cannot have.
            match group.settings.origin {
                GroupOrigin::Block => {
                    return Err(format!("duplicate upstream \"{}\"", settings.name));
                }
                GroupOrigin::Url { port: Some(port) } => {
                    return Err(format!(
                        "upstream \"{}\" may not have port {port}",
                        settings.name
                    ));
                }
                GroupOrigin::Url { port: None } => {}
            }
        }
        settings.realm = self.0.realm;
        let group = Arc::new(UpstreamGroup::new(settings));
        groups.push(group.clone());
        Ok(group)
    }

    /// The group that `host[:port]` or `unix:path` refers to: a block's, or an implicit one, which is created if it
    /// is new.
    ///
    /// `place` is the position of the reference. The error is nginx's message. A name is resolved at once, which
    /// blocks: only while the configuration is read.
    pub fn group_for_address(
        &self,
        text: &[u8],
        default_port: u16,
        place: &str,
    ) -> Result<GroupReference, String> {
        let reference = self.refer(text, default_port, place)?;
        self.note_referred(&reference.group);
        Ok(reference)
    }

    fn refer(&self, text: &[u8], default_port: u16, place: &str) -> Result<GroupReference, String> {
        let address = HostPort::parse_peer(text)
            .map_err(|why| format!("{why} in upstream \"{}\"", text.as_bstr()))?;
        let name = host_text(text, &address);
        if let Some(group) = self.block(&name) {
            return match address.port {
                Some(port) => Err(format!("upstream \"{name}\" may not have port {port}")),
                None => Ok(GroupReference {
                    group,
                    warning: None,
                    near: None,
                }),
            };
        }
        let port = match address.host {
            AddressHost::Unix(_) => None,
            _ => Some(address.port.unwrap_or(default_port)),
        };
        if let Some(group) = self.find(&name, port) {
            return Ok(GroupReference {
                group,
                warning: None,
                near: None,
            });
        }
        let (server, warning) = implicit_server(text, &address, default_port);
        let mut settings = GroupSettings::new(name, GroupOrigin::Url { port });
        settings.place = place.to_owned();
        settings.realm = self.0.realm;
        settings.add_server(server);
        let group = Arc::new(UpstreamGroup::new(settings));
        let near = warning.as_ref().and_then(|_| self.near_block(&address));
        self.write().push(group.clone());
        Ok(GroupReference {
            group,
            warning,
            near,
        })
    }

    /// The block that was perhaps meant by a name.
    fn near_block(&self, address: &HostPort) -> Option<String> {
        let AddressHost::Name(name) = &address.host else {
            return None;
        };
        let is_block = |group: &&Arc<UpstreamGroup>| group.settings.origin == GroupOrigin::Block;
        let groups = self.read();
        let blocks = groups.all.iter().filter(is_block);
        let names: Vec<String> = blocks
            .map(|group| group.settings.name.to_string())
            .collect();
        let near =
            conf::spelling::nearest_name(&name.to_string(), names.iter().map(String::as_str));
        near.map(str::to_owned)
    }

    /// The group for a URL that was made at run time: a block if the URL has no port, otherwise a known implicit
    /// group.
    ///
    /// `port` has the scheme's default filled in; `explicit_port` says that the URL itself had one.
    pub fn find_url(
        &self,
        host: &[u8],
        port: Option<u16>,
        explicit_port: bool,
    ) -> Option<Arc<UpstreamGroup>> {
        let block = if explicit_port {
            None
        } else {
            self.block(host)
        };
        block.or_else(|| self.find(host, port))
    }

    /// All groups.
    pub fn all_groups(&self) -> Vec<Arc<UpstreamGroup>> {
        self.read().all.clone()
    }

    /// Connects every group with the state that it had before a reload. Not on a loop: it may read the system's
    /// resolver files.
    pub fn adopt_states(&self, zones: &host::engine::ZoneRegistry) {
        let mut has_names = false;
        for group in self.all_groups() {
            group.adopt_state(zones);
            has_names |= group
                .settings
                .servers
                .iter()
                .any(|server| server.resolve.is_some());
        }
        if has_names {
            self.0
                .system
                .get_or_init(resolver::ResolverSettings::read_system);
        }
    }

    /// The system's resolver settings; empty before [`UpstreamGroups::adopt_states`].
    pub(super) fn system_resolver(&self) -> resolver::ResolverSettings {
        self.0.system.get().cloned().unwrap_or_default()
    }

    fn read(&self) -> RwLockReadGuard<'_, GroupList> {
        self.0.groups.read()
    }

    fn write(&self) -> RwLockWriteGuard<'_, GroupList> {
        self.0.groups.write()
    }

    fn block(&self, name: &[u8]) -> Option<Arc<UpstreamGroup>> {
        self.search(name, GroupOrigin::Block)
    }

    fn find(&self, name: &[u8], port: Option<u16>) -> Option<Arc<UpstreamGroup>> {
        self.search(name, GroupOrigin::Url { port })
    }

    fn search(&self, name: &[u8], origin: GroupOrigin) -> Option<Arc<UpstreamGroup>> {
        let groups = self.read();
        let mut named = groups.named(name).iter();
        named.find(|group| group.settings.origin == origin).cloned()
    }
}

impl fmt::Debug for UpstreamGroups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.all_groups()).finish()
    }
}

/// The host as written, without the port; the whole text for a unix socket.
fn host_text(text: &[u8], address: &HostPort) -> BString {
    match address.host {
        AddressHost::Unix(_) => text.into(),
        _ if address.port.is_some() => {
            let colon = text.rfind_byte(b':').unwrap_or(text.len());
            text[..colon].into()
        }
        _ => text.into(),
    }
}

/// The only server of an implicit group, and a warning if its name cannot be resolved.
fn implicit_server(
    text: &[u8],
    address: &HostPort,
    default_port: u16,
) -> (UpstreamServer, Option<String>) {
    if let Some(known) = peer_address(address, default_port) {
        return (UpstreamServer::new(text, vec![known]), None);
    }
    let found = lookup_configured(address, default_port);
    let server = UpstreamServer {
        resolve: found.later,
        ..UpstreamServer::new(text, found.addresses)
    };
    (server, found.warning)
}
