//! Conversion of HorizontalPodAutoscalers between v1, which has CPU utilization only, and v2. v1 carries what it has no
//! fields for in annotations.

use knarr_api::value::{Read, Write};
use serde_json::{Map, Value, json};

use crate::common::go_json::struct_json;

/// The default CPU utilization target in percent.
pub const DEFAULT_CPU: i64 = 80;
/// The annotation in which v1 carries metrics.
pub const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const CURRENT_METRICS: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";

/// Returns the metric for a CPU utilization target.
pub fn cpu_metric(percent: i64) -> Value {
    let target = json!({"type": "Utilization", "averageUtilization": percent});
    json!({"type": "Resource", "resource": {"name": "cpu", "target": target}})
}

/// Converts an autoscaler from v1 to v2.
pub fn v1_to_v2(object: &mut Value) {
    let mut metrics: Vec<Value> = Vec::new();
    if let Some(other) = annotation(object, METRICS) {
        metrics.extend(other.iter().map(|metric| metric_to_v2(metric, "target")));
    }
    if let Some(percent) = object.remove(&["spec", "targetCPUUtilizationPercentage"]).and_then(|value| value.as_i64()) {
        metrics.push(cpu_metric(percent));
    }
    if metrics.is_empty() {
        metrics.push(cpu_metric(DEFAULT_CPU));
    }
    object.set(&["spec", "metrics"], metrics);
    if let Some(behavior) = annotation_text(object, BEHAVIOR).and_then(|text| serde_json::from_str(text).ok()) {
        let behavior = behavior_from_internal(&behavior);
        if behavior.as_object().is_some_and(|fields| !fields.is_empty()) {
            object.set(&["spec", "behavior"], behavior);
        }
    }
    let used = object.remove(&["status", "currentCPUUtilizationPercentage"]).and_then(|value| value.as_i64());
    if let Some(current) = annotation(object, CURRENT_METRICS) {
        let current: Vec<Value> = current.iter().map(|metric| metric_to_v2(metric, "current")).collect();
        object.set(&["status", "currentMetrics"], current);
    } else if let Some(percent) = used {
        let current = json!({"name": "cpu", "current": {"averageUtilization": percent}});
        object.set(&["status", "currentMetrics"], json!([{"type": "Resource", "resource": current}]));
    }
    if let Some(conditions) = annotation(object, CONDITIONS) {
        object.set(&["status", "conditions"], conditions);
    }
    if object.has(&["status"]) {
        object.object(&["status"]).entry("currentMetrics").or_insert(Value::Null);
    }
    if object.integer(&["status", "currentReplicas"]) == Some(0) {
        object.remove(&["status", "currentReplicas"]);
    }
    drop_annotations(object);
}

/// Converts an autoscaler from v2 to v1.
pub fn v2_to_v1(object: &mut Value) {
    drop_annotations(object);
    let metrics = object.remove(&["spec", "metrics"]).unwrap_or_default();
    let (cpu, other): (Vec<&Value>, Vec<&Value>) =
        metrics.items(&[]).iter().partition(|metric| cpu_percent(metric, "target").is_some());
    if let Some(percent) = cpu.first().and_then(|metric| cpu_percent(metric, "target")) {
        object.set(&["spec", "targetCPUUtilizationPercentage"], percent);
    }
    if !other.is_empty() {
        let texts: Vec<String> = other.into_iter().map(|metric| metric_to_v1(metric, "target")).collect();
        annotate(object, METRICS, format!("[{}]", texts.join(",")));
    }
    let current = object.remove(&["status", "currentMetrics"]).unwrap_or_default();
    if let Some(percent) = current.items(&[]).iter().filter_map(|metric| cpu_percent(metric, "current")).next_back() {
        object.set(&["status", "currentCPUUtilizationPercentage"], percent);
    }
    if !current.items(&[]).is_empty() {
        let texts: Vec<String> = current.items(&[]).iter().map(|metric| metric_to_v1(metric, "current")).collect();
        annotate(object, CURRENT_METRICS, format!("[{}]", texts.join(",")));
    }
    if let Some(behavior) = object.remove(&["spec", "behavior"]) {
        annotate(object, BEHAVIOR, behavior_to_internal(&behavior));
    }
    if let Some(conditions) = object.remove(&["status", "conditions"])
        && !conditions.items(&[]).is_empty()
    {
        let order = ["type", "status", "lastTransitionTime", "reason", "message"];
        let texts: Vec<String> = conditions.items(&[]).iter().map(|condition| ordered(condition, &order)).collect();
        annotate(object, CONDITIONS, format!("[{}]", texts.join(",")));
    }
    object.set_default(&["status", "currentReplicas"], 0);
    object.set_default(&["status", "desiredReplicas"], 0);
}

