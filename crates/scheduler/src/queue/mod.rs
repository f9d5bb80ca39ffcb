//! The scheduling queue: active pods by priority and age, pods in backoff, and unschedulable pods that wait for an event
//! that can help them.

mod events;
mod rank;
mod waiting;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::cluster::labels::Namespaces;
use crate::cluster::pod::PodState;
use crate::metrics::{INCOMING, Lengths, UNSCHEDULABLE};

pub use events::ClusterEvent;
use events::helps;
use rank::Rank;
use waiting::{Waiting, WaitingPods};

/// A pod that no event has helped for this long is retried anyway.
const MAX_UNSCHEDULABLE_TIME: Duration = Duration::from_secs(300);

/// The rejecting plugin of pods that no plugin rejected: any event may help them.
const ANYTHING: &str = "";

struct Queued {
    pod: Waiting,
    /// When it was added to the queue; the older go first.
    since: Timestamp,
    order: u64,
    /// How often it was unschedulable, and how often in a row its decision failed: the backoff grows with
    /// each.
    misfits: u32,
    errors: u32,
    /// How often it was decided.
    attempts: u32,
    state: State,
}

enum State {
    Active,
    BackingOff {
        until: Timestamp,
        /// It failed rather than did not fit: it is not popped early.
        after_error: bool,
    },
    Unschedulable {
        plugins: Vec<&'static str>,
        since: Timestamp,
    },
    /// Being decided or bound. A decision is one step, so no event can come in between.
    InFlight,
    /// Not to be decided before something else has happened to it.
    Gated,
}

pub struct Queue {
    pods: HashMap<Arc<str>, Queued>,
    active: BTreeMap<Rank, Arc<str>>,
    back_off: BTreeSet<(Timestamp, Arc<str>)>,
    error_back_off: BTreeSet<(Timestamp, Arc<str>)>,
    unschedulable: BTreeSet<(Timestamp, Arc<str>)>,
    /// Unschedulable pods by the plugins that rejected them, so that an event touches only those it can help.
    rejected_by: HashMap<&'static str, HashSet<Arc<str>>>,
    gated: HashSet<Arc<str>>,
    counter: u64,
    waiting: WaitingPods,
    initial_back_off: Duration,
    max_back_off: Duration,
}

impl Queue {
    pub fn new(initial_back_off: Duration, max_back_off: Duration) -> Self {
        Queue {
            pods: HashMap::new(),
            active: BTreeMap::new(),
            back_off: BTreeSet::new(),
            error_back_off: BTreeSet::new(),
            unschedulable: BTreeSet::new(),
            rejected_by: HashMap::new(),
            gated: HashSet::new(),
            counter: 0,
            waiting: WaitingPods::default(),
            initial_back_off,
            max_back_off,
        }
    }

    /// Adds or updates an unbound pod. A gated one is stored but not decided.
    pub fn set(&mut self, pod: Arc<PodState>, is_gated: bool, namespaces: &Namespaces, now: Timestamp) {
        let key = Arc::clone(&pod.key);
        let Some(queued) = self.pods.get(&key) else {
            self.counter += 1;
            let queued = Queued {
                pod: Waiting::Whole(pod),
                since: now,
                order: self.counter,
                misfits: 0,
                errors: 0,
                attempts: 0,
                state: State::InFlight,
            };
            self.pods.insert(Arc::clone(&key), queued);
            if is_gated {
                self.gate(&key)
            } else {
                INCOMING.add(&["PodAdd", "active"], 1);
                self.activate(&key)
            }
            return;
        };
        let wakes = match &queued.state {
            State::InFlight => false,
            State::Gated => !is_gated,
            State::Unschedulable { plugins, .. } => {
                let event = ClusterEvent::Itself { old: &queued.pod.whole(), new: &pod };
                plugins.iter().any(|plugin| helps(plugin, &pod, &event, namespaces))
            }
            // Its priority may have changed.
            State::Active => true,
            State::BackingOff { .. } => false,
        };
        // Its position in the queue depends on the old state, so it is removed before it changes.
        if wakes || is_gated && !matches!(queued.state, State::InFlight) {
            self.leave(&key);
        }
        let was_active = matches!(self.pods.get(&key).map(|queued| &queued.state), Some(State::Active));
        if let Some(queued) = self.pods.get_mut(&key) {
            queued.pod = Waiting::Whole(pod);
            if matches!(queued.state, State::InFlight) {
                return;
            }
        }
        match (is_gated, wakes) {
            (true, _) => self.gate(&key),
            (false, true) if was_active => self.activate(&key),
            (false, true) => self.ready(&key, "PodUpdate", now),
            (false, false) => {}
        }
    }

