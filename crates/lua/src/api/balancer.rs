//! `ngx.balancer`: what a script of `balancer_by_lua` says.

use std::net::{IpAddr, SocketAddr};

use bstr::ByteSlice;
use http::upstream::chooser::Timeouts;
use rt::net::{Address, UnixPath};

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
    ("set_upstream_tls", set_upstream_tls),
    ("bind_to_local_addr", bind_to_local_addr),
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
    let port = number(stack, 2)?;
    let Some(peer) = address(&host, port) else {
        return answer(stack, Value::failure("no host allowed"));
    };
    with(|balancing| balancing.peer = Some(peer))?;
    yes(stack)
}

/// An address as nginx's parser of URLs takes it: with its port in it, or beside it.
fn address(host: &str, port: f64) -> Option<Address> {
    if let Some(path) = host.strip_prefix("unix:") {
        return Some(Address::Unix(UnixPath::new(std::path::Path::new(path))));
    }
    if let Ok(address) = host.parse::<SocketAddr>() {
        return Some(address.into());
    }
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let ip = bare.parse::<IpAddr>().ok()?;
    let port = (0.0..=65535.0).contains(&port).then_some(port as u16)?;
    Some(SocketAddr::new(ip, port).into())
}

fn set_more_tries(stack: &Stack) -> Called {
    let count = number(stack, 1)?.clamp(0.0, 1000.0) as u32;
    let reduced = with(|balancing| {
        let past = balancing.past;
        // Those that were made, this one, and those that are left.
        let total = past.failures + past.left;
        let most = match past.limit {
            0 => count,
            limit => limit.saturating_sub(total).min(count),
        };
        balancing.more_tries = Some(most);
        most < count
    })?;
    stack.push_boolean(true);
    if reduced {
        stack.push_bytes("reduced tries due to limit");
        return super::tcp::results(2);
    }
    super::ONE
}

fn get_last_failure(stack: &Stack) -> Called {
    let past = with(|balancing| balancing.past)?;
    if past.failures == 0 {
        stack.push_nil();
        return super::ONE;
    }
    // A server that has answered so has done what it should.
    let next = matches!(past.status, 403 | 404);
    stack.push_bytes(if next { "next" } else { "failed" });
    stack.push_number(f64::from(past.status));
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
    with(|_| ())?;
    yes(stack)
}

fn recreate_request(stack: &Stack) -> Called {
    with(|balancing| balancing.anew = true)?;
    yes(stack)
}

/// With `false` the server is spoken to without TLS. TLS cannot be had where `proxy_pass` does not say `https`.
fn set_upstream_tls(stack: &Stack) -> Called {
    let off = stack.number(1) == Some(0.0) || !stack.boolean(1) && !stack.is_nil(1);
    with(|balancing| balancing.plain = off)?;
    yes(stack)
}

fn bind_to_local_addr(stack: &Stack) -> Called {
    let text = bytes(stack, 1)?.to_str_lossy().into_owned();
    let Some(from @ Address::Inet(_)) = address(&text, 0.0) else {
        let message = format!("invalid addr {text}");
        return answer(stack, Value::failure(message));
    };
    with(|balancing| balancing.from = Some(from))?;
    yes(stack)
}
