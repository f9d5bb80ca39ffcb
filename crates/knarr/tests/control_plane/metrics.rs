//! The pages of metrics, health, flags and status of each component of a control plane, compared with Kubernetes'.

use http::Request;
use knarr_client::kube::Client;
use knarr_metrics::reference::differences;

use super::support::{ControlPlane, wait_for};

async fn get(client: &Client, path: &str) -> Result<String, String> {
    let request = Request::get(path).body(Vec::new()).expect("a request");
    client.request_text(request).await.map_err(|error| error.to_string())
}

/// A client of the endpoints of a component.
async fn endpoints(plane: &ControlPlane, port: u16) -> Client {
    let mut config = knarr_client::read_config(Some(&plane.kubeconfig()), "test").await.expect("a configuration");
    config.cluster_url = format!("https://127.0.0.1:{port}").parse().expect("an address");
    config.accept_invalid_certs = true;
    knarr_client::connect_with(config, "test").expect("a client")
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("an address").port()
}

#[tokio::test]
async fn every_component_has_the_metrics_and_pages_of_kubernetes() {
    let mut plane = ControlPlane::api_server();
    let (managers, schedulers) = (free_port(), free_port());
    plane.add_serving("controller-manager", managers);
    plane.add_serving("scheduler", schedulers);
    let api = plane.client().await;
    let (manager, scheduler) = (endpoints(&plane, managers).await, endpoints(&plane, schedulers).await);
    for (client, name) in [(&api, "API server"), (&manager, "controllers"), (&scheduler, "scheduler")] {
        let started = std::time::Instant::now();
        while let Err(error) = get(client, "/readyz").await {
            assert!(started.elapsed() < super::support::TIMEOUT, "the {name} is not ready: {error}");
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    }
    // Controllers have queues once they have something to do.
    let has_queues = || plane.kubectl(&["get", "serviceaccounts", "--all-namespaces", "-o", "name"]);
    wait_for("the controllers to work", || has_queues().is_ok_and(|names| names.contains("serviceaccount/default")));
    let cases = [
        (&api, "kube-apiserver", "/metrics"),
        (&api, "kube-apiserver", "/metrics/slis"),
        (&api, "etcd", "/metrics"),
        (&manager, "kube-controller-manager", "/metrics"),
        (&manager, "kube-controller-manager", "/metrics/slis"),
        (&scheduler, "kube-scheduler", "/metrics"),
        (&scheduler, "kube-scheduler", "/metrics/slis"),
        (&scheduler, "kube-scheduler", "/metrics/resources"),
    ];
    let mut all = Vec::new();
    for (client, component, path) in cases {
        let page = get(client, path).await.unwrap_or_else(|error| panic!("{component} {path}: {error}"));
        all.extend(differences(component, path, &page, &[]).into_iter().map(|text| format!("{component}: {text}")));
    }
    assert_eq!(all, Vec::<String>::new());
    let page = get(&api, "/metrics").await.expect("metrics");
    for local in ["v1.", "v1.apps"] {
        let available = format!("aggregator_unavailable_apiservice{{name=\"{local}\"}} 0\n");
        assert!(page.contains(&available), "{available}");
    }
    for (client, component) in
        [(&api, "apiserver"), (&manager, "kube-controller-manager"), (&scheduler, "kube-scheduler")]
    {
        let flags = get(client, "/flagz").await.expect("flags");
        assert!(
            flags.starts_with(&format!("\n{component} flagz\n")) && flags.lines().any(|line| line.contains('=')),
            "{flags}"
        );
        let status = get(client, "/statusz").await.expect("a status");
        assert!(status.starts_with(&format!("\n{component} statusz\n")) && status.contains("\nUp: 0 hr "), "{status}");
        let configuration = get(client, "/configz").await.expect("a configuration");
        assert!(serde_json::from_str::<serde_json::Value>(&configuration).is_ok_and(|value| value.is_object()));
    }
}
