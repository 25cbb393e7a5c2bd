//! The differential machine: it makes configurations and conversations, runs each on nginx and on Weir, compares what can
//! be seen, and reduces what differs.
//!
//! `cargo xtask differential` builds Weir and runs it. A case is data (`case`); generators (`generate`) make them; a start of
//! both servers has some two hundred of them (`batch`); what they show (`observe`) is compared (`compare`) and judged by the list
//! of known differences (`known`).
//!
//! What it does not do: it knows nothing of how Weir works inside, and it never decides who is right.

#![forbid(unsafe_code)]

pub mod batch;
pub mod campaign;
pub mod case;
pub mod compare;
pub mod generate;
pub mod judge;
pub mod known;
pub mod observe;
pub mod random;
pub mod reduce;
pub mod samples;
pub mod side;
pub mod spent;
pub mod template;
pub mod version;
