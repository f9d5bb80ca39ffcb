//! Which pod is decided next: pods that are ready by priority and age, pods that wait out a back-off, and pods that fit
//! nowhere and wait for an event that can help them.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::cluster::pod::PodState;

/// A pod that no event has helped for so long is tried again all the same.
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// What happened in the cluster that might make room for a waiting pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    NodeAdded,
    NodeAllocatable,
    NodeLabels,
    NodeTaints,
    /// A placed pod left, or asks for less.
    PodRemoved,
    PodAdded,
    PodLabels,
    Storage,
    Claims,
    Namespace,
}

/// Whether the event can help a pod that the plugin rejected.
fn helps(plugin: &str, happened: Happened) -> bool {
    use Happened::{
        Claims, Namespace, NodeAdded, NodeAllocatable, NodeLabels, NodeTaints, PodAdded, PodLabels, PodRemoved, Storage,
    };
    match plugin {
        "NodeUnschedulable" => matches!(happened, NodeAdded | NodeTaints),
        "NodeName" => matches!(happened, NodeAdded),
        "TaintToleration" => matches!(happened, NodeAdded | NodeTaints),
        "NodeAffinity" => matches!(happened, NodeAdded | NodeLabels),
        "NodePorts" => matches!(happened, NodeAdded | PodRemoved),
        "NodeResourcesFit" => matches!(happened, NodeAdded | NodeAllocatable | PodRemoved),
        "PodTopologySpread" => {
            matches!(happened, NodeAdded | NodeLabels | NodeTaints | PodRemoved | PodAdded | PodLabels)
        }
        "InterPodAffinity" => {
            matches!(happened, NodeAdded | NodeLabels | PodRemoved | PodAdded | PodLabels | Namespace)
        }
        "VolumeBinding" | "VolumeZone" | "VolumeRestrictions" | "NodeVolumeLimits" => {
            matches!(happened, NodeAdded | NodeLabels | Storage | Claims | PodRemoved)
        }
        _ => true,
    }
}

struct Queued {
    pod: Arc<PodState>,
    /// When it came into the queue; the older go first.
    since: Timestamp,
    order: u64,
    attempts: u32,
    state: State,
}

enum State {
    Active,
    BackingOff {
        until: Timestamp,
    },
    Unschedulable {
        plugins: Vec<&'static str>,
        since: Timestamp,
    },
    /// Being decided or bound right now; remembers whether an event came meanwhile.
    InFlight {
        happened: Vec<Happened>,
    },
    Gated,
}

/// Higher priority first, then the older.
#[derive(PartialEq, Eq)]
struct Rank {
    priority: i32,
    since: Timestamp,
    order: u64,
}

impl Ord for Rank {
    fn cmp(&self, other: &Self) -> Ordering {
        other.priority.cmp(&self.priority).then(self.since.cmp(&other.since)).then(self.order.cmp(&other.order))
    }
}

impl PartialOrd for Rank {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

pub struct Queue {
    pods: HashMap<Arc<str>, Queued>,
    active: BTreeMap<Rank, Arc<str>>,
    back_off: BTreeSet<(Timestamp, Arc<str>)>,
    unschedulable: BTreeSet<(Timestamp, Arc<str>)>,
    counter: u64,
    initial_back_off: Duration,
    max_back_off: Duration,
}

impl Queue {
    pub fn new(initial_back_off: Duration, max_back_off: Duration) -> Self {
        Queue {
            pods: HashMap::new(),
            active: BTreeMap::new(),
            back_off: BTreeSet::new(),
            unschedulable: BTreeSet::new(),
            counter: 0,
            initial_back_off,
            max_back_off,
        }
    }

    /// Takes in an unbound pod, new or changed.
    pub fn set(&mut self, pod: Arc<PodState>, now: Timestamp) {
        let key = Arc::clone(&pod.key);
        let gated = is_gated(&pod);
        match self.pods.get_mut(&key) {
            Some(queued) => {
                let changed = pod_changed(&queued.pod, &pod);
                if let State::InFlight { .. } = queued.state {
                    queued.pod = pod;
                    return;
                }
                let ungated = matches!(queued.state, State::Gated) && !gated;
                queued.pod = pod;
                if ungated || (changed && matches!(queued.state, State::Unschedulable { .. })) {
                    self.leave(&key);
                    self.ready(&key, now);
                } else if matches!(queued.state, State::Active) {
                    self.leave(&key);
                    self.activate(&key);
                }
            }
            None => {
                self.counter += 1;
                let state = State::Gated;
                let queued = Queued { pod, since: now, order: self.counter, attempts: 0, state };
                self.pods.insert(Arc::clone(&key), queued);
                if !gated {
                    self.activate(&key);
                }
            }
        }
    }

    pub fn remove(&mut self, key: &str) {
        self.leave(key);
        self.pods.remove(key);
    }

