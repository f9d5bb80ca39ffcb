//! Fills aggregated cluster roles with the rules of the roles their selectors match.

use std::sync::Arc;

use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use knarr_client::selector;
use knarr_client::{Informer, WorkQueue, run_workers};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::Context;
use crate::common::key::name;
use crate::error::{Result, ignore_not_found};

pub async fn run(context: Context) {
    let roles = context.informers.of::<ClusterRole>();
    let queue: Arc<WorkQueue<String>> = WorkQueue::new();
    let (on_role, all) = (queue.clone(), Arc::downgrade(&roles));
    roles.on_change(move |_| {
        let Some(all) = all.upgrade() else { return };
        all.for_each(|role| {
            if role.aggregation_rule.is_some() {
                on_role.add(name(&**role).to_owned());
            }
        });
    });
    roles.synced().await;
    run_workers(queue, 2, move |key: String| {
        let (context, roles) = (context.clone(), roles.clone());
        async move { aggregate(&context, &roles, &key).await }
    })
    .await;
}

async fn aggregate(context: &Context, roles: &Informer<ClusterRole>, key: &str) -> Result<()> {
    let Some(role) = roles.get("", key) else { return Ok(()) };
    let rules = aggregated_rules(&role, &roles.list());
    if role.aggregation_rule.is_none() || role.rules.clone().unwrap_or_default() == rules {
        return Ok(());
    }
    // Applied with its own field manager, so that other fields keep their owner.
    let mut patch =
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": key}});
    if !rules.is_empty() {
        patch["rules"] = json!(rules);
    }
    let api: Api<ClusterRole> = Api::all(context.client.clone());
    let params = PatchParams::apply("clusterrole-aggregation-controller").force();
    ignore_not_found(api.patch(key, &params, &Patch::Apply(patch)).await)?;
    Ok(())
}

/// Rules of all matching roles without duplicates, in the order of the selectors and then of names.
fn aggregated_rules(role: &ClusterRole, all: &[Arc<ClusterRole>]) -> Vec<PolicyRule> {
    let mut rules: Vec<PolicyRule> = Vec::new();
    let selectors = role.aggregation_rule.iter().flat_map(|rule| rule.cluster_role_selectors.iter().flatten());
    for selector in selectors.filter_map(|selector| selector::of(selector).ok()) {
        let mut matching: Vec<_> = all
            .iter()
            .filter(|other| name(&***other) != name(role) && selector.matches(other.metadata.labels.as_ref()))
            .collect();
        matching.sort_by(|a, b| name(&***a).cmp(name(&***b)));
        for rule in matching.into_iter().flat_map(|other| other.rules.iter().flatten()) {
            if !rules.contains(rule) {
                rules.push(rule.clone());
            }
        }
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn rules_are_gathered_once() {
        let role = |value: Value| -> ClusterRole { serde_json::from_value(value).unwrap() };
        let rule = |resource: &str| json!({"apiGroups": [""], "resources": [resource], "verbs": ["get"]});
        let part = |name: &str, rules: Value| {
            Arc::new(role(json!({"metadata": {"name": name, "labels": {"to": "admin"}}, "rules": rules})))
        };
        let all = [part("b", json!([rule("pods"), rule("secrets")])), part("a", json!([rule("pods")]))];
        let admin = role(json!({"metadata": {"name": "admin", "labels": {"to": "admin"}},
            "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"to": "admin"}}]}}));
        let resources: Vec<String> =
            aggregated_rules(&admin, &all).into_iter().flat_map(|rule| rule.resources.unwrap()).collect();
        assert_eq!(resources, ["pods", "secrets"]);
    }
}
