//! Webhooks that convert the objects of custom resources between versions. One request converts many objects.

use std::time::Duration;

use bytes::Bytes;
use knarr_api::field::{Errors, Path};
use knarr_api::value::{Read, go_type};
use knarr_rules::common::labels::{validate_annotations, validate_labels};
use serde_json::{Value, json};

use crate::object_reader::ObjectReader;
use crate::outbound::{Destination, Outgoing, WebhookClient};

const WEBHOOK_TIMEOUT: Duration = Duration::from_secs(30);

/// How webhooks are called.
#[derive(Clone, Copy)]
pub struct WebhookCaller<'a> {
    pub client: &'a WebhookClient,
    /// Where the Services are read that webhooks are behind.
    pub services: &'a dyn ObjectReader,
}

/// A webhook that converts the objects of one definition.
#[derive(Debug)]
pub struct Converter {
    destination: Result<Destination, String>,
    review_versions: Vec<String>,
}

impl Converter {
    /// Reads `spec.conversion` of a definition; `None` if no webhook is needed.
    pub fn read(conversion: &Value) -> Option<Converter> {
        if conversion.text(&["strategy"]) != "Webhook" {
            return None;
        }
        let webhook = conversion.at(&["webhook"]);
        let versions = webhook.items(&["conversionReviewVersions"]).iter();
        Some(Converter {
            destination: Destination::of_webhook(webhook.at(&["clientConfig"])),
            review_versions: versions.filter_map(Value::as_str).map(str::to_owned).collect(),
        })
    }

    /// Replaces objects by what the webhook makes of them.
    pub async fn convert(&self, caller: WebhookCaller<'_>, objects: &mut [Value], to: &str) -> Result<(), String> {
        let kind = describe_kind(objects.first().unwrap_or(&Value::Null));
        let failed = |why: &dyn std::fmt::Display| format!("conversion webhook for {kind} failed: {why}");
        let known = self.review_versions.iter().find(|version| matches!(version.as_str(), "v1" | "v1beta1"));
        let version = known.ok_or("no supported conversion review versions")?;
        let uid = uuid::Uuid::new_v4().to_string();
        let review = json!({
            "kind": "ConversionReview", "apiVersion": format!("apiextensions.k8s.io/{version}"),
            "request": {"uid": uid, "desiredAPIVersion": to, "objects": &*objects},
        });
        let destination = self.destination.as_ref().map_err(|why| failed(why))?;
        let body = Bytes::from(review.to_string());
        let mut span = knarr_traces::child_of_current("Call conversion webhook", knarr_traces::Kind::Client);
        let trace = span.as_ref().map(knarr_traces::Span::context);
        let request = Outgoing { trace, ..Outgoing::new(body, WEBHOOK_TIMEOUT) };
        let response = caller.client.post(caller.services, destination, request).await;
        if let (Some(span), Err(why)) = (&mut span, &response) {
            span.failed(&why.to_string());
        }
        drop(span);
        let response = response.map_err(|why| failed(&why))?;
        let review: Value = serde_json::from_slice(&response).map_err(|why| failed(&why))?;
        let converted = check_review(&review, version, &uid).map_err(|why| failed(&why))?;
        if converted.len() != objects.len() {
            let (got, expected) = (converted.len(), objects.len());
            return Err(format!("conversion webhook for {kind} returned {got} objects, expected {expected}"));
        }
        for (at, (object, converted)) in objects.iter_mut().zip(converted).enumerate() {
            let made = restore(object, converted, to).map_err(|why| {
                format!("conversion webhook for {kind} returned invalid converted object at index {at}: {why}")
            })?;
            *object = made;
        }
        Ok(())
    }
}

fn describe_kind(object: &Value) -> String {
    let api_version = object.text(&["apiVersion"]);
    format!("{api_version}, Kind={}", object.text(&["kind"]))
}

fn check_review<'a>(review: &'a Value, version: &str, uid: &str) -> Result<&'a [Value], String> {
    if version == "v1" {
        let (api_version, kind) = (review.text(&["apiVersion"]), review.text(&["kind"]));
        if (api_version, kind) != ("apiextensions.k8s.io/v1", "ConversionReview") {
            return Err(format!(
                "expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview, got {}",
                describe_kind(review)
            ));
        }
    }
    if !review.has(&["response"]) {
        return Err("no response provided".to_owned());
    }
    let given = review.text(&["response", "uid"]);
    if version == "v1" && given != uid {
        return Err(format!("expected response.uid={uid:?}, got {given:?}"));
    }
    let result = review.at(&["response", "result"]);
    match (result.text(&["status"]), result.text(&["message"])) {
        ("Success", _) => Ok(review.items(&["response", "convertedObjects"])),
        (status, "") => Err(format!("response.result.status was '{status}', not 'Success'")),
        (_, message) => Err(message.to_owned()),
    }
}

