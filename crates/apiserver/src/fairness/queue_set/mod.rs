//! The queues of one priority level: fair queuing of requests that occupy seats. Pure: time is a parameter.
//!
//! Each flow has a hand of queues. Virtual time `progress` counts the seat-time that a busy queue could have had since the
//! start; each queue notes at which progress its next request would start, and the request that would finish first is
//! dispatched. A dispatched request occupies its seats until it finishes, and for a write that many watches receive for
//! some time longer.

mod queue;
#[cfg(test)]
mod tests;

pub use queue::{Queue, Request, RequestId};

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use super::demand::{Integrator, Observed};
use super::estimate::Estimate;
use super::shuffle::{self, MAX_HAND};
use queue::{ESTIMATED_SERVICE, Lingering, Work, total_work, work};

/// How requests are held back when all seats are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Response {
    /// Never.
    Exempt,
    Reject,
    Queue {
        queues: usize,
        hand_size: usize,
        length_limit: usize,
    },
}

/// Why a request was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    QueueFull,
    ConcurrencyLimit,
    TimeOut,
}

impl Reason {
    pub const ALL: [Reason; 3] = [Reason::QueueFull, Reason::ConcurrencyLimit, Reason::TimeOut];

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Reason::QueueFull => "queue-full",
            Reason::ConcurrencyLimit => "concurrency-limit",
            Reason::TimeOut => "time-out",
        }
    }
}

/// What happens to a request that arrives.
#[derive(Debug, PartialEq, Eq)]
pub enum Arrived {
    Executing(RequestId),
    Queued(RequestId),
    Rejected(Reason),
}

/// Numbers since the start.
#[derive(Debug, Default, Clone, Copy)]
pub struct Counts {
    pub dispatched: u64,
    pub rejected: u64,
    pub cancelled: u64,
}

pub struct QueueSet<T> {
    response: Response,
    /// How many seats may be in use.
    limit: u32,
    requests: Vec<Option<Request<T>>>,
    free: Vec<usize>,
    /// More than configured while those beyond are still in use.
    queues: Vec<Queue>,
    active_queues: usize,
    lingering: BinaryHeap<Reverse<Lingering>>,
    now: Duration,
    progress: Work,
    /// The queue dispatched from last: the next round starts after it.
    robin: usize,
    enqueued: usize,
    waiting: usize,
    executing: usize,
    seats_in_use: u32,
    seats_waiting: u32,
    demand: Integrator,
    counts: Counts,
}

impl<T> QueueSet<T> {
    pub fn new(response: Response, limit: u32) -> QueueSet<T> {
        let mut set = QueueSet {
            response,
            limit,
            requests: Vec::new(),
            free: Vec::new(),
            queues: Vec::new(),
            active_queues: 0,
            lingering: BinaryHeap::new(),
            now: Duration::ZERO,
            progress: 0,
            robin: 0,
            enqueued: 0,
            waiting: 0,
            executing: 0,
            seats_in_use: 0,
            seats_waiting: 0,
            demand: Integrator::default(),
            counts: Counts::default(),
        };
        set.resize();
        set
    }

    /// Changes how requests are held back. Those that wait stay in their queues.
    pub fn configure(&mut self, response: Response) {
        self.response = response;
        self.resize();
    }

    /// Changes the number of seats; adds the requests that start to `started`.
    pub fn set_limit(&mut self, now: Duration, limit: u32, started: &mut Vec<RequestId>) {
        self.advance(now, started);
        self.limit = limit;
        self.dispatch_all(started);
    }

    /// A request arrives. It executes at once, waits, or is rejected.
    pub fn arrive(
        &mut self,
        now: Duration,
        hash: u64,
        estimate: Estimate,
        description: T,
        started: &mut Vec<RequestId>,
    ) -> Arrived {
        self.advance(now, started);
        let Response::Queue { queues, hand_size, length_limit } = self.response else {
            if !self.accommodates(estimate.max_seats()) {
                self.counts.rejected += 1;
                return Arrived::Rejected(Reason::ConcurrencyLimit);
            }
            let id = self.insert(estimate, description, None);
            self.execute(id);
            return Arrived::Executing(id);
        };
        let at = self.shortest_queue(hash, queues, hand_size);
        // Also with free seats: what waits may be too wide for them, and more would wait behind it without end.
        if self.queues[at].waiting.len() >= length_limit {
            self.counts.rejected += 1;
            return Arrived::Rejected(Reason::QueueFull);
        }
        let id = self.insert(estimate, description, Some(at));
        self.enqueue(id, at);
        if self.waiting > 1 {
            self.dispatch_all(started);
        } else if self.seats_in_use < self.limit {
            // Nothing else waits: no need to look for the next queue.
            self.dispatch_from(at, started);
        }
        match started.iter().position(|other| *other == id) {
            Some(at) => {
                started.swap_remove(at);
                Arrived::Executing(id)
            }
            None => Arrived::Queued(id),
        }
    }

