//! AdmissionReview: builds the request to a webhook and reads its response.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use knarr_api::patch::JsonPatch;
use knarr_api::status::Status;
use knarr_api::value::Read;
use serde_json::{Value, json};

use super::call::Failure;
use crate::admit::Write;
use crate::admit::dynamic::request;
use crate::admit::dynamic::versioned::Versioned;
use crate::resource_request::ResourceRequest;

/// The review of a write in one of both versions, which differ only in name.
pub fn make(write: &Write<'_>, call: &ResourceRequest<'_>, versioned: &Versioned, version: &str, uid: &str) -> Value {
    let mut request = request::describe(write, &versioned.matched, call.operation_options(write.operation));
    request.insert("uid".to_owned(), uid.into());
    request.insert("object".to_owned(), versioned.object.clone());
    request.insert("oldObject".to_owned(), versioned.old.clone());
    json!({"kind": "AdmissionReview", "apiVersion": format!("admission.k8s.io/{version}"), "request": request})
}

/// The response of a webhook.
#[derive(Debug)]
pub struct ReviewResponse {
    allowed: bool,
    refusal: Status,
    pub patch: Option<Patch>,
    pub warnings: Vec<String>,
    pub annotations: Vec<(String, String)>,
}

#[derive(Debug)]
pub struct Patch {
    pub patch: JsonPatch,
    /// As received.
    pub text: Value,
}

impl ReviewResponse {
    pub fn is_allowed(&self) -> bool {
        self.allowed
    }

    /// The response, unless it is a refusal.
    pub fn allowed(self) -> Result<ReviewResponse, Failure> {
        if self.allowed { Ok(self) } else { Err(Failure::Refused(self.refusal)) }
    }
}

/// Why a response is invalid.
#[derive(Debug, PartialEq, Eq)]
pub enum ReadError {
    Unreadable(String),
    Invalid(String),
    Patch(String),
    PatchType(String),
}

pub fn read(
    bytes: &[u8],
    version: &str,
    uid: &str,
    mutating: bool,
    webhook: &str,
) -> Result<ReviewResponse, ReadError> {
    let review: Value = serde_json::from_slice(bytes)
        .map_err(|error| ReadError::Unreadable(format!("couldn't get version/kind; json parse error: {error}")))?;
    let response = review.at(&["response"]);
    if !response.is_object() {
        return Err(ReadError::Invalid("webhook response was absent".to_owned()));
    }
    if version == "v1" {
        check_v1(&review, uid)?;
    }
    let patch = STANDARD
        .decode(response.text(&["patch"]))
        .map_err(|error| ReadError::Unreadable(format!("illegal base64 data: {error}")))?;
    let kind = response.at(&["patchType"]);
    match (mutating, version) {
        (true, "v1") => check_patch(&patch, kind)?,
        (false, "v1") if !patch.is_empty() => {
            return Err(ReadError::Invalid("validating webhook may not return response.patch".to_owned()));
        }
        (false, "v1") if !kind.is_null() => {
            return Err(ReadError::Invalid("validating webhook may not return response.patchType".to_owned()));
        }
        _ => {}
    }
    let allowed = response.flag(&["allowed"]) == Some(true);
    let patch = if mutating && allowed && !patch.is_empty() { read_patch(&patch, kind, version)? } else { None };
    let texts = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let annotations = response.fields(&["auditAnnotations"]).into_iter().flatten();
    Ok(ReviewResponse {
        allowed,
        refusal: refusal(webhook, response.at(&["status"])),
        patch,
        warnings: response.items(&["warnings"]).iter().map(texts).collect(),
        annotations: annotations.map(|(key, value)| (key.clone(), texts(value))).collect(),
    })
}

