//! Weir: proto.
