//! The server's metrics in Prometheus format.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use http::Response;
use knarr_api::catalogue::Kind;
use parking_lot::Mutex;

use crate::request::Target;
use crate::response::{self, Body};
use crate::state::ApiServer;

/// Upper bounds of the duration histogram's buckets, in seconds.
const BUCKETS: [f64; 23] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0,
    45.0, 60.0,
];

/// Request metrics since the start or the last reset.
#[derive(Default)]
pub struct Metrics {
    requests: Mutex<BTreeMap<Labels, Series>>,
    running_reads: AtomicI64,
    running_writes: AtomicI64,
    watches: AtomicI64,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Labels {
    verb: &'static str,
    group: Box<str>,
    version: Box<str>,
    resource: Box<str>,
    subresource: Box<str>,
    scope: &'static str,
}

#[derive(Default)]
struct Series {
    codes: Vec<(u16, u64)>,
    /// By limit; those between the limit before and this one.
    buckets: [u64; BUCKETS.len()],
    count: u64,
    seconds: f64,
}

/// A request in flight.
pub struct InFlightRequest<'m> {
    metrics: &'m Metrics,
    labels: Labels,
    gauge: &'m AtomicI64,
}

impl Metrics {
    /// Counts a request as in flight. `kind` is the target's kind, if it exists.
    pub fn start_request(&self, target: &Target, kind: Option<&Kind>) -> InFlightRequest<'_> {
        let labels = Labels::of(target, kind);
        let gauge = match labels.verb {
            "WATCH" => &self.watches,
            "GET" | "LIST" => &self.running_reads,
            _ => &self.running_writes,
        };
        gauge.fetch_add(1, Ordering::Relaxed);
        InFlightRequest { metrics: self, labels, gauge }
    }
}

impl Metrics {
    /// Clears all counters except the number of requests in flight.
    pub fn reset(&self) {
        self.requests.lock().clear();
    }
}

impl InFlightRequest<'_> {
    /// Records the response.
    pub fn finish(self, code: u16, took: Duration) {
        let seconds = took.as_secs_f64();
        let mut requests = self.metrics.requests.lock();
        let series = match requests.get_mut(&self.labels) {
            Some(series) => series,
            None => requests.entry(self.labels.clone()).or_default(),
        };
        match series.codes.iter_mut().find(|(own, _)| *own == code) {
            Some((_, count)) => *count += 1,
            None => series.codes.push((code, 1)),
        }
        if let Some(bucket) = series.buckets.get_mut(BUCKETS.partition_point(|limit| *limit < seconds)) {
            *bucket += 1;
        }
        series.count += 1;
        series.seconds += seconds;
    }
}

