//! Changes of the servers of an upstream group: add, change, drain, remove.
//!
//! A change is made in memory first, then the file of `state` is written; if that fails, the change is taken back, so that
//! what the client was told is what a reload finds. Names are resolved, and files are written, on a thread of a pool. One
//! change is made after the other.

use std::rc::Rc;
use std::sync::Arc;

use base::sync::Mutex;
use conf::{AddressHost, HostPort, parse};
use http::http_loop::HttpLoop;
use net::upstream::{
    GroupState, MAX_SERVER_ID, ServerState, TooManyServers, UpstreamGroup, UpstreamServer,
};
use proto::message::Method;
use rt::net::SocketAddress;
use serde_json::{Map, Value, json};

use super::failure::ApiFailure;
use super::groups;
use super::resources::{NO_GROUP, NO_SERVER, server_id};
use crate::shared::status::StatusView;
use crate::shared::status::upstreams::{self, GroupKind};
use crate::shared::upstream_state;

/// The topic of messages between worker groups.
pub(super) const TOPIC: &str = "api upstreams";

/// A change that is asked for.
pub(super) struct UpstreamChange {
    kind: GroupKind,
    group: String,
    what: ServerChange,
}

/// What is to become of a server.
enum ServerChange {
    Add(Map<String, Value>),
    Change(u32, Map<String, Value>),
    Remove(u32),
}

/// A change that was made.
pub(super) struct MadeChange {
    /// What the response says.
    pub(super) value: Value,
    /// The number of a server that was added.
    pub(super) added: Option<u32>,
    /// For the other worker groups.
    message: Value,
}

impl UpstreamChange {
    /// Reads a request.
    pub(super) fn of_request(
        method: Method,
        kind: GroupKind,
        group: &str,
        id: Option<&&str>,
        body: Option<Map<String, Value>>,
    ) -> Result<UpstreamChange, ApiFailure> {
        let id = id.map(|id| server_id(id)).transpose()?;
        let what = match (method, id, body) {
            (Method::Post, None, Some(body)) => ServerChange::Add(body),
            (Method::Patch, Some(id), Some(body)) => ServerChange::Change(id, body),
            (Method::Delete, Some(id), _) => ServerChange::Remove(id),
            _ => return Err(ApiFailure::METHOD_DISABLED),
        };
        Ok(UpstreamChange {
            kind,
            group: group.to_owned(),
            what,
        })
    }
}

/// One change after the other.
#[derive(Default)]
struct ChangeTurn(Mutex<()>);

/// Makes a change, in all worker groups.
pub(super) async fn make(
    engine: &Rc<HttpLoop>,
    view: StatusView,
    change: UpstreamChange,
) -> Result<MadeChange, ApiFailure> {
    let turn = engine
        .zones
        .get_or_create("api upstreams", ChangeTurn::default);
    let pool = rt::pool::default_pool();
    let made = pool.run(move || {
        let group = change.kind.find(&view, &change.group).ok_or(NO_GROUP)?;
        let server = change.server(&group)?;
        let _turn = turn.0.lock();
        apply(&group, &change, server)
    });
    let made = made.await?;
    groups::tell(engine, TOPIC, &made.message).await;
    Ok(made)
}

impl UpstreamChange {
    /// The server that a body describes; `None` for a removal.
    fn server(&self, group: &UpstreamGroup) -> Result<Option<UpstreamServer>, ApiFailure> {
        match &self.what {
            ServerChange::Remove(_) => Ok(None),
            ServerChange::Add(body) => {
                let missing = || format_error("missing \"server\" argument");
                let address = body.get("server").ok_or_else(missing)?;
                let mut server = self.resolve(address)?;
                set_parameters(&mut server, group, body, true)?;
                Ok(Some(server))
            }
            ServerChange::Change(id, body) => {
                let mut server = find(group.state(), *id)?;
                if let Some(address) = body.get("server") {
                    let found = self.resolve(address)?;
                    (server.name, server.addresses, server.resolve) =
                        (found.name, found.addresses, found.resolve);
                }
                set_parameters(&mut server, group, body, false)?;
                Ok(Some(server))
            }
        }
    }

