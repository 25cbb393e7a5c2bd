//! The integration tests: one file per area, each test a whole configuration and a conversation.
//!
//! Everything here is stated about nginx too, unless a test says `skip_on_oracle` and why.

mod conditional;
mod error_pages;
mod locations;
mod ranges;
mod rewriting;
mod server_names;
mod static_files;
