//! What a caller names things by: a key, the metadata of an object, its opaque head.

use bytes::Bytes;

/// What an object is found by: any bytes. The whole key is stored and compared, so that two keys
/// whose hashes are equal are never taken for each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CacheKey(Bytes);

impl CacheKey {
    /// The key of these bytes.
    pub fn new(text: &[u8]) -> Self {
        Self(Bytes::copy_from_slice(text))
    }

    /// Its bytes.
    pub fn text(&self) -> &[u8] {
        &self.0
    }

    /// The secondary key of one variant below an [`ObjectKind::Variants`] object. The birth of the marker is part of it:
    /// once the marker is purged or replaced, none of its variants can be found any more, however many there are. It is
    /// known before the marker can be found ([`crate::CacheStore::put_marker`]).
    pub fn variant_of(&self, born: u64, values: &[u8]) -> Self {
        let mut text = Vec::with_capacity(self.0.len() + values.len() + 9);
        text.extend_from_slice(&self.0);
        text.push(0);
        text.extend_from_slice(&born.to_le_bytes());
        text.extend_from_slice(values);
        Self(text.into())
    }

    /// Whether it is the key of a variant of this one ([`CacheKey::variant_of`]). A key that has a zero byte in it may be taken
    /// for one.
    pub(crate) fn is_variant_of(&self, primary: &CacheKey) -> bool {
        let rest = self.0.strip_prefix(&*primary.0);
        rest.is_some_and(|rest| rest.len() >= 9 && rest[0] == 0)
    }
}

/// What sort of object it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ObjectKind {
    /// A head and a body.
    #[default]
    Object,
    /// A marker: the head says what the secondary keys are made of, the objects stand under [`CacheKey::variant_of`].
    Variants,
}

/// What the store knows about an object besides its bytes. Times are milliseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ObjectMeta {
    /// What sort of object it is.
    pub kind: ObjectKind,
    /// When it was stored first.
    pub stored_ms: u64,
    /// When its origin last confirmed it.
    pub validated_ms: u64,
    /// Until when a lookup answers with a hit; afterwards it is stale.
    pub fresh_until_ms: u64,
    /// The strong validator as a number, 0 when there is none. Parts of a body are joined only when theirs are equal
    /// and not 0 (RFC 9111, section 3.4).
    pub version: u64,
}

/// The part of an object that is known before its body.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ObjectHead {
    /// What the store itself goes by.
    pub meta: ObjectMeta,
    /// What the caller keeps with the body, at most [`ObjectHead::MAX`] bytes; the store does not look into it.
    pub opaque: Bytes,
    /// Names by which the object can be purged together with others.
    pub tags: Vec<Bytes>,
    /// The length of the whole body, when it is known.
    pub length: Option<u64>,
}

impl ObjectHead {
    /// The most bytes that a head, its tags and the key may have together.
    pub const MAX: usize = 1024 * 1024;

    pub(crate) fn size(&self) -> usize {
        self.opaque.len() + self.tags.iter().map(|tag| tag.len() + 2).sum::<usize>()
    }
}
