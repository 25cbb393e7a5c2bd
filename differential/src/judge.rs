//! What an outcome means: nothing, differences that are known by a rule, or ones that are not.

use crate::batch::Outcome;
use crate::case::Case;
use crate::compare::{Difference, DifferencePlace, compare};
use crate::known::{CaseFacts, Reason, Rule, Seen};
use crate::version::Version;

/// A difference, with the rule that knows it.
#[derive(Clone, Debug)]
pub struct Judged {
    /// What differs.
    pub difference: Difference,
    /// The rule that matches.
    pub known: Option<&'static Rule>,
}

impl Judged {
    /// True where no rule knows it. A rule without a reason beyond ourselves is a name for what is open.
    pub fn is_open(&self) -> bool {
        self.known
            .is_none_or(|rule| matches!(rule.reason, Reason::Open(_)))
    }
}

/// All differences of an outcome.
pub fn judge(case: &Case, outcome: &Outcome, oracle: Version) -> Vec<Judged> {
    let (differences, sides) = match outcome {
        Outcome::Failed(_) => return Vec::new(),
        Outcome::Refused([a, b]) => (refusals(a.as_ref(), b.as_ref()), None),
        Outcome::Seen(seen) => (compare(&seen[0], &seen[1]), Some(seen.as_ref())),
    };
    let facts = CaseFacts::new(case);
    let judged = differences.into_iter().map(|difference| {
        let seen = Seen {
            case,
            facts: &facts,
            difference: &difference,
            sides,
            oracle,
        };
        let known = crate::known::find(&seen);
        Judged { difference, known }
    });
    judged.collect()
}

fn refusals(
    oracle: Option<&crate::side::server::Refusal>,
    weir: Option<&crate::side::server::Refusal>,
) -> Vec<Difference> {
    let said = |refusal: Option<&crate::side::server::Refusal>| {
        refusal.map_or("accepts it".to_owned(), |refusal| refusal.message.clone())
    };
    let class = match (oracle, weir) {
        (Some(a), Some(b)) if a.message == b.message || b.others.contains(&a.message) => {
            return Vec::new();
        }
        (Some(a), Some(b)) if a.line != b.line => {
            format!("refused for another line: {}", kind(&a.message))
        }
        (Some(a), Some(_)) => format!("refused with other words: {}", kind(&a.message)),
        (Some(a), None) => format!("refused by nginx alone: {}", kind(&a.message)),
        (None, Some(b)) => format!("refused by Weir alone: {}", kind(&b.message)),
        (None, None) => return Vec::new(),
    };
    vec![Difference {
        class,
        oracle: said(oracle),
        weir: said(weir),
        place: DifferencePlace::Case,
    }]
}

/// A message without the numbers in it, which vary from case to case.
pub fn kind(message: &str) -> String {
    let mut kind = String::new();
    for c in message.chars() {
        match c {
            '0'..='9' if kind.ends_with('#') => {}
            '0'..='9' => kind.push('#'),
            c => kind.push(c),
        }
    }
    kind
}
