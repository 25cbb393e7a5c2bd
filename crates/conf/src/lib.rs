//! Weir: conf.
