//! What the comparison of strangers' configurations shares with the differential machine: texts of templates, and texts that
//! a pattern matches.

#![forbid(unsafe_code)]

pub mod samples;
pub mod template;
