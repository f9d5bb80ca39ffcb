//! Steps in words.

use std::borrow::Cow;

use crate::phases::is_let_go;
use crate::step::Step;

/// The vocabulary: the name of a step, the part that takes it, and what it says, with `{field}` for what was recorded.
/// A text in square brackets is left out where one of its fields is missing.
const WORDS: &[(&str, &str, &str)] = &[
    ("reconciled", "controllers", "seen by the {controller} controller"),
    ("queued", "scheduler", "put into the queue"),
    ("filtered", "scheduler", "looked at {nodes}[: {feasible} fit][, {chosen} chosen][ (others: {others})]"),
    ("unschedulable", "scheduler", "fits nowhere: {why}"),
    ("preempted", "scheduler", "ended to make room for {by} on {node}"),
    ("bound", "scheduler", "bound to {node}"),
    ("accepted", "kubelet", "seen by the kubelet of {node}"),
    ("refused", "kubelet", "refused by the kubelet: {why}"),
    ("volume", "kubelet", "volume {volume} mounted[ ({kind})][: {failed}]"),
    ("sandbox", "kubelet", "sandbox and network made[, address {address}][: {failed}]"),
    ("image", "kubelet", "image {image} for {container}[ {found}][: {failed}]"),
    ("container-created", "kubelet", "container {container} created[: {failed}]"),
    ("container-started", "kubelet", "container {container} started[, restart {restart}][: {failed}]"),
    ("container-stopped", "kubelet", "container {container} asked to end"),
    ("container-ended", "kubelet", "container {container} ended with {code}[ ({reason})][, it ran {ran}]"),
    ("hook", "kubelet", "{hook} hook of {container} run[: {failed}]"),
    ("probe", "kubelet", "{probe} probe of {container} {result}[: {why}]"),
    ("sandbox-stopped", "kubelet", "sandbox stopped, network taken down"),
    ("volumes-removed", "kubelet", "volumes taken down"),
    ("endpoint", "controllers", "endpoint of {service} published[, {condition}]"),
    ("proxied", "proxy", "[Service {for} ]programmed[ on {node}]"),
    ("named", "dns", "{name} resolvable[ on {node}]"),
];

/// Whether a step on a Service says that its pods can be reached by it.
pub fn tells_reach(step: &str) -> bool {
    matches!(step, "proxied" | "named")
}

/// Which part of the system took a step.
pub fn part(step: &Step) -> &'static str {
    match WORDS.iter().find(|(name, ..)| *name == step.step) {
        Some((_, part, _)) => part,
        None if step.step == "request" => "api",
        None => "other",
    }
}

/// What of an object a step is about: what is said of the same matter again and again is told once.
pub fn matter(step: &Step) -> String {
    let name = &*step.step;
    match name {
        "reconciled" => format!("{name} {}", step.field("controller")),
        // A container's life is one matter: it starts again after it ended.
        _ if name.starts_with("container-") => format!("container {}", step.field("container")),
        "image" | "hook" | "probe" => {
            format!("{name} {}{} {}", step.field("hook"), step.field("probe"), step.field("container"))
        }
        "volume" => format!("{name} {}", step.field("volume")),
        "endpoint" => format!("{name} {}", step.field("service")),
        _ if tells_reach(name) => format!("{name} {} {}", step.field("for"), step.process),
        _ => name.to_owned(),
    }
}

/// What a step did, in words, and more of it for those who want to know.
pub fn what(step: &Step) -> (String, String) {
    match WORDS.iter().find(|(name, ..)| *name == step.step) {
        Some((_, _, pattern)) => (fill(pattern, step), step.field("detail").to_owned()),
        None if step.step == "request" => (request(step), stages(step)),
        None => {
            let fields: Vec<String> = step.fields.iter().map(|(name, value)| format!("{name} {value}")).collect();
            (format!("{} {}", step.step, fields.join(", ")).trim_end().to_owned(), String::new())
        }
    }
}

/// Puts fields into a pattern.
fn fill(pattern: &str, step: &Step) -> String {
    let mut text = String::new();
    let mut rest = pattern;
    while let Some(begin) = rest.find('[') {
        let Some(length) = rest[begin..].find(']') else { break };
        text.push_str(&fields(&rest[..begin], step).0);
        let (optional, complete) = fields(&rest[begin + 1..begin + length], step);
        if complete {
            text.push_str(&optional);
        }
        rest = &rest[begin + length + 1..];
    }
    text.push_str(&fields(rest, step).0);
    text.trim_end().to_owned()
}

