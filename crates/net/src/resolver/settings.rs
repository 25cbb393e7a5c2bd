//! What the `resolver` directive says.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use base::units;
use bstr::{BStr, BString, ByteSlice};
use conf::{Diagnostic, DirectiveLine};
use rt::net::SocketAddress;

use crate::upstream::lookup_configured;

/// Where DNS servers listen.
const PORT: u16 = 53;

/// How many names of `/etc/hosts` are kept. Block lists there have hundreds of thousands; names beyond the limit
/// are asked for over DNS.
const MAX_HOSTS: usize = 16_384;

/// Where the system keeps the addresses of its resolvers, and names of its own.
const RESOLV_CONF: &str = "/etc/resolv.conf";
const HOSTS: &str = "/etc/hosts";

/// What the `resolver` directive says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolverSettings {
    /// The servers, asked in turn.
    pub servers: Vec<SocketAddress>,
    /// How long answers hold, whatever their own TTL says.
    pub valid: Option<Duration>,
    /// Whether IPv4 addresses are asked for.
    pub ipv4: bool,
    /// Whether IPv6 addresses are asked for.
    pub ipv6: bool,
    /// Names in lower case that are answered without DNS, IPv4 first. Only the system's resolver has any.
    pub hosts: HashMap<BString, Vec<IpAddr>>,
    /// The zone under whose name it counts (`status_zone=`).
    pub status_zone: Option<String>,
}

impl Default for ResolverSettings {
    /// No servers: nothing can be resolved.
    fn default() -> Self {
        ResolverSettings {
            servers: Vec::new(),
            valid: None,
            ipv4: true,
            ipv6: true,
            hosts: HashMap::new(),
            status_zone: None,
        }
    }
}

impl ResolverSettings {
    /// Reads the system's own settings. It reads files, so not on a loop.
    pub(crate) fn read_system() -> ResolverSettings {
        // A missing file is an empty one, as for the C library.
        let read = |path| std::fs::read(path).unwrap_or_default();
        ResolverSettings::of_system(&read(RESOLV_CONF), &read(HOSTS))
    }

    /// Reads the words of `resolver address … [valid=time] [ipv4=on|off] [ipv6=on|off] [status_zone=zone]`.
    pub fn from_line(line: &mut DirectiveLine) -> Result<ResolverSettings, Diagnostic> {
        let mut settings = ResolverSettings::default();
        for (index, word) in line.args().iter().enumerate() {
            let invalid = || line.error_at(index, format!("invalid parameter: {}", word.text));
            match word.text.split_once_str("=") {
                Some((b"valid", time)) => {
                    settings.valid = Some(units::parse_seconds(time).ok_or_else(invalid)?);
                }
                Some((b"ipv4", text)) => {
                    settings.ipv4 = conf::parse::flag(text).ok_or_else(invalid)?
                }
                Some((b"ipv6", text)) => {
                    settings.ipv6 = conf::parse::flag(text).ok_or_else(invalid)?
                }
                Some((b"status_zone", zone)) if !zone.is_empty() => {
                    settings.status_zone = Some(zone.to_str_lossy().into_owned());
                }
                _ => settings.add_server(line, index)?,
            }
        }
        if !settings.ipv4 && !settings.ipv6 {
            return Err(line.error("\"ipv4\" and \"ipv6\" cannot both be \"off\""));
        }
        if settings.servers.is_empty() {
            return Err(line.error("no name servers defined"));
        }
        Ok(settings)
    }

    fn add_server(&mut self, line: &DirectiveLine, index: usize) -> Result<(), Diagnostic> {
        let text = line.text(index);
        let in_resolver = |why: &str| line.error_at(index, format!("{why} in resolver \"{text}\""));
        let address = conf::HostPort::parse_peer(text).map_err(in_resolver)?;
        let found = lookup_configured(&address, PORT);
        if found.addresses.is_empty() {
            // Unlike an upstream's, a resolver's own name cannot be resolved later: there is no server to ask.
            return Err(in_resolver("host not found"));
        }
        self.servers.extend(found.addresses);
        Ok(())
    }

    /// The settings of the system, from `/etc/resolv.conf` and `/etc/hosts`, for names that have to be resolved
    /// although no `resolver` is configured. `localhost` is always known (RFC 6761, section 6.3).
    pub fn of_system(resolv_conf: &[u8], hosts: &[u8]) -> ResolverSettings {
        let mut settings = ResolverSettings::default();
        for line in resolv_conf.lines() {
            let mut words = line.fields();
            if words.next() == Some(b"nameserver")
                && let Some(ip) = words.next().and_then(|word| address(word.as_bstr()))
            {
                settings
                    .servers
                    .push(SocketAddress::Inet(SocketAddr::new(ip, PORT)));
            }
        }
        for line in hosts.lines() {
            let said = line.split(|&byte| byte == b'#').next().unwrap_or_default();
            let mut words = said.fields();
            if let Some(ip) = words.next().and_then(|word| address(word.as_bstr())) {
                for name in words {
                    settings.add_host(name, ip);
                }
            }
        }
        let localhost = settings.hosts.entry("localhost".into()).or_default();
        if localhost.is_empty() {
            localhost.push(Ipv4Addr::LOCALHOST.into());
        }
        settings
    }

    fn add_host(&mut self, name: &[u8], ip: IpAddr) {
        let name = BString::from(name.to_ascii_lowercase());
        if self.hosts.len() >= MAX_HOSTS && !self.hosts.contains_key(&name) {
            return;
        }
        let known = self.hosts.entry(name).or_default();
        if !known.contains(&ip) {
            known.push(ip);
            // A stable sort: within a family, the file's order stays.
            known.sort_by_key(IpAddr::is_ipv6);
        }
    }
}

/// Addresses with a scope (`fe80::1%eth0`) are skipped: the address type here has no place for an interface.
fn address(word: &BStr) -> Option<IpAddr> {
    word.to_str().ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_says_whom_to_ask_and_what_it_knows() {
        let servers = b"# nameserver 9.9.9.9\nsearch lan\nnameserver 127.0.0.53\n nameserver\t::1\nnameserver x\n";
        let hosts = b"::1 A.example  # b\n10.0.0.1\ta.example a\n# 10.0.0.2 a\nx a\n10.0.0.1 a\n";
        let settings = ResolverSettings::of_system(servers, hosts);
        let texts: Vec<String> = settings.servers.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["127.0.0.53:53", "[::1]:53"]);
        let known = |name: &str| -> Vec<String> {
            let found = settings.hosts.get(name.as_bytes().as_bstr());
            found
                .into_iter()
                .flatten()
                .map(ToString::to_string)
                .collect()
        };
        assert_eq!(known("a.example"), ["10.0.0.1", "::1"]);
        assert_eq!(known("a"), ["10.0.0.1"]);
        assert_eq!(known("localhost"), ["127.0.0.1"]);
        assert_eq!(known("b").len() + known("x").len(), 0);
    }
}
