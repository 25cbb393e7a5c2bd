//! What is known of certificates and keys by their content.
//!
//! Servers whose files have the same content share one identity, and so do the configurations before and after a reload.
//! Pairs that were found to belong together are remembered without their content: a master tests the configuration,
//! drops all certificates and forks, and the worker need not check them a second time.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use aws_lc_rs::digest::{Context, SHA256};
use base::sync::Mutex;
use rustls::SignatureAlgorithm;

use super::identity::TlsIdentity;
use super::shared_by_name::SharedByName;

/// A digest that stands for some texts. It is no secret: it reveals a key only to those who have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ContentDigest([u8; 32]);

impl ContentDigest {
    /// The digest of texts in this order.
    pub(super) fn of<'a>(texts: impl IntoIterator<Item = &'a [u8]>) -> ContentDigest {
        let mut context = Context::new(&SHA256);
        for text in texts {
            // With the length, so that no text can end where another begins.
            context.update(&(text.len() as u64).to_le_bytes());
            context.update(text);
        }
        let mut digest = [0; 32];
        digest.copy_from_slice(context.finish().as_ref());
        ContentDigest(digest)
    }
}

/// How many pairs are remembered. Above it all are forgotten, and checked again when they are next read.
const MAX_CHECKED: usize = 100_000;

static IDENTITIES: LazyLock<SharedByName<ContentDigest, TlsIdentity>> =
    LazyLock::new(SharedByName::default);

static CHECKED: LazyLock<Mutex<HashMap<ContentDigest, SignatureAlgorithm>>> =
    LazyLock::new(Mutex::default);

/// The identity of this content, if one is in use.
pub(super) fn shared(content: &ContentDigest) -> Option<Arc<TlsIdentity>> {
    IDENTITIES.find(content)
}

/// Lets others find an identity.
pub(super) fn share(content: ContentDigest, identity: &Arc<TlsIdentity>) {
    IDENTITIES.insert(content, identity);
}

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
