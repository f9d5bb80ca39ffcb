//! Renders steps as messages.

use std::borrow::Cow;

use crate::step::Step;

/// The known steps: name, component, and message pattern, in which `{field}` stands for a recorded field. A text in square
/// brackets is omitted if one of its fields is missing.
const PATTERNS: &[(&str, &str, &str)] = &[
    ("reconciled", "controllers", "reconciled by the {controller} controller"),
    ("queued", "scheduler", "added to the scheduling queue"),
    ("filtered", "scheduler", "checked {nodes}[: {feasible} fit][, {chosen} chosen][ (others: {others})]"),
    ("unschedulable", "scheduler", "unschedulable: {why}"),
    ("preempted", "scheduler", "preempted by {by} on {node}"),
    ("bound", "scheduler", "bound to {node}"),
    ("provisioned", "storage", "volume of the claim {claim} provisioned[ by {driver}][: {failed}]"),
    ("attached", "controllers", "volume {volume} attached[ by {driver}][: {failed}]"),
    ("staged", "kubelet", "volume {volume} staged[ by {driver}][: {failed}]"),
    ("published", "kubelet", "volume {volume} published[ by {driver}][: {failed}]"),
    ("expanded", "kubelet", "volume {volume} expanded[ by {driver}][: {failed}]"),
    ("accepted", "kubelet", "accepted by the kubelet of {node}"),
    ("refused", "kubelet", "refused by the kubelet: {why}"),
    ("volume", "kubelet", "volume {volume} mounted[ ({kind})][: {failed}]"),
    ("sandbox", "kubelet", "sandbox and network created[, address {address}][: {failed}]"),
    ("image", "kubelet", "image {image} for {container}[ {found}][: {failed}]"),
    ("container-created", "kubelet", "container {container} created[: {failed}]"),
    ("container-started", "kubelet", "container {container} started[, restart {restart}][: {failed}]"),
    ("container-stopped", "kubelet", "container {container} stopping"),
    ("container-ended", "kubelet", "container {container} exited with {code}[ ({reason})][ after {ran}]"),
    ("hook", "kubelet", "{hook} hook of {container} run[: {failed}]"),
    ("probe", "kubelet", "{probe} probe of {container} {result}[: {why}]"),
    ("sandbox-stopped", "kubelet", "sandbox stopped, network removed"),
    ("volumes-removed", "kubelet", "volumes unmounted"),
    ("endpoint", "controllers", "endpoint of {service} published[, {condition}]"),
    ("proxied", "proxy", "[Service {for} ]programmed[ on {node}]"),
    ("named", "dns", "{name} resolvable[ on {node}]"),
];

/// Whether a step of a Service makes its pods reachable on a node.
pub fn is_reachability(step: &str) -> bool {
    matches!(step, "proxied" | "named")
}

/// The component that executed a step.
pub fn component(step: &Step) -> &'static str {
    match PATTERNS.iter().find(|(name, ..)| *name == step.step) {
        Some((_, component, _)) => component,
        None if step.step == "request" => "api",
        None => "other",
    }
}

/// The topic of a step: repeated messages about one topic of an object are counted.
pub fn topic(step: &Step) -> String {
    let name = &*step.step;
    match name {
        "reconciled" => format!("{name} {}", step.field("controller")),
        // Start and exit of a container are one topic: a start after an exit is not a repeat.
        _ if name.starts_with("container-") => format!("container {}", step.field("container")),
        "image" | "hook" | "probe" => {
            format!("{name} {}{} {}", step.field("hook"), step.field("probe"), step.field("container"))
        }
        "volume" | "attached" | "staged" | "published" | "expanded" => format!("{name} {}", step.field("volume")),
        "provisioned" => format!("{name} {}", step.field("claim")),
        "endpoint" => format!("{name} {}", step.field("service")),
        _ if is_reachability(name) => format!("{name} {} {}", step.field("for"), step.process),
        _ => name.to_owned(),
    }
}

