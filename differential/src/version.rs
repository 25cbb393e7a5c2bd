//! Versions of nginx, and ranges of them.

use std::fmt;

/// A version of nginx.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u16, pub u16, pub u16);

impl Version {
    /// The version behind `nginx/` in what `-v` says.
    pub fn find(said: &str) -> Option<Version> {
        // Weir under its own name says `(nginx 1.31.5 compatible)`.
        let (_, rest) = said
            .split_once("nginx/")
            .or_else(|| said.split_once("(nginx "))?;
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.');
        let mut numbers = rest[..end.unwrap_or(rest.len())].split('.');
        let mut next = || numbers.next()?.parse().ok();
        Some(Version(next()?, next()?, next()?))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{}.{}", self.0, self.1, self.2)
    }
}