    /// Releases gated pods that need not wait any more.
    pub fn reconsider_gated(&mut self, is_gated: impl Fn(&PodState) -> bool, now: Timestamp) {
        let open: Vec<Arc<str>> = self
            .gated
            .iter()
            .filter(|key| self.pods.get(*key).is_some_and(|queued| !is_gated(&queued.pod.whole())))
            .cloned()
            .collect();
        for key in open {
            self.leave(&key);
            self.ready(&key, "PodUpdate", now);
        }
    }

    pub fn remove(&mut self, key: &str) {
        self.leave(key);
        self.pods.remove(key);
    }

    /// Removes the pod unless another one has its name now.
    pub fn remove_same(&mut self, key: &str, uid: &str) {
        if self.is_same(key, uid) {
            self.remove(key);
        }
    }

    pub fn is_same(&self, key: &str, uid: &str) -> bool {
        self.pods.get(key).is_some_and(|queued| queued.pod.uid() == uid)
    }

    /// The next pod to decide. When none is active, one in backoff after it did not fit is popped early: no other pod
    /// waits for the decision.
    pub fn pop(&mut self) -> Option<Arc<PodState>> {
        let key = match self.active.pop_first() {
            Some((_, key)) => key,
            None => self.back_off.pop_first()?.1,
        };
        let queued = self.pods.get_mut(&key)?;
        queued.state = State::InFlight;
        queued.attempts += 1;
        let pod = queued.pod.whole();
        queued.pod = Waiting::Whole(Arc::clone(&pod));
        Some(pod)
    }

    /// How often a pod was decided, and since when it is queued.
    pub fn progress(&self, key: &str) -> Option<(u32, Timestamp)> {
        self.pods.get(key).map(|queued| (queued.attempts, queued.since))
    }

    /// How many pods wait where.
    pub fn lengths(&self) -> Lengths {
        Lengths {
            active: self.active.len(),
            backoff: self.back_off.len() + self.error_back_off.len(),
            unschedulable: self.unschedulable.len(),
            gated: self.gated.len(),
        }
    }

    /// A pod in flight is unschedulable: it waits for an event that resolves these plugins' rejections.
    pub fn unschedulable(&mut self, key: &str, plugins: Vec<&'static str>, now: Timestamp) {
        let Some(queued) = self.pods.get_mut(key) else { return };
        if !matches!(queued.state, State::InFlight) {
            return;
        }
        queued.misfits += 1;
        queued.errors = 0;
        let key = Arc::clone(&queued.pod.key);
        for plugin in if plugins.is_empty() { &[ANYTHING][..] } else { &plugins } {
            self.rejected_by.entry(plugin).or_default().insert(Arc::clone(&key));
            UNSCHEDULABLE.add(&[plugin, queued.pod.whole().scheduler_name()], 1.0);
        }
        INCOMING.add(&["ScheduleAttemptFailure", "unschedulable"], 1);
        queued.state = State::Unschedulable { plugins, since: now };
        self.unschedulable.insert((now, key));
    }

    /// A pod in flight failed for another reason, such as a rejected binding: it is retried after its backoff.
    pub fn failed(&mut self, key: &str, now: Timestamp) {
        self.leave(key);
        let Some(queued) = self.pods.get_mut(key) else { return };
        queued.errors += 1;
        let until = now.saturating_add(back_off(queued.errors, self.initial_back_off, self.max_back_off));
        let until = until.unwrap_or(Timestamp::MAX);
        INCOMING.add(&["ScheduleAttemptFailure", "backoff"], 1);
        queued.state = State::BackingOff { until, after_error: true };
        self.error_back_off.insert((until, Arc::clone(&queued.pod.key)));
    }

    /// Retries an unschedulable pod after its backoff: the event that it waits for will not come.
    pub fn retry(&mut self, key: &str, now: Timestamp) {
        if matches!(self.pods.get(key).map(|queued| &queued.state), Some(State::Unschedulable { .. })) {
            self.leave(key);
            self.ready(key, "ForceActivate", now);
        }
    }

    /// Whether some pod waits for an event.
    pub fn has_unschedulable(&self) -> bool {
        !self.unschedulable.is_empty()
    }

    /// Requeues the pods that the event can help.
    pub fn on_event(&mut self, event: &ClusterEvent<'_>, namespaces: &Namespaces, now: Timestamp) {
        self.on_event_for(event, namespaces, |_| true, now);
    }

