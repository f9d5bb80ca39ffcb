//! CertificateSigningRequest: a request for a certificate, the approval or denial, and the issued certificate.

use std::collections::BTreeSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use knarr_api::field::{Errors, Path};
use knarr_api::names::Check;
use knarr_api::openapi::KEY_USAGES;
use knarr_api::time;
use knarr_api::value::{Read, Write};
use serde_json::{Value, json};

use super::{pem, signer_name};
use crate::common::checks;
use crate::common::columns::{self, AGE, NAME, field, text};
use crate::kind::{self, Column, Context, KindRules, MetadataPasses};

const SPEC: &str = "io.k8s.api.certificates.v1.CertificateSigningRequestSpec";
/// The description of the column SignerName, which differs from that of the field.
const SIGNER_NAME: &str = "Requested signer for the request. It is a qualified name in the form: \
    `scope-hostname.io/name`. If empty, it will be defaulted:
 1. If it's a kubelet client certificate, it is assigned
    \"kubernetes.io/kube-apiserver-client-kubelet\".
 2. If it's a kubelet serving certificate, it is assigned
    \"kubernetes.io/kubelet-serving\".
 3. Otherwise, it is assigned \"kubernetes.io/legacy-unknown\".
Distribution of trust for signers happens out of band. You can select on this field using `spec.signerName`.";
const LEGACY_SIGNER: &str = "kubernetes.io/legacy-unknown";
const MIN_EXPIRATION_SECONDS: i64 = 600;
/// Conditions that are true or absent, never false.
const DECISIONS: [&str; 3] = ["Approved", "Denied", "Failed"];

/// The rules of CertificateSigningRequest.
pub struct CertificateSigningRequest;

impl KindRules for CertificateSigningRequest {
    fn prepare_create(&self, object: &mut Value, context: &Context<'_>) {
        object.set(&["status"], json!({}));
        for field in ["username", "uid", "groups", "extra"] {
            object.remove(&["spec", field]);
        }
        let mut set = |field: &str, value: Value, empty: bool| {
            if !empty {
                object.set(&["spec", field], value);
            }
        };
        set("username", context.user.into(), context.user.is_empty());
        set("uid", context.uid.into(), context.uid.is_empty());
        set("groups", json!(context.groups), context.groups.is_empty());
        if let Some(extra) = context.extra {
            set("extra", json!(extra), extra.is_empty());
        }
    }

    fn prepare_update(&self, object: &mut Value, old: &Value, context: &Context<'_>) {
        kind::keep_field(object, old, "spec");
        match context.subresource {
            "status" => {
                for decision in ["Approved", "Denied"] {
                    keep_conditions(object, old, decision);
                }
                stamp_conditions(object, old, context.now);
            }
            "approval" => {
                stamp_conditions(object, old, context.now);
                let conditions = object.at(&["status", "conditions"]).clone();
                kind::keep_field(object, old, "status");
                match conditions {
                    Value::Null => drop(object.remove(&["status", "conditions"])),
                    conditions => object.set(&["status", "conditions"], conditions),
                }
            }
            _ => kind::keep_field(object, old, "status"),
        }
    }

    fn validate(&self, object: &Value, old: Option<&Value>, context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        validate_spec(&mut errors, &object["spec"], old.map(|old| &old["spec"]));
        validate_conditions(&mut errors, object, old);
        validate_certificate(&mut errors, object, old);
        if let Some(old) = old {
            validate_change(&mut errors, object, old, context.subresource);
        }
        errors
    }

    fn metadata_passes(&self) -> MetadataPasses {
        MetadataPasses { as_update: 1, as_create: 1 }
    }

    fn name_check(&self) -> Check {
        |_| Vec::new()
    }

    fn has_status(&self) -> bool {
        true
    }

    fn columns(&self) -> &'static [Column] {
        const {
            &[
                NAME,
                AGE,
                text("SignerName", "string", SIGNER_NAME),
                text("Requestor", "string", "Base64-encoded PKCS#10 CSR data"),
                field("RequestedDuration", "string", SPEC, "expirationSeconds"),
                text("Condition", "string", "Conditions applied to the request, such as approval or denial."),
            ]
        }
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let signer = object.text(&["spec", "signerName"]);
        let duration = object.integer(&["spec", "expirationSeconds"]);
        vec![
            columns::name(object),
            columns::age(object, now),
            if signer.is_empty() { "<none>".into() } else { signer.into() },
            object.text(&["spec", "username"]).into(),
            duration.map_or("<none>".to_owned(), time::human_duration).into(),
            state(object).into(),
        ]
    }
}

fn conditions<'a>(object: &'a Value, kind: &str) -> Vec<&'a Value> {
    let all = object.items(&["status", "conditions"]).iter();
    all.filter(|condition| condition.text(&["type"]) == kind).collect()
}

