//! ResourceQuotaConfiguration: resources that may be used only where a quota covers them.

use std::collections::BTreeSet;
use std::sync::Arc;

use knarr_api::status::Status;
use knarr_api::value::Read;
use knarr_rules::common::resources::list as amounts;
use serde_json::Value;

use super::super::Write;
use super::scope::{matches_scope, selects};
use super::usage::{concerns, usage};
use crate::configuration_file::{Kind, Shape};

const FIELDS: &[(&str, Shape)] = &[(
    "limitedResources",
    Shape::List(&Shape::Object(&[
        ("apiGroup", Shape::Text),
        ("resource", Shape::Text),
        ("matchContains", Shape::List(&Shape::Text)),
        (
            "matchScopes",
            Shape::List(&Shape::Object(&[
                ("scopeName", Shape::Text),
                ("operator", Shape::Text),
                ("values", Shape::List(&Shape::Text)),
            ])),
        ),
    ])),
)];

const FILE: Kind =
    Kind { group: "apiserver.config.k8s.io", versions: &["v1"], kind: "ResourceQuotaConfiguration", fields: FIELDS };

/// The older versions of the same file.
const OLD_FILE: Kind = Kind {
    group: "resourcequota.admission.k8s.io",
    versions: &["v1", "v1beta1", "v1alpha1"],
    kind: "Configuration",
    fields: FIELDS,
};

#[derive(Clone, Debug, Default)]
pub struct LimitedResources(Vec<Limited>);

#[derive(Clone, Debug)]
struct Limited {
    group: String,
    resource: String,
    /// Parts of the names of resources that need a quota.
    contains: Vec<String>,
    scopes: Vec<Value>,
}

impl LimitedResources {
    pub fn parse(text: &str) -> Result<Self, String> {
        let document = OLD_FILE.decode(text).or_else(|_| FILE.decode(text)).map_err(|error| error.to_string())?;
        let read = |index: usize, limited: &Value| {
            let resource = limited.text(&["resource"]).to_owned();
            if resource.is_empty() {
                return Err(format!("limitedResources[{index}].resource: Required value"));
            }
            let contains = limited.items(&["matchContains"]).iter().filter_map(Value::as_str).map(str::to_owned);
            Ok(Limited {
                group: limited.text(&["apiGroup"]).to_owned(),
                resource,
                contains: contains.collect(),
                scopes: limited.items(&["matchScopes"]).to_vec(),
            })
        };
        let all = document.items(&["limitedResources"]).iter().enumerate();
        Ok(LimitedResources(all.map(|(index, limited)| read(index, limited)).collect::<Result<_, _>>()?))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Refuses a write that uses a limited resource which no quota of the namespace covers.
    pub fn check(&self, write: &Write<'_>, quotas: &[Arc<Value>]) -> Result<(), Status> {
        let own: Vec<&Limited> =
            self.0.iter().filter(|own| own.group == write.group && own.resource == write.resource).collect();
        if own.is_empty() {
            return Ok(());
        }
        let uncovered = uncovered_names(&own, write, quotas);
        if !uncovered.is_empty() {
            let names: Vec<String> = uncovered.into_iter().collect();
            return Err(write.forbidden(format!("insufficient quota to consume: {}", names.join(","))));
        }
        let uncovered = uncovered_scopes(&own, write, quotas);
        if uncovered.is_empty() {
            return Ok(());
        }
        let text = uncovered.join(" ");
        Err(Status::new(500, "", format!("insufficient quota to match these scopes: [{text}]")))
    }
}

fn uncovered_names(own: &[&Limited], write: &Write<'_>, quotas: &[Arc<Value>]) -> BTreeSet<String> {
    let used = usage(write.group, write.resource, write.object);
    let is_limited = |name: &str| own.iter().any(|limited| limited.contains.iter().any(|part| name.contains(part)));
    let mut names: BTreeSet<String> = used
        .iter()
        .filter(|(name, amount)| !amount.is_zero() && is_limited(name))
        .map(|(name, _)| name.clone())
        .collect();
    for quota in quotas.iter().filter(|quota| selects(quota, write.group, write.resource, write.object)) {
        for name in amounts(quota.at(&["status", "hard"])).keys() {
            if concerns(write.group, write.resource, name) {
                names.remove(name);
            }
        }
    }
    names
}

/// Scopes that the object is in and that no quota names.
fn uncovered_scopes(own: &[&Limited], write: &Write<'_>, quotas: &[Arc<Value>]) -> Vec<String> {
    let place = (write.group, write.resource);
    let is_in =
        |scope: &str, operator: &str, values: &[Value]| matches_scope(place, write.object, scope, operator, values);
    let is_covered = |scope: &str| {
        quotas.iter().any(|quota| {
            let plain = quota.items(&["spec", "scopes"]).iter().filter_map(Value::as_str);
            let chosen = quota.items(&["spec", "scopeSelector", "matchExpressions"]);
            plain.into_iter().any(|own| own == scope && is_in(own, "Exists", &[]))
                || chosen.iter().any(|expression| {
                    expression.text(&["scopeName"]) == scope
                        && is_in(scope, expression.text(&["operator"]), expression.items(&["values"]))
                })
        })
    };
    let mut uncovered = Vec::new();
    for selector in own.iter().flat_map(|limited| &limited.scopes) {
        let (scope, operator) = (selector.text(&["scopeName"]), selector.text(&["operator"]));
        let values = selector.items(&["values"]);
        if is_in(scope, operator, values) && !is_covered(scope) {
            let names: Vec<&str> = values.iter().filter_map(Value::as_str).collect();
            uncovered.push(format!("{{{scope} {operator} [{}]}}", names.join(" ")));
        }
    }
    uncovered
}

#[cfg(test)]
mod tests {
    use super::super::{QuotaWriter, ResourceQuota};
    use super::*;
    use crate::admit::Operation;
    use crate::admit::tests::run;
    use crate::object_reader::tests::Fixed;
    use async_trait::async_trait;
    use serde_json::json;

