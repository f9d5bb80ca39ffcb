//! HorizontalPodAutoscaler: scales a workload by metrics.

use jiff::Timestamp;
use knarr_api::field::{Errors, Path};
use knarr_api::quantity::Quantity;
use knarr_api::value::{Read, Write};
use serde_json::{Value, json};

use super::conversion;
use super::metrics::{self, VersionRules};
use crate::common::checks::{self, NEGATIVE};
use crate::common::columns::{self, AGE, NAME, field};
use crate::kind::{Column, Context, KindRules};

const SPEC: &str = "io.k8s.api.autoscaling.v2.HorizontalPodAutoscalerSpec";
const STATUS: &str = "io.k8s.api.autoscaling.v2.HorizontalPodAutoscalerStatus";
const MAX_WINDOW_SECONDS: i64 = 3600;
const MAX_PERIOD_SECONDS: i64 = 1800;

/// The rules of HorizontalPodAutoscaler.
pub struct HorizontalPodAutoscaler;

impl KindRules for HorizontalPodAutoscaler {
    fn set_defaults(&self, object: &mut Value, version: &str) {
        object.set_default(&["spec", "minReplicas"], 1);
        if version == "v1" {
            if !object.at(&["metadata", "annotations"]).has(&[conversion::METRICS]) {
                object.set_default(&["spec", "targetCPUUtilizationPercentage"], conversion::DEFAULT_CPU);
            }
            return;
        }
        if object.items(&["spec", "metrics"]).is_empty() {
            object.set(&["spec", "metrics"], json!([conversion::cpu_metric(conversion::DEFAULT_CPU)]));
        }
        if object.has(&["spec", "behavior"]) {
            let pods = json!({"type": "Pods", "value": 4, "periodSeconds": 15});
            let percent = json!({"type": "Percent", "value": 100, "periodSeconds": 15});
            object.set_default(&["spec", "behavior", "scaleUp", "stabilizationWindowSeconds"], 0);
            for (direction, policies) in [("scaleUp", json!([pods, percent])), ("scaleDown", json!([percent]))] {
                object.set_default(&["spec", "behavior", direction, "selectPolicy"], "Max");
                object.set_default(&["spec", "behavior", direction, "policies"], policies);
            }
        }
    }

    fn prepare_create(&self, object: &mut Value, context: &Context<'_>) {
        let status = if context.version == "v1" {
            json!({"currentReplicas": 0, "desiredReplicas": 0})
        } else {
            self.empty_status()
        };
        object.set(&["status"], status);
    }

    fn validate(&self, object: &Value, old: Option<&Value>, context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        if context.subresource == "status" {
            for counter in ["currentReplicas", "desiredReplicas"] {
                let path = Path::root("status");
                checks::non_negative(&mut errors, &path.child(counter), object.integer(&["status", counter]));
            }
            return errors;
        }
        let (object, old) = (as_v2(object), old.map(as_v2));
        validate_spec(&mut errors, &object["spec"], old.as_ref().map(|old| &old["spec"]));
        errors
    }

    fn has_status(&self) -> bool {
        true
    }

    fn empty_status(&self) -> Value {
        json!({"desiredReplicas": 0, "currentMetrics": null})
    }

    fn columns(&self) -> &'static [Column] {
        const {
            &[
                NAME,
                field("Reference", "string", SPEC, "scaleTargetRef"),
                field("Targets", "string", SPEC, "metrics"),
                field("MinPods", "string", SPEC, "minReplicas"),
                field("MaxPods", "string", SPEC, "maxReplicas"),
                field("Replicas", "string", STATUS, "currentReplicas"),
                AGE,
            ]
        }
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let object = &as_v2(object);
        let target = object.at(&["spec", "scaleTargetRef"]);
        let min = object.integer(&["spec", "minReplicas"]).map_or("<unset>".to_owned(), |min| min.to_string());
        let metrics = metrics::display(object.items(&["spec", "metrics"]), object.items(&["status", "currentMetrics"]));
        vec![
            columns::name(object),
            format!("{}/{}", target.text(&["kind"]), target.text(&["name"])).into(),
            metrics.into(),
            min.into(),
            columns::count(object, &["spec", "maxReplicas"]),
            columns::count(object, &["status", "currentReplicas"]),
            columns::age(object, now),
        ]
    }

    fn convert(&self, object: &mut Value, from: &str, to: &str) {
        match (from, to) {
            ("v1", "v2") => conversion::v1_to_v2(object),
            ("v2", "v1") => conversion::v2_to_v1(object),
            _ => {}
        }
    }
}