    /// The next pod to decide.
    pub fn pop(&mut self) -> Option<Arc<PodState>> {
        let (_, key) = self.active.pop_first()?;
        let queued = self.pods.get_mut(&key)?;
        queued.attempts += 1;
        queued.state = State::InFlight { happened: Vec::new() };
        Some(Arc::clone(&queued.pod))
    }

    /// A pod in flight fits nowhere: it waits for something that helps against what these plugins found.
    pub fn unschedulable(&mut self, key: &str, plugins: Vec<&'static str>, now: Timestamp) {
        let Some(queued) = self.pods.get_mut(key) else { return };
        let State::InFlight { happened } = &queued.state else { return };
        if happened.iter().any(|event| plugins.iter().any(|plugin| helps(plugin, *event))) {
            self.back_off(key, now);
            return;
        }
        queued.state = State::Unschedulable { plugins, since: now };
        self.unschedulable.insert((now, key.into()));
    }

    /// A pod in flight failed for another reason, such as a refused binding: it tries again after its back-off.
    pub fn back_off(&mut self, key: &str, now: Timestamp) {
        self.leave(key);
        let Some(queued) = self.pods.get_mut(key) else { return };
        let factor = 1u32 << queued.attempts.saturating_sub(1).min(16);
        let wait = self.initial_back_off.saturating_mul(factor).min(self.max_back_off);
        let until = now.saturating_add(wait).unwrap_or(Timestamp::MAX);
        queued.state = State::BackingOff { until };
        self.back_off.insert((until, key.into()));
    }

    /// Wakes the pods that the event can help.
    pub fn happened(&mut self, event: Happened, now: Timestamp) {
        for queued in self.pods.values_mut() {
            if let State::InFlight { happened } = &mut queued.state
                && !happened.contains(&event)
            {
                happened.push(event);
            }
        }
        let woken: Vec<Arc<str>> = self
            .unschedulable
            .iter()
            .filter(|(_, key)| {
                matches!(self.pods.get(key).map(|queued| &queued.state),
                    Some(State::Unschedulable { plugins, .. }) if plugins.is_empty() || plugins.iter().any(|plugin| helps(plugin, event)))
            })
            .map(|(_, key)| Arc::clone(key))
            .collect();
        for key in woken {
            self.leave(&key);
            self.ready(&key, now);
        }
    }

    /// Moves pods whose time has come. Answers when the next one's comes.
    pub fn advance(&mut self, now: Timestamp) -> Option<Timestamp> {
        while let Some((until, key)) = self.back_off.first().cloned()
            && until <= now
        {
            self.leave(&key);
            self.activate(&key);
        }
        let longest = jiff::SignedDuration::try_from(LONGEST_WAIT).unwrap_or_default();
        while let Some((since, key)) = self.unschedulable.first().cloned()
            && since.saturating_add(longest).is_ok_and(|until| until <= now)
        {
            self.leave(&key);
            self.ready(&key, now);
        }
        let waiting = self.unschedulable.first().and_then(|(since, _)| since.saturating_add(longest).ok());
        self.back_off.first().map(|(until, _)| *until).into_iter().chain(waiting).min()
    }

    pub fn is_waiting(&self, key: &str) -> bool {
        self.pods.contains_key(key)
    }

    /// Active, unless its back-off is still running.
    fn ready(&mut self, key: &str, now: Timestamp) {
        let Some(queued) = self.pods.get(key) else { return };
        let since = match &queued.state {
            State::Unschedulable { since, .. } => *since,
            _ => now,
        };
        let factor = 1u32 << queued.attempts.saturating_sub(1).min(16);
        let wait = if queued.attempts == 0 {
            Duration::ZERO
        } else {
            self.initial_back_off.saturating_mul(factor).min(self.max_back_off)
        };
        let until = since.saturating_add(wait).unwrap_or(Timestamp::MAX);
        if until <= now {
            self.activate(key);
        } else if let Some(queued) = self.pods.get_mut(key) {
            queued.state = State::BackingOff { until };
            self.back_off.insert((until, key.into()));
        }
    }

    fn activate(&mut self, key: &str) {
        if let Some(queued) = self.pods.get_mut(key) {
            queued.state = State::Active;
            self.active.insert(rank(queued), Arc::clone(&queued.pod.key));
        }
    }

