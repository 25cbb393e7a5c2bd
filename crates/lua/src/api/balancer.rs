//! `ngx.balancer`: what a script of `balancer_by_lua` says.

use std::net::{IpAddr, SocketAddr};

use bstr::ByteSlice;
use http::upstream::chooser::Timeouts;

use super::arguments::{bytes, number, optional_number};
use super::misc::duration;
use super::output::answer;
use super::{Called, Functions};
use crate::balancer::Balancing;
use crate::luajit::{Failure, Stack, Value, fail};
use crate::scope;

pub(super) const FUNCTIONS: Functions = &[
    ("set_current_peer", set_current_peer),
    ("set_more_tries", set_more_tries),
    ("get_last_failure", get_last_failure),
    ("set_timeouts", set_timeouts),
    ("enable_keepalive", enable_keepalive),
    ("recreate_request", recreate_request),
];

fn with<T>(code: impl FnOnce(&mut Balancing) -> T) -> Result<T, Failure> {
    scope::with(|scope| match &*scope.balancing.borrow() {
        Some(balancing) => Ok(code(&mut balancing.borrow_mut())),
        None => fail("API disabled in the current context: only balancer_by_lua* may call it"),
    })?
}

fn yes(stack: &Stack) -> Called {
    stack.push_boolean(true);
    super::ONE
}

fn set_current_peer(stack: &Stack) -> Called {
    let host = bytes(stack, 1)?.to_str_lossy().into_owned();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    // As in nginx's: `host:port` in one word, or the port by itself.
    let address = match (stack.is_nil(2), host.parse::<SocketAddr>()) {
        (true, Ok(address)) => Some(address),
        (nil, _) => {
            let port = if nil { 0.0 } else { number(stack, 2)? };
            bare.parse::<IpAddr>()
                .ok()
                .filter(|_| (1.0..=65535.0).contains(&port))
                .map(|ip| SocketAddr::new(ip, port as u16))
        }
    };
    let Some(address) = address else {
        return answer(
            stack,
            Value::failure("no host allowed: an address and a port are wanted"),
        );
    };
    with(|balancing| balancing.peer = Some(address))?;
    yes(stack)
}

fn set_more_tries(stack: &Stack) -> Called {
    let count = number(stack, 1)?;
    with(|balancing| balancing.more_tries = Some(count.clamp(0.0, 1000.0) as u32))?;
    yes(stack)
}

fn get_last_failure(stack: &Stack) -> Called {
    let (failures, status) = with(|balancing| (balancing.failures, balancing.last_status))?;
    if failures == 0 {
        stack.push_nil();
        return super::ONE;
    }
    stack.push_bytes("failed");
    stack.push_number(f64::from(status));
    super::tcp::results(2)
}

fn set_timeouts(stack: &Stack) -> Called {
    let mut times = [None; 3];
    for (at, time) in (1..).zip(&mut times) {
        if let Some(seconds) = optional_number(stack, at)? {
            let Some(length) = duration(seconds).filter(|time| !time.is_zero()) else {
                return answer(stack, Value::failure("bad timeout"));
            };
            *time = Some(length);
        }
    }
    let [connect, send, read] = times;
    with(|balancing| {
        balancing.timeouts = Timeouts {
            connect,
            send,
            read,
        }
    })?;
    yes(stack)
}

fn enable_keepalive(stack: &Stack) -> Called {
    // Connections are kept as the settings of every group say, without being asked.
    yes(stack)
}

fn recreate_request(stack: &Stack) -> Called {
    // The head is written anew for each try.
    yes(stack)
}