fn check_v1(review: &Value, uid: &str) -> Result<(), ReadError> {
    let given = review.text(&["response", "uid"]);
    if given != uid {
        return Err(ReadError::Invalid(format!("expected response.uid={uid:?}, got {given:?}")));
    }
    let (api_version, kind) = (review.text(&["apiVersion"]), review.text(&["kind"]));
    if (api_version, kind) != ("admission.k8s.io/v1", "AdmissionReview") {
        let expected = "admission.k8s.io/v1, Kind=AdmissionReview";
        let got = format!("{api_version}, Kind={kind}");
        return Err(ReadError::Invalid(format!("expected webhook response of {expected}, got {got}")));
    }
    Ok(())
}

fn check_patch(patch: &[u8], kind: &Value) -> Result<(), ReadError> {
    let invalid = |why: &str| Err(ReadError::Invalid(why.to_owned()));
    match (patch.is_empty(), kind.as_str()) {
        (false, None) => invalid("webhook returned response.patch but not response.patchType"),
        (true, Some(_)) => invalid("webhook returned response.patchType but not response.patch"),
        (false, Some("")) => invalid("webhook returned invalid response.patchType of \"\""),
        _ => Ok(()),
    }
}

fn read_patch(patch: &[u8], kind: &Value, version: &str) -> Result<Option<Patch>, ReadError> {
    let text: Value = serde_json::from_slice(patch).map_err(|error| ReadError::Patch(error.to_string()))?;
    let read = JsonPatch::read(patch).map_err(|error| ReadError::Patch(error.to_string()))?;
    if text.as_array().is_none_or(Vec::is_empty) {
        return Ok(None);
    }
    match kind.as_str() {
        Some(kind) if version == "v1" && kind != "JSONPatch" => Err(ReadError::PatchType(kind.to_owned())),
        _ => Ok(Some(Patch { patch: read, text })),
    }
}

/// The error that the client gets for a refusal; sets what the webhook left out.
fn refusal(webhook: &str, given: &Value) -> Status {
    let mut status = Status::from_value(given);
    if status.code < 400 {
        status.code = 400;
    }
    let denied = format!("admission webhook {webhook:?} denied the request");
    status.message = match (status.message.as_str(), &*status.reason) {
        ("", "") => format!("{denied} without explanation"),
        ("", reason) => format!("{denied}: {reason}"),
        (message, _) => format!("{denied}: {message}"),
    };
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_response(response: Value, mutating: bool) -> Result<ReviewResponse, ReadError> {
        let review = json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": response});
        read(review.to_string().as_bytes(), "v1", "u", mutating, "w")
    }

    #[test]
    fn refusals_name_the_webhook() {
        for (status, message, code) in [
            (json!({"message": "no", "code": 403}), "admission webhook \"w\" denied the request: no", 403),
            (json!({"reason": "Because"}), "admission webhook \"w\" denied the request: Because", 400),
            (Value::Null, "admission webhook \"w\" denied the request without explanation", 400),
        ] {
            let response = read_response(json!({"uid": "u", "allowed": false, "status": status}), false).unwrap();
            match response.allowed() {
                Err(Failure::Refused(status)) => assert_eq!((status.message.as_str(), status.code), (message, code)),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn responses_must_match_the_request() {
        let patch = STANDARD.encode(r#"[{"op":"add","path":"/a","value":1}]"#);
        let table = [
            (json!({"uid": "x"}), true, "expected response.uid=\"u\", got \"x\""),
            (json!({"uid": "u", "patch": patch}), true, "webhook returned response.patch but not response.patchType"),
            (json!({"uid": "u", "patch": patch}), false, "validating webhook may not return response.patch"),
        ];
        for (response, mutating, expected) in table {
            assert_eq!(read_response(response, mutating).unwrap_err(), ReadError::Invalid(expected.to_owned()));
        }
        let good = read_response(
            json!({"uid": "u", "allowed": true, "patch": patch, "patchType": "JSONPatch", "warnings": ["a"]}),
            true,
        );
        let good = good.unwrap();
        assert!(good.patch.is_some() && good.warnings == ["a"]);
    }
}
