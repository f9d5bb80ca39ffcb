//! Tests of published vulnerabilities of Kubernetes, on the whole server. Each test names its CVE.

use serde_json::{Value, json};

use crate::request_tests::{Cluster, MAPS, map};

const PATCHES: [&str; 2] = ["application/merge-patch+json", "application/strategic-merge-patch+json"];

/// A namespace with its default account, and the Pod Security Standard that it enforces.
async fn namespace(cluster: &Cluster, name: &str, enforce: &str) {
    let labels = json!({"pod-security.kubernetes.io/enforce": enforce});
    let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}});
    assert_eq!(cluster.json("POST", "/api/v1/namespaces", object).await.0, 201);
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    let path = format!("/api/v1/namespaces/{name}/serviceaccounts");
    assert_eq!(cluster.json("POST", &path, account).await.0, 201);
}

fn pod(containers: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": containers}})
}

/// CVE-2021-25737: endpoints do not lead to loopback or link-local addresses.
#[tokio::test]
async fn endpoints_do_not_lead_to_the_node_itself() {
    let cluster = Cluster::new().await;
    let addresses =
        ["127.0.0.1", "::1", "169.254.169.254", "fe80::1", "::ffff:127.0.0.1", "0177.0.0.1", "224.0.0.1", "0.0.0.0"];
    for (index, address) in addresses.iter().enumerate() {
        let family = if address.contains(':') { "IPv6" } else { "IPv4" };
        let metadata = json!({"name": format!("s{index}"), "labels": {"kubernetes.io/service-name": "s"}});
        let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata,
            "addressType": family, "endpoints": [{"addresses": [address]}]});
        let path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
        let (code, response) = cluster.json("POST", path, slice).await;
        assert_eq!(code, 422, "EndpointSlice {address}: {response}");
        let endpoints = json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": metadata,
            "subsets": [{"addresses": [{"ip": address}], "ports": [{"port": 80}]}]});
        let (code, response) = cluster.json("POST", "/api/v1/namespaces/default/endpoints", endpoints).await;
        assert_eq!(code, 422, "Endpoints {address}: {response}");
    }
}

/// CVE-2015-5305: a name never leads outside the keys of its kind.
#[tokio::test]
async fn names_are_checked_before_they_are_keys() {
    let cluster = Cluster::new().await;
    for name in [".", "..", "a/b", "a%2Fb", "../secrets/x"] {
        let (code, response) = cluster.json("POST", MAPS, map(name, json!({}))).await;
        assert_eq!(code, 422, "{name}: {response}");
    }
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"a": "b"}});
    assert_eq!(cluster.json("POST", "/api/v1/namespaces/default/secrets", secret).await.0, 201);
    for name in ["%2E%2E", "%2E", "..%2F..%2Fsecrets%2Fdefault%2Fs", "a%2Fb"] {
        let (code, response) = cluster.json("GET", &format!("{MAPS}/{name}"), Value::Null).await;
        assert!((400..500).contains(&code), "{name}: {code} {response}");
    }
}