    struct Unwritten;

    #[async_trait]
    impl QuotaWriter for Unwritten {
        async fn write_used(&self, _quota: &Value, _used: Value) -> Result<bool, Status> {
            Ok(true)
        }
    }

    #[tokio::test]
    async fn limited_resources_need_a_quota() {
        let limited = LimitedResources::parse(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: ResourceQuotaConfiguration\nlimitedResources:\n\
             - {resource: pods, matchContains: [cpu], matchScopes: [{scopeName: PriorityClass, operator: In, \
             values: [high]}]}\n",
        )
        .unwrap();
        let plugin = ResourceQuota::new(Arc::new(Unwritten), limited);
        let quota = |spec: Value, hard: Value, used: Value| {
            let object = json!({"metadata": {"name": "q", "namespace": "n"}, "spec": spec,
                                "status": {"hard": hard, "used": used}});
            Fixed::new(vec![("", "resourcequotas", object)])
        };
        let pod = |requests: Value, class: &str| {
            json!({"kind": "Pod", "metadata": {"name": "p", "namespace": "n"}, "spec": {"priorityClassName": class,
                   "containers": [{"name": "c", "resources": {"requests": requests}}]}})
        };
        let cpu = quota(json!({}), json!({"requests.cpu": "2", "cpu": "2"}), json!({"requests.cpu": "0", "cpu": "0"}));
        let none = Fixed::new(vec![]);
        let selector = json!({"scopeSelector": {"matchExpressions": [
            {"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]}});
        let scoped = quota(selector, json!({"pods": "2"}), json!({"pods": "0"}));
        const SCOPES: &str = "insufficient quota to match these scopes: [{PriorityClass In [high]}]";
        const CPU: &str = "pods \"p\" is forbidden: insufficient quota to consume: cpu,requests.cpu";
        for (objects, pod, refused) in [
            (&none, pod(json!({}), ""), None),
            (&none, pod(json!({"cpu": "1"}), ""), Some(CPU)),
            (&cpu, pod(json!({"cpu": "1"}), ""), None),
            (&none, pod(json!({}), "high"), Some(SCOPES)),
            (&none, pod(json!({}), "low"), None),
            (&scoped, pod(json!({}), "high"), None),
        ] {
            let outcome = run(&plugin, Operation::Create, ("", "pods"), pod.clone(), None, objects).await;
            assert_eq!(outcome.err().as_deref(), refused, "{pod}");
        }
        assert!(LimitedResources::parse("apiVersion: a/v1\nkind: b\n").is_err());
    }
}
