//! StatefulSet: pods with stable names and volumes.

use std::collections::BTreeSet;

use jiff::Timestamp;
use knarr_api::field::{Errors, Path};
use knarr_api::names::{self, Check};
use knarr_api::quantity::Quantity;
use knarr_api::selector::LabelSelector;
use knarr_api::value::{Read, Write};
use serde_json::{Value, json};

use super::workload;
use crate::common::columns::{self, AGE, CONTAINERS, IMAGES, NAME, text};
use crate::common::go_json::struct_json;
use crate::common::{checks, int_or_percent, label_selector, labels};
use crate::core::persistent_volume_claim::{self, PersistentVolumeClaim};
use crate::core::pod_template;
use crate::kind::{self, Column, Context, KindRules};

const MAX_UNAVAILABLE: [&str; 4] = ["spec", "updateStrategy", "rollingUpdate", "maxUnavailable"];
/// The fields of the spec that an update may change.
const CHANGEABLE: [&str; 7] = [
    "replicas",
    "template",
    "updateStrategy",
    "minReadySeconds",
    "ordinals",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
];
const UNCHANGEABLE: &str = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', \
                            'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and \
                            'minReadySeconds' are forbidden";

/// The rules of StatefulSet.
pub struct StatefulSet;

/// A rolling update replaces one pod at a time, unless its feature is on and something else is written.
fn set_max_unavailable(object: &mut Value, context: &Context<'_>) {
    let strategy = &object["spec"]["updateStrategy"];
    let is_rolling = strategy.text(&["type"]) == "RollingUpdate" && strategy.has(&["rollingUpdate"]);
    if is_rolling && context.features.is_on("MaxUnavailableStatefulSet") {
        object.set_default(&MAX_UNAVAILABLE, 1);
    }
}

impl KindRules for StatefulSet {
    fn set_defaults(&self, object: &mut Value, _version: &str) {
        pod_template::set_defaults(object.object(&["spec"]).entry("template").or_insert_with(|| json!({})));
        for claim in object.items_mut(&["spec", "volumeClaimTemplates"]) {
            set_claim_defaults(claim);
        }
        if object.text(&["spec", "podManagementPolicy"]).is_empty() {
            object.set(&["spec", "podManagementPolicy"], "OrderedReady");
        }
        if object.text(&["spec", "updateStrategy", "type"]).is_empty() {
            object.set(&["spec", "updateStrategy", "type"], "RollingUpdate");
            object.set_default(&["spec", "updateStrategy", "rollingUpdate"], json!({}));
        }
        let strategy = &object["spec"]["updateStrategy"];
        if strategy.text(&["type"]) == "RollingUpdate" && strategy.has(&["rollingUpdate"]) {
            object.set_default(&["spec", "updateStrategy", "rollingUpdate", "partition"], 0);
        }
        for event in ["whenDeleted", "whenScaled"] {
            let path = ["spec", "persistentVolumeClaimRetentionPolicy", event];
            if object.text(&path).is_empty() {
                object.set(&path, "Retain");
            }
        }
        object.set_default(&["spec", "replicas"], 1);
        object.set_default(&["spec", "revisionHistoryLimit"], 10);
    }

    fn prepare_create(&self, object: &mut Value, context: &Context<'_>) {
        object.set(&["status"], self.empty_status());
        set_max_unavailable(object, context);
    }

    fn prepare_update(&self, object: &mut Value, old: &Value, context: &Context<'_>) {
        if context.subresource == "status" {
            kind::keep_all_but_status(object, old);
            return;
        }
        kind::keep_field(object, old, "status");
        set_max_unavailable(object, context);
    }

    fn validate(&self, object: &Value, old: Option<&Value>, context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        let spec = &object["spec"];
        match old {
            Some(old) if context.subresource == "status" => {
                validate_status(&mut errors, &object["status"], &old["status"]);
            }
            Some(old) => {
                let old = &old["spec"];
                let mut of_old = Errors::new();
                validate_spec(&mut of_old, old, Some(old), &Strictness { claims: false, template: true });
                let strictness = Strictness { claims: false, template: of_old.is_empty() };
                validate_spec(&mut errors, spec, Some(old), &strictness);
                if kept(spec) != kept(old) {
                    errors.forbidden(&Path::root("spec"), UNCHANGEABLE);
                }
            }
            None => validate_spec(&mut errors, spec, None, &Strictness { claims: true, template: true }),
        }
        errors
    }

