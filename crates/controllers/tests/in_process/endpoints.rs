//! Endpoints and EndpointSlices of Services, through readiness, ports, termination and mirroring.

use serde_json::{Value, json};

use super::support::kubelet::{Kubelet, Outcome};
use super::support::{Cluster, name_of, text};

/// Slices of a deleted Service are garbage.
const CONTROLLERS: &[&str] = &[
    "endpoints-controller",
    "endpointslice-controller",
    "endpointslice-mirroring-controller",
    "garbage-collector-controller",
];

fn service(more: Value) -> Value {
    let mut spec = json!({"selector": {"app": "web"}, "ports": [{"name": "http", "port": 80, "targetPort": "web"}]});
    for (key, value) in more.as_object().expect("fields") {
        spec[key] = value.clone();
    }
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": spec})
}

fn pod(name: &str, port: u16) -> Value {
    let ports = json!([{"name": "web", "containerPort": port}]);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "c", "image": "image:1", "ports": ports}]}})
}

/// A cluster with the node that pods are bound to: endpoints of unknown nodes are left out.
async fn started(settings: knarr_controllers::Settings) -> Cluster {
    let cluster = Cluster::with_settings(CONTROLLERS, settings).await;
    cluster.create(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}})).await;
    cluster
}

/// The slices of the tested Service: the API server has one of its own.
fn own(slices: &[Value]) -> impl Iterator<Item = &Value> {
    slices.iter().filter(|slice| slice["metadata"]["labels"]["kubernetes.io/service-name"] == "web")
}

/// The ready pods and ports of all slices.
fn in_slices(slices: &[Value]) -> Vec<(String, u64)> {
    let mut found = Vec::new();
    for slice in own(slices) {
        let port = slice["ports"][0]["port"].as_u64().unwrap_or_default();
        for endpoint in slice["endpoints"].as_array().into_iter().flatten() {
            if endpoint["conditions"]["ready"] == true {
                found.push((text(&endpoint["targetRef"]["name"]).to_owned(), port));
            }
        }
    }
    found.sort();
    found
}

/// The ready and the other pods of Endpoints, with their ports.
fn in_endpoints(endpoints: &Value) -> Vec<(String, u64, bool)> {
    let mut found = Vec::new();
    for subset in endpoints["subsets"].as_array().into_iter().flatten() {
        let port = subset["ports"][0]["port"].as_u64().unwrap_or_default();
        for (list, ready) in [("addresses", true), ("notReadyAddresses", false)] {
            for address in subset[list].as_array().into_iter().flatten() {
                found.push((text(&address["targetRef"]["name"]).to_owned(), port, ready));
            }
        }
    }
    found.sort();
    found
}

#[tokio::test(start_paused = true)]
async fn ready_pods_are_endpoints_with_the_port_that_they_name() {
    let cluster = started(Default::default()).await;
    cluster.set_kubelet(Kubelet::deciding(|pod| if name_of(pod) == "c" { Outcome::Running } else { Outcome::Ready }));
    cluster.create(service(json!({}))).await;
    for (name, port) in [("a", 8080), ("b", 9090), ("c", 8080)] {
        cluster.create(pod(name, port)).await;
    }
    let ready = [("a".to_owned(), 8080), ("b".to_owned(), 9090)];
    cluster.until_list("EndpointSlice", |slices| in_slices(slices) == ready).await;
    let expected = [("a".to_owned(), 8080, true), ("b".to_owned(), 9090, true), ("c".to_owned(), 8080, false)];
    cluster.until("Endpoints", "web", |endpoints| in_endpoints(endpoints) == expected).await;
    cluster.set_kubelet(Kubelet::ready());
    cluster.until_list("EndpointSlice", |slices| in_slices(slices).len() == 3).await;
    cluster.patch("Pod", "b", json!({"metadata": {"labels": {"app": "debug"}}})).await;
    let ready = [("a".to_owned(), 8080), ("c".to_owned(), 8080)];
    cluster.until_list("EndpointSlice", |slices| in_slices(slices) == ready).await;
    cluster.delete("Service", "web", "Background").await;
    cluster.until_list("EndpointSlice", |slices| own(slices).next().is_none()).await;
    cluster.until_list("Endpoints", |all| !all.iter().any(|each| name_of(each) == "web")).await;
}

