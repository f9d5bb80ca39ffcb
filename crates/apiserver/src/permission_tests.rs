//! Requests of users with few permissions, through the whole server: none does more than its verb allows.

use serde_json::{Value, json};

use crate::request_tests::{Cluster, MAPS, map};

const GROUP: &str = "rbac.authorization.k8s.io";

/// A cluster in which the user `ann` has these rules.
async fn cluster_with(rules: Value) -> Cluster {
    let cluster = Cluster::new().await;
    let version = format!("{GROUP}/v1");
    let role = json!({"apiVersion": version, "kind": "ClusterRole", "metadata": {"name": "r"}, "rules": rules});
    let binding = json!({
        "apiVersion": version, "kind": "ClusterRoleBinding", "metadata": {"name": "b"},
        "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": "r"},
        "subjects": [{"kind": "User", "apiGroup": GROUP, "name": "ann"}],
    });
    for (plural, object) in [("clusterroles", role), ("clusterrolebindings", binding)] {
        let (code, response) = cluster.json("POST", &format!("/apis/{GROUP}/v1/{plural}"), object).await;
        assert_eq!(code, 201, "{response}");
    }
    cluster
}

/// The old path of a watch is authorized as a watch, whatever the method.
#[tokio::test]
async fn the_right_to_watch_writes_nothing() {
    let cluster = cluster_with(json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["watch"]}])).await;
    assert_eq!(cluster.json("POST", MAPS, map("m", json!({}))).await.0, 201);
    let maps = "/api/v1/watch/namespaces/default/configmaps";
    let binding = json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": "more"},
        "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": "r"}, "subjects": [],
    });
    let changed = map("m", json!({"changed": "yes"}));
    for (method, path, body) in [
        ("POST", maps.to_owned(), map("new", json!({}))),
        ("PUT", format!("{maps}/m"), changed.clone()),
        ("PATCH", format!("{maps}/m"), changed.clone()),
        ("DELETE", format!("{maps}/m"), Value::Null),
        ("DELETE", maps.to_owned(), Value::Null),
        ("POST", format!("/apis/{GROUP}/v1/watch/clusterrolebindings"), binding),
    ] {
        let (code, response) = cluster.json_as("ann", method, &path, body).await;
        assert_eq!(code, 405, "{method} {path}: {response}");
    }
    let (_, list) = cluster.json("GET", MAPS, Value::Null).await;
    let names: Vec<&str> =
        list["items"].as_array().unwrap().iter().filter_map(|map| map["metadata"]["name"].as_str()).collect();
    assert_eq!(names, ["m"]);
    assert_eq!(list["items"][0]["metadata"]["labels"], Value::Null);
}

/// Apply and the updates of some kinds create an object that is missing.
#[tokio::test]
async fn a_change_that_creates_needs_the_right_to_create() {
    let write = |resources: Value, verbs: Value| json!({"apiGroups": ["*"], "resources": resources, "verbs": verbs});
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let lease =
        |name: &str| json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}});
    let kinds = json!(["leases", "configmaps"]);
    for (verbs, code) in [(json!(["update", "patch"]), 403), (json!(["update", "patch", "create"]), 201)] {
        let cluster = cluster_with(json!([write(kinds.clone(), verbs)])).await;
        let (got, response) = cluster.json_as("ann", "PUT", &format!("{leases}/l"), lease("l")).await;
        assert_eq!(got, code, "{response}");
        let applied = cluster.apply_as("ann", &format!("{MAPS}/m?fieldManager=t"), map("m", json!({}))).await;
        assert_eq!(applied.0, code, "{}", applied.1);
        if code == 403 {
            let message = "configmaps \"m\" is forbidden: User \"ann\" cannot create resource \"configmaps\" in API group \"\" \
                           in the namespace \"default\"";
            assert_eq!(applied.1["message"], message);
        }
    }
}

