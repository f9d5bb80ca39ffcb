//! Containers that start and end again.

use knarr_api::value::Read;
use serde_json::Value;

use crate::Finding;
use crate::evidence::{Evidence, quote};
use crate::starting::statuses;

pub fn explain(evidence: &Evidence, pod: &Value) -> Vec<Finding> {
    statuses(pod).filter_map(|(container, status)| crash(evidence, pod, container, status)).collect()
}

fn crash(evidence: &Evidence, pod: &Value, container: &Value, status: &Value) -> Option<Finding> {
    let name = container.text(&["name"]);
    let last = last_end(status)?;
    let code = last.integer(&["exitCode"]).unwrap_or_default();
    let restarts = status.integer(&["restartCount"]).unwrap_or_default();
    let mut told = vec![match restarts {
        0 => format!("container {name} ended with {code} ({})", last.text(&["reason"])),
        1 => format!("container {name} was restarted once, and ended with {code} ({}) last", last.text(&["reason"])),
        _ => format!(
            "container {name} was restarted {restarts} times, and ended with {code} ({}) last",
            last.text(&["reason"])
        ),
    }];
    let message = last.text(&["message"]).trim();
    if !message.is_empty() {
        told.push(format!("it said: {message}"));
    }
    let log = evidence.log(pod, name);
    told.extend(log.iter().map(|line| format!("its log: {line}")));
    // A container that runs again has begun a log of its own.
    let previous = if status.has(&["state", "running"]) { " --previous" } else { "" };
    let logs = format!(
        "`kubectl logs -n {} {} -c {name}{previous}`",
        pod.text(&["metadata", "namespace"]),
        pod.text(&["metadata", "name"])
    );
    if last.text(&["reason"]) == "OOMKilled" {
        let limit = container.text(&["resources", "limits", "memory"]);
        let cause = if limit.is_empty() {
            format!("{name} was killed because the node ran out of memory")
        } else {
            format!("{name} uses more memory than its limit of {limit}")
        };
        return Some(Finding::new(cause, told, "raise resources.limits.memory, or make it use less"));
    }
    if let Some(event) = killed_by_probe(evidence, pod, name) {
        told.push(quote(event));
        if let Some(unhealthy) = evidence.event(pod, &["Unhealthy"]) {
            told.push(quote(unhealthy));
        }
        let which = if event.text(&["message"]).contains("startup") { "startup" } else { "liveness" };
        return Some(Finding::new(
            format!("{name} is restarted because its {which} probe fails"),
            told,
            format!(
                "mend what the {which} probe asks, or give it more time (initialDelaySeconds, timeoutSeconds, failureThreshold)"
            ),
        ));
    }
    if matches!(last.text(&["reason"]), "ContainerCannotRun" | "StartError") {
        return Some(Finding::new(
            format!("{name} cannot be run"),
            told,
            "check command and args, and that the image holds the program",
        ));
    }
    let (cause, fix) = match code {
        0 => (
            format!("{name} ends by itself, without an error, and is started again"),
            "a container of a Deployment must go on running: give it a command that does, or use a Job".to_owned(),
        ),
        126 => (format!("{name}'s command may not be executed"), "make the program executable in the image".to_owned()),
        127 => (
            format!("{name}'s command was not found"),
            "check command and args, and that the image holds the program".to_owned(),
        ),
        137 => (
            format!("{name} was killed"),
            format!("see {logs}; if nobody killed it, it did not end within its grace period"),
        ),
        139 => (format!("{name} crashed (a segmentation fault)"), format!("see {logs}; it is a fault of the program")),
        143 => (format!("{name} was asked to end"), format!("see who asked, with `kubectl get events`, and {logs}")),
        code => (format!("{name} ends with the error {code}"), format!("see what it says: {logs}")),
    };
    Some(Finding::new(cause, told, fix))
}

/// The containers of a pod whose last end is worth explaining, and whether they run again by now.
pub fn ended(pod: &Value) -> Vec<(String, String, String, bool)> {
    let (namespace, name) = (pod.text(&["metadata", "namespace"]), pod.text(&["metadata", "name"]));
    statuses(pod)
        .filter(|(_, status)| last_end(status).is_some())
        .map(|(container, status)| {
            let container = container.text(&["name"]).to_owned();
            (namespace.to_owned(), name.to_owned(), container, status.has(&["state", "running"]))
        })
        .collect()
}

/// How a container ended that is down now, or is between two ends.
fn last_end(status: &Value) -> Option<&Value> {
    let waits = status.text(&["state", "waiting", "reason"]) == "CrashLoopBackOff";
    let now = status.at(&["state", "terminated"]);
    if !now.is_null() && now.integer(&["exitCode"]) != Some(0) {
        return Some(now);
    }
    let before = status.at(&["lastState", "terminated"]);
    let up = status.flag(&["ready"]) == Some(true);
    (!before.is_null() && (waits || !up)).then_some(before)
}

fn killed_by_probe<'a>(evidence: &'a Evidence, pod: &Value, container: &str) -> Option<&'a Value> {
    let all = evidence.events(pod, &["Killing"]);
    all.into_iter().rev().find(|event| {
        let message = event.text(&["message"]);
        message.contains(&format!("Container {container} failed")) && message.contains("probe")
    })
}
