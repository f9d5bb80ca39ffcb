//! What an existing built-in object lacks. Administrators may add to built-in objects; what Knarr needs of them comes
//! back at every start, unless they are marked not to be updated.

use knarr_api::value::{Read, Write};
use serde_json::Value;

use super::DesiredObject;

const RBAC_AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";

/// The object to write in place of the existing one; `None` when nothing is missing.
pub fn reconcile(existing: &Value, wanted: &DesiredObject) -> Option<Value> {
    let marks = ["metadata", "annotations"];
    let mut object = existing.clone();
    match wanted.resource {
        "clusterroles" | "roles" if existing.at(&marks).text(&[RBAC_AUTOUPDATE]) != "false" => {
            add_metadata(&mut object, wanted);
            if wanted.object.has(&["aggregationRule"]) {
                object.set(&["aggregationRule"], wanted.object.at(&["aggregationRule"]).clone());
            } else {
                add_missing(&mut object, wanted, "rules");
            }
        }
        "clusterrolebindings" | "rolebindings" if existing.at(&marks).text(&[RBAC_AUTOUPDATE]) != "false" => {
            add_metadata(&mut object, wanted);
            add_missing(&mut object, wanted, "subjects");
        }
        "flowschemas" | "prioritylevelconfigurations" => return crate::fairness::ensure::revise(existing, wanted),
        _ => {}
    }
    (object != *existing).then_some(object)
}

fn add_metadata(object: &mut Value, wanted: &DesiredObject) {
    for part in ["labels", "annotations"] {
        for (key, value) in wanted.object.fields(&["metadata", part]).into_iter().flatten() {
            object.object(&["metadata", part]).entry(key).or_insert_with(|| value.clone());
        }
    }
}

fn add_missing(object: &mut Value, wanted: &DesiredObject, list: &str) {
    let mut items = object.items(&[list]).to_vec();
    for item in wanted.object.items(&[list]) {
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
        desired_objects(&[]).into_iter().find(|wanted| wanted.resource == resource && wanted.name() == name).unwrap()
    }

    #[test]
    fn a_removed_rule_comes_back_and_an_added_one_stays() {
        let wanted = built_in("clusterroles", "system:discovery");
        let mut existing = wanted.object.clone();
        let own = serde_json::json!({"verbs": ["get"], "nonResourceURLs": ["/mine"]});
        existing["rules"] = serde_json::json!([own]);
        let mended = reconcile(&existing, &wanted).unwrap();
        assert!(mended.items(&["rules"]).contains(&own));
        assert_eq!(mended.items(&["rules"]).len(), 1 + wanted.object.items(&["rules"]).len());
        assert_eq!(reconcile(&mended, &wanted), None);
    }

    #[test]
    fn an_object_marked_so_is_left_alone() {
        let wanted = built_in("clusterrolebindings", "system:basic-user");
        let mut existing = wanted.object.clone();
        existing["subjects"] = serde_json::json!([]);
        existing["metadata"]["annotations"][RBAC_AUTOUPDATE] = "false".into();
        assert_eq!(reconcile(&existing, &wanted), None);
    }
}
