//! The pairs of certificate and key that were found to belong together.
//!
//! They are remembered without their content: a master tests the configuration, drops all certificates and forks, and
//! the worker need not check them a second time.

use std::collections::HashMap;
use std::sync::LazyLock;

use base::sync::Mutex;
use rustls::SignatureAlgorithm;

use super::content_digest::ContentDigest;

/// How many pairs are remembered. Above it all are forgotten, and checked again when they are next read.
const MAX_CHECKED: usize = 100_000;

static CHECKED: LazyLock<Mutex<HashMap<ContentDigest, SignatureAlgorithm>>> =
    LazyLock::new(Mutex::default);

/// The kind of key of a pair that was checked.
pub(super) fn is_checked(content: &ContentDigest) -> Option<SignatureAlgorithm> {
    CHECKED.lock().get(content).copied()
}

/// Remembers that a pair is good.
pub(super) fn note_checked(content: ContentDigest, algorithm: SignatureAlgorithm) {
    let mut checked = CHECKED.lock();
    if checked.len() >= MAX_CHECKED {
        checked.clear();
    }
    checked.insert(content, algorithm);
}
