//! PodTolerationRestriction: pods get the tolerations of their namespace, and may have none outside its list.
//! ExtendedResourceToleration: pods tolerate the taints of nodes with the devices they request.

use std::collections::BTreeSet;

use async_trait::async_trait;
use knarr_api::status::{GroupResource, Status};
use knarr_api::value::{Read, Write as _};
use knarr_rules::common::resources::is_extended;
use knarr_rules::core::pod::qos;
use serde_json::{Value, json};

use super::{Operation, Plugin, Write};
use crate::configuration_file::{Kind, Shape};
use crate::object_reader::ObjectReader;

const DEFAULTS: &str = "scheduler.alpha.kubernetes.io/defaultTolerations";
const ALLOWED: &str = "scheduler.alpha.kubernetes.io/tolerationsWhitelist";
const MEMORY_PRESSURE: &str = "node.kubernetes.io/memory-pressure";

const TOLERATIONS: Shape = Shape::List(&Shape::Object(&[
    ("key", Shape::Text),
    ("operator", Shape::Text),
    ("value", Shape::Text),
    ("effect", Shape::Text),
    ("tolerationSeconds", Shape::Integer),
]));

const FILE: Kind = Kind {
    group: "podtolerationrestriction.admission.k8s.io",
    versions: &["v1alpha1"],
    kind: "Configuration",
    fields: &[("default", TOLERATIONS), ("whitelist", TOLERATIONS)],
};

/// The tolerations of namespaces that have none of their own.
#[derive(Clone, Debug, Default)]
pub struct PodTolerationRestriction {
    defaults: Vec<Value>,
    allowed: Vec<Value>,
}

impl PodTolerationRestriction {
    pub fn parse(text: &str) -> Result<Self, String> {
        let document = FILE.decode(text).map_err(|error| error.to_string())?;
        Ok(PodTolerationRestriction {
            defaults: document.items(&["default"]).to_vec(),
            allowed: document.items(&["whitelist"]).to_vec(),
        })
    }

    fn check(&self, write: &Write<'_>, objects: &dyn ObjectReader) -> Result<(), Status> {
        let own = write.object.items(&["spec", "tolerations"]);
        if own.is_empty() {
            return Ok(());
        }
        let of_namespace = of_namespace(write, objects, ALLOWED)?;
        let (allowed, scope) = match &of_namespace {
            Some(allowed) => (allowed, "namespace"),
            None => (&self.allowed, "cluster"),
        };
        let is_allowed = |toleration: &Value| allowed.iter().any(|allowed| covers(allowed, toleration));
        if allowed.is_empty() || own.iter().all(is_allowed) {
            return Ok(());
        }
        let why = "pod tolerations (possibly merged with namespace default tolerations) conflict with its";
        Err(Status::new(500, "", format!("{why} {scope} whitelist")))
    }
}

/// The tolerations in an annotation of the namespace; `None` if it has no such annotation.
fn of_namespace(write: &Write<'_>, objects: &dyn ObjectReader, key: &str) -> Result<Option<Vec<Value>>, Status> {
    let Some(namespace) = objects.read("", "namespaces", "", write.namespace)? else {
        return Err(Status::not_found(GroupResource { group: "", name: "namespaces" }, write.namespace));
    };
    match namespace.at(&["metadata", "annotations", key]).as_str() {
        None => Ok(None),
        Some("") => Ok(Some(Vec::new())),
        Some(text) => match serde_json::from_str::<Vec<Value>>(text) {
            Ok(tolerations) => Ok(Some(tolerations)),
            Err(error) => Err(Status::new(500, "", error.to_string())),
        },
    }
}

/// Whether the first toleration tolerates everything that the second does.
fn covers(wide: &Value, narrow: &Value) -> bool {
    if wide == narrow {
        return true;
    }
    let text = |toleration: &Value, field: &str| toleration.text(&[field]).to_owned();
    let operator = text(wide, "operator");
    let is_for_all_keys = text(wide, "key").is_empty() && operator == "Exists";
    if text(narrow, "key") != text(wide, "key") && !is_for_all_keys {
        return false;
    }
    let effect = text(wide, "effect");
    if !effect.is_empty() && text(narrow, "effect") != effect {
        return false;
    }
    if effect == "NoExecute"
        && let Some(limit) = wide.integer(&["tolerationSeconds"])
        && narrow.integer(&["tolerationSeconds"]).is_none_or(|seconds| seconds > limit)
    {
        return false;
    }
    match operator.as_str() {
        "Exists" => true,
        "Equal" | "" => text(narrow, "operator") == "Equal" && text(narrow, "value") == text(wide, "value"),
        _ => false,
    }
}

/// Both lists without tolerations that others cover.
fn merged(first: &[Value], second: &[Value]) -> Vec<Value> {
    let all: Vec<&Value> = first.iter().chain(second).collect();
    let mut merged: Vec<Value> = Vec::new();
    for (index, toleration) in all.iter().enumerate() {
        let is_covered = merged.iter().any(|other| covers(other, toleration))
            || all[index + 1..].iter().any(|other| *other != *toleration && covers(other, toleration));
        if !is_covered {
            merged.push((*toleration).clone());
        }
    }
    merged
}

