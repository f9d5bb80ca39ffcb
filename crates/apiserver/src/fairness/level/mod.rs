//! A priority level while the server runs: its queues behind a lock, and the requests that wait asynchronously.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::allocation::{LevelDemand, SeatLimits, Shares};
use super::demand::Demand;
use super::estimate::{self, Estimate};
use super::queue_set::{Arrived, QueueSet, Reason, RequestId, Response};
use super::retry_after::RetryAfter;
use super::stats::FlowStats;
use crate::request::{Target, User};

/// What a priority level object says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LevelSpec {
    pub response: Response,
    pub shares: Shares,
}

/// A request as dumps show it.
pub struct Description {
    pub schema: Arc<str>,
    pub distinguisher: Arc<str>,
    pub user: Arc<User>,
    pub target: Target,
}

pub struct Level {
    pub name: Arc<str>,
    /// Whether its requests are never limited; this never changes.
    exempt: bool,
    origin: Instant,
    state: Mutex<State>,
}

pub struct State {
    pub spec: LevelSpec,
    pub set: QueueSet<Description>,
    pub limits: SeatLimits,
    pub demand: Demand,
    /// Whether its object is gone: it is dropped when its last request has finished.
    pub quiescing: bool,
    waiters: HashMap<RequestId, oneshot::Sender<()>>,
    /// The task that releases seats at their time.
    timer: Option<AbortHandle>,
    retry_after: RetryAfter,
}

/// The refusal of a request.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused {
    /// After how many seconds the client should retry.
    pub retry_after: u64,
}

impl Level {
    pub fn new(name: &str, spec: LevelSpec) -> Level {
        let state = State {
            spec,
            set: QueueSet::new(spec.response, 0),
            limits: SeatLimits::default(),
            demand: Demand::default(),
            quiescing: false,
            waiters: HashMap::new(),
            timer: None,
            retry_after: RetryAfter::default(),
        };
        let exempt = spec.response == Response::Exempt;
        Level { name: name.into(), exempt, origin: Instant::now(), state: Mutex::new(state) }
    }

    /// Waits for seats, at most until `give_up`. The future may be dropped at any time: the request then leaves its queue.
    pub async fn acquire(
        self: &Arc<Self>,
        flow: &Arc<FlowStats>,
        hash: u64,
        estimate: Estimate,
        description: Description,
        give_up: Instant,
    ) -> Result<Permit, Refused> {
        let (arrived, receiver) = self.arrive(hash, estimate, description);
        let id = match arrived {
            Arrived::Executing(id) => {
                if !self.exempt {
                    flow.executed_waits.observe(Duration::ZERO);
                }
                return Ok(self.permit(flow, id, estimate));
            }
            Arrived::Rejected(reason) => {
                flow.reject(reason);
                flow.refused_waits.observe(Duration::ZERO);
                return Err(self.refused());
            }
            Arrived::Queued(id) => id,
        };
        let waiting = Waiting::new(self.clone(), flow.clone(), id, estimate);
        match receiver {
            // Closed only by a level that was dropped, which its waiting requests prevent.
            Some(receiver) => drop(tokio::time::timeout_at(give_up, receiver).await),
            None => return Err(self.refused()),
        }
        waiting.finish().ok_or_else(|| self.refused())
    }

    fn arrive(
        self: &Arc<Self>,
        hash: u64,
        estimate: Estimate,
        description: Description,
    ) -> (Arrived, Option<oneshot::Receiver<()>>) {
        let mut receiver = None;
        let arrived = self.with_queues(|state, now, started| {
            let arrived = state.set.arrive(now, hash, estimate, description, started);
            if let Arrived::Queued(id) = arrived {
                let (sender, waiter) = oneshot::channel();
                state.waiters.insert(id, sender);
                receiver = Some(waiter);
            }
            arrived
        });
        (arrived, receiver)
    }

    /// Changes the queues, and wakes the requests that may start because of it.
    fn with_queues<R>(self: &Arc<Self>, change: impl FnOnce(&mut State, Duration, &mut Vec<RequestId>) -> R) -> R {
        let mut started = Vec::new();
        let mut state = self.state.lock();
        // Read under the lock, so that time never goes back.
        let now = self.now();
        let result = change(&mut state, now, &mut started);
        for id in started {
            if let Some(waiter) = state.waiters.remove(&id) {
                // A waiter that is gone finishes its request when it is dropped.
                let _ = waiter.send(());
            }
        }
        // One that panicked is finished, too.
        let has_timer = state.timer.as_ref().is_some_and(|timer| !timer.is_finished());
        if state.set.waiting() > 0 && state.set.next_release().is_some() && !has_timer {
            state.timer = self.start_timer();
        }
        result
    }

