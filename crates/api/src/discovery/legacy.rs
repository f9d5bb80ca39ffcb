//! Unaggregated discovery: one document for each group and version.

use serde_json::{Map, Value, json};

use super::{storage_version_hash, verbs};
use crate::catalogue::{Catalogue, Group, Kind, Subresource, Verb};

/// `/api`: the versions of the core group, and the address of the server.
pub fn api_versions(catalogue: &Catalogue, server_address: &str) -> Value {
    let versions: Vec<&str> = catalogue
        .group("")
        .map(|group| group.versions.iter().map(|version| version.name.as_str()).collect())
        .unwrap_or_default();
    json!({
        "kind": "APIVersions",
        "versions": versions,
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": server_address}],
    })
}

/// `/apis`: all groups but the core one.
pub fn group_list(catalogue: &Catalogue) -> Value {
    let groups: Vec<Value> =
        catalogue.groups().iter().filter(|group| !group.name.is_empty()).map(group_value).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `/apis/GROUP`.
pub fn group(catalogue: &Catalogue, name: &str) -> Option<Value> {
    let mut value = group_value(catalogue.group(name)?);
    value["kind"] = "APIGroup".into();
    value["apiVersion"] = "v1".into();
    Some(value)
}

/// `/api/v1` and `/apis/GROUP/VERSION`.
pub fn resource_list(catalogue: &Catalogue, group: &str, version: &str) -> Option<Value> {
    let kinds = &catalogue.version(group, version)?.kinds;
    let mut resources = Vec::new();
    for kind in kinds {
        resources.push(resource(kind));
        resources.extend(kind.subresources.iter().map(|subresource| subresource_value(kind, subresource)));
    }
    let group_version = group_version(group, version);
    let mut list = json!({"kind": "APIResourceList", "groupVersion": group_version, "resources": resources});
    // The core group's document is older than the field.
    if !group.is_empty() {
        list["apiVersion"] = "v1".into();
    }
    Some(list)
}

fn group_value(group: &Group) -> Value {
    let versions: Vec<Value> = group
        .versions
        .iter()
        .map(|version| json!({"groupVersion": group_version(&group.name, &version.name), "version": version.name}))
        .collect();
    json!({"name": group.name, "preferredVersion": versions.first(), "versions": versions})
}

fn resource(kind: &Kind) -> Value {
    let mut resource = Map::new();
    resource.insert("name".into(), kind.plural.as_str().into());
    resource.insert("singularName".into(), kind.singular.as_str().into());
    resource.insert("namespaced".into(), kind.namespaced.into());
    resource.insert("kind".into(), kind.kind.as_str().into());
    resource.insert("verbs".into(), verbs(kind).into());
    if !kind.short_names.is_empty() {
        resource.insert("shortNames".into(), kind.short_names.clone().into());
    }
    if !kind.categories.is_empty() {
        resource.insert("categories".into(), kind.categories.clone().into());
    }
    if let Some(hash) = storage_version_hash(kind) {
        resource.insert("storageVersionHash".into(), hash.into());
    }
    Value::Object(resource)
}

fn subresource_value(parent: &Kind, subresource: &Subresource) -> Value {
    let verbs: Vec<&str> = subresource.verbs.iter().map(Verb::name).collect();
    let mut resource = json!({
        "name": format!("{}/{}", parent.plural, subresource.name),
        "singularName": "",
        "namespaced": parent.namespaced,
        "kind": subresource.kind.kind,
        "verbs": verbs,
    });
    if (&subresource.kind.group, &subresource.kind.version) != (&parent.group, &parent.version) {
        resource["group"] = subresource.kind.group.as_str().into();
        resource["version"] = subresource.kind.version.as_str().into();
    }
    resource
}

fn group_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_name_versions_and_resources() {
        let catalogue = Catalogue::built_in();
        assert_eq!(api_versions(&catalogue, "10.0.0.1:6443")["versions"], json!(["v1"]));
        let groups = group_list(&catalogue);
        assert_eq!(groups["groups"][1]["name"], "apps");
        assert_eq!(
            group(&catalogue, "autoscaling").unwrap(),
            json!({"kind": "APIGroup", "apiVersion": "v1", "name": "autoscaling",
                "versions": [{"groupVersion": "autoscaling/v2", "version": "v2"}, {"groupVersion": "autoscaling/v1", "version": "v1"}],
                "preferredVersion": {"groupVersion": "autoscaling/v2", "version": "v2"}})
        );
        assert!(group(&catalogue, "nowhere").is_none() && resource_list(&catalogue, "apps", "v2").is_none());

        let core = resource_list(&catalogue, "", "v1").unwrap();
        assert!(core.get("apiVersion").is_none());
        let resources = core["resources"].as_array().unwrap();
        let named = |name: &str| resources.iter().find(|resource| resource["name"] == name).unwrap();
        assert_eq!(
            named("pods"),
            &json!({"name": "pods", "singularName": "pod", "namespaced": true, "kind": "Pod", "shortNames": ["po"],
                "categories": ["all"], "storageVersionHash": "xPOwRZ+Yhw8=",
                "verbs": ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]})
        );
        assert_eq!(
            named("pods/eviction"),
            &json!({"name": "pods/eviction", "singularName": "", "namespaced": true, "group": "policy", "version": "v1",
                "kind": "Eviction", "verbs": ["create"]})
        );
        assert!(named("bindings").get("storageVersionHash").is_none());
    }
}
