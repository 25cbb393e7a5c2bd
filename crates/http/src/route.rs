//! From a host to a server, and from a path to a location.
//!
//! Both follow nginx. Hosts are looked up in [`net::server_name`]. Of the locations an exact one wins, then the first
//! matching regular expression unless the longest prefix was written with `^~`, then the longest prefix
//! (<https://nginx.org/en/docs/http/ngx_http_core_module.html#location>).

use std::rc::Rc;
use std::sync::Arc;

use bstr::{BStr, BString, ByteSlice as _};
use conf::Pattern;

use crate::request::Request;
use crate::site::{Frozen, LocationId, LocationKind};

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

    /// The location that is `path` with a slash added, if it asks for that slash: an exact one, or a prefix.
    fn with_slash(&self, path: &[u8], site: &Frozen) -> Option<LocationId> {
        // At every request: slices compare several times as fast as what iterators chain.
        let compare = |text: &BString| {
            let (head, tail) = text.split_at(text.len().min(path.len()));
            head.cmp(path).then_with(|| tail.cmp(b"/"))
        };
        let exact = self.exact.binary_search_by(|(text, _)| compare(text));
        let prefix = self
            .prefixes
            .binary_search_by(|prefix| compare(&prefix.text));
        let exact = exact.ok().map(|at| self.exact[at].1);
        let prefix = prefix.ok().map(|at| self.prefixes[at].location);
        let adds_slash = |id: &LocationId| site.location(*id).adds_slash;
        exact.filter(adds_slash).or(prefix.filter(adds_slash))
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
    let prefix = tree.longest_prefix(path);
    // As in nginx a location that is the path itself goes before one that is the path with a slash, and that one before
    // what is nested in a shorter prefix.
    let is_whole = |location: LocationId| site.location(location).name.len() == path.len();
    if !prefix.is_some_and(is_whole)
        && let Some(location) = tree.with_slash(path, site)
    {
        return Search::AddSlash(location);
    }
    let mut result = Search::Nothing;
    let mut regexes = true;
    if let Some(location) = prefix {
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

/// A server's name as the configuration has it.
pub type ServerName = net::server_name::ServerName<Pattern>;
