//! Serializes writes per key; of several waiting values of a key only the newest is written.
//!
//! Events are written concurrently, and each repeat of an event includes the previous ones: written out of order, an older
//! count would remain.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

type Waiting<T> = Arc<Mutex<HashMap<String, Option<T>>>>;

/// The keys being written, each with the value to write next.
pub(super) struct SerialWrites<T>(Waiting<T>);

impl<T> Default for SerialWrites<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

/// The exclusive right to write one key, until no value is waiting.
pub(super) struct WriteSlot<T> {
    key: String,
    waiting: Waiting<T>,
    /// Another writer may have the key by now.
    is_released: AtomicBool,
}

impl<T> SerialWrites<T> {
    /// Queues a value. Returns a slot if the caller must write it; otherwise the current writer of the key does.
    pub fn enqueue(&self, key: String, value: T) -> Option<WriteSlot<T>> {
        let was_busy = self.0.lock().insert(key.clone(), Some(value)).is_some();
        (!was_busy).then(|| WriteSlot { key, waiting: self.0.clone(), is_released: AtomicBool::new(false) })
    }
}

impl<T> WriteSlot<T> {
    /// The value to write now. `None` releases the slot.
    pub fn next(&self) -> Option<T> {
        let mut waiting = self.waiting.lock();
        let next = waiting.get_mut(&self.key).and_then(Option::take);
        if next.is_none() {
            waiting.remove(&self.key);
            self.is_released.store(true, Ordering::Relaxed);
        }
        next
    }

    /// Queues a value again that could not be written, unless there is a newer one.
    pub fn put_back(&self, value: T) {
        if let Some(place) = self.waiting.lock().get_mut(&self.key) {
            place.get_or_insert(value);
        }
    }
}

impl<T> Drop for WriteSlot<T> {
    fn drop(&mut self) {
        let mut waiting = self.waiting.lock();
        if !self.is_released.load(Ordering::Relaxed) {
            waiting.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_newest_waiting_value_is_written() {
        let writes = SerialWrites::default();
        let slot = writes.enqueue("a".to_owned(), 1).unwrap();
        assert!(writes.enqueue("b".to_owned(), 9).is_some(), "other keys are not blocked");
        assert_eq!(slot.next(), Some(1));
        assert!(writes.enqueue("a".to_owned(), 2).is_none() && writes.enqueue("a".to_owned(), 3).is_none());
        assert_eq!(slot.next(), Some(3));
        slot.put_back(3);
        assert_eq!(slot.next(), Some(3));
        assert_eq!(slot.next(), None);
        assert!(writes.enqueue("a".to_owned(), 4).is_some(), "the key is free again");
    }
}
