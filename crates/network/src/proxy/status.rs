//! Health and metrics of the proxy: `/healthz` and `/livez` for load balancers and probes, `/metrics` for collectors, and what
//! `debug` has for people, with the names and ports of kube-proxy.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use k8s_openapi::jiff::Timestamp;
use knarr_metrics::Indicators;
use parking_lot::Mutex;
use tokio::net::TcpListener;

use super::Settings;
use super::debug::DebugPages;
use super::http::{self, HttpRequest, HttpResponse};
use super::metrics;

/// The proxy is unhealthy if a change is pending for longer than this.
const MAX_PENDING: Duration = Duration::from_secs(60);

/// Delay before listening is retried.
const LISTEN_RETRY: Duration = Duration::from_secs(5);

/// Addresses of the health and metrics servers, and what they show.
#[derive(Clone, Debug)]
pub struct StatusSettings {
    pub health: Option<SocketAddr>,
    pub metrics: Option<SocketAddr>,
    /// The flags of this process, without secrets.
    pub flags: BTreeMap<String, String>,
}

impl Default for StatusSettings {
    fn default() -> Self {
        Self {
            health: Some(SocketAddr::from(([0, 0, 0, 0], 10_256))),
            metrics: Some(SocketAddr::from(([127, 0, 0, 1], 10_249))),
            flags: BTreeMap::new(),
        }
    }
}

/// State of the proxy's syncs.
pub struct Status {
    state: Mutex<State>,
    indicators: Indicators,
}

struct State {
    /// When the oldest pending change was queued.
    waiting_since: Option<Instant>,
    last_sync: Option<SystemTime>,
    is_node_eligible: bool,
}

impl Status {
    pub fn new() -> Arc<Self> {
        metrics::register();
        Arc::new(Self {
            state: Mutex::new(State { waiting_since: None, last_sync: None, is_node_eligible: true }),
            indicators: Indicators::default(),
        })
    }

    pub fn service_changed(&self) {
        metrics::service_changed();
        self.queued();
    }

    pub fn endpoints_changed(&self) {
        metrics::endpoints_changed();
        self.queued();
    }

    fn queued(&self) {
        self.state.lock().waiting_since.get_or_insert_with(Instant::now);
        metrics::queued(SystemTime::now());
    }

    /// A node that is about to be removed should get no new connections from load balancers.
    pub fn set_node_eligible(&self, is_eligible: bool) {
        self.state.lock().is_node_eligible = is_eligible;
    }

    /// Records an applied transaction. `changed_at`: when its changes happened, according to the EndpointSlices.
    pub fn synced(&self, took: Duration, changed_at: &[SystemTime]) {
        let mut state = self.state.lock();
        let now = SystemTime::now();
        state.waiting_since = None;
        state.last_sync = Some(now);
        metrics::synced(now, took, changed_at);
    }

    pub fn failed(&self) {
        self.state.lock().waiting_since.get_or_insert_with(Instant::now);
        metrics::failed();
    }

    /// Paths that are served to the whole network, for load balancers and probes.
    fn public_response(&self, path: &str) -> HttpResponse {
        match path {
            "/healthz" => self.health(true),
            "/livez" => self.health(false),
            _ => HttpResponse::not_found(),
        }
    }

    /// Paths that are served to this host.
    fn local_response(&self, path: &str) -> HttpResponse {
        match path {
            "/metrics" => HttpResponse {
                status: "200 OK",
                content_type: "text/plain; version=0.0.4; charset=utf-8",
                headers: String::new(),
                body: metrics_page(),
            },
            "/metrics/slis" => HttpResponse {
                status: "200 OK",
                content_type: "text/plain; version=0.0.4; charset=utf-8",
                headers: String::new(),
                body: self.indicators.page(),
            },
            _ => self.public_response(path),
        }
    }

    /// Whether changes reach the kernel.
    pub fn is_syncing(&self) -> bool {
        self.state.lock().is_syncing()
    }

