//! Aggregated discovery: all groups and resources in one document.

use serde_json::{Map, Value, json};

use super::verbs;
use crate::catalogue::{Catalogue, Group, GroupVersionKind, Kind, Subresource, Verb, Version};

/// `/api` in the aggregated form. `version` is that of the document: `v2`, or `v2beta1` for older clients.
pub fn aggregated_core(catalogue: &Catalogue, version: &str) -> Value {
    list(version, catalogue.groups().iter().filter(|group| group.name.is_empty()))
}

/// `/apis` in the aggregated form.
pub fn aggregated_groups(catalogue: &Catalogue, version: &str) -> Value {
    list(version, catalogue.groups().iter().filter(|group| !group.name.is_empty()))
}

fn list<'a>(version: &str, groups: impl Iterator<Item = &'a Group>) -> Value {
    let items: Vec<Value> = groups.map(group).collect();
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": format!("apidiscovery.k8s.io/{version}"),
        "metadata": {},
        "items": items,
    })
}

fn group(group: &Group) -> Value {
    let metadata = if group.name.is_empty() { json!({}) } else { json!({"name": group.name}) };
    let versions: Vec<Value> = group.versions.iter().map(version).collect();
    json!({"metadata": metadata, "versions": versions})
}

fn version(version: &Version) -> Value {
    let resources: Vec<Value> = version.kinds.iter().map(|kind| resource(kind)).collect();
    json!({"version": version.name, "resources": resources, "freshness": "Current"})
}

fn resource(kind: &Kind) -> Value {
    let mut resource = Map::new();
    resource.insert("resource".into(), kind.plural.as_str().into());
    resource.insert("responseKind".into(), response_kind(kind, &kind.group_version_kind()));
    resource.insert("scope".into(), if kind.namespaced { "Namespaced" } else { "Cluster" }.into());
    resource.insert("singularResource".into(), kind.singular.as_str().into());
    resource.insert("verbs".into(), verbs(kind).into());
    if !kind.short_names.is_empty() {
        resource.insert("shortNames".into(), kind.short_names.clone().into());
    }
    if !kind.categories.is_empty() {
        resource.insert("categories".into(), kind.categories.clone().into());
    }
    if !kind.subresources.is_empty() {
        let subresources = kind.subresources.iter().map(|subresource| subresource_value(kind, subresource));
        resource.insert("subresources".into(), subresources.collect());
    }
    Value::Object(resource)
}

fn subresource_value(parent: &Kind, subresource: &Subresource) -> Value {
    let verbs: Vec<&str> = subresource.verbs.iter().map(Verb::name).collect();
    json!({"subresource": subresource.name, "responseKind": response_kind(parent, &subresource.kind), "verbs": verbs})
}

/// Built-in kinds omit the group and version of their parent; custom ones do not.
fn response_kind(parent: &Kind, kind: &GroupVersionKind) -> Value {
    if !parent.custom && (&kind.group, &kind.version) == (&parent.group, &parent.version) {
        return json!({"group": "", "version": "", "kind": kind.kind});
    }
    json!({"group": kind.group, "version": kind.version, "kind": kind.kind})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_document_says_everything() {
        let catalogue = Catalogue::built_in();
        let core = aggregated_core(&catalogue, "v2");
        assert_eq!(core["apiVersion"], "apidiscovery.k8s.io/v2");
        assert_eq!(core["items"].as_array().unwrap().len(), 1);
        let groups = aggregated_groups(&catalogue, "v2beta1");
        assert_eq!(groups["items"].as_array().unwrap().len(), catalogue.groups().len() - 1);
        let apps = &groups["items"][1];
        assert_eq!(apps["metadata"]["name"], "apps");
        let deployments = &apps["versions"][0]["resources"][2];
        assert_eq!(deployments["resource"], "deployments");
        assert_eq!(deployments["subresources"][0]["responseKind"]["group"], "autoscaling");
        assert_eq!(deployments["subresources"][1]["responseKind"]["group"], "");
        for document in [core, aggregated_groups(&catalogue, "v2")] {
            let bytes = crate::protobuf::encode(&document).unwrap();
            assert_eq!(crate::protobuf::decode(&bytes, None).unwrap(), document);
        }
        assert!(crate::protobuf::encode(&groups).is_ok());
    }
}