    /// Requeues the pods that the event can help, of those that it concerns.
    pub fn on_event_for(
        &mut self,
        event: &ClusterEvent<'_>,
        namespaces: &Namespaces,
        concerns: impl Fn(&PodState) -> bool,
        now: Timestamp,
    ) {
        let mut woken: Vec<Arc<str>> = Vec::new();
        for (plugin, keys) in &self.rejected_by {
            let helped = |key: &&Arc<str>| {
                let pod = self.pods.get(*key).map(|queued| queued.pod.whole());
                pod.is_some_and(|pod| concerns(&pod) && helps(plugin, &pod, event, namespaces))
            };
            woken.extend(keys.iter().filter(helped).cloned());
        }
        for key in woken {
            if matches!(self.pods.get(&key).map(|queued| &queued.state), Some(State::Unschedulable { .. })) {
                self.leave(&key);
                self.ready(&key, event.name(), now);
            }
        }
    }

    /// Moves pods whose backoff has expired. Returns when the next one expires.
    pub fn advance(&mut self, now: Timestamp) -> Option<Timestamp> {
        for after_error in [false, true] {
            let waiting = |queue: &Self| {
                let set = if after_error { &queue.error_back_off } else { &queue.back_off };
                set.first().filter(|(until, _)| *until <= now).map(|(_, key)| Arc::clone(key))
            };
            while let Some(key) = waiting(self) {
                self.leave(&key);
                INCOMING.add(&["BackoffComplete", "active"], 1);
                self.activate(&key);
            }
        }
        let over = |since: Timestamp| since.saturating_add(MAX_UNSCHEDULABLE_TIME).unwrap_or(Timestamp::MAX);
        while let Some((since, key)) = self.unschedulable.first().cloned()
            && over(since) <= now
        {
            self.leave(&key);
            self.ready(&key, "UnschedulableTimeout", now);
        }
        let first = |set: &BTreeSet<(Timestamp, Arc<str>)>| set.first().map(|(until, _)| *until);
        let waiting = first(&self.unschedulable).map(over);
        first(&self.back_off).into_iter().chain(first(&self.error_back_off)).chain(waiting).min()
    }

    pub fn is_waiting(&self, key: &str) -> bool {
        self.pods.contains_key(key)
    }

    /// Active, unless its backoff is still running. `event` is why.
    fn ready(&mut self, key: &str, event: &str, now: Timestamp) {
        let Some(queued) = self.pods.get_mut(key) else { return };
        let since = match &queued.state {
            State::Unschedulable { since, .. } => *since,
            _ => now,
        };
        let wait = back_off(queued.misfits, self.initial_back_off, self.max_back_off);
        let until = since.saturating_add(wait).unwrap_or(Timestamp::MAX);
        if until <= now {
            INCOMING.add(&[event, "active"], 1);
            self.activate(key);
        } else {
            INCOMING.add(&[event, "backoff"], 1);
            queued.state = State::BackingOff { until, after_error: false };
            self.back_off.insert((until, Arc::clone(&queued.pod.key)));
        }
    }

    fn activate(&mut self, key: &str) {
        if let Some(queued) = self.pods.get_mut(key) {
            queued.state = State::Active;
            self.waiting.keep(&mut queued.pod, self.active.len());
            self.active.insert(rank(queued), Arc::clone(&queued.pod.key));
        }
    }

    fn gate(&mut self, key: &str) {
        if let Some(queued) = self.pods.get_mut(key) {
            INCOMING.add(&["PodAdd", "gated"], 1);
            queued.state = State::Gated;
            self.gated.insert(Arc::clone(&queued.pod.key));
        }
    }

    /// Removes a pod from the list it is in; its state stays.
    fn leave(&mut self, key: &str) {
        let Some(queued) = self.pods.get(key) else { return };
        let own = Arc::clone(&queued.pod.key);
        match &queued.state {
            State::Active => {
                self.active.remove(&rank(queued));
            }
            State::BackingOff { until, after_error } => {
                let set = if *after_error { &mut self.error_back_off } else { &mut self.back_off };
                set.remove(&(*until, own));
            }
            State::Unschedulable { plugins, since } => {
                for plugin in if plugins.is_empty() { &[ANYTHING][..] } else { plugins } {
                    UNSCHEDULABLE.add(&[plugin, queued.pod.whole().scheduler_name()], -1.0);
                    if let Some(keys) = self.rejected_by.get_mut(plugin) {
                        keys.remove(key);
                        if keys.is_empty() {
                            self.rejected_by.remove(plugin);
                        }
                    }
                }
                self.unschedulable.remove(&(*since, own));
            }
            State::Gated => {
                self.gated.remove(key);
            }
            State::InFlight => {}
        }
    }
}

/// Doubles with each attempt, up to the limit; zero before the first.
fn back_off(times: u32, initial: Duration, max: Duration) -> Duration {
    match times.checked_sub(1) {
        None => Duration::ZERO,
        Some(doublings) => initial.saturating_mul(1 << doublings.min(16)).min(max),
    }
}

fn rank(queued: &Queued) -> Rank {
    Rank { priority: queued.pod.priority(), since: queued.since, order: queued.order }
}

#[cfg(test)]
mod tests;
