//! How much a write adds to each quota, and whether that exceeds it.

use std::sync::Arc;

use knarr_api::status::{GroupResource, Status};
use knarr_api::value::Read;
use knarr_rules::common::resources::{ResourceList, list as amounts};
use serde_json::{Map, Value};

use super::super::{Operation, Write};
use super::scope::{attributes_classes, is_terminating, selects};
use super::usage::{concerns, unnamed, usage};

/// A quota and its new usage.
#[derive(Debug)]
pub struct Charge {
    pub quota: Arc<Value>,
    pub used: Value,
}

/// The data of a write that quotas need, so that it can be charged together with others.
#[derive(Debug)]
pub struct Demand {
    operation: Operation,
    group: String,
    resource: String,
    name: String,
    object: Value,
    old: Option<Value>,
}

impl Demand {
    /// `None` if the write cannot increase any usage.
    pub fn of(write: &Write<'_>) -> Option<Demand> {
        counts(write).then(|| Demand {
            operation: write.operation,
            group: write.group.to_owned(),
            resource: write.resource.to_owned(),
            name: write.name.to_owned(),
            object: write.object.clone(),
            old: write.old.cloned(),
        })
    }

    fn forbidden(&self, why: String) -> Status {
        let metadata = self.object.at(&["metadata"]);
        let names = [&*self.name, metadata.text(&["name"]), metadata.text(&["generateName"]), "Unknown"];
        let name = names.into_iter().find(|name| !name.is_empty()).unwrap_or_default();
        Status::forbidden(GroupResource { group: &self.group, name: &self.resource }, name, &why)
    }
}

/// The charges of a write, or why it is refused.
pub fn charge(write: &Demand, quotas: &[Arc<Value>]) -> Result<Vec<Charge>, Status> {
    let mut matching = Vec::new();
    for quota in quotas {
        if let Some(hard) = restricts(write, quota)? {
            matching.push((quota, hard));
        }
    }
    if matching.is_empty() {
        return Ok(Vec::new());
    }
    let whole = usage(&write.group, &write.resource, &write.object);
    let before = match &write.old {
        Some(old) if write.operation == Operation::Update => Some((old, usage(&write.group, &write.resource, old))),
        _ => None,
    };
    let mut charges = Vec::new();
    for (quota, hard) in matching {
        let mut delta = whole.clone();
        if let Some((old, before)) = &before
            && selects(quota, &write.group, &write.resource, old)
        {
            delta = grown(&whole, before);
        }
        delta.retain(|name, amount| !amount.is_zero() && hard.contains_key(name));
        if delta.is_empty() {
            continue;
        }
        charges.push(Charge { used: new_use(write, quota, &hard, &delta)?, quota: Arc::clone(quota) });
    }
    Ok(charges)
}

/// Updates count only where they can use more: resized pods, pods and claims whose scope changes, claims and services.
fn counts(write: &Write<'_>) -> bool {
    match (write.operation, write.group, write.resource) {
        (Operation::Create, _, _) => true,
        (Operation::Update, "", "pods") => {
            write.subresource == "resize"
                || write.old.is_some_and(|old| is_terminating(old) != is_terminating(write.object))
        }
        (Operation::Update, "", "persistentvolumeclaims") if write.subresource == "status" => {
            let allocated = |claim: &Value| amounts(claim.at(&["status", "allocatedResources"])).remove("storage");
            write.old.is_some_and(|old| {
                attributes_classes(old) != attributes_classes(write.object) || allocated(old) != allocated(write.object)
            })
        }
        (Operation::Update, "", "services" | "persistentvolumeclaims") => true,
        _ => false,
    }
}

/// The hard limits of a quota that restricts this write; `None` when it does not.
fn restricts(write: &Demand, quota: &Value) -> Result<Option<ResourceList>, Status> {
    if !selects(quota, &write.group, &write.resource, &write.object) {
        return Ok(None);
    }
    let mut hard = amounts(quota.at(&["status", "hard"]));
    hard.retain(|name, _| concerns(&write.group, &write.resource, name));
    if hard.is_empty() {
        return Ok(None);
    }
    let name = quota.text(&["metadata", "name"]);
    let names: Vec<&str> = hard.keys().map(String::as_str).collect();
    if (&*write.group, &*write.resource) == ("", "pods")
        && let Some(why) = unnamed(&write.object, &names)
    {
        return Err(write.forbidden(format!("failed quota: {name}: {why}")));
    }
    let used = quota.at(&["status", "used"]);
    if names.iter().any(|name| used.get(name).is_none()) {
        return Err(write.forbidden(format!("status unknown for quota: {name}, resources: {}", names.join(","))));
    }
    Ok(Some(hard))
}

