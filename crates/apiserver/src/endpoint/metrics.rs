//! The server's metrics in Prometheus format.

use std::fmt::Write as _;

use http::Response;

use crate::response::{self, Body};
use crate::state::ApiServer;

/// Handles `/metrics`.
pub fn serve(server: &ApiServer) -> Response<Body> {
    let mut out = String::with_capacity(16 * 1024);
    let metrics = &server.telemetry.metrics;
    metrics.families().iter().for_each(|family| family.write(&mut out));
    let gauge = |out: &mut String, name: &str, help: &str| {
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} gauge");
    };
    let name = "apiserver_current_inflight_requests";
    gauge(&mut out, name, "[STABLE] The most requests in flight within the last second, by kind.");
    for (kind, value) in metrics.in_flight() {
        let _ = writeln!(out, "{name}{{request_kind={kind:?}}} {value}");
    }
    let name = "apiserver_storage_objects";
    gauge(&mut out, name, "[STABLE] How many objects are stored, by resource.");
    for resource in server.backend.kinds.load().all().filter(|resource| resource.is_stored_version()) {
        if let Some(storage) = resource.storage() {
            let count = server.backend.store.count(&storage.prefix);
            let _ = writeln!(out, "{name}{{resource={:?}}} {count}", resource.named().to_string());
        }
    }
    let name = "apiserver_storage_revision";
    gauge(&mut out, name, "The newest revision of the store.");
    let _ = writeln!(out, "{name} {}", server.backend.store.revision());
    server.backend.admission.write_metrics(&mut out);
    server.backend.fairness.write_metrics(&mut out);
    store(&mut out, server);
    knarr_supervisor::write_metrics(&server.telemetry.components, &mut out);
    knarr_metrics::write_registered(&mut out);
    knarr_metrics::write_process(knarr_version::reported(), &knarr_version::platform(), &mut out);
    knarr_metrics::write_totals(&mut out);
    response::with_type(200, "text/plain; version=0.0.4; charset=utf-8", Body::full(out))
}

/// The size of the store's data and its limit, by the names of Kubernetes and etcd.
fn store(out: &mut String, server: &ApiServer) {
    let status = server.backend.store.status();
    let mut gauge = |name: &str, help: &str, labels: &str, value: u64| {
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} gauge\n{name}{labels} {value}");
    };
    if let Some(bytes) = status.bytes {
        let help = "[STABLE] Size of all current objects in the store.";
        gauge("apiserver_storage_size_bytes", help, "{storage_cluster_id=\"etcd-0\"}", bytes);
    }
    if let Some(quota) = status.quota {
        gauge("etcd_server_quota_backend_bytes", "Size of the store beyond which creations are refused.", "", quota);
    }
    let help = "Whether the store refuses writes that need more space.";
    gauge("knarr_store_space_exceeded", help, "", u64::from(status.alarm.is_some()));
}

#[cfg(test)]
mod tests {
    use crate::request::Sender;
    use crate::request_tests::{Cluster, MAPS, admin};
    use http::Request;
    use http_body_util::{BodyExt, Empty};

    #[tokio::test]
    async fn invented_values_do_not_become_labels() {
        let cluster = Cluster::new().await;
        let send = async |method: &str, path: &str, sender: &Sender| {
            let request = Request::builder().method(method).uri(path).body(Empty::<bytes::Bytes>::new()).unwrap();
            cluster.server().handle(request, sender).await
        };
        let lines = async || {
            let page = send("GET", "/metrics", &admin()).await.into_body().collect().await.unwrap().to_bytes();
            let page = String::from_utf8(page.to_vec()).unwrap();
            page.lines().filter(|line| line.starts_with("apiserver_request_total")).map(str::to_owned).collect()
        };
        send("GET", MAPS, &admin()).await;
        send("GET", &format!("{MAPS}/m/made-up"), &Sender::Remote(None)).await;
        send("MADE-UP", "/", &Sender::Remote(None)).await;
        send("GET", "/apis/made-up/v1/things", &Sender::Remote(None)).await;
        lines().await;
        let before: Vec<String> = lines().await;
        assert!(before.iter().any(|line| line.contains("resource=\"configmaps\"")), "{before:?}");
        for number in 0..50 {
            for (method, path) in [
                ("GET", format!("/apis/group{number}/v{number}/things{number}/one/part{number}")),
                ("GET", format!("{MAPS}/m/part{number}")),
                ("GET", format!("/api/v{number}/pods")),
                ("GET", format!("/path{number}")),
            ] {
                send(method, &path, &Sender::Remote(None)).await;
            }
            // The method is the verb of what is no resource.
            for path in [format!("/api/v1/things{number}"), "/".to_owned()] {
                send(&format!("METHOD{number}"), &path, &Sender::Remote(None)).await;
            }
        }
        let after: Vec<String> = lines().await;
        // One more than before: a resource that does not exist, by a method that does not exist.
        assert!(after.len() <= before.len() + 5, "{after:#?}");
        assert!(!after.iter().any(|line| line.contains("49")), "{after:#?}");
    }
}