    /// The server with an address, or with a name that the system knows. Blocks.
    fn resolve(&self, address: &Value) -> Result<UpstreamServer, ApiFailure> {
        let bad = |why: String| ApiFailure::new(400, "UpstreamBadAddress", why);
        let text = address
            .as_str()
            .ok_or_else(|| format_error("invalid \"server\" value"))?;
        // It becomes a line of a file.
        if !is_word(text) {
            return Err(bad(format!("invalid address \"{}\"", text.escape_debug())));
        }
        let parsed = HostPort::parse_peer(text.as_bytes())
            .map_err(|why| bad(format!("{why} in server \"{text}\"")))?;
        let needs_port =
            self.kind == GroupKind::Stream && !matches!(parsed.host, AddressHost::Unix(_));
        if needs_port && parsed.port.is_none() {
            return Err(bad(format!("no port in server \"{text}\"")));
        }
        let server = upstream_state::resolved_server(text.as_bytes()).map_err(bad)?;
        if server.addresses.is_empty() {
            return Err(bad(format!("host not found in server \"{text}\"")));
        }
        Ok(server)
    }
}

/// Whether a text is one word of a configuration, without signs that mean something there.
fn is_word(text: &str) -> bool {
    let is_plain = |sign: char| sign.is_ascii_graphic() && !"#;{}\"'\\$".contains(sign);
    !text.is_empty() && text.chars().all(is_plain)
}

fn find(state: &GroupState, id: u32) -> Result<UpstreamServer, ApiFailure> {
    let servers = state.servers().into_iter();
    let mut servers = servers.filter(|(known, _)| *known == id);
    servers.next().map(|(_, server)| server).ok_or(NO_SERVER)
}

fn format_error(text: impl Into<String>) -> ApiFailure {
    ApiFailure::new(400, "UpstreamConfFormatError", text)
}

/// Sets what a body says besides the address.
fn set_parameters(
    server: &mut UpstreamServer,
    group: &UpstreamGroup,
    body: &Map<String, Value>,
    is_new: bool,
) -> Result<(), ApiFailure> {
    for (name, value) in body {
        if value.is_object() || value.is_array() {
            return Err(format_error("nested object or list"));
        }
        let invalid = |code| ApiFailure::new(400, code, format!("invalid \"{name}\" value"));
        let number = |code| {
            let text = value.as_str().map(str::to_owned);
            let text = text.unwrap_or_else(|| value.to_string());
            let number = parse::number(text.as_bytes());
            number
                .and_then(|number| u32::try_from(number).ok())
                .ok_or_else(|| invalid(code))
        };
        let time = |code| {
            let text = value.as_str().map(str::to_owned);
            let text = text.unwrap_or_else(|| value.to_string());
            base::units::parse_millis(text.as_bytes()).ok_or_else(|| invalid(code))
        };
        let flag = || {
            value
                .as_bool()
                .ok_or_else(|| invalid("UpstreamConfFormatError"))
        };
        match name.as_str() {
            "server" => {}
            "weight" => {
                let weight = number("UpstreamBadWeight")?;
                if weight == 0 {
                    return Err(invalid("UpstreamBadWeight"));
                }
                server.weight = weight;
            }
            "max_conns" => server.max_conns = number("UpstreamBadMaxConns")?,
            "max_fails" => server.max_fails = number("UpstreamBadMaxFails")?,
            "fail_timeout" => server.fail_timeout = time("UpstreamBadFailTimeout")?,
            "slow_start" => server.slow_start = time("UpstreamBadSlowStart")?,
            "route" => {
                let route = value.as_str().ok_or_else(|| invalid("UpstreamBadRoute"))?;
                if route.len() > MAX_SERVER_ID || !(route.is_empty() || is_word(route)) {
                    let text = format!("route is longer than {MAX_SERVER_ID}, or no word");
                    return Err(ApiFailure::new(400, "UpstreamBadRoute", text));
                }
                server.route = route.into();
            }
            "backup" if is_new => {
                server.backup = flag()?;
                if server.backup && !group.settings.method().takes_backup() {
                    let name = group.name();
                    let text = format!("upstream \"{name}\" has no backup");
                    return Err(ApiFailure::new(400, "UpstreamNoBackup", text));
                }
            }
            "down" => set_state(server, flag()?, ServerState::Down),
            "drain" => set_state(server, flag()?, ServerState::Drain),
            _ => return Err(format_error(format!("unknown parameter \"{name}\""))),
        }
    }
    Ok(())
}

