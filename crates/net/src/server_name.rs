//! The names of virtual servers: what `server_name` says, and which server a name leads to.
//!
//! As in nginx an exact name wins over the longest wildcard at the front, that over the longest wildcard at the end, that
//! over the first regular expression (<https://nginx.org/en/docs/http/server_names.html>). HTTP looks the host of a request
//! up here, TLS the name that a client hello asks for.

use std::collections::HashMap;
use std::sync::Arc;

use bstr::{BStr, BString, ByteSlice};
use conf::{Diagnostic, Line, Pattern};

/// The number of a server among those of its engine's configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ServerId(pub u32);

/// The servers that answer at one listening address, by name.
#[derive(Default)]
pub struct ServerNames {
    exact: HashMap<BString, ServerId>,
    /// Names that began with `*.` or `.`, by what follows the star, with its dot.
    front: HashMap<BString, ServerId>,
    /// Names that ended in `.*`, by what stands before the star, with its dot.
    end: HashMap<BString, ServerId>,
    regexes: Vec<(Arc<Pattern>, ServerId)>,
}

/// A server's name as the configuration has it.
#[derive(Clone, Debug)]
pub enum ServerName {
    /// `www.example.com`, or `""`
    Exact(BString),
    /// `*.example.com`; holds `.example.com`.
    Front(BString),
    /// `.example.com`: the name itself and everything below it; holds `.example.com`.
    Below(BString),
    /// `www.example.*`; holds `www.example.`.
    End(BString),
    /// `~pattern`
    Regex(Arc<Pattern>),
}

impl ServerName {
    /// Reads word `index` of a `server_name` line.
    fn parse(line: &mut Line, index: usize) -> Result<ServerName, Diagnostic> {
        let word = line.arg(index).text.clone();
        let text = word.as_bstr();
        if let Some(pattern) = text.strip_prefix(b"~") {
            if pattern.is_empty() {
                return Err(line.error_at(index, format!("empty regex in server name \"{text}\"")));
            }
            let caseless = pattern.iter().any(u8::is_ascii_uppercase);
            let pattern = Pattern::compile(line, index, pattern, caseless)?;
            return Ok(ServerName::Regex(Arc::new(pattern)));
        }
        if text == "$hostname" {
            return Ok(ServerName::Exact(
                host::process::hostname().to_lowercase().into(),
            ));
        }
        let lower: BString = text.to_ascii_lowercase().into();
        let invalid = || format!("invalid server name or wildcard \"{text}\"");
        let body = lower
            .strip_prefix(b"*")
            .or(lower.strip_suffix(b"*"))
            .unwrap_or(&lower);
        let stars = lower.iter().filter(|byte| **byte == b'*').count();
        if body.contains_str("..")
            || lower == "*"
            || lower == "."
            || stars > 1
            || body.contains(&b'*')
        {
            return Err(line.error_at(index, invalid()));
        }
        if let Some(rest) = lower.strip_prefix(b"*") {
            return match rest.starts_with(b".") {
                true => Ok(ServerName::Front(rest.into())),
                false => Err(line.error_at(index, invalid())),
            };
        }
        if let Some(rest) = lower.strip_suffix(b"*") {
            return match rest.ends_with(b".") {
                true => Ok(ServerName::End(rest.into())),
                false => Err(line.error_at(index, invalid())),
            };
        }
        if lower.starts_with(b".") {
            return Ok(ServerName::Below(lower));
        }
        if lower.contains(&b'/') {
            line.warn(format!("server name \"{text}\" has suspicious symbols"));
        }
        Ok(ServerName::Exact(lower))
    }

    /// What `$server_name` shows of a name that was written as `word`: in lower case, unless it is a pattern, and without
    /// the dot at its beginning.
    fn display(&self, word: &BString) -> BString {
        match self {
            ServerName::Regex(_) => word.clone(),
            ServerName::Below(text) => text[1..].into(),
            name => name.text(),
        }
    }

