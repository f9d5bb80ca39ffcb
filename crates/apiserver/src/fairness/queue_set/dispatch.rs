//! Which request is dispatched next, and the seats and virtual time that it takes from its queue.

use super::queue::total_work;
use super::{Queue, QueueSet, RequestId, Response};
use crate::fairness::shuffle::{self, MAX_HAND};

impl<T> QueueSet<T> {
    pub(super) fn dispatch_all(&mut self, started: &mut Vec<RequestId>) {
        while self.waiting > 0 && self.seats_in_use < self.limit {
            let Some(at) = self.next_queue() else { return };
            if !self.dispatch_from(at, started) {
                return;
            }
        }
    }

    /// Dispatches the oldest request of a queue; `false` if it has to wait for more seats. Others wait with it: a wide
    /// request would never start if narrow ones overtook it.
    pub(super) fn dispatch_from(&mut self, at: usize, started: &mut Vec<RequestId>) -> bool {
        let Some(id) = self.queues[at].waiting.front().copied() else { return false };
        let seats = self.request(id).map_or(0, |request| request.estimate.max_seats());
        if !self.accommodates(seats) {
            return false;
        }
        self.dequeue(id, at);
        self.robin = at;
        if let Some(request) = self.requests[id.0].as_mut() {
            request.estimate.limit_final_seats(self.limit);
        }
        self.execute(id);
        started.push(id);
        true
    }

    /// The queue whose oldest request would finish first, in the order of the round.
    fn next_queue(&self) -> Option<usize> {
        let count = self.queues.len();
        let round = (1..=count).map(|step| (self.robin + step) % count);
        round
            .filter_map(|at| {
                let queue = &self.queues[at];
                let oldest = self.request(*queue.waiting.front()?)?;
                Some((queue.next_dispatch + total_work(&oldest.estimate), at))
            })
            .min_by_key(|(finish, _)| *finish)
            .map(|(_, at)| at)
    }

    pub(super) fn accommodates(&self, seats: u32) -> bool {
        if self.response == Response::Exempt {
            return true;
        }
        if seats > self.limit {
            // It will never fit: it may run when no other does.
            return self.executing == 0;
        }
        self.seats_in_use + seats <= self.limit
    }

    /// The queue of the flow's hand with the least work waiting.
    pub(super) fn shortest_queue(&mut self, hash: u64, queues: usize, hand_size: usize) -> usize {
        let mut hand = [0; MAX_HAND];
        let size = shuffle::deal(hash, queues, hand_size, &mut hand);
        // Starts at another card each time, so that flows with common queues do not all prefer the same.
        let offset = self.enqueued % size;
        self.enqueued = self.enqueued.wrapping_add(1);
        let cards = (0..size).map(|at| hand[(offset + at) % size]);
        cards.min_by_key(|at| self.queues[*at].work_waiting).unwrap_or_default()
    }

    pub(super) fn enqueue(&mut self, id: RequestId, at: usize) {
        let Some(estimate) = self.request(id).map(|request| request.estimate) else { return };
        let progress = self.progress;
        self.update_queue(at, |queue| {
            if !queue.is_active() {
                queue.next_dispatch = progress;
            }
            queue.waiting.push_back(id);
            queue.seats_waiting += estimate.max_seats();
            queue.initial_seats_waiting += estimate.initial_seats;
            queue.work_waiting += total_work(&estimate);
        });
        self.bound(at);
        self.waiting += 1;
        self.seats_waiting += estimate.max_seats();
        self.note_demand();
    }

    pub(super) fn dequeue(&mut self, id: RequestId, at: usize) {
        let Some(estimate) = self.request(id).map(|request| request.estimate) else { return };
        self.update_queue(at, |queue| {
            queue.waiting.retain(|other| *other != id);
            queue.seats_waiting -= estimate.max_seats();
            queue.initial_seats_waiting -= estimate.initial_seats;
            queue.work_waiting -= total_work(&estimate);
        });
        self.waiting -= 1;
        self.seats_waiting -= estimate.max_seats();
    }

    pub(super) fn execute(&mut self, id: RequestId) {
        let now = self.now;
        let Some(request) = self.requests.get_mut(id.0).and_then(Option::as_mut) else { return };
        request.started = Some(now);
        let (seats, queue, total) = (request.estimate.max_seats(), request.queue, total_work(&request.estimate));
        if let Some(at) = queue {
            self.update_queue(at, |queue| {
                queue.executing += 1;
                queue.seats_in_use += seats;
                queue.next_dispatch += total;
            });
            self.bound(at);
        }
        self.executing += 1;
        self.seats_in_use += seats;
        self.counts.dispatched += 1;
        self.note_demand();
    }

    pub(super) fn release(&mut self, seats: u32, queue: Option<usize>) {
        self.seats_in_use -= seats;
        if let Some(at) = queue {
            self.queues[at].seats_in_use -= seats;
        }
        self.note_demand();
        self.shrink();
    }

    /// A queue that could not use its share does not save it: its next request starts no earlier than it arrived.
    pub(super) fn bound(&mut self, at: usize) {
        let oldest = self.queues[at].waiting.front().and_then(|id| self.request(*id));
        if let Some(arrival) = oldest.map(|request| request.arrival_progress) {
            let queue = &mut self.queues[at];
            queue.next_dispatch = queue.next_dispatch.max(arrival);
        }
    }

    pub(super) fn update_queue(&mut self, at: usize, change: impl FnOnce(&mut Queue)) {
        let queue = &mut self.queues[at];
        let was_active = queue.is_active();
        change(queue);
        match (was_active, queue.is_active()) {
            (false, true) => self.active_queues += 1,
            (true, false) => self.active_queues -= 1,
            _ => {}
        }
    }
}
