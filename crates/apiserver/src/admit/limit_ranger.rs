//! LimitRanger: sets the namespace's default requests and limits, and refuses objects outside its limit ranges.

use async_trait::async_trait;
use knarr_api::quantity::Quantity;
use knarr_api::status::Status;
use knarr_api::value::{Read, Write as _};
use knarr_rules::common::resources::{ResourceList, Side, list as amounts, of_pod};
use serde_json::Value;

use super::{Operation, Plugin, Write};
use crate::object_reader::ObjectReader;

const ANNOTATION: &str = "kubernetes.io/limit-ranger";

pub struct LimitRanger;

#[async_trait]
impl Plugin for LimitRanger {
    fn name(&self) -> &'static str {
        "LimitRanger"
    }

    fn handles(&self, write: &Write<'_>) -> bool {
        let deleted = write.old.is_some_and(|old| old.has(&["metadata", "deletionTimestamp"]));
        let resized =
            write.operation == Operation::Update && write.is_part_of("", "pods") && write.subresource == "resize";
        let claimed =
            matches!(write.operation, Operation::Create | Operation::Update) && write.is("", "persistentvolumeclaims");
        !deleted && (write.creates("", "pods") || resized || claimed)
    }

    async fn admit(&self, write: &mut Write<'_>, objects: &dyn ObjectReader) -> Result<(), Status> {
        if write.resource == "pods" {
            for range in objects.read_all("", "limitranges", write.namespace)? {
                set_defaults(write.object, &range);
            }
        }
        Ok(())
    }

    async fn validate(&self, write: &mut Write<'_>, objects: &dyn ObjectReader) -> Result<(), Status> {
        for range in objects.read_all("", "limitranges", write.namespace)? {
            let wrong = match write.resource {
                "pods" => check_pod(write.object, &range),
                _ => check_claim(write.object, &range),
            };
            match wrong.as_slice() {
                [] => {}
                [one] => return Err(write.forbidden(one)),
                many => return Err(write.forbidden(format!("[{}]", many.join(", ")))),
            }
        }
        Ok(())
    }
}

/// Sets missing requests and limits of containers and lists them in an annotation of the pod.
fn set_defaults(pod: &mut Value, range: &Value) {
    let mut defaults = [ResourceList::new(), ResourceList::new()];
    for limit in range.items(&["spec", "limits"]).iter().filter(|limit| limit.text(&["type"]) == "Container") {
        defaults[0].extend(amounts(limit.at(&["defaultRequest"])));
        defaults[1].extend(amounts(limit.at(&["default"])));
    }
    let mut notes = Vec::new();
    for (list, title) in [("containers", "container"), ("initContainers", "init container")] {
        for container in pod.items_mut(&["spec", list]) {
            let name = container.text(&["name"]).to_owned();
            for (defaults, which, noun) in [(&defaults[0], "requests", "request"), (&defaults[1], "limits", "limit")] {
                let mut set = Vec::new();
                for (resource, amount) in defaults {
                    if container.at(&["resources", which]).get(resource).is_none() {
                        let given = container.object(&["resources", which]);
                        given.insert(resource.clone(), amount.to_string().into());
                        set.push(resource.as_str());
                    }
                }
                if !set.is_empty() {
                    notes.push(format!("{} {noun} for {title} {name}", set.join(", ")));
                }
            }
        }
    }
    if !notes.is_empty() {
        let note = format!("LimitRanger plugin set: {}", notes.join("; "));
        pod.object(&["metadata", "annotations"]).insert(ANNOTATION.to_owned(), note.into());
    }
}

fn check_pod(pod: &Value, range: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    for limit in range.items(&["spec", "limits"]) {
        match limit.text(&["type"]) {
            "Container" => {
                for list in ["containers", "initContainers"] {
                    for container in pod.items(&["spec", list]) {
                        let requests = amounts(container.at(&["resources", "requests"]));
                        let limits = amounts(container.at(&["resources", "limits"]));
                        wrong.extend(check_amounts(limit, "Container", &requests, &limits));
                    }
                }
            }
            "Pod" => {
                let (requests, limits) = (of_pod(pod, Side::Requests), of_pod(pod, Side::Limits));
                wrong.extend(check_amounts(limit, "Pod", &requests, &limits));
            }
            _ => {}
        }
    }
    wrong
}

fn check_amounts(limit: &Value, kind: &str, requests: &ResourceList, limits: &ResourceList) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, minimum) in amounts(limit.at(&["min"])) {
        wrong.extend(below_minimum(kind, &name, &minimum, requests.get(&name), limits.get(&name)));
    }
    for (name, maximum) in amounts(limit.at(&["max"])) {
        wrong.extend(above_maximum(kind, &name, &maximum, requests.get(&name), limits.get(&name)));
    }
    for (name, ratio) in amounts(limit.at(&["maxLimitRequestRatio"])) {
        wrong.extend(above_ratio(kind, &name, &ratio, requests.get(&name), limits.get(&name)));
    }
    wrong
}