    fn warnings(&self, object: &Value, old: Option<&Value>, context: &Context<'_>) -> Vec<String> {
        if context.subresource == "status" {
            return Vec::new();
        }
        let mut warnings = Vec::new();
        if old.is_none_or(|old| self.increments_generation(object, old)) {
            warnings.extend(workload::template_warnings(object));
        }
        let below = if old.is_some() { ".Spec" } else { "" };
        for (index, claim) in object.items(&["spec", "volumeClaimTemplates"]).iter().enumerate() {
            warnings.extend(claim_warnings(claim, &format!("spec.volumeClaimTemplates[{index}]{below}")));
        }
        if object.integer(&["spec", "revisionHistoryLimit"]).is_some_and(|limit| limit < 0) {
            let detail = "spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is \
                        recommended";
            warnings.push(detail.to_owned());
        }
        warnings
    }

    fn name_check(&self) -> Check {
        names::dns_label
    }

    fn has_status(&self) -> bool {
        true
    }

    fn empty_status(&self) -> Value {
        json!({"replicas": 0, "availableReplicas": 0})
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn columns(&self) -> &'static [Column] {
        const { &[NAME, text("Ready", "string", "Number of the pod with ready state"), AGE, CONTAINERS, IMAGES] }
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let ready = object.integer(&["status", "readyReplicas"]).unwrap_or(0);
        let desired = object.integer(&["spec", "replicas"]).unwrap_or(0);
        let [containers, images] = columns::containers_and_images(object.at(&["spec", "template"]));
        let ready = format!("{ready}/{desired}");
        vec![columns::name(object), ready.into(), columns::age(object, now), containers, images]
    }
}

/// Which checks apply. Updates skip those that the stored object already violates.
struct Strictness {
    claims: bool,
    template: bool,
}

fn set_claim_defaults(claim: &mut Value) {
    claim.set(&["apiVersion"], "v1");
    claim.set(&["kind"], "PersistentVolumeClaim");
    PersistentVolumeClaim.set_defaults(claim, "v1");
}

fn claim_warnings(claim: &Value, path: &str) -> Vec<String> {
    let mut warnings = Vec::new();
    for list in ["requests", "limits"] {
        let rendered = claim.text(&["spec", "resources", list, "storage"]);
        if Quantity::parse(rendered).is_ok_and(|quantity| quantity.milli_value() % 1000 != 0) {
            let at = format!("{path}.resources.{list}[storage]");
            warnings.push(format!("{at}: fractional byte value {rendered:?} is invalid, must be an integer"));
        }
    }
    warnings
}

/// Returns the fields of a spec that an update may not change.
fn kept(spec: &Value) -> Vec<(&String, &Value)> {
    let fields = spec.as_object().into_iter().flatten();
    fields.filter(|(field, value)| !CHANGEABLE.contains(&field.as_str()) && !value.is_null()).collect()
}

