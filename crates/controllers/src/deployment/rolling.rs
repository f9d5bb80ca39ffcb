//! A rolling update: new pods up to the surge, old ones down to the minimum available, unhealthy ones first.

use super::plan::{Work, max_unavailable, new_set_size, replicas};
use super::status;

pub(super) fn roll(work: &mut Work) {
    if grow_new(work) || shrink_old(work) {
        return;
    }
    if status::is_complete(work.deployment, &work.deployment.status.clone().unwrap_or_default()) {
        work.clean_up();
    }
}

/// Whether the current revision changed its size.
fn grow_new(work: &mut Work) -> bool {
    let others: i32 = work.old.iter().map(|old| old.replicas()).sum();
    let desired = replicas(work.spec);
    let Some(new) = work.new.as_mut().filter(|new| new.observed.is_some()) else { return false };
    let current = new.replicas();
    let size = if current >= desired { desired } else { new_set_size(work.spec, others, current) };
    new.resize(size, work.spec)
}

/// Whether any old revision was scaled down.
fn shrink_old(work: &mut Work) -> bool {
    let spec = work.spec;
    let Some(new) = &work.new else { return false };
    let old_total: i32 = work.old.iter().map(|old| old.replicas()).sum();
    if old_total == 0 {
        return false;
    }
    let min_available = replicas(spec) - max_unavailable(spec);
    let new_unavailable = new.replicas() - new.available();
    let room = old_total + new.replicas() - min_available - new_unavailable;
    if room <= 0 {
        return false;
    }
    let new_available = new.available();
    let Some(cleaned) = drop_unhealthy(work, room) else { return false };
    let available =
        new_available + work.old.iter().filter(|old| old.former_replicas() > 0).map(|old| old.available()).sum::<i32>();
    let mut surplus = available - min_available;
    let mut shrunk = 0;
    for old in work.old.iter_mut().filter(|old| old.former_replicas() > 0) {
        if surplus <= 0 {
            break;
        }
        let step = old.replicas().min(surplus);
        if step > 0 {
            let size = old.replicas() - step;
            old.resize(size, spec);
            surplus -= step;
            shrunk += step;
        }
    }
    cleaned + shrunk > 0
}

/// Scales down unavailable pods of the oldest revisions first. Returns `None` when a revision reports more available pods
/// than its size: its status is stale, and those pods are already terminating.
fn drop_unhealthy(work: &mut Work, room: i32) -> Option<i32> {
    let mut dropped = 0;
    for old in &mut work.old {
        if dropped >= room {
            break;
        }
        let unhealthy = old.replicas() - old.available();
        if old.replicas() == 0 || unhealthy == 0 {
            continue;
        }
        if unhealthy < 0 {
            return None;
        }
        let step = unhealthy.min(room - dropped);
        let size = old.replicas() - step;
        old.resize(size, work.spec);
        dropped += step;
    }
    Some(dropped)
}