/// Returns the object in v2, where metrics are always present.
fn as_v2(object: &Value) -> Value {
    let mut object = object.clone();
    if !object.has(&["spec", "metrics"]) {
        conversion::v1_to_v2(&mut object);
    }
    object
}

fn validate_spec(errors: &mut Errors, spec: &Value, old: Option<&Value>) {
    let path = Path::root("spec");
    let min = spec.integer(&["minReplicas"]);
    let max = spec.integer(&["maxReplicas"]).unwrap_or(0);
    let bound = if old.is_some_and(|old| old.integer(&["minReplicas"]) == Some(0)) { 0 } else { 1 };
    if let Some(min) = min.filter(|min| *min < bound) {
        errors.invalid(&path.child("minReplicas"), min, format!("must be greater than or equal to {bound}"));
    }
    let at = path.child("maxReplicas");
    if max == 0 {
        errors.required(&at, "must be set and greater than 0");
    } else if max < 0 {
        errors.invalid(&at, max, "must be greater than or equal to 1");
    }
    if min.is_some_and(|min| max < min) {
        errors.invalid(&at, max, "must be greater than or equal to `minReplicas`");
    }
    let target = &spec["scaleTargetRef"];
    let same = |field: &str| old.is_some_and(|old| old.text(&["scaleTargetRef", field]) == target.text(&[field]));
    let unchanged = same("apiVersion") && same("kind");
    let rules = VersionRules {
        may_be_invalid: unchanged,
        may_lack_group: !unchanged && target.text(&["kind"]) == "ReplicationController",
    };
    metrics::validate_reference(errors, &path.child("scaleTargetRef"), target, rules);
    let mut rules = VersionRules { may_lack_group: true, may_be_invalid: false };
    rules.may_be_invalid = old.is_some_and(|old| {
        let mut metrics = old.items(&["metrics"]).iter();
        metrics.any(|metric| {
            metric.text(&["type"]) == "Object"
                && metric.has(&["object"])
                && metrics::version_error(metric.at(&["object", "describedObject"]), rules).is_some()
        })
    });
    metrics::validate(errors, &path.child("metrics"), spec, rules);
    for direction in ["scaleUp", "scaleDown"] {
        let behavior = path.child("behavior");
        if spec.has(&["behavior", direction]) {
            validate_rules(errors, &behavior.child(direction), &spec["behavior"][direction]);
        }
    }
}

fn validate_rules(errors: &mut Errors, path: &Path<'_>, rules: &Value) {
    if let Some(window) = rules.integer(&["stabilizationWindowSeconds"]) {
        let path = path.child("stabilizationWindowSeconds");
        if window < 0 {
            errors.invalid(&path, window, "must be greater than or equal to zero");
        }
        if window > MAX_WINDOW_SECONDS {
            errors.invalid(&path, window, format!("must be less than or equal to {MAX_WINDOW_SECONDS}"));
        }
    }
    if let Some(policy) = rules["selectPolicy"].as_str() {
        checks::one_of(errors, &path.child("selectPolicy"), policy, &["Disabled", "Max", "Min"]);
    }
    let policies = rules.items(&["policies"]);
    if policies.is_empty() {
        errors.required(&path.child("policies"), "must specify at least one Policy");
    }
    for (index, policy) in policies.iter().enumerate() {
        validate_policy(errors, &path.item("policies", index), policy);
    }
    if let Some(tolerance) = rules["tolerance"].as_str()
        && Quantity::parse(tolerance).is_ok_and(|quantity| quantity.is_negative())
    {
        errors.invalid(&path.child("tolerance"), tolerance, NEGATIVE);
    }
}

