//! A purge by the journal of the cluster: it is written first, and each member applies what it reads there, this one too.
//!
//! So there is one order of purges for all, and one way by which they come. Who has applied it is asked at the peer ports;
//! the others will, when they are back.

use std::sync::Arc;

use cache::CacheStore;
use http::cache::CacheZone;
use http::cluster::claim_of;
use http::{HandlerOutcome, Request};
use net::cluster::{Cluster, JournalAway, JournalPosition, PurgeJournal};
use net::redis::{RedisClient, RedisFault};
use serde_json::json;

use super::{PurgeTarget, cluster_purge, description_of, mode_of, purge_all, respond, text};

/// What keeps the purges of a cache.
pub(super) struct PurgeKeeper {
    zone: Arc<CacheZone>,
    cluster: Arc<Cluster>,
    journal: Arc<PurgeJournal>,
    client: Arc<RedisClient>,
}

impl PurgeKeeper {
    /// `None`: the cluster has no journal.
    pub(super) fn of(zone: &Arc<CacheZone>, cluster: &Arc<Cluster>) -> Option<PurgeKeeper> {
        Some(PurgeKeeper {
            journal: Arc::clone(zone.journal()?),
            client: Arc::clone(cluster.redis()?),
            zone: Arc::clone(zone),
            cluster: Arc::clone(cluster),
        })
    }

    /// Purges by the journal.
    pub(super) async fn purge(
        self,
        request: &mut Request,
        store: &CacheStore,
        target: &PurgeTarget,
    ) -> HandlerOutcome {
        // A member's, whose journal was away: see below.
        if claim_of(request).is_some() {
            return purge_all(request, store, target, None).await;
        }
        let Some(settings) = self.cluster.settings() else {
            return HandlerOutcome::Status(500);
        };
        let mode = mode_of(request);
        let mut purges = Vec::new();
        target.for_each(|purge| purges.push(purge.to_message(mode)));
        let length = settings.journal.length;
        match self.journal.append(&self.client, length, &purges).await {
            Ok(id) => self.answer(request, target, id).await,
            Err(fault) if settings.journal.away == JournalAway::Refuse => refuse(request, &fault),
            // What is purged here is written later by itself. The members that answer purge at once.
            Err(_) => purge_all(request, store, target, Some(&self.cluster)).await,
        }
    }

    /// Waits until the purge has been applied here and by the members that answer.
    async fn answer(
        &self,
        request: &mut Request,
        target: &PurgeTarget,
        id: JournalPosition,
    ) -> HandlerOutcome {
        let limit = self
            .cluster
            .settings()
            .map_or_else(Default::default, |settings| settings.budget);
        let others = cluster_purge::ask_for_applied(&self.cluster, self.zone.name(), id);
        let own = self.journal.until_kept(id, limit).await;
        let (mut applied, mut missing) = (Vec::new(), Vec::new());
        for (member, has_applied) in others.results().await {
            if has_applied {
                &mut applied
            } else {
                &mut missing
            }
            .push(member);
        }
        let status = if own && missing.is_empty() { 200 } else { 202 };
        let mut answer = description_of(target, mode_of(request));
        answer["cluster"] = json!({
            "name": text(self.cluster.name()),
            "applied": applied,
            "missing": missing,
            "journal": id.to_string(),
            "here": own,
        });
        respond(request, status, &answer)
    }
}

fn refuse(request: &mut Request, fault: &RedisFault) -> HandlerOutcome {
    request.error(format_args!(
        "purge is refused: the journal of the cluster cannot be written: {fault}"
    ));
    let error = "the journal of purges cannot be written: no purge is promised, ask again";
    respond(
        request,
        503,
        &json!({ "error": error, "reason": fault.to_string() }),
    )
}
