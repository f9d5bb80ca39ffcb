//! Writes of one thing go one after the other, and only the newest of those that wait is made.
//!
//! Events are written several at a time, and each repeat of one says all that the repeats before it said: written out of
//! order, an older count would stay.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

type Waiting<T> = Arc<Mutex<HashMap<String, Option<T>>>>;

/// Who is being written, each with what is to be written next.
pub(super) struct Lanes<T>(Waiting<T>);

impl<T> Default for Lanes<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

/// The right to write one thing, until there is nothing left to write of it.
pub(super) struct Lane<T> {
    name: String,
    waiting: Waiting<T>,
    /// Somebody else may have it by now.
    is_free: AtomicBool,
}

impl<T> Lanes<T> {
    /// Leaves what is to be written; to the one who gets the lane it falls to write it.
    pub fn enter(&self, name: String, value: T) -> Option<Lane<T>> {
        let was_busy = self.0.lock().insert(name.clone(), Some(value)).is_some();
        (!was_busy).then(|| Lane { name, waiting: self.0.clone(), is_free: AtomicBool::new(false) })
    }
}

impl<T> Lane<T> {
    /// What is to be written now. When there is nothing, the lane is free for others.
    pub fn next(&self) -> Option<T> {
        let mut waiting = self.waiting.lock();
        let next = waiting.get_mut(&self.name).and_then(Option::take);
        if next.is_none() {
            waiting.remove(&self.name);
            self.is_free.store(true, Ordering::Relaxed);
        }
        next
    }

    /// It could not be written: it is next again, unless something newer came.
    pub fn put_back(&self, value: T) {
        if let Some(place) = self.waiting.lock().get_mut(&self.name) {
            place.get_or_insert(value);
        }
    }
}

impl<T> Drop for Lane<T> {
    fn drop(&mut self) {
        let mut waiting = self.waiting.lock();
        if !self.is_free.load(Ordering::Relaxed) {
            waiting.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_newest_of_what_waits_is_written() {
        let lanes = Lanes::default();
        let lane = lanes.enter("a".to_owned(), 1).unwrap();
        assert!(lanes.enter("b".to_owned(), 9).is_some(), "others are not held up");
        assert_eq!(lane.next(), Some(1));
        assert!(lanes.enter("a".to_owned(), 2).is_none() && lanes.enter("a".to_owned(), 3).is_none());
        assert_eq!(lane.next(), Some(3));
        lane.put_back(3);
        assert_eq!(lane.next(), Some(3));
        assert_eq!(lane.next(), None);
        assert!(lanes.enter("a".to_owned(), 4).is_some(), "the lane is free again");
    }
}
