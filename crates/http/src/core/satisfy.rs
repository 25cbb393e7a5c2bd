//! The value of `satisfy`.

/// How the decisions of the access handlers are combined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Satisfy {
    /// All of them must allow the request.
    #[default]
    All,
    /// One that allows it is enough.
    Any,
}
