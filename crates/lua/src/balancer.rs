//! `balancer_by_lua`, in http and in stream: a script chooses the server of each try.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use ::stream::Session;
use base::Lru;
use conf::{Diagnostic, Line};
use http::Request;
use http::upstream::chooser::{Choice, Chooser, Past, Pending, Timeouts};
use net::upstream::Group;
use rt::net::Address;

use crate::chunk::{Chunk, Kind};
use crate::run::{End, Run};
use crate::scope::Guest;
use crate::{phases, stream};

/// The conf of the rows in `upstream`. What they say is left with the group.
#[derive(Clone, Default)]
pub(crate) struct Balancer;

/// A line.
struct ByScript {
    chunk: Arc<Chunk>,
    /// A group for each server that was chosen, so that its state lasts.
    groups: Mutex<Lru<String, Arc<Group>>>,
}

/// How many servers are remembered.
const MAX_SERVERS: usize = 1000;

/// What the script says of the try that begins.
#[derive(Default)]
pub(crate) struct Balancing {
    pub(crate) peer: Option<Address>,
    pub(crate) more_tries: Option<u32>,
    pub(crate) timeouts: Timeouts,
    pub(crate) anew: bool,
    pub(crate) from: Option<Address>,
    pub(crate) plain: bool,
    pub(crate) past: Past,
}

/// The setter of the rows.
pub(crate) fn read(_: &mut Balancer, line: &mut Line) -> Result<(), Diagnostic> {
    let script = ByScript::read(line)?;
    let pending = &mut line.shared::<Pending>().0;
    if pending.is_some() {
        return Err(line.directive_error("is duplicate"));
    }
    *pending = Some(script);
    Ok(())
}

/// The setter of the rows in stream.
pub(crate) fn read_stream(_: &mut Balancer, line: &mut Line) -> Result<(), Diagnostic> {
    let script = ByScript::read(line)?;
    let pending = &mut line.shared::<::stream::chooser::Pending>().0;
    if pending.is_some() {
        return Err(line.directive_error("is duplicate"));
    }
    *pending = Some(script);
    Ok(())
}

impl Chooser for ByScript {
    fn choose(&self, request: &mut Request, past: &Past) -> Result<Choice, u16> {
        let run = phases::begin(request, &self.chunk)?;
        let balancing = balance(run, request.into(), *past)?;
        Ok(Choice {
            group: balancing.peer.map(|peer| self.group(peer)),
            more_tries: balancing.more_tries,
            timeouts: balancing.timeouts,
            anew: balancing.anew,
            from: balancing.from,
            plain: balancing.plain,
        })
    }
}

impl ::stream::chooser::Chooser for ByScript {
    fn choose(
        &self,
        session: &mut Session,
        past: &::stream::chooser::Past,
    ) -> Result<::stream::chooser::Choice, u16> {
        let run = stream::begin(session, &self.chunk)?;
        let past = Past {
            failures: past.failures,
            status: 0,
            left: past.left,
            limit: past.limit,
        };
        let balancing = balance(run, session.into(), past)?;
        Ok(::stream::chooser::Choice {
            group: balancing.peer.map(|peer| self.group(peer)),
            more_tries: balancing.more_tries,
            from: balancing.from,
        })
    }
}

/// Runs a script over a try that begins; the error is the status that comes of it.
fn balance(mut run: Run, guest: Guest<'_>, past: Past) -> Result<Balancing, u16> {
    let balancing = Rc::new(RefCell::new(Balancing {
        past,
        ..Balancing::default()
    }));
    *run.scope.balancing.borrow_mut() = Some(Rc::clone(&balancing));
    match run.finish_now(guest) {
        End::Through(_) | End::Exit(0) => Ok(balancing.take()),
        End::Exit(status) => Err(u16::try_from(status).unwrap_or(500)),
        End::Exec(..) | End::Jump | End::Failed => Err(500),
    }
}

impl ByScript {
    fn read(line: &mut Line) -> Result<Arc<ByScript>, Diagnostic> {
        Ok(Arc::new(ByScript {
            chunk: Chunk::read(line, Kind::Balancer, 0)?,
            groups: Mutex::new(Lru::new(MAX_SERVERS)),
        }))
    }

    fn group(&self, peer: Address) -> Arc<Group> {
        let name = peer.to_string();
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = groups.get(&name) {
            return Arc::clone(known);
        }
        let group = Arc::new(Group::of_addresses(name.clone(), vec![peer]));
        groups.insert(name, Arc::clone(&group));
        group
    }
}
