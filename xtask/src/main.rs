//! Project tasks: `cargo xtask test` and its kin.
fn main() {}
