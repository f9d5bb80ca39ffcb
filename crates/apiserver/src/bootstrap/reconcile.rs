//! Reconciles existing built-in objects. Administrators may add to them; what is missing is restored at every start, unless
//! auto-update is disabled by annotation.

use knarr_api::value::{Read, Write};
use serde_json::Value;

use super::{DesiredObject, flow_revision};

const RBAC_AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";

/// The object to store in place of the existing one; `None` if nothing is missing.
pub fn reconcile(existing: &Value, desired: &DesiredObject) -> Option<Value> {
    let marks = ["metadata", "annotations"];
    let mut object = existing.clone();
    match desired.resource {
        "clusterroles" | "roles" if existing.at(&marks).text(&[RBAC_AUTOUPDATE]) != "false" => {
            add_metadata(&mut object, desired);
            if desired.object.has(&["aggregationRule"]) {
                object.set(&["aggregationRule"], desired.object.at(&["aggregationRule"]).clone());
            } else {
                add_missing(&mut object, desired, "rules");
            }
        }
        "clusterrolebindings" | "rolebindings" if existing.at(&marks).text(&[RBAC_AUTOUPDATE]) != "false" => {
            add_metadata(&mut object, desired);
            add_missing(&mut object, desired, "subjects");
        }
        "flowschemas" | "prioritylevelconfigurations" => return flow_revision::revise(existing, desired),
        _ => {}
    }
    (object != *existing).then_some(object)
}

fn add_metadata(object: &mut Value, desired: &DesiredObject) {
    for part in ["labels", "annotations"] {
        for (key, value) in desired.object.fields(&["metadata", part]).into_iter().flatten() {
            object.object(&["metadata", part]).entry(key).or_insert_with(|| value.clone());
        }
    }
}

fn add_missing(object: &mut Value, desired: &DesiredObject, list: &str) {
    let mut items = object.items(&[list]).to_vec();
    for item in desired.object.items(&[list]) {
        if !items.contains(item) {
            items.push(item.clone());
        }
    }
    if !items.is_empty() {
        object.set(&[list], items);
    }
}

#[cfg(test)]
mod tests {
    use super::super::desired_objects;
    use super::*;

    fn built_in(resource: &str, name: &str) -> DesiredObject {
        desired_objects(&[]).into_iter().find(|desired| desired.resource == resource && desired.name() == name).unwrap()
    }

    #[test]
    fn a_removed_rule_is_restored_and_an_added_one_stays() {
        let desired = built_in("clusterroles", "system:discovery");
        let mut existing = desired.object.clone();
        let own = serde_json::json!({"verbs": ["get"], "nonResourceURLs": ["/mine"]});
        existing["rules"] = serde_json::json!([own]);
        let fixed = reconcile(&existing, &desired).unwrap();
        assert!(fixed.items(&["rules"]).contains(&own));
        assert_eq!(fixed.items(&["rules"]).len(), 1 + desired.object.items(&["rules"]).len());
        assert_eq!(reconcile(&fixed, &desired), None);
    }

    #[test]
    fn an_object_without_auto_update_is_not_changed() {
        let desired = built_in("clusterrolebindings", "system:basic-user");
        let mut existing = desired.object.clone();
        existing["subjects"] = serde_json::json!([]);
        existing["metadata"]["annotations"][RBAC_AUTOUPDATE] = "false".into();
        assert_eq!(reconcile(&existing, &desired), None);
    }
}
