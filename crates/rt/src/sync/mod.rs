//! Ways for tasks to wait for each other: on one loop ([`Notify`], [`oneshot`], [`mpsc`]), and from
//! other threads ([`remote_oneshot`]).

pub mod mpsc;
mod notify;
pub mod oneshot;
pub mod remote_oneshot;

pub use notify::{Notified, Notify};

/// The other side is gone and will send nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChannelClosed;

impl std::fmt::Display for ChannelClosed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the other side is gone")
    }
}

impl std::error::Error for ChannelClosed {}