#[async_trait]
impl Plugin for PodTolerationRestriction {
    fn name(&self) -> &'static str {
        "PodTolerationRestriction"
    }

    fn handles(&self, write: &Write<'_>) -> bool {
        matches!(write.operation, Operation::Create | Operation::Update) && write.is("", "pods")
    }

    async fn admit(&self, write: &mut Write<'_>, objects: &dyn ObjectReader) -> Result<(), Status> {
        let mut more = Vec::new();
        if write.operation == Operation::Create {
            more = of_namespace(write, objects, DEFAULTS)?.unwrap_or_else(|| self.defaults.clone());
        }
        if qos::class(write.object.at(&["spec"])) != "BestEffort" {
            more.push(json!({"key": MEMORY_PRESSURE, "operator": "Exists", "effect": "NoSchedule"}));
        }
        if !more.is_empty() {
            let merged = merged(write.object.items(&["spec", "tolerations"]), &more);
            write.object.set(&["spec", "tolerations"], merged);
        }
        self.check(write, objects)
    }

    async fn validate(&self, write: &mut Write<'_>, objects: &dyn ObjectReader) -> Result<(), Status> {
        self.check(write, objects)
    }
}

pub struct ExtendedResourceToleration;

#[async_trait]
impl Plugin for ExtendedResourceToleration {
    fn name(&self) -> &'static str {
        "ExtendedResourceToleration"
    }

    fn handles(&self, write: &Write<'_>) -> bool {
        matches!(write.operation, Operation::Create | Operation::Update) && write.is("", "pods")
    }

    async fn admit(&self, write: &mut Write<'_>, _objects: &dyn ObjectReader) -> Result<(), Status> {
        let lists = ["containers", "initContainers"].into_iter().flat_map(|list| write.object.items(&["spec", list]));
        let requested = lists.flat_map(|container| container.fields(&["resources", "requests"]).into_iter().flatten());
        let names: BTreeSet<String> =
            requested.map(|(name, _)| name.clone()).filter(|name| is_extended(name)).collect();
        if names.is_empty() {
            return Ok(());
        }
        let mut tolerations = write.object.items(&["spec", "tolerations"]).to_vec();
        for name in names {
            let toleration = json!({"key": name, "operator": "Exists", "effect": "NoSchedule"});
            let is_same = |other: &Value| {
                ["key", "operator", "effect", "value"]
                    .iter()
                    .all(|field| other.text(&[field]) == toleration.text(&[field]))
            };
            match tolerations.iter_mut().find(|other| is_same(other)) {
                Some(known) => *known = toleration,
                None => tolerations.push(toleration),
            }
        }
        write.object.set(&["spec", "tolerations"], tolerations);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::run;
    use super::*;
    use crate::object_reader::tests::Fixed;

    fn pod(namespace: &str, tolerations: Value, requests: Value) -> Value {
        json!({"kind": "Pod", "metadata": {"name": "p", "namespace": namespace}, "spec": {
            "tolerations": tolerations, "containers": [{"name": "c", "resources": {"requests": requests}}]}})
    }

    #[tokio::test]
    async fn pods_get_the_tolerations_of_their_namespace() {
        let plugin = PodTolerationRestriction::parse(
            "apiVersion: podtolerationrestriction.admission.k8s.io/v1alpha1\nkind: Configuration\n\
             default: [{key: d, operator: Exists}]\nwhitelist: [{key: d, operator: Exists}, {key: e, operator: Exists}]\n",
        )
        .unwrap();
        let objects = Fixed::new(vec![
            ("", "namespaces", json!({"metadata": {"name": "plain"}})),
            (
                "",
                "namespaces",
                json!({"metadata": {"name": "own", "annotations": {
                    DEFAULTS: "[{\"key\":\"o\",\"operator\":\"Exists\"}]", ALLOWED: ""}}}),
            ),
        ]);
        let exists = |key: &str| json!({"key": key, "operator": "Exists"});
        for (namespace, own, expected) in [
            ("plain", json!([]), Ok(json!([exists("d")]))),
            ("plain", json!([exists("e")]), Ok(json!([exists("e"), exists("d")]))),
            (
                "plain",
                json!([exists("x")]),
                Err("pod tolerations (possibly merged with namespace default tolerations) conflict with its cluster \
                     whitelist"),
            ),
            ("own", json!([exists("x")]), Ok(json!([exists("x"), exists("o")]))),
        ] {
            let object = pod(namespace, own, json!({}));
            let outcome = run(&plugin, Operation::Create, ("", "pods"), object, None, &objects).await;
            let outcome = outcome.map(|pod| pod["spec"]["tolerations"].clone());
            assert_eq!(outcome, expected.map_err(str::to_owned), "{namespace}");
        }
        let burstable = pod("own", json!([]), json!({"cpu": "1"}));
        let created = run(&plugin, Operation::Create, ("", "pods"), burstable, None, &objects).await.unwrap();
        assert_eq!(created["spec"]["tolerations"][1]["key"], MEMORY_PRESSURE);
    }

    #[tokio::test]
    async fn pods_tolerate_nodes_with_their_devices() {
        let none = Fixed::new(vec![]);
        let object = pod("n", json!([]), json!({"example.com/gpu": "1", "cpu": "1"}));
        let plugin = ExtendedResourceToleration;
        let created = run(&plugin, Operation::Create, ("", "pods"), object, None, &none).await.unwrap();
        let expected = json!([{"key": "example.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]);
        assert_eq!(created["spec"]["tolerations"], expected);
        let again = run(&plugin, Operation::Update, ("", "pods"), created, None, &none).await.unwrap();
        assert_eq!(again["spec"]["tolerations"], expected, "not twice");
    }
}