    /// A request has finished. Its seats may stay occupied for a while.
    pub fn finish(&mut self, now: Duration, id: RequestId, started: &mut Vec<RequestId>) {
        self.advance(now, started);
        let Some(request) = self.take(id) else { return };
        let (estimate, seats) = (request.estimate, request.estimate.max_seats());
        self.executing -= 1;
        if let Some(at) = request.queue {
            let took = now.saturating_sub(request.started.unwrap_or(now));
            let correction = work(estimate.initial_seats, ESTIMATED_SERVICE) - work(estimate.initial_seats, took);
            self.update_queue(at, |queue| {
                queue.executing -= 1;
                queue.next_dispatch -= correction;
            });
            self.bound(at);
        }
        if estimate.additional_latency.is_zero() {
            self.release(seats, request.queue);
        } else {
            let until = now + estimate.additional_latency;
            self.lingering.push(Reverse(Lingering { until, seats, queue: request.queue }));
        }
        self.dispatch_all(started);
    }

    /// Removes a request that still waits; `false` if it executes already.
    pub fn cancel(&mut self, now: Duration, id: RequestId, started: &mut Vec<RequestId>) -> bool {
        self.advance(now, started);
        let Some(at) = self.request(id).filter(|request| request.started.is_none()).and_then(|own| own.queue) else {
            return false;
        };
        self.dequeue(id, at);
        self.take(id);
        self.bound(at);
        self.counts.rejected += 1;
        self.counts.cancelled += 1;
        self.note_demand();
        self.shrink();
        true
    }

    /// Brings time forward, and releases seats whose time has come.
    pub fn advance(&mut self, now: Duration, started: &mut Vec<RequestId>) {
        let mut released = false;
        while let Some(Reverse(next)) = self.lingering.peek()
            && next.until <= now
        {
            let Some(Reverse(Lingering { until, seats, queue })) = self.lingering.pop() else { break };
            self.progress_to(until);
            self.release(seats, queue);
            released = true;
            self.dispatch_all(started);
        }
        self.progress_to(now);
        if released {
            self.dispatch_all(started);
        }
    }

    /// When seats are released next without a request that finishes.
    pub fn next_release(&self) -> Option<Duration> {
        self.lingering.peek().map(|Reverse(next)| next.until)
    }

    /// The demand since the last call.
    pub fn take_demand(&mut self, now: Duration) -> Observed {
        self.demand.take(now)
    }

    pub fn is_idle(&self) -> bool {
        self.waiting == 0 && self.executing == 0
    }

    pub fn waiting(&self) -> usize {
        self.waiting
    }

    pub fn executing(&self) -> usize {
        self.executing
    }

    pub fn seats_in_use(&self) -> u32 {
        self.seats_in_use
    }