    /// Takes a pod out of the list it is in; its state stays.
    fn leave(&mut self, key: &str) {
        let Some(queued) = self.pods.get(key) else { return };
        match &queued.state {
            State::Active => {
                let own = rank(queued);
                if self.active.remove(&own).is_none() {
                    // Its priority was another when it came in.
                    self.active.retain(|_, other| &**other != key);
                }
            }
            State::BackingOff { until } => {
                self.back_off.remove(&(*until, key.into()));
            }
            State::Unschedulable { since, .. } => {
                self.unschedulable.remove(&(*since, key.into()));
            }
            State::InFlight { .. } | State::Gated => {}
        }
    }
}

fn rank(queued: &Queued) -> Rank {
    Rank { priority: queued.pod.priority(), since: queued.since, order: queued.order }
}

fn is_gated(pod: &PodState) -> bool {
    let gates = pod.object.spec.as_ref().and_then(|spec| spec.scheduling_gates.as_ref());
    gates.is_some_and(|gates| !gates.is_empty())
}

/// Whether a change of the pod itself may help it: its status is the scheduler's own writing.
fn pod_changed(old: &PodState, new: &PodState) -> bool {
    old.object.spec != new.object.spec || old.object.metadata.labels != new.object.metadata.labels
}

/// Pods that were promised room on a node, while those that make it are leaving.
#[derive(Default)]
pub struct Nominations {
    by_pod: HashMap<Arc<str>, (Arc<str>, Arc<PodState>)>,
    by_node: HashMap<Arc<str>, Vec<Arc<PodState>>>,
}

impl Nominations {
    pub fn node_of(&self, key: &str) -> Option<&str> {
        self.by_pod.get(key).map(|(node, _)| &**node)
    }

    /// Other pods of the same or higher priority that were promised room on the node.
    pub fn on(&self, node: &str, pod: &PodState) -> Vec<Arc<PodState>> {
        let promised = self.by_node.get(node).into_iter().flatten();
        promised.filter(|other| other.key != pod.key && other.priority() >= pod.priority()).cloned().collect()
    }

    /// Of lower priority: they lose their promise when this pod takes the room.
    pub fn lower_on(&self, node: &str, priority: i32) -> Vec<Arc<PodState>> {
        let promised = self.by_node.get(node).into_iter().flatten();
        promised.filter(|other| other.priority() < priority).cloned().collect()
    }

    pub fn set(&mut self, pod: Arc<PodState>, node: &str) {
        self.remove(&pod.key);
        let node: Arc<str> = node.into();
        self.by_node.entry(Arc::clone(&node)).or_default().push(Arc::clone(&pod));
        self.by_pod.insert(Arc::clone(&pod.key), (node, pod));
    }

    pub fn remove(&mut self, key: &str) {
        if let Some((node, _)) = self.by_pod.remove(key)
            && let Some(pods) = self.by_node.get_mut(&node)
        {
            pods.retain(|pod| &*pod.key != key);
            if pods.is_empty() {
                self.by_node.remove(&node);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(name: &str, priority: i32) -> Arc<PodState> {
        let object =
            json!({"metadata": {"name": name, "namespace": "n"}, "spec": {"containers": [], "priority": priority}});
        Arc::new(PodState::new(Arc::new(serde_json::from_value(object).unwrap())))
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn queue() -> Queue {
        Queue::new(Duration::from_secs(1), Duration::from_secs(10))
    }

    fn next(queue: &mut Queue) -> Option<String> {
        queue.pop().map(|pod| pod.name().to_owned())
    }

    #[test]
    fn the_more_important_then_the_older_comes_first() {
        let mut queue = queue();
        queue.set(pod("old", 0), at(1));
        queue.set(pod("young", 0), at(2));
        queue.set(pod("high", 5), at(3));
        let order: Vec<Option<String>> = (0..4).map(|_| next(&mut queue)).collect();
        assert_eq!(order, [Some("high".into()), Some("old".into()), Some("young".into()), None]);
    }

    #[test]
    fn only_events_that_help_wake_a_waiting_pod() {
        let mut queue = queue();
        queue.set(pod("a", 0), at(1));
        next(&mut queue);
        queue.unschedulable("n/a", vec!["TaintToleration"], at(1));
        queue.happened(Happened::PodRemoved, at(5));
        queue.advance(at(5));
        assert_eq!(next(&mut queue), None);
        queue.happened(Happened::NodeTaints, at(5));
        queue.advance(at(5));
        assert_eq!(next(&mut queue), Some("a".into()));
    }

    #[test]
    fn an_event_during_the_decision_is_not_lost() {
        let mut queue = queue();
        queue.set(pod("a", 0), at(1));
        next(&mut queue);
        queue.happened(Happened::NodeAdded, at(1));
        queue.unschedulable("n/a", vec!["NodeResourcesFit"], at(1));
        assert_eq!(queue.advance(at(1)), Some(at(2)), "it waits out its back-off only");
        queue.advance(at(2));
        assert_eq!(next(&mut queue), Some("a".into()));
    }

    #[test]
    fn back_off_doubles_up_to_its_limit() {
        let mut queue = queue();
        queue.set(pod("a", 0), at(0));
        let mut now = at(0);
        for seconds in [1, 2, 4, 8, 10, 10] {
            assert!(next(&mut queue).is_some());
            queue.back_off("n/a", now);
            let until = queue.advance(now).unwrap();
            assert_eq!(until.as_second() - now.as_second(), seconds);
            now = until;
            queue.advance(now);
        }
    }
}