/// The message of a step, and additional information.
pub fn render(step: &Step) -> (String, String) {
    match PATTERNS.iter().find(|(name, ..)| *name == step.step) {
        Some((_, _, pattern)) => (fill(pattern, step), step.field("detail").to_owned()),
        None if step.step == "request" => (request(step), stages(step)),
        None => {
            let fields: Vec<String> = step.fields.iter().map(|(name, value)| format!("{name} {value}")).collect();
            (format!("{} {}", step.step, fields.join(", ")).trim_end().to_owned(), String::new())
        }
    }
}

/// Inserts a step's fields into a pattern.
fn fill(pattern: &str, step: &Step) -> String {
    let mut text = String::new();
    let mut rest = pattern;
    while let Some(start) = rest.find('[') {
        let Some(length) = rest[start..].find(']') else { break };
        text.push_str(&fields(&rest[..start], step).0);
        let (optional, complete) = fields(&rest[start + 1..start + length], step);
        if complete {
            text.push_str(&optional);
        }
        rest = &rest[start + length + 1..];
    }
    text.push_str(&fields(rest, step).0);
    text.trim_end().to_owned()
}

/// A piece of a pattern with its fields inserted, and whether all of them were set.
fn fields(piece: &str, step: &Step) -> (String, bool) {
    let mut text = String::new();
    let mut complete = true;
    let mut rest = piece;
    while let Some((before, after)) = rest.split_once('{') {
        let Some((name, behind)) = after.split_once('}') else { break };
        let value = field_text(name, step);
        complete &= !value.is_empty();
        text.push_str(before);
        text.push_str(if value.is_empty() { "?" } else { &value });
        rest = behind;
    }
    text.push_str(rest);
    (text, complete)
}

/// The text of a field.
fn field_text<'s>(name: &str, step: &'s Step) -> Cow<'s, str> {
    let value = step.field(name);
    match name {
        // The recording process runs on the node.
        "node" if value.is_empty() => step.process.as_str().into(),
        "for" | "service" => value.rsplit('/').next().unwrap_or_default().into(),
        "nodes" if value == "1" => "1 node".into(),
        "nodes" => format!("{value} nodes").into(),
        "ran" => step.number(name).map(duration).unwrap_or_default().into(),
        _ => value.into(),
    }
}

/// A request that changed an object.
fn request(step: &Step) -> String {
    let agent = step.field("agent");
    let who = if agent.is_empty() { step.field("user") } else { agent };
    let by = if who.is_empty() { String::new() } else { format!(" by {who}") };
    let done = match (step.field("verb"), step.field("subresource")) {
        ("create", "binding") => "binding stored".to_owned(),
        ("create", "eviction") => format!("eviction granted to {who}"),
        ("create", _) => format!("created{by}"),
        ("delete", _) if step.is_final_delete() => "deletion completed by the kubelet".to_owned(),
        ("delete", _) => format!("deletion requested{by}"),
        ("removed", _) => return format!("removed from the store{by}"),
        (_, "") => format!("changed{by}"),
        (_, subresource) => format!("{subresource} stored{by}"),
    };
    match (step.field("verb"), step.field("state"), step.field("held")) {
        ("delete", _, held) if !held.is_empty() => format!("{done}; waiting for the finalizer {held}"),
        // The state right after a creation or deletion is obvious.
        ("create" | "delete", ..) | (_, "", _) => done,
        (_, state, _) => format!("{done}: {state}"),
    }
}

/// The revision of a write and, for creations and deletions, the duration of each stage of the request.
fn stages(step: &Step) -> String {
    if !matches!(step.field("verb"), "create" | "delete" | "removed") {
        let revision = step.field("revision");
        return if revision.is_empty() { String::new() } else { format!("revision {revision}") };
    }
    let mut stages: Vec<String> = ["authenticated", "authorized", "admitted", "stored"]
        .into_iter()
        .filter_map(|stage| Some(format!("{stage} {}", duration(step.number(&format!("{stage}_us"))?))))
        .collect();
    if !step.field("revision").is_empty() {
        stages.push(format!("revision {}", step.field("revision")));
    }
    stages.join(", ")
}

