//! Pods with devices: from the template of a claim over its allocation to the binding, and back.

use serde_json::{Value, json};

use super::support::Plane;

const PODS: &str = "/api/v1/namespaces/default/pods";
const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";
const FINALIZER: &str = "resource.kubernetes.io/delete-protection";

/// Two nodes, and a class of all devices of a driver.
async fn plane() -> Plane {
    let plane = Plane::start().await;
    for name in ["one", "two"] {
        let status = json!({"allocatable": {"cpu": "4", "memory": "4Gi", "pods": "10"},
            "capacity": {"cpu": "4", "memory": "4Gi", "pods": "10"}});
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status});
        plane.create("/api/v1/nodes", node).await;
        plane.patch(&format!("/api/v1/nodes/{name}/status"), json!({"status": status})).await;
        // Admission taints new nodes as not ready; no node lifecycle controller runs here.
        plane.patch(&format!("/api/v1/nodes/{name}"), json!({"spec": {"taints": null}})).await;
    }
    let selectors = json!([{"cel": {"expression": "device.driver == 'gpu.example.com'"}}]);
    let class = json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu"},
        "spec": {"selectors": selectors, "extendedResourceName": "example.com/gpu"}});
    plane.create("/apis/resource.k8s.io/v1/deviceclasses", class).await;
    let spec = json!({"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}});
    let template = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "one-gpu"},
        "spec": {"spec": spec}});
    plane.create("/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates", template).await;
    plane
}

async fn add_slice(plane: &Plane, devices: Value) {
    let pool = json!({"name": "two", "generation": 1, "resourceSliceCount": 1});
    let spec = json!({"driver": "gpu.example.com", "nodeName": "two", "pool": pool, "devices": devices});
    let slice =
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "two"}, "spec": spec});
    plane.create(SLICES, slice).await;
}

async fn add_pod(plane: &Plane, name: &str) {
    let container = json!({"name": "c", "image": "image:1", "resources": {"claims": [{"name": "gpu"}]}});
    let spec =
        json!({"containers": [container], "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]});
    plane.create(PODS, json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})).await;
}

fn is_bound(pod: &Value) -> bool {
    pod["spec"]["nodeName"] == "two"
}

fn waits_with(pod: &Value, text: &str) -> bool {
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    let mut messages = conditions.filter_map(|condition| condition["message"].as_str());
    messages.any(|message| message.contains(text))
}

/// The claim that was made for a pod.
async fn claim_of(plane: &Plane, pod: &str) -> Value {
    let is_own = |claim: &Value| claim["metadata"]["ownerReferences"][0]["name"] == pod;
    let claims = plane.until(CLAIMS, |list| list["items"].as_array().is_some_and(|all| all.iter().any(is_own))).await;
    claims["items"].as_array().into_iter().flatten().find(|claim| is_own(claim)).cloned().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_gets_the_devices_of_its_template() {
    let plane = plane().await;
    add_pod(&plane, "first").await;
    let text = "0/2 nodes are available: 2 cannot allocate all claims. still not schedulable, preemption: ";
    plane.until(&format!("{PODS}/first"), |pod| waits_with(pod, text)).await;
    // The driver starts: the pod is tried again.
    add_slice(&plane, json!([{"name": "a"}])).await;
    let pod = plane.until(&format!("{PODS}/first"), is_bound).await;
    let claim = claim_of(&plane, "first").await;
    assert_eq!(claim["metadata"]["finalizers"], json!([FINALIZER]));
    let status = &claim["status"];
    let result = json!({"request": "r", "driver": "gpu.example.com", "pool": "two", "device": "a"});
    assert_eq!(status["allocation"]["devices"]["results"], json!([result]));
    let field = &status["allocation"]["nodeSelector"]["nodeSelectorTerms"][0]["matchFields"][0];
    assert_eq!(field["values"], json!(["two"]));
    assert!(status["allocation"]["allocationTimestamp"].is_string());
    let user = json!({"resource": "pods", "name": "first", "uid": pod["metadata"]["uid"]});
    assert_eq!(status["reservedFor"], json!([user]));
    // The only device is in use until its pod is gone and the claim with it.
    add_pod(&plane, "second").await;
    plane.until(&format!("{PODS}/second"), |pod| waits_with(pod, "cannot allocate all claims")).await;
    let now = json!({"gracePeriodSeconds": 0});
    let (code, _) = plane.request("DELETE", &format!("{PODS}/first"), &now).await;
    assert_eq!(code, 200);
    plane.until(&format!("{PODS}/second"), is_bound).await;
    let claim = claim_of(&plane, "second").await;
    assert_eq!(claim["status"]["allocation"]["devices"]["results"][0]["device"], "a");
}

#[tokio::test(flavor = "multi_thread")]
async fn extended_resources_are_satisfied_by_devices() {
    let plane = plane().await;
    add_slice(&plane, json!([{"name": "a"}])).await;
    let resources = json!({"requests": {"example.com/gpu": "1"}, "limits": {"example.com/gpu": "1"}});
    let spec = json!({"containers": [{"name": "c", "image": "image:1", "resources": resources}]});
    plane.create(PODS, json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec})).await;
    let pod = plane.until(&format!("{PODS}/p"), is_bound).await;
    let claim = claim_of(&plane, "p").await;
    assert_eq!(claim["metadata"]["annotations"]["resource.kubernetes.io/extended-resource-claim"], "true");
    assert_eq!(claim["status"]["allocation"]["devices"]["results"][0]["device"], "a");
    assert_eq!(claim["status"]["reservedFor"][0]["uid"], pod["metadata"]["uid"]);
    let mapping =
        json!({"containerName": "c", "resourceName": "example.com/gpu", "requestName": "container-0-request-0"});
    let expected = json!({"resourceClaimName": claim["metadata"]["name"], "requestMappings": [mapping]});
    assert_eq!(pod["status"]["extendedResourceClaimStatus"], expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_wait_until_their_device_is_attached() {
    let plane = plane().await;
    let device = json!({"name": "a", "bindsToNode": true, "bindingConditions": ["Attached"], "bindingFailureConditions": ["Lost"]});
    add_slice(&plane, json!([device])).await;
    add_pod(&plane, "p").await;
    let events = "/apis/events.k8s.io/v1/namespaces/default/events";
    let is_pending = |event: &Value| event["reason"] == "BindingConditionsPending";
    plane.until(events, |list| list["items"].as_array().is_some_and(|all| all.iter().any(is_pending))).await;
    let claim = claim_of(&plane, "p").await;
    let pod = plane.until(&format!("{PODS}/p"), |_| true).await;
    assert!(!is_bound(&pod), "{pod}");
    let condition = json!({"type": "Attached", "status": "True", "reason": "Done", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let status = json!({"driver": "gpu.example.com", "pool": "two", "device": "a", "conditions": [condition]});
    let name = claim["metadata"]["name"].as_str().unwrap_or_default();
    plane.patch(&format!("{CLAIMS}/{name}/status"), json!({"status": {"devices": [status]}})).await;
    plane.until(&format!("{PODS}/p"), is_bound).await;
}
