//! Pods on a node whose containers do not start.

use jiff::{SignedDuration, Timestamp};
use knarr_api::value::{Read, condition};
use serde_json::Value;

use crate::evidence::{Evidence, quote};
use crate::{Finding, attachments, near_name};

/// How long a node may take to create containers before that needs an explanation.
const USUAL_START: SignedDuration = SignedDuration::from_secs(10);

/// How many objects that a pod refers to are looked for.
const MAX_REFERENCES: usize = 100;

/// Diagnoses a scheduled pod whose containers do not start.
pub fn explain(evidence: &Evidence, pod: &Value) -> Vec<Finding> {
    if let Some(finding) = node_is_down(evidence, pod) {
        return vec![finding];
    }
    let containers = statuses(pod).filter_map(|(container, status)| waiting(evidence, pod, container, status));
    let mut findings: Vec<Finding> = containers.collect();
    let started = statuses(pod).any(|(_, status)| !status.has(&["state", "waiting"]));
    if findings.is_empty() && !started {
        findings.extend(mounts(evidence, pod).or_else(|| sandbox(evidence, pod)));
    }
    if findings.is_empty() {
        findings.extend(init_runs(pod).or_else(|| takes_long(evidence, pod)));
    }
    findings
}

/// All containers with their status, init containers first.
pub fn statuses(pod: &Value) -> impl Iterator<Item = (&Value, &Value)> {
    [("initContainers", "initContainerStatuses"), ("containers", "containerStatuses")].into_iter().flat_map(
        move |(specs, statuses)| {
            pod.items(&["spec", specs]).iter().filter_map(move |container| {
                let name = container.text(&["name"]);
                let status = pod.items(&["status", statuses]).iter().find(|status| status.text(&["name"]) == name)?;
                Some((container, status))
            })
        },
    )
}

fn node_is_down(evidence: &Evidence, pod: &Value) -> Option<Finding> {
    let name = pod.text(&["spec", "nodeName"]);
    if evidence.lists.contains_key("nodes") && evidence.find("nodes", "", name).is_none() {
        return Some(Finding::new(
            format!("its node {name} does not exist"),
            vec![format!("no Node {name}")],
            "if the node was removed for good, delete the pod: its controller, if it has one, creates a replacement on another node",
        ));
    }
    let node = evidence.find("nodes", "", name)?;
    let ready = condition(node, "Ready")?;
    (ready.text(&["status"]) != "True").then(|| {
        Finding::new(
            format!("its node {name} is not ready"),
            vec![format!("node {name}: {}", ready.text(&["message"]))],
            format!("check that Knarr runs on {name} and can reach the API server"),
        )
    })
}

fn waiting(evidence: &Evidence, pod: &Value, container: &Value, status: &Value) -> Option<Finding> {
    let name = container.text(&["name"]);
    let image = container.text(&["image"]);
    let state = status.at(&["state", "waiting"]);
    let (reason, message) = (state.text(&["reason"]), state.text(&["message"]));
    let observed = vec![format!("container {name}: {reason}: {message}")];
    let finding = match reason {
        "InvalidImageName" => Finding::new(
            format!("{image:?} is not a valid image name"),
            observed,
            "write the image as [HOST/]NAME[:TAG], in lower case",
        ),
        "ErrImageNeverPull" => Finding::new(
            format!("the image {image} is not on the node, and may not be pulled"),
            observed,
            "import it there with `knarr images import FILE.tar`, or change imagePullPolicy",
        ),
        "ErrImagePull" | "ImagePullBackOff" => image_not_pulled(evidence, pod, image, observed),
        "CreateContainerConfigError" => configuration(evidence, pod, container, message, observed),
        "CreateContainerError" | "RunContainerError" | "StartError" => not_started(container, message, observed),
        "PostStartHookError" => Finding::new(
            format!("the postStart hook of {name} fails"),
            observed,
            "fix the command of lifecycle.postStart, or do its work in the container itself",
        ),
        _ => return None,
    };
    Some(finding)
}