/// Returns the CPU utilization of a metric, if it is one that v1 has a field for.
fn cpu_percent(metric: &Value, side: &str) -> Option<i64> {
    let of_cpu = metric.text(&["type"]) == "Resource" && metric.text(&["resource", "name"]) == "cpu";
    metric.integer(&["resource", side, "averageUtilization"]).filter(|_| of_cpu)
}

fn annotation_text<'a>(object: &'a Value, name: &str) -> Option<&'a str> {
    object.at(&["metadata", "annotations", name]).as_str()
}

fn annotation(object: &Value, name: &str) -> Option<Vec<Value>> {
    annotation_text(object, name).and_then(|text| serde_json::from_str(text).ok())
}

fn annotate(object: &mut Value, name: &str, text: String) {
    object.set(&["metadata", "annotations", name], text);
}

fn drop_annotations(object: &mut Value) {
    for name in [METRICS, CURRENT_METRICS, BEHAVIOR, CONDITIONS] {
        object.remove(&["metadata", "annotations", name]);
    }
    if object.fields(&["metadata", "annotations"]).is_some_and(Map::is_empty) {
        object.remove(&["metadata", "annotations"]);
    }
}

/// Renders the given fields of an object, in this order, without any others.
fn ordered(object: &Value, order: &[&str]) -> String {
    let parts: Vec<String> =
        order.iter().filter_map(|field| object.get(field).map(|value| format!("\"{field}\":{value}"))).collect();
    format!("{{{}}}", parts.join(","))
}

/// Converts a metric to v1; `side` is `target` for specs and `current` for statuses.
fn metric_to_v1(metric: &Value, side: &str) -> String {
    let mut parts = vec![format!("\"type\":{}", Value::from(metric.text(&["type"])))];
    for kind in ["object", "pods", "resource", "containerResource", "external"] {
        if metric.has(&[kind]) {
            parts.push(format!("\"{kind}\":{}", source_to_v1(&metric[kind], kind, side)));
        }
    }
    format!("{{{}}}", parts.join(","))
}

fn source_to_v1(source: &Value, kind: &str, side: &str) -> String {
    let amounts = &source[side];
    let named = |amount: &str| format!("{side}{}{}", amount[..1].to_uppercase(), &amount[1..]);
    let mut fields = Map::new();
    let mut set = |name: &str, value: &Value| {
        if !value.is_null() {
            fields.insert(name.to_owned(), value.clone());
        }
    };
    let always = |value: &Value| if value.is_null() { json!("0") } else { value.clone() };
    let (plain, average, percent) = (named("value"), named("averageValue"), named("averageUtilization"));
    set("metricName", source.at(&["metric", "name"]));
    let selector = source.at(&["metric", "selector"]);
    let order: Vec<&str> = match kind {
        "object" => {
            set("target", &source["describedObject"]);
            set(&plain, &always(&amounts["value"]));
            set("selector", selector);
            set("averageValue", &amounts["averageValue"]);
            vec!["target", "metricName", &plain, "selector", "averageValue"]
        }
        "pods" => {
            set(&average, &always(&amounts["averageValue"]));
            set("selector", selector);
            vec!["metricName", &average, "selector"]
        }
        "external" => {
            set("metricSelector", selector);
            let value = &amounts["value"];
            set(&plain, &if side == "current" { always(value) } else { value.clone() });
            set(&average, &amounts["averageValue"]);
            vec!["metricName", "metricSelector", &plain, &average]
        }
        _ => {
            set("name", &source["name"]);
            set(&percent, &amounts["averageUtilization"]);
            let value = &amounts["averageValue"];
            set(&average, &if side == "current" { always(value) } else { value.clone() });
            set("container", &source["container"]);
            vec!["name", &percent, &average, "container"]
        }
    };
    if let Some(target) = fields.get_mut("target") {
        let rendered = ordered(target, &["kind", "name", "apiVersion"]);
        let rest = ordered(&Value::Object(fields.clone()), &order[1..]);
        return format!("{{\"target\":{rendered},{}", &rest[1..]);
    }
    ordered(&Value::Object(fields), &order)
}

/// Converts a metric in an annotation of v1 to v2.
fn metric_to_v2(metric: &Value, side: &str) -> Value {
    let mut out = json!({"type": metric.text(&["type"])});
    for kind in ["object", "pods", "resource", "containerResource", "external"] {
        if metric.has(&[kind]) {
            out.set(&[kind], source_to_v2(&metric[kind], kind, side));
        }
    }
    out
}

