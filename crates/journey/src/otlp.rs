//! A story in the JSON form of the OpenTelemetry protocol, as collectors take it at `/v1/traces`.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::{Value, json};

use crate::story::{Chapter, Moment, Story};

/// One trace a chapter: a span for the whole of it, with a span for each moment inside.
pub fn traces(story: &Story) -> Value {
    let spans: Vec<Value> = story.chapters.iter().flat_map(|chapter| trace(story, chapter)).collect();
    json!({"resourceSpans": [{
        "resource": {"attributes": [attribute("service.name", "knarr")]},
        "scopeSpans": [{"scope": {"name": "journey"}, "spans": spans}],
    }]})
}

fn trace(story: &Story, chapter: &Chapter) -> Vec<Value> {
    let identity = (&story.object, chapter.began, chapter.title);
    let trace = format!("{:016x}{:016x}", hash(&(identity, "high")), hash(&(identity, "low")));
    let root = format!("{:016x}", hash(&(identity, "root")));
    let name = format!("{} {}", story.object, chapter.title);
    let mut spans = vec![span(&trace, &root, None, &name, chapter.began, chapter.took, &[])];
    for (number, moment) in chapter.moments.iter().enumerate() {
        let id = format!("{:016x}", hash(&(identity, number)));
        let Moment { after, took, part, object, what, detail, process, repeated } = moment;
        let attributes = [
            attribute("knarr.part", part),
            attribute("knarr.object", object),
            attribute("knarr.process", process),
            attribute("knarr.detail", detail),
            attribute("knarr.repeated", &repeated.to_string()),
        ];
        spans.push(span(&trace, &id, Some(&root), what, chapter.began + after, *took, &attributes));
    }
    spans
}

fn span(trace: &str, id: &str, parent: Option<&str>, name: &str, began: u64, took: u64, attributes: &[Value]) -> Value {
    let mut span = json!({
        "traceId": trace,
        "spanId": id,
        "name": name,
        "kind": 1,
        "startTimeUnixNano": (u128::from(began) * 1_000).to_string(),
        "endTimeUnixNano": (u128::from(began + took) * 1_000).to_string(),
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
    // An identifier of zeros means none.
    hasher.finish().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Outcome;

    #[test]
    fn moments_are_children_of_their_chapter() {
        let moment = Moment {
            after: 10,
            took: 5,
            part: "api",
            object: "pods/a/b".into(),
            what: "created".into(),
            ..Moment::default()
        };
        let outcome = Outcome::default();
        let chapter = Chapter { title: "how it came to be", began: 1_000, took: 100, outcome, moments: vec![moment] };
        let traces = traces(&Story { object: "pods/a/b".into(), chapters: vec![chapter] });
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