fn check_claim(claim: &Value, range: &Value) -> Vec<String> {
    const KIND: &str = "PersistentVolumeClaim";
    let requests = amounts(claim.at(&["spec", "resources", "requests"]));
    let mut wrong = Vec::new();
    for limit in range.items(&["spec", "limits"]).iter().filter(|limit| limit.text(&["type"]) == KIND) {
        for (name, minimum) in amounts(limit.at(&["min"])) {
            wrong.extend(below_minimum(KIND, &name, &minimum, requests.get(&name), None));
        }
        for (name, maximum) in amounts(limit.at(&["max"])) {
            wrong.extend(match requests.get(&name) {
                None => Some(format!("maximum {name} usage per {KIND} is {maximum}.  No request is specified")),
                Some(request) if *request > maximum => {
                    Some(format!("maximum {name} usage per {KIND} is {maximum}, but request is {request}"))
                }
                Some(_) => None,
            });
        }
    }
    wrong
}

fn below_minimum(
    kind: &str,
    name: &str,
    minimum: &Quantity,
    request: Option<&Quantity>,
    limit: Option<&Quantity>,
) -> Option<String> {
    match (request, limit) {
        (None, _) => Some(format!("minimum {name} usage per {kind} is {minimum}.  No request is specified")),
        (Some(request), _) if request < minimum => {
            Some(format!("minimum {name} usage per {kind} is {minimum}, but request is {request}"))
        }
        (_, Some(limit)) if limit < minimum => {
            Some(format!("minimum {name} usage per {kind} is {minimum}, but limit is {limit}"))
        }
        _ => None,
    }
}

fn above_maximum(
    kind: &str,
    name: &str,
    maximum: &Quantity,
    request: Option<&Quantity>,
    limit: Option<&Quantity>,
) -> Option<String> {
    match (limit, request) {
        (None, _) => Some(format!("maximum {name} usage per {kind} is {maximum}.  No limit is specified")),
        (Some(limit), _) if limit > maximum => {
            Some(format!("maximum {name} usage per {kind} is {maximum}, but limit is {limit}"))
        }
        (_, Some(request)) if request > maximum => {
            Some(format!("maximum {name} usage per {kind} is {maximum}, but request is {request}"))
        }
        _ => None,
    }
}

fn above_ratio(
    kind: &str,
    name: &str,
    maximum: &Quantity,
    request: Option<&Quantity>,
    limit: Option<&Quantity>,
) -> Option<String> {
    let title = format!("{name} max limit to request ratio per {kind} is {maximum}");
    let Some(request) = request.filter(|request| !request.is_zero()) else {
        return Some(format!("{title}, but no request is specified or request is 0"));
    };
    let Some(limit) = limit.filter(|limit| !limit.is_zero()) else {
        return Some(format!("{title}, but no limit is specified or limit is 0"));
    };
    let ratio = limit.as_f64() / request.as_f64();
    (ratio > maximum.as_f64()).then(|| format!("{title}, but provided ratio is {ratio:.6}"))
}

#[cfg(test)]
mod tests {
    use super::super::tests::run;
    use super::*;
    use crate::object_reader::tests::Fixed;
    use serde_json::json;

    fn ranges(limit: Value) -> Fixed {
        let object = json!({"metadata": {"name": "r", "namespace": "n"}, "spec": {"limits": [limit]}});
        Fixed::new(vec![("", "limitranges", object)])
    }

    fn pod(resources: Value) -> Value {
        json!({"kind": "Pod", "metadata": {"name": "p", "namespace": "n"},
            "spec": {"containers": [{"name": "c", "resources": resources}]}})
    }

    #[tokio::test]
    async fn defaults_are_filled_and_noted() {
        let objects = ranges(json!({"type": "Container", "default": {"cpu": "1", "memory": "1Gi"},
            "defaultRequest": {"cpu": "100m"}}));
        let made = run(&LimitRanger, Operation::Create, ("", "pods"), pod(json!({})), None, &objects).await.unwrap();
        assert_eq!(
            made["spec"]["containers"][0]["resources"],
            json!({"requests": {"cpu": "100m"}, "limits": {"cpu": "1", "memory": "1Gi"}})
        );
        assert_eq!(
            made["metadata"]["annotations"][ANNOTATION],
            "LimitRanger plugin set: cpu request for container c; cpu, memory limit for container c"
        );
    }

    #[tokio::test]
    async fn what_is_out_of_range_is_refused() {
        for (limit, resources, message) in [
            (
                json!({"type": "Container", "max": {"cpu": "1"}}),
                json!({"limits": {"cpu": "2"}}),
                "maximum cpu usage per Container is 1, but limit is 2",
            ),
            (
                json!({"type": "Pod", "min": {"memory": "1Gi"}}),
                json!({"requests": {"memory": "1Mi"}}),
                "minimum memory usage per Pod is 1Gi, but request is 1Mi",
            ),
            (
                json!({"type": "Container", "maxLimitRequestRatio": {"cpu": "2"}}),
                json!({"requests": {"cpu": "1"}, "limits": {"cpu": "3"}}),
                "cpu max limit to request ratio per Container is 2, but provided ratio is 3.000000",
            ),
        ] {
            let refused =
                run(&LimitRanger, Operation::Create, ("", "pods"), pod(resources), None, &ranges(limit)).await;
            assert_eq!(refused.unwrap_err(), format!("pods \"p\" is forbidden: {message}"));
        }
    }
}