/// A piece of a pattern with its fields, and whether all of them were there.
fn fields(piece: &str, step: &Step) -> (String, bool) {
    let mut text = String::new();
    let mut complete = true;
    let mut rest = piece;
    while let Some((before, after)) = rest.split_once('{') {
        let Some((name, behind)) = after.split_once('}') else { break };
        let value = told(name, step);
        complete &= !value.is_empty();
        text.push_str(before);
        text.push_str(if value.is_empty() { "?" } else { &value });
        rest = behind;
    }
    text.push_str(rest);
    (text, complete)
}

/// A field as it is told.
fn told<'s>(name: &str, step: &'s Step) -> Cow<'s, str> {
    let value = step.field(name);
    match name {
        // What says on which node it happened, unless it says so itself.
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
        ("delete", _) if is_let_go(step) => "let go by the kubelet".to_owned(),
        ("delete", _) => format!("deletion asked for{by}"),
        ("removed", _) => return format!("removed from the store{by}"),
        (_, "") => format!("changed{by}"),
        (_, subresource) => format!("{subresource} stored{by}"),
    };
    match (step.field("verb"), step.field("state"), step.field("held")) {
        ("delete", _, held) if !held.is_empty() => format!("{done}; held by the finalizer {held}"),
        // Nobody is surprised that what was just made is Pending, or that it has a node now.
        ("create" | "delete", ..) | (_, "", _) => done,
        (_, state, _) => format!("{done}: {state}"),
    }
}

/// The revision a request made and, where something began or ended with it, what each of its stages took.
fn stages(step: &Step) -> String {
    if !matches!(step.field("verb"), "create" | "delete" | "removed") {
        let revision = step.field("revision");
        return if revision.is_empty() { String::new() } else { format!("revision {revision}") };
    }
    let mut parts: Vec<String> = ["authenticated", "authorized", "admitted", "stored"]
        .into_iter()
        .filter_map(|stage| Some(format!("{stage} {}", duration(step.number(&format!("{stage}_us"))?))))
        .collect();
    if !step.field("revision").is_empty() {
        parts.push(format!("revision {}", step.field("revision")));
    }
    parts.join(", ")
}

/// A time span for people: three digits and a unit.
pub fn duration(micros: u64) -> String {
    #[allow(clippy::cast_precision_loss, reason = "three digits are shown")]
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
            began: 0,
            took: 0,
            step: name.into(),
            object: "pods/a/b".into(),
            process: "n9".into(),
            fields: fields.iter().map(|(name, value)| ((*name).into(), (*value).to_owned())).collect(),
        }
    }

    #[test]
    fn steps_in_words() {
        let cases: &[(&'static str, &[(&'static str, &str)], &str, &str)] = &[
            ("bound", &[("node", "n1")], "bound to n1", ""),
            ("sandbox", &[], "sandbox and network made", ""),
            ("sandbox", &[("address", "10.0.0.1")], "sandbox and network made, address 10.0.0.1", ""),
            (
                "filtered",
                &[
                    ("nodes", "3"),
                    ("feasible", "1"),
                    ("chosen", "n1"),
                    ("others", "2 Insufficient cpu"),
                    ("detail", "n1 311"),
                ],
                "looked at 3 nodes: 1 fit, n1 chosen (others: 2 Insufficient cpu)",
                "n1 311",
            ),
            ("filtered", &[("nodes", "1"), ("feasible", "0")], "looked at 1 node: 0 fit", ""),
            (
                "container-ended",
                &[("container", "c"), ("code", "3"), ("reason", "Error"), ("ran", "1200000")],
                "container c ended with 3 (Error), it ran 1.20 s",
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
            ("request", &[("verb", "delete"), ("agent", "kubelet")], "let go by the kubelet", ""),
            (
                "request",
                &[("verb", "delete"), ("agent", "kubectl"), ("held", "a/b")],
                "deletion asked for by kubectl; held by the finalizer a/b",
                "",
            ),
        ];
        for (name, fields, expected, detail) in cases {
            assert_eq!(what(&step(name, fields)), ((*expected).to_owned(), (*detail).to_owned()));
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
