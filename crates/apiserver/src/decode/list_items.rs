//! Limits how many objects the lists of an object hold. Defaults make several hundred bytes of an item that takes three in the
//! body, so that more than the length of a body limits the memory and time that it costs.

use knarr_api::status::Status;
use serde_json::Value;

/// An object of the largest size that etcd stores would have items of sixteen bytes.
const MAX_ITEMS: usize = 100_000;

/// Refuses an object with more items, in all of its lists together.
pub fn check(object: &Value) -> Result<(), Status> {
    let mut left = MAX_ITEMS;
    if count(object, &mut left) {
        return Ok(());
    }
    let text = format!("Request entity too large: limit is {MAX_ITEMS} objects in lists");
    Err(Status::new(413, "RequestEntityTooLarge", text))
}

/// Counts down; false once there are too many. Bodies are nested to a small depth only.
fn count(value: &Value, left: &mut usize) -> bool {
    match value {
        Value::Array(items) => items.iter().all(|item| {
            if item.is_object() {
                let Some(less) = left.checked_sub(1) else { return false };
                *left = less;
            }
            count(item, left)
        }),
        Value::Object(fields) => fields.values().all(|field| count(field, left)),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request_tests::{Cluster, MAPS};
    use serde_json::json;

    #[test]
    fn objects_in_lists_are_counted_wherever_they_are() {
        let items = |count: usize| Value::from(vec![json!({}); count]);
        assert!(check(&json!({"a": items(MAX_ITEMS), "b": vec![0; 2 * MAX_ITEMS], "c": {"d": {}}})).is_ok());
        assert!(check(&json!({"a": items(MAX_ITEMS), "b": [[{}]]})).is_err());
        assert!(check(&json!([{"a": items(MAX_ITEMS)}])).is_err());
    }

    /// Whatever a body is: an object, a change of one or a configuration.
    #[tokio::test]
    async fn lists_of_empty_objects_do_not_fill_memory() {
        let cluster = Cluster::new().await;
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}});
        assert_eq!(cluster.json("POST", MAPS, map.clone()).await.0, 201);
        let mut many = map.clone();
        many["metadata"]["ownerReferences"] = vec![json!({}); MAX_ITEMS + 1].into();
        let (path, apply) = (format!("{MAPS}/m"), format!("{MAPS}/m?fieldManager=f"));
        let owners = &many["metadata"]["ownerReferences"];
        let json_patch = json!([{"op": "add", "path": "/metadata/ownerReferences", "value": owners}]);
        for (method, path, media_type, body) in [
            ("POST", MAPS, "application/json", &many),
            ("POST", MAPS, "application/yaml", &many),
            ("PUT", path.as_str(), "application/json", &many),
            ("PATCH", path.as_str(), "application/merge-patch+json", &many),
            ("PATCH", path.as_str(), "application/strategic-merge-patch+json", &many),
            ("PATCH", path.as_str(), "application/json-patch+json", &json_patch),
            ("PATCH", apply.as_str(), "application/apply-patch+yaml", &many),
        ] {
            let (code, refusal) = cluster.request(method, path, media_type, body.clone()).await;
            assert_eq!((code, &refusal["reason"]), (413, &json!("RequestEntityTooLarge")), "{media_type}: {refusal}");
        }
    }
}
