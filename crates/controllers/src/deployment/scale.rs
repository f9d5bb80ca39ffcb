//! Scaling a deployment outside or during a rollout: in proportion to the size of each revision.

use super::plan::{Set, Work, by_creation, is_rolling, max_surge, replicas};
use super::revision;

/// Whether the deployment's size differs from the one its ReplicaSets were last sized for.
pub(super) fn is_scaling(work: &Work) -> bool {
    let active = work.old.iter().chain(&work.new).filter(|set| set.replicas() > 0);
    active.filter_map(|set| revision::desired_size(&set.set)).any(|desired| desired != replicas(work.spec))
}

pub(super) fn scale(work: &mut Work) {
    let spec = work.spec;
    if let Some(only) = active_or_latest(work) {
        only.resize(replicas(spec), spec);
        return;
    }
    if is_saturated(work) {
        for old in work.old.iter_mut().filter(|old| old.replicas() > 0) {
            old.resize(0, spec);
        }
        return;
    }
    if is_rolling(spec) {
        scale_in_proportion(work);
    }
}

/// The one revision with pods; the newest when none has any; `None` when several have.
fn active_or_latest<'w>(work: &'w mut Work) -> Option<&'w mut Set> {
    let active = work.old.iter().chain(&work.new).filter(|set| set.replicas() > 0).count();
    match active {
        0 if work.new.is_some() => work.new.as_mut(),
        0 => work.old.last_mut(),
        1 => work.old.iter_mut().chain(&mut work.new).find(|set| set.replicas() > 0),
        _ => None,
    }
}

/// The current revision has all replicas and all of them are available.
fn is_saturated(work: &Work) -> bool {
    let desired = replicas(work.spec);
    work.new.as_ref().is_some_and(|new| {
        new.replicas() == desired && revision::desired_size(&new.set) == Some(desired) && new.available() == desired
    })
}

fn scale_in_proportion(work: &mut Work) {
    let spec = work.spec;
    let status_replicas = work.deployment.status.as_ref().and_then(|status| status.replicas).unwrap_or(0);
    let mut active: Vec<&mut Set> = work.old.iter_mut().chain(&mut work.new).filter(|set| set.replicas() > 0).collect();
    let total: i32 = active.iter().map(|set| set.replicas()).sum();
    let allowed = if replicas(spec) > 0 { replicas(spec) + max_surge(spec) } else { 0 };
    let to_add = allowed - total;
    // The largest gets what rounding leaves over: of equals the newer when growing, the older when shrinking.
    active.sort_by(|a, b| {
        let ties = by_creation(&a.set, &b.set);
        b.replicas().cmp(&a.replicas()).then(if to_add > 0 { ties.reverse() } else { ties })
    });
    let mut added = 0;
    let mut sizes = Vec::with_capacity(active.len());
    for set in &active {
        let share =
            if to_add == 0 || to_add == added { 0 } else { proportion(set, spec, status_replicas, to_add, added) };
        added += share;
        sizes.push(set.replicas() + share);
    }
    if let Some(largest) = sizes.first_mut() {
        *largest = (*largest + to_add - added).max(0);
    }
    for (set, size) in active.into_iter().zip(sizes) {
        set.force_resize(size, spec);
    }
}

fn proportion(
    set: &Set,
    spec: &k8s_openapi::api::apps::v1::DeploymentSpec,
    status_replicas: i32,
    to_add: i32,
    added: i32,
) -> i32 {
    let fraction = if replicas(spec) == 0 {
        -set.replicas()
    } else {
        let before = revision::max_size(&set.set).filter(|max| *max != 0).unwrap_or(status_replicas);
        if before == 0 {
            0
        } else {
            let after = f64::from(replicas(spec) + max_surge(spec));
            let size = f64::from(set.replicas()) * after / f64::from(before);
            (size + if size < 0.0 { -0.5 } else { 0.5 }) as i32 - set.replicas()
        }
    };
    let left = to_add - added;
    if to_add > 0 { fraction.min(left) } else { fraction.max(left) }
}
