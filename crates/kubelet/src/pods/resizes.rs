//! Grants resizes of running pods one at a time. Those that must wait for room are granted in the order of Kubernetes.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;

use super::room::{Requests, Room, Used};
use crate::cgroup::amounts::pod_amounts;
use crate::cgroup::qos::{QosClass, qos_class};
use crate::pod;
use crate::worker::resize::{Pending, resources_of};

/// The resizes of all pods of the node.
#[derive(Default)]
pub struct Resizes(Mutex<State>);

#[derive(Default)]
struct State {
    /// Those without room, by the uid of the pod.
    waiting: HashMap<String, Waiting>,
    /// Those granted, until the worker of the pod uses them.
    granted: HashMap<String, Arc<Pod>>,
}

struct Waiting {
    desired: Arc<Pod>,
    since: Instant,
}

/// The order of waiting resizes: those that need nothing more, then by priority, QoS class and time.
type Rank = (bool, Reverse<i32>, Reverse<QosClass>, Instant);

impl Resizes {
    /// Why a pod cannot be resized now; `None` grants it. Resizes that wait and come first keep the room that they need.
    ///
    /// The work is proportional to the number of pods: each one that waits asks every few seconds.
    pub fn decide(
        &self,
        desired: &Arc<Pod>,
        active: impl FnOnce() -> Vec<Arc<Pod>>,
        room: &Room,
        now: Instant,
    ) -> Option<Pending> {
        let mut state = self.0.lock();
        let mut allocated: HashMap<String, Arc<Pod>> =
            active().into_iter().map(|pod| (pod::uid(&pod).to_owned(), pod)).collect();
        state.waiting.retain(|uid, _| allocated.contains_key(uid));
        state.granted.retain(|uid, granted| {
            allocated.get(uid).is_some_and(|known| resources_of(known) != resources_of(granted))
        });
        allocated.extend(state.granted.iter().map(|(uid, pod)| (uid.clone(), pod.clone())));

        let uid = pod::uid(desired);
        let known = state.waiting.get(uid).filter(|known| resources_of(&known.desired) == resources_of(desired));
        let since = known.map_or(now, |known| known.since);
        let own = rank(desired, allocated.get(uid), since);
        let others = state.waiting.iter().filter(|(other, _)| *other != uid);
        let ranked = others.map(|(uid, waiting)| (rank(&waiting.desired, allocated.get(uid), waiting.since), waiting));
        let mut earlier: Vec<(Rank, &Waiting)> = ranked.filter(|(rank, _)| *rank < own).collect();
        earlier.sort_by_key(|(rank, _)| *rank);
        let mut requests: HashMap<&str, Requests> =
            allocated.iter().map(|(uid, pod)| (uid.as_str(), room.requests(pod))).collect();
        let mut used: Used = requests.values().collect();
        for (_, waiting) in earlier {
            let (uid, needed) = (pod::uid(&waiting.desired), room.requests(&waiting.desired));
            let beside = used_by_others(&used, requests.get(uid));
            if room.refusal(&needed, &beside).is_none() {
                used = beside;
                used.add(&needed);
                requests.insert(uid, needed);
            }
        }

        let pending = obstacle(room, &room.requests(desired), &used_by_others(&used, requests.get(uid)));
        state.waiting.remove(uid);
        match &pending {
            None => drop(state.granted.insert(uid.to_owned(), desired.clone())),
            Some(pending) if pending.reason == "Deferred" => {
                state.waiting.insert(uid.to_owned(), Waiting { desired: desired.clone(), since });
            }
            Some(_) => {}
        }
        pending
    }
}

fn rank(desired: &Pod, current: Option<&Arc<Pod>>, since: Instant) -> Rank {
    let requests = |pod: &Pod| {
        let amounts = pod_amounts(pod);
        [amounts.cpu_request, amounts.memory_request]
    };
    let increases = current.is_none_or(|current| {
        requests(desired).iter().zip(requests(current)).any(|(desired, current)| *desired > current)
    });
    let priority = pod::spec(desired).priority.unwrap_or(0);
    (increases, Reverse(priority), Reverse(qos_class(desired)), since)
}

