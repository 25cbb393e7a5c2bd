//! The names of virtual servers: parsing `server_name`, and finding the server for a name.
//!
//! The order is nginx's: an exact name, then the longest wildcard at the front, then the longest wildcard at the
//! end, then the first matching regular expression (<https://nginx.org/en/docs/http/server_names.html>). HTTP looks
//! up the host of a request here, TLS the name in a ClientHello.

use std::collections::HashMap;
use std::sync::Arc;

use bstr::{BStr, BString, ByteSlice};
use conf::{CapturingPattern, Diagnostic, DirectiveLine, PatternFilter};

/// The number of a server among those of its engine's configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ServerId(pub u32);

/// The servers that answer at one listening address, by name.
#[derive(Default)]
pub struct ServerNames {
    exact: HashMap<BString, ServerId>,
    /// Names that begin with `*.` or `.`: the part after the star, with its dot.
    front: HashMap<BString, ServerId>,
    /// Names that end in `.*`: the part before the star, with its dot.
    end: HashMap<BString, ServerId>,
    regexes: Vec<(Arc<CapturingPattern>, ServerId)>,
    /// Of `regexes`, once they are complete.
    filter: PatternFilter,
}

/// A server's name as it is configured.
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
    Regex(Arc<CapturingPattern>),
}

impl ServerName {
    /// Reads word `index` of a `server_name` line.
    fn parse(line: &mut DirectiveLine, index: usize) -> Result<ServerName, Diagnostic> {
        let word = line.arg(index).text.clone();
        let text = word.as_bstr();
        if let Some(pattern) = text.strip_prefix(b"~") {
            if pattern.is_empty() {
                return Err(line.error_at(index, format!("empty regex in server name \"{text}\"")));
            }
            // nginx's rule: hosts are compared in lower case, so a pattern with capitals could otherwise never
            // match.
            let caseless = pattern.iter().any(u8::is_ascii_uppercase);
            let pattern = CapturingPattern::compile(line, index, pattern, caseless)?;
            return Ok(ServerName::Regex(Arc::new(pattern)));
        }
        if text == "$hostname" {
            return Ok(ServerName::Exact(
                host::process::hostname().to_lowercase().into(),
            ));
        }
        let lower: BString = text.to_ascii_lowercase().into();
        let invalid = || format!("invalid server name or wildcard \"{text}\"");
        // One star, at one end, next to a dot: anything else is an error in nginx too, because the lookup below
        // could not find it.
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
        // Probably a URL. nginx warns and keeps the name.
        if lower.contains(&b'/') {
            line.warn(format!("server name \"{text}\" has suspicious symbols"));
        }
        Ok(ServerName::Exact(lower))
    }

    /// The value of `$server_name` for a name written as `word`: in lower case unless it is a regular expression,
    /// and without a leading dot.
    fn display(&self, word: &BString) -> BString {
        match self {
            ServerName::Regex(_) => word.clone(),
            ServerName::Below(text) => text[1..].into(),
            name => name.text(),
        }
    }

    /// The name as configured, in lower case.
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
    line: &mut DirectiveLine,
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
    /// Adds a server under a name. A name that another server has already stays with that one; returns whether this
    /// name is new.
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
                // Both halves are added even if one is taken: `.example.com` still covers what is free.
                let itself = claim(self.exact.entry(text[1..].into()));
                claim(self.front.entry(text.clone())) && itself
            }
            ServerName::Regex(regex) => {
                self.regexes.push((Arc::clone(regex), server));
                true
            }
        }
    }

    /// All names have been added.
    pub fn finish(&mut self) {
        self.filter = PatternFilter::new(self.regexes.iter().map(|(pattern, _)| &pattern.regex));
    }

    /// The server for a host (in lower case, without a port), and the regular expression if one matched: the caller
    /// sets the variables of its groups.
    pub fn find(&self, host: &BStr) -> Option<(ServerId, Option<&CapturingPattern>)> {
        if let Some(server) = self.exact.get(host) {
            return Some((*server, None));
        }
        // A request without a host can match only `server_name ""`, which is exact.
        if host.is_empty() {
            return None;
        }
        if !self.front.is_empty() {
            // From the left: the first dot leaves the longest suffix, and the longest wildcard wins.
            for at in host.find_iter(b".") {
                if at > 0
                    && let Some(server) = self.front.get(&host[at..])
                {
                    return Some((*server, None));
                }
            }
        }
        if !self.end.is_empty() {
            // From the right, for the longest prefix.
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
        let mut candidates = self.filter.candidates(host);
        candidates.find_map(|place| {
            let (pattern, server) = self.regexes.get(place)?;
            let is_match = pattern.regex.is_match(host);
            is_match.then_some((*server, Some(&**pattern)))
        })
    }

    /// Whether no name is known, so that every host selects the same server.
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