fn validate_spec(errors: &mut Errors, spec: &Value, old: Option<&Value>, strictness: &Strictness) {
    let path = Path::root("spec");
    match spec.text(&["podManagementPolicy"]) {
        "" => errors.required(&path.child("podManagementPolicy"), ""),
        "OrderedReady" | "Parallel" => {}
        other => errors.invalid(&path.child("podManagementPolicy"), other, "must be 'OrderedReady' or 'Parallel'"),
    }
    validate_strategy(errors, &path.child("updateStrategy"), &spec["updateStrategy"]);
    let retention = path.child("persistentVolumeClaimRetentionPolicy");
    if let Some(policy) = spec.fields(&["persistentVolumeClaimRetentionPolicy"]) {
        for event in ["whenDeleted", "whenScaled"] {
            let value = policy.get(event).and_then(Value::as_str).unwrap_or_default();
            checks::one_of(errors, &retention.child(event), value, &["Retain", "Delete"]);
        }
    }
    if strictness.claims {
        for (index, claim) in spec.items(&["volumeClaimTemplates"]).iter().enumerate() {
            let claim_path = path.item("volumeClaimTemplates", index);
            let options = persistent_volume_claim::Options::default();
            persistent_volume_claim::validate_spec(errors, &claim["spec"], &claim_path.child("spec"), options);
        }
    }
    for field in ["replicas", "minReadySeconds"] {
        checks::non_negative(errors, &path.child(field), spec.integer(&[field]));
    }
    checks::non_negative(errors, &path.child("ordinals.start"), spec.integer(&["ordinals", "start"]));
    let service = spec.text(&["serviceName"]);
    if strictness.claims && !service.is_empty() {
        names::check(errors, &path.child("serviceName"), service, names::dns_label);
    }
    validate_selector_and_template(errors, &path, spec, old, strictness);
    workload::validate_runs_forever(errors, &path.child("template"), &spec["template"], "StatefulSet");
}

fn validate_strategy(errors: &mut Errors, path: &Path<'_>, strategy: &Value) {
    let rolling = &strategy["rollingUpdate"];
    let at = path.child("rollingUpdate");
    let zero = Value::from(0);
    let settings = [("Partition", "partition", zero), ("MaxUnavailable", "maxUnavailable", Value::Null)];
    match strategy.text(&["type"]) {
        "" => errors.required(path, ""),
        "OnDelete" if !rolling.is_null() => {
            let fields = settings.map(|(rendered, name, zero)| (rendered, rolling.get(name).unwrap_or(&zero).clone()));
            errors.invalid_verbatim(&at, struct_json(&fields), "only allowed for updateStrategy 'RollingUpdate'");
        }
        "OnDelete" => {}
        "RollingUpdate" => {
            checks::non_negative(errors, &at.child("partition"), rolling.integer(&["partition"]));
            if rolling.has(&["maxUnavailable"]) {
                let (at, value) = (at.child("maxUnavailable"), &rolling["maxUnavailable"]);
                int_or_percent::validate(errors, &at, value);
                if int_or_percent::number(value) == 0 {
                    errors.invalid(&at, value.clone(), "cannot be 0");
                }
                int_or_percent::at_most_all(errors, &at, value);
            }
        }
        _ => {
            let rendered = workload::strategy_json(strategy, &settings);
            errors.invalid_verbatim(path, rendered, "must be 'RollingUpdate' or 'OnDelete'");
        }
    }
}

fn validate_selector_and_template(
    errors: &mut Errors,
    path: &Path<'_>,
    spec: &Value,
    old: Option<&Value>,
    strictness: &Strictness,
) {
    let selector = &spec["selector"];
    workload::validate_selector(errors, &path.child("selector"), selector, "empty selector is invalid for statefulset");
    let Ok(read) = LabelSelector::from_object(selector) else {
        label_selector::invalid(errors, &path.child("selector"), selector, "");
        return;
    };
    let at = path.child("template");
    let template = template_of_pods(spec);
    workload::validate_template_labels(errors, &at, &template, &read);
    if strictness.template {
        pod_template::validate(errors, &template, old.map(template_of_pods).as_ref(), &at);
    }
    let metadata = &template["metadata"];
    labels::validate_labels(errors, &metadata["labels"], &at.child("labels"));
    labels::validate_annotations(errors, &metadata["annotations"], &at.child("annotations"));
}

/// Returns the template as the controller completes it: with the volumes of the claims, and without host names, which
/// the controller sets.
fn template_of_pods(spec: &Value) -> Value {
    let mut template = spec["template"].clone();
    template.remove(&["spec", "subdomain"]);
    template.remove(&["spec", "hostname"]);
    let claims = spec.items(&["volumeClaimTemplates"]);
    if !claims.is_empty() {
        let mut volumes: Vec<Value> = Vec::new();
        let mut claimed = BTreeSet::new();
        for name in claims.iter().map(|claim| claim.text(&["metadata", "name"])) {
            if claimed.insert(name) {
                volumes.push(json!({"name": name, "persistentVolumeClaim": {"claimName": name}}));
            }
        }
        let is_claimed = |volume: &&Value| volume["name"].as_str().is_some_and(|name| claimed.contains(name));
        volumes.extend(template.items(&["spec", "volumes"]).iter().filter(|volume| !is_claimed(volume)).cloned());
        template.set(&["spec", "volumes"], volumes);
    }
    template
}

