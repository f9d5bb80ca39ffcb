//! One version of one key.

use std::any::Any;
use std::sync::Arc;

use bytes::Bytes;
use knarr_packing::{Packed, Packer};
use parking_lot::RwLock;

/// A point in the store's history. Each write gets the next one; 0 means "no such version".
pub type Revision = u64;

/// One version of one key, shared by all readers. It never changes; only how it is kept in memory does.
pub struct Entry {
    /// The full key.
    pub key: Arc<str>,
    content: RwLock<Content>,
    /// The length of the value.
    len: usize,
    /// The revision that created the key.
    pub created: Revision,
    /// The revision that wrote this version.
    pub revision: Revision,
    /// When the entry expires, in milliseconds since 1970; 0 means never.
    pub(crate) expires: u64,
}

struct Content {
    value: Value,
    /// What a reader derived from the value, cached for all readers.
    memo: Option<Arc<dyn Any + Send + Sync>>,
}

enum Value {
    Plain(Bytes),
    Packed(Packed),
}

impl Entry {
    /// An entry that never expires.
    pub fn new(key: Arc<str>, value: Bytes, created: Revision, revision: Revision) -> Self {
        let len = value.len();
        let content = RwLock::new(Content { value: Value::Plain(value), memo: None });
        Self { key, content, len, created, revision, expires: 0 }
    }

    pub(crate) fn expiring(self, expires: u64) -> Self {
        Self { expires, ..self }
    }

    /// The stored bytes; unpacked by each call if the entry is packed.
    pub fn value(&self) -> Bytes {
        match &self.content.read().value {
            Value::Plain(value) => value.clone(),
            Value::Packed(packed) => packed.text().into(),
        }
    }

    /// The length of the value.
    pub fn value_len(&self) -> usize {
        self.len
    }

    /// Whether the value is packed, so that reading it takes time.
    pub fn is_packed(&self) -> bool {
        matches!(self.content.read().value, Value::Packed(_))
    }

    /// Keeps the value in less memory from now on, and drops what was derived from it, unless that would not be less.
    pub(crate) fn pack(&self, packer: &mut Packer) {
        let packed = match &self.content.read().value {
            Value::Plain(value) => packer.pack(value),
            Value::Packed(_) => return,
        };
        if packed.packed_len() < self.len {
            let content = Content { value: Value::Packed(packed), memo: None };
            let plain = std::mem::replace(&mut *self.content.write(), content);
            // Freeing takes time, so it happens after the lock is released.
            drop(plain);
        }
    }

    /// The size of the entry, without the memo, and as if it were not packed.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>() + self.key.len() + self.len
    }

    /// What is derived from this value, created by the first caller for those that follow. All callers must use the same type:
    /// returns `None` when the memo already holds another type.
    pub fn memo<T: Any + Default + Send + Sync>(&self) -> Option<Arc<T>> {
        let known = self.content.read().memo.clone();
        let memo =
            known.unwrap_or_else(|| self.content.write().memo.get_or_insert_with(|| Arc::<T>::default()).clone());
        memo.downcast().ok()
    }
}

impl std::fmt::Debug for Entry {
    /// Omits the value: it may hold a secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry")
            .field("key", &self.key)
            .field("created", &self.created)
            .field("revision", &self.revision)
            .finish_non_exhaustive()
    }
}
