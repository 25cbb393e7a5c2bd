//! The tests of Weir through its real binary.
