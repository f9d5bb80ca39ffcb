//! Renders a timeline in the JSON format of the OpenTelemetry protocol, as collectors accept it at `/v1/traces`.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::{Value, json};

use crate::timeline::{Entry, Section, Timeline};

/// One trace per section: a root span with a child span for each entry.
pub fn render_otlp(timeline: &Timeline) -> Value {
    let spans: Vec<Value> = timeline.sections.iter().flat_map(|section| trace(timeline, section)).collect();
    json!({"resourceSpans": [{
        "resource": {"attributes": [attribute("service.name", "knarr")]},
        "scopeSpans": [{"scope": {"name": "journey"}, "spans": spans}],
    }]})
}

fn trace(timeline: &Timeline, section: &Section) -> Vec<Value> {
    let identity = (&timeline.object, section.started, section.title);
    let trace = format!("{:016x}{:016x}", hash(&(identity, "high")), hash(&(identity, "low")));
    let root = format!("{:016x}", hash(&(identity, "root")));
    let name = format!("{} {}", timeline.object, section.title);
    let mut spans = vec![span(&trace, &root, None, &name, section.started, section.took, &[])];
    for (number, entry) in section.entries.iter().enumerate() {
        let id = format!("{:016x}", hash(&(identity, number)));
        let Entry { after, took, component, object, message, detail, process, repeated } = entry;
        let attributes = [
            attribute("knarr.part", component),
            attribute("knarr.object", object),
            attribute("knarr.process", process),
            attribute("knarr.detail", detail),
            attribute("knarr.repeated", &repeated.to_string()),
        ];
        spans.push(span(&trace, &id, Some(&root), message, section.started + after, *took, &attributes));
    }
    spans
}

fn span(
    trace: &str,
    id: &str,
    parent: Option<&str>,
    name: &str,
    started: u64,
    took: u64,
    attributes: &[Value],
) -> Value {
    let mut span = json!({
        "traceId": trace,
        "spanId": id,
        "name": name,
        "kind": 1,
        "startTimeUnixNano": (u128::from(started) * 1_000).to_string(),
        "endTimeUnixNano": (u128::from(started + took) * 1_000).to_string(),
        "attributes": attributes,
    });
    if let Some(parent) = parent {
        span["parentSpanId"] = parent.into();
    }
    span
}

fn attribute(key: &str, value: &str) -> Value {
    json!({"key": key, "value": {"stringValue": value}})
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    // An ID of all zeros is invalid.
    hasher.finish().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Outcome;

    #[test]
    fn entries_are_children_of_their_section() {
        let entry = Entry {
            after: 10,
            took: 5,
            component: "api",
            object: "pods/a/b".into(),
            message: "created".into(),
            ..Entry::default()
        };
        let outcome = Outcome::default();
        let section = Section { title: "creation", started: 1_000, took: 100, outcome, entries: vec![entry] };
        let traces = render_otlp(&Timeline { object: "pods/a/b".into(), sections: vec![section] });
        let spans = traces["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap();
        assert_eq!(spans.len(), 2);
        assert_eq!(spans[1]["parentSpanId"], spans[0]["spanId"]);
        assert_eq!(spans[1]["traceId"], spans[0]["traceId"]);
        assert_eq!(
            (spans[1]["startTimeUnixNano"].as_str(), spans[1]["endTimeUnixNano"].as_str()),
            (Some("1010000"), Some("1015000"))
        );
    }
}
