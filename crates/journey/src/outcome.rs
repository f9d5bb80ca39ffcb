//! The outcome of a section: whether its pods are ready, completed or deleted, and after how long.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::message::duration;
use crate::phases::{self, Phase};
use crate::step::Step;

/// The outcome of a creation or deletion.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// After how many microseconds everything was ready, or deleted, for the first time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// The outcome as text.
    #[serde(rename = "outcome", skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The pod that was the last.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub slowest: String,
    /// The phases of that pod.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<Phase>,
}

/// The observed states of a pod.
#[derive(Default)]
struct Pod<'s> {
    first_ready: Option<u64>,
    last: &'s str,
    changed: u64,
    is_deleted: bool,
}

/// The outcome of a creation.
pub fn of_creation(steps: &[Step], started: u64) -> Outcome {
    let pods: BTreeMap<&str, Pod<'_>> = pods(steps).into_iter().filter(|(_, pod)| !pod.is_deleted).collect();
    if pods.is_empty() {
        return Outcome::default();
    }
    let is_done = |pod: &Pod<'_>| matches!(pod.last, "Completed" | "Succeeded");
    if pods.values().all(|pod| is_ready(pod.last)) {
        let ready = pods.iter().map(|(name, pod)| (pod.first_ready.unwrap_or(pod.changed), *name));
        return reached("ready", ready.max(), steps, started);
    }
    if pods.values().all(is_done) {
        return reached("completed", pods.iter().map(|(name, pod)| (pod.changed, *name)).max(), steps, started);
    }
    let message = match pods.values().next() {
        Some(only) if pods.len() == 1 => format!("not ready: {}", only.last),
        _ => {
            let good = pods.values().filter(|pod| is_ready(pod.last) || is_done(pod)).count();
            let bad = pods.iter().find(|(_, pod)| !is_ready(pod.last) && !is_done(pod));
            let example =
                bad.map(|(name, pod)| format!("; {} is {}", name.rsplit('/').next().unwrap_or(name), pod.last));
            format!("{good} of {} pods ready{}", pods.len(), example.unwrap_or_default())
        }
    };
    Outcome { message, ..Outcome::default() }
}

fn is_ready(state: &str) -> bool {
    state.ends_with(", ready")
}

fn reached(word: &str, last: Option<(u64, &str)>, steps: &[Step], started: u64) -> Outcome {
    let Some((at, pod)) = last else { return Outcome::default() };
    let after = at.saturating_sub(started);
    Outcome {
        after: Some(after),
        message: format!("{word} after {}", duration(after)),
        slowest: pod.to_owned(),
        phases: phases::of_creation(steps, pod, started, at),
    }
}

fn pods(steps: &[Step]) -> BTreeMap<&str, Pod<'_>> {
    let mut pods: BTreeMap<&str, Pod<'_>> = BTreeMap::new();
    for step in steps.iter().filter(|step| step.object.starts_with("pods/") && step.step == "request") {
        let pod = pods.entry(&step.object).or_default();
        pod.is_deleted |= step.field("verb") == "removed";
        let state = step.field("state");
        if state.is_empty() {
            continue;
        }
        if pod.last != state {
            pod.changed = step.end();
        }
        pod.last = state;
        if pod.first_ready.is_none() && is_ready(state) {
            pod.first_ready = Some(step.end());
        }
    }
    pods
}

/// The outcome of the deletion of an object.
pub fn of_deletion(steps: &[Step], object: &str, started: u64) -> Outcome {
    let removed = steps.iter().filter(|step| step.is_request("removed"));
    let last = removed.clone().map(|step| (step.end(), step.object.as_str())).max();
    let own = removed.clone().any(|step| step.object == object);
    let left: Vec<&str> = pods(steps).into_iter().filter(|(_, pod)| !pod.is_deleted).map(|(name, _)| name).collect();
    match last.filter(|_| own && left.is_empty()) {
        Some((at, slowest)) => {
            let after = at.saturating_sub(started);
            let phases = if slowest.starts_with("pods/") {
                phases::of_deletion(steps, slowest, started, at)
            } else {
                Vec::new()
            };
            let slowest = if phases.is_empty() { String::new() } else { slowest.to_owned() };
            Outcome { after: Some(after), message: format!("deleted after {}", duration(after)), slowest, phases }
        }
        None => {
            let held = steps.iter().rev().map(|step| step.field("held")).find(|held| !held.is_empty());
            let why = held.map(|held| format!(", waiting for the finalizer {held}")).unwrap_or_default();
            Outcome { message: format!("not deleted yet{why}"), ..Outcome::default() }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::tests::steps;

    #[test]
    fn outcome_of_pods() {
        let create = "0 request pods/a/x verb=create state=Pending\n 0 request pods/a/y verb=create state=Pending\n";
        for (more, expected) in [
            ("", "0 of 2 pods ready; x is Pending"),
            ("10 request pods/a/x verb=patch state=Running,_ready", "1 of 2 pods ready; y is Pending"),
            (
                "10 request pods/a/x verb=patch state=Running,_ready\n 20 request pods/a/y verb=patch state=Running,_ready",
                "ready after 25 µs",
            ),
            (
                "10 request pods/a/x verb=patch state=Running,_ready\n 20 request pods/a/y verb=removed",
                "ready after 15 µs",
            ),
            (
                "10 request pods/a/x verb=patch state=Running,_ready\n 20 request pods/a/y verb=removed\n 30 request pods/a/x verb=patch state=CrashLoopBackOff",
                "not ready: CrashLoopBackOff",
            ),
            (
                "10 request pods/a/x verb=patch state=Completed\n 30 request pods/a/y verb=patch state=Completed",
                "completed after 35 µs",
            ),
        ] {
            assert_eq!(of_creation(&steps(&format!("{create}{more}")), 0).message, expected, "{more}");
        }
    }

    #[test]
    fn outcome_of_a_deletion() {
        let delete = "0 request pods/a/x verb=delete state=Terminating\n";
        for (more, expected) in [
            ("", "not deleted yet"),
            (
                "10 request pods/a/x verb=patch state=Failed held=example.com/hold",
                "not deleted yet, waiting for the finalizer example.com/hold",
            ),
            ("10 request pods/a/x verb=removed", "deleted after 15 µs"),
            ("10 request pods/a/x verb=removed\n 12 request pods/a/y verb=delete state=Terminating", "not deleted yet"),
        ] {
            assert_eq!(of_deletion(&steps(&format!("{delete}{more}")), "pods/a/x", 0).message, expected, "{more}");
        }
    }
}
