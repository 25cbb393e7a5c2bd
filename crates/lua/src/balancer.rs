//! `balancer_by_lua`: a script chooses the server of each try.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use base::Lru;
use conf::{Diagnostic, Line};
use http::Request;
use http::upstream::chooser::{Choice, Chooser, Pending};
use net::upstream::Group;

use crate::chunk::{Chunk, Kind};
use crate::phases;
use crate::run::End;

/// The conf of the rows in `upstream`. What they say is left with the group.
#[derive(Clone, Default)]
pub(crate) struct Balancer;

/// A line.
struct ByScript {
    chunk: Arc<Chunk>,
    /// A group for each server that was chosen, so that its state lasts.
    groups: Mutex<Lru<SocketAddr, Arc<Group>>>,
}

/// How many servers are remembered.
const MAX_SERVERS: usize = 1000;

/// What the script says of the try that begins.
#[derive(Default)]
pub(crate) struct Balancing {
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) more_tries: Option<u32>,
    pub(crate) failures: u32,
    pub(crate) last_status: u16,
}

/// The setter of the rows.
pub(crate) fn read(_: &mut Balancer, line: &mut Line) -> Result<(), Diagnostic> {
    let chunk = Chunk::read(line, Kind::Balancer, 0)?;
    let pending = &mut line.shared::<Pending>().0;
    if pending.is_some() {
        return Err(line.directive_error("is duplicate"));
    }
    *pending = Some(Arc::new(ByScript {
        chunk,
        groups: Mutex::new(Lru::new(MAX_SERVERS)),
    }));
    Ok(())
}

impl Chooser for ByScript {
    fn choose(&self, request: &mut Request, failures: u32, status: u16) -> Result<Choice, u16> {
        let mut run = phases::begin(request, &self.chunk)?;
        let balancing = Rc::new(RefCell::new(Balancing {
            failures,
            last_status: status,
            ..Balancing::default()
        }));
        *run.scope.balancing.borrow_mut() = Some(Rc::clone(&balancing));
        match run.finish_now(request.into()) {
            End::Through(_) | End::Exit(0) => {}
            End::Exit(status) => return Err(u16::try_from(status).unwrap_or(500)),
            End::Exec(..) | End::Jump | End::Failed => return Err(500),
        }
        let balancing = balancing.borrow();
        let Some(peer) = balancing.peer else {
            request.error(format_args!("balancer_by_lua* has set no peer"));
            return Err(502);
        };
        Ok(Choice {
            group: self.group(peer),
            more_tries: balancing.more_tries,
        })
    }
}

impl ByScript {
    fn group(&self, peer: SocketAddr) -> Arc<Group> {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = groups.get(&peer) {
            return Arc::clone(known);
        }
        let group = Arc::new(Group::of_addresses(peer.to_string(), vec![peer.into()]));
        groups.insert(peer, Arc::clone(&group));
        group
    }
}
