//! How a new template replaces the old one, node by node.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::DaemonSetSpec;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use knarr_client::pod;

use super::placement::{is_current, suits};
use super::plan::{Observed, Plan};
use crate::common::int_or_percent::scaled;
use crate::common::key::name;

pub(super) fn surges(spec: &DaemonSetSpec) -> bool {
    limits(spec, 100).0 > 0
}

/// Surge and unavailability for this many nodes, both rounded up.
fn limits(spec: &DaemonSetSpec, desired: i32) -> (i32, i32) {
    let rolling = spec.update_strategy.as_ref().and_then(|strategy| strategy.rolling_update.as_ref());
    let surge = rolling.and_then(|rolling| rolling.max_surge.as_ref());
    let surge = surge.and_then(|value| scaled(value, desired, true)).unwrap_or(0);
    let unavailable = rolling.and_then(|rolling| rolling.max_unavailable.as_ref());
    let default = i32::from(rolling.is_none() || surge == 0);
    let unavailable = unavailable.map_or(Some(default), |value| scaled(value, desired, true)).unwrap_or(default);
    if desired > 0 && surge == 0 && unavailable == 0 { (0, 1) } else { (surge, unavailable) }
}

/// The new and the old pod of a node; `None` when it has several of one.
fn pair<'a>(observed: &Observed, pods: &'a [Arc<Pod>]) -> Option<(Option<&'a Arc<Pod>>, Option<&'a Arc<Pod>>)> {
    let present = pods.iter().filter(|pod| !pod::is_terminating(pod));
    let (new, old): (Vec<_>, Vec<_>) = present.partition(|pod| is_current(observed.set, pod, observed.hash));
    (new.len() <= 1 && old.len() <= 1).then(|| (new.first().copied(), old.first().copied()))
}

pub(super) fn plan(observed: &Observed, now: Timestamp, plan: &mut Plan) {
    let desired = observed.nodes.iter().filter(|node| suits(observed.set, node).0).count() as i32;
    let (surge, unavailable) = limits(observed.spec, desired);
    if surge == 0 {
        replace_in_place(observed, unavailable, now, plan)
    } else {
        surge_up(observed, surge, desired, now, plan)
    }
}

/// Deletes old pods, as many as may be unavailable; unavailable ones at once.
fn replace_in_place(observed: &Observed, max_unavailable: i32, now: Timestamp, plan: &mut Plan) {
    let min_ready = observed.spec.min_ready_seconds.unwrap_or(0);
    let is_available = |pod: &Pod| pod::is_available(pod, min_ready, now);
    let mut unavailable = 0;
    let mut candidates = Vec::new();
    let nothing: Vec<Arc<Pod>> = Vec::new();
    for node in observed.nodes {
        let pods = observed.by_node.get(name(&**node));
        if pods.is_none() && !suits(observed.set, node).0 {
            continue;
        }
        match pair(observed, pods.unwrap_or(&nothing)) {
            None | Some((None, None) | (Some(_), Some(_))) => unavailable += 1,
            Some((Some(new), None)) => unavailable += i32::from(!is_available(new)),
            Some((None, Some(old))) if !is_available(old) => {
                plan.delete.push(old.clone());
                unavailable += 1;
            }
            Some((None, Some(old))) => candidates.push(old.clone()),
        }
    }
    let room = usize::try_from(max_unavailable - unavailable).unwrap_or(0);
    plan.delete.extend(candidates.into_iter().take(room));
}

/// Creates new pods beside old ones, which are deleted once the new ones are available.
fn surge_up(observed: &Observed, max_surge: i32, desired: i32, now: Timestamp, plan: &mut Plan) {
    let min_ready = observed.spec.min_ready_seconds.unwrap_or(0);
    let is_available = |pod: &Pod| pod::is_available(pod, min_ready, now);
    let (mut surging, mut available) = (0, 0);
    let (mut candidates, mut surplus) = (Vec::new(), Vec::new());
    for node in observed.nodes {
        let Some(pods) = observed.by_node.get(name(&**node)) else { continue };
        let Some((new, old)) = pair(observed, pods) else {
            surging += 1;
            continue;
        };
        available += i32::from(old.or(new).is_some_and(|pod| is_available(pod)));
        let should_run = suits(observed.set, node).0;
        match (new, old) {
            (_, None) => {}
            (None, Some(old)) if !should_run && is_available(old) => surplus.push(old.clone()),
            (None, Some(old)) if !should_run => plan.delete.push(old.clone()),
            (None, Some(old)) if !is_available(old) => plan.create.push(name(&**node).to_owned()),
            (None, Some(_)) => candidates.push(name(&**node).to_owned()),
            (Some(new), Some(old)) if is_available(new) => plan.delete.push(old.clone()),
            (Some(_), Some(_)) => surging += 1,
        }
    }
    let spare = usize::try_from(available - desired).unwrap_or(0);
    plan.delete.extend(surplus.into_iter().take(spare));
    let room = usize::try_from(max_surge - surging).unwrap_or(0);
    plan.create.extend(candidates.into_iter().take(room));
}
