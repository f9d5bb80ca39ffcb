//! Whether a node still reports its state.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, NodeCondition};
use k8s_openapi::jiff::Timestamp;
use knarr_client::time;
use tokio::time::Instant;

use crate::common::key::uid;

/// Conditions that only the node itself reports.
const NODE_CONDITIONS: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

/// The current time: by the wall clock for what is written, and by the monotonic clock for what is measured. A step of the
/// wall clock must not look like silence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    pub wall: Timestamp,
    pub monotonic: Instant,
}

/// The last observed change of a node, by this process' own clock.
#[derive(Debug)]
pub(super) struct Health {
    pub uid: String,
    heartbeat: Option<Timestamp>,
    renewed: Option<Timestamp>,
    /// When a report of the node was last observed.
    last_report: Instant,
    /// It stopped reporting, and its pods are not marked yet.
    owes_marks: bool,
}

#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    Alive,
    /// The conditions to write.
    Silent(Vec<NodeCondition>),
}

pub(super) fn ready(node: &Node) -> Option<&NodeCondition> {
    knarr_client::node::condition(node.status.as_ref()?, "Ready")
}

impl Health {
    pub fn new(node: &Node, now: Now) -> Self {
        let heartbeat = ready(node).and_then(|ready| ready.last_heartbeat_time.as_ref()).map(|at| at.0);
        // A node that never reported counts from its creation.
        let last_report = match ready(node) {
            Some(_) => now.monotonic,
            None => {
                let created = node.metadata.creation_timestamp.as_ref().map_or(now.wall, |at| at.0);
                let age = Duration::try_from(now.wall.duration_since(created)).unwrap_or_default();
                now.monotonic.checked_sub(age).unwrap_or(now.monotonic)
            }
        };
        Self { uid: uid(node).to_owned(), heartbeat, renewed: None, last_report, owes_marks: false }
    }

    pub fn observe(&mut self, node: &Node, renewed: Option<Timestamp>, now: Now) {
        let heartbeat = ready(node).and_then(|ready| ready.last_heartbeat_time.as_ref()).map(|at| at.0);
        if heartbeat != self.heartbeat {
            self.heartbeat = heartbeat;
            self.last_report = now.monotonic;
        }
        // Any change is a sign of life: the node's clock may have been stepped back.
        if renewed.is_some() && renewed != self.renewed {
            self.renewed = renewed;
            self.last_report = now.monotonic;
        }
    }

    pub fn evaluate(&self, node: &Node, grace: Duration, startup_grace: Duration, now: Now) -> Verdict {
        let grace = if ready(node).is_some() { grace } else { startup_grace };
        if now.monotonic.duration_since(self.last_report) <= grace {
            return Verdict::Alive;
        }
        let mut conditions = node.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
        for kind in NODE_CONDITIONS {
            match conditions.iter_mut().find(|condition| condition.type_ == kind) {
                Some(condition) if condition.status == "Unknown" => {}
                Some(condition) => {
                    condition.status = "Unknown".to_owned();
                    condition.reason = Some("NodeStatusUnknown".to_owned());
                    condition.message = Some("Kubelet stopped posting node status.".to_owned());
                    condition.last_transition_time = Some(time::truncated(now.wall));
                }
                None => conditions.push(NodeCondition {
                    type_: kind.to_owned(),
                    status: "Unknown".to_owned(),
                    reason: Some("NodeStatusNeverUpdated".to_owned()),
                    message: Some("Kubelet never posted node status.".to_owned()),
                    last_heartbeat_time: node.metadata.creation_timestamp.clone(),
                    last_transition_time: Some(time::truncated(now.wall)),
                }),
            }
        }
        Verdict::Silent(conditions)
    }

    /// Whether the node's pods must be marked as not ready: it stopped reporting now, or marking them failed before.
    pub fn has_to_mark(&mut self, fell_silent: bool, is_ready: bool) -> bool {
        self.owes_marks = (self.owes_marks || fell_silent) && !is_ready;
        self.owes_marks
    }

    pub fn marked(&mut self) {
        self.owes_marks = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const GRACE: Duration = Duration::from_secs(50);
    const STARTUP: Duration = Duration::from_secs(60);

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// A function from seconds to times, with a wall clock that was stepped.
    fn clock(step: i64) -> impl Fn(i64) -> Now {
        let start = Instant::now() + Duration::from_secs(1000);
        move |second| Now { wall: at(second + step), monotonic: start + Duration::from_secs(second.unsigned_abs()) }
    }

    fn node(heartbeat: Option<i64>) -> Node {
        let conditions = heartbeat.map_or(
            json!([]),
            |second| json!([{"type": "Ready", "status": "True", "lastHeartbeatTime": at(second).to_string()}]),
        );
        serde_json::from_value(json!({"metadata": {"name": "n", "creationTimestamp": at(0).to_string()}, "status": {"conditions": conditions}}))
            .unwrap()
    }

    #[test]
    fn the_grace_period_counts_from_the_last_observed_change() {
        let now = clock(0);
        let mut health = Health::new(&node(Some(1)), now(100));
        assert_eq!(health.evaluate(&node(Some(1)), GRACE, STARTUP, now(150)), Verdict::Alive);
        health.observe(&node(Some(1)), Some(at(5)), now(140));
        assert_eq!(health.evaluate(&node(Some(1)), GRACE, STARTUP, now(190)), Verdict::Alive, "the lease was renewed");
        health.observe(&node(Some(1)), Some(at(5)), now(180));
        let Verdict::Silent(conditions) = health.evaluate(&node(Some(1)), GRACE, STARTUP, now(191)) else {
            panic!("alive")
        };
        assert_eq!(conditions.len(), 4);
        let reasons: Vec<_> = conditions.iter().map(|c| (c.type_.as_str(), c.reason.as_deref().unwrap())).collect();
        assert_eq!(reasons[0], ("Ready", "NodeStatusUnknown"));
        assert_eq!(reasons[1], ("MemoryPressure", "NodeStatusNeverUpdated"));
        health.observe(&node(Some(2)), Some(at(5)), now(192));
        assert_eq!(health.evaluate(&node(Some(2)), GRACE, STARTUP, now(193)), Verdict::Alive, "a heartbeat came");
    }

    #[test]
    fn a_node_that_never_reported_has_a_startup_grace_period() {
        let now = clock(0);
        let health = Health::new(&node(None), now(10));
        assert_eq!(health.evaluate(&node(None), GRACE, STARTUP, now(60)), Verdict::Alive);
        assert!(matches!(health.evaluate(&node(None), GRACE, STARTUP, now(61)), Verdict::Silent(_)));
    }

    #[test]
    fn pods_of_an_unknown_node_are_marked_until_it_succeeds() {
        let mut health = Health::new(&node(None), clock(0)(0));
        assert!(!health.has_to_mark(false, true) && !health.has_to_mark(false, false));
        assert!(health.has_to_mark(true, false) && health.has_to_mark(false, false));
        health.marked();
        assert!(!health.has_to_mark(false, false));
        assert!(health.has_to_mark(true, false) && !health.has_to_mark(false, true));
    }
}