fn validate_status(errors: &mut Errors, status: &Value, old: &Value) {
    workload::validate_counters(
        errors,
        status,
        &[
            "replicas",
            "readyReplicas",
            "currentReplicas",
            "updatedReplicas",
            "availableReplicas",
            "observedGeneration",
            "collisionCount",
        ],
    );
    let within = ["readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas"];
    workload::validate_at_most(errors, status, &within, "replicas", "cannot be greater than status.replicas");
    let ready = "cannot be greater than status.readyReplicas";
    workload::validate_at_most(errors, status, &["availableReplicas"], "readyReplicas", ready);
    workload::validate_collisions(errors, status, old);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{defaulted, messages};

    fn stateful_set(spec: Value) -> Value {
        let mut whole = json!({"serviceName": "s", "selector": {"matchLabels": {"app": "a"}}, "template": {
            "metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "c", "image": "nginx"}]}}});
        for (field, value) in spec.as_object().unwrap() {
            whole[field] = value.clone();
        }
        defaulted(&StatefulSet, json!({"metadata": {"name": "t"}, "spec": whole}))
    }

    #[test]
    fn defaults_are_set() {
        let claim = json!({"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}});
        let spec = &stateful_set(json!({"volumeClaimTemplates": [claim]}))["spec"];
        assert_eq!(spec["updateStrategy"], json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}));
        assert_eq!(spec["podManagementPolicy"], "OrderedReady");
        let retention = json!({"whenDeleted": "Retain", "whenScaled": "Retain"});
        assert_eq!(spec["persistentVolumeClaimRetentionPolicy"], retention);
        let claim = &spec["volumeClaimTemplates"][0];
        assert_eq!(
            (&claim["kind"], &claim["spec"]["volumeMode"]),
            (&json!("PersistentVolumeClaim"), &json!("Filesystem"))
        );
        assert_eq!(claim["status"], json!({"phase": "Pending"}));
    }

    #[test]
    fn wrong_specs_are_reported() {
        for (spec, wrong) in [
            (json!({}), vec![]),
            (
                json!({"podManagementPolicy": "Never"}),
                vec!["spec.podManagementPolicy: Invalid value: \"Never\": must be 'OrderedReady' or 'Parallel'"],
            ),
            (
                json!({"updateStrategy": {"type": "OnDelete", "rollingUpdate": {"partition": 1}}}),
                vec![
                    "spec.updateStrategy.rollingUpdate: Invalid value: {\"Partition\":1,\"MaxUnavailable\":null}: only \
                     allowed for updateStrategy 'RollingUpdate'",
                ],
            ),
            (
                json!({"updateStrategy": {"type": "Never"}}),
                vec![
                    "spec.updateStrategy: Invalid value: {\"Type\":\"Never\",\"RollingUpdate\":null}: must be \
                     'RollingUpdate' or 'OnDelete'",
                ],
            ),
            (
                json!({"persistentVolumeClaimRetentionPolicy": {"whenScaled": "Keep"}}),
                vec![
                    "spec.persistentVolumeClaimRetentionPolicy.whenScaled: Unsupported value: \"Keep\": supported values: \
                     \"Retain\", \"Delete\"",
                ],
            ),
        ] {
            assert_eq!(messages(&StatefulSet, &stateful_set(spec), None), wrong);
        }
    }

    #[test]
    fn most_of_a_spec_stays() {
        let old = stateful_set(json!({}));
        assert!(messages(&StatefulSet, &stateful_set(json!({"replicas": 5})), Some(&old)).is_empty());
        assert_eq!(
            messages(&StatefulSet, &stateful_set(json!({"serviceName": "x"})), Some(&old)),
            [format!("spec: Forbidden: {UNCHANGEABLE}")]
        );
    }
}