#[tokio::test(start_paused = true)]
async fn a_terminating_pod_is_serving_but_not_ready() {
    let cluster = started(Default::default()).await;
    cluster.create(service(json!({}))).await;
    cluster.create(pod("a", 8080)).await;
    cluster.until_list("EndpointSlice", |slices| in_slices(slices).len() == 1).await;
    cluster.set_kubelet(Kubelet::absent());
    cluster.delete("Pod", "a", "Background").await;
    let conditions = json!({"ready": false, "serving": true, "terminating": true});
    cluster
        .until_list("EndpointSlice", |slices| {
            own(slices).any(|slice| slice["endpoints"][0]["conditions"] == conditions)
        })
        .await;
    cluster.set_kubelet(Kubelet::ready());
    cluster
        .until_list("EndpointSlice", |slices| {
            own(slices).all(|slice| slice["endpoints"].as_array().is_none_or(Vec::is_empty))
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn pods_that_are_not_ready_are_published_if_the_service_says_so() {
    let cluster = started(Default::default()).await;
    cluster.set_kubelet(Kubelet::deciding(|_| Outcome::Running));
    cluster.create(service(json!({"publishNotReadyAddresses": true, "clusterIP": "None"}))).await;
    cluster.create(pod("a", 8080)).await;
    cluster.until_list("EndpointSlice", |slices| in_slices(slices) == [("a".to_owned(), 8080)]).await;
    cluster.until("Endpoints", "web", |endpoints| in_endpoints(endpoints) == [("a".to_owned(), 8080, true)]).await;
}

#[tokio::test(start_paused = true)]
async fn more_endpoints_than_fit_into_a_slice_are_split_and_merged() {
    let mut settings = knarr_controllers::Settings::default();
    settings.endpoints.max_per_slice = 3;
    let cluster = started(settings).await;
    cluster.create(service(json!({}))).await;
    for number in 0..8 {
        cluster.create(pod(&format!("p{number}"), 8080)).await;
    }
    let slices = cluster.until_list("EndpointSlice", |slices| in_slices(slices).len() == 8).await;
    assert!(own(&slices).all(|slice| slice["endpoints"].as_array().is_none_or(|all| all.len() <= 3)), "{slices:?}");
    for number in 1..8 {
        cluster.delete("Pod", &format!("p{number}"), "Background").await;
    }
    cluster.until_list("EndpointSlice", |slices| in_slices(slices) == [("p0".to_owned(), 8080)]).await;
}

#[tokio::test(start_paused = true)]
async fn endpoints_of_users_are_mirrored() {
    let cluster = started(Default::default()).await;
    let without_selector = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
        "spec": {"ports": [{"port": 80}]}});
    cluster.create(without_selector).await;
    let endpoints = |address: &str| json!({"subsets": [{"addresses": [{"ip": address}], "ports": [{"port": 80}]}]});
    let mut object = endpoints("192.0.2.7");
    object["apiVersion"] = "v1".into();
    object["kind"] = "Endpoints".into();
    object["metadata"] = json!({"name": "web"});
    cluster.create(object).await;
    let has = |address: &'static str| {
        move |slices: &[Value]| own(slices).any(|slice| slice["endpoints"][0]["addresses"][0] == address)
    };
    cluster.until_list("EndpointSlice", has("192.0.2.7")).await;
    cluster.patch("Endpoints", "web", endpoints("192.0.2.8")).await;
    cluster.until_list("EndpointSlice", has("192.0.2.8")).await;
    cluster.delete("Endpoints", "web", "Background").await;
    cluster.until_list("EndpointSlice", |slices| own(slices).next().is_none()).await;
}
