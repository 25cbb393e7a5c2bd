//! Which server takes commands: the first of a list that is a master, the one that Sentinel names, or the one that a Redis
//! Cluster has sent us to.

use std::net::SocketAddr;
use std::sync::Arc;

use bstr::ByteSlice;

use super::client::RedisFault;
use super::connection::{ConnectionPurpose, RedisCommand, RedisConnection};
use super::reply::{RedisReply, elements_of, number_of, text_of};
use super::settings::{RedisServer, RedisSettings};
use crate::resolver::Resolver;

/// Connects to the server that takes commands. `redirected`: where a Redis Cluster has sent us.
pub(super) async fn connect_to_master(
    settings: &RedisSettings,
    resolver: &Arc<Resolver>,
    redirected: Option<&RedisServer>,
) -> Result<RedisConnection, RedisFault> {
    let found = match (&settings.sentinel, redirected) {
        (Some(name), _) => vec![ask_sentinel(settings, resolver, name).await?],
        (None, Some(server)) => vec![server.clone()],
        (None, None) => settings.servers.clone(),
    };
    let mut last = RedisFault::Away("no server is named".to_owned());
    for server in &found {
        match open(settings, resolver, server, ConnectionPurpose::Data).await {
            Ok(mut connection) => match check_role(&mut connection, settings).await {
                Ok(()) => return Ok(connection),
                Err(fault) => last = fault,
            },
            Err(fault) => last = fault,
        }
    }
    Err(last)
}

/// Sends one command to the server that a Redis Cluster has named for it, while its slot is on the way there (`ASK`). Not all
/// commands go there: what has not moved yet is still at the former server.
pub(super) async fn ask_elsewhere(
    settings: &RedisSettings,
    resolver: &Arc<Resolver>,
    server: &RedisServer,
    command: &RedisCommand,
) -> Result<RedisReply, RedisFault> {
    let mut connection = open(settings, resolver, server, ConnectionPurpose::Data).await?;
    let commands = [RedisCommand::new("ASKING"), command.clone()];
    let mut replies = connection.exchange(&commands, settings.timeout).await?;
    let none = || RedisFault::Away("a reply is missing".to_owned());
    replies.pop().ok_or_else(none)
}

/// Opens a connection to the first address of a server that accepts one.
async fn open(
    settings: &RedisSettings,
    resolver: &Arc<Resolver>,
    server: &RedisServer,
    purpose: ConnectionPurpose,
) -> Result<RedisConnection, RedisFault> {
    let found = resolver.lookup_host(&server.host, settings.timeout).await;
    let addresses = found.map_err(|error| {
        RedisFault::Away(format!("{} could not be resolved ({error})", server.host))
    })?;
    let name = server.host.to_str_lossy();
    let mut last = RedisFault::Away(format!("{server} has no address"));
    for ip in addresses {
        let address = SocketAddr::new(ip, server.port);
        match RedisConnection::open(address, &name, settings, purpose).await {
            Ok(connection) => return Ok(connection),
            Err(fault) => last = fault,
        }
    }
    Err(last)
}

/// A replica takes no writes, and what it has may be old.
async fn check_role(
    connection: &mut RedisConnection,
    settings: &RedisSettings,
) -> Result<(), RedisFault> {
    let replies = connection
        .exchange(&[RedisCommand::new("ROLE")], settings.timeout)
        .await?;
    match replies.first() {
        Some(RedisReply::Array(role)) => match role.first().and_then(text_of) {
            Some(b"master") => Ok(()),
            _ => Err(RedisFault::Away("it is a replica".to_owned())),
        },
        // An access control list may forbid the question: the first write tells.
        Some(RedisReply::Error(why)) if why.starts_with("NOPERM") => Ok(()),
        Some(RedisReply::Error(why)) => Err(RedisFault::Away(why.clone())),
        _ => Err(RedisFault::Away(
            "it does not say whether it is a master".to_owned(),
        )),
    }
}

/// Asks the sentinels, one after the other, for the master of this name.
async fn ask_sentinel(
    settings: &RedisSettings,
    resolver: &Arc<Resolver>,
    name: &[u8],
) -> Result<RedisServer, RedisFault> {
    let question = RedisCommand::new("SENTINEL get-master-addr-by-name").arg(name);
    let mut last = RedisFault::Away("no sentinel is named".to_owned());
    for server in &settings.servers {
        let asked = async {
            let mut connection =
                open(settings, resolver, server, ConnectionPurpose::Sentinel).await?;
            connection
                .exchange(std::slice::from_ref(&question), settings.timeout)
                .await
        };
        match asked.await {
            Ok(replies) => match replies.first().and_then(address_of) {
                Some(master) => return Ok(master),
                None => last = RedisFault::Away(format!("{server} knows no master of this name")),
            },
            Err(fault) => last = fault,
        }
    }
    Err(last)
}

/// The address in Sentinel's answer.
fn address_of(reply: &RedisReply) -> Option<RedisServer> {
    let [host, port] = elements_of(reply) else {
        return None;
    };
    Some(RedisServer {
        host: text_of(host)?.into(),
        port: u16::try_from(number_of(port)?).ok()?,
    })
}
