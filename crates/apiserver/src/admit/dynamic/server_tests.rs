//! Tests of admission policies and webhooks on the whole server.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::outbound::test_server::TestServer;
use crate::request_tests::Cluster;

const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn map(name: &str, data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}

fn rule() -> Value {
    json!({"operations": ["CREATE", "UPDATE", "DELETE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]})
}

async fn make(cluster: &Cluster, path: &str, object: Value) -> Value {
    let (code, made) = cluster.request("POST", path, "application/json", object).await;
    assert_eq!(code, 201, "{made}");
    made
}

#[tokio::test]
async fn validating_policies_refuse_violations() {
    let cluster = Cluster::new().await;
    let policy = json!({"kind": "ValidatingAdmissionPolicy", "metadata": {"name": "p.example.com"}, "spec": {
        "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "matchConstraints": {"resourceRules": [rule()], "objectSelector": {"matchLabels": {"checked": "yes"}}},
        "matchConditions": [{"name": "not-mine", "expression": "request.userInfo.username != 'nobody'"}],
        "variables": [{"name": "limit", "expression": "int(params.data.limit)"}],
        "validations": [{
            "expression": "object == null || int(object.data.size) <= variables.limit",
            "messageExpression": "'too large: ' + object.data.size", "reason": "Forbidden",
        }, {"expression": "object == null || authorizer.requestResource.check('delete').allowed()"}],
    }});
    make(&cluster, &format!("{GROUP}/validatingadmissionpolicies"), policy).await;
    let binding = json!({"kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": "b.example.com"}, "spec": {
        "policyName": "p.example.com", "validationActions": ["Deny"],
        "paramRef": {"name": "limits", "namespace": "default", "parameterNotFoundAction": "Deny"},
    }});
    make(&cluster, &format!("{GROUP}/validatingadmissionpolicybindings"), binding).await;
    let checked = |name: &str, size: &str| {
        let mut object = map(name, json!({"size": size}));
        object["metadata"]["labels"] = json!({"checked": "yes"});
        object
    };
    let (code, refused) = cluster.request("POST", MAPS, "application/json", checked("a", "3")).await;
    assert_eq!(code, 422);
    let message = "configmaps \"a\" is forbidden: ValidatingAdmissionPolicy 'p.example.com' with binding 'b.example.com' \
                 denied request: failed to configure binding: no params found for policy binding with `Deny` \
                 parameterNotFoundAction";
    assert_eq!(refused["message"], message);
    make(&cluster, MAPS, map("limits", json!({"limit": "5"}))).await;
    make(&cluster, MAPS, checked("a", "3")).await;
    let (code, refused) = cluster.request("POST", MAPS, "application/json", checked("b", "9")).await;
    assert_eq!((code, &refused["reason"]), (403, &json!("Forbidden")));
    assert!(refused["message"].as_str().unwrap().ends_with("denied request: too large: 9"), "{refused}");
    make(&cluster, MAPS, map("unchecked", json!({"size": "9"}))).await;
    let (code, _) = cluster.request("DELETE", &format!("{MAPS}/a"), "application/json", Value::Null).await;
    assert_eq!(code, 200);
}

#[tokio::test]
async fn mutating_policies_change_objects() {
    let cluster = Cluster::new().await;
    let mut rule = rule();
    rule["operations"] = json!(["CREATE"]);
    let policy = |name: &str, mutation: Value, reinvocation: &str| {
        json!({"kind": "MutatingAdmissionPolicy", "metadata": {"name": name}, "spec": {
            "matchConstraints": {"resourceRules": [rule]}, "reinvocationPolicy": reinvocation,
            "matchConditions": [{"name": "small", "expression": "!has(object.data.skip)"}], "mutations": [mutation]}})
    };
    let apply = json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression":
        "Object{metadata: Object.metadata{labels: {'seen': has(object.metadata.annotations) ? 'late' : 'early'}}}"}});
    let patch = json!({"patchType": "JSONPatch", "jsonPatch": {"expression":
        "[JSONPatch{op: 'add', path: '/metadata/annotations', value: {'by': request.name}}]"}});
    for (name, mutation, reinvocation) in [("a", apply, "IfNeeded"), ("b", patch, "Never")] {
        make(&cluster, &format!("{GROUP}/mutatingadmissionpolicies"), policy(name, mutation, reinvocation)).await;
        let binding =
            json!({"kind": "MutatingAdmissionPolicyBinding", "metadata": {"name": name}, "spec": {"policyName": name}});
        make(&cluster, &format!("{GROUP}/mutatingadmissionpolicybindings"), binding).await;
    }
    let made = make(&cluster, MAPS, map("m", json!({"a": "1"}))).await;
    assert_eq!(made["metadata"]["annotations"], json!({"by": "m"}));
    assert_eq!(made["metadata"]["labels"], json!({"seen": "late"}), "reinvoked after the other policy changed it");
    let made = make(&cluster, MAPS, map("n", json!({"skip": "1"}))).await;
    assert_eq!(made["metadata"].get("labels"), None);
}

