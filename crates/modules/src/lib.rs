//! Weir: modules.
