//! The built-in RBAC roles and bindings.

use anyhow::bail;
use serde_json::Value;

use super::Facts;
use super::facts::{items, text, texts};

const AGGREGATE_TO: &str = "rbac.authorization.k8s.io/aggregate-to-";

pub fn generate(facts: &Facts) -> anyhow::Result<String> {
    let mut lines = Vec::new();
    for role in items(&facts.json("bootstrap-clusterroles.json")?)? {
        lines.push(cluster_role(role)?);
        rules(role, &mut lines)?;
    }
    for role in items(&facts.json("bootstrap-roles.json")?)? {
        let metadata = &role["metadata"];
        lines.push(format!("Role {} {}", text(metadata, "namespace")?, text(metadata, "name")?));
        rules(role, &mut lines)?;
    }
    for binding in items(&facts.json("bootstrap-clusterrolebindings.json")?)? {
        lines.push(format!(
            "ClusterRoleBinding {} {}",
            text(&binding["metadata"], "name")?,
            role_and_subjects(binding)?
        ));
    }
    for binding in items(&facts.json("bootstrap-rolebindings.json")?)? {
        let metadata = &binding["metadata"];
        let (namespace, name) = (text(metadata, "namespace")?, text(metadata, "name")?);
        lines.push(format!("RoleBinding {namespace} {name} {}", role_and_subjects(binding)?));
    }
    Ok(lines.join("\n") + "\n")
}

fn cluster_role(role: &Value) -> anyhow::Result<String> {
    let mut line = format!("ClusterRole {}", text(&role["metadata"], "name")?);
    for label in role["metadata"]["labels"].as_object().into_iter().flat_map(|labels| labels.keys()) {
        if let Some(into) = label.strip_prefix(AGGREGATE_TO) {
            line += &format!(" into={into}");
        }
    }
    for selector in role["aggregationRule"]["clusterRoleSelectors"].as_array().into_iter().flatten() {
        for label in selector["matchLabels"].as_object().into_iter().flat_map(|labels| labels.keys()) {
            if let Some(from) = label.strip_prefix(AGGREGATE_TO) {
                line += &format!(" from={from}");
            }
        }
    }
    Ok(line)
}

fn rules(role: &Value, lines: &mut Vec<String>) -> anyhow::Result<()> {
    for rule in role["rules"].as_array().into_iter().flatten() {
        let verbs = texts(rule, "verbs").join(",");
        let (urls, names) = (texts(rule, "nonResourceURLs"), texts(rule, "resourceNames"));
        if !urls.is_empty() {
            lines.push(format!("  {verbs} url {}", urls.join(",")));
            continue;
        }
        let groups = texts(rule, "apiGroups").into_iter().map(|group| if group.is_empty() { "core" } else { group });
        let groups = groups.collect::<Vec<_>>().join(",");
        let mut line = format!("  {verbs} {groups} {}", texts(rule, "resources").join(","));
        if !names.is_empty() {
            line += &format!(" named {}", names.join(","));
        }
        lines.push(line);
    }
    Ok(())
}

fn role_and_subjects(binding: &Value) -> anyhow::Result<String> {
    let role = &binding["roleRef"];
    let mut words = vec![format!("{}/{}", text(role, "kind")?, text(role, "name")?)];
    for subject in binding["subjects"].as_array().into_iter().flatten() {
        let name = text(subject, "name")?;
        words.push(match text(subject, "kind")? {
            "ServiceAccount" => format!("ServiceAccount/{}/{name}", text(subject, "namespace")?),
            kind @ ("User" | "Group") => format!("{kind}/{name}"),
            kind => bail!("a subject of the unknown kind {kind}"),
        });
    }
    Ok(words.join(" "))
}
