//! Cluster roles that are made of others.

use serde_json::{Value, json};

use super::support::{Cluster, text};

const CONTROLLERS: &[&str] = &["clusterrole-aggregation-controller"];

fn role(name: &str, resource: &str) -> Value {
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": name, "labels": {"into": "whole"}},
        "rules": [{"apiGroups": [""], "resources": [resource], "verbs": ["get"]}]})
}

fn resources(role: &Value) -> Vec<&str> {
    let rules = role["rules"].as_array().into_iter().flatten();
    rules.flat_map(|rule| rule["resources"].as_array().into_iter().flatten()).map(text).collect()
}

#[tokio::test(start_paused = true)]
async fn an_aggregated_role_has_the_rules_of_the_roles_that_it_selects() {
    let cluster = Cluster::start(CONTROLLERS).await;
    cluster.create(role("b", "pods")).await;
    cluster
        .create(json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": "whole"},
            "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"into": "whole"}}]}}))
        .await;
    cluster.until("ClusterRole", "whole", |whole| resources(whole) == ["pods"]).await;
    cluster.create(role("a", "secrets")).await;
    cluster.until("ClusterRole", "whole", |whole| resources(whole) == ["secrets", "pods"]).await;
    // What somebody writes there is replaced.
    let other = json!([{"apiGroups": [""], "resources": ["nodes"], "verbs": ["delete"]}]);
    cluster.patch("ClusterRole", "whole", json!({"rules": other})).await;
    cluster.until("ClusterRole", "whole", |whole| resources(whole) == ["secrets", "pods"]).await;
    cluster.patch("ClusterRole", "b", json!({"metadata": {"labels": {"into": "other"}}})).await;
    cluster.until("ClusterRole", "whole", |whole| resources(whole) == ["secrets"]).await;
    cluster.delete("ClusterRole", "a", "Background").await;
    cluster.until("ClusterRole", "whole", |whole| resources(whole).is_empty()).await;
}
