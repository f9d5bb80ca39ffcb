//! Numbers of endpoints in the map that all Services share. Each list of endpoints has its own run of numbers.

use std::collections::HashMap;

/// A list's run: its name, and its capacity as a power of two. Most changes of a list keep its run.
pub type Run = (String, u8);

#[derive(Debug, Default)]
pub struct Slots {
    first_of: HashMap<Run, u32>,
    /// First numbers of free runs, by capacity.
    free: HashMap<u8, Vec<u32>>,
    next: u32,
}

impl Slots {
    /// Allocates a run for this many endpoints, and returns its first number. The same list and capacity have the same run.
    pub fn allocate(&mut self, list: &str, length: usize) -> (Run, u32) {
        let room = u8::try_from(length.next_power_of_two().trailing_zeros()).unwrap_or(31);
        let run = (list.to_owned(), room);
        if let Some(first) = self.first_of.get(&run) {
            return (run, *first);
        }
        let first = self.free.get_mut(&room).and_then(Vec::pop).unwrap_or_else(|| {
            let first = self.next;
            self.next = self.next.saturating_add(1 << room);
            first
        });
        self.first_of.insert(run.clone(), first);
        (run, first)
    }

    /// Releases a run, once the kernel no longer references it.
    pub fn release(&mut self, run: &Run) {
        if let Some(first) = self.first_of.remove(run) {
            self.free.entry(run.1).or_default().push(first);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_never_overlap_and_are_reused() {
        let mut slots = Slots::default();
        let (run, first) = slots.allocate("a", 3);
        assert_eq!(slots.allocate("a", 4).1, first, "there is room for four");
        let larger = slots.allocate("a", 5).1;
        let other = slots.allocate("b", 2).1;
        assert!(larger >= first + 4 && other >= larger + 8);
        slots.release(&run);
        assert_eq!(slots.allocate("c", 4).1, first);
    }
}
