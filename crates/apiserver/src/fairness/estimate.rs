//! How many seats a request occupies, and for how long after it finished.

use std::time::Duration;

/// A list of this many bytes occupies one more seat.
const BYTES_PER_SEAT: usize = 100_000;
/// A list is sent in chunks: it never holds more than this in memory.
pub const MAX_LIST_BYTES: usize = 1_000_000;
/// The most seats of a list, if its level says no less.
const MAX_LIST_SEATS: u32 = 100;
/// The most seats of a write, if its level says no less.
const MAX_WRITE_SEATS: u32 = 10;
/// Sending an event to this many watches occupies one seat.
const WATCHES_PER_SEAT: usize = 10;
/// How long one seat is occupied by events of a write.
const EVENT_TIME: Duration = Duration::from_millis(5);

/// The seats of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Estimate {
    pub initial_seats: u32,
    /// For `additional_latency` after the request finished.
    pub final_seats: u32,
    pub additional_latency: Duration,
}

impl Estimate {
    /// A request that occupies seats until it finishes.
    pub fn seats(seats: u32) -> Estimate {
        Estimate { initial_seats: seats, final_seats: 0, additional_latency: Duration::ZERO }
    }

    /// A list of objects with this many bytes. A limit of 0 seats means none.
    pub fn list(bytes: usize, max_seats: u32) -> Estimate {
        let seats = bytes.min(MAX_LIST_BYTES).div_ceil(BYTES_PER_SEAT) as u32;
        Estimate::seats(seats.clamp(1, limit(max_seats, MAX_LIST_SEATS)))
    }

    /// A write that this many watches receive.
    pub fn write(watches: usize, max_seats: u32) -> Estimate {
        if watches < WATCHES_PER_SEAT {
            return Estimate::seats(1);
        }
        let seats = u32::try_from(watches.div_ceil(WATCHES_PER_SEAT)).unwrap_or(u32::MAX);
        let mut estimate = Estimate { initial_seats: 1, final_seats: seats, additional_latency: EVENT_TIME };
        estimate.limit_final_seats(limit(max_seats, MAX_WRITE_SEATS));
        estimate
    }

    /// How many seats it occupies at once.
    pub fn max_seats(&self) -> u32 {
        self.initial_seats.max(self.final_seats)
    }

    /// Occupies no more seats, but for longer: the work stays the same.
    pub fn limit_final_seats(&mut self, seats: u32) {
        let seats = seats.max(1);
        if self.final_seats > seats {
            self.additional_latency = self.additional_latency.mul_f64(f64::from(self.final_seats) / f64::from(seats));
            self.final_seats = seats;
        }
    }
}

/// The most seats that one request of a level may occupy; 0 for levels without queues, where no flow can block another's.
pub fn max_seats(nominal: u32, hand_size: Option<usize>) -> u32 {
    let Some(hand_size) = hand_size else { return 0 };
    let share = (f64::from(nominal) * 0.15).ceil() as u32;
    share.min(nominal / u32::try_from(hand_size).unwrap_or(u32::MAX).max(1)).max(1)
}

fn limit(of_level: u32, general: u32) -> u32 {
    if of_level == 0 { general } else { of_level.min(general) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_occupy_seats_by_their_bytes() {
        for (bytes, max, seats) in [
            (0, 8, 1),
            (100_000, 8, 1),
            (100_001, 8, 2),
            (700_000, 8, 7),
            (25_000_000, 8, 8),
            (25_000_000, 37, 10),
            (25_000_000, 0, 10),
        ] {
            assert_eq!(Estimate::list(bytes, max), Estimate::seats(seats), "{bytes} of {max}");
        }
    }

    #[test]
    fn writes_occupy_seats_while_watches_get_their_events() {
        assert_eq!(Estimate::write(9, 8), Estimate::seats(1));
        for (watches, max, seats, milliseconds) in [(10, 8, 1, 5), (40, 8, 4, 5), (400, 8, 8, 25), (1000, 0, 10, 50)] {
            let estimate = Estimate::write(watches, max);
            let latency = Duration::from_millis(milliseconds);
            let expected = Estimate { initial_seats: 1, final_seats: seats, additional_latency: latency };
            assert_eq!(estimate, expected, "{watches}");
        }
    }

    #[test]
    fn one_request_gets_a_part_of_its_level() {
        for (nominal, hand, seats) in
            [(49, Some(6), 8), (245, Some(6), 37), (98, Some(6), 15), (5, Some(6), 1), (13, None, 0)]
        {
            assert_eq!(max_seats(nominal, hand), seats, "{nominal}");
        }
    }
}
