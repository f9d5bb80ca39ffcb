//! Numbers of endpoints in the map that all services share. Each list of endpoints has a run of numbers of its own.

use std::collections::HashMap;

/// A list's run: its name, and the power of two of numbers there is room for. Most changes of a list keep its run.
pub type Run = (String, u8);

#[derive(Debug, Default)]
pub struct Slots {
    first_of: HashMap<Run, u32>,
    /// First numbers of free runs, by room.
    free: HashMap<u8, Vec<u32>>,
    next: u32,
}

impl Slots {
    /// A run for as many endpoints, and its first number. The same list with the same room has the same run.
    pub fn take(&mut self, list: &str, length: usize) -> (Run, u32) {
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

    /// Makes a run free again, once the kernel no longer leads to it.
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
    fn runs_never_overlap_and_are_used_again() {
        let mut slots = Slots::default();
        let (run, first) = slots.take("a", 3);
        assert_eq!(slots.take("a", 4).1, first, "there is room for four");
        let larger = slots.take("a", 5).1;
        let other = slots.take("b", 2).1;
        assert!(larger >= first + 4 && other >= larger + 8);
        slots.release(&run);
        assert_eq!(slots.take("c", 4).1, first);
    }
}
