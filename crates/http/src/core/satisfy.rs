//! `satisfy`.

/// `satisfy`: how the access handlers' answers are combined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Satisfy {
    /// All must grant.
    #[default]
    All,
    /// One is enough.
    Any,
}
