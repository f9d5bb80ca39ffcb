//! Containers that terminate and are restarted.

use knarr_api::value::Read;
use serde_json::Value;

use crate::Finding;
use crate::evidence::{Evidence, quote};
use crate::starting::statuses;

/// Diagnoses a pod's terminated containers.
pub fn explain(evidence: &Evidence, pod: &Value) -> Vec<Finding> {
    statuses(pod).filter_map(|(container, status)| crash(evidence, pod, container, status)).collect()
}

fn crash(evidence: &Evidence, pod: &Value, container: &Value, status: &Value) -> Option<Finding> {
    let name = container.text(&["name"]);
    let last = last_termination(status)?;
    let code = last.integer(&["exitCode"]).unwrap_or_default();
    let restarts = status.integer(&["restartCount"]).unwrap_or_default();
    let mut observed = vec![match restarts {
        0 => format!("container {name} exited with {code} ({})", last.text(&["reason"])),
        1 => format!("container {name} was restarted once, and last exited with {code} ({})", last.text(&["reason"])),
        _ => format!(
            "container {name} was restarted {restarts} times, and last exited with {code} ({})",
            last.text(&["reason"])
        ),
    }];
    let message = last.text(&["message"]).trim();
    if !message.is_empty() {
        observed.push(format!("its termination message: {message}"));
    }
    let log = evidence.log(pod, name);
    observed.extend(log.iter().map(|line| format!("its log: {line}")));
    // A restarted container has a new log.
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
        return Some(Finding::new(
            cause,
            observed,
            "raise resources.limits.memory, or reduce the program's memory use",
        ));
    }
    if let Some(event) = killed_by_probe(evidence, pod, name) {
        observed.push(quote(event));
        if let Some(unhealthy) = evidence.event(pod, &["Unhealthy"]) {
            observed.push(quote(unhealthy));
        }
        let which = if event.text(&["message"]).contains("startup") { "startup" } else { "liveness" };
        return Some(Finding::new(
            format!("{name} is restarted because its {which} probe fails"),
            observed,
            format!(
                "fix what the {which} probe checks, or give it more time (initialDelaySeconds, timeoutSeconds, failureThreshold)"
            ),
        ));
    }
    if matches!(last.text(&["reason"]), "ContainerCannotRun" | "StartError") {
        return Some(Finding::new(
            format!("{name} cannot be run"),
            observed,
            "check command and args, and that the image contains the program",
        ));
    }
    let (cause, fix) = match code {
        0 => (
            format!("{name} exits without an error and is restarted"),
            "a container of a Deployment must keep running: give it a command that does, or use a Job".to_owned(),
        ),
        126 => (format!("{name}'s command may not be executed"), "make the program executable in the image".to_owned()),
        127 => (
            format!("{name}'s command was not found"),
            "check command and args, and that the image contains the program".to_owned(),
        ),
        137 => (
            format!("{name} was killed"),
            format!("see {logs}; unless somebody killed it, it did not exit within its grace period"),
        ),
        139 => (format!("{name} crashed (a segmentation fault)"), format!("see {logs}; this is a bug in the program")),
        143 => (format!("{name} was terminated by SIGTERM"), format!("see why with `kubectl get events`, and {logs}")),
        code => (format!("{name} exits with code {code}"), format!("see its log: {logs}")),
    };
    Some(Finding::new(cause, observed, fix))
}

/// The containers of a pod whose last termination needs an explanation, and whether they run again.
pub fn terminated(pod: &Value) -> Vec<(String, String, String, bool)> {
    let (namespace, name) = (pod.text(&["metadata", "namespace"]), pod.text(&["metadata", "name"]));
    statuses(pod)
        .filter(|(_, status)| last_termination(status).is_some())
        .map(|(container, status)| {
            let container = container.text(&["name"]).to_owned();
            (namespace.to_owned(), name.to_owned(), container, status.has(&["state", "running"]))
        })
        .collect()
}

/// The last termination of a container that is down, or in a crash loop.
fn last_termination(status: &Value) -> Option<&Value> {
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
