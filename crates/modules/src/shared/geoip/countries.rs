//! The countries of the databases: a database has the number of a line of `countries.txt`.
//!
//! The list is part of the format, and ended with it: states that have changed their names since have their old ones here.

use std::sync::LazyLock;

/// A country, or what the databases have in place of one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Country {
    /// ISO 3166-1: two letters.
    pub(crate) code: &'static str,
    /// ISO 3166-1: three letters.
    pub(crate) code3: &'static str,
    pub(crate) continent: &'static str,
    pub(crate) name: &'static str,
}

impl Country {
    /// The country with a number of a database.
    pub(crate) fn numbered(number: usize) -> Option<&'static Country> {
        COUNTRIES.get(number)
    }

    /// The name in UTF-8. One country has letters in its name that are not in ASCII.
    pub(crate) fn utf8_name(&self) -> &'static str {
        match self.code {
            "CW" => "Cura\u{e7}ao",
            _ => self.name,
        }
    }
}

/// In the order of their numbers; read when a database is first asked.
static COUNTRIES: LazyLock<Vec<Country>> = LazyLock::new(|| {
    let lines = include_str!("countries.txt").lines();
    lines
        .map(|line| {
            let mut words = line.splitn(4, ' ');
            let mut next = || words.next().unwrap_or_default();
            Country {
                code: next(),
                code3: next(),
                continent: next(),
                name: next(),
            }
        })
        .collect()
});