fn source_to_v2(source: &Value, kind: &str, side: &str) -> Value {
    let named = |amount: &str| source[format!("{side}{}{}", amount[..1].to_uppercase(), &amount[1..])].clone();
    let (mut value, mut average, percent) = (named("value"), named("averageValue"), named("averageUtilization"));
    let mut out = json!({});
    if kind == "object" {
        out.set(&["describedObject"], source["target"].clone());
        average = source["averageValue"].clone();
        if side == "target" && !average.is_null() && value.as_str() == Some("0") {
            value = Value::Null;
        }
    }
    if matches!(kind, "resource" | "containerResource") {
        out.set(&["name"], source["name"].clone());
        if source.has(&["container"]) {
            out.set(&["container"], source["container"].clone());
        }
    } else {
        out.set(&["metric", "name"], source["metricName"].clone());
        let selector = if kind == "external" { &source["metricSelector"] } else { &source["selector"] };
        if !selector.is_null() {
            out.set(&["metric", "selector"], selector.clone());
        }
    }
    if side == "target" {
        let type_of = match kind {
            "pods" => "AverageValue",
            "resource" | "containerResource" if percent.is_null() => "AverageValue",
            "resource" | "containerResource" => "Utilization",
            "object" if !average.is_null() => "AverageValue",
            "external" if value.is_null() => "AverageValue",
            _ => "Value",
        };
        out.set(&[side, "type"], type_of);
    }
    for (field, amount) in [("value", value), ("averageValue", average), ("averageUtilization", percent)] {
        if !amount.is_null() {
            out.set(&[side, field], amount);
        }
    }
    out
}

/// Renders the behavior for the annotation, with the field names of the internal type.
fn behavior_to_internal(behavior: &Value) -> String {
    let rules = |rules: &Value| {
        if rules.is_null() {
            return "null".to_owned();
        }
        let policies: Vec<String> = rules
            .items(&["policies"])
            .iter()
            .map(|policy| {
                struct_json(&[
                    ("Type", policy["type"].clone()),
                    ("Value", policy["value"].clone()),
                    ("PeriodSeconds", policy["periodSeconds"].clone()),
                ])
            })
            .collect();
        format!(
            "{{\"StabilizationWindowSeconds\":{},\"SelectPolicy\":{},\"Policies\":[{}],\"Tolerance\":{}}}",
            rules["stabilizationWindowSeconds"],
            rules["selectPolicy"],
            policies.join(","),
            rules["tolerance"]
        )
    };
    format!("{{\"ScaleUp\":{},\"ScaleDown\":{}}}", rules(&behavior["scaleUp"]), rules(&behavior["scaleDown"]))
}

/// Converts Go names to field names, which start with a lower-case letter.
fn behavior_from_internal(value: &Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, value)| {
                let first = name.chars().next().map(|c| c.to_lowercase().to_string()).unwrap_or_default();
                let rest: String = name.chars().skip(1).collect();
                (format!("{first}{rest}"), behavior_from_internal(value))
            })
            .collect(),
        Value::Array(items) => items.iter().map(behavior_from_internal).collect(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_convert_there_and_back() {
        let pods = json!({"type": "Pods", "pods": {"metric": {"name": "rps"}, "target": {"type": "AverageValue", "averageValue": "10"}}});
        let v2 = json!({"metadata": {"name": "h"}, "spec": {"maxReplicas": 5, "metrics": [pods, cpu_metric(70)],
            "behavior": {"scaleUp": {"selectPolicy": "Max", "policies": [{"type": "Pods", "value": 4, "periodSeconds": 15}]}}},
            "status": {"desiredReplicas": 0, "currentMetrics": null}});
        let mut object = v2.clone();
        v2_to_v1(&mut object);
        assert_eq!(object["spec"], json!({"maxReplicas": 5, "targetCPUUtilizationPercentage": 70}));
        assert_eq!(object["status"], json!({"currentReplicas": 0, "desiredReplicas": 0}));
        let annotations = &object["metadata"]["annotations"];
        assert_eq!(annotations[METRICS], r#"[{"type":"Pods","pods":{"metricName":"rps","targetAverageValue":"10"}}]"#);
        assert_eq!(
            annotations[BEHAVIOR],
            r#"{"ScaleUp":{"StabilizationWindowSeconds":null,"SelectPolicy":"Max","Policies":[{"Type":"Pods","Value":4,"PeriodSeconds":15}],"Tolerance":null},"ScaleDown":null}"#
        );
        v1_to_v2(&mut object);
        assert_eq!(object, v2);
    }

    #[test]
    fn version_1_without_metrics_is_about_processors() {
        let mut object = json!({"spec": {"maxReplicas": 3}});
        v1_to_v2(&mut object);
        assert_eq!(object, json!({"spec": {"maxReplicas": 3, "metrics": [cpu_metric(80)]}}));
    }
}