fn image_not_pulled(evidence: &Evidence, pod: &Value, image: &str, mut observed: Vec<String>) -> Finding {
    // The runtime's error is in the state, or in an event from before the kubelet started its backoff.
    let failed = evidence.events(pod, &["Failed"]).into_iter().rev();
    let error = failed.map(quote).find(|event| event.contains("Failed to pull"));
    let is_new = |event: &String| event.split_once("\": ").is_none_or(|(_, reason)| !observed[0].contains(reason));
    let error = error.filter(is_new);
    observed.extend(error);
    let all = observed.join(" ").to_lowercase();
    let missing_secret = pod
        .items(&["spec", "imagePullSecrets"])
        .iter()
        .take(MAX_REFERENCES)
        .map(|one| one.text(&["name"]))
        .find(|name| evidence.lacks("secrets", pod.text(&["metadata", "namespace"]), name));
    let mentions = |texts: &[&str]| texts.iter().any(|text| all.contains(text));
    let (cause, fix) = if let Some(secret) = missing_secret {
        observed.push(format!("imagePullSecrets names {secret}, which does not exist"));
        (
            format!("the image {image} needs the secret {secret}, which does not exist"),
            "create the secret with `kubectl create secret docker-registry`",
        )
    } else if mentions(&["unauthorized", "denied", "authentication required", "403 forbidden", "401"]) {
        (
            format!("the registry refuses {image}"),
            "check the image's name: registries refuse missing images, too; for a private image, set imagePullSecrets to a secret that may pull it",
        )
    } else if mentions(&["not found", "manifest unknown", "does not exist"]) {
        (format!("the image {image} does not exist"), "check its name and tag")
    } else if mentions(&[
        "no such host",
        "dial tcp",
        "i/o timeout",
        "connection refused",
        "network is unreachable",
        "tls:",
        "x509",
        "failed to do request",
    ]) {
        (
            format!("the registry of {image} cannot be reached"),
            "check the node's connection to the registry; without one, import the image with `knarr images import FILE.tar`",
        )
    } else {
        (format!("the image {image} cannot be pulled"), "see the runtime's message")
    };
    Finding::new(cause, observed, fix)
}

fn configuration(evidence: &Evidence, pod: &Value, container: &Value, message: &str, observed: Vec<String>) -> Finding {
    let namespace = pod.text(&["metadata", "namespace"]);
    let name = container.text(&["name"]);
    for (plural, word) in [("configmaps", "configmap"), ("secrets", "secret")] {
        let Some(missing) = message.strip_prefix(&format!("{word} \"")).and_then(|rest| rest.split('"').next()) else {
            continue;
        };
        let near = near_name(missing, evidence.within(plural, namespace)).map(|near| format!("; there is {near}"));
        return Finding::new(
            format!("{name} reads its environment from the {word} {missing}, which does not exist"),
            observed,
            format!("create the {word} in {namespace}, or fix its name in the pod{}", near.unwrap_or_default()),
        );
    }
    if message.contains("couldn't find key") {
        return Finding::new(
            format!("{name} reads its environment from a key that does not exist"),
            observed,
            "add the key, or fix its name in the pod",
        );
    }
    if message.contains("runAsNonRoot") {
        return Finding::new(
            format!("{name} must not run as root, but its image runs as root"),
            observed,
            "set securityContext.runAsUser to a number other than 0, or use an image with another user",
        );
    }
    Finding::new(format!("the container {name} cannot be configured"), observed, "fix what the message names")
}

fn not_started(container: &Value, message: &str, observed: Vec<String>) -> Finding {
    let name = container.text(&["name"]);
    let command: Vec<&str> = container.items(&["command"]).iter().filter_map(Value::as_str).collect();
    if message.contains("executable file not found") || message.contains("no such file or directory") {
        let program =
            command.first().map_or_else(|| "the image's own command".to_owned(), |first| format!("{first:?}"));
        return Finding::new(
            format!("{name} cannot start: its image has no {program}"),
            observed,
            "check command and args, and that the image contains the program",
        );
    }
    if message.contains("permission denied") {
        return Finding::new(
            format!("{name} cannot start: its program is not executable"),
            observed,
            "make the program executable in the image, or run as a user with execute permission",
        );
    }
    if message.contains("exec format error") {
        return Finding::new(
            format!("{name} cannot start: its program is built for another architecture"),
            observed,
            "use an image for this node's architecture",
        );
    }
    if let Some(mount) = private_mount(message) {
        return Finding::new(
            format!(
                "{name} cannot start: a volume of it has mountPropagation, but {mount} on its node is a private mount"
            ),
            observed,
            format!(
                "run `mount --make-rshared {mount}` on the node at every start, as systemd does, then delete the pod"
            ),
        );
    }
    Finding::new(format!("the container {name} cannot be started"), observed, "fix what the message names")
}

/// The mount point of the node that the runtime refuses to propagate.
fn private_mount(message: &str) -> Option<&str> {
    let (before, _) = message.split_once("\" but it is not a shared")?;
    Some(before.rsplit_once("mounted on \"")?.1)
}

