//! The health endpoints `/healthz`, `/livez` and `/readyz`.

use http::Response;

use crate::response::{self, Body};
use crate::route::query::Query;
use crate::state::ApiServer;

/// A health check.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Check {
    Ping,
    Log,
    Certificate,
    Store,
    StoreReady,
    Informers,
    /// A step of the start, by Kubernetes' name of its check.
    Started(&'static str),
    Shutdown,
}

/// These pass once requests are classified. They promise no more: priority levels do not limit requests yet.
const PRIORITY_AND_FAIRNESS: &str = "poststarthook/priority-and-fairness-";

/// Steps of the start before the server is ready, in the order of reports.
const STARTED: [&str; 30] = [
    "poststarthook/start-apiserver-admission-initializer",
    "poststarthook/generic-apiserver-start-informers",
    "poststarthook/priority-and-fairness-config-consumer",
    "poststarthook/priority-and-fairness-filter",
    "poststarthook/storage-object-count-tracker-hook",
    "poststarthook/start-apiextensions-informers",
    "poststarthook/start-apiextensions-controllers",
    "poststarthook/crd-informer-synced",
    "poststarthook/start-system-namespaces-controller",
    "poststarthook/peer-endpoint-reconciler-controller",
    "poststarthook/start-cluster-authentication-info-controller",
    "poststarthook/start-kube-apiserver-identity-lease-controller",
    "poststarthook/start-kube-apiserver-identity-lease-garbage-collector",
    "poststarthook/storage-readiness",
    "poststarthook/start-legacy-token-tracking-controller",
    "poststarthook/start-service-ip-repair-controllers",
    "poststarthook/rbac/bootstrap-roles",
    "poststarthook/scheduling/bootstrap-system-priority-classes",
    "poststarthook/priority-and-fairness-config-producer",
    "poststarthook/bootstrap-controller",
    "poststarthook/start-kubernetes-service-cidr-controller",
    "poststarthook/start-kube-aggregator-informers",
    "poststarthook/apiservice-status-local-available-controller",
    "poststarthook/apiservice-status-remote-available-controller",
    "poststarthook/apiservice-registration-controller",
    "poststarthook/apiservice-discovery-controller",
    "poststarthook/kube-apiserver-autoregistration",
    "autoregister-completion",
    "poststarthook/apiservice-openapi-controller",
    "poststarthook/apiservice-openapiv3-controller",
];

impl Check {
    /// The checks of an endpoint, in order.
    fn of(endpoint: &str) -> Vec<Check> {
        let mut checks = vec![Check::Ping, Check::Log];
        if endpoint == "readyz" {
            checks.extend([Check::Store, Check::StoreReady, Check::Informers]);
        } else {
            checks.extend([Check::Certificate, Check::Store]);
        }
        checks.extend(STARTED.map(Check::Started));
        if endpoint == "readyz" {
            checks.push(Check::Shutdown);
        }
        checks
    }

    fn name(self) -> &'static str {
        match self {
            Check::Ping => "ping",
            Check::Log => "log",
            Check::Certificate => "loopback-serving-certificate",
            Check::Store => "etcd",
            Check::StoreReady => "etcd-readiness",
            Check::Informers => "informer-sync",
            Check::Started(name) => name,
            Check::Shutdown => "shutdown",
        }
    }

    async fn passes(self, server: &ApiServer, live: bool) -> bool {
        match self {
            Check::Ping | Check::Log | Check::Certificate => true,
            Check::Store | Check::StoreReady => server.store.sync().await.is_ok(),
            // A server that is still starting is live but not ready.
            Check::Started(name) if name.starts_with(PRIORITY_AND_FAIRNESS) && !live => {
                *server.ready.borrow() && server.fairness.is_loaded()
            }
            Check::Informers | Check::Started(_) => live || *server.ready.borrow(),
            Check::Shutdown => !*server.stopping.borrow(),
        }
    }
}

/// Handles `/healthz`, `/livez` and `/readyz` and their individual checks.
pub async fn serve(server: &ApiServer, parts: &[&str], query: &Query) -> Response<Body> {
    let endpoint = match parts[0] {
        "livez" => "livez",
        "readyz" => "readyz",
        _ => "healthz",
    };
    let live = endpoint == "livez";
    let checks = Check::of(endpoint);
    if parts.len() > 1 {
        let name = parts[1..].join("/");
        return match checks.iter().find(|check| check.name() == name) {
            None => response::page_not_found(),
            Some(check) if check.passes(server, live).await => response::text(200, "ok"),
            Some(_) => response::text(500, "internal server error: the check failed\n"),
        };
    }
    let excluded: Vec<&str> = query.all("exclude").collect();
    let mut lines = String::new();
    let mut failed = Vec::new();
    for check in &checks {
        let name = check.name();
        if excluded.contains(&name) {
            lines.push_str(&format!("[+]{name} excluded: ok\n"));
            continue;
        }
        let passed = check.passes(server, live).await;
        server.telemetry.health.record(name, endpoint, passed);
        if passed {
            lines.push_str(&format!("[+]{name} ok\n"));
        } else {
            failed.push(name);
            lines.push_str(&format!("[-]{name} failed: reason withheld\n"));
        }
    }
    for name in excluded.iter().filter(|name| checks.iter().all(|check| check.name() != **name)) {
        lines.push_str(&format!("warn: some health checks cannot be excluded: no matches for {name:?}\n"));
    }
    if !failed.is_empty() {
        return response::text(500, format!("{lines}{endpoint} check failed\n"));
    }
    if query.has("verbose") {
        response::text(200, format!("{lines}{endpoint} check passed\n"))
    } else {
        response::text(200, "ok")
    }
}
