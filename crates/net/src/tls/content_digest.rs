//! Texts by what they say, wherever they are from: files with the same content are parsed once.

use aws_lc_rs::digest::{Context, SHA256};

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
