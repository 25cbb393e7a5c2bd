//! The search for a location, as the search itself tells it.

use std::rc::Rc;

use bstr::BString;

use super::notes::{ExplainNotes, StepResult};
use crate::http_site::{HttpSite, LocationId, LocationKind};
use crate::location_tree::LocationTree;
use crate::route::SearchObserver;

/// Why a location was chosen or not.
#[derive(Clone, Copy)]
enum SearchVerdict {
    Exact,
    LongestPrefix,
    ShorterPrefix,
    AddsSlash,
    Matches,
    MatchesNot,
    NotTried,
}

/// Collects what is considered.
pub(super) struct LocationSearchNotes {
    site: Rc<HttpSite>,
    path: BString,
    considered: Vec<(LocationId, SearchVerdict)>,
}

impl LocationSearchNotes {
    pub(super) fn new(site: &Rc<HttpSite>, path: BString) -> LocationSearchNotes {
        LocationSearchNotes {
            site: Rc::clone(site),
            path,
            considered: Vec::new(),
        }
    }

    fn add(&mut self, location: LocationId, verdict: SearchVerdict) {
        self.considered.push((location, verdict));
    }

    /// Writes the steps. The location that wins is the last one that could.
    pub(super) fn tell(self, notes: &mut ExplainNotes) {
        let can_win = |verdict: SearchVerdict| {
            matches!(
                verdict,
                SearchVerdict::Exact
                    | SearchVerdict::LongestPrefix
                    | SearchVerdict::AddsSlash
                    | SearchVerdict::Matches
            )
        };
        let winner = self
            .considered
            .iter()
            .rposition(|(_, verdict)| can_win(*verdict));
        for (index, (id, verdict)) in self.considered.iter().enumerate() {
            let location = self.site.location(*id);
            let why = match verdict {
                SearchVerdict::Exact => "has exactly this path",
                SearchVerdict::LongestPrefix => "longest prefix",
                SearchVerdict::ShorterPrefix => "shorter prefix",
                SearchVerdict::AddsSlash => "the path with a slash",
                SearchVerdict::Matches => "matches",
                SearchVerdict::MatchesNot => "does not match",
                SearchVerdict::NotTried => "not tried",
            };
            let result = match Some(index) == winner {
                true => StepResult::Applies,
                false => StepResult::Passes,
            };
            let line = notes.tree.block(*id);
            let place = line.as_ref().and_then(|line| line.place.clone());
            let text = match line {
                Some(line) => line.text,
                None => format!("location {}{}", kind_sign(&location.kind), location.name).into(),
            };
            notes.step("location", result, format!("{text}: {why}"), place);
        }
        if winner.is_none() {
            let text = format!("none has {}: the server's own level", self.path);
            notes.step("location", StepResult::Applies, text, None);
        }
    }
}

impl SearchObserver for LocationSearchNotes {
    fn exact(&mut self, location: LocationId) {
        self.add(location, SearchVerdict::Exact);
    }

    fn prefix(&mut self, tree: &LocationTree, longest: Option<LocationId>) {
        for location in tree.prefixes_of(&self.path).into_iter().rev() {
            let verdict = match Some(location) == longest {
                true => SearchVerdict::LongestPrefix,
                false => SearchVerdict::ShorterPrefix,
            };
            self.add(location, verdict);
        }
    }

    fn adds_slash(&mut self, location: LocationId) {
        self.add(location, SearchVerdict::AddsSlash);
    }

    fn regexes(&mut self, tree: &LocationTree, first: Option<LocationId>) {
        for location in tree.all_regexes() {
            if Some(location) == first {
                return self.add(location, SearchVerdict::Matches);
            }
            self.add(location, SearchVerdict::MatchesNot);
        }
    }

    fn regexes_skipped(&mut self, tree: &LocationTree) {
        for location in tree.all_regexes() {
            self.add(location, SearchVerdict::NotTried);
        }
    }
}

/// How a location is written.
fn kind_sign(kind: &LocationKind) -> &'static str {
    match kind {
        LocationKind::Exact => "= ",
        LocationKind::Prefix { regexes: false } => "^~ ",
        LocationKind::Regex(_) => "~ ",
        LocationKind::Prefix { regexes: true } | LocationKind::Named | LocationKind::Unnamed => "",
    }
}