fn mounts(evidence: &Evidence, pod: &Value) -> Option<Finding> {
    let namespace = pod.text(&["metadata", "namespace"]);
    let event = evidence.event(pod, &["FailedMount", "FailedAttachVolume"])?;
    let observed = vec![quote(event)];
    for volume in pod.items(&["spec", "volumes"]).iter().take(MAX_REFERENCES) {
        for (plural, word, path) in
            [("configmaps", "ConfigMap", ["configMap", "name"]), ("secrets", "Secret", ["secret", "secretName"])]
        {
            let name = volume.text(&path);
            let optional = volume.flag(&[path[0], "optional"]) == Some(true);
            if !name.is_empty() && !optional && evidence.lacks(plural, namespace, name) {
                let near = near_name(name, evidence.within(plural, namespace)).map(|near| format!("; there is {near}"));
                return Some(Finding::new(
                    format!("its volume {} needs the {word} {name}, which does not exist", volume.text(&["name"])),
                    observed,
                    format!("create the {word} in {namespace}, or fix its name{}", near.unwrap_or_default()),
                ));
            }
        }
        let path = volume.text(&["hostPath", "path"]);
        if !path.is_empty() && observed[0].contains("hostPath type check failed") {
            return Some(Finding::new(
                format!("{path} on the node is not of the type its hostPath volume requires"),
                observed,
                "create the path on the node, or change the volume's type (DirectoryOrCreate creates it)",
            ));
        }
    }
    let fallback = || Finding::new("a volume cannot be mounted", observed, "fix what the message names");
    Some(attachments::explain(evidence, pod, event).unwrap_or_else(fallback))
}

fn sandbox(evidence: &Evidence, pod: &Value) -> Option<Finding> {
    let event = evidence.event(pod, &["FailedCreatePodSandBox"])?;
    let message = event.text(&["message"]);
    let (cause, fix) = if message.contains("RuntimeClass")
        || message.contains("runtime handler")
        || message.contains("no runtime for")
    {
        ("the node has no such container runtime", "use a runtimeClassName that the node offers")
    } else if message.contains("cni") || message.contains("network") {
        (
            "the pod's network cannot be set up",
            "see the network's logs on the node; `knarr check` there reports what is missing",
        )
    } else {
        ("the pod's sandbox cannot be created", "see the runtime's logs on the node")
    };
    Some(Finding::new(cause, vec![quote(event)], fix))
}

/// A pod that was scheduled a while ago, and whose containers are still created without an error.
fn takes_long(evidence: &Evidence, pod: &Value) -> Option<Finding> {
    let (container, _) = statuses(pod).find(|(_, status)| {
        matches!(status.text(&["state", "waiting", "reason"]), "ContainerCreating" | "PodInitializing")
    })?;
    let scheduled: Timestamp = condition(pod, "PodScheduled")?.text(&["lastTransitionTime"]).parse().ok()?;
    let elapsed = evidence.now.duration_since(scheduled);
    if elapsed < USUAL_START {
        return None;
    }
    let image = container.text(&["image"]);
    let observed = format!("it was scheduled {} s ago, and no error was reported since", elapsed.as_secs());
    let last = evidence.event(pod, &["Pulling", "Pulled"]).filter(|event| event.text(&["reason"]) == "Pulling");
    let cause = match last {
        Some(_) => format!("its node is still pulling the image {image}"),
        None => "its containers are still being created".to_owned(),
    };
    let (namespace, name) = (pod.text(&["metadata", "namespace"]), pod.text(&["metadata", "name"]));
    let fix = format!("wait; `knarr journey -n {namespace} pod/{name}` shows what has happened so far");
    Some(Finding::new(cause, last.map(quote).into_iter().chain([observed]).collect(), fix))
}

/// An init container that is still running.
fn init_runs(pod: &Value) -> Option<Finding> {
    let (container, _) = statuses(pod).find(|(container, status)| {
        let is_init = pod.items(&["spec", "initContainers"]).contains(container);
        let sidecar = container.text(&["restartPolicy"]) == "Always";
        is_init && !sidecar && status.has(&["state", "running"])
    })?;
    let name = container.text(&["name"]);
    Some(Finding::new(
        format!("its init container {name} has not finished yet"),
        vec![format!("init container {name} is running; the others wait for it")],
        format!(
            "see what it waits for: `kubectl logs -n {} {} -c {name}`",
            pod.text(&["metadata", "namespace"]),
            pod.text(&["metadata", "name"])
        ),
    ))
}
