//! Plans which pods to create and delete, and computes the status.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetSpec, DaemonSetStatus};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::jiff::Timestamp;
use knarr_client::pod;

use super::placement::{is_current, suits};
use super::rolling;
use crate::common::key::{name, namespace};
use crate::common::requests::unless_zero;

/// At most this many pods are created, and deleted, before the cache must show them.
const BURST: usize = 250;

pub(super) struct Observed<'a> {
    pub set: &'a DaemonSet,
    pub spec: &'a DaemonSetSpec,
    pub nodes: &'a [Arc<Node>],
    pub by_node: &'a BTreeMap<String, Vec<Arc<Pod>>>,
    pub hash: &'a str,
}

#[derive(Default)]
pub(super) struct Plan {
    /// Names of nodes.
    pub create: Vec<String>,
    pub delete: Vec<Arc<Pod>>,
    /// Whether it is a warning, the reason and the message.
    pub events: Vec<(bool, &'static str, String)>,
    pub recheck: Option<Duration>,
}

/// `failed` returns how long a node's failed pod must wait for replacement; when it need not wait, the call records one.
pub(super) fn plan(observed: &Observed, now: Timestamp, failed: impl Fn(&str) -> Option<Duration>) -> Plan {
    let mut plan = Plan::default();
    for node in observed.nodes {
        plan_node(observed, node, now, &failed, &mut plan);
    }
    let known: HashSet<&str> = observed.nodes.iter().map(|node| name(&**node)).collect();
    for (node, pods) in observed.by_node {
        if !known.contains(node.as_str()) {
            // Pending pods for a node that is gone.
            plan.delete
                .extend(pods.iter().filter(|pod| pod::node_name(pod).is_none() && !pod::is_terminating(pod)).cloned());
        }
    }
    if plan.create.is_empty() && plan.delete.is_empty() && rolls(observed.spec) {
        rolling::plan(observed, now, &mut plan);
    }
    plan.create.truncate(BURST);
    plan.delete.truncate(BURST);
    plan
}

fn rolls(spec: &DaemonSetSpec) -> bool {
    let kind = spec.update_strategy.as_ref().and_then(|strategy| strategy.type_.as_deref());
    kind.is_none_or(|kind| kind == "RollingUpdate")
}

fn plan_node(
    observed: &Observed,
    node: &Node,
    now: Timestamp,
    failed: &impl Fn(&str) -> Option<Duration>,
    plan: &mut Plan,
) {
    let (should_run, may_stay) = suits(observed.set, node);
    let Some(pods) = observed.by_node.get(name(node)) else {
        if should_run {
            plan.create.push(name(node).to_owned());
        }
        return;
    };
    let present = pods.iter().filter(|pod| !pod::is_terminating(pod));
    if !may_stay {
        plan.delete.extend(present.cloned());
        return;
    }
    let mut running: Vec<&Arc<Pod>> = Vec::new();
    for pod in present {
        let text = |word: &str, act: &str| {
            format!(
                "Found {word} daemon pod {}/{} on node {}, will try to {act} it",
                namespace(&**pod),
                name(&**pod),
                name(node)
            )
        };
        match pod::phase(pod) {
            "Failed" => match failed(name(node)) {
                Some(wait) => plan.recheck = Some(plan.recheck.map_or(wait, |known| known.min(wait))),
                None => {
                    plan.events.push((true, "FailedDaemonPod", text("failed", "kill")));
                    plan.delete.push(pod.clone());
                }
            },
            "Succeeded" => {
                plan.events.push((false, "SucceededDaemonPod", text("succeeded", "delete")));
                plan.delete.push(pod.clone());
            }
            _ => running.push(pod),
        }
    }
    if !rolling::surges(observed.spec) {
        plan.delete.extend(running.into_iter().skip(1).cloned());
    } else if running.is_empty() && should_run && pods.iter().all(|pod| pod::is_terminating(pod)) {
        plan.create.push(name(node).to_owned());
    } else {
        keep_one_of_each(observed, running, now, plan);
    }
}

/// While surging, an old and a new pod may run side by side until the new one is available.
fn keep_one_of_each(observed: &Observed, running: Vec<&Arc<Pod>>, now: Timestamp, plan: &mut Plan) {
    let (mut new, mut old): (Vec<&Arc<Pod>>, Vec<&Arc<Pod>>) =
        running.into_iter().partition(|pod| is_current(observed.set, pod, observed.hash));
    plan.delete.extend(new.drain(1.min(new.len())..).chain(old.drain(1.min(old.len())..)).cloned());
    if let (Some(new), Some(old)) = (new.first(), old.first()) {
        let min_ready = observed.spec.min_ready_seconds.unwrap_or(0);
        if !pod::is_ready(old) || pod::is_available(new, min_ready, now) {
            plan.delete.push((*old).clone());
        }
    }
}

pub(super) fn status(
    observed: &Observed,
    by_node: &BTreeMap<String, Vec<Arc<Pod>>>,
    observed_spec: bool,
    now: Timestamp,
) -> DaemonSetStatus {
    let old = observed.set.status.clone().unwrap_or_default();
    let min_ready = observed.spec.min_ready_seconds.unwrap_or(0);
    let mut status = DaemonSetStatus {
        collision_count: old.collision_count,
        conditions: old.conditions,
        observed_generation: if observed_spec { observed.set.metadata.generation } else { old.observed_generation },
        ..DaemonSetStatus::default()
    };
    let (mut updated, mut available) = (0, 0);
    for node in observed.nodes {
        let pod = by_node.get(name(&**node)).and_then(|pods| pods.first());
        match (suits(observed.set, node).0, pod) {
            (true, None) => status.desired_number_scheduled += 1,
            (true, Some(pod)) => {
                status.desired_number_scheduled += 1;
                status.current_number_scheduled += 1;
                status.number_ready += i32::from(pod::is_ready(pod));
                available += i32::from(pod::is_available(pod, min_ready, now));
                updated += i32::from(is_current(observed.set, pod, observed.hash));
            }
            (false, Some(_)) => status.number_misscheduled += 1,
            (false, None) => {}
        }
    }
    status.updated_number_scheduled = unless_zero(updated);
    status.number_available = unless_zero(available);
    status.number_unavailable = unless_zero(status.desired_number_scheduled - available);
    status
}

#[cfg(test)]
mod tests;
