//! What came of it: whether pods are ready, done or gone, after how long, and where that time went.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::phases::{self, Phase};
use crate::step::Step;
use crate::story::is_request;
use crate::words::duration;

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// After how many microseconds everything was ready, or gone, for the first time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    #[serde(rename = "outcome", skip_serializing_if = "String::is_empty")]
    pub words: String,
    /// The pod that all waited for.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub slowest: String,
    /// Where that pod's time went.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<Phase>,
}

/// What is known of a pod's states.
#[derive(Default)]
struct Pod<'s> {
    first_ready: Option<u64>,
    last: &'s str,
    changed: u64,
    is_gone: bool,
}

pub fn of_coming(steps: &[Step], began: u64) -> Outcome {
    let pods: BTreeMap<&str, Pod<'_>> = pods(steps).into_iter().filter(|(_, pod)| !pod.is_gone).collect();
    if pods.is_empty() {
        return Outcome::default();
    }
    let is_done = |pod: &Pod<'_>| matches!(pod.last, "Completed" | "Succeeded");
    if pods.values().all(|pod| is_ready(pod.last)) {
        let ready = pods.iter().map(|(name, pod)| (pod.first_ready.unwrap_or(pod.changed), *name));
        return reached("ready", ready.max(), steps, began);
    }
    if pods.values().all(is_done) {
        return reached("done", pods.iter().map(|(name, pod)| (pod.changed, *name)).max(), steps, began);
    }
    let words = match pods.values().next() {
        Some(only) if pods.len() == 1 => format!("not ready: {}", only.last),
        _ => {
            let good = pods.values().filter(|pod| is_ready(pod.last) || is_done(pod)).count();
            let bad = pods.iter().find(|(_, pod)| !is_ready(pod.last) && !is_done(pod));
            let example =
                bad.map(|(name, pod)| format!("; {} is {}", name.rsplit('/').next().unwrap_or(name), pod.last));
            format!("{good} of {} pods ready{}", pods.len(), example.unwrap_or_default())
        }
    };
    Outcome { words, ..Outcome::default() }
}

fn is_ready(state: &str) -> bool {
    state.ends_with(", ready")
}

fn reached(word: &str, last: Option<(u64, &str)>, steps: &[Step], began: u64) -> Outcome {
    let Some((at, pod)) = last else { return Outcome::default() };
    let after = at.saturating_sub(began);
    Outcome {
        after: Some(after),
        words: format!("{word} after {}", duration(after)),
        slowest: pod.to_owned(),
        phases: phases::coming(steps, pod, began, at),
    }
}

fn pods(steps: &[Step]) -> BTreeMap<&str, Pod<'_>> {
    let mut pods: BTreeMap<&str, Pod<'_>> = BTreeMap::new();
    for step in steps.iter().filter(|step| step.object.starts_with("pods/") && step.step == "request") {
        let pod = pods.entry(&step.object).or_default();
        pod.is_gone |= step.field("verb") == "removed";
        let state = step.field("state");
        if state.is_empty() {
            continue;
        }
        if pod.last != state {
            pod.changed = step.ended();
        }
        pod.last = state;
        if pod.first_ready.is_none() && is_ready(state) {
            pod.first_ready = Some(step.ended());
        }
    }
    pods
}

pub fn of_going(steps: &[Step], object: &str, began: u64) -> Outcome {
    let gone = steps.iter().filter(|step| is_request(step, "removed"));
    let last = gone.clone().map(|step| (step.ended(), step.object.as_str())).max();
    let own = gone.clone().any(|step| step.object == object);
    let left: Vec<&str> = pods(steps).into_iter().filter(|(_, pod)| !pod.is_gone).map(|(name, _)| name).collect();
    match last.filter(|_| own && left.is_empty()) {
        Some((at, slowest)) => {
            let after = at.saturating_sub(began);
            let phases =
                if slowest.starts_with("pods/") { phases::going(steps, slowest, began, at) } else { Vec::new() };
            let slowest = if phases.is_empty() { String::new() } else { slowest.to_owned() };
            Outcome { after: Some(after), words: format!("gone after {}", duration(after)), slowest, phases }
        }
        None => {
            let held = steps.iter().rev().map(|step| step.field("held")).find(|held| !held.is_empty());
            let why = held.map(|held| format!(", held by the finalizer {held}")).unwrap_or_default();
            Outcome { words: format!("still there{why}"), ..Outcome::default() }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::story::tests::steps;

    #[test]
    fn what_came_of_pods() {
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
                "done after 35 µs",
            ),
        ] {
            assert_eq!(of_coming(&steps(&format!("{create}{more}")), 0).words, expected, "{more}");
        }
    }

    #[test]
    fn what_came_of_a_deletion() {
        let delete = "0 request pods/a/x verb=delete state=Terminating\n";
        for (more, expected) in [
            ("", "still there"),
            (
                "10 request pods/a/x verb=patch state=Failed held=example.com/hold",
                "still there, held by the finalizer example.com/hold",
            ),
            ("10 request pods/a/x verb=removed", "gone after 15 µs"),
            ("10 request pods/a/x verb=removed\n 12 request pods/a/y verb=delete state=Terminating", "still there"),
        ] {
            assert_eq!(of_going(&steps(&format!("{delete}{more}")), "pods/a/x", 0).words, expected, "{more}");
        }
    }
}