impl Drop for InFlightRequest<'_> {
    fn drop(&mut self) {
        self.gauge.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Labels {
    /// Requests are not authenticated yet: arbitrary values of clients must not become labels, or they would fill the memory.
    fn of(target: &Target, kind: Option<&Kind>) -> Labels {
        let verb = match target.verb.as_str() {
            "get" => "GET",
            "list" => "LIST",
            "watch" => "WATCH",
            "create" | "post" => "POST",
            "update" | "put" => "PUT",
            "patch" => "PATCH",
            "delete" => "DELETE",
            "deletecollection" => "DELETECOLLECTION",
            _ => "other",
        };
        let scope = match (target.is_resource(), target.name.is_empty(), target.namespace.is_empty()) {
            (false, _, _) => "",
            (true, false, _) => "resource",
            (true, true, false) => "namespace",
            (true, true, true) => "cluster",
        };
        let of_kind = |read: fn(&Kind) -> &str| -> Box<str> { kind.map(read).unwrap_or_default().into() };
        let subresource = kind.and_then(|kind| kind.subresource(&target.subresource));
        Labels {
            verb,
            group: of_kind(|kind| &kind.group),
            version: of_kind(|kind| &kind.version),
            resource: of_kind(|kind| &kind.plural),
            subresource: subresource.map(|subresource| subresource.name.as_str()).unwrap_or_default().into(),
            scope,
        }
    }

    fn write(&self, out: &mut String) {
        let Labels { verb, group, version, resource, subresource, scope } = self;
        let _ = write!(
            out,
            "component=\"apiserver\",group={group:?},resource={resource:?},scope={scope:?},subresource={subresource:?},\
             verb={verb:?},version={version:?}"
        );
    }
}

/// Handles `/metrics`.
pub fn serve(server: &ApiServer) -> Response<Body> {
    let mut out = String::with_capacity(16 * 1024);
    let metrics = &server.telemetry.metrics;
    requests(&mut out, metrics);
    let gauge = |out: &mut String, name: &str, help: &str| {
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} gauge");
    };
    let name = "apiserver_current_inflight_requests";
    gauge(&mut out, name, "[STABLE] Requests in flight, by kind.");
    for (kind, value) in [("mutating", &metrics.running_writes), ("readOnly", &metrics.running_reads)] {
        let _ = writeln!(out, "{name}{{request_kind={kind:?}}} {}", value.load(Ordering::Relaxed));
    }
    let name = "apiserver_storage_objects";
    gauge(&mut out, name, "[STABLE] How many objects are stored, by resource.");
    for resource in server.kinds.load().all().filter(|resource| resource.is_stored_version()) {
        if let Some(storage) = resource.storage() {
            let count = server.store.count(&storage.prefix);
            let _ = writeln!(out, "{name}{{resource={:?}}} {count}", resource.named().to_string());
        }
    }
    let name = "apiserver_storage_revision";
    gauge(&mut out, name, "The newest revision of the store.");
    let _ = writeln!(out, "{name} {}", server.store.revision());
    server.admission.write_metrics(&mut out);
    server.fairness.write_metrics(&mut out);
    store(&mut out, server);
    knarr_supervisor::write_metrics(&server.telemetry.components, &mut out);
    knarr_metrics::write_registered(&mut out);
    knarr_metrics::write_process(knarr_version::KUBERNETES, &mut out);
    knarr_metrics::write_totals(&mut out);
    response::with_type(200, "text/plain; version=0.0.4; charset=utf-8", Body::full(out))
}

fn requests(out: &mut String, metrics: &Metrics) {
    let requests = metrics.requests.lock();
    out.push_str("# HELP apiserver_request_total [STABLE] Responses, by verb, resource and code.\n");
    out.push_str("# TYPE apiserver_request_total counter\n");
    for (labels, series) in requests.iter() {
        for (code, count) in &series.codes {
            let _ = write!(out, "apiserver_request_total{{code=\"{code}\",dry_run=\"\",");
            labels.write(out);
            let _ = writeln!(out, "}} {count}");
        }
    }
    // The indicator of the service level has the same buckets but the shortest two.
    for (name, level, skipped) in
        [("apiserver_request_duration_seconds", "STABLE", 0), ("apiserver_request_sli_duration_seconds", "ALPHA", 2)]
    {
        let help = "Time to respond, by verb and resource.";
        let _ = writeln!(out, "# HELP {name} [{level}] {help}\n# TYPE {name} histogram");
        let responded = requests.iter().filter(|(labels, _)| labels.verb != "WATCH");
        for (labels, series) in responded {
            let mut text = String::new();
            if skipped == 0 {
                text.push_str("dry_run=\"\",");
            }
            labels.write(&mut text);
            series.write(out, name, &text, skipped);
        }
    }
}

impl Series {
    fn write(&self, out: &mut String, name: &str, labels: &str, skipped: usize) {
        let mut total = 0;
        for (at, (limit, count)) in BUCKETS.iter().zip(&self.buckets).enumerate() {
            total += count;
            if at >= skipped {
                let _ = writeln!(out, "{name}_bucket{{{labels},le=\"{limit}\"}} {total}");
            }
        }
        let (count, seconds) = (self.count, self.seconds);
        let _ = writeln!(out, "{name}_bucket{{{labels},le=\"+Inf\"}} {count}");
        let _ = writeln!(out, "{name}_sum{{{labels}}} {seconds}\n{name}_count{{{labels}}} {count}");
    }
}

/// The size of the store's data and its limit, by the names of Kubernetes and etcd.
fn store(out: &mut String, server: &ApiServer) {
    let status = server.store.status();
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
            send(&format!("METHOD{number}"), &format!("/api/v1/things{number}"), &Sender::Remote(None)).await;
        }
        let after: Vec<String> = lines().await;
        // One more than before: a resource that does not exist, by a method that does not exist.
        assert!(after.len() <= before.len() + 5, "{after:#?}");
        assert!(!after.iter().any(|line| line.contains("49")), "{after:#?}");
    }
}