/// The object of these subresources is of another group than the resource, which admission must not be deceived by.
#[tokio::test]
async fn a_node_gets_tokens_of_its_pods_and_evicts_no_others() {
    let cluster = Cluster::new().await;
    let (core, pods) = ("/api/v1/namespaces/default", "/api/v1/namespaces/default/pods");
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    assert_eq!(cluster.json("POST", &format!("{core}/serviceaccounts"), account).await.0, 201);
    let mut uids = Vec::new();
    for node in ["one", "two"] {
        let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}});
        assert_eq!(cluster.json("POST", "/api/v1/nodes", object).await.0, 201);
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("on-{node}")},
            "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}});
        let (code, pod) = cluster.json("POST", pods, pod).await;
        assert_eq!(code, 201, "{pod}");
        uids.push(pod["metadata"]["uid"].clone());
        // The task that watches pods does not run here.
        cluster.server().security.node_graph.pod_changed(None, Some(&pod));
    }
    let token = |bound: Value, audiences: Value| {
        let spec = json!({"boundObjectRef": bound, "audiences": audiences});
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec})
    };
    let pod = |name: &str, uid: &Value| json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid});
    let tokens = format!("{core}/serviceaccounts/default/token");
    for (request, code, message) in [
        (token(pod("on-one", &uids[0]), json!([])), 201, ""),
        (token(Value::Null, json!([])), 403, "node requested token not bound to a pod"),
        (token(pod("on-one", &Value::Null), json!([])), 403, "node requested token with a pod binding without a uid"),
        (
            token(pod("on-two", &uids[1]), json!([])),
            403,
            "node requested token bound to a pod scheduled on a different node",
        ),
        (
            token(pod("on-one", &uids[0]), json!(["vault"])),
            403,
            "audience \"vault\" not found in pod spec volume, system:node:one is not authorized to request tokens for this \
             audience",
        ),
    ] {
        let (got, response) = cluster.json_as_node("one", "POST", &tokens, request).await;
        let text = response["message"].as_str().unwrap_or_default();
        let expected =
            if code == 201 { String::new() } else { format!("serviceaccounts \"default\" is forbidden: {message}") };
        assert_eq!((got, text), (code, expected.as_str()), "{response}");
    }
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "on-two"}});
    let (code, response) = cluster.json_as_node("one", "POST", &format!("{pods}/on-two/eviction"), eviction).await;
    assert_eq!(code, 403, "{response}");
    assert_eq!(
        response["message"],
        "pods \"on-two\" is forbidden: node one can only evict pods with spec.nodeName set to itself"
    );
}

/// The old path of a watch of one object is authorized for its name, which no selector of the client widens.
#[tokio::test]
async fn a_watch_of_one_object_shows_no_other() {
    use futures::StreamExt;
    let rules =
        json!([{"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["mine"], "verbs": ["watch"]}]);
    let cluster = cluster_with(rules).await;
    for name in ["a-secret", "mine", "other"] {
        assert_eq!(cluster.json("POST", MAPS, map(name, json!({}))).await.0, 201);
    }
    let maps = "/api/v1/watch/namespaces/default/configmaps";
    for selector in ["", "metadata.name!%3Dx%5C", "metadata.name!%3Dx%5C%5C%5C", "metadata.namespace%3Ddefault"] {
        let path = format!("{maps}/mine?timeoutSeconds=1&fieldSelector={selector}");
        let request = http::Request::builder().uri(path).body(http_body_util::Full::new(bytes::Bytes::new())).unwrap();
        let ann = crate::request::Sender::Trusted(std::sync::Arc::new(crate::request::User::named("ann", &[])));
        let response = cluster.server().handle(request, &ann).await;
        let code = response.status().as_u16();
        let mut body = http_body_util::BodyStream::new(response.into_body());
        let mut text = Vec::new();
        while let Some(Ok(frame)) = body.next().await {
            text.extend_from_slice(frame.data_ref().unwrap());
        }
        let text = String::from_utf8(text).unwrap();
        let is_valid = !selector.ends_with("%5C");
        assert_eq!(
            (code, text.contains("\"name\":\"mine\"")),
            (if is_valid { 200 } else { 400 }, is_valid),
            "{selector}: {text}"
        );
        assert!(!text.contains("a-secret") && !text.contains("\"other\""), "{selector}: {text}");
    }
}
