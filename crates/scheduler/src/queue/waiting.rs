//! A pod in the queue: whole, or packed while thousands are before it.
//!
//! A whole pod uses about 15 KB. When a hundred thousand are created at once, most wait for minutes, and only their order and
//! identity are read meanwhile.

use std::ops::Deref;
use std::sync::Arc;

use knarr_packing::{Packed, Packer};

use crate::cluster::placed::PlacedPod;
use crate::cluster::pod::PodState;

/// How many active pods are kept whole.
const MAX_WHOLE: usize = 10_000;

pub(super) enum Waiting {
    Whole(Arc<PodState>),
    /// Its object as JSON.
    Packed {
        placed: Arc<PlacedPod>,
        object: Packed,
    },
}

/// Packs pods.
pub(super) struct WaitingPods {
    packer: Packer,
    max_whole: usize,
}

impl Default for WaitingPods {
    fn default() -> Self {
        Self { packer: Packer::default(), max_whole: MAX_WHOLE }
    }
}

impl WaitingPods {
    /// Packs a pod that becomes active if many are active already.
    pub fn keep(&mut self, pod: &mut Waiting, active: usize) {
        if active < self.max_whole {
            return;
        }
        // A pod that cannot be serialized stays unpacked.
        if let Waiting::Whole(state) = pod
            && let Ok(text) = serde_json::to_vec(&*state.object)
        {
            *pod = Waiting::Packed { placed: Arc::clone(&state.placed), object: self.packer.pack(&text) };
        }
    }
}

impl Waiting {
    /// The pod; unpacked by each call if it is packed.
    pub fn whole(&self) -> Arc<PodState> {
        match self {
            Self::Whole(pod) => Arc::clone(pod),
            Self::Packed { placed, object } => {
                let object = knarr_client::decode::from_bytes(&object.text()).expect("`keep` wrote it from a Pod");
                Arc::new(PodState::with(Arc::clone(placed), Arc::new(object)))
            }
        }
    }
}

impl Deref for Waiting {
    type Target = PlacedPod;

    fn deref(&self) -> &PlacedPod {
        match self {
            Self::Whole(pod) => &pod.placed,
            Self::Packed { placed, .. } => placed,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;
    use serde_json::json;

    use super::super::Queue;
    use super::*;
    use crate::cluster::labels::Namespaces;

    fn pod(number: i32) -> Arc<PodState> {
        let object = json!({"metadata": {"name": format!("p{number}"), "namespace": "n", "uid": format!("u{number}")},
            "spec": {"priority": -number, "nodeSelector": {"disk": "ssd"}, "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "c", "resources": {"requests": {"cpu": "1500m"}}}],
                "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]}});
        Arc::new(PodState::new(Arc::new(serde_json::from_value(object).unwrap())))
    }

    #[test]
    fn pods_behind_many_others_are_packed_and_popped_as_they_were() {
        let mut queue = Queue::new(Duration::from_secs(1), Duration::from_secs(10));
        queue.waiting.max_whole = 10;
        let (namespaces, now) = (Namespaces::default(), Timestamp::UNIX_EPOCH);
        for number in 0..100 {
            queue.set(pod(number), false, &namespaces, now);
        }
        let packed =
            |queue: &Queue| queue.pods.values().filter(|queued| matches!(queued.pod, Waiting::Packed { .. })).count();
        assert_eq!(packed(&queue), 90);
        assert!(queue.is_same("n/p99", "u99"));
        queue.remove("n/p98");
        for number in (0..98).chain([99]) {
            let (popped, whole) = (queue.pop().unwrap(), pod(number));
            assert_eq!(*popped.object, *whole.object, "{number}");
            assert_eq!((&popped.key, popped.spread.len(), popped.priority()), (&whole.key, 1, -number));
        }
        assert_eq!(packed(&queue), 0, "pods in flight are whole");
        // A change of a packed pod replaces it.
        for number in 100..120 {
            queue.set(pod(number), false, &namespaces, now);
        }
        queue.set(pod(119), false, &namespaces, now);
        assert_eq!(queue.pop().unwrap().name(), "p100");
    }
}
