//! What the configuration says of clusters, and the registry by which lines refer to them.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base::sync::Mutex;
use bstr::{BStr, BString};
use conf::{Diagnostic, DirectiveLine, Span};
use host::engine::ZoneRegistry;

use super::member_tls::MemberTls;
use super::membership::ClusterState;
use super::peer_token::PeerToken;
use crate::redis::{RedisClient, RedisSettings};
use crate::resolver::{Resolver, ResolverSettings};

/// A `cluster` block.
#[derive(Clone)]
pub struct ClusterSettings {
    /// Members that are named by their addresses.
    pub members: Vec<SocketAddr>,
    /// Names whose addresses are members.
    pub sources: Vec<MemberSource>,
    /// A list in Redis in which members enter themselves.
    pub list: Option<MemberList>,
    /// The address by which the other members know this server, if it is given.
    pub own: Option<SocketAddr>,
    /// The keys by which members recognize each other.
    pub token: PeerToken,
    /// TLS between members; `None`: plain connections.
    pub tls: Option<Arc<MemberTls>>,
    /// How long a member may be silent before it counts as gone.
    pub budget: Duration,
    /// The number of requests for a key after which a response of another member is kept here.
    pub min_uses: u32,
    /// The resolver for `sources`; `None`: that of `http {}`.
    pub resolver: Option<Arc<Resolver>>,
    /// Where shared state is kept; `None`: nowhere.
    pub redis: Option<RedisSettings>,
    /// How purges are kept there.
    pub journal: JournalSettings,
}

/// A `journal` line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalSettings {
    /// How many purges are kept for members that are away, about.
    pub length: u64,
    /// What a purge does while Redis cannot be reached.
    pub away: JournalAway,
}

/// What a purge does while the journal cannot be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JournalAway {
    /// It is refused, and nothing is purged.
    #[default]
    Refuse,
    /// It is done by all members that answer, and written later.
    Keep,
}

impl Default for JournalSettings {
    fn default() -> Self {
        JournalSettings {
            length: 100_000,
            away: JournalAway::Refuse,
        }
    }
}

/// A list in Redis whose entries are members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberList {
    /// Its name.
    pub name: BString,
    /// For how long an entry is valid.
    pub expires: Duration,
}

/// A name whose records are members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberSource {
    /// The name.
    pub host: BString,
    /// The service of SRV records; empty for address records.
    pub service: BString,
    /// The port of address records.
    pub port: u16,
}

/// A cluster, known by its name.
pub struct Cluster {
    name: BString,
    declared: OnceLock<ClusterSettings>,
    /// Set when the worker commits to the configuration.
    state: OnceLock<Arc<ClusterState>>,
    /// Set at the same time, if the block has a `redis` line.
    redis: OnceLock<Arc<RedisClient>>,
    /// The first line that refers to it.
    referred: Option<Span>,
}

/// The clusters of a configuration. Clones share the map.
#[derive(Clone, Default)]
pub struct Clusters(Arc<ClusterRegistry>);

/// Whether all blocks of clusters were read.
#[derive(Default)]
struct DeclaredClusters {
    are_read: bool,
}

#[derive(Default)]
struct ClusterRegistry {
    clusters: Mutex<BTreeMap<BString, Arc<Cluster>>>,
    /// The system's resolver settings, read only if a cluster has names, or Redis.
    system: OnceLock<ResolverSettings>,
}

impl Cluster {
    /// The name.
    pub fn name(&self) -> &BStr {
        self.name.as_ref()
    }

    /// The block.
    pub fn settings(&self) -> Option<&ClusterSettings> {
        self.declared.get()
    }

    /// What is known of it; `None` before the worker commits to the configuration.
    pub fn state(&self) -> Option<&Arc<ClusterState>> {
        self.state.get()
    }

    /// Its Redis; `None` if it has none.
    pub fn redis(&self) -> Option<&Arc<RedisClient>> {
        self.redis.get()
    }

    /// The two parts of it that every request needs.
    pub fn running(&self) -> Option<(&ClusterSettings, &Arc<ClusterState>)> {
        Some((self.declared.get()?, self.state.get()?))
    }
}

impl fmt::Debug for Cluster {
    // Not derived: the settings have the secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("name", &self.name).finish()
    }
}

impl Clusters {
    /// The cluster of this name.
    pub fn find_cluster(&self, name: &[u8]) -> Option<Arc<Cluster>> {
        self.0.clusters.lock().get(BStr::new(name)).cloned()
    }

    /// All clusters, by name.
    pub fn all_clusters(&self) -> Vec<Arc<Cluster>> {
        self.0.clusters.lock().values().cloned().collect()
    }

    /// The cluster of this name, for a line that refers to it. Its block may stand further down.
    pub fn refer_to_cluster(line: &mut DirectiveLine, name: &BStr) -> Arc<Cluster> {
        let referred = Some(line.node.span);
        let clusters = line.lasting::<Clusters>().clone();
        let make = || {
            Arc::new(Cluster {
                name: name.to_owned(),
                declared: OnceLock::new(),
                state: OnceLock::new(),
                redis: OnceLock::new(),
                referred,
            })
        };
        let mut map = clusters.0.clusters.lock();
        Arc::clone(map.entry(name.to_owned()).or_insert_with(make))
    }

    /// Declares a cluster; an error if there is one of this name.
    pub fn declare_cluster(
        line: &mut DirectiveLine,
        name: &BStr,
        settings: ClusterSettings,
    ) -> Result<(), Diagnostic> {
        let cluster = Clusters::refer_to_cluster(line, name);
        match cluster.declared.set(settings) {
            Ok(()) => Ok(()),
            Err(_) => Err(line.error(format!("duplicate cluster \"{name}\""))),
        }
    }

    /// Reports names that lines refer to and that no block has. Called when all lines are known.
    pub fn check_declared(line: &mut DirectiveLine) {
        line.lasting::<DeclaredClusters>().are_read = true;
        for cluster in line.lasting::<Clusters>().all_clusters() {
            if let (None, Some(span)) = (cluster.declared.get(), cluster.referred) {
                let text = format!("unknown cluster \"{}\"", cluster.name);
                let note = "add a \"cluster\" block with its members to \"http\"";
                line.level.report(Diagnostic::error(text, span).note(note));
            }
        }
    }

    /// The same for a block besides the one that has clusters: if that one was read before.
    pub fn check_if_read(line: &mut DirectiveLine) {
        if line.lasting::<DeclaredClusters>().are_read {
            Clusters::check_declared(line);
        }
    }

    /// Finds or makes the state of each cluster. Called by the worker before it serves, not on a loop: it may read the
    /// system's resolver files.
    pub fn adopt_states(&self, zones: &ZoneRegistry) {
        for cluster in self.all_clusters() {
            let key = format!("cluster {}", cluster.name);
            // A configuration is committed to once, so the cell is empty.
            let _ = cluster
                .state
                .set(zones.get_or_create(&key, ClusterState::default));
            if let Some(redis) = cluster
                .settings()
                .and_then(|settings| settings.redis.clone())
            {
                // As above. The connection is opened by the task that keeps it.
                let _ = cluster.redis.set(Arc::new(RedisClient::new(redis)));
            }
            if cluster
                .settings()
                .is_some_and(|settings| !settings.sources.is_empty() || settings.redis.is_some())
            {
                self.0.system.get_or_init(ResolverSettings::read_system);
            }
        }
    }

    /// The system's resolver settings, for clusters with names where no `resolver` is configured.
    pub fn system_resolver(&self) -> ResolverSettings {
        self.0.system.get().cloned().unwrap_or_default()
    }
}
