//! The harness of Weir's integration tests: a real server, a whole configuration, a conversation.
//!
//! A test writes a configuration with [`http`] or [`whole`], puts files beside it, starts the
//! binary and talks to it over loopback with a client that shows the bytes as they are. The
//! same test runs on nginx when `ORACLE` names its binary, which is how we know that a test
//! states nginx's behaviour and not our wish:
//!
//! ```text
//! cargo test -p weir-tests                              # Weir, built when it is stale
//! ORACLE=/usr/sbin/nginx cargo test -p weir-tests       # nginx, same tests
//! WEIR_BIN=/path/to/weir cargo test -p weir-tests       # some other build of Weir
//! ```
//!
//! What the harness does not do: it never sleeps for a guessed time (it waits for an event with
//! a bound), it uses no fixed port, and no test depends on another one.

#![forbid(unsafe_code)]

mod application;
mod binary;
mod client;
mod command;
mod dns;
mod explained;
mod http2;
mod ports;
mod redis;
mod reply;
mod server;
mod site;
mod wait;

pub use application::{Application, Scripted, read_until, send};
pub use binary::{is_oracle, program, server_path, skip_on_oracle};
pub use client::Connection;
pub use command::{Finished, run, run_as, run_with_mounts};
pub use dns::{Answer, Dns};
pub use explained::{Dice, Explained, compare};
pub use http2::{Heard, Http2, Http2Reply};
pub use ports::Port;
pub use redis::{Redis, Relay};
pub use reply::Reply;
pub use server::{Server, Signal};
pub use site::{Site, http, whole};
pub use wait::{PATIENCE, until};