/// CVE-2022-3162: a list or watch of one kind never shows another.
#[tokio::test]
async fn lists_stay_within_their_kind() {
    let cluster = Cluster::new().await;
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"a": "b"}});
    assert_eq!(cluster.json("POST", "/api/v1/namespaces/default/secrets", secret).await.0, 201);
    for namespace in ["..", "..%2Fsecrets", "..%2Fsecrets%2Fdefault", "a%2F..", "%2E%2E"] {
        let (code, response) =
            cluster.json("GET", &format!("/api/v1/namespaces/{namespace}/configmaps"), Value::Null).await;
        let is_empty = response["items"].as_array().is_none_or(Vec::is_empty);
        assert!(code >= 400 || is_empty, "{namespace}: {code} {response}");
    }
    for name in ["../../secrets/default/s", "..%2F..%2Fsecrets%2Fdefault%2Fs", "../secrets/s"] {
        let path = format!("/api/v1/configmaps?fieldSelector=metadata.name%3D{name}");
        let (code, response) = cluster.json("GET", &path, Value::Null).await;
        let is_empty = response["items"].as_array().is_none_or(Vec::is_empty);
        assert!(code >= 400 || is_empty, "{name}: {code} {response}");
    }
    use base64::Engine;
    let page = cluster.json("GET", "/api/v1/configmaps?limit=1", Value::Null).await.1;
    let version = page["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap();
    for start in ["../secrets/", "default/../../secrets/default/", "../../secrets/default/a"] {
        let forged = json!({"v": "meta.k8s.io/v1", "rv": version, "start": start}).to_string();
        let token = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(forged);
        let (code, response) =
            cluster.json("GET", &format!("/api/v1/configmaps?limit=9&continue={token}"), Value::Null).await;
        assert!(code >= 400 || !response.to_string().contains("\"Secret\""), "{start}: {code} {response}");
        assert!(!response.to_string().contains("\"a\":\"Yg==\""), "{start}: {response}");
    }
}

/// CVE-2019-11247: a kind is served only in its own scope.
#[tokio::test]
async fn scopes_are_not_interchangeable() {
    let cluster = Cluster::new().await;
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "x"}});
    assert_eq!(cluster.json("POST", "/api/v1/nodes", node.clone()).await.0, 201);
    for (method, path, body) in [
        ("GET", "/api/v1/namespaces/default/nodes/x", Value::Null),
        ("GET", "/api/v1/namespaces/default/nodes", Value::Null),
        ("POST", "/api/v1/namespaces/default/nodes", node.clone()),
        ("PUT", "/api/v1/namespaces/default/nodes/x", node),
        ("DELETE", "/api/v1/namespaces/default/nodes/x", Value::Null),
        ("GET", "/api/v1/configmaps/kube-root-ca.crt", Value::Null),
        ("DELETE", "/api/v1/configmaps/kube-root-ca.crt", Value::Null),
    ] {
        let (code, response) = cluster.json(method, path, body).await;
        assert_eq!(code, 404, "{method} {path}: {response}");
    }
}

/// CVE-2016-1905: admission checks the patched object, for every type of patch.
#[tokio::test]
async fn patches_are_admitted_too() {
    let cluster = Cluster::new().await;
    namespace(&cluster, "strict", "baseline").await;
    let pods = "/api/v1/namespaces/strict/pods";
    assert_eq!(cluster.json("POST", pods, pod(json!([{"name": "c", "image": "i"}]))).await.0, 201);
    let privileged = json!({"name": "e", "image": "i", "securityContext": {"privileged": true}});
    let path = format!("{pods}/p/ephemeralcontainers");
    for kind in PATCHES {
        let patch = json!({"spec": {"ephemeralContainers": [privileged]}});
        let (code, response) = cluster.request("PATCH", &path, kind, patch).await;
        assert_eq!(code, 403, "{kind}: {response}");
        assert!(
            response["message"].as_str().unwrap().contains("violates PodSecurity \"baseline:latest\""),
            "{response}"
        );
    }
    let patch = json!([{"op": "add", "path": "/spec/ephemeralContainers", "value": [privileged]}]);
    assert_eq!(cluster.request("PATCH", &path, "application/json-patch+json", patch).await.0, 403);
    let mut applied = pod(json!([privileged]));
    applied["metadata"]["name"] = "q".into();
    let path = format!("{pods}/q?fieldManager=m");
    assert_eq!(cluster.request("PATCH", &path, "application/apply-patch+yaml", applied).await.0, 403);
}