fn validate_policy(errors: &mut Errors, path: &Path<'_>, policy: &Value) {
    checks::one_of(errors, &path.child("type"), policy.text(&["type"]), &["Percent", "Pods"]);
    for field in ["value", "periodSeconds"] {
        let number = policy.integer(&[field]).unwrap_or(0);
        if number <= 0 {
            errors.invalid(&path.child(field), number, "must be greater than zero");
        }
        if field == "periodSeconds" && number > MAX_PERIOD_SECONDS {
            errors.invalid(&path.child(field), number, format!("must be less than or equal to {MAX_PERIOD_SECONDS}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::messages;

    fn autoscaler(spec: Value) -> Value {
        let mut whole =
            json!({"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}, "maxReplicas": 5});
        for (field, value) in spec.as_object().unwrap() {
            whole[field] = value.clone();
        }
        let mut object = json!({"metadata": {"name": "h"}, "spec": whole});
        HorizontalPodAutoscaler.set_defaults(&mut object, "v2");
        object
    }

    #[test]
    fn defaults_are_set() {
        let spec = &autoscaler(json!({"behavior": {"scaleDown": {"stabilizationWindowSeconds": 60}}}))["spec"];
        assert_eq!(spec["minReplicas"], 1);
        let target = json!({"type": "Utilization", "averageUtilization": 80});
        assert_eq!(spec["metrics"], json!([{"type": "Resource", "resource": {"name": "cpu", "target": target}}]));
        let percent = json!({"type": "Percent", "value": 100, "periodSeconds": 15});
        let pods = json!({"type": "Pods", "value": 4, "periodSeconds": 15});
        assert_eq!(
            spec["behavior"],
            json!({"scaleUp": {"stabilizationWindowSeconds": 0, "selectPolicy": "Max", "policies": [pods, percent]},
                "scaleDown": {"stabilizationWindowSeconds": 60, "selectPolicy": "Max", "policies": [percent]}})
        );
    }

    #[test]
    fn wrong_specs_are_reported() {
        for (spec, wrong) in [
            (json!({}), vec![]),
            (
                json!({"minReplicas": 0, "maxReplicas": 0}),
                vec![
                    "spec.minReplicas: Invalid value: 0: must be greater than or equal to 1",
                    "spec.maxReplicas: Required value: must be set and greater than 0",
                    "spec.metrics: Forbidden: must specify at least one Object or External metric to support scaling to zero \
                     replicas",
                ],
            ),
            (
                json!({"minReplicas": 9}),
                vec!["spec.maxReplicas: Invalid value: 5: must be greater than or equal to `minReplicas`"],
            ),
            (
                json!({"scaleTargetRef": {"kind": "Deployment", "name": "d"}}),
                vec!["spec.scaleTargetRef.apiVersion: Invalid value: \"\": apiVersion must specify API group"],
            ),
            (
                json!({"metrics": [{"type": "Pods", "resource": {"name": "cpu", "target": {"type": "Utilization"}}}]}),
                vec![
                    "spec.metrics[0].resource.target.averageUtilization: Required value: must set either a target raw value or \
                     a target utilization",
                    "spec.metrics[0].pods: Required value: must populate information for the given metric source",
                ],
            ),
            (
                json!({"behavior": {"scaleUp": {"policies": [{"type": "Pods", "value": 0, "periodSeconds": 1801}]}}}),
                vec![
                    "spec.behavior.scaleUp.policies[0].value: Invalid value: 0: must be greater than zero",
                    "spec.behavior.scaleUp.policies[0].periodSeconds: Invalid value: 1801: must be less than or equal to 1800",
                ],
            ),
        ] {
            assert_eq!(messages(&HorizontalPodAutoscaler, &autoscaler(spec), None), wrong);
        }
    }

    #[test]
    fn cells_show_the_metrics() {
        let cells = HorizontalPodAutoscaler.cells(&autoscaler(json!({})), Timestamp::UNIX_EPOCH);
        assert_eq!(
            cells[..6],
            [json!("h"), json!("Deployment/d"), json!("cpu: <unknown>/80%"), json!("1"), json!(5), json!(0)]
        );
    }
}