fn used_by_others(all: &Used, own: Option<&Requests>) -> Used {
    let mut others = all.clone();
    if let Some(own) = own {
        others.remove(own);
    }
    others
}

fn obstacle(room: &Room, needed: &Requests, used: &Used) -> Option<Pending> {
    if let Some(refusal) = room.refusal(needed, &Used::default()) {
        return Some(Pending { reason: "Infeasible", message: refusal.message });
    }
    let refusal = room.refusal(needed, used)?;
    Some(Pending { reason: "Deferred", message: refusal.message })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::time::Duration;

    fn pod(name: &str, cpu: &str, priority: i32, guaranteed: bool) -> Arc<Pod> {
        let amounts = json!({ "cpu": cpu, "memory": "1Mi" });
        let resources =
            if guaranteed { json!({ "requests": amounts, "limits": amounts }) } else { json!({ "requests": amounts }) };
        let pod = json!({ "metadata": { "name": name, "uid": name }, "spec": {
            "priority": priority, "containers": [{ "name": "c", "resources": resources }] } });
        Arc::new(serde_json::from_value(pod).expect("a pod"))
    }

    fn room_for_two_cpus() -> Room {
        Room::new(&serde_json::from_value(json!({ "cpu": "2", "pods": "110" })).expect("amounts"))
    }

    #[test]
    fn waiting_resizes_are_granted_in_order() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let names = ["late", "early", "exact", "important"];
        let desired = |name: &str| match name {
            "exact" => pod(name, "900m", 0, true),
            "important" => pod(name, "900m", 1, false),
            _ => pod(name, "900m", 0, false),
        };
        let small: Vec<Arc<Pod>> = names
            .iter()
            .map(|name| match *name {
                "exact" => pod(name, "100m", 0, true),
                "important" => pod(name, "100m", 1, false),
                _ => pod(name, "100m", 0, false),
            })
            .collect();
        let (resizes, room) = (Resizes::default(), room_for_two_cpus());
        let full: Vec<_> = small.iter().cloned().chain([pod("large", "1600m", 0, false)]).collect();
        for (second, name) in ["early", "late", "exact", "important"].into_iter().enumerate() {
            let pending = resizes.decide(&desired(name), || full.clone(), &room, at(second as u64));
            assert!(pending.is_some(), "{name}");
        }
        // There is room for two now, whoever asks first. Nobody has published what is granted.
        let grants: Vec<&str> = ["late", "early", "exact", "important", "late", "early"]
            .into_iter()
            .filter(|name| resizes.decide(&desired(name), || small.clone(), &room, at(9)).is_none())
            .collect();
        assert_eq!(grants, ["exact", "important"]);
        // One that waits does not hold up another that frees resources.
        assert_eq!(resizes.decide(&pod("late", "50m", 0, false), || small.clone(), &room, at(9)), None);
        // Of pods that are gone nothing is kept.
        assert_eq!(resizes.decide(&desired("early"), || vec![small[1].clone()], &room, at(9)), None);
        assert_eq!(resizes.0.lock().granted.len(), 1);
    }

    #[test]
    fn what_the_node_can_never_hold_does_not_wait() {
        let (resizes, room) = (Resizes::default(), room_for_two_cpus());
        let active = || vec![pod("a", "1", 0, false), pod("b", "1", 0, false)];
        for (cpu, reason) in [("1500m", Some("Deferred")), ("2001m", Some("Infeasible")), ("1", None)] {
            let pending = resizes.decide(&pod("a", cpu, 0, false), active, &room, Instant::now());
            assert_eq!(pending.map(|pending| pending.reason), reason, "{cpu}");
        }
        assert!(resizes.0.lock().waiting.is_empty());
    }
}
