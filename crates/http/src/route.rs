//! From a host to a server, and from a path to a location.
//!
//! Both follow nginx: of the server names an exact one wins over the longest wildcard at the front, that over the
//! longest wildcard at the end, that over the first regular expression
//! (<https://nginx.org/en/docs/http/server_names.html>). Of the locations an exact one wins, then the first matching
//! regular expression unless the longest prefix was written with `^~`, then the longest prefix
//! (<https://nginx.org/en/docs/http/ngx_http_core_module.html#location>).

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use bstr::{BStr, BString, ByteSlice};

use crate::pattern::Pattern;
use crate::request::Request;
use crate::site::{Frozen, LocationId, LocationKind, ServerId};

/// The locations of one level, ready to be searched.
#[derive(Default)]
pub struct Tree {
    /// Sorted by text.
    exact: Vec<(BString, LocationId)>,
    /// Sorted by text. A prefix of a path is either the last entry not after the path or a prefix of that entry.
    prefixes: Vec<Prefix>,
    regexes: Vec<(Arc<Pattern>, LocationId)>,
}

struct Prefix {
    text: BString,
    location: LocationId,
    /// The longest entry that is a proper prefix of this one.
    shorter: Option<usize>,
}

impl Tree {
    /// Builds the tree of locations given in the order of the configuration.
    pub fn build<'a>(
        locations: impl Iterator<Item = (&'a BStr, &'a LocationKind, LocationId)>,
    ) -> Tree {
        let mut tree = Tree::default();
        for (name, kind, id) in locations {
            match kind {
                LocationKind::Exact => {
                    tree.exact.push((name.to_owned(), id));
                }
                LocationKind::Prefix { .. } => {
                    tree.prefixes.push(Prefix {
                        text: name.to_owned(),
                        location: id,
                        shorter: None,
                    });
                }
                LocationKind::Regex(pattern) => tree.regexes.push((Arc::clone(pattern), id)),
                LocationKind::Named | LocationKind::Unnamed => {}
            }
        }
        tree.exact.sort_by(|a, b| a.0.cmp(&b.0));
        tree.prefixes.sort_by(|a, b| a.text.cmp(&b.text));
        for index in 1..tree.prefixes.len() {
            let mut candidate = Some(index - 1);
            while let Some(at) = candidate
                && !tree.prefixes[index]
                    .text
                    .starts_with(&tree.prefixes[at].text)
            {
                candidate = tree.prefixes[at].shorter;
            }
            tree.prefixes[index].shorter = candidate;
        }
        tree
    }

    fn longest_prefix(&self, path: &[u8]) -> Option<LocationId> {
        let after = self
            .prefixes
            .partition_point(|prefix| prefix.text.as_slice() <= path);
        let mut candidate = after.checked_sub(1);
        while let Some(at) = candidate {
            let prefix = &self.prefixes[at];
            if path.starts_with(&prefix.text) {
                return Some(prefix.location);
            }
            candidate = prefix.shorter;
        }
        None
    }

    /// A prefix location that is `path` with a slash added.
    fn with_slash(&self, path: &[u8]) -> Option<LocationId> {
        let at = self
            .prefixes
            .partition_point(|prefix| prefix.text.as_slice() <= path);
        let prefix = self.prefixes[at..].iter().find(|prefix| {
            prefix.text.len() == path.len() + 1
                && prefix.text.starts_with(path)
                && prefix.text.ends_with(b"/")
        })?;
        Some(prefix.location)
    }
}

/// What the search for a location found.
pub enum Found {
    /// The request belongs here.
    Location(LocationId),
    /// The path without its last slash names a location that hands everything to an upstream: the client is sent to
    /// the path with the slash.
    AddSlash(LocationId),
}

/// The location for the request's path; the server's own level when none matches.
pub fn find(request: &mut Request) -> Found {
    let site = Rc::clone(&request.site);
    let server = site.server(request.server);
    let mut chosen = server.root;
    let path = std::mem::take(&mut request.uri.path);
    let found = search(&site, &server.tree, path.as_bstr(), &mut chosen, request);
    request.uri.path = path;
    match found {
        Search::Done | Search::Prefix | Search::Nothing => Found::Location(chosen),
        Search::AddSlash(location) => Found::AddSlash(location),
    }
}

enum Search {
    /// An exact or regular-expression match: nothing else can win.
    Done,
    /// A prefix matched.
    Prefix,
    Nothing,
    AddSlash(LocationId),
}

fn search(
    site: &Frozen,
    tree: &Tree,
    path: &BStr,
    chosen: &mut LocationId,
    request: &mut Request,
) -> Search {
    if let Ok(at) = tree
        .exact
        .binary_search_by(|(name, _)| name.as_slice().cmp(path))
    {
        *chosen = tree.exact[at].1;
        return Search::Done;
    }
    let mut result = Search::Nothing;
    let mut regexes = true;
    if let Some(location) = tree.longest_prefix(path) {
        *chosen = location;
        result = Search::Prefix;
        let here = site.location(location);
        if let LocationKind::Prefix { regexes: allowed } = here.kind {
            regexes = allowed;
        }
        match search(site, &here.tree, path, chosen, request) {
            Search::Nothing | Search::Prefix => {}
            decided => return decided,
        }
    }
    if let Some(location) = tree.with_slash(path)
        && site.location(location).adds_slash
    {
        return Search::AddSlash(location);
    }
    if regexes {
        for (pattern, location) in &tree.regexes {
            if request.matches(pattern, path) {
                *chosen = *location;
                let inside = search(site, &site.location(*location).tree, path, chosen, request);
                return if let Search::AddSlash(_) = inside {
                    inside
                } else {
                    Search::Done
                };
            }
        }
    }
    result
}

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
