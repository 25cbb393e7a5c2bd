//! The locations of one level (of a server or a nested location), and the search for the one that matches a path.

use std::sync::Arc;

use bstr::{BStr, BString};
use conf::{CapturingPattern, PatternFilter};

use crate::block_ids::LocationId;

/// How a location was written.
#[derive(Clone, Debug)]
pub enum LocationKind {
    /// `location /path`: `regexes` says whether regular expressions may still win over it (not so with `^~`).
    Prefix {
        /// Whether regular expressions are tried after it.
        regexes: bool,
    },
    /// `location = /path`
    Exact,
    /// `location ~ pattern` and `location ~* pattern`
    Regex(Arc<CapturingPattern>),
    /// `location @name`
    Named,
    /// An `if` or `limit_except` block, or a server's outermost level.
    Unnamed,
}

/// The locations of one level, ready to be searched.
#[derive(Default)]
pub struct LocationTree {
    /// Sorted by text.
    pub(crate) exact: Vec<(BString, LocationId)>,
    /// Sorted by text. Of the prefixes of a path the longest is either the last entry not after the path, or it is
    /// reached from that entry by the chain of shorter ones.
    prefixes: Vec<PrefixLocation>,
    regexes: Option<Box<RegexLocations>>,
    /// Bit `n % 64`: a name of `n` bytes ends with a slash. [`LocationTree::with_slash`] is asked for every request, and
    /// mostly this word is the answer.
    slashed_lengths: u64,
}

/// The locations with a regular expression, in the order of the configuration.
struct RegexLocations {
    list: Vec<(Arc<CapturingPattern>, LocationId)>,
    filter: PatternFilter,
}

struct PrefixLocation {
    text: BString,
    location: LocationId,
    /// The longest other entry that is a prefix of this one.
    shorter: Option<usize>,
}

impl LocationTree {
    /// Builds the tree of locations given in the order of the configuration.
    pub fn build<'a>(
        locations: impl Iterator<Item = (&'a BStr, &'a LocationKind, LocationId)>,
    ) -> LocationTree {
        let mut tree = LocationTree::default();
        let mut regexes = Vec::new();
        for (name, kind, id) in locations {
            if name.ends_with(b"/") {
                tree.slashed_lengths |= length_bit(name.len());
            }
            match kind {
                LocationKind::Exact => {
                    tree.exact.push((name.to_owned(), id));
                }
                LocationKind::Prefix { .. } => {
                    tree.prefixes.push(PrefixLocation {
                        text: name.to_owned(),
                        location: id,
                        shorter: None,
                    });
                }
                LocationKind::Regex(pattern) => regexes.push((Arc::clone(pattern), id)),
                LocationKind::Named | LocationKind::Unnamed => {}
            }
        }
        // There may be one of these lists for each of ten thousand servers.
        tree.exact.shrink_to_fit();
        tree.prefixes.shrink_to_fit();
        if !regexes.is_empty() {
            regexes.shrink_to_fit();
            let filter = PatternFilter::new(regexes.iter().map(|(pattern, _)| &pattern.regex));
            let list = regexes;
            tree.regexes = Some(Box::new(RegexLocations { list, filter }));
        }
        tree.exact.sort_by(|a, b| a.0.cmp(&b.0));
        tree.prefixes.sort_by(|a, b| a.text.cmp(&b.text));
        // In sorted order every prefix of an entry comes before it, and the nearest one is on the chain that starts at
        // the entry's predecessor. So the links are found without comparing all pairs.
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

    /// Whether there is no location in it.
    pub fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.prefixes.is_empty() && self.regexes.is_none()
    }

    /// The location with the longest prefix of the path: one binary search, then a walk along ever shorter prefixes.
    pub(crate) fn longest_prefix(&self, path: &[u8]) -> Option<LocationId> {
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

    /// The locations whose text is a prefix of the path, longest first.
    pub(crate) fn prefixes_of(&self, path: &[u8]) -> Vec<LocationId> {
        let matching = self.prefixes.iter();
        let mut matching: Vec<&PrefixLocation> = matching
            .filter(|prefix| path.starts_with(&prefix.text))
            .collect();
        matching.sort_by_key(|prefix| std::cmp::Reverse(prefix.text.len()));
        matching.iter().map(|prefix| prefix.location).collect()
    }

    /// All locations with regular expressions, in the order of the configuration.
    pub(crate) fn all_regexes(&self) -> impl Iterator<Item = LocationId> {
        let regexes = self.regexes.iter();
        regexes.flat_map(|regexes| regexes.list.iter().map(|(_, location)| *location))
    }

    /// The locations whose regular expressions can match the path. The first that does wins, not the best.
    pub(crate) fn regexes<'a>(
        &'a self,
        path: &'a [u8],
    ) -> impl Iterator<Item = &'a (Arc<CapturingPattern>, LocationId)> {
        let regexes = self.regexes.iter();
        regexes.flat_map(|regexes| {
            let candidates = regexes.filter.candidates(path);
            candidates.filter_map(|place| regexes.list.get(place))
        })
    }

    /// The location whose name is `path` plus a slash, if it asks for that slash: an exact one, or a prefix.
    pub(crate) fn with_slash(
        &self,
        path: &[u8],
        adds_slash: impl Fn(LocationId) -> bool,
    ) -> Option<LocationId> {
        if self.slashed_lengths & length_bit(path.len() + 1) == 0 {
            return None;
        }
        // Comparing slices is several times as fast as comparing chained iterators.
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
        exact
            .filter(|id| adds_slash(*id))
            .or(prefix.filter(|id| adds_slash(*id)))
    }
}

/// The bit of a name's length in `slashed_lengths`.
fn length_bit(length: usize) -> u64 {
    1 << (length % 64)
}
