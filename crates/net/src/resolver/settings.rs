//! What the `resolver` directive says.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use base::units;
use bstr::{BStr, ByteSlice};
use conf::{Diagnostic, Line};
use rt::net::Address;

use crate::upstream::lookup;

/// Where DNS servers listen.
const PORT: u16 = 53;

/// What the `resolver` directive says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The servers, asked in turn.
    pub servers: Vec<Address>,
    /// How long answers hold, whatever their own TTL says.
    pub valid: Option<Duration>,
    /// Whether IPv4 addresses are asked for.
    pub ipv4: bool,
    /// Whether IPv6 addresses are asked for.
    pub ipv6: bool,
}

impl Default for Settings {
    /// No servers: nothing can be resolved.
    fn default() -> Self {
        Settings {
            servers: Vec::new(),
            valid: None,
            ipv4: true,
            ipv6: true,
        }
    }
}

impl Settings {
    /// Reads the words of `resolver address … [valid=time] [ipv4=on|off] [ipv6=on|off] [status_zone=zone]`.
    pub fn from_line(line: &mut Line) -> Result<Settings, Diagnostic> {
        let mut settings = Settings::default();
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
                // Counters for the commercial nginx's API; taken so that such a configuration loads.
                Some((b"status_zone", _)) => {}
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

    fn add_server(&mut self, line: &Line, index: usize) -> Result<(), Diagnostic> {
        let text = line.text(index);
        let in_resolver = |why: &str| line.error_at(index, format!("{why} in resolver \"{text}\""));
        let address = conf::Address::peer(text).map_err(in_resolver)?;
        let found = lookup(&address, PORT);
        if found.addresses.is_empty() {
            // Unlike an upstream, a resolver can not be resolved later: there is nobody to ask.
            return Err(in_resolver("host not found"));
        }
        self.servers.extend(found.addresses);
        Ok(())
    }

    /// Reads what `/etc/resolv.conf` says, for names that are to be resolved though no `resolver` is configured.
    pub fn from_resolv_conf(text: &[u8]) -> Settings {
        let mut settings = Settings::default();
        for line in text.lines() {
            let mut words = line.fields();
            if words.next() == Some(b"nameserver")
                && let Some(ip) = words.next().and_then(|word| address(word.as_bstr()))
            {
                settings
                    .servers
                    .push(Address::Inet(SocketAddr::new(ip, PORT)));
            }
        }
        settings
    }
}

/// An address without a scope (`%eth0`), which there is no room for in a socket address of ours.
fn address(word: &BStr) -> Option<IpAddr> {
    word.to_str().ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolv_conf_lists_servers() {
        let text = b"# nameserver 9.9.9.9\nsearch lan\nnameserver 127.0.0.53\n nameserver\t::1\nnameserver x\n";
        let servers = Settings::from_resolv_conf(text).servers;
        let texts: Vec<String> = servers.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["127.0.0.53:53", "[::1]:53"]);
    }
}