/// Keeps the approval and denial conditions on a status update, if it has as many of them.
fn keep_conditions(object: &mut Value, old: &Value, kind: &str) {
    let before = conditions(old, kind);
    if before.len() != conditions(object, kind).len() {
        return;
    }
    let all = object.items_mut(&["status", "conditions"]).iter_mut();
    for (new, old) in all.filter(|condition| condition.text(&["type"]) == kind).zip(before) {
        *new = old.clone();
    }
}

/// Sets the missing times of conditions, to those of the stored condition or to now.
fn stamp_conditions(object: &mut Value, old: &Value, now: Timestamp) {
    let now = time::seconds(now);
    for condition in object.items_mut(&["status", "conditions"]) {
        condition.set_default(&["lastUpdateTime"], now.as_str());
        if !condition.has(&["lastTransitionTime"]) {
            let mut before = old.items(&["status", "conditions"]).iter();
            let same = before.find(|old| {
                old["type"] == condition["type"]
                    && old["status"] == condition["status"]
                    && old.has(&["lastTransitionTime"])
            });
            let since = same.map_or(now.as_str(), |same| same.text(&["lastTransitionTime"])).to_owned();
            condition.set(&["lastTransitionTime"], since);
        }
    }
}

fn validate_spec(errors: &mut Errors, spec: &Value, old: Option<&Value>) {
    let path = Path::root("spec");
    let request = spec.text(&["request"]);
    if let Some(wrong) = pem::request_error(&STANDARD.decode(request).unwrap_or_default()) {
        errors.invalid(&path.child("request"), spec["request"].clone(), wrong);
    }
    validate_usages(errors, &path, spec, old);
    let signer = spec.text(&["signerName"]);
    let at = path.child("signerName");
    if signer == LEGACY_SIGNER && old.is_none_or(|old| old.text(&["signerName"]) != LEGACY_SIGNER) {
        errors.invalid(&at, signer, "the legacy signerName is not allowed via this API version");
    } else {
        signer_name::validate(errors, &at, signer);
    }
    if let Some(seconds) = spec.integer(&["expirationSeconds"]).filter(|seconds| *seconds < MIN_EXPIRATION_SECONDS) {
        let detail = "may not specify a duration less than 600 seconds (10 minutes)";
        errors.invalid(&path.child("expirationSeconds"), seconds, detail);
    }
}

fn validate_usages(errors: &mut Errors, path: &Path<'_>, spec: &Value, old: Option<&Value>) {
    let usages = |spec: &'_ Value| -> Vec<String> {
        spec.items(&["usages"]).iter().map(|usage| usage.as_str().unwrap_or_default().to_owned()).collect()
    };
    let is_known = |usage: &String| KEY_USAGES.contains(&usage.as_str());
    let distinct = |list: &[String]| list.iter().collect::<BTreeSet<_>>().len() == list.len();
    let (new, old) = (usages(spec), old.map(usages).unwrap_or_default());
    if new.is_empty() {
        errors.required(&path.child("usages"), "");
    }
    if old.iter().all(is_known) {
        for (index, usage) in new.iter().enumerate().filter(|(_, usage)| !is_known(usage)) {
            errors.not_supported(&path.item("usages", index), usage.as_str(), KEY_USAGES);
        }
    }
    if distinct(&old) {
        for (index, usage) in new.iter().enumerate().filter(|(index, usage)| new[..*index].contains(usage)) {
            errors.duplicate(&path.item("usages", index), usage.as_str());
        }
    }
}

fn validate_conditions(errors: &mut Errors, object: &Value, old: Option<&Value>) {
    let path = Path::root("status.conditions");
    let had = |kind: &str| old.is_some_and(|old| !conditions(old, kind).is_empty());
    let had_both = had("Approved") && had("Denied");
    let old_kinds: Vec<&str> =
        old.map_or(&[][..], |old| old.items(&["status", "conditions"])).iter().map(|c| c.text(&["type"])).collect();
    let had_twice = old_kinds.iter().collect::<BTreeSet<_>>().len() < old_kinds.len();
    let mut seen: Vec<&str> = Vec::new();
    for (index, condition) in object.items(&["status", "conditions"]).iter().enumerate() {
        let item = path.index(index);
        let kind = condition.text(&["type"]);
        if kind.is_empty() && !old_kinds.contains(&"") {
            errors.required(&item.child("type"), "");
        }
        let statuses: &[&str] = if DECISIONS.contains(&kind) { &["True"] } else { &["False", "True", "Unknown"] };
        match condition.text(&["status"]) {
            "" => errors.required(&item.child("status"), ""),
            status => checks::one_of(errors, &item.child("status"), status, statuses),
        }
        let opposite = match kind {
            "Approved" => "Denied",
            "Denied" => "Approved",
            _ => "",
        };
        if !had_both && !opposite.is_empty() && seen.contains(&opposite) {
            errors.invalid(&path, kind, "Approved and Denied conditions are mutually exclusive");
        }
        if !had_twice && seen.contains(&kind) {
            errors.duplicate(&item.child("type"), kind);
        }
        seen.push(kind);
    }
}

