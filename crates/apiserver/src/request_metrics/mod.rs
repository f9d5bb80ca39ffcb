//! Metrics of requests: counts, durations, sizes of responses, and what is in flight.
//!
//! Requests are counted before they are authenticated. Arbitrary values of clients must not become labels, or they would
//! fill the memory: all label values come from the catalogue of kinds or from fixed sets.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use http::header::CONTENT_TYPE;
use http::request::Parts;
use knarr_metrics::{Counter, Family, Gauge, Histogram};
use knarr_traces::{Kind, Place, Span};
use parking_lot::Mutex;

use crate::kinds::Resource;
use crate::request::Target;
use crate::route::query::Query;

const DURATION_BOUNDS: &[f64] = &[
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0,
    45.0, 60.0,
];
const SIZE_BOUNDS: &[f64] = &[1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9];
/// The labels of most families, in the order of `Labels::values`.
const LABELS: &[&str] = &["component", "group", "resource", "scope", "subresource", "verb", "version"];

/// Request metrics since the start or the last reset.
pub struct Metrics {
    requests: Counter,
    durations: Histogram,
    /// Durations without what the server waited for webhooks and seats.
    service_level: Histogram,
    sizes: Histogram,
    terminations: Counter,
    deprecated: Gauge,
    reads: InFlight,
    writes: InFlight,
    started: Instant,
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics {
            requests: Counter::new(
                "apiserver_request_total",
                "[STABLE] Responses, by verb, resource and code.",
                &["code", "component", "dry_run", "group", "resource", "scope", "subresource", "verb", "version"],
            ),
            durations: Histogram::new(
                "apiserver_request_duration_seconds",
                "[STABLE] Time until the response is sent, by verb and resource.",
                &["component", "dry_run", "group", "resource", "scope", "subresource", "verb", "version"],
                DURATION_BOUNDS,
            ),
            service_level: Histogram::new(
                "apiserver_request_sli_duration_seconds",
                "[ALPHA] Time until the response is sent, without that of webhooks and in queues.",
                LABELS,
                // Without the shortest two.
                DURATION_BOUNDS.split_at(2).1,
            ),
            sizes: Histogram::new(
                "apiserver_response_sizes",
                "[STABLE] Bytes of the responses to reads, as they are sent.",
                LABELS,
                SIZE_BOUNDS,
            ),
            terminations: Counter::new(
                "apiserver_request_terminations_total",
                "[ALPHA] Requests that the server ended to protect itself: refused, timed out or panicked.",
                &["code", "component", "group", "resource", "scope", "subresource", "verb", "version"],
            ),
            deprecated: Gauge::new(
                "apiserver_requested_deprecated_apis",
                "[STABLE] 1 for each deprecated API that was requested.",
                &["group", "removed_release", "resource", "subresource", "version"],
            ),
            reads: InFlight::default(),
            writes: InFlight::default(),
            started: Instant::now(),
        }
    }
}

impl Metrics {
    pub fn families(&self) -> [&dyn Family; 6] {
        [&self.requests, &self.durations, &self.service_level, &self.sizes, &self.terminations, &self.deprecated]
    }

    /// Clears all counters except the number of requests in flight.
    pub fn reset(&self) {
        self.requests.clear();
        self.terminations.clear();
        [&self.durations, &self.service_level, &self.sizes].into_iter().for_each(Histogram::clear);
        self.deprecated.replace([]);
    }

    /// The most requests in flight within the last second: those that change something, and others.
    pub fn in_flight(&self) -> [(&'static str, u64); 2] {
        let second = self.started.elapsed().as_secs();
        [("mutating", self.writes.peak(second)), ("readOnly", self.reads.peak(second))]
    }
}

/// The number of requests in flight, and the maximum of the current second.
#[derive(Default)]
struct InFlight {
    current: AtomicU64,
    /// The second since the start, and the maximum in it in the lower half.
    peak: AtomicU64,
}

impl InFlight {
    fn start(&self, second: u64) {
        let current = self.current.fetch_add(1, Ordering::Relaxed) + 1;
        self.note(second, current);
    }

    fn finish(&self) {
        self.current.fetch_sub(1, Ordering::Relaxed);
    }

    fn note(&self, second: u64, current: u64) {
        let seen = second << 32 | current.min(u64::from(u32::MAX));
        // A later second is larger whatever its maximum is.
        self.peak.fetch_max(seen, Ordering::Relaxed);
    }

