//! Merges the discovery documents of aggregated servers into those of this server.

use knarr_api::catalogue::Catalogue;
use knarr_api::value::Read;
use serde_json::{Map, Value, json};

use super::{Remote, Remotes};

/// A group or version with its priority, higher first.
struct Ranked {
    priority: i64,
    name: String,
    value: Value,
}

/// Merges aggregated groups into the list of groups.
pub fn merge_group_list(document: &mut Value, catalogue: &Catalogue, remotes: &Remotes) {
    merge(
        document,
        "groups",
        &["name"],
        catalogue,
        remotes,
        |group, version| json!({"groupVersion": format!("{group}/{}", version.version), "version": version.version}),
    );
    for group in document["groups"].as_array_mut().into_iter().flatten() {
        group["preferredVersion"] = group["versions"][0].clone();
    }
}

/// One group with its aggregated versions; `None` if no version is served.
pub fn merge_group(document: Option<Value>, name: &str, catalogue: &Catalogue, remotes: &Remotes) -> Option<Value> {
    if !remotes.all.iter().any(|remote| remote.group == name) {
        return document;
    }
    let mut list = json!({"groups": document.into_iter().collect::<Vec<Value>>()});
    merge_group_list(&mut list, catalogue, remotes);
    let groups = list["groups"].as_array_mut()?;
    let at = groups.iter().position(|group| group["name"] == name)?;
    let mut group = groups.swap_remove(at);
    group["kind"] = "APIGroup".into();
    group["apiVersion"] = "v1".into();
    Some(group)
}

/// Merges aggregated groups into the aggregated discovery document.
pub fn merge_aggregated(document: &mut Value, catalogue: &Catalogue, remotes: &Remotes) {
    merge(document, "items", &["metadata", "name"], catalogue, remotes, |_, remote| {
        let freshness = if remote.available { "Current" } else { "Stale" };
        let mut version = json!({"version": remote.version, "freshness": freshness});
        if let Some(resources) = &remote.resources {
            version["resources"] = (**resources).clone();
        }
        version
    });
}

/// Adds aggregated group versions to the OpenAPI index.
pub fn merge_openapi_index(document: &mut Value, remotes: &Remotes) {
    for remote in remotes.all.iter().filter(|remote| remote.available) {
        let path = format!("apis/{}/{}", remote.group, remote.version);
        document["paths"][&path] = json!({"serverRelativeURL": format!("/openapi/v3/{path}")});
    }
}

fn merge(
    document: &mut Value,
    list: &str,
    name_path: &[&str],
    catalogue: &Catalogue,
    remotes: &Remotes,
    make: impl Fn(&str, &Remote) -> Value,
) {
    if remotes.all.is_empty() {
        return;
    }
    let previous = document[list].take();
    let local = match previous {
        Value::Array(items) => items,
        _ => Vec::new(),
    };
    let mut groups: Vec<Ranked> = local
        .into_iter()
        .map(|value| {
            let name = value.text(name_path).to_owned();
            let priority = catalogue.group(&name).map_or(0, |group| i64::from(group.priority));
            Ranked { priority, name, value }
        })
        .collect();
    for remote in &remotes.all {
        let version = make(&remote.group, remote);
        let group = match groups.iter_mut().find(|group| group.name == remote.group) {
            Some(group) => group,
            None => {
                let mut value = json!({"versions": []});
                knarr_api::value::Write::set(&mut value, name_path, remote.group.as_str());
                groups.push(Ranked { priority: remote.group_priority, name: remote.group.clone(), value });
                let last = groups.len() - 1;
                &mut groups[last]
            }
        };
        group.priority = group.priority.max(remote.group_priority);
        insert_version(&mut group.value, version, remote, catalogue, remotes);
    }
    groups.sort_by(|a, b| b.priority.cmp(&a.priority).then_with(|| a.name.cmp(&b.name)));
    document[list] = groups.into_iter().map(|group| group.value).collect();
}