    pub fn limit(&self) -> u32 {
        self.limit
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    pub fn queues(&self) -> &[Queue] {
        &self.queues
    }

    pub fn request(&self, id: RequestId) -> Option<&Request<T>> {
        self.requests.get(id.0)?.as_ref()
    }

    /// All requests that execute.
    pub fn all_executing(&self) -> impl Iterator<Item = &Request<T>> {
        self.requests.iter().flatten().filter(|request| request.started.is_some())
    }

    fn insert(&mut self, estimate: Estimate, description: T, queue: Option<usize>) -> RequestId {
        let request =
            Request { description, estimate, arrived: self.now, started: None, queue, arrival_progress: self.progress };
        match self.free.pop() {
            Some(at) => {
                self.requests[at] = Some(request);
                RequestId(at)
            }
            None => {
                self.requests.push(Some(request));
                RequestId(self.requests.len() - 1)
            }
        }
    }

    fn take(&mut self, id: RequestId) -> Option<Request<T>> {
        let request = self.requests.get_mut(id.0)?.take()?;
        self.free.push(id.0);
        Some(request)
    }

    /// The queue of the flow's hand with the least work waiting.
    fn shortest_queue(&mut self, hash: u64, queues: usize, hand_size: usize) -> usize {
        let mut hand = [0; MAX_HAND];
        let size = shuffle::deal(hash, queues, hand_size, &mut hand);
        // Starts at another card each time, so that flows with common queues do not all prefer the same.
        let offset = self.enqueued % size;
        self.enqueued = self.enqueued.wrapping_add(1);
        let cards = (0..size).map(|at| hand[(offset + at) % size]);
        cards.min_by_key(|at| self.queues[*at].work_waiting).unwrap_or_default()
    }

    fn enqueue(&mut self, id: RequestId, at: usize) {
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

    fn dequeue(&mut self, id: RequestId, at: usize) {
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

    fn execute(&mut self, id: RequestId) {
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

    fn release(&mut self, seats: u32, queue: Option<usize>) {
        self.seats_in_use -= seats;
        if let Some(at) = queue {
            self.queues[at].seats_in_use -= seats;
        }
        self.note_demand();
        self.shrink();
    }

    fn dispatch_all(&mut self, started: &mut Vec<RequestId>) {
        while self.waiting > 0 && self.seats_in_use < self.limit {
            let Some(at) = self.next_queue() else { return };
            if !self.dispatch_from(at, started) {
                return;
            }
        }
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

    /// Dispatches the oldest request of a queue; `false` if it has to wait for more seats. Others wait with it: a wide
    /// request would never start if narrow ones overtook it.
    fn dispatch_from(&mut self, at: usize, started: &mut Vec<RequestId>) -> bool {
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

    fn accommodates(&self, seats: u32) -> bool {
        if self.response == Response::Exempt {
            return true;
        }
        if seats > self.limit {
            // It will never fit: it may run alone.
            return self.executing == 0;
        }
        self.seats_in_use + seats <= self.limit
    }

    /// A queue that could not use its share does not save it: its next request starts no earlier than it arrived.
    fn bound(&mut self, at: usize) {
        let oldest = self.queues[at].waiting.front().and_then(|id| self.request(*id));
        if let Some(arrival) = oldest.map(|request| request.arrival_progress) {
            let queue = &mut self.queues[at];
            queue.next_dispatch = queue.next_dispatch.max(arrival);
        }
    }

    fn update_queue(&mut self, at: usize, change: impl FnOnce(&mut Queue)) {
        let queue = &mut self.queues[at];
        let was_active = queue.is_active();
        change(queue);
        match (was_active, queue.is_active()) {
            (false, true) => self.active_queues += 1,
            (true, false) => self.active_queues -= 1,
            _ => {}
        }
    }

    fn progress_to(&mut self, now: Duration) {
        if now <= self.now {
            return;
        }
        let elapsed = (now - self.now).as_nanos() as Work;
        self.now = now;
        if self.active_queues > 0 {
            let seats = (self.seats_in_use + self.seats_waiting).min(self.limit);
            self.progress += elapsed * Work::from(seats) / self.active_queues as Work;
        }
    }

    fn note_demand(&mut self) {
        self.demand.set(self.now, f64::from(self.seats_in_use + self.seats_waiting));
    }

    fn configured_queues(&self) -> usize {
        match self.response {
            Response::Queue { queues, .. } => queues,
            Response::Exempt | Response::Reject => 0,
        }
    }

    fn resize(&mut self) {
        let configured = self.configured_queues();
        if self.queues.len() < configured {
            self.queues.resize_with(configured, Queue::default);
        }
        self.shrink();
    }

    /// Drops queues beyond the configured ones once they are empty.
    fn shrink(&mut self) {
        let configured = self.configured_queues();
        while self.queues.len() > configured
            && self.queues.last().is_some_and(|queue| !queue.is_active() && queue.seats_in_use == 0)
        {
            self.queues.pop();
        }
        self.robin = self.robin.min(self.queues.len().saturating_sub(1));
    }
}