    fn peak(&self, second: u64) -> u64 {
        let (current, peak) = (self.current.load(Ordering::Relaxed), self.peak.load(Ordering::Relaxed));
        let is_recent = peak >> 32 >= second.saturating_sub(1);
        if is_recent { current.max(peak & u64::from(u32::MAX)) } else { current }
    }
}

static OPEN: Gauge =
    Gauge::new("apiserver_longrunning_requests", "[STABLE] Open watches and streams, by resource.", LABELS);

pub const FAMILIES: &[&dyn Family] = &[&OPEN];

/// A watch or a stream that is counted until this is dropped.
pub struct LongRunning(Labels);

impl LongRunning {
    pub fn watch(resource: &Arc<Resource>, target: &Target) -> LongRunning {
        let resource = Some(resource.clone());
        let scope = scope(target);
        Self::start(Labels { verb: "WATCH", resource, subresource: None, scope, dry_run: "", path: None })
    }

    fn start(labels: Labels) -> LongRunning {
        OPEN.add(&labels.values(), 1.0);
        LongRunning(labels)
    }
}

impl Drop for LongRunning {
    fn drop(&mut self) {
        OPEN.add(&self.0.values(), -1.0);
    }
}

/// A request in flight. It is counted when it is finished; one that is dropped before, without a response, is not.
pub struct InFlightRequest {
    metrics: Arc<Metrics>,
    labels: Labels,
    started: Instant,
    /// Nanoseconds that are not the server's: of webhooks, and in queues.
    waited: AtomicU64,
    is_mutating: Option<bool>,
    /// Its span, once its user is known, if it is sampled.
    span: Mutex<Option<Span>>,
}

impl InFlightRequest {
    /// Counts a request as in flight. `resource` is the target's, if it exists.
    pub fn start(
        metrics: &Arc<Metrics>,
        parts: &Parts,
        target: &Target,
        query: &Query,
        resource: Option<&Arc<Resource>>,
        started: Instant,
    ) -> InFlightRequest {
        let labels = Labels::of(parts, target, query, resource);
        let is_read = matches!(target.verb.as_str(), "get" | "list" | "watch");
        let is_mutating = (!crate::deadline::is_long_running(target)).then_some(!is_read);
        let (metrics, waited, span) = (metrics.clone(), AtomicU64::new(0), Mutex::new(None));
        let request = InFlightRequest { metrics, labels, started, waited, is_mutating, span };
        if let Some(gauge) = request.gauge() {
            gauge.start(request.metrics.started.elapsed().as_secs());
        }
        request
    }

    fn gauge(&self) -> Option<&InFlight> {
        self.is_mutating.map(|is_mutating| if is_mutating { &self.metrics.writes } else { &self.metrics.reads })
    }

    /// Makes the span of the request end with it.
    pub fn trace(&self, span: Option<Span>) {
        *self.span.lock() = span.map(|span| span.started(self.started));
    }

    /// A span within that of the request, if that is sampled.
    pub fn span(&self, name: impl Into<String>) -> Option<Span> {
        self.span.lock().as_ref()?.child(name, Kind::Client)
    }

    /// The place of the request's span, if it is sampled.
    pub fn place(&self) -> Option<Place> {
        self.span.lock().as_ref().map(Span::place)
    }

    /// Counts what the request opened, a stream, as long as the result lives.
    pub fn stream(&self) -> LongRunning {
        LongRunning::start(self.labels.clone())
    }

    /// Notes time that the server spent waiting for others.
    pub fn waited(&self, time: Duration) {
        self.waited.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Records that the server ended the request to protect itself.
    pub fn terminated(&self, code: u16) {
        let [component, group, resource, scope, subresource, verb, version] = self.labels.values();
        let mut digits = [0; 3];
        let code = code_text(code, &mut digits);
        let values = [code, component, group, resource, scope, subresource, verb, version];
        self.metrics.terminations.add(&values, 1);
    }

    /// Records the response, whose body had `bytes` bytes if that is known.
    pub fn finish(self, code: u16, bytes: Option<usize>) {
        let seconds = self.started.elapsed().as_secs_f64();
        let own = self.labels.values();
        let [component, group, resource, scope, subresource, verb, version] = own;
        let dry_run = self.labels.dry_run;
        if let Some(span) = &mut *self.span.lock() {
            span.number("http.response.status_code", code.into());
            if code >= 500 {
                span.failed("");
            }
        }
        let mut digits = [0; 3];
        let code = code_text(code, &mut digits);
        let metrics = &self.metrics;
        metrics.requests.add(&[code, component, dry_run, group, resource, scope, subresource, verb, version], 1);
        metrics.durations.observe(&[component, dry_run, group, resource, scope, subresource, verb, version], seconds);
        if dry_run.is_empty() {
            let waited = Duration::from_nanos(self.waited.load(Ordering::Relaxed)).as_secs_f64();
            metrics.service_level.observe(&own, (seconds - waited).max(0.0));
        }
        if let Some(bytes) = bytes.filter(|_| matches!(verb, "GET" | "LIST") && self.labels.resource.is_some()) {
            metrics.sizes.observe(&own, bytes as f64);
        }
        if self.labels.resource.as_ref().is_some_and(|resource| resource.deprecation().is_some()) {
            // No release is announced that would remove one of them.
            metrics.deprecated.set(&[group, "", resource, subresource, version], 1.0);
        }
    }
}

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        if let Some(gauge) = self.gauge() {
            gauge.finish();
        }
    }
}