    /// As it was written, but for its case.
    pub fn text(&self) -> BString {
        match self {
            ServerName::Exact(text) | ServerName::Below(text) => text.clone(),
            ServerName::Front(text) => format!("*{text}").into(),
            ServerName::End(text) => format!("{text}*").into(),
            ServerName::Regex(pattern) => format!("~{}", pattern.regex.pattern()).into(),
        }
    }
}

/// Reads a `server_name` line: adds its names to those of the server, whose first one is what `$server_name` shows.
pub fn read(
    names: &mut Vec<ServerName>,
    first: &mut BString,
    line: &mut Line,
) -> Result<(), Diagnostic> {
    for index in 0..line.args().len() {
        let name = ServerName::parse(line, index)?;
        if names.is_empty() {
            *first = name.display(&line.arg(index).text);
        }
        names.push(name);
    }
    Ok(())
}

impl ServerNames {
    /// Adds a server under a name. The name of an earlier server stays; the answer is whether this one is new.
    pub fn add(&mut self, name: &ServerName, server: ServerId) -> bool {
        use std::collections::hash_map::Entry;
        let claim = |entry: Entry<'_, BString, ServerId>| match entry {
            Entry::Occupied(_) => false,
            Entry::Vacant(slot) => {
                slot.insert(server);
                true
            }
        };
        match name {
            ServerName::Exact(text) => claim(self.exact.entry(text.clone())),
            ServerName::Front(text) => claim(self.front.entry(text.clone())),
            ServerName::End(text) => claim(self.end.entry(text.clone())),
            ServerName::Below(text) => {
                let itself = claim(self.exact.entry(text[1..].into()));
                claim(self.front.entry(text.clone())) && itself
            }
            ServerName::Regex(regex) => {
                self.regexes.push((Arc::clone(regex), server));
                true
            }
        }
    }

    /// The server for a host (lower case, no port). With it comes the pattern that matched, if one did, so that the
    /// caller can set the variables of its groups.
    pub fn find(&self, host: &BStr) -> Option<(ServerId, Option<&Pattern>)> {
        if let Some(server) = self.exact.get(host) {
            return Some((*server, None));
        }
        if host.is_empty() {
            return None;
        }
        if !self.front.is_empty() {
            // The first dot leaves the longest rest.
            for at in host.find_iter(b".") {
                if at > 0
                    && let Some(server) = self.front.get(&host[at..])
                {
                    return Some((*server, None));
                }
            }
        }
        if !self.end.is_empty() {
            let mut rest: &[u8] = host;
            while let Some(at) = rest.rfind_byte(b'.') {
                if at + 1 < host.len()
                    && let Some(server) = self.end.get(&host[..=at])
                {
                    return Some((*server, None));
                }
                rest = &rest[..at];
            }
        }
        self.regexes
            .iter()
            .find(|(pattern, _)| pattern.regex.is_match(host))
            .map(|(pattern, server)| (*server, Some(&**pattern)))
    }

    /// Whether every host leads to the same server.
    pub fn is_empty(&self) -> bool {
        self.exact.is_empty()
            && self.front.is_empty()
            && self.end.is_empty()
            && self.regexes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_take_the_longest_rest() {
        let mut names = ServerNames::default();
        names.add(&ServerName::Front(".example.com".into()), ServerId(1));
        names.add(&ServerName::Front(".a.example.com".into()), ServerId(2));
        names.add(&ServerName::End("www.".into()), ServerId(3));
        names.add(&ServerName::End("www.example.".into()), ServerId(4));
        names.add(&ServerName::Below(".below.net".into()), ServerId(5));
        let find = |host: &str| names.find(host.into()).map(|(server, _)| server.0);
        assert_eq!(find("x.example.com"), Some(1));
        assert_eq!(find("x.a.example.com"), Some(2));
        assert_eq!(find("www.example.org"), Some(4));
        assert_eq!(find("www.other.org"), Some(3));
        assert_eq!(find("below.net"), Some(5));
        assert_eq!(find("x.y.below.net"), Some(5));
        assert_eq!(find("example.com"), None);
        assert_eq!(find(""), None);
    }
}
