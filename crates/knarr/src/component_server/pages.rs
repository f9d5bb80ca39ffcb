//! The pages of a standalone component.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use jiff::Timestamp;
use knarr_apiserver::page::{Page, Pages as ApiPages};
use knarr_apiserver::response::Body;
use knarr_apiserver::route::query::Query;
use knarr_metrics::Indicators;
use knarr_supervisor::Registry;
use knarr_zpages::Uptime;
use serde_json::{Value, json};

const PATHS: [&str; 9] =
    ["/configz", "/flagz", "/healthz", "/livez", "/metrics", "/metrics/slis", "/readyz", "/statusz", "/version"];
const INFORMER: &str = "informer/";

/// What the pages show.
pub struct Pages {
    /// Kubernetes' name of the component.
    pub component: &'static str,
    pub components: Registry,
    pub started: Instant,
    pub started_at: Timestamp,
    /// The values of all flags.
    pub flags: BTreeMap<String, String>,
    /// The configuration by the name of its kind.
    pub configuration: Value,
    /// The results of health checks.
    pub indicators: Indicators,
}

impl Pages {
    pub fn new(component: &'static str, components: &Registry, configuration: Value) -> Self {
        Self {
            component,
            components: components.clone(),
            started: Instant::now(),
            started_at: Timestamp::now(),
            flags: crate::process_flags::flags(),
            configuration,
            indicators: Indicators::default(),
        }
    }

