//! `balancer_by_lua`, in http and in stream: a script chooses the server of each attempt.
//!
//! The script names an address, which need not be in the configuration. Each address gets a group
//! of one server, kept from request to request: idle connections, failure counts and metrics belong
//! to a group, and would be lost if it were created for each attempt.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use ::stream::StreamSession;
use base::Lru;
use base::sync::Mutex;
use conf::{Diagnostic, DirectiveLine};
use http::Request;
use net::upstream::{
    NoChoice, PendingChooser, ServerChoice, ServerChooser, TryHistory, UpstreamGroup,
};
use rt::net::SocketAddress;

use crate::begin_run;
use crate::chunk::{LuaChunk, ScriptKind};
use crate::run::{RunEnd, ScriptRun};
use crate::run_owner::RunOwner;
use crate::scope::BalancerDecision;

/// The settings type of the rows in `upstream`. It is empty: what a line says goes to the group
/// that is being built.
#[derive(Clone, Default)]
pub(crate) struct BalancerConf;

/// A `balancer_by_lua` line.
struct LuaBalancer {
    chunk: Arc<LuaChunk>,
    /// The groups of the servers that were chosen, by address. One map for all loops: failures that
    /// one loop has seen count on the others too.
    groups: Mutex<Lru<String, Arc<UpstreamGroup>>>,
}

/// The most servers that are remembered; the least recently chosen one is forgotten first. A script
/// may derive addresses from what clients send, so their number must be bounded.
const MAX_SERVERS: usize = 1000;

/// Reads a line in an upstream of http.
pub(crate) fn set_script(_: &mut BalancerConf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    let script = LuaBalancer::read(line)?;
    let pending = &mut line.shared::<PendingChooser<Request>>().0;
    if pending.is_some() {
        return Err(line.directive_error("is duplicate"));
    }
    *pending = Some(script);
    Ok(())
}

/// Reads a line in an upstream of stream.
pub(crate) fn set_stream_script(
    _: &mut BalancerConf,
    line: &mut DirectiveLine,
) -> Result<(), Diagnostic> {
    let script = LuaBalancer::read(line)?;
    let pending = &mut line.shared::<PendingChooser<StreamSession>>().0;
    if pending.is_some() {
        return Err(line.directive_error("is duplicate"));
    }
    *pending = Some(script);
    Ok(())
}

impl ServerChooser<Request> for LuaBalancer {
    fn choose(
        &self,
        request: &mut Request,
        history: &TryHistory,
    ) -> Result<ServerChoice, NoChoice> {
        let refused = |status| NoChoice { status };
        let run = begin_run::for_request(request, &self.chunk).map_err(refused)?;
        self.run_balancer(run, request.into(), history)
            .map_err(refused)
    }
}

impl ServerChooser<StreamSession> for LuaBalancer {
    fn choose(
        &self,
        session: &mut StreamSession,
        history: &TryHistory,
    ) -> Result<ServerChoice, NoChoice> {
        let refused = |status| NoChoice { status };
        let run = begin_run::for_session(session, &self.chunk).map_err(refused)?;
        self.run_balancer(run, session.into(), history)
            .map_err(refused)
    }
}

impl LuaBalancer {
    /// Reads the script of a line. The code is compiled when a VM first runs it.
    fn read(line: &mut DirectiveLine) -> Result<Arc<LuaBalancer>, Diagnostic> {
        Ok(Arc::new(LuaBalancer {
            chunk: LuaChunk::read(line, ScriptKind::Balancer, 0)?,
            groups: Mutex::new(Lru::new(MAX_SERVERS)),
        }))
    }

    /// Runs the script at the beginning of a try. The error is the status of the response.
    fn run_balancer(
        &self,
        mut run: ScriptRun,
        guest: RunOwner<'_>,
        history: &TryHistory,
    ) -> Result<ServerChoice, u16> {
        let balancing = Rc::new(RefCell::new(BalancerDecision {
            history: *history,
            ..BalancerDecision::default()
        }));
        *run.scope.balancer.borrow_mut() = Some(Rc::clone(&balancing));
        match run.run_to_completion(guest) {
            RunEnd::Completed(_) | RunEnd::Exit(0) => {}
            RunEnd::Exit(status) => return Err(u16::try_from(status).unwrap_or(500)),
            // Without a decision there is no server to try, and another run would end the same way.
            RunEnd::Exec(..) | RunEnd::Jump | RunEnd::Failed => return Err(500),
        }
        let BalancerDecision {
            peer,
            more_tries,
            timeouts,
            recreate_request: anew,
            local_address: from,
            without_tls: plain,
            tls_name,
            ..
        } = balancing.take();
        Ok(ServerChoice {
            group: peer.map(|peer| self.group(peer)),
            more_tries,
            timeouts,
            rewrites_request: anew,
            from,
            without_tls: plain,
            tls_name,
        })
    }

    /// The group of one server.
    fn group(&self, peer: SocketAddress) -> Arc<UpstreamGroup> {
        let name = peer.to_string();
        let mut groups = self.groups.lock();
        if let Some(known) = groups.get(&name) {
            return Arc::clone(known);
        }
        let group = Arc::new(UpstreamGroup::of_addresses(name.clone(), vec![peer]));
        groups.insert(name, Arc::clone(&group));
        group
    }
}