/// Puts a server into a state, or takes it out of it.
fn set_state(server: &mut UpstreamServer, is_set: bool, state: ServerState) {
    if is_set {
        server.state = state;
    } else if server.state == state {
        server.state = ServerState::Up;
    }
}

/// Makes the change of one process, and writes the file.
fn apply(
    group: &Arc<UpstreamGroup>,
    change: &UpstreamChange,
    server: Option<UpstreamServer>,
) -> Result<MadeChange, ApiFailure> {
    let state = group.state();
    let (action, id, former) = match (&change.what, &server) {
        (ServerChange::Add(_), Some(server)) => {
            let known = state.servers();
            if known.iter().any(|(_, known)| known.name == server.name) {
                return Err(ApiFailure::fixed(409, "EntryExists", "entry exists"));
            }
            let id = state.add_server(server.clone()).map_err(|TooManyServers| {
                ApiFailure::fixed(400, "UpstreamOutOfMemory", "too many servers")
            })?;
            ("add", id, None)
        }
        (ServerChange::Change(id, _), Some(server)) => {
            let former = find(state, *id)?;
            state.replace_server(*id, server.clone());
            ("change", *id, Some(former))
        }
        (ServerChange::Remove(id) | ServerChange::Change(id, _), _) => {
            let former = find(state, *id)?;
            state.remove_server(*id);
            ("remove", *id, Some(former))
        }
        (ServerChange::Add(_), None) => return Err(format_error("missing \"server\" argument")),
    };
    if let Err(error) = write_state(group) {
        match (action, former) {
            ("add", _) => drop(state.remove_server(id)),
            ("change", Some(former)) => drop(state.replace_server(id, former)),
            // It comes back under another number, which the error below makes the client ask for.
            (_, Some(former)) => drop(state.add_server(former)),
            _ => {}
        }
        let text = format!("the state of the upstream could not be written: {error}");
        return Err(ApiFailure::new(500, "StateWriteError", text));
    }
    let value = match &server {
        Some(server) => upstreams::server_value(id, server),
        None => upstreams::servers_value(group),
    };
    Ok(MadeChange {
        value,
        added: (action == "add").then_some(id),
        message: message(change, action, id, server.as_ref()),
    })
}

/// Writes the file of a group that has one.
fn write_state(group: &UpstreamGroup) -> std::io::Result<()> {
    let Some(path) = &group.settings.state_file else {
        return Ok(());
    };
    let servers = group.state().servers();
    let text = upstream_state::servers_text(servers.iter().map(|(_, server)| server));
    upstream_state::replace_file(path, text.as_bytes())
}

/// A change for another worker group: with the addresses, so that it need not ask for names.
fn message(
    change: &UpstreamChange,
    action: &str,
    id: u32,
    server: Option<&UpstreamServer>,
) -> Value {
    let addresses = server.map(|server| {
        let addresses = server.addresses.iter();
        addresses.map(ToString::to_string).collect::<Vec<_>>()
    });
    json!({
        "stream": change.kind == GroupKind::Stream,
        "group": change.group,
        "action": action,
        "id": id,
        "line": server.map(|server| upstream_state::servers_text(std::iter::once(server))),
        "addresses": addresses,
    })
}

/// Makes a change that another worker group has made, which has written the file.
pub(super) fn make_as_told(view: &StatusView, change: &[u8]) -> Option<Vec<u8>> {
    let change: Value = serde_json::from_slice(change).ok()?;
    let kind = match change["stream"].as_bool()? {
        true => GroupKind::Stream,
        false => GroupKind::Http,
    };
    let group = kind.find(view, change["group"].as_str()?)?;
    let id = u32::try_from(change["id"].as_u64()?).ok()?;
    let server = || -> Option<UpstreamServer> {
        let addresses = change["addresses"].as_array()?.iter();
        let addresses = addresses.map(|address| {
            let parsed = HostPort::parse_peer(address.as_str()?.as_bytes()).ok()?;
            net::upstream::peer_address(&parsed, 80)
        });
        let addresses: Option<Vec<SocketAddress>> = addresses.collect();
        upstream_state::read_known_server(change["line"].as_str()?.as_bytes(), addresses?)
    };
    let state = group.state();
    match change["action"].as_str()? {
        "add" => drop(state.add_server(server()?)),
        "change" => drop(state.replace_server(id, server()?)),
        _ => drop(state.remove_server(id)),
    }
    Some(groups::done())
}
