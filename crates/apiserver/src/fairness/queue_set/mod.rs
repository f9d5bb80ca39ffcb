//! The queues of one priority level: fair queuing of requests that occupy seats. Pure: time is a parameter.
//!
//! Each flow has a hand of queues. Virtual time `progress` counts the seat-time that a busy queue could have had since the
//! start; each queue notes at which progress its next request would start, and the request that would finish first is
//! dispatched. A dispatched request occupies its seats until it finishes, and for a write that many watches receive for
//! some time longer.

mod dispatch;
mod queue;
#[cfg(test)]
mod tests;

pub use queue::{Queue, Request, RequestId};

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use super::demand::{Integrator, Observed};
use super::estimate::Estimate;
use queue::{ESTIMATED_SERVICE, Lingering, Work, work};

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