    /// Releases seats at their time while requests wait for them.
    fn start_timer(self: &Arc<Self>) -> Option<AbortHandle> {
        let runtime = tokio::runtime::Handle::try_current().ok()?;
        let level = self.clone();
        let timer = runtime.spawn(async move {
            loop {
                let next = level.with_queues(|state, now, started| {
                    state.set.advance(now, started);
                    let next = state.set.next_release().filter(|_| state.set.waiting() > 0);
                    if next.is_none() {
                        state.timer = None;
                    }
                    next
                });
                match next {
                    Some(next) => tokio::time::sleep_until(level.origin + next).await,
                    None => return,
                }
            }
        });
        Some(timer.abort_handle())
    }

    fn permit(self: &Arc<Self>, flow: &Arc<FlowStats>, id: RequestId, estimate: Estimate) -> Permit {
        flow.start(estimate.max_seats());
        Permit { level: self.clone(), flow: flow.clone(), id, seats: estimate.max_seats() }
    }

    fn refused(&self) -> Refused {
        Refused { retry_after: self.state.lock().retry_after.refuse(self.now().as_secs()) }
    }

    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    pub fn is_exempt(&self) -> bool {
        self.exempt
    }

    /// The most seats that one of its requests may occupy.
    pub fn max_seats(&self) -> u32 {
        let state = self.state.lock();
        let hand_size = match state.spec.response {
            Response::Queue { hand_size, .. } => Some(hand_size),
            Response::Exempt | Response::Reject => None,
        };
        estimate::max_seats(state.limits.nominal, hand_size)
    }

    /// How long ago, since the level exists, was the time of an event in its queues.
    pub fn ago(&self, time: Duration) -> Duration {
        self.now().saturating_sub(time)
    }

    pub fn read<R>(&self, read: impl FnOnce(&State) -> R) -> R {
        read(&self.state.lock())
    }

    /// Applies its object.
    pub fn configure(&self, spec: LevelSpec, quiescing: bool) {
        let mut state = self.state.lock();
        state.spec = spec;
        state.quiescing = quiescing;
        state.set.configure(spec.response);
    }

    /// Sets the configured limits. A new level starts with what it would not lend.
    pub fn set_limits(&self, limits: SeatLimits) {
        let mut state = self.state.lock();
        if state.limits == SeatLimits::default() {
            let now = self.now();
            // Nothing waits yet.
            state.set.set_limit(now, limits.initial(), &mut Vec::new());
        }
        state.limits = limits;
    }

    /// The demand since the last call.
    pub fn take_demand(&self) -> LevelDemand {
        let mut state = self.state.lock();
        let now = self.now();
        let observed = state.set.take_demand(now);
        state.demand.update(observed);
        LevelDemand {
            exempt: self.exempt,
            limits: state.limits,
            high_watermark: state.demand.high_watermark,
            smoothed: state.demand.smoothed,
            current: state.set.limit(),
        }
    }

    /// Sets the current number of seats.
    pub fn set_current_limit(self: &Arc<Self>, seats: u32) {
        self.with_queues(|state, now, started| state.set.set_limit(now, seats, started));
    }
}

/// A request in a queue. Dropping it removes it.
struct Waiting {
    level: Arc<Level>,
    flow: Arc<FlowStats>,
    id: RequestId,
    estimate: Estimate,
    since: Instant,
    done: bool,
}

impl Waiting {
    fn new(level: Arc<Level>, flow: Arc<FlowStats>, id: RequestId, estimate: Estimate) -> Waiting {
        flow.enqueue(estimate.max_seats());
        Waiting { level, flow, id, estimate, since: Instant::now(), done: false }
    }

    /// The permit, if the request was dispatched.
    fn finish(mut self) -> Option<Permit> {
        if self.leave() {
            return None;
        }
        Some(self.level.permit(&self.flow, self.id, self.estimate))
    }

    /// Leaves the queue; `false` if the request was dispatched before.
    fn leave(&mut self) -> bool {
        self.done = true;
        let id = self.id;
        let left = self.level.with_queues(|state, now, started| {
            state.waiters.remove(&id);
            state.set.cancel(now, id, started)
        });
        self.flow.dequeue(self.estimate.max_seats());
        let waits = if left { &self.flow.refused_waits } else { &self.flow.executed_waits };
        waits.observe(self.since.elapsed());
        if left {
            self.flow.reject(Reason::TimeOut);
        }
        left
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if !self.done && !self.leave() {
            drop(self.level.permit(&self.flow, self.id, self.estimate));
        }
    }
}

/// The seats of a request that executes. Dropping it releases them.
pub struct Permit {
    level: Arc<Level>,
    flow: Arc<FlowStats>,
    id: RequestId,
    seats: u32,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.flow.finish(self.seats);
        self.level.with_queues(|state, now, started| state.set.finish(now, self.id, started));
    }
}

#[cfg(test)]
mod tests;
