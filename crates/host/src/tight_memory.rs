//! Whether memory is tight: the watchdog says it, and those who hold memory for slow clients ask.
//!
//! They ask where something waits, thousands of times a second, so it is one value for the process that costs nothing to read.
//! What it is measured by, and what else happens when memory is short, is the watchdog's.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static IS_TIGHT: AtomicBool = AtomicBool::new(false);

/// Says whether it is.
pub fn set_tight(is_tight: bool) {
    IS_TIGHT.store(is_tight, Relaxed);
}

/// Whether little may be held for a client that does not take or send anything at the moment.
#[inline]
pub fn is_tight() -> bool {
    IS_TIGHT.load(Relaxed)
}
