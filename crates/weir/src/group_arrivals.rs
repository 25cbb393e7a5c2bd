//! Connections that other worker groups pass on: how they get to a loop of this process.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use host::engine::ListenerSpec;
use host::error_log::LogLevel;
use host::loop_slots::{ArrivingConnection, LoopArrival, LoopSlots};
use host::worker_group::{ArrivalKind, GroupArrival, GroupMember};
use rt::net::DetachedSocket;

use crate::handover;
use crate::load_configuration::LoadedConfiguration;
use crate::worker_loop::place_connection;

/// What is needed to take a connection in.
struct GroupArrivals {
    /// The engines and sockets of an address; http and stream may have the same one, over TCP and UDP.
    sockets: HashMap<Vec<u8>, Vec<(&'static str, Arc<ListenerSpec>)>>,
    kinds: Vec<&'static str>,
    loop_slots: LoopSlots,
}

/// Takes in connections that other groups pass on, from now on with this configuration; its loops have it.
pub(crate) fn take_arrivals(
    loaded: &LoadedConfiguration,
    loop_slots: &LoopSlots,
    generation: u64,
    group: &Arc<GroupMember>,
) {
    if !group.has_siblings() {
        return;
    }
    let mut sockets: HashMap<Vec<u8>, Vec<_>> = HashMap::new();
    for engine in &loaded.engines {
        for spec in engine.listeners() {
            let address = spec.address.to_string().into_bytes();
            let of_address = sockets.entry(address).or_default();
            of_address.push((engine.kind(), Arc::new(spec)));
        }
    }
    let arrivals = GroupArrivals {
        sockets,
        kinds: loaded.engines.iter().map(|engine| engine.kind()).collect(),
        loop_slots: loop_slots.clone(),
    };
    group.on_arrival(move |arrival| arrivals.take_in(arrival));
    // Only once a loop can take over what was sent to the process before this one, when it had just died.
    if let Err(error) = group.start() {
        let error = base::ErrnoText(&error);
        let text =
            format_args!("pthread_create() failed{error}, other worker groups are not heard");
        return loaded.log.log_plain(LogLevel::Alert, text);
    }
    group.publish(loop_slots.list.len(), generation);
}

impl GroupArrivals {
    /// Gives a connection to a loop, or gives it back to its group.
    fn take_in(&self, arrival: GroupArrival<'_>) -> Result<(), OwnedFd> {
        if arrival.kind == ArrivalKind::Idle {
            let moved = handover::decode_moved(arrival.body, arrival.descriptor, &self.kinds);
            if let Some((kind, moving)) = moved {
                self.place(kind, ArrivingConnection::Idle(moving));
            }
            return Ok(());
        }
        let of_address = self.sockets.get(arrival.body).into_iter().flatten();
        let mut of_engine = of_address.filter(|(kind, _)| kind.as_bytes() == arrival.engine);
        let known = of_engine.next();
        // The group that it comes from knows its address, and may have a loop that is not late.
        let is_better_there = known.is_none() || !self.loop_slots.has_responsive();
        if is_better_there && arrival.kind == ArrivalKind::New {
            return Err(arrival.descriptor);
        }
        // An error: the client has gone.
        if let (Some((kind, spec)), Ok(stream)) = (known, DetachedSocket::of(arrival.descriptor)) {
            let spec = spec.clone();
            self.place(kind, ArrivingConnection::New { spec, stream });
        }
        Ok(())
    }

    fn place(&self, kind: &'static str, connection: ArrivingConnection) {
        place_connection(LoopArrival { kind, connection }, &self.loop_slots);
    }
}
