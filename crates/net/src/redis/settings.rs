//! Where Redis is, and who this server is to it.

use std::fmt;
use std::time::Duration;

use bstr::BString;

use crate::upstream::UpstreamTls;

/// A server by its name or address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisServer {
    /// A name or an address.
    pub host: BString,
    /// The port.
    pub port: u16,
}

/// What a `redis` line says.
#[derive(Clone)]
pub struct RedisSettings {
    /// The servers: tried in this order, or those of Sentinel.
    pub servers: Vec<RedisServer>,
    /// The name of the master by which Sentinel is asked; `None`: the servers are Redis themselves.
    pub sentinel: Option<BString>,
    /// The user of an access control list.
    pub user: Option<BString>,
    /// Its password.
    pub password: Option<BString>,
    /// The number of the database.
    pub database: u32,
    /// Connections are encrypted, to Sentinel as well.
    pub tls: Option<UpstreamTls>,
    /// How long a reply may take. A server that is slower counts as gone.
    pub timeout: Duration,
    /// What all keys begin with, in braces: the hash tag.
    pub prefix: BString,
}

impl fmt::Debug for RedisSettings {
    // Not derived: the password stays out of messages.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisSettings")
            .field("servers", &self.servers)
            .field("sentinel", &self.sentinel)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for RedisServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(&b':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl RedisSettings {
    /// A key of this cluster.
    pub fn key(&self, name: &str) -> String {
        format!("{{{}}}:{name}", self.prefix)
    }
}