/// The digits of a status code, without an allocation.
fn code_text(code: u16, digits: &mut [u8; 3]) -> &str {
    for (digit, divisor) in digits.iter_mut().zip([100, 10, 1]) {
        *digit = b'0' + u8::try_from(code / divisor % 10).unwrap_or(0);
    }
    std::str::from_utf8(digits).unwrap_or("0")
}

/// The labels of a request.
#[derive(Clone)]
struct Labels {
    verb: &'static str,
    resource: Option<Arc<Resource>>,
    /// The index of the subresource among those of the kind.
    subresource: Option<usize>,
    scope: &'static str,
    dry_run: &'static str,
    /// A path that has a series of its own, as it is no resource.
    path: Option<&'static str>,
}

impl Labels {
    fn of(parts: &Parts, target: &Target, query: &Query, resource: Option<&Arc<Resource>>) -> Labels {
        let subresources = resource.map(|resource| &resource.kind.subresources);
        let subresource = subresources.and_then(|all| all.iter().position(|one| one.name == target.subresource));
        let path = ["/healthz", "/livez", "/readyz"].into_iter().find(|path| target.path.starts_with(path));
        Labels {
            verb: verb(parts, target),
            resource: resource.cloned(),
            subresource,
            scope: scope(target),
            dry_run: dry_run(query),
            path: path.filter(|_| !target.is_resource()),
        }
    }

    /// By `LABELS`.
    fn values(&self) -> [&str; 7] {
        let Some(resource) = &self.resource else {
            let component = if self.path.is_some() { "" } else { "apiserver" };
            return [component, "", "", self.scope, self.path.unwrap_or_default(), self.verb, ""];
        };
        let kind = &resource.kind;
        let subresource = self.subresource.and_then(|index| kind.subresources.get(index));
        let subresource = subresource.map_or("", |subresource| subresource.name.as_str());
        ["apiserver", &kind.group, &kind.plural, self.scope, subresource, self.verb, &kind.version]
    }
}

fn verb(parts: &Parts, target: &Target) -> &'static str {
    if target.is_resource() && matches!(target.subresource.as_str(), "attach" | "exec" | "portforward" | "proxy") {
        return "CONNECT";
    }
    match target.verb.as_str() {
        "get" => "GET",
        "head" => "HEAD",
        "list" => "LIST",
        "watch" => "WATCH",
        "create" | "post" => "POST",
        "update" | "put" => "PUT",
        "patch" => {
            let kind = parts.headers.get(CONTENT_TYPE).map(http::HeaderValue::as_bytes).unwrap_or_default();
            if kind.starts_with(b"application/apply-patch+") { "APPLY" } else { "PATCH" }
        }
        "delete" => "DELETE",
        "deletecollection" => "DELETECOLLECTION",
        _ => "other",
    }
}

/// What part of a resource a request is about.
pub fn scope(target: &Target) -> &'static str {
    match (target.is_resource(), target.name.is_empty() && target.verb != "create", target.namespace.is_empty()) {
        (false, _, _) => "",
        (true, false, _) => "resource",
        (true, true, false) => "namespace",
        (true, true, true) => "cluster",
    }
}

fn dry_run(query: &Query) -> &'static str {
    match query.all("dryRun").next() {
        None => "",
        Some(_) if query.all("dryRun").all(|value| value == "All") => "All",
        Some(_) => "invalid",
    }
}

#[cfg(test)]
impl InFlightRequest {
    pub fn for_test() -> InFlightRequest {
        let (parts, ()) = http::Request::new(()).into_parts();
        let (target, query) = (Target::default(), Query::parse(""));
        InFlightRequest::start(&Arc::default(), &parts, &target, &query, None, Instant::now())
    }
}

#[cfg(test)]
mod tests;
