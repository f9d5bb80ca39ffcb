//! Requests of several users against a server with few seats.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};

use super::FairnessSettings;
use crate::request::{Sender, User};
use crate::request_tests::{Cluster, MAPS, admin, map};
use crate::response::Body;

fn user(name: &str) -> Sender {
    Sender::Trusted(Arc::new(User::named(name, &["system:authenticated"])))
}

async fn get(cluster: &Cluster, path: &str, sender: &Sender) -> Response<Body> {
    cluster.server().handle(Request::get(path).body(Full::new(Bytes::new())).unwrap(), sender).await
}

async fn text(response: Response<Body>) -> String {
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

/// A server with one seat for ordinary users, who may list config maps: more than fit into one chunk.
async fn cluster() -> Cluster {
    let cluster = Cluster::new().await;
    for index in 0..20 {
        let mut object = map(&format!("m{index:02}"), json!({}));
        object["data"] = json!({"long": "x".repeat(50_000)});
        assert_eq!(cluster.json("POST", MAPS, object).await.0, 201);
    }
    let binding = json!({
        "metadata": {"name": "all"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:authenticated"}],
    });
    let path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    assert_eq!(cluster.json("POST", path, binding).await.0, 201);
    let settings = FairnessSettings { enabled: true, max_reads: 1, max_writes: 0 };
    let server = cluster.server();
    server.backend.fairness.configure(settings, &*server.backend.objects);
    cluster
}

#[tokio::test]
async fn a_request_that_finds_no_seat_in_time_is_refused() {
    let cluster = cluster().await;
    let (ann, bob) = (user("ann"), user("bob"));
    let list = get(&cluster, MAPS, &ann).await;
    assert_eq!(list.status(), 200);
    // Nobody reads the list: it keeps the seat.
    let refused = get(&cluster, "/version?timeout=400ms", &bob).await;
    assert_eq!((refused.status().as_u16(), refused.headers()["retry-after"].to_str().unwrap()), (429, "1"));
    for header in ["x-kubernetes-pf-flowschema-uid", "x-kubernetes-pf-prioritylevel-uid"] {
        assert!(!refused.headers()[header].is_empty(), "{header}");
    }
    assert_eq!(text(refused).await, "Too many requests, please try again later.\n");
    assert_eq!(get(&cluster, "/version", &admin()).await.status(), 200, "administrators are exempt");
    assert_eq!(get(&cluster, "/livez", &bob).await.status(), 200, "probes are exempt");
    let page = text(get(&cluster, "/metrics", &admin()).await).await;
    let labels = "flow_schema=\"global-default\",priority_level=\"global-default\"";
    for line in [
        format!("apiserver_flowcontrol_rejected_requests_total{{{labels},reason=\"time-out\"}} 1"),
        format!("apiserver_flowcontrol_current_executing_requests{{{labels}}} 1"),
        format!("apiserver_flowcontrol_dispatched_requests_total{{{labels}}} 1"),
        "apiserver_flowcontrol_nominal_limit_seats{priority_level=\"global-default\"} 1".to_owned(),
        format!("apiserver_flowcontrol_request_wait_duration_seconds_count{{{labels},execute=\"false\"}} 1"),
    ] {
        assert!(page.lines().any(|own| own == line), "{line} in {page}");
    }
    drop(list);
    assert_eq!(get(&cluster, "/version?timeout=400ms", &bob).await.status(), 200);
}

#[tokio::test]
async fn a_request_that_waits_starts_when_the_response_before_it_was_read() {
    let cluster = cluster().await;
    let (ann, bob) = (user("ann"), user("bob"));
    let list = get(&cluster, MAPS, &ann).await;
    assert_eq!(list.status(), 200);
    let mut waiting = Box::pin(get(&cluster, "/version", &bob));
    assert!(futures::poll!(&mut waiting).is_pending());
    let levels = text(get(&cluster, "/debug/api_priority_and_fairness/dump_priority_levels", &admin()).await).await;
    let row = levels.lines().find(|line| line.starts_with("global-default,")).unwrap();
    let cells: Vec<&str> = row.split(',').map(str::trim).collect();
    assert_eq!(cells, ["global-default", "1", "false", "false", "1", "1", "1", "0", "0", "0"], "{levels}");
    let requests =
        text(get(&cluster, "/debug/api_priority_and_fairness/dump_requests?includeRequestDetails=1", &admin()).await);
    let requests = requests.await;
    let row = requests.lines().find(|line| line.contains("/version")).unwrap();
    assert!(row.contains("bob") && row.contains("0001-01-01T00:00:00Z"), "{requests}");
    let queues = text(get(&cluster, "/debug/api_priority_and_fairness/dump_queues", &admin()).await).await;
    assert!(queues.lines().count() > 128, "{queues}");
    assert_eq!(get(&cluster, "/debug/api_priority_and_fairness/other", &admin()).await.status(), 404);
    let body = list.into_body().collect().await.unwrap().to_bytes();
    assert!(body.len() > 1_000_000);
    assert_eq!(waiting.await.status(), 200);
}

#[tokio::test]
async fn a_watch_occupies_its_seats_until_its_objects_are_sent() {
    let cluster = cluster().await;
    let (ann, bob) = (user("ann"), user("bob"));
    let mut watch = get(&cluster, &format!("{MAPS}?watch=true"), &ann).await.into_body();
    let lines = |chunk: Bytes| chunk.iter().filter(|byte| **byte == b'\n').count();
    let mut seen = lines(watch.frame().await.unwrap().unwrap().into_data().unwrap());
    assert_eq!(get(&cluster, "/version?timeout=400ms", &bob).await.status(), 429);
    while seen < 20 {
        seen += lines(watch.frame().await.unwrap().unwrap().into_data().unwrap());
    }
    // The watch goes on without seats once it waits for changes.
    assert!(tokio::time::timeout(Duration::from_millis(50), watch.frame()).await.is_err());
    assert_eq!(get(&cluster, "/version?timeout=400ms", &bob).await.status(), 200);
    let mut object = cluster.json("GET", &format!("{MAPS}/m00"), Value::Null).await.1;
    object["data"] = json!({"short": "y"});
    assert_eq!(cluster.json("PUT", &format!("{MAPS}/m00"), object).await.0, 200);
    let change = watch.frame().await.unwrap().unwrap().into_data().unwrap();
    assert!(change.starts_with(b"{\"type\":\"MODIFIED\""));
}

#[tokio::test]
async fn without_fairness_there_are_two_limits() {
    let cluster = cluster().await;
    let server = cluster.server();
    let settings = FairnessSettings { enabled: false, max_reads: 1, max_writes: 1 };
    server.backend.fairness.configure(settings, &*server.backend.objects);
    let (ann, bob) = (user("ann"), user("bob"));
    let list = get(&cluster, MAPS, &ann).await;
    assert_eq!(list.status(), 200);
    let refused = get(&cluster, "/version", &bob).await;
    assert_eq!(refused.status(), 429);
    assert!(!refused.headers().contains_key("x-kubernetes-pf-flowschema-uid"));
    assert_eq!(get(&cluster, "/version", &admin()).await.status(), 200);
    assert_eq!(get(&cluster, &format!("{MAPS}?watch=true"), &bob).await.status(), 200, "watches are not limited");
    drop(list);
    assert_eq!(get(&cluster, "/version", &bob).await.status(), 200);
}