/// CVE-2024-3177 and CVE-2023-2728: pods use only the secrets that their account lists, if it lists any.
#[tokio::test]
async fn accounts_that_list_their_secrets_use_no_others() {
    let cluster = Cluster::new().await;
    namespace(&cluster, "n", "privileged").await;
    let account = json!({"metadata": {"annotations": {"kubernetes.io/enforce-mountable-secrets": "true"}},
        "secrets": [{"name": "listed"}]});
    let path = "/api/v1/namespaces/n/serviceaccounts/default";
    assert_eq!(cluster.request("PATCH", path, PATCHES[0], account).await.0, 200);
    let pods = "/api/v1/namespaces/n/pods";
    let from = |secret: &str| json!({"envFrom": [{"secretRef": {"name": secret}}]});
    let variable =
        |secret: &str| json!({"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": secret, "key": "k"}}}]});
    let container = |name: &str, part: &Value| {
        let mut container = json!({"name": name, "image": "i"});
        container.as_object_mut().unwrap().extend(part.as_object().unwrap().clone());
        container
    };
    let good = pod(json!([container("c", &from("listed"))]));
    assert_eq!(cluster.json("POST", pods, good).await.0, 201);
    for part in [from("other"), variable("other")] {
        let mut in_container = pod(json!([container("c", &part)]));
        in_container["metadata"]["name"] = "q".into();
        let mut in_init = pod(json!([{"name": "c", "image": "i"}]));
        in_init["metadata"]["name"] = "q".into();
        in_init["spec"]["initContainers"] = json!([container("i", &part)]);
        for refused in [in_container, in_init] {
            let (code, response) = cluster.json("POST", pods, refused).await;
            assert_eq!(code, 403, "{response}");
            let message = response["message"].as_str().unwrap();
            let why = "is not allowed because service account default does not reference that secret";
            assert!(message.ends_with(why), "{message}");
        }
        let patch = json!({"spec": {"ephemeralContainers": [container("e", &part)]}});
        let (code, response) =
            cluster.request("PATCH", &format!("{pods}/p/ephemeralcontainers"), PATCHES[1], patch).await;
        assert_eq!(code, 403, "{response}");
        assert!(response["message"].as_str().unwrap().contains("ephemeral container e with env"), "{response}");
    }
}

/// CVE-2021-25735: admission sees the old object unchanged.
#[tokio::test]
async fn admission_sees_the_old_object_unchanged() {
    let cluster = Cluster::new().await;
    let registration = "/apis/admissionregistration.k8s.io/v1";
    let seen = "string(oldObject.metadata.labels.a) + '|' + string(oldObject.spec.?unschedulable.orValue(false)) + '|' + \
                string(oldObject.spec.?podCIDR.orValue('none')) + '|' + string(size(oldObject.spec.?taints.orValue([])))";
    let policy = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "show"}, "spec": {"failurePolicy": "Fail", "matchConstraints": {"resourceRules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["nodes"]}]},
            "validations": [{"expression": "false", "messageExpression": seen}]}});
    let binding = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "show"}, "spec": {"policyName": "show", "validationActions": ["Deny"]}});
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "x", "labels": {"a": "1"}}});
    assert_eq!(cluster.json("POST", "/api/v1/nodes", node).await.0, 201);
    let policies = format!("{registration}/validatingadmissionpolicies");
    assert_eq!(cluster.json("POST", &policies, policy).await.0, 201);
    assert_eq!(
        cluster.json("POST", &format!("{registration}/validatingadmissionpolicybindings"), binding).await.0,
        201
    );
    for kind in PATCHES {
        for patch in [
            json!({"metadata": {"labels": {"a": "2"}}}),
            json!({"spec": {"unschedulable": true}}),
            json!({"spec": {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24"]}}),
            json!({"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}}),
        ] {
            let (code, response) = cluster.request("PATCH", "/api/v1/nodes/x", kind, patch.clone()).await;
            assert_eq!(code, 422, "{patch}: {response}");
            // A new node has one taint: that it is not ready.
            assert!(response["message"].as_str().unwrap().contains("1|false|none|1"), "{patch}: {response}");
        }
    }
}

/// CVE-2023-2727: rules about images see ephemeral containers.
#[tokio::test]
async fn rules_about_images_see_ephemeral_containers() {
    let cluster = Cluster::new().await;
    namespace(&cluster, "n", "privileged").await;
    let pods = "/api/v1/namespaces/n/pods";
    assert_eq!(cluster.json("POST", pods, pod(json!([{"name": "c", "image": "good/i"}]))).await.0, 201);
    let rule = "object.spec.?ephemeralContainers.orValue([]).all(c, c.image.startsWith('good/'))";
    let policy = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "images"}, "spec": {"failurePolicy": "Fail", "matchConstraints": {"resourceRules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["pods/ephemeralcontainers"]}]},
            "validations": [{"expression": rule, "reason": "Forbidden"}]}});
    let binding = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "images"}, "spec": {"policyName": "images", "validationActions": ["Deny"]}});
    for (plural, object) in [("validatingadmissionpolicies", policy), ("validatingadmissionpolicybindings", binding)] {
        let path = format!("/apis/admissionregistration.k8s.io/v1/{plural}");
        assert_eq!(cluster.json("POST", &path, object).await.0, 201);
    }
    let path = format!("{pods}/p/ephemeralcontainers");
    for (image, expected) in [("evil/i", 403), ("good/i", 200)] {
        let patch = json!({"spec": {"ephemeralContainers": [{"name": "e", "image": image}]}});
        let (code, response) = cluster.request("PATCH", &path, PATCHES[1], patch).await;
        assert_eq!(code, expected, "{image}: {response}");
    }
}