    pub fn serve<B>(&self, request: &Request<B>) -> Response<Full<Bytes>> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return text(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed\n");
        }
        let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        match parts.as_slice() {
            [endpoint @ ("healthz" | "livez" | "readyz"), name @ ..] => self.health(endpoint, &name.join("/"), query),
            ["metrics"] => {
                let page = self.metrics();
                with_type(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", page)
            }
            ["metrics", "resources"] if self.component == "kube-scheduler" => {
                let page = knarr_scheduler::resource_metrics::page();
                with_type(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", page)
            }
            ["metrics", "slis"] => {
                with_type(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", self.indicators.page())
            }
            ["configz"] => with_type(StatusCode::OK, "application/json", self.configuration.to_string()),
            ["flagz"] => zpage(knarr_zpages::flagz(self.component, accept(request), &self.flags)),
            ["statusz"] => zpage(knarr_zpages::statusz(self.component, accept(request), self.uptime(), &PATHS)),
            ["version"] => {
                let version = format!("{:#}", knarr_apiserver::endpoint::version::document());
                with_type(StatusCode::OK, "application/json", version)
            }
            _ => text(StatusCode::NOT_FOUND, "404 page not found\n"),
        }
    }

    /// The checks of an endpoint with their reasons. Restarting the process is no better than restarting a component.
    fn checks(&self, endpoint: &str) -> Vec<(String, Result<(), String>)> {
        let reports = self.components.report();
        let mut checks = vec![("ping".to_owned(), Ok(()))];
        let informers = reports.iter().filter(|one| one.name.starts_with(INFORMER));
        let failed = informers.filter_map(|one| Some(format!("{}: {}", one.name, one.failure.as_ref()?))).next();
        checks.push(("informer-sync".to_owned(), failed.map_or(Ok(()), Err)));
        if endpoint != "livez" {
            let supervised = reports.iter().filter(|one| !one.name.starts_with(INFORMER));
            checks.extend(supervised.map(|one| (one.name.to_string(), one.failure.clone().map_or(Ok(()), Err))));
        }
        checks
    }

    fn health(&self, endpoint: &str, name: &str, query: &str) -> Response<Full<Bytes>> {
        let checks = self.checks(endpoint);
        if !name.is_empty() {
            return match checks.iter().find(|(own, _)| own == name) {
                None => text(StatusCode::NOT_FOUND, "404 page not found\n"),
                Some((_, Ok(()))) => text(StatusCode::OK, "ok"),
                Some((_, Err(_))) => {
                    text(StatusCode::INTERNAL_SERVER_ERROR, "internal server error: reason withheld\n")
                }
            };
        }
        let (mut lines, mut is_failed) = (String::new(), false);
        let label = ["healthz", "livez", "readyz"].into_iter().find(|known| *known == endpoint).unwrap_or("healthz");
        for (name, result) in checks {
            self.indicators.record(&name, label, result.is_ok());
            match result {
                Ok(()) => lines.push_str(&format!("[+]{name} ok\n")),
                Err(reason) => {
                    is_failed = true;
                    tracing::warn!(name, reason, "a health check fails");
                    // Served without authentication.
                    lines.push_str(&format!("[-]{name} failed: reason withheld\n"));
                }
            }
        }
        let is_verbose = query.split('&').any(|word| word == "verbose" || word.starts_with("verbose="));
        match (is_failed, is_verbose) {
            (true, _) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{lines}{endpoint} check failed\n")),
            (false, true) => text(StatusCode::OK, format!("{lines}{endpoint} check passed\n")),
            (false, false) => text(StatusCode::OK, "ok"),
        }
    }

    fn metrics(&self) -> String {
        let mut page = String::new();
        knarr_supervisor::write_metrics(&self.components, &mut page);
        knarr_metrics::write_registered(&mut page);
        knarr_metrics::write_process(knarr_version::reported(), &knarr_version::platform(), &mut page);
        knarr_metrics::write_totals(&mut page);
        page
    }

    fn uptime(&self) -> Uptime {
        Uptime { started: self.started_at, elapsed: self.started.elapsed() }
    }
}

/// The pages that the API server lacks, for its own paths: it authorizes requests for them.
pub fn of_api_server(components: &Registry) -> ApiPages {
    let pages = Arc::new(Pages::new("apiserver", components, json!({})));
    let page = |name: &'static str| -> (&'static str, Arc<dyn Page>) { (name, Arc::new(ApiPage(pages.clone(), name))) };
    ["configz", "flagz", "statusz"].map(page).into()
}

struct ApiPage(Arc<Pages>, &'static str);

#[async_trait]
impl Page for ApiPage {
    async fn serve(&self, head: &Parts, _: &Query, _: &Bytes) -> Response<Body> {
        let mut request = Request::from_parts(head.clone(), ());
        *request.uri_mut() = format!("/{}", self.1).parse().unwrap_or_default();
        let (head, body) = self.0.serve(&request).into_parts();
        let body = match body.collect().await {
            Ok(body) => body.to_bytes(),
            Err(never) => match never {},
        };
        Response::from_parts(head, Body::full(body))
    }
}

fn accept<B>(request: &Request<B>) -> &str {
    request.headers().get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

fn zpage(page: knarr_zpages::Page) -> Response<Full<Bytes>> {
    let code = StatusCode::from_u16(page.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = with_type(code, page.media_type, page.body);
    if let Some(warning) = page.warning.and_then(|text| HeaderValue::from_str(&text).ok()) {
        response.headers_mut().insert(header::WARNING, warning);
    }
    response
}

fn text(code: StatusCode, body: impl Into<String>) -> Response<Full<Bytes>> {
    with_type(code, "text/plain; charset=utf-8", body.into())
}

pub(super) fn with_type(code: StatusCode, media_type: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use knarr_supervisor::Supervisor;

    async fn get(pages: &Pages, path: &str) -> (u16, String) {
        let response = pages.serve(&Request::get(path).body(()).unwrap());
        let code = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (code, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_component_is_not_ready_but_live() {
        let supervisor = Supervisor::new(&Registry::default());
        let pages = Pages::new("kube-scheduler", supervisor.registry(), json!({}));
        assert_eq!(get(&pages, "/readyz").await, (200, "ok".to_owned()));
        let failing: fn() -> std::future::Ready<Result<(), &'static str>> = || std::future::ready(Err("broken"));
        supervisor.restart("deployment-controller", failing);
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        let (code, body) = get(&pages, "/readyz").await;
        assert_eq!(code, 500);
        assert!(body.contains("[-]deployment-controller failed: reason withheld\n"), "{body}");
        assert_eq!(get(&pages, "/livez").await.0, 200);
        assert_eq!(get(&pages, "/healthz/deployment-controller").await.0, 500);
        assert_eq!(get(&pages, "/healthz/ping").await, (200, "ok".to_owned()));
        let (_, metrics) = get(&pages, "/metrics").await;
        assert!(metrics.contains("knarr_component_up{component=\"deployment-controller\"} 0\n"), "{metrics}");
        assert_eq!(get(&pages, "/nothing").await.0, 404);
        let (_, indicators) = get(&pages, "/metrics/slis").await;
        let line = "kubernetes_healthcheck{name=\"deployment-controller\",type=\"readyz\"} 0\n";
        assert!(indicators.contains(line), "{indicators}");
        for path in ["/configz", "/flagz", "/statusz"] {
            assert_eq!(get(&pages, path).await.0, 200, "{path}");
        }
        let (_, version) = get(&pages, "/version").await;
        let version: Value = serde_json::from_str(&version).unwrap();
        assert_eq!((&version["platform"], &version["minor"]), (&json!(knarr_version::platform()), &json!("36")));
    }
}