fn certificate(object: &Value) -> &str {
    object.text(&["status", "certificate"])
}

fn validate_certificate(errors: &mut Errors, object: &Value, old: Option<&Value>) {
    let fault = |object: &Value| pem::chain_error(&STANDARD.decode(certificate(object)).unwrap_or_default());
    if old.is_some_and(|old| certificate(old) == certificate(object) || fault(old).is_some()) {
        return;
    }
    if let Some(wrong) = fault(object) {
        errors.invalid(&Path::root("status.certificate"), "<certificate data>", wrong);
    }
}

/// Only writes to `approval` add decisions, which are never removed; `status` sets the certificate once.
fn validate_change(errors: &mut Errors, object: &Value, old: &Value, subresource: &str) {
    let path = Path::root("status.conditions");
    for kind in DECISIONS {
        if conditions(object, kind).len() < conditions(old, kind).len() {
            errors.forbidden(&path, format!("updates may not remove a condition of type {kind:?}"));
        }
    }
    if subresource != "approval" {
        for kind in ["Approved", "Denied"] {
            let (new, before) = (conditions(object, kind), conditions(old, kind));
            if new.len() > before.len() {
                errors.forbidden(&path, format!("updates may not add a condition of type {kind:?}"));
            } else if new.len() == before.len() && new != before {
                errors.forbidden(&path, format!("updates may not modify a condition of type {kind:?}"));
            }
        }
    }
    if certificate(object) != certificate(old) {
        let path = Path::root("status.certificate");
        if subresource != "status" {
            errors.forbidden(&path, "updates may not set certificate content");
        } else if !certificate(old).is_empty() {
            errors.forbidden(&path, "updates may not modify existing certificate content");
        }
    }
}

fn state(object: &Value) -> String {
    let has = |kind: &str| !conditions(object, kind).is_empty();
    let mut state = if has("Denied") {
        "Denied".to_owned()
    } else if has("Approved") {
        "Approved".to_owned()
    } else {
        "Pending".to_owned()
    };
    if has("Failed") {
        state.push_str(",Failed");
    }
    if !certificate(object).is_empty() {
        state.push_str(",Issued");
    }
    state
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{context, messages, messages_of};

    fn request(conditions: &[&str]) -> Value {
        let conditions: Vec<Value> = conditions.iter().map(|kind| json!({"type": kind, "status": "True"})).collect();
        json!({"spec": {"request": "", "signerName": "example.com/s", "usages": ["client auth"]}, "status": {"conditions": conditions}})
    }

    const NO_REQUEST: &str = "spec.request: Invalid value: \"\": PEM block type must be CERTIFICATE REQUEST";

    #[test]
    fn the_server_says_who_asks() {
        let mut object = json!({"spec": {"username": "someone", "uid": "1"}});
        CertificateSigningRequest.prepare_create(&mut object, &context("v1"));
        assert_eq!(object, json!({"spec": {"username": "tester"}, "status": {}}));
    }

    #[test]
    fn wrong_requests_are_reported() {
        let object =
            json!({"spec": {"request": "", "signerName": "s", "usages": ["x", "any", "any"], "expirationSeconds": 1}});
        let found = messages(&CertificateSigningRequest, &object, None);
        assert_eq!(found[0], NO_REQUEST);
        assert!(
            found[1].starts_with("spec.usages[0]: Unsupported value: \"x\": supported values: \"any\", \"cert sign\"")
        );
        assert_eq!(
            found[2..],
            [
                "spec.usages[2]: Duplicate value: \"any\"",
                "spec.signerName: Invalid value: \"s\": must be a fully qualified domain and path of the form \
                 'example.com/signer-name'",
                "spec.expirationSeconds: Invalid value: 1: may not specify a duration less than 600 seconds (10 minutes)",
            ]
        );
    }

    #[test]
    fn decisions_are_made_only_by_approval() {
        for (subresource, new, old, wrong) in [
            ("approval", request(&["Approved"]), request(&[]), vec![NO_REQUEST]),
            (
                "status",
                request(&["Approved"]),
                request(&[]),
                vec![NO_REQUEST, "status.conditions: Forbidden: updates may not add a condition of type \"Approved\""],
            ),
            (
                "approval",
                request(&["Approved", "Denied"]),
                request(&["Approved"]),
                vec![
                    NO_REQUEST,
                    "status.conditions: Invalid value: \"Denied\": Approved and Denied conditions are mutually exclusive",
                ],
            ),
        ] {
            assert_eq!(messages_of(&CertificateSigningRequest, &new, Some(&old), subresource), wrong);
        }
    }
}