/// A duration with up to three digits and a unit.
pub fn duration(micros: u64) -> String {
    #[allow(clippy::cast_precision_loss, reason = "three digits are printed")]
    let number = micros as f64;
    match micros {
        0..1_000 => format!("{micros} µs"),
        1_000..10_000 => format!("{:.1} ms", number / 1e3),
        10_000..1_000_000 => format!("{:.0} ms", number / 1e3),
        1_000_000..60_000_000 => format!("{:.2} s", number / 1e6),
        _ => format!("{} min {:02} s", micros / 60_000_000, micros / 1_000_000 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(name: &'static str, fields: &[(&'static str, &str)]) -> Step {
        Step {
            started: 0,
            took: 0,
            step: name.into(),
            object: "pods/a/b".into(),
            process: "n9".into(),
            fields: fields.iter().map(|(name, value)| ((*name).into(), (*value).to_owned())).collect(),
        }
    }

    #[test]
    fn renders_steps() {
        let cases: &[(&'static str, &[(&'static str, &str)], &str, &str)] = &[
            ("bound", &[("node", "n1")], "bound to n1", ""),
            ("sandbox", &[], "sandbox and network created", ""),
            ("sandbox", &[("address", "10.0.0.1")], "sandbox and network created, address 10.0.0.1", ""),
            (
                "filtered",
                &[
                    ("nodes", "3"),
                    ("feasible", "1"),
                    ("chosen", "n1"),
                    ("others", "2 Insufficient cpu"),
                    ("detail", "n1 311"),
                ],
                "checked 3 nodes: 1 fit, n1 chosen (others: 2 Insufficient cpu)",
                "n1 311",
            ),
            ("filtered", &[("nodes", "1"), ("feasible", "0")], "checked 1 node: 0 fit", ""),
            (
                "container-ended",
                &[("container", "c"), ("code", "3"), ("reason", "Error"), ("ran", "1200000")],
                "container c exited with 3 (Error) after 1.20 s",
                "",
            ),
            ("proxied", &[("for", "services/a/web")], "Service web programmed on n9", ""),
            ("proxied", &[], "programmed on n9", ""),
            ("something", &[("new", "1")], "something new 1", ""),
            (
                "request",
                &[
                    ("verb", "create"),
                    ("agent", "kubectl"),
                    ("state", "Pending"),
                    ("authenticated_us", "12"),
                    ("stored_us", "1250"),
                    ("revision", "7"),
                ],
                "created by kubectl",
                "authenticated 12 µs, stored 1.2 ms, revision 7",
            ),
            (
                "request",
                &[("verb", "patch"), ("subresource", "status"), ("state", "Running, ready"), ("agent", "kubelet")],
                "status stored by kubelet: Running, ready",
                "",
            ),
            ("request", &[("verb", "delete"), ("agent", "kubelet")], "deletion completed by the kubelet", ""),
            (
                "request",
                &[("verb", "delete"), ("agent", "kubectl"), ("held", "a/b")],
                "deletion requested by kubectl; waiting for the finalizer a/b",
                "",
            ),
        ];
        for (name, fields, expected, detail) in cases {
            assert_eq!(render(&step(name, fields)), ((*expected).to_owned(), (*detail).to_owned()));
        }
    }

    #[test]
    fn durations() {
        for (micros, expected) in [
            (0, "0 µs"),
            (999, "999 µs"),
            (1_449, "1.4 ms"),
            (12_400, "12 ms"),
            (1_234_567, "1.23 s"),
            (61_000_000, "1 min 01 s"),
        ] {
            assert_eq!(duration(micros), expected);
        }
    }
}
