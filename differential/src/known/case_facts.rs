//! What rules ask of a case again and again, found out once: some hundred of them ask for each difference.

use std::cell::OnceCell;

use crate::case::{Act, Case, text};

/// A case, with what is known of it.
#[derive(Debug)]
pub struct CaseFacts<'a> {
    case: &'a Case,
    directives: OnceCell<Vec<String>>,
    text: OnceCell<String>,
    said: OnceCell<Vec<Vec<String>>>,
}

impl<'a> CaseFacts<'a> {
    /// Nothing is found out yet.
    pub fn new(case: &'a Case) -> Self {
        Self {
            case,
            directives: OnceCell::new(),
            text: OnceCell::new(),
            said: OnceCell::new(),
        }
    }

    /// The case itself.
    pub fn case(&self) -> &'a Case {
        self.case
    }

    /// Its directives ([`Case::directives`]).
    pub(super) fn directives(&self) -> &[String] {
        self.directives.get_or_init(|| self.case.directives())
    }

    /// The case as it is printed.
    pub(super) fn text(&self) -> &str {
        self.text.get_or_init(|| text::print(self.case))
    }

    /// What each answer of a server behind sends, of all servers in their order.
    pub(super) fn said(&self) -> &[Vec<String>] {
        self.said.get_or_init(|| {
            let answers = self
                .case
                .upstreams
                .iter()
                .flat_map(|upstream| &upstream.answers);
            let texts = answers.map(|acts| {
                let texts = acts.iter().filter_map(|act| match act {
                    Act::Send(content) => {
                        Some(String::from_utf8_lossy(&content.bytes()).into_owned())
                    }
                    _ => None,
                });
                texts.collect()
            });
            texts.collect()
        })
    }
}