/// The converted object with the metadata it had: a webhook may change labels and annotations only.
fn restore(original: &Value, converted: &Value, to: &str) -> Result<Value, String> {
    let got = converted.text(&["apiVersion"]);
    if got != to {
        return Err(format!("invalid groupVersion (expected {to}, received {got})"));
    }
    let (expected, got) = (original.text(&["kind"]), converted.text(&["kind"]));
    if expected != got {
        return Err(format!("invalid kind (expected {expected}, received {got})"));
    }
    for (field, label) in [("name", "name"), ("namespace", "namespace"), ("uid", "UID")] {
        let (own, theirs) = (original.text(&["metadata", field]), converted.text(&["metadata", field]));
        if own != theirs {
            return Err(format!("must have the same {label}: {own} != {theirs}"));
        }
    }
    let given = converted.fields(&["metadata"]).ok_or("missing metadata in converted object")?;
    let mut made = converted.clone();
    let mut metadata = original.fields(&["metadata"]).cloned().unwrap_or_default();
    for field in ["labels", "annotations"] {
        match given.get(field) {
            None | Some(Value::Null) => drop(metadata.remove(field)),
            Some(given) => {
                if metadata.get(field) != Some(given) {
                    check_texts(field, given)?;
                }
                metadata.insert(field.to_owned(), given.clone());
            }
        }
    }
    made["metadata"] = Value::Object(metadata);
    Ok(made)
}

/// Refuses labels or annotations that no client could have set: what reads them relies on that.
fn check_texts(field: &str, given: &Value) -> Result<(), String> {
    let Some(texts) = given.as_object() else {
        return Err(format!("invalid metadata.{field} of type {} in converted object", go_type(given)));
    };
    if let Some((key, value)) = texts.iter().find(|(_, value)| !value.is_string()) {
        return Err(format!("metadata.{field}[{key}] must be a string, but is {} in converted object", go_type(value)));
    }
    let mut errors = Errors::new();
    let path = Path::root("metadata");
    match field {
        "labels" => validate_labels(&mut errors, given, &path.child("labels")),
        _ => validate_annotations(&mut errors, given, &path.child("annotation")),
    }
    let errors: Vec<String> = errors.0.iter().map(ToString::to_string).collect();
    match errors.as_slice() {
        [] => Ok(()),
        [one] => Err(one.clone()),
        many => Err(format!("[{}]", many.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn webhooks_change_only_labels_and_annotations() {
        let original = json!({"kind": "Ship", "apiVersion": "a/v1", "metadata": {"name": "n", "uid": "u", "labels": {"a": "1"},
            "generation": 3}, "spec": {"x": 1}});
        let converted = json!({"kind": "Ship", "apiVersion": "a/v2", "metadata": {"name": "n", "uid": "u",
            "annotations": {"b": "2"}, "generation": 9}, "spec": {"y": 1}});
        let made = restore(&original, &converted, "a/v2").unwrap();
        let metadata = json!({"name": "n", "uid": "u", "generation": 3, "annotations": {"b": "2"}});
        assert_eq!((&made["metadata"], &made["spec"]), (&metadata, &json!({"y": 1})));
        assert!(restore(&original, &converted, "a/v3").unwrap_err().contains("invalid groupVersion"));
        let mut renamed = converted.clone();
        renamed["metadata"]["name"] = "m".into();
        assert_eq!(restore(&original, &renamed, "a/v2").unwrap_err(), "must have the same name: n != m");
        for (field, value, why) in [
            ("labels", json!(["a"]), "invalid metadata.labels of type []interface {} in converted object"),
            (
                "labels",
                json!({"a": {}}),
                "metadata.labels[a] must be a string, but is map[string]interface {} in converted object",
            ),
            ("labels", json!({"a": "not a label"}), "metadata.labels: Invalid value: \"not a label\""),
            ("annotations", json!({"a b": ""}), "metadata.annotation: Invalid value: \"a b\""),
        ] {
            let mut wrong = converted.clone();
            wrong["metadata"][field] = value;
            let error = restore(&original, &wrong, "a/v2").unwrap_err();
            assert!(error.starts_with(why), "{error}");
        }
    }

    #[test]
    fn conversion_reviews_are_checked() {
        let review = |response: Value| json!({"kind": "ConversionReview", "apiVersion": "apiextensions.k8s.io/v1", "response": response});
        let of = |value: &Value| check_review(value, "v1", "u").map(<[Value]>::len);
        assert_eq!(of(&review(json!({"uid": "u", "result": {"status": "Success"}, "convertedObjects": [{}]}))), Ok(1));
        assert!(of(&review(json!({"uid": "v"}))).unwrap_err().starts_with("expected response.uid"));
        assert_eq!(of(&review(json!({"uid": "u", "result": {"status": "Failed", "message": "no"}}))), Err("no".into()));
    }
}