/// CVE-2019-11254: the time to refuse YAML grows with its size, not faster.
#[test]
fn yaml_takes_time_in_proportion_to_its_size() {
    let shapes: [(&str, fn(usize) -> String); 6] = [
        ("flow openers", |size| "[".repeat(size)),
        ("rows of sequences", |size| "- ".repeat(size / 2)),
        ("an unclosed quote", |size| format!("a: \"{}", "x\n".repeat(size / 2))),
        ("keys", |size| "? ".repeat(size / 2)),
        ("comments", |size| "#\n".repeat(size / 2)),
        ("anchors", |size| "&a ".repeat(size / 3)),
    ];
    let time = |text: &str| {
        let started = std::time::Instant::now();
        let _ = knarr_api::decode::untyped_yaml(text.as_bytes());
        started.elapsed()
    };
    for (name, shape) in shapes {
        let (small, large) = (shape(200_000), shape(3_200_000));
        let least = |text: &str| (0..3).map(|_| time(text)).min().unwrap_or_default();
        let (small, large) = (least(&small), least(&large));
        // Sixteen times the size: quadratic time would be 256 times as long.
        let bound = small * 64 + std::time::Duration::from_millis(200);
        assert!(large < bound, "{name}: {small:?}, then {large:?}");
    }
}

/// CVE-2022-1996: no origin is allowed to use a user's session.
#[tokio::test]
async fn no_foreign_origin_is_allowed() {
    use bytes::Bytes;
    use http_body_util::Full;
    let cluster = Cluster::new().await;
    for origin in ["https://evil.example", "null", "https://10.0.0.1:6443"] {
        for (method, path) in [("GET", MAPS), ("OPTIONS", MAPS), ("GET", "/version")] {
            let request = http::Request::builder()
                .method(method)
                .uri(path)
                .header("origin", origin)
                .header("access-control-request-method", "DELETE")
                .body(Full::new(Bytes::new()))
                .unwrap();
            let response = cluster.server().handle(request, &crate::request_tests::admin()).await;
            let allowed = response.headers().keys().find(|name| name.as_str().starts_with("access-control-"));
            assert_eq!(allowed, None, "{method} {path} from {origin}");
        }
    }
}

