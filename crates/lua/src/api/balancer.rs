//! `ngx.balancer`: what a `balancer_by_lua` script decides about the next attempt.
//!
//! The functions only note the decision. The upstream exchange acts upon it when the script has
//! returned.

use std::net::{IpAddr, SocketAddr};

use bstr::{BString, ByteSlice};
use net::upstream::TimeoutOverrides;
use rt::net::{SocketAddress, UnixPath};

use super::arguments::{bytes, number, optional_number, optional_text};
use super::called::answer;
use super::misc::duration;
use super::{CallResult, NativeTable};
use crate::luajit::{LuaError, LuaStack, LuaValue, fail};
use crate::scope;
use crate::scope::BalancerDecision;

pub(super) const FUNCTIONS: NativeTable = &[
    ("set_current_peer", set_current_peer),
    ("set_more_tries", set_more_tries),
    ("get_last_failure", get_last_failure),
    ("set_timeouts", set_timeouts),
    ("enable_keepalive", enable_keepalive),
    ("recreate_request", recreate_request),
    ("set_upstream_tls", set_upstream_tls),
    ("bind_to_local_addr", bind_to_local_addr),
];

/// Calls `code` with the decision of the running script; elsewhere the API is disabled.
fn with<T>(code: impl FnOnce(&mut BalancerDecision) -> T) -> Result<T, LuaError> {
    scope::with(|scope| match &*scope.balancer.borrow() {
        Some(balancing) => Ok(code(&mut balancing.borrow_mut())),
        None => fail("API disabled in the current context: only balancer_by_lua* may call it"),
    })?
}

/// Returns true.
fn yes(stack: &LuaStack) -> CallResult {
    stack.push_boolean(true);
    super::ONE
}

/// `set_current_peer(host, port, name)`: the address to connect to. Names are not resolved, because the
/// script cannot wait: it has to be an address, or a unix socket. `name` is that of its certificate.
fn set_current_peer(stack: &LuaStack) -> CallResult {
    let host = bytes(stack, 1)?.to_str_lossy().into_owned();
    let port = number(stack, 2)?;
    let Some(peer) = address(&host, port) else {
        return answer(stack, LuaValue::failure("no host allowed"));
    };
    let tls_name = optional_text(stack, 3)?.filter(|name| !name.is_empty());
    with(|balancing| {
        balancing.peer = Some(peer);
        balancing.tls_name = tls_name.map(BString::from);
    })?;
    yes(stack)
}

/// Parses an address with or without a port; `port` is used where it has none.
fn address(host: &str, port: f64) -> Option<SocketAddress> {
    if let Some(path) = host.strip_prefix("unix:") {
        return Some(SocketAddress::Unix(UnixPath::new(std::path::Path::new(
            path,
        ))));
    }
    // A port in the text wins over the argument.
    if let Ok(address) = host.parse::<SocketAddr>() {
        return Some(address.into());
    }
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let ip = bare.parse::<IpAddr>().ok()?;
    let port = (0.0..=65535.0).contains(&port).then_some(port as u16)?;
    Some(SocketAddr::new(ip, port).into())
}

/// `set_more_tries(count)`: how many attempts may follow this one. `proxy_next_upstream_tries`
/// stays the upper bound, and the script is told when it was reduced.
fn set_more_tries(stack: &LuaStack) -> CallResult {
    let count = number(stack, 1)?.clamp(0.0, 1000.0) as u32;
    let reduced = with(|balancing| {
        let history = balancing.history;
        // Attempts made, and those that are left.
        let total = history.failures + history.left;
        let most = match history.limit {
            0 => count,
            // The bound counts all attempts of the request, those that are already made included.
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

/// `get_last_failure()`: how the attempt before this one failed, and its status. "next" means that
/// the server is healthy, "failed" everything else.
fn get_last_failure(stack: &LuaStack) -> CallResult {
    let history = with(|balancing| balancing.history)?;
    if history.failures == 0 {
        stack.push_nil();
        return super::ONE;
    }
    // The server is healthy and has answered; the answer was just not wanted.
    let next = matches!(history.status, 403 | 404);
    stack.push_bytes(if next { "next" } else { "failed" });
    stack.push_number(f64::from(history.status));
    super::tcp::results(2)
}

/// `set_timeouts(connect, send, read)`, in seconds; nil keeps the configured one.
fn set_timeouts(stack: &LuaStack) -> CallResult {
    let mut times = [None; 3];
    for (at, time) in (1..).zip(&mut times) {
        if let Some(seconds) = optional_number(stack, at)? {
            let Some(length) = duration(seconds).filter(|time| !time.is_zero()) else {
                return answer(stack, LuaValue::failure("bad timeout"));
            };
            *time = Some(length);
        }
    }
    let [connect, send, read] = times;
    with(|balancing| {
        balancing.timeouts = TimeoutOverrides {
            connect,
            send,
            read,
        }
    })?;
    yes(stack)
}

/// `enable_keepalive(idle_timeout, max_requests)`: accepted, and without effect.
fn enable_keepalive(stack: &LuaStack) -> CallResult {
    // Connections are kept alive by default, by the settings of the group. Called only to refuse
    // other phases.
    with(|_| ())?;
    yes(stack)
}

/// `recreate_request()`: the script has changed the request, so it must be built again.
fn recreate_request(stack: &LuaStack) -> CallResult {
    with(|balancing| balancing.recreate_request = true)?;
    yes(stack)
}

/// `set_upstream_tls(false)`: connect without TLS. Switching TLS on is not possible where
/// `proxy_pass` does not say `https`, because its settings are not there.
fn set_upstream_tls(stack: &LuaStack) -> CallResult {
    let off = stack.number(1) == Some(0.0) || !stack.boolean(1) && !stack.is_nil(1);
    with(|balancing| balancing.without_tls = off)?;
    yes(stack)
}

/// `bind_to_local_addr(address)`: connect from this address.
fn bind_to_local_addr(stack: &LuaStack) -> CallResult {
    let text = bytes(stack, 1)?.to_str_lossy().into_owned();
    let Some(from @ SocketAddress::Inet(_)) = address(&text, 0.0) else {
        let message = format!("invalid addr {text}");
        return answer(stack, LuaValue::failure(message));
    };
    with(|balancing| balancing.local_address = Some(from))?;
    yes(stack)
}
