//! Health and metrics of the proxy: `/healthz` and `/livez` for load balancers and probes, `/metrics` for collectors, and what
//! `debug` has for people, with the names and ports of kube-proxy.

use std::collections::BTreeMap;
use std::fmt::Write;
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

/// The proxy is unhealthy if a change is pending for longer than this.
const MAX_PENDING: Duration = Duration::from_secs(60);
/// Upper bounds of a sync's duration, in seconds: each twice the one before.
const SYNC_BUCKETS: u32 = 15;
const FIRST_SYNC_BUCKET: f64 = 0.001;

/// Upper bounds of the time until a change is in the kernel: seconds up to a minute, then coarser up to five.
fn programming_bounds() -> Vec<f64> {
    let seconds = (1..=60).map(f64::from);
    let fives = (65..=120).step_by(5).map(f64::from);
    let halves = (150..=300).step_by(30).map(f64::from);
    [0.25, 0.5].into_iter().chain(seconds).chain(fives).chain(halves).collect()
}

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
    last_queued: Option<SystemTime>,
    is_node_eligible: bool,
    syncs: Histogram,
    programming: Histogram,
    failures: u64,
    service_changes: u64,
    endpoint_changes: u64,
}

impl Status {
    pub fn new() -> Arc<Self> {
        let sync_bounds = (0..SYNC_BUCKETS).map(|power| FIRST_SYNC_BUCKET * f64::from(1u32 << power)).collect();
        Arc::new(Self {
            state: Mutex::new(State {
                waiting_since: None,
                last_sync: None,
                last_queued: None,
                is_node_eligible: true,
                syncs: Histogram::new(sync_bounds),
                programming: Histogram::new(programming_bounds()),
                failures: 0,
                service_changes: 0,
                endpoint_changes: 0,
            }),
            indicators: Indicators::default(),
        })
    }

    pub fn service_changed(&self) {
        let mut state = self.state.lock();
        state.service_changes += 1;
        state.queued();
    }

    pub fn endpoints_changed(&self) {
        let mut state = self.state.lock();
        state.endpoint_changes += 1;
        state.queued();
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
        state.syncs.observe(took.as_secs_f64());
        for moment in changed_at {
            state.programming.observe(now.duration_since(*moment).unwrap_or_default().as_secs_f64());
        }
    }

    pub fn failed(&self) {
        let mut state = self.state.lock();
        state.failures += 1;
        state.waiting_since.get_or_insert_with(Instant::now);
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
                body: self.metrics(),
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

    fn metrics(&self) -> String {
        let mut page = self.state.lock().render();
        knarr_metrics::write_registered(&mut page);
        knarr_metrics::write_process(knarr_version::reported(), &knarr_version::platform(), &mut page);
        knarr_metrics::write_totals(&mut page);
        page
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

    fn queued(&mut self) {
        self.waiting_since.get_or_insert_with(Instant::now);
        self.last_queued = Some(SystemTime::now());
    }

    fn render(&self) -> String {
        let mut text = String::new();
        let seconds = |time: Option<SystemTime>| {
            time.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default().as_secs_f64()
        };
        self.syncs.render(&mut text, "kubeproxy_sync_proxy_rules_duration_seconds");
        self.programming.render(&mut text, "kubeproxy_network_programming_duration_seconds");
        let sync = "kubeproxy_sync_proxy_rules";
        for (name, kind, value) in [
            (format!("{sync}_last_timestamp_seconds"), "gauge", seconds(self.last_sync)),
            (format!("{sync}_last_queued_timestamp_seconds"), "gauge", seconds(self.last_queued)),
            (format!("{sync}_service_changes_total"), "counter", self.service_changes as f64),
            (format!("{sync}_endpoint_changes_total"), "counter", self.endpoint_changes as f64),
            (format!("{sync}_nftables_sync_failures_total"), "counter", self.failures as f64),
        ] {
            let _ = writeln!(text, "# TYPE {name} {kind}\n{name} {value}");
        }
        text
    }
}

struct Histogram {
    bounds: Vec<f64>,
    counts: Vec<u64>,
    total: u64,
    sum: f64,
}

impl Histogram {
    fn new(bounds: Vec<f64>) -> Self {
        Self { counts: vec![0; bounds.len()], bounds, total: 0, sum: 0.0 }
    }

    fn observe(&mut self, value: f64) {
        self.total += 1;
        self.sum += value;
        if let Some(bucket) = self.bounds.iter().position(|bound| value <= *bound) {
            self.counts[bucket] += 1;
        }
    }

    fn render(&self, text: &mut String, name: &str) {
        let _ = writeln!(text, "# TYPE {name} histogram");
        let mut below = 0;
        for (bound, count) in self.bounds.iter().zip(&self.counts) {
            below += count;
            let _ = writeln!(text, "{name}_bucket{{ip_family=\"IPv4\",le=\"{bound}\"}} {below}");
        }
        let (total, sum) = (self.total, self.sum);
        let family = "ip_family=\"IPv4\"";
        let _ = writeln!(text, "{name}_bucket{{{family},le=\"+Inf\"}} {total}");
        let _ = writeln!(text, "{name}_sum{{{family}}} {sum}\n{name}_count{{{family}}} {total}");
    }
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

    #[test]
    fn metrics_count_syncs() {
        let status = Status::new();
        status.service_changed();
        status.synced(Duration::from_millis(3), &[]);
        let text = status.local_response("/metrics").body;
        for line in [
            "kubeproxy_sync_proxy_rules_duration_seconds_bucket{ip_family=\"IPv4\",le=\"0.002\"} 0",
            "kubeproxy_sync_proxy_rules_duration_seconds_bucket{ip_family=\"IPv4\",le=\"0.004\"} 1",
            "kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"} 1",
            "kubeproxy_sync_proxy_rules_service_changes_total 1",
        ] {
            assert!(text.lines().any(|other| other == line), "{line} in {text}");
        }
        let differences = knarr_metrics::reference::differences("kube-proxy", "/metrics", &text, &[]);
        let own: Vec<&String> = differences.iter().filter(|text| text.contains("kubeproxy_")).collect();
        assert_eq!(own, Vec::<&String>::new());
        status.local_response("/healthz");
        let indicators = status.local_response("/metrics/slis").body;
        assert!(indicators.contains("kubernetes_healthcheck{name=\"proxy\",type=\"healthz\"} 1\n"), "{indicators}");
    }
}
