//! Steps in words.

use crate::step::Step;

/// The vocabulary: the name of a step, the part that takes it, and what it says, with `{field}` for what was recorded.
/// A text in square brackets is left out where one of its fields is missing.
const WORDS: &[(&str, &str, &str)] = &[
    ("reconciled", "controllers", "seen by the {controller} controller[: {failed}]"),
    ("queued", "scheduler", "put into the queue"),
    ("filtered", "scheduler", "looked at {nodes} nodes[: {feasible} fit][, {chosen} chosen][; others: {others}]"),
    ("unschedulable", "scheduler", "fits nowhere: {why}"),
    ("bound", "scheduler", "bound to {node}"),
    ("accepted", "kubelet", "seen by the kubelet of {node}"),
    ("refused", "kubelet", "refused by the kubelet: {why}"),
    ("volumes", "kubelet", "{count} volumes mounted"),
    ("sandbox", "kubelet", "sandbox and network made[, address {address}][: {failed}]"),
    ("image", "kubelet", "image {image} for {container} [{found}][: {failed}]"),
    ("container-created", "kubelet", "container {container} created[: {failed}]"),
    ("container-started", "kubelet", "container {container} started[: {failed}]"),
    ("probe", "kubelet", "{probe} probe of {container} {result}"),
    ("container-stopped", "kubelet", "container {container} asked to end"),
    ("sandbox-stopped", "kubelet", "sandbox stopped, network taken down"),
    ("volumes-removed", "kubelet", "volumes taken down"),
    ("endpoint", "controllers", "endpoint of {service} published[, {condition}]"),
    ("proxied", "proxy", "addresses of the Service programmed"),
    ("named", "dns", "{name} resolvable"),
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

/// What a step did, in words.
pub fn what(step: &Step) -> String {
    match WORDS.iter().find(|(name, ..)| *name == step.step) {
        Some((_, _, pattern)) => fill(pattern, step),
        None if step.step == "request" => request(step),
        None => {
            let fields: Vec<String> = step.fields.iter().map(|(name, value)| format!("{name} {value}")).collect();
            format!("{} {}", step.step, fields.join(", ")).trim_end().to_owned()
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
        let value = step.field(name);
        complete &= !value.is_empty();
        text.push_str(before);
        text.push_str(if value.is_empty() { "?" } else { value });
        rest = behind;
    }
    text.push_str(rest);
    (text, complete)
}

/// A request that changed an object: who, what, and what each stage took.
fn request(step: &Step) -> String {
    let verb = match (step.field("verb"), step.field("subresource")) {
        ("create", "binding") => "binding stored".to_owned(),
        ("create", "eviction") => "eviction granted".to_owned(),
        ("create", _) => "created".to_owned(),
        ("delete", _) => "deletion asked for".to_owned(),
        ("removed", _) => "gone from the store".to_owned(),
        (_, "") => "changed".to_owned(),
        (_, subresource) => format!("{subresource} stored"),
    };
    let mut text = verb;
    if !step.field("state").is_empty() {
        text += &format!(": {}", step.field("state"));
    }
    let agent = step.field("agent");
    let who = if agent.is_empty() { step.field("user") } else { agent };
    if !who.is_empty() {
        text += &format!(" by {who}");
    }
    let stages: Vec<String> = ["authenticated", "authorized", "admitted", "stored"]
        .into_iter()
        .filter_map(|stage| Some(format!("{stage} {}", duration(step.number(&format!("{stage}_us"))?))))
        .collect();
    if !stages.is_empty() {
        text += &format!(" ({})", stages.join(", "));
    }
    if !step.field("revision").is_empty() {
        text += &format!(", revision {}", step.field("revision"));
    }
    text
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
            process: String::new(),
            fields: fields.iter().map(|(name, value)| ((*name).into(), (*value).to_owned())).collect(),
        }
    }

    #[test]
    fn steps_in_words() {
        let cases: &[(&'static str, &[(&'static str, &str)], &str)] = &[
            ("bound", &[("node", "n1")], "bound to n1"),
            ("sandbox", &[], "sandbox and network made"),
            ("sandbox", &[("address", "10.0.0.1")], "sandbox and network made, address 10.0.0.1"),
            (
                "filtered",
                &[("nodes", "3"), ("feasible", "1"), ("chosen", "n1"), ("others", "2 Insufficient cpu")],
                "looked at 3 nodes: 1 fit, n1 chosen; others: 2 Insufficient cpu",
            ),
            ("filtered", &[("nodes", "3"), ("feasible", "0")], "looked at 3 nodes: 0 fit"),
            ("something", &[("new", "1")], "something new 1"),
            (
                "request",
                &[
                    ("verb", "create"),
                    ("agent", "kubectl"),
                    ("authenticated_us", "12"),
                    ("stored_us", "1250"),
                    ("revision", "7"),
                ],
                "created by kubectl (authenticated 12 µs, stored 1.2 ms), revision 7",
            ),
            (
                "request",
                &[("verb", "patch"), ("subresource", "status"), ("state", "Running, ready")],
                "status stored: Running, ready",
            ),
        ];
        for (name, fields, expected) in cases {
            assert_eq!(what(&step(name, fields)), *expected);
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
