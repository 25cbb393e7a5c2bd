//! Resolves names of upstream servers at run time: `server NAME resolve`, and names that were unknown at the start.
//!
//! One loop does this for the whole process. The results go into the groups' states, which all loops share.

use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use host::error_log::Logger;

use super::group::UpstreamGroup;
use super::groups::UpstreamGroups;
use super::server::{NameToResolve, ResolvedAddress};
use crate::resolver::{FoundService, LookupTurns, NameUpdate, NameWatch, Resolver, ResolverConf};

/// The time limit of a lookup where no `resolver_timeout` is configured; nginx's default.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The lookups of one configuration's groups. Dropping this ends them.
pub struct NameWatchers {
    _tasks: Vec<rt::JoinHandle<()>>,
}

impl NameWatchers {
    /// Begins to look up the names of all groups, on this loop.
    ///
    /// `outer` is what the engine's outermost block says of resolving, for groups without their own. Where there is
    /// none either, the system's resolver is used.
    pub fn watch_group_names(
        groups: &UpstreamGroups,
        outer: &ResolverConf,
        log: &Logger,
    ) -> NameWatchers {
        let mut system = None;
        let turns = Rc::<LookupTurns>::default();
        let mut tasks = Vec::new();
        for group in groups.all_groups() {
            // Several servers may have the same name: it is asked for once.
            let names: HashSet<&NameToResolve> = group
                .settings
                .servers
                .iter()
                .filter_map(|server| server.resolve.as_deref())
                .collect();
            for at in names {
                let settings = &group.settings;
                let mut resolver = settings
                    .resolver
                    .as_ref()
                    .unwrap_or(&outer.resolver)
                    .clone();
                if resolver.is_empty() {
                    let known = groups.system_resolver();
                    resolver = system
                        .get_or_insert_with(|| Resolver::new(known, log.clone()))
                        .clone();
                }
                // Zero means "no limit" for a request, whose client ends it. Nothing would end a lookup here.
                let timeout = settings
                    .resolver_timeout
                    .unwrap_or(match outer.timeout.is_zero() {
                        true => TIMEOUT,
                        false => outer.timeout,
                    });
                let watch = NameWatch::new(
                    resolver,
                    at.host.clone(),
                    at.service.clone(),
                    at.port,
                    timeout,
                )
                .in_turns(&turns);
                let task = rt::spawn_handle(
                    "upstream names",
                    watch_name(group.clone(), at.clone(), watch),
                );
                tasks.push(task.abort_on_drop());
            }
        }
        NameWatchers { _tasks: tasks }
    }
}

async fn watch_name(group: Arc<UpstreamGroup>, at: NameToResolve, mut watch: NameWatch) {
    loop {
        // A failed lookup changes nothing: the addresses from before may still be right.
        if let NameUpdate::Servers(found) = watch.next_update().await {
            let known = !found.is_empty();
            group.state().set_resolved(&at, records(found));
            if known && at.once {
                return;
            }
        }
    }
}

/// Converts SRV records: those of the best priority are primary, all others backup, as in nginx.
fn records(found: Vec<FoundService>) -> Vec<ResolvedAddress> {
    let best = found.iter().map(|record| record.priority).min();
    let record = |found: FoundService| ResolvedAddress {
        address: found.address.into(),
        weight: u32::from(found.weight),
        backup: Some(found.priority) != best,
        name: found.name,
    };
    found.into_iter().map(record).collect()
}