/// Inserts a version by its priority; replaces one that this server serves too.
fn insert_version(group: &mut Value, version: Value, remote: &Remote, catalogue: &Catalogue, remotes: &Remotes) {
    let priority = |name: &str| {
        let other = remotes.all.iter().find(|other| other.group == remote.group && other.version == name);
        match other {
            Some(other) => other.version_priority,
            None => catalogue.version(&remote.group, name).map_or(0, |version| i64::from(version.priority)),
        }
    };
    let Some(versions) = group["versions"].as_array_mut() else { return };
    versions.retain(|own| own["version"] != version["version"]);
    versions.push(version);
    versions.sort_by_key(|own| std::cmp::Reverse(priority(own["version"].as_str().unwrap_or_default())));
}

/// Converts an APIResourceList to the aggregated discovery format.
pub fn read_resources(document: &Value, group: &str, version: &str) -> Value {
    let all = document.items(&["resources"]);
    let kind_of = |resource: &Value| {
        let or_own = |field: &str, own: &str| match resource.text(&[field]) {
            "" => own.to_owned(),
            given => given.to_owned(),
        };
        json!({"group": or_own("group", group), "version": or_own("version", version), "kind": resource["kind"]})
    };
    let mut made: Vec<Value> = Vec::new();
    for resource in all.iter().filter(|resource| !resource.text(&["name"]).contains('/')) {
        let name = resource.text(&["name"]);
        let mut entry = Map::new();
        entry.insert("resource".into(), name.into());
        entry.insert("responseKind".into(), kind_of(resource));
        let scope = if resource.flag(&["namespaced"]) == Some(true) { "Namespaced" } else { "Cluster" };
        entry.insert("scope".into(), scope.into());
        entry.insert("singularResource".into(), resource.text(&["singularName"]).into());
        entry.insert("verbs".into(), resource["verbs"].clone());
        for field in ["shortNames", "categories"] {
            if resource.has(&[field]) {
                entry.insert(field.into(), resource[field].clone());
            }
        }
        let below: Vec<Value> = all
            .iter()
            .filter_map(|part| {
                let (owner, subresource) = part.text(&["name"]).split_once('/')?;
                (owner == name)
                    .then(|| json!({"subresource": subresource, "responseKind": kind_of(part), "verbs": part["verbs"]}))
            })
            .collect();
        if !below.is_empty() {
            entry.insert("subresources".into(), below.into());
        }
        made.push(Value::Object(entry));
    }
    made.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn aggregated_groups_are_ordered_by_priority() {
        let catalogue = Catalogue::built_in();
        let remote = Remote::read(
            &json!({"metadata": {"name": "v1.ships.example"}, "spec": {"group": "ships.example", "version": "v1",
            "groupPriorityMinimum": 100_000, "versionPriority": 15, "service": {"namespace": "n", "name": "s"}}}),
        )
        .unwrap();
        let remotes = Remotes { all: vec![Arc::new(remote)], generation: 1, ..Remotes::default() };
        let mut list = knarr_api::discovery::group_list(&catalogue);
        merge_group_list(&mut list, &catalogue, &remotes);
        assert_eq!(
            list["groups"][0],
            json!({"name": "ships.example",
            "versions": [{"groupVersion": "ships.example/v1", "version": "v1"}],
            "preferredVersion": {"groupVersion": "ships.example/v1", "version": "v1"}})
        );
        let mut aggregated = knarr_api::discovery::aggregated_groups(&catalogue, "v2");
        merge_aggregated(&mut aggregated, &catalogue, &remotes);
        assert_eq!(aggregated["items"][0]["versions"][0], json!({"version": "v1", "freshness": "Stale"}));
        let group = merge_group(None, "ships.example", &catalogue, &remotes).unwrap();
        assert_eq!(group["kind"], "APIGroup");
        assert!(merge_group(None, "else.example", &catalogue, &remotes).is_none());
    }

    #[test]
    fn legacy_discovery_converts_to_aggregated_discovery() {
        let list = json!({"resources": [
            {"name": "ships", "singularName": "ship", "namespaced": true, "kind": "Ship", "verbs": ["get"]},
            {"name": "ships/status", "singularName": "", "namespaced": true, "kind": "Ship", "verbs": ["update"]},
        ]});
        let made = read_resources(&list, "g", "v1");
        assert_eq!(made[0]["subresources"][0]["subresource"], "status");
        assert_eq!((&made[0]["scope"], &made[0]["responseKind"]["group"]), (&json!("Namespaced"), &json!("g")));
    }
}