/// The increase since before; never negative.
fn grown(now: &ResourceList, before: &ResourceList) -> ResourceList {
    let mut grown = now.clone();
    for (name, amount) in &mut grown {
        if let Some(before) = before.get(name) {
            amount.subtract(before);
        }
    }
    grown.retain(|_, amount| !amount.is_negative());
    grown
}

fn new_use(write: &Demand, quota: &Value, hard: &ResourceList, delta: &ResourceList) -> Result<Value, Status> {
    let used = amounts(quota.at(&["status", "used"]));
    let mut written: Map<String, Value> = quota.fields(&["status", "used"]).cloned().unwrap_or_default();
    let mut exceeded = Vec::new();
    for (name, amount) in delta {
        let mut sum = used.get(name).cloned().unwrap_or_default();
        sum.add(amount);
        if hard.get(name).is_some_and(|limit| sum > *limit) {
            exceeded.push(name);
        }
        written.insert(name.clone(), sum.to_string().into());
    }
    if exceeded.is_empty() {
        return Ok(Value::Object(written));
    }
    let list = |of: &ResourceList| {
        let parts = exceeded.iter().filter_map(|name| of.get(*name).map(|amount| format!("{name}={amount}")));
        parts.collect::<Vec<_>>().join(",")
    };
    Err(write.forbidden(format!(
        "exceeded quota: {}, requested: {}, used: {}, limited: {}",
        quota.text(&["metadata", "name"]),
        list(delta),
        list(&used),
        list(hard)
    )))
}

#[cfg(test)]
mod tests {
    use super::super::super::tests::run;
    use super::super::{QuotaWriter, ResourceQuota};
    use super::*;
    use crate::object_reader::tests::Fixed;
    use async_trait::async_trait;
    use parking_lot::Mutex;
    use serde_json::json;

    #[derive(Default)]
    struct Recorded(Mutex<Vec<Value>>);

    #[async_trait]
    impl QuotaWriter for Recorded {
        async fn write_used(&self, _quota: &Value, used: Value) -> Result<bool, Status> {
            self.0.lock().push(used);
            Ok(true)
        }
    }

    fn quota(hard: Value, used: Value) -> Fixed {
        let object = json!({"metadata": {"name": "q", "namespace": "n"}, "status": {"hard": hard, "used": used}});
        Fixed::new(vec![("", "resourcequotas", object)])
    }

    fn pod(requests: Value) -> Value {
        json!({"kind": "Pod", "metadata": {"name": "p", "namespace": "n"},
            "spec": {"containers": [{"name": "c", "resources": {"requests": requests}}]}})
    }

    #[tokio::test]
    async fn writes_are_charged_or_refused() {
        for (hard, used, requests, expected) in [
            (json!({"pods": "2"}), json!({"pods": "1"}), json!({}), Ok(json!({"pods": "2"}))),
            (
                json!({"pods": "1"}),
                json!({"pods": "1"}),
                json!({}),
                Err("exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1"),
            ),
            (
                json!({"requests.cpu": "1"}),
                json!({"requests.cpu": "500m"}),
                json!({"cpu": "600m"}),
                Err(
                    "exceeded quota: q, requested: requests.cpu=600m, used: requests.cpu=500m, limited: requests.cpu=1",
                ),
            ),
            (
                json!({"requests.cpu": "1"}),
                json!({"requests.cpu": "0"}),
                json!({}),
                Err("failed quota: q: must specify requests.cpu for: c"),
            ),
            (json!({"pods": "1"}), json!({}), json!({}), Err("status unknown for quota: q, resources: pods")),
        ] {
            let writer = Arc::new(Recorded::default());
            let plugin = ResourceQuota::new(Arc::clone(&writer) as Arc<dyn QuotaWriter>, Default::default());
            let objects = quota(hard, used);
            let result = run(&plugin, Operation::Create, ("", "pods"), pod(requests), None, &objects).await;
            match expected {
                Ok(used) => assert_eq!((result.is_ok(), writer.0.lock().clone()), (true, vec![used])),
                Err(why) => assert_eq!(result.unwrap_err(), format!("pods \"p\" is forbidden: {why}")),
            }
        }
    }
}
