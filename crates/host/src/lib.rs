//! What a server process is made of: processes, signals, listening sockets, logs, and the life cycle of an engine.
//!
//! It stands between the runtime (`rt`: loops, tasks, sockets, files) and the protocols. The master and the worker
//! are built of it, and an engine (`http`, `stream`) meets them in [`engine`]:
//!
//! - [`process`], [`signal`] and [`channel`]: the master, the worker, and what they tell each other;
//! - [`listen`]: listening sockets, with every option of `listen`;
//! - [`loop_slots`]: the loops of a process as they see each other, and connections that move between them;
//! - [`log_sink`] and [`error_log`]: files that no loop waits for, and nginx's line format;
//! - [`generation`]: the configurations that follow each other, as each loop holds them;
//! - [`abstract_socket`]: sockets by which a command finds a running server;
//! - [`notify_outbox`]: messages to the service manager.
//!
//! This crate knows no protocol and reads no configuration: what a line of the configuration says arrives as a value
//! ([`engine::MainSettings`], [`listen::ListenOptions`]), so that it can be tested, and changed, without the language.
#![forbid(unsafe_code)]

pub mod abstract_socket;
pub mod channel;
pub mod engine;
pub mod error_log;
pub mod generation;
pub mod listen;
pub mod log_sink;
pub mod loop_slots;
pub mod notify_outbox;
pub mod process;
pub mod request_ring;
pub mod signal;
pub mod terminal;
pub mod tight_memory;
pub mod worker_group;