/// A webhook that refuses config maps named `bad`, patches those named `plain`, and always warns.
async fn webhook() -> TestServer {
    TestServer::start(|path, review| {
        let request = &review["request"];
        let mut response = json!({"uid": request["uid"], "allowed": true, "warnings": [format!("seen by {path}")]});
        let name = request["name"].as_str().unwrap_or_default();
        if name == "bad" {
            response["allowed"] = false.into();
            response["status"] = json!({"message": "bad name", "code": 418});
        }
        if path == "/mutate" && name == "plain" && request["operation"] == "CREATE" {
            let patch = json!([{"op": "add", "path": "/data/added", "value": request["userInfo"]["username"]}]);
            response["patch"] = STANDARD.encode(patch.to_string()).into();
            response["patchType"] = "JSONPatch".into();
        }
        json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": response})
    })
    .await
}

fn configuration(kind: &str, client: Value, more: Value) -> Value {
    let mut webhook = json!({
        "name": "w.example.com", "clientConfig": client, "rules": [rule()], "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    });
    for (field, value) in more.as_object().into_iter().flatten() {
        webhook[field] = value.clone();
    }
    json!({"kind": kind, "metadata": {"name": "c"}, "webhooks": [webhook]})
}

#[tokio::test]
async fn webhooks_change_and_refuse() {
    let cluster = Cluster::new().await;
    let server = webhook().await;
    let mutating = configuration("MutatingWebhookConfiguration", server.client_config("/mutate"), json!({}));
    make(&cluster, &format!("{GROUP}/mutatingwebhookconfigurations"), mutating).await;
    let validating = configuration(
        "ValidatingWebhookConfiguration",
        server.client_config("/validate"),
        json!({
            "matchConditions": [{"name": "named", "expression": "request.name != 'unseen'"}],
        }),
    );
    make(&cluster, &format!("{GROUP}/validatingwebhookconfigurations"), validating).await;
    let made = make(&cluster, MAPS, map("plain", json!({"a": "1"}))).await;
    assert!(made["data"]["added"].is_string(), "{made}");
    let (code, refused) = cluster.request("POST", MAPS, "application/json", map("bad", json!({}))).await;
    assert_eq!(code, 418);
    assert_eq!(refused["message"], "admission webhook \"w.example.com\" denied the request: bad name");
    let (code, _) =
        cluster.request("POST", &format!("{MAPS}?dryRun=All"), "application/json", map("dry", json!({}))).await;
    assert_eq!(code, 201);
}

#[tokio::test]
async fn failed_webhook_calls_refuse_or_allow_by_failure_policy() {
    let cluster = Cluster::new().await;
    let server = TestServer::start(|_, _| json!({"kind": "AdmissionReview"})).await;
    let path = format!("{GROUP}/validatingwebhookconfigurations");
    let closed = configuration("ValidatingWebhookConfiguration", server.client_config("/"), json!({}));
    make(&cluster, &path, closed).await;
    let (code, refused) = cluster.request("POST", MAPS, "application/json", map("m", json!({}))).await;
    assert_eq!(code, 500);
    let message = "Internal error occurred: failed calling webhook \"w.example.com\": received invalid webhook response: \
                 webhook response was absent";
    assert_eq!(refused["message"], message);
    cluster.request("DELETE", &format!("{path}/c"), "application/json", Value::Null).await;
    let mut elsewhere = server.client_config("/");
    elsewhere["caBundle"] = Value::Null;
    let untrusted = configuration("ValidatingWebhookConfiguration", elsewhere.clone(), json!({}));
    make(&cluster, &path, untrusted).await;
    let (code, refused) = cluster.request("POST", MAPS, "application/json", map("m", json!({}))).await;
    assert_eq!(code, 500);
    assert!(
        refused["message"].as_str().unwrap().contains("x509: certificate signed by unknown authority"),
        "{refused}"
    );
    cluster.request("DELETE", &format!("{path}/c"), "application/json", Value::Null).await;
    let open = configuration("ValidatingWebhookConfiguration", elsewhere, json!({"failurePolicy": "Ignore"}));
    make(&cluster, &path, open).await;
    make(&cluster, MAPS, map("m", json!({}))).await;
}

/// What changes while admission decides on its deletion is decided on again.
#[tokio::test(flavor = "multi_thread")]
async fn an_object_is_deleted_as_it_was_admitted() {
    let cluster = Cluster::new().await;
    let (arrived, mut arrivals) = tokio::sync::mpsc::unbounded_channel();
    let (proceed, blocked) = std::sync::mpsc::channel::<()>();
    let blocked = parking_lot::Mutex::new(blocked);
    let server = TestServer::start(move |_, review| {
        let request = &review["request"];
        let is_kept = request["oldObject"]["metadata"]["labels"]["keep"] == "yes";
        let _ = arrived.send(());
        // Until the other end is dropped.
        let _ = tokio::task::block_in_place(|| blocked.lock().recv());
        let response = json!({"uid": request["uid"], "allowed": !is_kept});
        json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": response})
    })
    .await;
    make(&cluster, MAPS, map("m", json!({}))).await;
    let mut rule = rule();
    rule["operations"] = json!(["DELETE"]);
    let configuration =
        configuration("ValidatingWebhookConfiguration", server.client_config("/"), json!({"rules": [rule]}));
    make(&cluster, &format!("{GROUP}/validatingwebhookconfigurations"), configuration).await;
    let path = format!("{MAPS}/m");
    let delete = cluster.request("DELETE", &path, "application/json", Value::Null);
    let label = async {
        arrivals.recv().await;
        let patch = json!({"metadata": {"labels": {"keep": "yes"}}});
        let (code, _) = cluster.request("PATCH", &path, "application/merge-patch+json", patch).await;
        drop(proceed);
        code
    };
    let ((deleted, refusal), labelled) = tokio::join!(delete, label);
    assert_eq!((labelled, deleted), (200, 400), "{refusal}");
    let (code, _) = cluster.request("GET", &path, "application/json", Value::Null).await;
    assert_eq!(code, 200);
}

#[tokio::test]
async fn custom_resources_are_converted_by_webhooks() {
    let cluster = Cluster::new().await;
    let server = TestServer::start(|_, review| {
        let request = &review["request"];
        let to = request["desiredAPIVersion"].as_str().unwrap_or_default().to_owned();
        let convert = |object: &Value| {
            let mut object = object.clone();
            object["apiVersion"] = to.as_str().into();
            if to.ends_with("v2") {
                let port = object["hostPort"].take();
                let (host, port) = port.as_str().unwrap_or_default().split_once(':').unwrap_or_default();
                (object["host"], object["port"]) = (host.into(), port.into());
                object.as_object_mut().unwrap().remove("hostPort");
            } else {
                let joined = format!("{}:{}", object["host"].as_str().unwrap(), object["port"].as_str().unwrap());
                object["hostPort"] = joined.into();
                object.as_object_mut().unwrap().retain(|key, _| key != "host" && key != "port");
            }
            object
        };
        let objects: Vec<Value> = request["objects"].as_array().into_iter().flatten().map(convert).collect();
        json!({"kind": "ConversionReview", "apiVersion": "apiextensions.k8s.io/v1", "response": {
            "uid": request["uid"], "result": {"status": "Success"}, "convertedObjects": objects}})
    })
    .await;
    let version = |name: &str, storage: bool, fields: &[&str]| {
        let properties: serde_json::Map<String, Value> =
            fields.iter().map(|field| ((*field).to_owned(), json!({"type": "string"}))).collect();
        json!({"name": name, "served": true, "storage": storage,
            "schema": {"openAPIV3Schema": {"type": "object", "properties": properties}}})
    };
    let definition = json!({"kind": "CustomResourceDefinition", "metadata": {"name": "ships.example.com"}, "spec": {
        "group": "example.com", "scope": "Namespaced",
        "names": {"plural": "ships", "singular": "ship", "kind": "Ship", "listKind": "ShipList"},
        "versions": [version("v1", true, &["hostPort"]), version("v2", false, &["host", "port"])],
        "conversion": {"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"],
            "clientConfig": server.client_config("/convert")}}}});
    make(&cluster, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition).await;
    let supervisor = knarr_supervisor::Supervisor::new(&cluster.server().telemetry.components);
    crate::background::run(cluster.server(), &supervisor);
    let ships = |version: &str| format!("/apis/example.com/{version}/namespaces/default/ships");
    let first = json!({"apiVersion": "example.com/v1", "kind": "Ship", "metadata": {"name": "a"}, "hostPort": "h:1"});
    loop {
        let (code, _) = cluster.request("POST", &ships("v1"), "application/json", first.clone()).await;
        match code {
            201 => break,
            404 => tokio::task::yield_now().await,
            other => panic!("{other}"),
        }
    }
    let (_, other) = cluster.request("GET", &format!("{}/a", ships("v2")), "application/json", Value::Null).await;
    assert_eq!((&other["host"], &other["port"], other.get("hostPort")), (&json!("h"), &json!("1"), None), "{other}");
    let second =
        json!({"apiVersion": "example.com/v2", "kind": "Ship", "metadata": {"name": "b"}, "host": "k", "port": "2"});
    let made = make(&cluster, &ships("v2"), second).await;
    assert_eq!((&made["host"], &made["apiVersion"]), (&json!("k"), &json!("example.com/v2")));
    let patch = json!({"port": "3"});
    let (code, patched) =
        cluster.request("PATCH", &format!("{}/b", ships("v2")), "application/merge-patch+json", patch).await;
    assert_eq!((code, &patched["port"]), (200, &json!("3")), "{patched}");
    let (_, list) = cluster.request("GET", &ships("v1"), "application/json", Value::Null).await;
    let all: Vec<&Value> = list["items"].as_array().unwrap().iter().map(|item| &item["hostPort"]).collect();
    assert_eq!(all, ["h:1", "k:3"]);
    supervisor.expect_stop();
    cluster.started.stop.send_replace(true);
    supervisor.finish().await;
}