/// CVE-2021-29923: an address with leading zeros, which others read as octal, is refused.
#[tokio::test]
async fn addresses_with_leading_zeros_are_refused() {
    let cluster = Cluster::new().await;
    namespace(&cluster, "n", "privileged").await;
    for address in ["010.0.0.1", "10.0.0.08", "192.168.001.1"] {
        let policy = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "x"},
            "spec": {"podSelector": {}, "ingress": [{"from": [{"ipBlock": {"cidr": format!("{address}/32")}}]}]}});
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"},
            "spec": {"ports": [{"port": 80}], "externalIPs": [address]}});
        let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "x"},
            "addressType": "IPv4", "endpoints": [{"addresses": [address]}]});
        for (path, object) in [
            ("/apis/networking.k8s.io/v1/namespaces/n/networkpolicies", policy),
            ("/api/v1/namespaces/n/services", service),
            ("/apis/discovery.k8s.io/v1/namespaces/n/endpointslices", slice),
        ] {
            let (code, response) = cluster.json("POST", path, object).await;
            assert_eq!(code, 422, "{address} at {path}: {response}");
        }
    }
}

/// CVE-2024-0793: an autoscaler may leave out every optional block. (That its controller accepts them is tested there.)
#[tokio::test]
async fn autoscalers_without_optional_blocks_are_completed() {
    let cluster = Cluster::new().await;
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"});
    for (index, (version, more)) in [
        ("v1", json!({})),
        ("v1", json!({"targetCPUUtilizationPercentage": null})),
        ("v2", json!({})),
        ("v2", json!({"behavior": {}})),
        ("v2", json!({"behavior": {"scaleUp": null, "scaleDown": {}}})),
        ("v2", json!({"metrics": []})),
    ]
    .into_iter()
    .enumerate()
    {
        let mut spec = json!({"maxReplicas": 2, "scaleTargetRef": target});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let name = format!("h{index}");
        let object = json!({"apiVersion": format!("autoscaling/{version}"), "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": name}, "spec": spec});
        let path = |version: &str| format!("/apis/autoscaling/{version}/namespaces/default/horizontalpodautoscalers");
        let (code, response) = cluster.json("POST", &path(version), object).await;
        assert_eq!(code, 201, "{response}");
        for version in ["v1", "v2"] {
            let (code, response) = cluster.json("GET", &format!("{}/{name}", path(version)), Value::Null).await;
            assert_eq!(code, 200, "{response}");
        }
    }
}

/// CVE-2019-10223: metrics name no object and hold none of its content.
#[tokio::test]
async fn metrics_hold_nothing_of_objects() {
    use bytes::Bytes;
    use http_body_util::{BodyExt, Full};
    let cluster = Cluster::new().await;
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "stringData": {"a": "planted-value"},
        "metadata": {"name": "planted-name", "annotations": {"a": "planted-annotation"}, "labels": {"a": "planted-label"}}});
    assert_eq!(cluster.json("POST", "/api/v1/namespaces/default/secrets", secret).await.0, 201);
    assert_eq!(cluster.json("GET", "/api/v1/namespaces/default/secrets/planted-name", Value::Null).await.0, 200);
    for path in ["/metrics", "/metrics/slis"] {
        let request = http::Request::get(path).body(Full::new(Bytes::new())).unwrap();
        let response = cluster.server().handle(request, &crate::request_tests::admin()).await;
        assert_eq!(response.status(), 200, "{path}");
        let text = String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().into()).unwrap();
        assert!(!text.contains("planted"), "{path}: {text}");
    }
}

/// CVE-2018-18264: pages of the server are read with the rights of who asks.
#[tokio::test]
async fn pages_of_the_server_need_rights() {
    use bytes::Bytes;
    use http_body_util::Full;
    let cluster = Cluster::new().await;
    for (name, groups) in [("system:anonymous", "system:unauthenticated"), ("ann", "system:authenticated")] {
        let user = crate::request::User::named(name, &[groups]);
        let sender = crate::request::Sender::Trusted(std::sync::Arc::new(user));
        for path in ["/metrics", "/debug/pprof/", "/debug/api_priority_and_fairness/dump_requests", "/logs"] {
            let request = http::Request::get(path).body(Full::new(Bytes::new())).unwrap();
            let response = cluster.server().handle(request, &sender).await;
            assert_eq!(response.status(), 403, "{name} {path}");
        }
    }
}
