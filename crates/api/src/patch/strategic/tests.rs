//! Tests of strategic merge patch.

use super::*;
use crate::schema::builtin;
use serde_json::json;

fn pod_spec(original: Value, patch: Value) -> std::result::Result<Value, String> {
    let node = builtin().node_named("io.k8s.api.core.v1.PodSpec").expect("spec");
    strategic_merge(original, patch, node).map_err(|error| error.to_string())
}

#[test]
fn lists_merge_by_their_keys() {
    let original = json!({"containers": [{"name": "c", "image": "1", "env": [{"name": "A", "value": "1"},
        {"name": "B", "value": "2"}]}, {"name": "d", "image": "x"}], "tolerations": [{"key": "a"}]});
    for (patch, expected) in [
        (
            json!({"containers": [{"name": "c", "image": "2", "env": [{"name": "C", "value": "3"}]}]}),
            json!({"containers": [{"name": "c", "image": "2", "env": [{"name": "C", "value": "3"},
                {"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}, {"name": "d", "image": "x"}],
                "tolerations": [{"key": "a"}]}),
        ),
        (
            json!({"containers": [{"name": "c", "$patch": "delete"}], "tolerations": [{"key": "b"}]}),
            json!({"containers": [{"name": "d", "image": "x"}], "tolerations": [{"key": "b"}]}),
        ),
        (
            json!({"containers": [{"$patch": "replace"}, {"name": "z"}]}),
            json!({"containers": [{"name": "z"}], "tolerations": [{"key": "a"}]}),
        ),
        (
            json!({"containers": [{"name": "e"}], "$setElementOrder/containers":
                [{"name": "e"}, {"name": "d"}, {"name": "c"}]}),
            json!({"containers": [{"name": "e"}, {"name": "d", "image": "x"}, {"name": "c", "image": "1",
                "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}], "tolerations": [{"key": "a"}]}),
        ),
        (
            json!({"containers": null, "nodeSelector": {"a": null, "b": "c"}}),
            json!({"tolerations": [{"key": "a"}], "nodeSelector": {"b": "c"}}),
        ),
    ] {
        assert_eq!(pod_spec(original.clone(), patch.clone()), Ok(expected), "{patch}");
    }
}

#[test]
fn directives_on_objects_and_plain_lists_are_carried_out() {
    let deployment = builtin().kind("apps", "v1", "Deployment").expect("deployment");
    let original = json!({"metadata": {"finalizers": ["a", "b", "c"], "labels": {"x": "1", "y": "2"}},
        "spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}});
    for (patch, path, expected) in [
        (
            json!({"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}),
            "/spec/strategy",
            json!({"type": "Recreate"}),
        ),
        (json!({"metadata": {"labels": {"$patch": "replace", "z": "3"}}}), "/metadata/labels", json!({"z": "3"})),
        (json!({"metadata": {"labels": {"$patch": "delete"}}}), "/metadata/labels", json!({})),
        (
            json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["b"]}}),
            "/metadata/finalizers",
            json!(["a", "c"]),
        ),
        (json!({"metadata": {"finalizers": ["d", "b"]}}), "/metadata/finalizers", json!(["d", "a", "b", "c"])),
        (
            json!({"metadata": {"finalizers": ["d"], "$setElementOrder/finalizers": ["c", "d", "a"],
                "$deleteFromPrimitiveList/finalizers": ["b"]}}),
            "/metadata/finalizers",
            json!(["c", "d", "a"]),
        ),
    ] {
        let patched = strategic_merge(original.clone(), patch.clone(), deployment).expect("patched");
        assert_eq!(patched.pointer(path), Some(&expected), "{patch}");
    }
}

#[test]
fn patches_that_do_not_fit_are_refused() {
    for (patch, expected) in [
        (json!({"containers": [{"image": "x"}]}), "map: map[image:x] does not contain declared merge key: name"),
        (
            json!({"containers": [{"name": "c", "$patch": "fly"}]}),
            "unknown patch type: fly in map: map[$patch:fly name:c]",
        ),
        (json!({"nodeSelector": {"$retainKeys": "x"}}), "invalid patch format of retainKeys"),
        (json!({"$deleteFromPrimitiveList": ["x"]}), "invalid patch format of primitive list"),
        (json!({"containers": ["x"]}), "list element types are not identical: [[map[name:c]] [x]]"),
    ] {
        let original = json!({"containers": [{"name": "c"}], "nodeSelector": {"a": "b"}});
        assert_eq!(pod_spec(original, patch.clone()), Err(expected.to_owned()), "{patch}");
    }
}

/// Each time that an element is named, all lists in it are merged again.
#[test]
fn an_element_is_not_merged_without_end() {
    let variables: Vec<Value> = (0..10_000).map(|at| json!({"name": format!("v{at}"), "value": ""})).collect();
    let original = json!({"containers": [{"name": "c", "env": variables, "args": vec!["x"; 20_000]}]});
    let named = |times: usize, fields: Value| {
        let mut container = json!({"name": "c"});
        container.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        pod_spec(original.clone(), json!({"containers": vec![container; times]}))
    };
    for fields in
        [json!({"env": []}), json!({"$setElementOrder/env": []}), json!({"$deleteFromPrimitiveList/args": ["y"]})]
    {
        assert!(named(10, fields.clone()).is_ok(), "{fields}");
        assert_eq!(named(20_000, fields.clone()), Err("the patch merges too many values".to_owned()), "{fields}");
    }
}