    fn health(&self, counts_node: bool) -> HttpResponse {
        let state = self.state.lock();
        let is_well = state.is_syncing() && (state.is_node_eligible || !counts_node);
        self.indicators.record("proxy", if counts_node { "healthz" } else { "livez" }, is_well);
        let now = SystemTime::now();
        // While nothing is pending, the kernel is up to date as of now.
        let updated = if state.waiting_since.is_none() { now } else { state.last_sync.unwrap_or(UNIX_EPOCH) };
        let text = |time: SystemTime| Timestamp::try_from(time).unwrap_or_default().to_string();
        let mut body = serde_json::json!({"lastUpdated": text(updated), "currentTime": text(now)});
        if counts_node {
            body["nodeEligible"] = state.is_node_eligible.into();
        }
        HttpResponse {
            status: if is_well { "200 OK" } else { "503 Service Unavailable" },
            content_type: "application/json",
            headers: String::new(),
            body: body.to_string(),
        }
    }
}

impl State {
    fn is_syncing(&self) -> bool {
        self.waiting_since.is_none_or(|since| since.elapsed() <= MAX_PENDING)
    }
}

fn metrics_page() -> String {
    let mut page = String::new();
    knarr_metrics::write_registered(&mut page);
    knarr_metrics::write_process(knarr_version::reported(), &knarr_version::platform(), &mut page);
    knarr_metrics::write_totals(&mut page);
    page
}

/// Serves until dropped.
pub async fn serve(settings: &Settings, status: Arc<Status>) {
    let (public, local) = (Arc::clone(&status), status);
    let pages = Arc::new(DebugPages::new(settings));
    tokio::join!(
        listen(settings.status.health, move |request| public.public_response(request.path)),
        listen(settings.status.metrics, move |request| {
            pages.response(request).unwrap_or_else(|| local.local_response(request.path))
        }),
    );
}

async fn listen(
    address: Option<SocketAddr>,
    handler: impl Fn(&HttpRequest<'_>) -> HttpResponse + Clone + Send + Sync + 'static,
) {
    let Some(address) = address else { return };
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => http::serve(listener, handler.clone()).await,
            Err(error) => tracing::error!(%address, %error, "cannot serve the proxy's status"),
        }
        tokio::time::sleep(LISTEN_RETRY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_reflects_the_node_and_pending_changes() {
        let status = Status::new();
        assert!(status.local_response("/healthz").status.starts_with("200"));
        status.set_node_eligible(false);
        assert!(status.local_response("/healthz").status.starts_with("503"), "a node that goes");
        assert!(status.local_response("/livez").status.starts_with("200"), "the proxy itself is well");
        status.set_node_eligible(true);
        status.state.lock().waiting_since = Instant::now().checked_sub(MAX_PENDING * 2);
        assert!(status.local_response("/livez").status.starts_with("503"), "a change waits too long");
        status.synced(Duration::from_millis(3), &[SystemTime::now()]);
        assert!(status.local_response("/livez").status.starts_with("200"));
        assert!(status.local_response("/").status.starts_with("404"));
        assert!(status.public_response("/metrics").status.starts_with("404"), "not for all the network");
    }

    /// The value of a series on the page of this process, which other tests add to.
    fn value(page: &str, series: &str) -> f64 {
        let line = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.map_or(0.0, |value| value.parse().unwrap())
    }

    #[test]
    fn pages_of_the_process_count_syncs() {
        let status = Status::new();
        let page = || {
            let mut page = String::new();
            knarr_metrics::write_registered(&mut page);
            page
        };
        let before = page();
        status.service_changed();
        status.synced(Duration::from_millis(3), &[SystemTime::now()]);
        let after = page();
        for series in [
            "kubeproxy_sync_proxy_rules_duration_seconds_bucket{ip_family=\"IPv4\",le=\"0.004\"}",
            "kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}",
            "kubeproxy_network_programming_duration_seconds_count{ip_family=\"IPv4\"}",
            "kubeproxy_sync_proxy_rules_service_changes_total",
        ] {
            assert!(value(&after, series) > value(&before, series), "{series} in {after}");
        }
        assert!(value(&after, "kubeproxy_sync_proxy_rules_last_timestamp_seconds") > 0.0);
        let own = status.local_response("/metrics").body;
        assert!(own.contains("\nkubeproxy_sync_proxy_rules_service_changes_total "), "{own}");
        status.local_response("/healthz");
        let indicators = status.local_response("/metrics/slis").body;
        assert!(indicators.contains("kubernetes_healthcheck{name=\"proxy\",type=\"healthz\"} 1\n"), "{indicators}");
    }
}
