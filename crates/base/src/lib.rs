//! Weir: base.
